"""The best value of a hyperparameter from a sweep of it, and how sure we are.

Near its minimum the loss of seed j at x (log2 of a rate, or the value itself) is taken to be

    y_j(x) = c_j + a g(x - m; r) + noise,      a > 0,

with g one of a few curves (curves.py): a quadratic, or steeper on one side by a skew r, or flatter at its bottom. y is the
loss, or its logarithm where the noise grows with it (scales.py). c_j is one constant per seed where seeds are shared across
rates (what makes a whole run good or bad then drops out), one constant for all where not. For given g, m and r this is a line
through one regressor, so the residual sum RSS(m, r, g) has a closed form and is tabulated. The interval is the profile likelihood's,

    { m :  D(m) <= F_{1, dof}(95 %) },      D(m) = min_{r, g} [ RSS(m, r, g) / s^2 + (r / ln 32)^2 + price(g) ] - its minimum,

which like Fieller's goes to infinity when the curve is too flat to say. The penalties are what is unusual: choosing between
the quadratic and the other curves by a test and then trusting the winner covers too little when the noise hides the skew;
a soft preference for the quadratic covers at both ends (docs/statistics.md has the measured table).

Nothing is said beyond what was tried: an end that leaves the grid is infinite, one that passes the last stable rate is the
first diverged rate, and the optimum is then the last stable rate itself, which one can use. Pure numpy and scipy; nothing here knows about sweeps.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy import stats

from trimtab.optima.curves import CURVES, LARGEST, QUADRATIC, Curve
from trimtab.optima.edges import RULED_OUT, Edge
from trimtab.optima.scales import logarithmic
from trimtab.optima.systems import System, system

SKEW = LARGEST  # scale of the penalty on r: the largest ratio costs as much as one standard deviation
SKEWS = np.linspace(-LARGEST, LARGEST, 21)
LACK = 0.02  # a window is narrowed while the curve's lack of fit is significant at this level
MOST = 40  # rates beyond this are pooled with their neighbours
FEWEST = 5  # rates in the narrowest window


@dataclasses.dataclass(frozen=True)
class Fit:
    """One size's optimum. `optimum`, `low`, `high`, `stderr` are on the axis of the fit (log2 or linear).

    `deviance` over `grid` is the whole likelihood of the optimum, on the scale where 3.84 is 95 %; `shapes` is the same
    for optimum and skew together. The drift is made from them. `value` is the loss at the optimum, `noise` a run's standard
    deviation on the scale of the fit: the loss, or its logarithm when `log`.
    """

    optimum: float
    low: float
    high: float
    stderr: float
    status: str
    shape: str
    value: float
    n: int
    rates: int
    dof: int
    noise: float
    curve: Curve
    grid: np.ndarray
    deviance: np.ndarray
    system: System | None = None
    shapes: Shapes | None = None
    edge: Edge | None = None
    log: bool = False
    unit: float = 1.0


class Shapes(NamedTuple):
    """Deviance of each place of the optimum (rows, as in Fit.grid) with each of some curvature ratios r (columns), not penalised."""

    r: np.ndarray
    deviance: np.ndarray


class Surface(NamedTuple):
    """RSS of each curve (first axis) with its minimum at each m (second) and some skews r (third), and the curves' prices."""

    r: np.ndarray
    rss: np.ndarray
    price: np.ndarray

    def least(self) -> np.ndarray:
        """The least RSS at each m."""
        return self.rss.min((0, 2))


def surface(sys: System, m: np.ndarray) -> Surface:
    """All curves over all skews coarsely, and finely about the best of each m: the valley in (m, r) is narrow at low noise."""
    if not _skewed(sys):
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


def gaussian(statistic: np.ndarray, dof: int) -> np.ndarray:
    """An F(1, dof) statistic on the scale of a chi-squared one, where those of several sizes can be added."""
    knots = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 400)])
    return np.interp(statistic, knots, stats.chi2.isf(np.maximum(stats.f.sf(knots, 1, dof), 1e-290), 1))


def places(rates: np.ndarray, fine: int = 32, coarse: int = 6) -> np.ndarray:
    """Candidates for the minimum: finely inside the rates, coarsely one range beyond each end."""
    span = rates[-1] - rates[0]
    gap = max(float(np.median(np.diff(rates))), span / MOST)  # rates drawn at random may nearly coincide
    inside = np.linspace(rates[0], rates[-1], round(span / gap * fine) + 1)
    outside = np.arange(1, round(span / gap * coarse) + 1) * gap / coarse
    return np.concatenate([rates[0] - outside[::-1], inside, rates[-1] + outside])


