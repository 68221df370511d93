"""The best value of a hyperparameter from a sweep of it, and how sure we are.

Near its minimum the loss of seed j at x (log2 of a rate, or the value itself) is taken to be

    y_j(x) = c_j + a g(x - m; r) + noise,      a > 0,

with g one of a few curves (curves.py): a quadratic, or steeper on one side by a skew r, or flatter at its
bottom. y is the loss, or its logarithm where the noise grows with it (curves.py). c_j is one constant per
seed where seeds are shared across rates (what makes a whole run good or bad then drops out), one constant for
all where not. For given g, m and r this is a line through one regressor, so the residual sum RSS(m, r, g) has
a closed form and is tabulated. The interval is the profile likelihood's,

    { m :  D(m) <= F_{1, dof}(95 %) },
    D(m) = min_{r, g} [ RSS(m, r, g) / s^2 + (r / ln 32)^2 + price(g) ] - its minimum,

which like Fieller's goes to infinity when the curve is too flat to say. The penalties are what is unusual:
choosing between the quadratic and the other curves by a test and then trusting the winner covers too little
when the noise hides the skew; a soft preference for the quadratic covers at both ends (docs/statistics.md has
the measured table).

Nothing is said beyond what was tried: an end that leaves the grid is infinite, one that passes the last
stable rate is the first diverged rate, and the optimum is then the last stable rate itself, which one can
use. Pure numpy and scipy; nothing here knows about sweeps.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy import stats

from trimtab.optima.curves import CURVES, LARGEST, QUADRATIC, RULED_OUT, Curve, Edge, System, logarithmic
from trimtab.optima.windows import MOST, Window, choose_window, has_skew, places, tabulate

SKEW = LARGEST  # scale of the penalty on r: the largest ratio costs as much as one standard deviation


@dataclasses.dataclass(frozen=True)
class OptimumFit:
    """One size's optimum. `optimum`, `low`, `high`, `stderr` are on the axis of the fit (log2 or linear).

    `deviance` over `grid` is the whole likelihood of the optimum, on the scale where 3.84 is 95 %; `shapes`
    is the same for optimum and skew together. The drift is made from them. `value` is the loss at the
    optimum, `noise` a run's standard deviation on the scale of the fit: the loss, or its logarithm when
    `log`.
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
    """Deviance of each place of the optimum (rows, as in OptimumFit.grid) with each of some curvature ratios
    r (columns), not penalised."""

    r: np.ndarray
    deviance: np.ndarray


def as_chi2(statistic: np.ndarray, dof: int) -> np.ndarray:
    """An F(1, dof) statistic on the scale of a chi-squared one, where those of several sizes can be added."""
    knots = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 400)])
    return np.interp(statistic, knots, stats.chi2.isf(np.maximum(stats.f.sf(knots, 1, dof), 1e-290), 1))


def _pool(x: np.ndarray) -> np.ndarray:
    """x itself, or where there are too many different ones (a random search) the mean of each of 40 even
    bins."""
    if len(np.unique(x)) <= MOST:
        return x
    span = x.max() - x.min()
    bins = np.minimum((x - x.min()) / span * MOST, MOST - 1).astype(int)
    _, at = np.unique(bins, return_inverse=True)
    return (np.bincount(at, x) / np.bincount(at))[at]


def fit(
    x: np.ndarray,
    y: np.ndarray,
    seed: np.ndarray,
    *,
    wall: float = np.inf,
    level: float = 0.95,
    log: bool | None = None,
    edge: Edge | None = None,
) -> OptimumFit:
    """The minimum of y over x with its interval; `wall`: the first rate that diverged, the optimum lies below
    it.

    log: whether the curve is one of log y; None lets the noise decide. edge: how many runs diverged at each
    rate, kept for the drift.

    >>> x = np.repeat(np.arange(-6, 1.0), 3)
    >>> noise = 0.05 * np.random.default_rng(0).standard_normal(21)
    >>> f = fit(x, 1 + 0.1 * (x + 2.3) ** 2 + noise, np.tile([0, 1, 2], 7))
    >>> f.status, f.shape, round(f.optimum, 1), f.low < -2.3 < f.high
    ('inside', 'quadratic', -2.2, True)
    """
    keep = x < wall
    x, y, seed = _pool(x[keep]), y[keep], seed[keep]
    if len(np.unique(x)) < 3:
        return _few(x, y, wall)
    log = logarithmic([(x, y, seed)]) if log is None else log
    unit = 1.0 if log else float(np.abs(y).max()) or 1.0  # losses of any size are fitted alike
    y = np.log(y) if log else y / unit
    window = choose_window(x, y, seed)
    likely = _likelihood(window, wall, soft=edge is not None)
    interval = _interval(window, likely, wall, level)
    value = _least_loss(window.system, likely)
    return OptimumFit(
        optimum=float(
            np.clip(likely.at, max(window.system.x[0], window.neighbours(wall)[0]), window.system.x[-1])
        ),
        low=interval.low,
        high=interval.high,
        stderr=_stderr(interval, _interval(window, likely, wall, 0.6827, walled=False), level),
        status=_status(window, likely.at, wall),
        shape=_shape(window, likely),
        value=float(np.exp(value)) if log else value * unit,
        n=len(y),
        rates=len(window.system.x),
        dof=window.dof,
        noise=unit * float(np.sqrt(window.variance)),
        curve=likely.curve,
        grid=likely.m,
        deviance=likely.deviance,
        system=window.system,
        shapes=likely.shapes,
        edge=edge,
        log=log,
        unit=unit,
    )


