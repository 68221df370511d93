"""Log loss as a function of the hyperparameters: a Gaussian process through the trials. No torch.

    y_ij = log(loss of trial i, seed j) = f(x_i) + c_j + e_ij     c_j: a seed shifts all trials
    z_i  = log(1 + (mean_j y_ij - m) / s)       m the lowest, s the median's distance to it
    z    ~ GP(0, a^2 Matern-5/2(x; one length per axis) + noise)

A trial that diverged or ended no better than it began is information, not a failure: it counts as the worst
loss seen, so that the surface rises towards it. The warp z keeps such walls from drowning the differences
near the minimum.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import InputError

Floats = NDArray[np.float64]
LENGTHS = (0.1, 10.0)  # of the process, in units of each axis's range
NOISE = (1e-4, 1.0)  # variance of a trial's z over that of all z
TIED = 1.0  # standard errors of a trial: the surface is surer than a trial, so a difference of less is none
NEGLIGIBLE = 0.005  # of log loss, likewise
RESTARTS = 3  # of the fit of lengths and noise


@dataclass(frozen=True)
class Trial:
    """A point of the box and what its seeds gave; None: diverged, or ended no better than it began."""

    point: tuple[float, ...]
    losses: tuple[float | None, ...]


@dataclass(frozen=True)
class Observed:
    """Trials as numbers.

    Attributes:
        y: mean log loss of each trial. noise: standard error of such a mean, None where one seed cannot tell.
    """

    x: Floats
    y: Floats
    noise: float | None


def observe(trials: Sequence[Trial]) -> Observed | None:
    """Trials as numbers; None where no run was any good, so that there is nothing to compare.

    >>> seen = observe([Trial((0.0,), (1.0, 2.0)), Trial((0.5,), (0.5, 1.0)), Trial((1.0,), (None, 1.0))])
    >>> [round(float(v), 3) for v in seen.y], seen.noise
    ([0.347, -0.347, 0.347], 0.0)
    """
    table = [[_logarithm(loss) for loss in trial.losses] for trial in trials]
    good = [y for row in table for y in row if y is not None]
    if not good:
        return None
    worst = max(good)
    filled = [np.array([worst if y is None else y for y in row]) for row in table]
    y = np.array([row.mean() for row in filled])
    return Observed(np.array([t.point for t in trials], dtype=float), y, _noise(table, y))


def _logarithm(loss: float | None) -> float | None:
    if loss is None:
        return None
    if loss <= 0:
        raise InputError(
            f"tune compares losses by their logarithm, so they must be > 0: one is {loss:.6g}. "
            "Add a constant to the loss that keeps it above 0."
        )
    return float(np.log(loss))


def _noise(table: list[list[float | None]], y: Floats) -> float | None:
    """Standard error of a trial's mean, seeds' common shifts taken out, from the better half of trials."""
    whole = sorted((float(mean), row) for mean, row in zip(y, table, strict=True) if None not in row)
    rows = np.array([row for _, row in whole[: max(2, (len(whole) + 1) // 2)]], dtype=float)
    if len(rows) < 2 or rows.shape[1] < 2:
        return None
    rest = rows - rows.mean(1, keepdims=True) - rows.mean(0, keepdims=True) + rows.mean()
    n, k = rows.shape
    return float(np.sqrt((rest**2).sum() / ((n - 1) * (k - 1)) / k))


class Surface:
    """A fitted surface. Means and standard deviations of `z`, and the way back to log loss.

    Args:
        features: a matrix that points are multiplied with from the right; None: they stay as they are.
    """

    def __init__(self, seen: Observed, seed: int = 0, features: Floats | None = None):
        self.seen = seen
        self.features = np.eye(seen.x.shape[1]) if features is None else features
        self.low = float(seen.y.min())
        # the better half of the trials sets the unit of the warp, well above what the seeds cannot tell apart
        self.scale = max(float(np.median(seen.y)) - self.low, 3 * (seen.noise or 0.0), 1e-3)
        self.process = _fitted(seen.x @ self.features, self._standard(self.warp(seen.y)), self._floor(), seed)

    def warp(self, y: Floats) -> Floats:
        return np.log1p(np.maximum(y - self.low, -0.9 * self.scale) / self.scale)

    def unwarp(self, z: Floats) -> Floats:
        return self.low + self.scale * np.expm1(z)

    def _standard(self, z: Floats) -> Floats:
        self.centre, self.spread = float(z.mean()), max(float(z.std()), 1e-9)
        return (z - self.centre) / self.spread

    def _floor(self) -> float:
        """The least noise, in units of the process: what the seeds show."""
        noise = 0.0 if self.seen.noise is None else self.seen.noise / self.scale / self.spread
        return float(np.clip(noise**2, *NOISE))

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """(mean, standard deviation) of z, without the noise of a trial."""
        mean, deviation = self.process.predict(np.atleast_2d(x) @ self.features, return_std=True)
        white = self.process.kernel_.k2.noise_level
        clear = np.sqrt(np.maximum(deviation**2 - white, 1e-12))
        return self.centre + self.spread * mean, self.spread * clear

    @property
    def error(self) -> float:
        """Standard error of a trial in log loss near the minimum: what the seeds show, or else the fit."""
        if self.seen.noise is not None:
            return self.seen.noise
        return float(self.scale * self.spread * np.sqrt(self.process.kernel_.k2.noise_level))

    def tied(self, z: Floats, best: float) -> Any:
        """Which z are no worse than the best beyond what seeds cannot tell."""
        unclear = max(TIED * self.error, NEGLIGIBLE)
        return self.unwarp(z) - self.unwarp(np.array([best]))[0] <= unclear

    def log_loss(self, x: Floats) -> Floats:
        """The surface itself: log loss at points."""
        return self.unwarp(self.predict(x)[0])

    def believing(self, x: Floats) -> Surface:
        """The surface as it will be if the trial at `x` gives what is expected of it."""
        other = object.__new__(Surface)
        other.__dict__.update(self.__dict__)
        held: Any = self.process
        seen_as = x[None] @ self.features
        other.process = _process(held.kernel_, None, 0).fit(
            np.vstack([held.X_train_, seen_as]), np.append(held.y_train_, held.predict(seen_as))
        )
        return other


def _fitted(x: Floats, z: Floats, floor: float, seed: int) -> Any:
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    start: Any = np.full(x.shape[1], 0.5)  # its types say one number, its text one per axis
    lengths = Matern(start, LENGTHS, nu=2.5)
    white = WhiteKernel(max(floor, 0.01), (floor, max(NOISE[1], 1.01 * floor)))
    kernel = ConstantKernel(1.0, (0.05, 20.0)) * lengths + white
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound is an axis that does not matter, not a fault
        return _process(kernel, "fmin_l_bfgs_b", seed).fit(x, z)


def _process(kernel: Any, optimizer: Any, seed: int) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    restarts = RESTARTS if optimizer else 0
    return GaussianProcessRegressor(
        kernel, alpha=1e-8, optimizer=optimizer, n_restarts_optimizer=restarts, random_state=seed
    )
