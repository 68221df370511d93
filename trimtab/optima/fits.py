"""The best value of a hyperparameter from a sweep of it, and how sure we are.

Near its minimum the loss of seed j at x (log2 of a rate, or the value itself) is taken to be

    y_j(x) = c_j + a e^(-r/2) |x - m|^p   left of m,      y_j(x) = c_j + a e^(r/2) |x - m|^p   right of m,      a > 0, p = 2, 3 or 4

plus noise: a quadratic when r = 0 and p = 2, two-sided when r is not 0, flat-bottomed when p > 2. c_j is one constant per seed where seeds are shared across rates (what
makes a whole run good or bad then drops out), one constant for all where not. For given (m, r, p) this is a line through one
regressor, so the residual sum RSS(m, r, p) has a closed form and is tabulated. The interval is the profile likelihood's,

    { m :  D(m) <= F_{1, dof}(95 %) },      D(m) = min_{r, p} [ RSS(m, r, p) / s^2 + (r / ln 8)^2 + (p / 2 - 1)^2 ] - its minimum,

which like Fieller's goes to infinity when the curve is too flat to say. The penalties are what is unusual: choosing between
the quadratic and the other curves by a test and then trusting the winner covers too little when the noise hides the skew;
a soft preference for the quadratic covers at both ends (docs/statistics.md has the measured table).

Nothing is said beyond what was tried: an end that leaves the grid is infinite, one that passes the last stable rate is the
first diverged rate, and the optimum is then the last stable rate itself, which one can use. Pure numpy and scipy; nothing here knows about sweeps.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import stats

SKEW = np.log(8.0)  # scale of the penalty on r: a curvature ratio of 8 costs as much as one standard deviation
POWERS = (2.0, 3.0, 4.0)
LARGEST = np.log(32.0)  # curvature ratios beyond 32 are walls, not curves
RATIOS = np.linspace(-LARGEST, LARGEST, 21)
LACK = 0.02  # a window is narrowed while the curve's lack of fit is significant at this level
FEWEST = 5  # rates in the narrowest window
RULED_OUT = 60.0  # deviance of what divergence rules out


@dataclasses.dataclass(frozen=True)
class Fit:
    """One size's optimum. `optimum`, `low`, `high`, `stderr` are on the axis of the fit (log2 or linear).

    `deviance` over `grid` is the whole likelihood of the optimum, on the scale where 3.84 is 95 %; the drift is made from it.
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
    power: float
    grid: np.ndarray
    deviance: np.ndarray
    system: System | None = None


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


