"""`trimtab data get` against a server of our own: resumption, checksums, hostile archives, no network."""

import gzip
import hashlib
import http.server
import io
import re
import stat
import tarfile
import threading
import zipfile

import numpy as np
import pytest
import torch

from trimtab import cli
from trimtab.data import archives, fashion_mnist, sources
from trimtab.data.downloads import download, remembered
from trimtab.data.fetching import WORK, get
from trimtab.data.opening import open_data
from trimtab.data.sources import SOURCES, Remote, Source
from trimtab.errors import InputError

RANDOM = np.random.default_rng(0)
FAST = dict(pause=0.0, tries=2)


class Server:
    """Files over HTTP. `cut`: bytes after which a body ends; `ranges`: whether ranges are honoured."""

    def __init__(self):
        self.files, self.log, self.cut, self.ranges, self.fail = {}, [], [], True, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.answer(self)

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, request):
        asked = request.headers.get("Range")
        self.log.append(asked)
        content = self.files.get(request.path[1:])
        if self.fail or content is None:
            request.send_error(self.fail.pop(0) if self.fail else 404)
            return
        tag, start = f'"{hashlib.md5(content).hexdigest()}"', 0
        if asked and self.ranges and request.headers.get("If-Range") == tag:
            start = int(re.match(r"bytes=(\d+)-", asked)[1])
        if start >= len(content) > 0 and start:
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("ETag", tag)
        request.send_header("Content-Length", str(len(content) - start))
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.end_headers()
        body = content[start:]
        request.wfile.write(body[: self.cut.pop(0)] if self.cut else body)

    def remote(self, name, content, md5=True):
        self.files[name] = content
        return Remote(self.url + name, name, hashlib.md5(content).hexdigest() if md5 else None)


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


BYTES = RANDOM.integers(0, 256, 1_000_000, dtype=np.uint8).tobytes()


def test_a_cut_connection_is_resumed_where_it_ended(server, tmp_path):
    remote, seen = server.remote("a.bin", BYTES), []
    server.cut = [300_000, 400_000]
    path = download(remote, tmp_path, progress=lambda *told: seen.append(told), **FAST)
    assert path.read_bytes() == BYTES and server.log == [None, "bytes=300000-", "bytes=700000-"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    assert seen[-1] == ("a.bin", 1_000_000, 1_000_000)
    server.log.clear()
    assert download(remote, tmp_path) == path and not server.log  # it is there


def test_a_second_call_resumes_what_the_first_one_left(server, tmp_path):
    remote = server.remote("a.bin", BYTES)
    server.cut = [600_000, 0, 0]
    with pytest.raises(InputError, match=r"ended early.*600,000 bytes are kept: the same command resumes"):
        download(remote, tmp_path, **FAST)
    server.log.clear()
    assert download(remote, tmp_path, **FAST).read_bytes() == BYTES and server.log == ["bytes=600000-"]


@pytest.mark.parametrize("change", ["another file", "no ranges"])
def test_it_begins_anew_where_it_cannot_resume(server, tmp_path, change):
    remote = server.remote("a.bin", BYTES)
    server.cut = [600_000, 0, 0]
    with pytest.raises(InputError):
        download(remote, tmp_path, **FAST)
    content = BYTES
    if change == "another file":  # of the same length: resumed it would be half of each
        content = BYTES[::-1]
        remote = server.remote("a.bin", content)
    else:
        server.ranges = False
    assert download(remote, tmp_path, **FAST).read_bytes() == content


def test_a_server_that_is_busy_is_asked_again(server, tmp_path):
    remote = server.remote("a.bin", BYTES)
    server.fail = [503]
    assert download(remote, tmp_path, **FAST).read_bytes() == BYTES


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    remote = server.remote("a.bin", BYTES)
    server.files["a.bin"] = BYTES[:-1] + bytes([BYTES[-1] ^ 1])
    with pytest.raises(InputError, match=f"its MD5 is .*, the published one {remote.md5}"):
        download(remote, tmp_path, **FAST)
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_said(server, tmp_path):
    with pytest.raises(InputError, match="the server answered 404"):
        download(Remote(server.url + "absent", "absent", "0"), tmp_path, **FAST)
    assert len(server.log) == 1  # 404 is not tried again
    with pytest.raises(InputError, match=r"could not be fetched: .*refused.*Without a network"):
        download(Remote("http://127.0.0.1:9/a", "a", "0"), tmp_path, **FAST)


# -- archives -----------------------------------------------------------------------------------------------


def tar(members):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):  # a link
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


def zipped(members):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if isinstance(content, str):
                info.external_attr, content = (stat.S_IFLNK | 0o777) << 16, content.encode()
            archive.writestr(info, content)
    return held.getvalue()


