"""CIFAR-10 from the standard `cifar-10-batches-py` folder.

The files are pickles, and a pickle can run code: each file's MD5 is compared with the published one before it
is opened, and the unpickler knows nothing but numpy arrays.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.data.batches import Batch, Tensors
from trimtab.data.catalogue import Shape
from trimtab.data.places import find
from trimtab.errors import InputError

MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
WHERE = (
    "`trimtab data get cifar10` gets it, or unpack cifar-10-python.tar.gz from "
    "https://www.cs.toronto.edu/~kriz/cifar.html."
)
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a data file")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def open_file(path: Path, md5: str) -> tuple[np.ndarray, np.ndarray]:
    """(images (n, 3, 32, 32) uint8, labels) of one file, after its checksum has been compared.

    Raises:
        InputError: with the file's name, if it is missing or not the published one.
    """
    if not path.is_file():
        raise InputError(f"CIFAR-10 needs the file {path}: it is missing. {WHERE}")
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise InputError(
            f"{path} must be the published file: its MD5 is {found}, the published one {md5}. It is corrupt "
            "or another file: unpack it again."
        )
    held = _Arrays(io.BytesIO(content), encoding="bytes").load()
    return held[b"data"].reshape(-1, 3, 32, 32), np.asarray(held[b"labels"])


def read(
    folder: str | None = None, px: int = 32, flip: bool = False, crop: int = 0, train: int | None = None
) -> Tensors:
    """CIFAR-10 at 32 px, or averaged down to 16 or 8 px for a cheap proxy.

    Args:
        train: use only the first so many training images.
    """
    place = find(folder, "cifar-10-batches-py", "CIFAR-10", WHERE)
    missing = [str(place / name) for name in MD5 if not (place / name).is_file()]
    if missing:
        raise InputError(f"CIFAR-10 needs the files of {place}: missing {', '.join(missing)}. {WHERE}")
    held = [open_file(place / name, MD5[name]) for name in MD5]
    images, labels = (
        np.concatenate([x for x, _ in held[:-1]])[:train],
        np.concatenate([y for _, y in held[:-1]])[:train],
    )
    x, y = _downsample(torch.from_numpy(images), px), torch.from_numpy(labels).long()
    x_test, y_test = _downsample(torch.from_numpy(held[-1][0]), px), torch.from_numpy(held[-1][1]).long()
    some = x[:10_000].float()
    mean, std = some.mean((0, 2, 3)), some.std((0, 2, 3))
    test: Batch = (x_test, y_test)
    return Tensors(
        Shape((3, px, px), 10, "image", len(x)), (x, y), test, mean=mean, std=std, flip=flip, crop=crop
    )


def _downsample(x: Tensor, px: int) -> Tensor:
    if px == 32:
        return x
    return torch.cat([torch.nn.functional.avg_pool2d(part.float(), 32 // px) for part in x.split(5000)])
