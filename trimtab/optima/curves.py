"""What a loss may look like about its minimum, and how far from it a sweep's runs are.

**Runs, reduced.** With y = c_seed + a g(x) + noise, the best a for a curve g over the rates is g b / g A g,
and leaves

    RSS = yy - (g b)^2 / (g A g),      pure = yy - b A^+ b   (any curve at all: what the seeds alone explain).

**Curves**, up to a constant and a factor, d = x - m away from the minimum and with skew r:

    two-sided      e^(-r/2) |d|^p  left,  e^(r/2) |d|^p  right of the minimum,        p = 2, 3 or 4
    soft           2 / (a b)  log[ (b e^(-a d) + a e^(b d)) / (a + b) ],        a = k e^(-r/2),  b = k e^(r/2)

The first jumps in curvature at its minimum by a factor e^r. The second is smooth: d^2 near its minimum,
straight lines of slopes in the ratio e^r far from it. That is how the logarithm of a loss looks that falls
slowly with the rate and then climbs a cliff; a jump in curvature, fitted to it, puts the minimum a quarter of
an octave too far right. k is in units of the grid's steps. Curves other than the plain quadratic cost a
little deviance (`price`), so that noise does not choose them.

**Scale.** Losses of small networks fall by orders of magnitude over a sweep, and their scatter between seeds
falls with them; next to a cliff it is as large as the loss itself. A curve fitted to such losses listens only
to the worst of them. Box and Cox compare the loss with its logarithm by likelihood: with the geometric mean
G, the residuals of y and of G log y are in the same units, and

    gain = nu / 2  log( RSS(y) / RSS(G log y) ),

RSS being what is left when every rate and every seed has a mean of its own, nu its degrees of freedom. Where
no rate was run twice the second differences of neighbouring rates take the place of the residuals. The
logarithm must win by 4 (odds of 55).

**Edge of stability.** Rates at which some seeds diverge and some do not have no sharp edge, and three seeds
may all be lucky. A seed is taken to diverge at x with probability

    q(x) = 1 / (1 + exp(-(x - tau) / s)),        s a tenth to four fifths of the grid's step,

so that u of n seeds unstable at each rate are a binomial likelihood of the edge tau, the rate above which a
seed diverges more often than not; its deviance is the least over s. The optimum is the minimum of the loss's
curve or the edge, whichever comes first, so its deviance is

    min [ D_curve(m) + min_{tau >= m} D_edge(tau),    D_edge(m) + min_{m' >= m} D_curve(m') ].

A loss that falls until it diverges thus has its optimum at the edge, known to about half a step of the grid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

LARGEST = np.log(32.0)  # curvature ratios beyond 32 are walls, not curves
GAIN = 4.0
RULED_OUT = 60.0  # deviance of what divergence rules out
SURE = 4  # degrees of freedom from which the scatter of a few seeds is believed
SOFTNESS = (0.1, 0.2, 0.4, 0.8)


@dataclasses.dataclass(frozen=True)
class System:
    """Runs as a least squares problem, one number per rate, with the seeds projected out.

    Attributes:
        a, b, yy: the curve g is tried with RSS = yy - (g b)^2 / g a g.
        pure, pure_dof: what is left when every rate has a level of its own.
        mean: of all runs; weight: the share of each rate in it.
        level: the mean loss of each rate, were every seed run at all of them.
    """

    x: np.ndarray
    a: np.ndarray
    b: np.ndarray
    yy: float
    dof: int
    pure: float
    pure_dof: int
    mean: float
    weight: np.ndarray
    level: np.ndarray

    @property
    def precision(self) -> float:
        """How well differences between rates are known, up to a factor."""
        return float(np.trace(self.a)) * self.pure_dof / max(self.pure, 1e-300) if self.pure_dof > 0 else 0.0

    @property
    def step(self) -> float:
        """The usual distance of neighbouring rates."""
        return float(np.median(np.diff(self.x))) if len(self.x) > 1 else 1.0


def reduce_runs(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> System:
    """Reduce runs (x, y, seed) to one number per rate.

    Each seed has a constant of its own, so one that was run at a single rate says nothing about the curve.
    Where most are such, those that were run at several rates are taken alone, or all share one constant:
    whichever tells the differences between rates better.
    """
    seeds, block = np.unique(seed, return_inverse=True)
    if len(seeds) * 2 <= len(x):
        return _reduce(x, y, block)
    whole = _reduce(x, y, np.zeros_like(block))
    rates = np.unique(np.stack([block, np.unique(x, return_inverse=True)[1]]), axis=1)[0]
    shared = np.bincount(rates, minlength=len(seeds))[block] > 1
    if len(np.unique(x[shared])) < len(whole.x):
        return whole
    part = _reduce(x[shared], y[shared], np.unique(block[shared], return_inverse=True)[1])
    return part if part.pure_dof >= SURE and part.precision > whole.precision else whole


def _reduce(x: np.ndarray, y: np.ndarray, block: np.ndarray) -> System:
    """The same with a constant for each block of runs."""
    rates, at = np.unique(x, return_inverse=True)
    n, k, s = len(x), len(rates), int(block.max()) + 1
    counts = np.zeros((k, s))
    np.add.at(counts, (at, block), 1.0)
    size = counts.sum(0)
    centred = y - (np.bincount(block, y) / size)[block]
    a, b = np.diag(counts.sum(1)) - (counts / size) @ counts.T, np.bincount(at, centred, minlength=k)
    free = np.linalg.pinv(a, rcond=1e-10, hermitian=True) @ b  # any curve: one number per rate
    left = centred - free[at] + ((free @ counts) / size)[block]
    weight = counts.sum(1) / n
    return System(
        x=rates,
        a=a,
        b=b,
        yy=float(centred @ centred),
        dof=n - s,
        pure=float(left @ left),
        pure_dof=n - s - (k - 1),
        mean=float(y.mean()),
        weight=weight,
        level=float(y.mean()) + free - float(weight @ free),
    )


class Curve(NamedTuple):
    """One family of curves; `sharp` is k times the step of the grid, 0 for the two-sided ones."""

    name: str
    price: float
    power: float = 2.0
    sharp: float = 0.0

    def height(self, d: np.ndarray, r: np.ndarray | float, step: float) -> np.ndarray:
        """The curve at distance d, d^2 or |d|^p for small d when r = 0.

        >>> d = np.array([-0.01, 0.0, 0.01])
        >>> [(1e4 * c.height(d, 0.0, 0.5)).round(2).tolist() for c in CURVES[:1] + CURVES[-1:]]
        [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]
        """
        if not self.sharp:
            side = np.where(d < 0, np.exp(-np.asarray(r) / 2), np.exp(np.asarray(r) / 2))
            return side * np.abs(d) ** self.power
        k = self.sharp / step
        a, b = k * np.exp(-np.asarray(r) / 2), k * np.exp(np.asarray(r) / 2)
        both = b * np.exp(np.minimum(-a * d, 600.0)) + a * np.exp(np.minimum(b * d, 600.0))
        return np.maximum(2 / k**2 * np.log(both / (a + b)), 0.0)

    def terms(self, sys: System, m: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(g b, g A g) for each place m (rows) and each of its skews r[row] (columns)."""
        d = sys.x - m[:, None]
        if self.sharp:
            g = self.height(d[:, None, :], r[:, :, None], sys.step)
            return g @ sys.b, ((g @ sys.a) * g).sum(-1)
        whole = np.abs(d) ** self.power
        left = np.where(d < 0, whole, 0.0)
        right, e = whole - left, np.exp(r / 2)
        pairs = ((left, left), (left, right), (right, right))
        ll, lr, rr = ((p @ sys.a * q).sum(1)[:, None] for p, q in pairs)
        return (left @ sys.b)[:, None] / e + (right @ sys.b)[:, None] * e, ll / e**2 + 2 * lr + rr * e**2

    def rss(self, sys: System, m: np.ndarray, r: np.ndarray) -> np.ndarray:
        """What the best multiple of each curve leaves over; a minimum, not a maximum, so the multiple is
        positive."""
        gb, gg = self.terms(sys, m, r)
        return sys.yy - np.where(gb > 0, gb * gb / np.maximum(gg, 1e-300), 0.0)