HOSTILE = {"up": {"set/../../out": b"x"}, "absolute": {"/tmp/out": b"x"}, "link": {"set/out": "/etc/passwd"}}


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_member_refuses_the_whole_archive(tmp_path, kind, fault):
    path, folder = tmp_path / f"a.{kind}", tmp_path / "into"
    folder.mkdir()
    members = {"set/first": b"good"} | HOSTILE[fault]
    path.write_bytes(tar(members) if kind == "tar.gz" else zipped(members))
    if (kind, fault) == ("tar.gz", "absolute"):  # the filter strips the slash, and it stays inside
        archives.unpack(path, folder)
        assert (folder / "tmp/out").read_bytes() == b"x"
        return
    with pytest.raises(InputError, match="cannot be unpacked safely"):
        archives.unpack(path, folder)
    assert not list(folder.iterdir()) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_broken_archive_is_said(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    path.write_bytes((tar if kind == "tar.gz" else zipped)({"a": BYTES})[:5000])
    with pytest.raises(InputError, match="cannot be unpacked safely"):
        archives.unpack(path, tmp_path)


# -- the sets -----------------------------------------------------------------------------------------------


def small(server, **members):
    return Source("Small", "x", "set", (server.remote("set.tar.gz", tar(members)),), ("a", "b"), "no terms")


def test_a_set_is_there_whole_or_not_at_all(server, tmp_path):
    source = small(server, **{"set/a": b"1", "set/b": b"2"})
    said = []
    place = get(source, tmp_path, say=said.append, **FAST)
    assert (place / "a").read_bytes() == b"1" and sorted(p.name for p in tmp_path.iterdir()) == [WORK, "set"]
    assert [p.name for p in (tmp_path / WORK).iterdir()] == ["lock"]
    asked = len(server.log)
    assert get(source, tmp_path, say=said.append) == place and len(server.log) == asked
    assert said == [f"Small is in {place} (no terms)", f"Small is there already: {place}"]
    (place / "b").unlink()
    with pytest.raises(InputError, match="incomplete: b missing"):
        get(source, tmp_path)


def test_an_archive_without_its_files_is_refused(server, tmp_path):
    with pytest.raises(InputError, match="must hold b"):
        get(small(server, **{"set/a": b"1"}), tmp_path, **FAST)
    assert not (tmp_path / "set").exists() and not (tmp_path / WORK / "unpacked").exists()


def test_two_at_once_are_told_apart(server, tmp_path):
    import fcntl

    (tmp_path / WORK).mkdir()
    with (tmp_path / WORK / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is getting data"):
            get(small(server, **{"set/a": b"1", "set/b": b"2"}), tmp_path, **FAST)


def test_without_a_published_checksum_the_first_one_seen_counts(server, tmp_path):
    text = b"First Citizen:\n" * 2000
    source = Source("Text", "text", "it.txt", (server.remote("it.txt", text, md5=False),))
    said = []
    get(source, tmp_path, say=said.append, **FAST)
    digest = hashlib.sha256(text).hexdigest()
    assert "no published checksum" in said[0] and digest in said[0] and "noted" in said[0]
    assert remembered(tmp_path / WORK) == {server.url + "it.txt": digest}
    (tmp_path / "it.txt").unlink()
    server.files["it.txt"] = text + b"changed"
    with pytest.raises(InputError, match="the one first seen here"):
        get(source, tmp_path, **FAST)
    server.files["it.txt"] = text
    get(source, tmp_path, say=said.append, **FAST)
    assert "as it was seen first" in said[2]


def picture(grey):
    image = pytest.importorskip("PIL.Image", reason="the [images] extra (Pillow) is not installed")
    held = io.BytesIO()
    image.fromarray(np.full((8, 8, 3), grey, np.uint8)).save(held, "JPEG")
    return held.getvalue()


def test_tiny_imagenet_is_laid_out_for_its_reader(server, tmp_path, monkeypatch):
    place = "tiny-imagenet-200"
    members = {f"{place}/wnids.txt": b"n1\nn2\n"}
    for label, grey in (("n1", 10), ("n2", 200)):
        members |= {f"{place}/train/{label}/images/{label}_{i}.JPEG": picture(grey) for i in range(3)}
    members |= {f"{place}/val/images/val_{i}.JPEG": picture((200, 10)[i % 2]) for i in range(4)}
    lines = [f"val_{i}.JPEG\t{('n2', 'n1')[i % 2]}\t0\t0\t63\t63" for i in range(4)]
    members[f"{place}/val/val_annotations.txt"] = "\n".join(lines).encode()
    known = SOURCES["tiny-imagenet"]
    source = Source(known.title, known.data, place, (server.remote("t.zip", zipped(members)),), known.holds)
    get(source, tmp_path, **FAST)
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path))
    data = open_data("images", {"px": 8, "workers": 0})
    (x, y) = next(iter(data.test(10, None)))
    assert y.tolist() == [0, 0, 1, 1] and x[y == 0].mean() < x[y == 1].mean() and data.shape.train == 6
    members[f"{place}/val/val_annotations.txt"] = b"../../escaped\tn1\t0"
    source = Source("T", "images", "other", (server.remote("t.zip", zipped(members)),))
    with pytest.raises(InputError, match="line 1, must name an image"):
        get(Source("T", "images", place, source.files, known.holds), tmp_path / "again", **FAST)


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def fashion(n=20):
    out = {}
    for split in ("train", "t10k"):
        out[f"{split}-images-idx3-ubyte.gz"] = gzip.compress(idx(RANDOM.integers(0, 256, (n, 28, 28))))
        out[f"{split}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(n) % 10))
    return out


def test_fashion_mnist_by_the_command_and_in_a_run(server, tmp_path, monkeypatch, capsys):
    files = tuple(server.remote(name, content) for name, content in fashion().items())
    known = SOURCES["fashion-mnist"]
    made = Source(known.title, known.data, known.place, files, known.holds, known.terms)
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", made)
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path / "sets"))
    assert cli.main(["data", "get", "Fashion-MNIST"]) == 0
    assert "is in" in capsys.readouterr().out
    data = open_data("fashion-mnist", {"px": 14})
    pixels = fashion_mnist.read_idx(tmp_path / "sets/fashion-mnist/train-images-idx3-ubyte.gz")
    blocks = torch.from_numpy(pixels.copy()).float().view(20, 14, 2, 14, 2).mean((2, 4))
    assert data.shape.inputs == (1, 14, 14) and torch.allclose(data._train[0][:, 0], blocks)
    run = 'data = "fashion-mnist"\nwidth = 8\ndepth = 1\nlr = 0.1\nsteps = 2\nbatch_size = 4\n'
    (tmp_path / "run.toml").write_text(run)
    assert cli.main(["train", str(tmp_path / "run.toml"), "--json"]) in (0, 1)
    assert cli.main(["data", "list"]) == 0
    assert re.search(r"Fashion-MNIST .* in .*fashion-mnist\n", capsys.readouterr().out)


