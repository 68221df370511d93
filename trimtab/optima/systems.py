"""Runs of a sweep reduced to a small least squares problem, one number per rate, with the seeds projected out.

With y = c_seed + a g(x) + noise, the best a for a given curve g over the rates is g b / g A g, and what is left over

    RSS = yy - (g b)^2 / (g A g),        pure = yy - b A^+ b   (any curve at all: what only the seeds can explain).
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class System:
    """The least squares problem with the seeds projected out: for a curve g over the rates, RSS = yy - (g b)^2 / (g A g)."""

    x: np.ndarray
    a: np.ndarray
    b: np.ndarray
    yy: float
    dof: int
    pure: float
    pure_dof: int
    mean: float
    weight: np.ndarray

    @property
    def step(self) -> float:
        """The usual distance of neighbouring rates."""
        return float(np.median(np.diff(self.x))) if len(self.x) > 1 else 1.0


def system(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> System:
    """Reduce runs (x, y, seed) to one number per rate."""
    rates, at = np.unique(x, return_inverse=True)
    seeds, block = np.unique(seed, return_inverse=True)
    if len(seeds) * 2 > len(x):  # seeds that are not shared across rates have no constant of their own
        seeds, block = seeds[:1], np.zeros_like(block)
    n, k, s = len(x), len(rates), len(seeds)
    counts = np.zeros((k, s))
    np.add.at(counts, (at, block), 1.0)
    size = counts.sum(0)
    own = y - (np.bincount(block, y) / size)[block]
    a, b = np.diag(counts.sum(1)) - (counts / size) @ counts.T, np.bincount(at, own, minlength=k)
    free = np.linalg.pinv(a, rcond=1e-10, hermitian=True) @ b  # any curve: one number per rate
    left = own - free[at] + ((free @ counts) / size)[block]
    return System(
        rates,
        a,
        b,
        float(own @ own),
        n - s,
        float(left @ left),
        n - s - (k - 1),
        float(y.mean()),
        counts.sum(1) / n,
    )
