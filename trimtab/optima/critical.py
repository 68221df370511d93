"""The critical batch: where the best rate stops following the batch, with an interval.

Below it the optimum goes as batch^p, above it the optimum stays where it is:

    log2 lr*(B) = alpha + p min(log2 B, c),        critical batch = 2^c.

Each batch has a likelihood of its optimum (fits.py), so that

    D(c) = min over alpha, p, skew of the sum of deviances,     interval { c : D(c) - min D <= 3.84 },

profile likelihood as in `drift`, with its between-size variance where the optima scatter about the hinge. p
lies from 0.1 to 1.25: nothing is known to follow the batch faster than linearly. Where the interval reaches
the largest batch no end was seen; where it reaches the smallest, the optimum may not follow the batch at all.
A bend is smoother than a hinge: where the optimum is lr_max / (1 + B_c / B), the hinge lies within an octave
of B_c, above it (the slope fitted below is less than the 1 of very small batches), and says little of how
wide the bend is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from trimtab.optima.drift import SCATTER, around, between_sizes, crossing, line_deviance, widen
from trimtab.optima.fits import OptimumFit
from trimtab.optima.windows import SKEWS

SLOPES = (0.1, 1.25)  # of what follows the batch
PER_DOUBLING = 8  # places of c that are tried
LEAST = 4  # batches: two on each side, or three and one


@dataclasses.dataclass(frozen=True)
class CriticalBatch:
    """Where the optimum stops following the batch.

    batch: the critical batch, in examples (or sequences); inf: beyond the largest one, nan: not known. low,
    high: its 95 % interval, 0 and inf where it is not bounded. exponent: of the batch below it.
    """

    batch: float
    low: float
    high: float
    exponent: float

    @property
    def status(self) -> str:
        """What the runs say, in words.

        >>> CriticalBatch(64.0, 40.0, 100.0, 0.5).status
        'the optimum stops following the batch at 64 (40 to 100)'
        """
        if math.isnan(self.batch):
            return "the runs do not tell whether the optimum follows the batch, or up to where"
        if math.isinf(self.high) and self.low == 0:
            return "the runs do not tell where the optimum stops following the batch"
        if math.isinf(self.high):
            return (
                f"no end is seen of the optimum following the batch; it follows up to {self.low:.3g} at least"
            )
        if self.low == 0:
            return f"the optimum follows the batch up to {self.high:.3g} at the most, if it follows at all"
        return (
            f"the optimum stops following the batch at {self.batch:.3g} ({self.low:.3g} to {self.high:.3g})"
        )


UNKNOWN = CriticalBatch(math.nan, 0.0, math.inf, math.nan)


def critical_batch(
    fits: Sequence[OptimumFit], batches: Sequence[float], *, inflation: float = 1.0, level: float = 0.95
) -> CriticalBatch:
    """The hinge of the optimum over batch, from each batch's likelihood.

    Args:
        fits: one for each of the batches. inflation: of the error bars, as in `drift`.
    """
    s = np.log2(np.asarray(batches, float))
    known = np.array([f.system is not None for f in fits])
    if known.sum() < LEAST:
        return UNKNOWN
    first, last = float(s[known].min()), float(s[known].max())
    places = np.linspace(first, last, round((last - first) * PER_DOUBLING) + 1)
    crit = float(stats.chi2.isf(1 - level, 1))
    d, slopes, misfit = _profile(fits, s, places, 0.0, inflation)
    tau = _about(fits, s, places[int(d.argmin())]) if _scatters(misfit, int(known.sum())) else 0.0
    if tau > 0:
        crit = float(stats.t.isf((1 - level) / 2, max(int(known.sum()) - 3, 3))) ** 2
        d, slopes, _ = _profile(fits, s, places, tau, inflation)
    inside = np.nonzero(d <= crit)[0]
    open_below, open_above = inside[0] == 0, inside[-1] == len(places) - 1
    low = 0.0 if open_below else 2.0 ** crossing(places, d, crit, inside[0], inside[0] - 1)
    high = math.inf if open_above else 2.0 ** crossing(places, d, crit, inside[-1], inside[-1] + 1)
    if open_below and open_above:
        return UNKNOWN
    best = int(d.argmin())
    at = math.inf if best == len(places) - 1 else float(2.0 ** places[best])
    return CriticalBatch(at, low, high, float(slopes[best]))


def _scatters(misfit: float, sizes: int) -> bool:
    return bool(stats.chi2.sf(misfit, max(sizes - 3, 1)) < SCATTER)


def _profile(
    fits: Sequence[OptimumFit], s: np.ndarray, places: np.ndarray, tau: float, inflation: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """(D(c) - min D, the slope at each c, how much worse the best hinge is than an optimum for each size)."""
    sizes = [widen(f, tau, inflation) for f in fits]
    d, slopes = np.zeros(len(places)), np.zeros(len(places))
    for i, c in enumerate(places):
        d[i], slopes[i] = _at(sizes, np.minimum(s, c))
    apart = min(sum(float(v[j].min()) for _, v in sizes) for j in range(len(SKEWS)))
    return d - d.min(), slopes, float(d.min()) - apart


def _at(sizes: Sequence[tuple[np.ndarray, np.ndarray]], t: np.ndarray) -> tuple[float, float]:
    """(the least deviance of a line in t, its slope): coarse, then closer to where it is low."""
    slopes, skews = np.linspace(*SLOPES, 47), np.arange(len(SKEWS))
    alpha = np.linspace(min(x[0] for x, _ in sizes), max(x[-1] for x, _ in sizes), 241)
    for _ in range(3):
        d, low_alpha, low_skew = line_deviance(sizes, t, slopes, alpha, skews)
        near = d.min() + 4
        slopes, alpha = around(slopes, d <= near, 31), around(alpha, low_alpha <= near, 91)
        skews = skews[low_skew <= near]
    d = line_deviance(sizes, t, slopes, alpha, skews)[0]
    return float(d.min()), float(slopes[int(d.argmin())])


def _about(fits: Sequence[OptimumFit], s: np.ndarray, c: float) -> float:
    """DerSimonian and Laird's between-size standard deviation about the hinge at c."""
    return between_sizes(fits, np.minimum(s, c))
