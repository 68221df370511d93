"""Where training stops being stable, and how sure that is.

Rates at which some seeds diverge and some do not have no sharp edge, and three seeds may all be lucky. A seed is taken to
diverge at x with probability

    q(x) = 1 / (1 + exp(-(x - tau) / s)),        s a tenth to four fifths of the grid's step,

so that u of n seeds unstable at each rate are a binomial likelihood of the edge tau, the rate above which a seed diverges more
often than not; its deviance is the least over s. The optimum is the minimum of the loss's curve or the edge, whichever
comes first, so its deviance is

    min [ D_curve(m) + min_{tau >= m} D_edge(tau),    D_edge(m) + min_{m' >= m} D_curve(m') ].

A loss that falls until it diverges thus has its optimum at the edge, known to about half a step of the grid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RULED_OUT = 60.0  # deviance of what divergence rules out
SOFTNESS = (0.1, 0.2, 0.4, 0.8)


class Edge(NamedTuple):
    """How many of the runs at each rate (ascending) were unstable."""

    rates: np.ndarray
    unstable: np.ndarray
    runs: np.ndarray

    def deviance(self, tau: np.ndarray) -> tuple[np.ndarray, float]:
        """The deviance of an edge at each tau, and of none at all.

        >>> d, none = Edge(np.array([-2.0, -1.5, -1.0]), np.array([0, 1, 3]), np.array([3, 3, 3])).deviance(np.array([-2.5, -1.4, -0.5]))
        >>> d.round(1).tolist(), round(none, 1)
        ([15.6, 0.0, 10.6], 56.0)
        """
        step = float(np.median(np.diff(self.rates))) if len(self.rates) > 1 else 1.0
        many = []
        for s in SOFTNESS:
            z = (self.rates - tau[:, None]) / (s * step)
            many.append(
                2
                * (
                    self.unstable * np.logaddexp(0.0, -z) + (self.runs - self.unstable) * np.logaddexp(0.0, z)
                ).sum(1)
            )
        d, none = np.min(many, 0), RULED_OUT if self.unstable.any() else 0.0
        least = min(float(d.min()), none)
        return np.minimum(d - least, RULED_OUT), min(none - least, RULED_OUT)

    def over(self, m: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Deviances d of the curve's minimum at m (last axis, ascending), with the edge."""
        edge, none = self.deviance(m)
        later_edge = np.minimum(np.minimum.accumulate(edge[::-1])[::-1], none)
        later = np.minimum.accumulate(d[..., ::-1], -1)[..., ::-1]
        return np.minimum(d + later_edge, edge + later)
