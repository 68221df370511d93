"""How far the optimum moves per doubling of the network, with interval, and the verdict.

Each size i, s_i doublings from the base, has a likelihood of its optimum, exp(-D_i(m) / 2) (fits.py). A straight line
m = alpha + beta s through all of them has

    D(beta) = min_alpha  sum_i D_i(alpha + beta s_i),        interval { beta : D(beta) - min D <= 3.84 }.

This is the slope weighted by each optimum's own standard error where the intervals are ordinary, and it still uses a size whose
optimum is only known to lie below its first diverged rate. If the optima scatter about the line by more than their errors
(Cochran's Q at 1 %), each likelihood is widened by a between-size standard deviation tau (DerSimonian and Laird's).

The verdict: *transfers* when the interval lies inside +-0.25 log2 per doubling, *drifts* when it excludes 0 and the slope
is beyond 0.25, else *cannot tell*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from trimtab.optima.fits import RULED_OUT, Fit

TOLERANCE = 0.25  # log2 per doubling: over 16x the optimum then moves less than one octave
SCATTER = 0.01  # level of the test for a between-size variance
STEEPEST = 8.0


class Drift(NamedTuple):
    """Slope of the optimum in log2 per doubling of the size (for linear axes: in the hyperparameter's units per doubling)."""

    slope: float
    low: float
    high: float
    scatter: float = 0.0
    sizes: int = 0


def drift(fits: Sequence[Fit], doublings: Sequence[float], *, level: float = 0.95) -> Drift:
    """The slope of the optimum against the number of doublings, from each size's likelihood."""
    s = np.asarray(doublings, float)
    known = [f.system is not None for f in fits]
    if sum(known) < 2 or np.ptp(s[known]) == 0:
        return Drift(math.nan, -math.inf, math.inf, 0.0, sum(known))
    tau = _between(fits, s)
    crit = float(stats.chi2.isf(1 - level, 1)) if tau == 0 else float(stats.t.isf((1 - level) / 2, max(sum(known) - 2, 3))) ** 2
    steps = [_widened(f, tau) for f in fits]
    scale = float(np.median([np.median(np.diff(f.system.x)) for f in fits if f.system is not None])) / 0.5  # 1 on a half-octave grid
    slopes = np.linspace(-STEEPEST, STEEPEST, 321) * scale
    d = _deviance(steps, s, slopes)
    if d[0] - d.min() > crit and d[-1] - d.min() > crit:  # look again, closer
        inside = np.nonzero(d - d.min() <= crit)[0]
        slopes = np.linspace(slopes[inside[0] - 1], slopes[inside[-1] + 1], 161)
        d = _deviance(steps, s, slopes)
    d = d - d.min()
    inside = np.nonzero(d <= crit)[0]
    unbounded = d[0] <= crit, d[-1] <= crit
    low = -math.inf if unbounded[0] else float(_cross(slopes, d, crit, inside[0], inside[0] - 1))
    high = math.inf if unbounded[1] else float(_cross(slopes, d, crit, inside[-1], inside[-1] + 1))
    return Drift(float(slopes[int(d.argmin())]), low, high, tau, sum(known))


def _cross(x: np.ndarray, d: np.ndarray, crit: float, a: int, b: int) -> float:
    b = min(max(b, 0), len(x) - 1)
    return float(x[a]) if d[b] <= crit else float(x[a] + (x[b] - x[a]) * (crit - d[a]) / (d[b] - d[a]))


def _between(fits: Sequence[Fit], s: np.ndarray) -> float:
    """DerSimonian and Laird's between-size standard deviation about the line, 0 unless the scatter is significant."""
    use = np.array([np.isfinite(f.stderr) and f.stderr > 0 and np.isfinite(f.optimum) for f in fits])
    if use.sum() < 3:
        return 0.0
    m, e, t = np.array([f.optimum for f in fits])[use], np.array([f.stderr for f in fits])[use], s[use]
    w = 1 / e**2
    design = np.stack([np.ones_like(t), t], 1)
    gram = design.T @ (w[:, None] * design)
    q = float((w * (m - design @ np.linalg.solve(gram, design.T @ (w * m))) ** 2).sum())
    free = len(m) - 2
    if stats.chi2.sf(q, free) > SCATTER:
        return 0.0
    trace = w.sum() - float(np.trace(np.linalg.solve(gram, design.T @ ((w**2)[:, None] * design))))
    return math.sqrt(max((q - free) / trace, 0.0))


def _widened(f: Fit, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """The size's deviance on an even grid, its likelihood convolved with N(0, tau^2)."""
    step = float(np.diff(f.grid).min()) * 2
    x = np.arange(f.grid[0], f.grid[-1] + step, step)
    d = np.interp(x, f.grid, f.deviance)
    if tau > 0:
        reach = math.ceil(4 * tau / step)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / tau) ** 2)
        x = np.concatenate([x[0] - step * np.arange(reach, 0, -1), x, x[-1] + step * np.arange(1, reach + 1)])
        padded = np.concatenate([np.full(2 * reach, d[0]), d, np.full(2 * reach, d[-1])])
        d = -2 * np.log(np.maximum(np.convolve(np.exp(-0.5 * np.minimum(padded, 700.0)), kernel / kernel.sum(), "valid"), 1e-300))
        d = np.minimum(d - d.min(), RULED_OUT)
    return x, d


def _deviance(steps: Sequence[tuple[np.ndarray, np.ndarray]], s: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    centre = float(s.mean())
    lo, hi = min(x[0] for x, _ in steps), max(x[-1] for x, _ in steps)
    fine = max(min(x[1] - x[0] for x, _ in steps), (hi - lo) / 1500)
    alpha = np.arange(lo, hi, fine)
    total = np.zeros((len(slopes), len(alpha)))
    for (x, d), t in zip(steps, s, strict=True):
        total += np.interp(alpha[None, :] + slopes[:, None] * (t - centre), x, d)
    return total.min(1)


def verdict(d: Drift, tolerance: float = TOLERANCE) -> str:
    """What the drift says.

    >>> [verdict(Drift(*d)) for d in [(0.05, -0.1, 0.2), (-0.6, -0.9, -0.3), (0.1, -0.4, 0.6)]]
    ['transfers', 'drifts', 'cannot tell']
    """
    if -tolerance < d.low and d.high < tolerance:
        return "transfers"
    if abs(d.slope) > tolerance and (d.low > 0 or d.high < 0):
        return "drifts"
    return "cannot tell"


def more(d: Drift, runs: int, tolerance: float = TOLERANCE) -> int | None:
    """How many more runs of the same kind would settle the verdict if the slope stays; None when runs alone would not.

    The interval narrows like one over the square root of the runs, and has to clear 0 or +-tolerance, whichever is the aim.

    >>> more(Drift(0.0, -0.5, 0.5), 100), more(Drift(0.0, -0.1, 0.1), 100), more(Drift(float("nan"), -math.inf, math.inf), 100)
    (315, 0, None)
    """
    if verdict(d, tolerance) != "cannot tell":
        return 0
    half = (d.high - d.low) / 2
    room = abs(d.slope) if abs(d.slope) > tolerance else tolerance - abs(d.slope)
    if not math.isfinite(half) or not math.isfinite(d.slope) or d.scatter > 0 or room < 0.02 * tolerance:
        return None
    return math.ceil(runs * ((half / room) ** 2 * 1.03 - 1)) + 3