def system(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> System:
    """Reduce runs (x, y, seed) to one number per rate."""
    rates, at = np.unique(x, return_inverse=True)
    seeds, block = np.unique(seed, return_inverse=True)
    if len(seeds) * 2 > len(x):  # seeds that are not shared across rates have no constant of their own
        seeds, block = seeds[:1], np.zeros_like(block)
    n, k, s = len(x), len(rates), len(seeds)
    design = np.zeros((n, k))
    design[np.arange(n), at] = 1.0
    blocks = np.zeros((n, s))
    blocks[np.arange(n), block] = 1.0
    centred = design - blocks @ ((blocks / blocks.sum(0)).T @ design)
    a, b = design.T @ centred, centred.T @ y
    yy = float(y @ (y - (blocks @ ((blocks / blocks.sum(0)).T @ y))))
    pure = max(yy - float(b @ np.linalg.pinv(a, hermitian=True) @ b), 0.0)
    return System(rates, a, b, yy, n - s, pure, n - s - (k - 1), float(y.mean()), design.sum(0) / n)


def _sides(sys: System, m: np.ndarray, power: float) -> tuple[np.ndarray, ...]:
    d = sys.x[None, :] - m[:, None]
    g = np.abs(d) ** power
    left = np.where(d < 0, g, 0.0)
    right = g - left
    la = left @ sys.a
    return left @ sys.b, right @ sys.b, (la * left).sum(1), (la * right).sum(1), ((right @ sys.a) * right).sum(1)


def _rss(sys: System, sides: tuple[np.ndarray, ...], r: np.ndarray) -> np.ndarray:
    bl, br, ll, lr, rr = (s[:, None] for s in sides)
    e = np.exp(r / 2)
    gb, gg = bl / e + br * e, ll / e**2 + 2 * lr + rr * e**2
    return sys.yy - np.where(gb > 0, gb * gb / np.maximum(gg, 1e-300), 0.0)  # a > 0: a maximum is no minimum


def profile(sys: System, m: np.ndarray, s2: float | None, skewed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """min over (r, p) of RSS / s2 + penalties at each m, and the r and p that do it; plain RSS when s2 is None."""
    if not skewed:
        least = _rss(sys, _sides(sys, m, 2.0), np.zeros((len(m), 1)))[:, 0]
        return (least if s2 is None else least / s2), np.zeros(len(m)), np.full(len(m), 2.0)
    many = [_ratios(sys, m, s2, p) for p in POWERS]
    values, rows = np.stack([v for v, _ in many]), np.arange(len(m))
    j = values.argmin(0)
    return values[j, rows], np.stack([r for _, r in many])[j, rows], np.array(POWERS)[j]


def _ratios(sys: System, m: np.ndarray, s2: float | None, power: float) -> tuple[np.ndarray, np.ndarray]:
    sides = _sides(sys, m, power)

    def objective(r: np.ndarray) -> np.ndarray:
        rss = _rss(sys, sides, r)
        return rss if s2 is None else rss / s2 + (r / SKEW) ** 2 + (power / 2 - 1) ** 2

    best = RATIOS[objective(np.broadcast_to(RATIOS, (len(m), len(RATIOS)))).argmin(1)]
    step = RATIOS[1] - RATIOS[0]
    r = np.clip(best[:, None] + np.linspace(-step, step, 17)[None, :], -LARGEST, LARGEST)  # the valley in (m, r) is narrow at low noise
    values = objective(r)
    i, rows = values.argmin(1), np.arange(len(m))
    return values[rows, i], r[rows, i]


def places(rates: np.ndarray, fine: int = 32, coarse: int = 6) -> np.ndarray:
    """Candidates for the minimum: finely inside the rates, coarsely one range beyond each end."""
    span, gap = rates[-1] - rates[0], float(np.median(np.diff(rates)))
    inside = np.linspace(rates[0], rates[-1], round(span / gap * fine) + 1)
    outside = np.arange(1, round(span / gap * coarse) + 1) * gap / coarse
    return np.concatenate([rates[0] - outside[::-1], inside, rates[-1] + outside])


def _window(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> tuple[System, int, int, np.ndarray]:
    """The widest run of rates around the best one that the curve describes."""
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
        lo, hi = (lo - 1, hi) if lo > 0 and (hi == len(rates) - 1 or mean[lo - 1] <= mean[hi + 1]) else (lo, hi + 1)
    while True:
        keep = (x >= rates[lo]) & (x <= rates[hi])
        sys = system(x[keep], y[keep], seed[keep])
        lack = hi - lo - 3  # k - 1 rates' worth of freedom less a, m and r
        if hi - lo + 1 <= fewest or lack < 1 or sys.pure_dof < 1:
            return sys, lo, hi, rates
        least = profile(sys, places(sys.x, 12, 4), None, True)[0].min()
        if _lack(sys, least, lack) > LACK:
            return sys, lo, hi, rates
        if hi == best or (lo < best and mean[lo] >= mean[hi]):
            lo += 1
        else:
            hi -= 1


def _lack(sys: System, least: float, lack: int) -> float:
    """How likely the curve's misfit is, were it noise like that between seeds."""
    return 1.0 if sys.pure <= 0 else float(stats.f.sf((least - sys.pure) / lack / (sys.pure / sys.pure_dof), lack, sys.pure_dof))


def fit(x: np.ndarray, y: np.ndarray, seed: np.ndarray, *, wall: float = np.inf, level: float = 0.95) -> Fit:
    """The minimum of y over x with its interval; `wall`: the first rate that diverged, the optimum lies below it.

    >>> x = np.repeat(np.arange(-6, 1.0), 3)
    >>> noise = 0.01 * np.cos(37 * np.arange(21.0))
    >>> f = fit(x, 1 + 0.1 * (x + 2.3) ** 2 + noise, np.tile([0, 1, 2], 7))
    >>> f.status, f.shape, round(f.optimum, 1), f.low < -2.3 < f.high
    ('inside', 'quadratic', -2.3, True)
    """
    keep = x < wall
    x, y, seed = x[keep], y[keep], seed[keep]
    rates = np.unique(x)
    if not len(rates):
        return _none(wall)
    if len(rates) < 3:
        return _few(x, y, rates, wall)
    sys, lo, hi, rates = _window(x, y, seed)
    k = len(sys.x)
    skewed = k > 3 and sys.dof > 3
    m = places(sys.x)
    free = sys.dof - (3 if skewed else 2)
    rough = places(sys.x, 12, 4)
    least = float(profile(sys, rough, None, skewed)[0].min())
    dof = max(free, 1)
    s2 = max(least, 1e-12 * abs(sys.yy), 1e-300) / dof
    lack = k - 4
    if lack > 0 and sys.pure_dof > 0 and _lack(sys, least, lack) < LACK:  # what the narrowest window still cannot describe counts as noise
        s2 = max(s2, (least - sys.pure) / lack)
    objective, ratio, powers = profile(sys, m, s2, skewed)
    i = int(objective.argmin())
    statistic = objective - objective[i]
    deviance = stats.chi2.isf(np.maximum(stats.f.sf(statistic, 1, dof), 1e-290), 1) if free > 0 else np.zeros_like(m)
    # Outside the window: divergence rules it out, and so do rates that were tried and left out because they are clearly worse.
    below = float(rates[lo - 1]) if lo > 0 else -np.inf
    above = float(rates[hi + 1]) if hi < len(rates) - 1 else wall
    deviance = np.where((m >= above) | (m <= below), RULED_OUT, deviance)
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
    r, power = float(ratio[i]), float(powers[i])
    g = np.where(d < 0, np.exp(-r / 2), np.exp(r / 2)) * np.abs(d) ** power
    scale = max(float(g @ sys.b), 0.0) / max(float(g @ sys.a @ g), 1e-300)
    shape = "quadratic"
    if skewed and (abs(r) > 0.1 or power > 2) and _gain(sys, rough, least, s2) > 3.84:
        shape = "two-sided" if abs(r) > 0.1 else "flat-bottomed"
    return Fit(optimum, low, high, float(stderr), status, shape, sys.mean - scale * float(sys.weight @ g), len(y), k, dof, float(np.sqrt(s2)), power, m, deviance, sys)


def _gain(sys: System, m: np.ndarray, least: float, s2: float) -> float:
    """How much better than a quadratic the curve is, in deviance."""
    return float(profile(sys, m, None, False)[0].min() - least) / s2


def interval(m: np.ndarray, deviance: np.ndarray, first: float, last: float, below: float, above: float, level: float, walled: bool) -> tuple[float, float, bool]:
    """The ends of {deviance <= chi2(level)}; infinite where the set leaves the rates that were tried, `above` where a wall stands."""
    low, high = _ends(m, deviance, float(stats.chi2.isf(1 - level, 1)))
    left, right = low < first, high > last
    if right and walled:
        low = _ends(m, deviance, float(stats.chi2.isf(1.6 * (1 - level), 1)))[0]  # the wall is certain: most of the risk is on the left
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
        share = max((crit - deviance[a]) / (deviance[b] - deviance[a]), 0.5)  # no claim finer than half a step of the grid
        return float(m[a] + (m[b] - m[a]) * share)

    return (cross(i, i - 1) if i > 0 else -np.inf), (cross(j, j + 1) if j < len(m) - 1 else np.inf)


def _none(wall: float) -> Fit:
    m = wall + np.linspace(-8, 8, 321) if np.isfinite(wall) else np.linspace(-1, 1, 3)
    return Fit(np.nan, -np.inf, wall, np.nan, "none stable", "none", np.nan, 0, 0, 0, np.nan, 2.0, m, np.where(m >= wall, RULED_OUT, 0.0))


def _few(x: np.ndarray, y: np.ndarray, rates: np.ndarray, wall: float) -> Fit:
    means = [y[x == r].mean() for r in rates]
    best = int(np.argmin(means))
    status = "last stable" if best == len(rates) - 1 and np.isfinite(wall) else "too few rates"
    m = np.linspace(rates[0] - 8, (wall if np.isfinite(wall) else rates[-1]) + 8, 641)
    return Fit(float(rates[best]), -np.inf, wall, np.nan, status, "none", float(means[best]), len(y), len(rates), 0, np.nan, 2.0, m, np.where(m >= wall, RULED_OUT, 0.0))


def excess(f: Fit, at: float, x: np.ndarray, y: np.ndarray, *, level: float = 0.95) -> tuple[float, float, float]:
    """How much higher the curve is at `at` than at its minimum, with interval; from the curve inside its window, from the runs outside.

    The interval is the projection of { (m, r, a): RSS within F(95 %) of its least } on a |at - m|^p, the power that fits best.
    """
    sys = f.system
    if sys is None or not np.isfinite(at):
        return np.nan, np.nan, np.nan
    s2, crit = f.noise**2, stats.f.isf(1 - level, 1, f.dof)
    if not sys.x[0] <= at <= sys.x[-1]:
        rates = np.unique(x)
        if not rates[0] <= at <= rates[-1]:
            return np.nan, np.nan, np.nan
        means = np.array([y[x == r].mean() for r in rates])
        n = len(y) / len(rates)
        value, half = float(np.interp(at, rates, means)) - f.value, float(np.sqrt(crit * s2 * 2 / n))
        return max(value, 0.0), max(value - half, 0.0), value + half
    m = f.grid[(f.grid >= sys.x[0]) & (f.grid <= sys.x[-1])]
    r = np.linspace(-LARGEST, LARGEST, 97) if f.shape != "none" and sys.dof > 3 and len(sys.x) > 3 else np.zeros(1)
    bl, br, ll, lr, rr = (s[:, None] for s in _sides(sys, m, f.power))
    e = np.exp(r / 2)[None, :]
    gb, gg = bl / e + br * e, np.maximum(ll / e**2 + 2 * lr + rr * e**2, 1e-300)
    a = np.maximum(gb, 0.0) / gg
    objective = (sys.yy - np.where(gb > 0, gb * gb / gg, 0.0)) / s2 + (r / SKEW) ** 2
    room = crit - (objective - objective.min())
    spread = np.sqrt(np.maximum(room, 0.0) * s2 / gg)
    d = at - m[:, None]
    g = np.where(d < 0, 1 / e, e) * np.abs(d) ** f.power
    i = np.unravel_index(int(objective.argmin()), objective.shape)
    inside = room >= 0
    return float((a * g)[i]), float((np.maximum(a - spread, 0.0) * g)[inside].min()), float(((a + spread) * g)[inside].max())