def _window(
    x: np.ndarray, y: np.ndarray, seed: np.ndarray
) -> tuple[System, int, int, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """The widest run of rates around the best one that a curve describes (first and last index), and the least RSS over m."""
    rates, at = np.unique(x, return_inverse=True)
    count = np.bincount(at)
    mean = np.bincount(at, y) / count
    best = int(mean.argmin())
    sys = system(x, y, seed)
    s = np.sqrt(sys.pure / sys.pure_dof) if sys.pure_dof > 0 else 0.0
    # Far up the sides losses saturate or explode: leave out what is clearly more than half way up.
    far = mean - mean[best] - 3 * s * np.sqrt(1 / count + 1 / count[best]) > 0.5 * (mean.max() - mean.min())
    lo, hi = best, best
    while lo > 0 and (not far[lo - 1] or best - lo < 1):
        lo -= 1
    while hi < len(rates) - 1 and (not far[hi + 1] or hi - best < 1):
        hi += 1
    fewest = min(FEWEST, len(rates))
    while hi - lo + 1 < fewest:
        lo, hi = (
            (lo - 1, hi)
            if lo > 0 and (hi == len(rates) - 1 or mean[lo - 1] <= mean[hi + 1])
            else (lo, hi + 1)
        )
    while True:
        keep = (x >= rates[lo]) & (x <= rates[hi])
        sys = system(x[keep], y[keep], seed[keep])
        m = places(sys.x, 8, 3)
        least = surface(sys, m).least()
        lack = hi - lo - 3  # k - 1 rates' worth of freedom less a, m and r
        if (
            hi - lo + 1 <= fewest
            or lack < 1
            or sys.pure_dof < 1
            or _lack(sys, float(least.min()), lack) > LACK
        ):
            return sys, lo, hi, rates, (m, least)
        if hi == best or (lo < best and mean[lo] >= mean[hi]):
            lo += 1
        else:
            hi -= 1


def _pooled(x: np.ndarray) -> np.ndarray:
    """x itself, or where there are too many different ones (a random search) the mean of each of 40 even bins."""
    if len(np.unique(x)) <= MOST:
        return x
    span = x.max() - x.min()
    bins = np.minimum((x - x.min()) / span * MOST, MOST - 1).astype(int)
    _, at = np.unique(bins, return_inverse=True)
    return (np.bincount(at, x) / np.bincount(at))[at]


def _skewed(sys: System) -> bool:
    """Whether there are rates and runs enough for more than a quadratic."""
    return len(sys.x) > 3 and sys.dof > 3


def _lack(sys: System, least: float, lack: int) -> float:
    """How likely the curve's misfit is, were it noise like that between seeds."""
    return (
        1.0
        if sys.pure <= 0
        else float(stats.f.sf((least - sys.pure) / lack / (sys.pure / sys.pure_dof), lack, sys.pure_dof))
    )


def fit(
    x: np.ndarray,
    y: np.ndarray,
    seed: np.ndarray,
    *,
    wall: float = np.inf,
    level: float = 0.95,
    log: bool | None = None,
    edge: Edge | None = None,
) -> Fit:
    """The minimum of y over x with its interval; `wall`: the first rate that diverged, the optimum lies below it.

    log: whether the curve is one of log y; None lets the noise decide. edge: how many runs diverged at each rate, kept for the drift.

    >>> x = np.repeat(np.arange(-6, 1.0), 3)
    >>> noise = 0.05 * np.random.default_rng(0).standard_normal(21)
    >>> f = fit(x, 1 + 0.1 * (x + 2.3) ** 2 + noise, np.tile([0, 1, 2], 7))
    >>> f.status, f.shape, round(f.optimum, 1), f.low < -2.3 < f.high
    ('inside', 'quadratic', -2.2, True)
    """
    keep = x < wall
    x, y, seed = x[keep], y[keep], seed[keep]
    x = _pooled(x)
    rates = np.unique(x)
    if not len(rates):
        return _none(wall)
    if len(rates) < 3:
        return _few(x, y, rates, wall)
    log = logarithmic([(x, y, seed)]) if log is None else log
    unit = 1.0 if log else float(np.abs(y).max()) or 1.0  # losses of any size are fitted alike
    y = np.log(y) if log else y / unit
    sys, lo, hi, rates, rough = _window(x, y, seed)
    k, skewed = len(sys.x), _skewed(sys)
    free = sys.dof - (3 if skewed else 2)
    dof, least = max(free, 1), float(rough[1].min())
    s2 = max(least, 1e-12 * abs(sys.yy), 1e-300) / dof
    lack = k - 4
    if (
        lack > 0 and sys.pure_dof > 0 and _lack(sys, least, lack) < LACK
    ):  # what the narrowest window still cannot describe counts as noise
        s2 = max(s2, (least - sys.pure) / lack)
    m = places(sys.x)
    m = np.union1d(
        rough[0], m[np.interp(m, rough[0], rough[1] - least) < 16 * s2]
    )  # dense only where the minimum may be
    m = m[
        np.append(True, np.diff(m) > 1e-9 * (m[-1] - m[0]))
    ]  # the two grids' common places may differ by rounding
    found = surface(sys, m)
    unskewed = found.rss / s2 + found.price  # before the skew is paid for
    objective = unskewed + (found.r / SKEW) ** 2
    best = np.unravel_index(int(objective.argmin()), objective.shape)
    statistic = objective.min((0, 2)) - objective[best]
    deviance = gaussian(statistic, dof) if free > 0 else np.zeros_like(m)
    shapes = (
        Shapes(np.hstack(list(found.r)), gaussian(np.hstack(list(unskewed)) - unskewed.min(), dof))
        if skewed and free > 0
        else None
    )
    curve, i, r = CURVES[best[0]], best[1], float(found.r[best])
    # Outside the window: divergence rules it out, and so do rates that were tried and left out because they are clearly worse.
    below = float(rates[lo - 1]) if lo > 0 else -np.inf
    above = float(rates[hi + 1]) if hi < len(rates) - 1 else wall
    outside = (m >= above) | (m <= below)
    deviance = np.where(outside, RULED_OUT, deviance)
    if shapes is not None:  # with an edge, where the wall really stands is not certain
        shapes.deviance[outside if edge is None else (m <= below) | ((m >= above) & (above < wall))] = (
            RULED_OUT
        )
    walled = hi == len(rates) - 1 and np.isfinite(wall)
    low, high, closed = interval(m, deviance, sys.x[0], sys.x[-1], below, above, level, walled)
    optimum = float(np.clip(m[i], max(sys.x[0], below), sys.x[-1]))
    status = "inside"
    if m[i] > sys.x[-1] or (m[i] == sys.x[-1] and hi == len(rates) - 1):
        status = "last stable" if walled else "beyond the grid" if hi == len(rates) - 1 else "inside"
    elif m[i] <= sys.x[0] and lo == 0:
        status = "beyond the grid"
    near = interval(m, deviance, sys.x[0], sys.x[-1], below, above, 0.6827, False)
    stderr = (high - low) / (2 * stats.norm.isf((1 - level) / 2)) if closed else np.nan
    if np.isfinite(near[1] - near[0]) and not np.isfinite(stderr):
        stderr = (near[1] - near[0]) / 2
    d = sys.x - m[i]
    g = curve.height(d, r, sys.step)
    scale = max(float(g @ sys.b), 0.0) / max(float(g @ sys.a @ g), 1e-300)
    shape = "quadratic"
    if (
        skewed and (abs(r) > 0.1 or curve is not QUADRATIC) and _gain(sys, m, least, s2) > 7.81
    ):  # three more numbers than a quadratic
        shape = "two-sided" if abs(r) > 0.1 and curve is QUADRATIC else curve.name
    value = sys.mean - scale * float(sys.weight @ g)
    value = float(np.exp(value)) if log else value * unit
    return Fit(
        optimum,
        low,
        high,
        float(stderr),
        status,
        shape,
        value,
        len(y),
        k,
        dof,
        unit * float(np.sqrt(s2)),
        curve,
        m,
        deviance,
        sys,
        shapes,
        edge,
        log,
        unit,
    )


def _gain(sys: System, m: np.ndarray, least: float, s2: float) -> float:
    """How much better than a quadratic the curve is, in deviance."""
    return float(QUADRATIC.rss(sys, m, np.zeros((len(m), 1))).min() - least) / s2


def interval(
    m: np.ndarray,
    deviance: np.ndarray,
    first: float,
    last: float,
    below: float,
    above: float,
    level: float,
    walled: bool,
) -> tuple[float, float, bool]:
    """The ends of {deviance <= chi2(level)}; infinite where the set leaves the rates that were tried, `above` where a wall stands."""
    low, high = _ends(m, deviance, float(stats.chi2.isf(1 - level, 1)))
    left, right = low < first, high > last
    if right and walled:
        low = _ends(m, deviance, float(stats.chi2.isf(1.6 * (1 - level), 1)))[
            0
        ]  # the wall is certain: most of the risk is on the left
        low = min(low, last)  # the best rate that was seen to train is never excluded
        left = low < first
    return (below if left else low), (above if right else high), not left and not right


def _ends(m: np.ndarray, deviance: np.ndarray, crit: float) -> tuple[float, float]:
    inside = np.nonzero(deviance <= crit)[0]
    if not len(inside):
        i = int(deviance.argmin())
        return float(m[i]), float(m[i])
    i, j = int(inside[0]), int(inside[-1])

    def cross(a: int, b: int) -> float:  # where the deviance passes crit between a (inside) and b (outside)
        share = max(
            (crit - deviance[a]) / (deviance[b] - deviance[a]), 0.5
        )  # no claim finer than half a step of the grid
        return float(m[a] + (m[b] - m[a]) * share)

    return (cross(i, i - 1) if i > 0 else -np.inf), (cross(j, j + 1) if j < len(m) - 1 else np.inf)


def _none(wall: float) -> Fit:
    m = wall + np.linspace(-8, 8, 321) if np.isfinite(wall) else np.linspace(-1, 1, 3)
    return Fit(
        np.nan,
        -np.inf,
        wall,
        np.nan,
        "none stable",
        "none",
        np.nan,
        0,
        0,
        0,
        np.nan,
        QUADRATIC,
        m,
        np.where(m >= wall, RULED_OUT, 0.0),
    )


def _few(x: np.ndarray, y: np.ndarray, rates: np.ndarray, wall: float) -> Fit:
    means = [y[x == r].mean() for r in rates]
    best = int(np.argmin(means))
    status = "last stable" if best == len(rates) - 1 and np.isfinite(wall) else "too few rates"
    m = np.linspace(rates[0] - 8, (wall if np.isfinite(wall) else rates[-1]) + 8, 641)
    return Fit(
        float(rates[best]),
        -np.inf,
        wall,
        np.nan,
        status,
        "none",
        float(means[best]),
        len(y),
        len(rates),
        0,
        np.nan,
        QUADRATIC,
        m,
        np.where(m >= wall, RULED_OUT, 0.0),
    )


def excess(
    f: Fit, at: float, x: np.ndarray, y: np.ndarray, *, level: float = 0.95
) -> tuple[float, float, float]:
    """How much higher the loss is at `at` than at its minimum, with interval; from the curve inside its window, from the runs outside.

    The interval is the projection of { (m, r, a): RSS within F(95 %) of its least } on the curve at `at`, of the kind that fits best.
    """
    if f.log:
        value, low, high = (
            float(np.expm1(e)) * f.value for e in _excess(f, float(np.log(f.value)), at, x, np.log(y), level)
        )
    else:
        value, low, high = (e * f.unit for e in _excess(f, f.value / f.unit, at, x, y / f.unit, level))
    return value, low, high


def _excess(
    f: Fit, least: float, at: float, x: np.ndarray, y: np.ndarray, level: float
) -> tuple[float, float, float]:
    sys = f.system
    if sys is None or not np.isfinite(at):
        return np.nan, np.nan, np.nan
    s2, crit = (f.noise / f.unit) ** 2, stats.f.isf(1 - level, 1, f.dof)
    if not sys.x[0] <= at <= sys.x[-1]:
        rates = np.unique(x)
        if not rates[0] <= at <= rates[-1]:
            return np.nan, np.nan, np.nan
        means = np.array([y[x == r].mean() for r in rates])
        n = len(y) / len(rates)
        value, half = float(np.interp(at, rates, means)) - least, float(np.sqrt(crit * s2 * 2 / n))
        return max(value, 0.0), max(value - half, 0.0), value + half
    m = f.grid[(f.grid >= sys.x[0]) & (f.grid <= sys.x[-1])]
    r = (
        np.linspace(-LARGEST, LARGEST, 97)
        if f.shape != "none" and sys.dof > 3 and len(sys.x) > 3
        else np.zeros(1)
    )
    every = np.broadcast_to(r, (len(m), len(r)))
    gb, gg = f.curve.terms(sys, m, every)
    a, gg = np.maximum(gb, 0.0) / np.maximum(gg, 1e-300), np.maximum(gg, 1e-300)
    objective = (sys.yy - a * np.maximum(gb, 0.0)) / s2 + (r / SKEW) ** 2
    room = crit - (objective - objective.min())
    spread = np.sqrt(np.maximum(room, 0.0) * s2 / gg)
    g = f.curve.height(at - m[:, None], every, sys.step)
    i = np.unravel_index(int(objective.argmin()), objective.shape)
    inside = room >= 0
    return (
        float((a * g)[i]),
        float((np.maximum(a - spread, 0.0) * g)[inside].min()),
        float(((a + spread) * g)[inside].max()),
    )
