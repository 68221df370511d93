"""Is the noise of a sweep that of its losses, or of their logarithms?

Losses of small networks fall by orders of magnitude over a sweep, and their scatter between seeds falls with them; next to a
cliff it is as large as the loss itself. A curve fitted to such losses listens only to the worst of them. Box and Cox compare
the two scales by likelihood: with the geometric mean G, the residuals of y and of G log y are in the same units, and

    gain = nu / 2  log( RSS(y) / RSS(G log y) ),

RSS being what is left when every rate and every seed has a mean of its own, nu its degrees of freedom. Where no rate was run
twice the second differences of neighbouring rates take the place of the residuals. The logarithm must win by 4 (odds of 55).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trimtab.optima.systems import system

GAIN = 4.0


def logarithmic(sizes: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> bool:
    """Whether runs (x, y, seed) of one or more sizes ask for log y; never where a y is not positive.

    >>> x, seed, noise = np.repeat(np.arange(8.0), 3), np.tile([0, 1, 2], 8), np.cos(37 * np.arange(24.0))
    >>> logarithmic([(x, np.exp(x - 5 + 0.3 * noise), seed)]), logarithmic([(x, np.exp(x - 5) + 0.3 * noise + 1, seed)])
    (True, False)
    """
    gain = 0.0
    for x, y, seed in sizes:
        if not (y > 0).all():
            return False
        if len(y) < 3:
            continue
        logs = np.log(y) - np.log(y).mean()  # in units of G
        (plain, nu), (log, _) = _left(x, np.exp(logs), seed), _left(x, logs, seed)
        if nu > 0 and min(plain, log) > 1e-24 * len(y):
            gain += nu / 2 * float(np.log(plain / log))
    return gain > GAIN


def _left(x: np.ndarray, y: np.ndarray, seed: np.ndarray) -> tuple[float, int]:
    sys = system(x, y, seed)
    if sys.pure_dof > 0:
        return sys.pure, sys.pure_dof
    order = np.argsort(x)
    second = np.diff(y[order], 2)
    return float(second @ second), len(second)
