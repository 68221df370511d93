"""Do the optima scatter from seed to seed as much as their fits say? If more, the drift's interval is widened.

A fit's own error assumes even noise and a curve that was not chosen by the same noise; runs next to a cliff keep neither
promise. Leaving out one seed (or one of five groups of seeds) at a time and fitting everything anew gives a second opinion,
too noisy for one size but not for a whole line of sizes:

    phi = sum_i (g_i - 1) / g_i  sum_j (m_i(without j) - mean)^2  /  sum_i stderr_i^2,        every deviance is divided by max(1, phi).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.optima.fits import Fit, fit

GROUPS = 5


def inflation(
    sizes: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], fits: Sequence[Fit], walls: Sequence[float]
) -> float:
    """max(1, phi) over the sizes (x, y, seed) whose optimum lies inside the grid; 1 where seeds are not shared across rates."""
    seen = said = 0.0
    for (x, y, seed), f, wall in zip(sizes, fits, walls, strict=True):
        seeds, index = np.unique(seed, return_inverse=True)
        if f.status != "inside" or not np.isfinite(f.stderr) or len(seeds) < 2 or len(seeds) * 2 > len(x):
            continue
        groups = min(GROUPS, len(seeds))
        member = index % groups
        without = [
            fit(x[member != j], y[member != j], seed[member != j], wall=wall, log=f.log).optimum
            for j in range(groups)
        ]
        seen += (groups - 1) * float(np.var(without))
        said += f.stderr**2
    return max(1.0, seen / said) if said > 0 else 1.0