def test_a_wrong_idx_file_is_named(tmp_path):
    path = tmp_path / "x-ubyte"
    for content, words in ((b"hello", "must be an idx file"), (idx(np.zeros((4, 4)))[:-1], "must hold")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"x-ubyte {words}"):
            fashion_mnist.read_idx(path)
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.*trimtab data get fashion-mnist"):
        fashion_mnist.read(str(tmp_path))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["get"], "takes names"),
        (["get", "mnist"], "is one of cifar10, fashion-mnist, tiny-imagenet, tiny-shakespeare"),
        (["list", "cifar10"], "takes no names"),
    ],
)
def test_bad_command_lines(argv, words, capsys):
    assert cli.main(["data", *argv]) == 2 and words in capsys.readouterr().err


def test_official_addresses_and_readers_agree():
    from trimtab.data import catalogue, cifar10

    for name, source in SOURCES.items():
        assert source.data in catalogue.DATA and sources.source(name) is source is sources.source(
            source.title
        )
        assert all(file.url.startswith("http") and file.md5 != "" for file in source.files)
    assert set(SOURCES["cifar10"].holds) == set(cifar10.MD5)


def test_a_missing_set_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("TRIMTAB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, words in (("cifar10", "cifar10"), ("fashion-mnist", "fashion-mnist"), ("text", "shakespeare")):
        with pytest.raises(InputError, match=f"{tmp_path}/trimtab/data.*trimtab data get .*{words}"):
            open_data(name, {"train": 7} if name != "text" else {"context": 7})


def test_doctor_says_what_is_there_and_where_it_looked(tmp_path, monkeypatch, capsys):
    (tmp_path / "tinyshakespeare.txt").write_text("x")
    (tmp_path / "cifar-10-batches-py").mkdir()
    monkeypatch.setenv("TRIMTAB_DATA", str(tmp_path))
    assert cli.main(["doctor", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"looked in {tmp_path}" in said and "devices    cpu" in said
    assert re.search(r"tiny Shakespeare .* in .*tinyshakespeare.txt\n", said)
    assert "INCOMPLETE" in said and "trimtab data get tiny-imagenet" in said
    assert re.search(r"\[hf\] +transformers (\d|is not installed)", said), said
    assert "[dev]" not in said and not list(tmp_path.glob(".trimtab-doctor*"))
