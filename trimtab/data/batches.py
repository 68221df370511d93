"""Where batches come from: the order of examples as a counter-based random function of (seed, epoch).

    batch(seed, step) = examples[ permutation(seed, step // n) [ (step mod n) B : ... + B ] ],    n = train //
    B

Philox is keyed by (seed, purpose, epoch), so any step's batch costs the same and none needs the ones before
it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trimtab.data.catalogue import Shape

Batch = tuple[Tensor, Tensor]
ORDER, CHANGE, PLACE = 1, 2, 3  # what a random stream is for


class Dataset(Protocol):
    """What `train` asks of a data set."""

    shape: Shape

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        """The training batch of one step."""
        ...

    def test(self, size: int, limit: int | None) -> Iterator[Batch]:
        """The test split in order, `size` examples at a time, at most `limit` in all."""
        ...


def stream(seed: int, purpose: int, counter: int) -> np.random.Generator:
    """A random stream of its own for (seed, purpose, counter)."""
    return np.random.Generator(np.random.Philox(key=[seed, purpose * 2**40 + counter]))


@functools.lru_cache(maxsize=64)
def order(seed: int, epoch: int, n: int) -> np.ndarray:
    """The order of n examples in one epoch."""
    return stream(seed, ORDER, epoch).permutation(n)


def indices(seed: int, step: int, size: int, n: int) -> np.ndarray:
    """Which examples one step sees: each once an epoch, a last incomplete batch left out.

    >>> [indices(7, step, 4, 10).tolist() == order(7, 0, 10)[4 * step :][:4].tolist() for step in (0, 1)]
    [True, True]
    """
    epoch, within = divmod(step, n // size)
    return order(seed, epoch, n)[within * size : (within + 1) * size]


class Tensors:
    """A data set that fits in memory.

    Args:
        train, test: (inputs, targets). Integer inputs of an image set are normalised when a batch is made.
        mean, std: per channel, in the inputs' units; None: inputs are used as they are.
        flip: mirror half of the training images. crop: shift them by up to this many pixels, zeros coming in.
    """

    def __init__(
        self,
        shape: Shape,
        train: Batch,
        test: Batch,
        *,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        flip: bool = False,
        crop: int = 0,
    ):
        self.shape, self._train, self._test = shape, train, test
        self._scale = None if mean is None or std is None else (mean.view(-1, 1, 1), std.view(-1, 1, 1))
        self._flip, self._crop = flip, crop

    def _normalise(self, x: Tensor) -> Tensor:
        if self._scale is None:
            return x
        return (x.float() - self._scale[0]) / self._scale[1]

    def batch(self, split: str, seed: int, step: int, size: int) -> Batch:
        x, y = self._train if split == "train" else self._test
        rows = torch.from_numpy(indices(seed, step, size, len(x)))
        return augment(self._normalise(x[rows]), seed, step, self._flip, self._crop), y[rows]

    def test(self, size: int, limit: int | None) -> Iterator[Batch]:
        x, y = self._test
        n = len(x) if limit is None else min(limit, len(x))
        for i in range(0, n, size):
            yield self._normalise(x[i : min(i + size, n)]), y[i : min(i + size, n)]


def augment(x: Tensor, seed: int, step: int, flip: bool, crop: int) -> Tensor:
    """Images mirrored and shifted at random, by a stream of (seed, step)."""
    if not (flip or crop):
        return x
    random = stream(seed, CHANGE, step)
    if flip:
        mirrored = torch.from_numpy(random.random(len(x)) < 0.5)
        x = torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)
    if crop:
        height, width = x.shape[-2:]
        padded = torch.nn.functional.pad(x, (crop,) * 4)
        top, left = torch.from_numpy(random.integers(0, 2 * crop + 1, (2, len(x))))
        rows = (top[:, None] + torch.arange(height))[:, None, :, None]
        columns = (left[:, None] + torch.arange(width))[:, None, None, :]
        x = padded[
            torch.arange(len(x))[:, None, None, None],
            torch.arange(x.shape[1])[None, :, None, None],
            rows,
            columns,
        ]
    return x
