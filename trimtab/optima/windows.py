"""Which rates a curve can describe: the widest window about the best one, and how well the best curve fits
there.

Far from the minimum losses saturate or explode, and no curve with three numbers follows them. Rates that are
clearly more than half way up are left out; then the window is narrowed from its worse end while the best
curve's lack of fit,

    F = (RSS - pure) / lack  /  (pure / nu),        lack = rates in the window - 4,

is significant at 2 % against the scatter between seeds (pure, nu: curves.py), down to five rates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from trimtab.optima.curves import CURVES, LARGEST, QUADRATIC, System, reduce_runs

SKEWS = np.linspace(-LARGEST, LARGEST, 21)
LACK = 0.02  # a window is narrowed while the curve's lack of fit is significant at this level
MOST = 40  # rates beyond this are pooled with their neighbours
FEWEST = 5  # rates in the narrowest window


class Window(NamedTuple):
    """The widest run of rates around the best one that a curve describes, and how well it does.

    rates: all that were tried; first and last of the window are rates[lo] and rates[hi]. rss: the least RSS
    with the minimum at each of the `places`. variance: s^2 of a run.
    """

    system: System
    rates: np.ndarray
    lo: int
    hi: int
    places: np.ndarray
    rss: np.ndarray
    variance: float

    @property
    def reaches_last(self) -> bool:
        return self.hi == len(self.rates) - 1

    @property
    def free(self) -> int:
        """Degrees of freedom left by a, m and, with a skew, r."""
        return _free(self.system)

    @property
    def dof(self) -> int:
        return max(self.free, 1)

    def neighbours(self, wall: float) -> tuple[float, float]:
        """The rates next to the window on both sides: tried and clearly worse, or the wall, or none."""
        below = float(self.rates[self.lo - 1]) if self.lo > 0 else -np.inf
        return below, wall if self.reaches_last else float(self.rates[self.hi + 1])


def choose_window(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> Window:
    """Narrow the rates about the best one until a curve's lack of fit is no longer significant."""
    rates, at = np.unique(x, return_inverse=True)
    whole = reduce_runs(x, y, seed)
    mean = whole.level
    best, fewest = int(mean.argmin()), min(FEWEST, len(rates))
    lo, hi = _near(whole, mean, np.bincount(at), fewest)
    while True:
        keep = (x >= rates[lo]) & (x <= rates[hi])
        sys = reduce_runs(x[keep], y[keep], seed[keep])
        m = places(sys.x, 8, 3)
        least = tabulate(sys, m).least()
        lack = hi - lo - 3  # k - 1 rates' worth of freedom less a, m and r
        narrowest = hi - lo + 1 <= fewest or lack < 1 or sys.pure_dof < 1
        if narrowest or _fit_probability(sys, float(least.min()), lack) > LACK:
            return Window(
                system=sys,
                rates=rates,
                lo=lo,
                hi=hi,
                places=m,
                rss=least,
                variance=_variance(sys, float(least.min())),
            )
        if hi == best or (lo < best and mean[lo] >= mean[hi]):
            lo += 1
        else:
            hi -= 1


def _near(sys: System, mean: np.ndarray, count: np.ndarray, fewest: int) -> tuple[int, int]:
    """First and last rate that are not clearly more than half way up: there losses saturate or explode."""
    best, top = int(mean.argmin()), len(mean) - 1
    s = np.sqrt(sys.pure / sys.pure_dof) if sys.pure_dof > 0 else 0.0
    far = mean - mean[best] - 3 * s * np.sqrt(1 / count + 1 / count[best]) > 0.5 * (mean.max() - mean.min())
    lo, hi = best, best
    while lo > 0 and (not far[lo - 1] or best - lo < 1):
        lo -= 1
    while hi < top and (not far[hi + 1] or hi - best < 1):
        hi += 1
    while hi - lo + 1 < fewest:
        if lo > 0 and (hi == top or mean[lo - 1] <= mean[hi + 1]):
            lo -= 1
        else:
            hi += 1
    return lo, hi


def _free(sys: System) -> int:
    return sys.dof - (3 if has_skew(sys) else 2)


def _variance(sys: System, least: float) -> float:
    """s^2 of a run; what the narrowest window still cannot describe counts as noise."""
    s2 = max(least, 1e-12 * abs(sys.yy), 1e-300) / max(_free(sys), 1)
    lack = len(sys.x) - 4
    if lack > 0 and sys.pure_dof > 0 and _fit_probability(sys, least, lack) < LACK:
        s2 = max(s2, (least - sys.pure) / lack)
    return s2


class Surface(NamedTuple):
    """RSS of each curve (first axis) with its minimum at each m (second) and some skews r (third), and the
    curves' prices."""

    r: np.ndarray
    rss: np.ndarray
    price: np.ndarray

    def least(self) -> np.ndarray:
        """The least RSS at each m."""
        return self.rss.min((0, 2))


def tabulate(sys: System, m: np.ndarray) -> Surface:
    """All curves over all skews coarsely, and finely about the best of each m: the valley in (m, r) is narrow
    at low noise."""
    if not has_skew(sys):
        r = np.zeros((len(m), 1))
        return Surface(r[None], QUADRATIC.rss(sys, m, r)[None], np.zeros((1, 1, 1)))
    coarse, step = np.broadcast_to(SKEWS, (len(m), len(SKEWS))), SKEWS[1] - SKEWS[0]
    rs, values = [], []
    for curve in CURVES:
        rss = curve.rss(sys, m, coarse)
        fine = np.clip(SKEWS[rss.argmin(1)][:, None] + np.linspace(-step, step, 17), -LARGEST, LARGEST)
        rs.append(np.concatenate([coarse, fine], 1))
        values.append(np.concatenate([rss, curve.rss(sys, m, fine)], 1))
    return Surface(np.stack(rs), np.stack(values), np.array([c.price for c in CURVES])[:, None, None])


def places(rates: np.ndarray, fine: int = 32, coarse: int = 6) -> np.ndarray:
    """Candidates for the minimum: finely inside the rates, coarsely one range beyond each end."""
    span = rates[-1] - rates[0]
    gap = max(float(np.median(np.diff(rates))), span / MOST)  # rates drawn at random may nearly coincide
    inside = np.linspace(rates[0], rates[-1], round(span / gap * fine) + 1)
    outside = np.arange(1, round(span / gap * coarse) + 1) * gap / coarse
    return np.concatenate([rates[0] - outside[::-1], inside, rates[-1] + outside])


def has_skew(sys: System) -> bool:
    """Whether there are rates and runs enough for more than a quadratic."""
    return len(sys.x) > 3 and sys.dof > 3


def _fit_probability(sys: System, least: float, lack: int) -> float:
    """How likely the curve's misfit is, were it noise like that between seeds."""
    if sys.pure <= 0:
        return 1.0
    return float(stats.f.sf((least - sys.pure) / lack / (sys.pure / sys.pure_dof), lack, sys.pure_dof))