QUADRATIC = Curve("quadratic", 0.0)
CURVES = (
    QUADRATIC,
    Curve("flat-bottomed", 0.25, 3.0),
    Curve("flat-bottomed", 1.0, 4.0),
    *(Curve("soft", 0.05, sharp=k) for k in (0.4, 0.8, 1.6)),
)


def logarithmic(sizes: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> bool:
    """Whether runs (x, y, seed) of one or more sizes ask for log y; never where a y is not positive.

    >>> x, seed, noise = np.repeat(np.arange(8.0), 3), np.tile([0, 1, 2], 8), np.cos(37 * np.arange(24.0))
    >>> in_log, in_loss = np.exp(x - 5 + 0.3 * noise), np.exp(x - 5) + 0.3 * noise + 1
    >>> logarithmic([(x, in_log, seed)]), logarithmic([(x, in_loss, seed)])
    (True, False)
    """
    gain = 0.0
    for x, y, seed in sizes:
        if not (y > 0).all():
            return False
        if len(y) < 3:
            continue
        logs = np.log(y) - np.log(y).mean()  # in units of G
        (plain, nu), (log, _) = _residual(x, np.exp(logs), seed), _residual(x, logs, seed)
        if nu > 0 and min(plain, log) > 1e-24 * len(y):
            gain += nu / 2 * float(np.log(plain / log))
    return gain > GAIN


def _residual(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> tuple[float, int]:
    """What no curve explains, as a sum of squares, and its degrees of freedom."""
    sys = reduce_runs(x, y, seed)
    if sys.pure_dof > 0:
        return sys.pure, sys.pure_dof
    order = np.argsort(x)
    second = np.diff(y[order], 2)
    return float(second @ second), len(second)


class Edge(NamedTuple):
    """How many of the runs at each rate (ascending) were unstable."""

    rates: np.ndarray
    unstable: np.ndarray
    runs: np.ndarray

    def deviance(self, tau: np.ndarray) -> tuple[np.ndarray, float]:
        """The deviance of an edge at each tau, and of none at all.

        >>> edge = Edge(np.array([-2.0, -1.5, -1.0]), np.array([0, 1, 3]), np.array([3, 3, 3]))
        >>> d, none = edge.deviance(np.array([-2.5, -1.4, -0.5]))
        >>> d.round(1).tolist(), round(none, 1)
        ([15.6, 0.0, 10.6], 56.0)
        """
        step = float(np.median(np.diff(self.rates))) if len(self.rates) > 1 else 1.0
        many = []
        for s in SOFTNESS:
            z = (self.rates - tau[:, None]) / (s * step)
            failed = self.unstable * np.logaddexp(0.0, -z)
            many.append(2 * (failed + (self.runs - self.unstable) * np.logaddexp(0.0, z)).sum(1))
        d, none = np.min(many, 0), RULED_OUT if self.unstable.any() else 0.0
        least = min(float(d.min()), none)
        return np.minimum(d - least, RULED_OUT), min(none - least, RULED_OUT)

    def over(self, m: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Deviances d of the curve's minimum at m (last axis, ascending), with the edge."""
        edge, none = self.deviance(m)
        later_edge = np.minimum(np.minimum.accumulate(edge[::-1])[::-1], none)
        later = np.minimum.accumulate(d[..., ::-1], -1)[..., ::-1]
        return np.minimum(d + later_edge, edge + later)
