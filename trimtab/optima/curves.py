"""What a loss may look like about its minimum, up to a constant and a factor, d = x - m away from it and with skew r.

    two-sided      e^(-r/2) |d|^p  left,  e^(r/2) |d|^p  right of the minimum,        p = 2, 3 or 4
    soft           2 / (a b)  log[ (b e^(-a d) + a e^(b d)) / (a + b) ],             a = k e^(-r/2),  b = k e^(r/2)

The first jumps in curvature at its minimum by a factor e^r. The second is smooth: d^2 near its minimum, straight lines of
slopes in the ratio e^r far from it. That is how the logarithm of a loss looks that falls slowly with the rate and then
climbs a cliff; a jump in curvature, fitted to it, puts the minimum a quarter of an octave too far right. k is in units of
the grid's steps. Curves other than the plain quadratic cost a little deviance (`price`), so that noise does not choose them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab.optima.systems import System

LARGEST = np.log(32.0)  # curvature ratios beyond 32 are walls, not curves


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
            return (
                np.where(d < 0, np.exp(-np.asarray(r) / 2), np.exp(np.asarray(r) / 2))
                * np.abs(d) ** self.power
            )
        k = self.sharp / step
        a, b = k * np.exp(-np.asarray(r) / 2), k * np.exp(np.asarray(r) / 2)
        both = b * np.exp(np.minimum(-a * d, 600.0)) + a * np.exp(np.minimum(b * d, 600.0))
        return np.maximum(2 / k**2 * np.log(both / (a + b)), 0.0)

    def terms(self, sys: System, m: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(g b, g A g) of the least squares problem for each place m (rows) and each of its skews r[row] (columns)."""
        d = sys.x - m[:, None]
        if self.sharp:
            g = self.height(d[:, None, :], r[:, :, None], sys.step)
            return g @ sys.b, ((g @ sys.a) * g).sum(-1)
        whole = np.abs(d) ** self.power
        left = np.where(d < 0, whole, 0.0)
        right, e = whole - left, np.exp(r / 2)
        ll, lr, rr = (
            (p @ sys.a * q).sum(1)[:, None] for p, q in ((left, left), (left, right), (right, right))
        )
        return (left @ sys.b)[:, None] / e + (right @ sys.b)[:, None] * e, ll / e**2 + 2 * lr + rr * e**2

    def rss(self, sys: System, m: np.ndarray, r: np.ndarray) -> np.ndarray:
        """What the best multiple of each curve leaves over; a minimum, not a maximum, so the multiple is positive."""
        gb, gg = self.terms(sys, m, r)
        return sys.yy - np.where(gb > 0, gb * gb / np.maximum(gg, 1e-300), 0.0)


QUADRATIC = Curve("quadratic", 0.0)
CURVES = (
    QUADRATIC,
    Curve("flat-bottomed", 0.25, 3.0),
    Curve("flat-bottomed", 1.0, 4.0),
    *(Curve("soft", 0.05, sharp=k) for k in (0.4, 0.8, 1.6)),
)
