"""Readers: batches are pure functions of (seed, step); files in the standard formats; faults are named."""

import hashlib
import os
import pickle

import numpy as np
import pytest
import torch

from trimtab.data import cifar10
from trimtab.data.batches import augment, indices
from trimtab.data.opening import open_data
from trimtab.errors import InputError

DATA = os.environ.get("TRIMTAB_DATA")
real = pytest.mark.skipif(
    not (DATA and os.path.isdir(os.path.join(DATA, "cifar-10-batches-py"))),
    reason="TRIMTAB_DATA does not name a folder with the real sets",
)


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """Six files in CIFAR-10's format with 20 images each."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    random, sums = np.random.default_rng(0), {}
    for name in cifar10.MD5:
        held = {
            b"data": random.integers(0, 256, (20, 3072), dtype=np.uint8),
            b"labels": [int(v) for v in random.integers(0, 10, 20)],
            b"batch_label": b"x",
            b"filenames": [b"f"] * 20,
        }
        content = pickle.dumps(held, protocol=2)
        (folder / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(cifar10, "MD5", sums)
    return folder


@pytest.fixture
def small_folder(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is absent")
    random = np.random.default_rng(0)
    for split, n in (("train", 6), ("val", 3)):
        for label in ("n01", "n02", "n03"):
            folder = tmp_path / "pictures" / split / label
            folder.mkdir(parents=True)
            for i in range(n):
                shape = (20, 30) if i == 0 else (20, 30, 3)  # the first of each class is grey
                image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{i}.JPEG")
    return tmp_path / "pictures"


def test_each_example_once_an_epoch():
    seen = np.concatenate([indices(3, step, 10, 103) for step in range(10)])
    assert len(set(seen.tolist())) == 100
    again = np.concatenate([indices(3, step, 10, 103) for step in range(10, 20)])
    assert not np.array_equal(seen, again)
    assert not np.array_equal(seen, np.concatenate([indices(4, step, 10, 103) for step in range(10)]))


def test_batches_do_not_depend_on_what_was_asked_before():
    data = open_data("digits")
    late = data.batch("train", 1, 57, 32)
    for step in range(5):
        data.batch("train", 2, step, 16)
    assert all(torch.equal(a, b) for a, b in zip(late, data.batch("train", 1, 57, 32), strict=True))


def test_digits_are_standardised_and_split():
    data = open_data("digits")
    x, y = next(iter(data.test(1000, None)))
    assert len(x) == 360 and set(y.tolist()) == set(range(10))
    full = torch.cat([data.batch("train", 0, s, 479)[0] for s in range(3)])
    assert abs(float(full.mean())) < 1e-5 and abs(float(full.std(correction=0)) - 1) < 1e-5


def test_cifar_reads_the_standard_files(small_cifar):
    data = cifar10.read(str(small_cifar), px=32)
    assert data.shape.train == 100 and data.shape.inputs == (3, 32, 32)
    first = np.asarray(
        pickle.loads((small_cifar / "data_batch_1").read_bytes(), encoding="bytes")[b"data"]
    ).reshape(-1, 3, 32, 32)
    assert torch.equal(data._train[0][:20], torch.from_numpy(first))
    small = cifar10.read(str(small_cifar), px=8)
    blocks = torch.from_numpy(first).float().view(20, 3, 8, 4, 8, 4).mean((3, 5))
    assert torch.allclose(small._train[0][:20], blocks)


def test_a_corrupt_or_missing_file_is_named(small_cifar):
    path = small_cifar / "data_batch_3"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_3.*MD5"):
        cifar10.read(str(small_cifar))
    path.unlink()
    with pytest.raises(InputError, match=r"data_batch_3.*toronto"):
        cifar10.read(str(small_cifar))


def test_a_pickle_that_would_run_code_does_not(small_cifar, tmp_path, monkeypatch):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    content = pickle.dumps({b"data": Evil()})
    (small_cifar / "test_batch").write_bytes(content)
    monkeypatch.setitem(
        cifar10.MD5, "test_batch", hashlib.md5(content).hexdigest()
    )  # even with the right checksum
    with pytest.raises(pickle.UnpicklingError, match="does not belong"):
        cifar10.read(str(small_cifar))
    assert not (tmp_path / "ran").exists()


def test_flips_and_crops_are_functions_of_seed_and_step():
    x = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).view(2, 3, 8, 8)
    a, b = augment(x, 0, 5, True, 2), augment(x, 0, 5, True, 2)
    assert torch.equal(a, b) and not torch.equal(a, augment(x, 0, 6, True, 2))
    moved = augment(x.repeat(20, 1, 1, 1), 1, 1, False, 2)
    padded = torch.nn.functional.pad(x, (2,) * 4)
    for i, image in enumerate(moved):
        assert any(
            torch.equal(image, padded[i % 2, :, t : t + 8, left : left + 8])
            for t in range(5)
            for left in range(5)
        )


@pytest.mark.parametrize("workers", [0, 3])
def test_image_folders_stream(small_folder, workers):
    data = open_data(
        "images", {"folder": str(small_folder), "px": 16, "flip": True, "crop": True, "workers": workers}
    )
    assert data.shape.classes == 3 and data.shape.train == 18
    batches = [data.batch("train", 0, step, 4) for step in range(6)]
    again = open_data(
        "images",
        {"folder": str(small_folder), "px": 16, "flip": True, "crop": True, "workers": 0, "cache_gb": 0.0},
    )
    for step in (5, 2, 0):
        x, y = again.batch("train", 0, step, 4)
        assert torch.equal(x, batches[step][0]) and torch.equal(y, batches[step][1])
    assert x.shape == (4, 3, 16, 16)
    assert sum(len(y) for _, y in data.test(4, None)) == 9
    assert {int(v) for _, y in data.test(4, 6) for v in y} != {0}, (
        "a limited look at the test set is not one class"
    )


def test_a_broken_image_is_named(small_folder):
    (small_folder / "train" / "n02" / "3.JPEG").write_bytes(b"not an image")
    data = open_data("images", {"folder": str(small_folder), "px": 16, "workers": 0})
    with pytest.raises(InputError, match=r"n02.3\.JPEG"):
        [data.batch("train", 0, step, 6) for step in range(3)]


def test_text_windows(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("abcdefgh" * 100 + "é✓")
    data = open_data("text", {"file": str(file), "context": 8})
    x, y = data.batch("train", 0, 3, 5)
    assert torch.equal(x[:, 1:], y[:, :-1]) and data.shape.classes == 10
    assert all(torch.equal(a[0, 1:], b[0, :-1]) for a, b in data.test(1, 3))
    file.write_text("short")
    with pytest.raises(InputError, match="at least"):
        open_data("text", {"file": str(file), "context": 9})


def test_missing_data_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "nowhere"))
    for name, words in (("cifar10", "toronto"), ("images", "image-net"), ("text", "UTF-8")):
        with pytest.raises(InputError, match=words) as error:
            open_data(name, {"px": 32} if name != "text" else {"context": 7})
        assert str(tmp_path / "nowhere") in str(error.value)


def test_a_teacher_is_one_function():
    a, b = open_data("teacher", {"draw": 1}), open_data("teacher", {"draw": 2})
    assert not torch.equal(a._train[1], b._train[1])
    _, y = a.batch("train", 0, 0, 256)
    assert y.shape == (256, 1) and 0.2 < float(y.std()) < 2


@real
@pytest.mark.slow
def test_real_cifar10():
    data = open_data("cifar10", {})
    x = data._train[0].float() / 255
    assert torch.allclose(x.mean((0, 2, 3)), torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4)
    assert torch.allclose(
        x.transpose(0, 1).flatten(1).std(1), torch.tensor([0.2470, 0.2435, 0.2616]), atol=1e-4
    )
    assert torch.bincount(data._train[1]).tolist() == [5000] * 10


@real
def test_real_image_folder():
    data = open_data("images", {"folder": "tiny-imagenet-50", "px": 32, "workers": 2})
    assert data.shape.classes == 50 and data.shape.train == 25_000
    x, y = data.batch("train", 0, 0, 200)
    assert x.shape == (200, 3, 32, 32) and len(set(y.tolist())) > 30 and abs(float(x.mean())) < 0.5


@real
def test_real_text():
    assert open_data("text", {}).shape.classes == 65
