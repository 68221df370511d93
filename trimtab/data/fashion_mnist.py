"""Fashion-MNIST from its four idx files, as they come (.gz) or unpacked. Nothing in them is code.

idx, all big-endian: two zero bytes, the type (8: bytes), the number of dimensions, each dimension in four
bytes, then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab.data.batches import Tensors
from trimtab.data.catalogue import Shape
from trimtab.data.places import find
from trimtab.errors import InputError

WHERE = (
    "`trimtab data get fashion-mnist` gets it, or put the four idx files of "
    "https://github.com/zalandoresearch/fashion-mnist into a folder fashion-mnist."
)
BYTES = 8
SIDE, CLASSES = 28, 10


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file of bytes, packed by gzip or not.

    Raises:
        InputError: it is no idx file, or shorter than it says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}. Get it again.") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != BYTES:
        raise InputError(f"{path} must be an idx file of bytes: it begins with {content[:4].hex()!r}.")
    rank = content[3]
    sizes = np.frombuffer(content, ">u4", rank, 4) if len(content) >= 4 + 4 * rank else np.zeros(0, ">u4")
    held = len(content) - 4 - 4 * rank
    shape = [int(size) for size in sizes]
    if len(shape) != rank or math.prod(shape) != held:
        raise InputError(
            f"{path} must hold {shape} bytes: it has {max(held, 0)} after its head. Get it again."
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _split(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for kind in ("images-idx3", "labels-idx1"):
        paths = [folder / f"{name}-{kind}-ubyte{ending}" for ending in ("", ".gz")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise InputError(
                f"Fashion-MNIST needs {paths[1]}, or the same without .gz: it is missing. {WHERE}"
            )
        found.append(read_idx(path))
    images, labels = found
    if images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1] or (labels >= CLASSES).any():
        raise InputError(
            f"Fashion-MNIST has {SIDE} x {SIDE} images and a label below {CLASSES} for each: {folder} has "
            f"images {images.shape} and labels {labels.shape} up to {labels.max(initial=0)} in {name}."
        )
    return images[:, None], labels


def read(
    folder: str | None = None, px: int = SIDE, flip: bool = False, crop: int = 0, train: int | None = None
) -> Tensors:
    """Fashion-MNIST at 28 px, or averaged down to 14 or 7 px for a cheap proxy.

    Args:
        train: use only the first so many training images.
    """
    place = find(folder, "fashion-mnist", "Fashion-MNIST", WHERE)
    (images, labels), (held_out, answers) = _split(place, "train"), _split(place, "t10k")
    x, y = _downsample(images[:train], px), torch.from_numpy(labels[:train].astype(np.int64))
    test = (_downsample(held_out, px), torch.from_numpy(answers.astype(np.int64)))
    some = x[:10_000].float()
    return Tensors(
        Shape((1, px, px), CLASSES, "image", len(x)),
        (x, y),
        test,
        mean=some.mean((0, 2, 3)),
        std=some.std((0, 2, 3)),
        flip=flip,
        crop=crop,
    )


def _downsample(images: np.ndarray, px: int) -> Tensor:
    x = torch.from_numpy(images.copy())
    if px == SIDE:
        return x
    return torch.cat([torch.nn.functional.avg_pool2d(part.float(), SIDE // px) for part in x.split(5000)])
