"""Log-log slopes with intervals over seeds, and what they say about an expected slope. Pure numbers, no
torch.

    log y(size, seed) = a + slope log(size) + noise      noise: its variance is pooled over seeds of all sizes

Exponents of width and depth come in halves, so a quarter is where two laws part; what training changes is
further from its limit in small networks than what a start draws, and gets 3/8. A slope is judged against a
range of expected slopes; `off` is how far it lies outside:

    "good"    |off| <= tolerance, and the interval (95 %) goes no further than a quarter beyond that
    "bad"     |off| > tolerance, and the range is excluded at 99.9 % (there are a hundred lines in a check),
              unless it settles
    "unsure"  neither: more seeds or sizes would tell

A deviation *settles* when over the two largest sizes it is within the tolerance and well below that of all
sizes: a small base is not yet its own limit, and a law that is broken goes on being broken. A line that is
one of many (each block of a stack) is "good" as long as nothing speaks against it: that the noise is small
enough is asked of their mean.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import stats

TOLERANCE, OF_CHANGES = 0.25, 0.375
BEYOND = 0.25  # how far an interval may reach past the tolerance
CONFIDENCE = 0.95
SURE = 0.999
SETTLING = 0.7  # a deviation that has shrunk to this part of itself at the large end is dying out


@dataclasses.dataclass(frozen=True)
class SlopeFit:
    """A slope with its interval; `end`: the slope between the two largest sizes; `sure`: half the interval at
    99.9 %."""

    slope: float
    low: float
    high: float
    end: float
    sure: float
    seeds: int
    sizes: int


def fit(x: np.ndarray, y: np.ndarray) -> SlopeFit:
    """The slope of y over x.

    Args:
        x: (sizes,) log of the size.  y: (sizes, seeds) log of the quantity.

    >>> x = np.log([1.0, 2.0, 4.0])
    >>> found = fit(x, 0.5 * x[:, None] + np.array([[0.1, -0.1]]))
    >>> round(found.slope, 3), round(found.low, 2), round(found.high, 2)
    (0.5, 0.18, 0.82)
    """
    sizes, seeds = y.shape
    mean, dx = y.mean(1), x - x.mean()
    sxx = float((dx**2).sum())
    slope = float((dx * mean).sum() / sxx)
    order = np.argsort(x)
    i, j = order[-2], order[-1]
    end = float((mean[j] - mean[i]) / (x[j] - x[i]))
    if seeds > 1:
        freedom, variance = sizes * (seeds - 1), float(y.var(1, ddof=1).mean())
    elif sizes > 2:  # one seed: the scatter about the line is all there is
        freedom, variance = sizes - 2, float(((mean - mean.mean() - slope * dx) ** 2).sum() / (sizes - 2))
    else:
        return SlopeFit(slope, -math.inf, math.inf, end, math.inf, seeds, sizes)
    error = math.sqrt(variance / (seeds * sxx))
    half, sure = (float(stats.t.ppf(0.5 + c / 2, freedom)) * error for c in (CONFIDENCE, SURE))
    return SlopeFit(slope, slope - half, slope + half, end, sure, seeds, sizes)


def outside(value: float, low: float, high: float) -> float:
    """How far a value lies outside a range; 0 inside.

    >>> outside(0.5, -1.0, 0.0), outside(-2.0, -1.0, 0.0), outside(-0.5, -1.0, 0.0)
    (0.5, -1.0, 0.0)
    """
    return max(0.0, value - high) + min(0.0, value - low)


def judge(
    found: SlopeFit, low: float, high: float, tolerance: float = TOLERANCE, *, alone: bool = True
) -> str:
    """What a fit says, as the top of this file has it. `alone` False: one of many lines.

    >>> fits = (0.5, 0.4, 0.6, 0.5, 0.2), (0.1, 0.0, 0.2, 0.1, 0.2), (0.2, -0.2, 0.6, 0.2, 1.0)
    >>> [judge(SlopeFit(*f, 3, 4), 0.0, 0.0) for f in (*fits, (-0.3, -0.35, -0.25, -0.1, 0.1))]
    ['bad', 'good', 'unsure', 'good']
    """
    off, off_end = outside(found.slope, low, high), outside(found.end, low, high)
    settles = abs(off_end) <= tolerance and abs(off_end) <= SETTLING * abs(off)
    if abs(off) > tolerance and not settles:
        against = outside(found.slope - math.copysign(found.sure, off), low, high) * off > 0
        hints = outside(found.low if off > 0 else found.high, low, high) * off > 0
        return "bad" if against else "unsure" if alone or hints else "good"
    if abs(off) > tolerance:  # it settles, if the noise allows to say so
        return "good" if (found.high - found.low) / 2 <= tolerance or not alone else "unsure"
    narrow = low - tolerance - BEYOND < found.low and found.high < high + tolerance + BEYOND
    return "good" if narrow or not alone else "unsure"


def seeds_needed(found: SlopeFit, low: float, high: float, tolerance: float = TOLERANCE) -> int | None:
    """Seeds after which the answer would be good or bad, if the slope stays where it is; None if more than
    64.

    >>> seeds_needed(SlopeFit(0.1, -0.5, 0.7, 0.1, 1.2, 3, 4), 0.0, 0.0)
    7
    """
    off, half = abs(outside(found.slope, low, high)), found.high - found.slope
    if not math.isfinite(half):
        return 3
    ratio = found.sure / off if off > tolerance else half / (tolerance + BEYOND - off)
    needed = math.ceil(found.seeds * max(ratio, 0.0) ** 2)
    return max(needed, found.seeds + 1) if needed <= 64 else None