class Likelihood(NamedTuple):
    """Deviance of a minimum at each place m, alone and together with the skew; the curve and skew that fit
    best, at `at`."""

    m: np.ndarray
    deviance: np.ndarray
    shapes: Shapes | None
    curve: Curve
    at: float
    r: float


def _likelihood(window: Window, wall: float, soft: bool) -> Likelihood:
    """D(m) of the equation above, dense where the minimum may be. soft: where the wall really stands is not
    certain."""
    sys, s2, dof = window.system, window.variance, window.dof
    m = places(sys.x)
    m = np.union1d(
        window.places, m[np.interp(m, window.places, window.rss - float(window.rss.min())) < 16 * s2]
    )
    # the grids' common places may differ by rounding
    m = m[np.append(True, np.diff(m) > 1e-9 * (m[-1] - m[0]))]
    table = tabulate(sys, m)
    unskewed = table.rss / s2 + table.price  # before the skew is paid for
    objective = unskewed + (table.r / SKEW) ** 2
    best = np.unravel_index(int(objective.argmin()), objective.shape)
    statistic = objective.min((0, 2)) - objective[best]
    # Outside the window: divergence rules it out, and so do rates that were tried and are clearly worse.
    below, above = window.neighbours(wall)
    outside = (m >= above) | (m <= below)
    deviance = as_chi2(statistic, dof) if window.free > 0 else np.zeros_like(m)
    shapes = None
    if has_skew(sys) and window.free > 0:
        both = as_chi2(np.hstack(list(unskewed)) - unskewed.min(), dof)
        never = (m <= below) | ((m >= above) & (above < wall)) if soft else outside
        shapes = Shapes(np.hstack(list(table.r)), np.where(never[:, None], RULED_OUT, both))
    return Likelihood(
        m=m,
        deviance=np.where(outside, RULED_OUT, deviance),
        shapes=shapes,
        curve=CURVES[best[0]],
        at=float(m[best[1]]),
        r=float(table.r[best]),
    )


def _least_loss(sys: System, likely: Likelihood) -> float:
    """The loss at the minimum of the best curve, the mean over seeds."""
    g = likely.curve.height(sys.x - likely.at, likely.r, sys.step)
    scale = max(float(g @ sys.b), 0.0) / max(float(g @ sys.a @ g), 1e-300)
    return sys.mean - scale * float(sys.weight @ g)


def _status(window: Window, at: float, wall: float) -> str:
    first, last = window.system.x[0], window.system.x[-1]
    if window.reaches_last and at >= last:
        return "last stable" if np.isfinite(wall) else "beyond the grid"
    return "beyond the grid" if at <= first and window.lo == 0 else "inside"


def _shape(window: Window, likely: Likelihood) -> str:
    """The curve's name where it is clearly better than a quadratic: by the 95 % of three more numbers."""
    sys, curve, skewed = window.system, likely.curve, abs(likely.r) > 0.1
    if not has_skew(sys) or not (skewed or curve is not QUADRATIC):
        return "quadratic"
    plain = QUADRATIC.rss(sys, likely.m, np.zeros((len(likely.m), 1))).min()
    if float(plain - float(window.rss.min())) / window.variance <= 7.81:
        return "quadratic"
    return "two-sided" if skewed and curve is QUADRATIC else curve.name


class Interval(NamedTuple):
    """The ends of {deviance <= chi2(level)}; `closed` when both lie within the rates that were tried."""

    low: float
    high: float
    closed: bool


def _interval(
    window: Window, likely: Likelihood, wall: float, level: float, walled: bool | None = None
) -> Interval:
    """Infinite where the set leaves the rates that were tried; the wall where one stands above them."""
    first, last = window.system.x[0], window.system.x[-1]
    below, above = window.neighbours(wall)
    low, high = _ends(likely, float(stats.chi2.isf(1 - level, 1)))
    right = high > last
    if walled is None:
        walled = bool(window.reaches_last and np.isfinite(wall))
    if right and walled:
        # The wall is certain, so most of the risk is on the left; the best rate seen to train is never
        # excluded.
        low = min(_ends(likely, float(stats.chi2.isf(1.6 * (1 - level), 1)))[0], last)
    left = low < first
    return Interval(below if left else low, above if right else high, not left and not right)


