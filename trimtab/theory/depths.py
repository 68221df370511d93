r"""From finite depths to infinite depth by Richardson extrapolation, with its own error estimate.

Finite L is the Euler-Maruyama scheme of the infinitely deep network with step 1/L, so every field has an
expansion F(L) = F(inf) + c1/L + c2/L^2 + ... (docs/theory.md, equation (37)). On depths L, 2L, 4L, ...
Neville's table removes one power per column:

    F_{i,0} = F(2^i L)        F_{i,k} = F_{i,k-1} + (F_{i,k-1} - F_{i-1,k-1}) / (2^k - 1)

An entry of column k is off by O(L^-(k+1)); with two of them the next step of the table is the error estimate,
with one it is the step that led to it. Kernels are compared at equal layer time tau, on the layers of the
shallowest depth; responses are A^l = L^-1/2 A(tau), so L^1/2 A^l is.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

_LAYERED = ("phi", "g", "a", "b")


def neville(levels: list[np.ndarray], order: int) -> tuple[np.ndarray, np.ndarray]:
    """Limit of values at depths L, 2L, 4L, ..., with `order` powers of 1/L removed, and its (signed) error
    estimate.

    >>> limit, left = neville([np.array(1 + 1 / L + 3 / L**2) for L in (8, 16, 32)], order=1)
    >>> float(limit), float(limit - 1 + left)
    (0.994140625, 0.0)
    """
    column, before = list(levels), None
    for k in range(1, order + 1):
        before = column[-1]
        column = [fine + (fine - coarse) / (2**k - 1) for coarse, fine in itertools.pairwise(column)]
    best = column[-1]
    return best, (best - column[-2]) / (2 ** (order + 1) - 1) if len(column) > 1 else best - before


def extrapolate(ladder: list[dict], order: int) -> tuple[dict, dict]:
    """Fields at infinite depth from those at depths L, 2L, 4L, ..., and their error estimates."""
    limit, left = {}, {}
    for name, value in ladder[0].items():
        if name == "diverged":
            limit[name] = min((level[name] for level in ladder if level[name] is not None), default=None)
        elif value is None:
            limit[name] = left[name] = None
        else:
            aligned = [
                level[name][:: 2**i] if name in _LAYERED else level[name] for i, level in enumerate(ladder)
            ]
            if name in ("a", "b"):
                aligned = [
                    math.sqrt(len(level[name])) * value for level, value in zip(ladder, aligned, strict=True)
                ]
            limit[name], left[name] = neville(aligned, order)
    return limit, left
