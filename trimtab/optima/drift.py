"""How far the optimum moves per doubling of the network, with interval, and the verdict.

Each size i, s_i doublings from the base, has a likelihood of its optimum m and of its curve's skew r,
exp(-D_i(m, r) / 2) (fits.py). A straight line m = alpha + beta s through all of them has

    D(beta) = min_{alpha, r0, r_i}  sum_i [ D_i(alpha + beta s_i, r_i) + ((r_i - r0) / omega)^2 ]
                                    + (r0 / ln 32)^2,

    interval { beta : D(beta) - min D <= 3.84 }.

This is the slope weighted by each optimum's own standard error where the intervals are ordinary, and it still
uses a size whose optimum is only known to lie below its first diverged rate, wherever that may really be
(curves.py). What is gained by r0: curves of one network at several sizes look alike, and an optimum misplaced
because the skew is misjudged is misplaced by as much at every size, which no drift is. Skews may differ by
omega = 1/2 (a factor 1.6 in curvature ratio) at the price of one standard deviation. If the optima scatter
about the line by more than their errors (the line costs more than the 99 % of chi-squared), each likelihood
is widened by a between-size standard deviation tau (DerSimonian and Laird's), and Student's t takes the place
of the normal.

A fit's own error assumes even noise and a curve that was not chosen by the same noise; runs next to a cliff
keep neither promise. So a leave-one-seed-out jackknife checks the error bars: leaving out one seed (or one of
five groups of seeds) at a time and fitting everything anew gives a second opinion, too noisy for one size but
not for a whole line of sizes,

    phi = sum_i (g_i - 1) / g_i  sum_j (m_i(without j) - mean)^2  /  sum_i stderr_i^2,

and every deviance is divided by max(1, phi).

The verdict: *transfers* when the interval lies inside +-0.25 log2 per doubling, *drifts* when it excludes 0
and the slope is beyond 0.25, else *cannot tell*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from trimtab.optima.curves import RULED_OUT
from trimtab.optima.fits import SKEW, OptimumFit, fit
from trimtab.optima.windows import SKEWS

TOLERANCE = 0.25  # log2 per doubling: over 16x the optimum then moves less than one octave
SCATTER = 0.01  # level of the test for a between-size variance
STEEPEST = 8.0
ALIKE = 0.5  # omega: how much the skews of two sizes differ
GROUPS = 5  # of seeds, for the jackknife


class Drift(NamedTuple):
    """Slope of the optimum in log2 per doubling of the size (for linear axes: in the hyperparameter's units
    per doubling)."""

    slope: float
    low: float
    high: float
    scatter: float = 0.0
    sizes: int = 0
    inflation: float = 1.0


def drift(
    fits: Sequence[OptimumFit], doublings: Sequence[float], *, inflation: float = 1.0, level: float = 0.95
) -> Drift:
    """The slope of the optimum against the number of doublings, from each size's likelihood; deviances are
    divided by `inflation` (seed_inflation)."""
    s = np.asarray(doublings, float)
    known = [f.system is not None for f in fits]
    if sum(known) < 2 or np.ptp(s[known]) == 0:
        return Drift(math.nan, -math.inf, math.inf, 0.0, sum(known))
    slope, low, high, misfit = _interval(fits, s, 0.0, inflation, float(stats.chi2.isf(1 - level, 1)))
    tau = between_sizes(fits, s) if stats.chi2.sf(misfit, max(len(fits) - 2, 1)) < SCATTER else 0.0
    if tau > 0:
        student = float(stats.t.isf((1 - level) / 2, max(sum(known) - 2, 3)))
        slope, low, high, _ = _interval(fits, s, tau, inflation, student**2)
    return Drift(slope, low, high, tau, sum(known), inflation)


def _interval(
    fits: Sequence[OptimumFit], s: np.ndarray, tau: float, inflation: float, crit: float
) -> tuple[float, float, float, float]:
    """The slope of least deviance, the ends of { D - min D <= crit }, and how much worse the line is than an
    optimum for each size."""
    sizes = [widen(f, tau, inflation) for f in fits]
    steps = [f.system.step for f in fits if f.system is not None]
    scale = float(np.median(steps)) / 0.5  # 1 on a half-octave grid
    slopes, skews = np.linspace(-STEEPEST, STEEPEST, 161) * scale, np.arange(len(SKEWS))
    alpha = np.linspace(min(x[0] for x, _ in sizes), max(x[-1] for x, _ in sizes), 241)
    for _ in range(3):  # each time closer to where D is low
        d, low_alpha, low_skew = line_deviance(sizes, s, slopes, alpha, skews)
        near = d.min() + crit + 4
        slopes, alpha = around(slopes, d <= near, 97), around(alpha, low_alpha <= near, 241)
        skews = skews[low_skew <= near]
    d = line_deviance(sizes, s, slopes, alpha, skews)[0]
    # every size its own optimum
    apart = min(sum(float(v[j].min()) for _, v in sizes) + (r0 / SKEW) ** 2 for j, r0 in enumerate(SKEWS))
    misfit, d = float(d.min()) - apart, d - d.min()
    inside = np.nonzero(d <= crit)[0]
    low = -math.inf if inside[0] == 0 else crossing(slopes, d, crit, inside[0], inside[0] - 1)
    high = (
        math.inf if inside[-1] == len(slopes) - 1 else crossing(slopes, d, crit, inside[-1], inside[-1] + 1)
    )
    slope = math.nan if math.isinf(low) and math.isinf(high) else float(slopes[int(d.argmin())])
    return slope, low, high, misfit


def around(x: np.ndarray, near: np.ndarray, n: int) -> np.ndarray:
    """n places from the last before to the first after those that are near."""
    i = np.nonzero(near)[0]
    return np.linspace(x[max(i[0] - 1, 0)], x[min(i[-1] + 1, len(x) - 1)], n)


def crossing(x: np.ndarray, d: np.ndarray, crit: float, a: int, b: int) -> float:
    return float(x[a] + (x[b] - x[a]) * (crit - d[a]) / (d[b] - d[a]))


def between_sizes(fits: Sequence[OptimumFit], s: np.ndarray) -> float:
    """DerSimonian and Laird's between-size standard deviation about the line, from the optima and their
    standard errors."""
    use = np.array([np.isfinite(f.stderr) and f.stderr > 0 and np.isfinite(f.optimum) for f in fits])
    if use.sum() < 3:
        return 0.0
    m, e, t = np.array([f.optimum for f in fits])[use], np.array([f.stderr for f in fits])[use], s[use]
    w = 1 / e**2
    design = np.stack([np.ones_like(t), t], 1)
    gram = design.T @ (w[:, None] * design)
    q = float((w * (m - design @ np.linalg.solve(gram, design.T @ (w * m))) ** 2).sum())
    trace = w.sum() - float(np.trace(np.linalg.solve(gram, design.T @ ((w**2)[:, None] * design))))
    return math.sqrt(max((q - (len(m) - 2)) / trace, 0.0))


def widen(f: OptimumFit, tau: float, inflation: float) -> tuple[np.ndarray, np.ndarray]:
    """An even grid of optima, and the size's deviance at each of them (columns) for each r0 (rows), convolved
    with N(0, tau^2)."""
    step = float(np.diff(f.grid).min()) * 2
    x = np.arange(f.grid[0], f.grid[-1] + step, step)
    d = np.stack([np.interp(x, f.grid, row) for row in _couple(f, inflation)])
    if tau > 0:
        reach = math.ceil(4 * tau / step)
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / tau) ** 2)
        x = np.concatenate([x[0] - step * np.arange(reach, 0, -1), x, x[-1] + step * np.arange(1, reach + 1)])
        likelihood = np.exp(-0.5 * np.minimum(np.pad(d, ((0, 0), (2 * reach, 2 * reach)), "edge"), 700.0))
        wide = np.stack([np.convolve(row, kernel / kernel.sum(), "valid") for row in likelihood])
        d = -2 * np.log(np.maximum(wide, 1e-300))
        d = np.minimum(d - d.min(), RULED_OUT)
    return x, d


def _couple(f: OptimumFit, inflation: float) -> np.ndarray:
    """min over r of D(m, r) + ((r - r0) / omega)^2, for each r0 (rows) and m (columns); a size that says
    nothing of r is the same for all."""
    if f.shapes is None:
        return np.broadcast_to(f.deviance, (len(SKEWS), len(f.deviance)))
    d = np.stack([(f.shapes.deviance / inflation + ((f.shapes.r - r0) / ALIKE) ** 2).min(1) for r0 in SKEWS])
    return np.minimum(d if f.edge is None else f.edge.over(f.grid, d), RULED_OUT)


def line_deviance(
    sizes: Sequence[tuple[np.ndarray, np.ndarray]],
    s: np.ndarray,
    slopes: np.ndarray,
    alpha: np.ndarray,
    skews: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """The least deviance at each slope, at each alpha and for each of some r0 (by index), the other two being
    free."""
    at = [alpha[None, :] + slopes[:, None] * t for t in s - s.mean()]
    pairs = list(zip(at, sizes, strict=True))
    many = np.stack(
        [sum(np.interp(a, x, d[j]) for a, (x, d) in pairs) + (SKEWS[j] / SKEW) ** 2 for j in skews]
    )
    return many.min((0, 2)), many.min((0, 1)), many.min((1, 2))


def seed_inflation(
    sizes: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    fits: Sequence[OptimumFit],
    walls: Sequence[float],
) -> float:
    """max(1, phi) over the sizes (x, y, seed) whose optimum lies inside the grid; 1 where seeds are not
    shared across rates."""
    seen = said = 0.0
    for (x, y, seed), f, wall in zip(sizes, fits, walls, strict=True):
        seeds, index = np.unique(seed, return_inverse=True)
        if f.status != "inside" or not np.isfinite(f.stderr) or len(seeds) < 2 or len(seeds) * 2 > len(x):
            continue
        groups = min(GROUPS, len(seeds))
        member = index % groups
        without = [
            fit(x[member != j], y[member != j], seed[member != j], wall=wall, log=f.log).optimum
            for j in range(groups)
        ]
        seen += (groups - 1) * float(np.var(without))
        said += f.stderr**2
    return max(1.0, seen / said) if said > 0 else 1.0


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


def worst_verdict(verdicts: Iterable[str]) -> str:
    """The verdict over several size axes: a drift on any is a drift, else one open answer leaves it open.

    >>> worst_verdict(["transfers", "drifts"]), worst_verdict(["transfers", "cannot tell"]), worst_verdict([])
    ('drifts', 'cannot tell', 'cannot tell')
    """
    seen = set(verdicts)
    if "drifts" in seen:
        return "drifts"
    return "transfers" if seen == {"transfers"} else "cannot tell"


def runs_needed(d: Drift, runs: int, tolerance: float = TOLERANCE) -> int | None:
    """How many more runs of the same kind would settle the verdict if the slope stays; None when runs alone
    would not.

    The interval narrows like one over the square root of the runs, and has to clear 0 or +-tolerance,
    whichever is the aim.

    >>> drifts = Drift(0.0, -0.5, 0.5), Drift(0.0, -0.1, 0.1), Drift(math.nan, -math.inf, math.inf)
    >>> [runs_needed(d, 100) for d in drifts]
    [315, 0, None]
    """
    if verdict(d, tolerance) != "cannot tell":
        return 0
    if not all(map(math.isfinite, d[:3])) or d.scatter > 0:
        return None
    if abs(d.slope) > tolerance:  # to exclude 0
        room, half = abs(d.slope), d.slope - d.low if d.slope > 0 else d.high - d.slope
        ratio = half / room
    else:  # to lie within the tolerance on both sides
        if tolerance - abs(d.slope) < 0.02 * tolerance:
            return None
        ratio = max((d.high - d.slope) / (tolerance - d.slope), (d.slope - d.low) / (tolerance + d.slope))
    return math.ceil(runs * (ratio**2 * 1.03 - 1)) + 3