def _stderr(whole: Interval, near: Interval, level: float) -> float:
    """Half the interval in normal standard deviations; where it is open, half the 68 % interval if that is
    closed."""
    stderr = (whole.high - whole.low) / (2 * stats.norm.isf((1 - level) / 2)) if whole.closed else np.nan
    if np.isfinite(near.high - near.low) and not np.isfinite(stderr):
        stderr = (near.high - near.low) / 2
    return float(stderr)


def _ends(likely: Likelihood, crit: float) -> tuple[float, float]:
    """First and last place where the deviance passes crit; infinite where it does not."""
    m, deviance = likely.m, likely.deviance
    inside = np.nonzero(deviance <= crit)[0]
    if not len(inside):
        i = int(deviance.argmin())
        return float(m[i]), float(m[i])
    i, j = int(inside[0]), int(inside[-1])

    def cross(a: int, b: int) -> float:  # between a (inside) and b (outside)
        share = (crit - deviance[a]) / (deviance[b] - deviance[a])
        return float(m[a] + (m[b] - m[a]) * max(share, 0.5))  # no claim finer than half a step of the grid

    return (cross(i, i - 1) if i > 0 else -np.inf), (cross(j, j + 1) if j < len(m) - 1 else np.inf)


def _few(x: np.ndarray, y: np.ndarray, wall: float) -> OptimumFit:
    """No curve through none, one or two stable rates: the best of them, and what divergence rules out."""
    rates = np.unique(x)
    means = [float(y[x == r].mean()) for r in rates]
    best = int(np.argmin(means)) if means else None
    if best is None:
        status, m = (
            "none stable",
            wall + np.linspace(-8, 8, 321) if np.isfinite(wall) else np.linspace(-1, 1, 3),
        )
    else:
        status = "last stable" if best == len(rates) - 1 and np.isfinite(wall) else "too few rates"
        m = np.linspace(rates[0] - 8, (wall if np.isfinite(wall) else rates[-1]) + 8, 641)
    return OptimumFit(
        optimum=np.nan if best is None else float(rates[best]),
        low=-np.inf,
        high=wall,
        stderr=np.nan,
        status=status,
        shape="none",
        value=np.nan if best is None else means[best],
        n=len(y),
        rates=len(rates),
        dof=0,
        noise=np.nan,
        curve=QUADRATIC,
        grid=m,
        deviance=np.where(m >= wall, RULED_OUT, 0.0),
    )


def excess(
    f: OptimumFit, at: float, x: np.ndarray, y: np.ndarray, *, level: float = 0.95
) -> tuple[float, float, float]:
    """How much higher the loss is at `at` than at its minimum, with interval.

    From the curve inside its window, from the runs outside. The interval is the projection of { (m, r, a):
    RSS within F(95 %) of its least } on the curve at `at`, of the kind that fits best.
    """
    scale, unit = (np.log, 1.0) if f.log else (np.asarray, f.unit)
    within = f.system is not None and f.system.x[0] <= at <= f.system.x[-1]
    least, losses = float(scale(f.value / unit)), scale(y / unit)
    found = _excess_of_curve(f, at, level) if within else _excess_of_runs(f, least, at, x, losses, level)
    value, low, high = (float(np.expm1(e)) * f.value if f.log else e * unit for e in found)
    return value, low, high


def _excess_of_runs(
    f: OptimumFit, least: float, at: float, x: np.ndarray, y: np.ndarray, level: float
) -> tuple[float, float, float]:
    """Between the means of neighbouring rates; unknown beyond what was tried."""
    rates = np.unique(x)
    if f.system is None or not np.isfinite(at) or not rates[0] <= at <= rates[-1]:
        return np.nan, np.nan, np.nan
    s2, crit = (f.noise / f.unit) ** 2, stats.f.isf(1 - level, 1, f.dof)
    means = np.array([y[x == r].mean() for r in rates])
    n = len(y) / len(rates)
    value, half = float(np.interp(at, rates, means)) - least, float(np.sqrt(crit * s2 * 2 / n))
    return max(value, 0.0), max(value - half, 0.0), value + half


def _excess_of_curve(f: OptimumFit, at: float, level: float) -> tuple[float, float, float]:
    """The height at `at` of every curve that the runs do not rule out."""
    sys = f.system
    assert sys is not None
    s2, crit = (f.noise / f.unit) ** 2, stats.f.isf(1 - level, 1, f.dof)
    m = f.grid[(f.grid >= sys.x[0]) & (f.grid <= sys.x[-1])]
    r = np.linspace(-LARGEST, LARGEST, 97) if f.shape != "none" and has_skew(sys) else np.zeros(1)
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
