r"""From finite depths to infinite depth by Richardson extrapolation, with its own error estimate.

Finite L is the Euler-Maruyama scheme of the infinitely deep network with step 1/L, so every field has an expansion
F(L) = F(inf) + c1/L + c2/L^2 + ... (THEORY 3.2). On depths L, 2L, 4L, ... Neville's table removes one power per column:

    F_{i,k} = F_{i,k-1} + (F_{i,k-1} - F_{i-1,k-1}) / (2^k - 1)

The order used is that of the table's last entry; what its last column changed is the error estimate. Kernels are compared at equal layer
time tau, on the layers of the shallowest depth.
"""

from __future__ import annotations

import numpy as np


def neville(levels: list[np.ndarray], order: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Limit of values at depths L, 2L, 4L, ..., and what the last step of the extrapolation changed.

    `order` is how many powers of 1/L to remove (default: all that the levels allow).

    >>> limit, left = neville([np.array(1 + 1 / L + 3 / L**2) for L in (8, 16, 32)])
    >>> round(float(limit), 12)
    1.0
    """
    order = len(levels) - 1 if order is None else order
    columns = [levels]
    for k in range(1, order + 1):
        last = columns[-1]
        columns.append([fine + (fine - coarse) / (2**k - 1) for coarse, fine in zip(last, last[1:], strict=False)])
    best = columns[-1][-1]
    before = columns[-1][-2] if len(columns[-1]) > 1 else columns[-2][-1]
    return best, np.abs(best - before)


def extrapolate(ladder: list[dict], depths: tuple[int, ...], order: int | None = None) -> tuple[dict, dict, int]:
    """Fields at infinite depth, their error estimates, and the number of layers they are reported at."""
    limit, left = {}, {}
    for name, value in ladder[0].items():
        if name == "diverged":
            ends = [level[name] for level in ladder if level[name] is not None]
            limit[name] = min(ends) if ends else None
        elif value is None:
            limit[name] = left[name] = None
        else:
            strides = [depth // depths[0] for depth in depths]
            aligned = [level[name][::stride] if name in ("phi", "g") else level[name] for level, stride in zip(ladder, strides, strict=True)]
            with np.errstate(invalid="ignore"):
                limit[name], left[name] = neville(aligned, order)
    if limit["diverged"] is not None:
        limit["loss"][limit["diverged"] :] = np.inf
    return limit, left, depths[0]
