"""The best learning rate of finite networks against the limit's: how fast the one approaches the other."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trimtab.limits.comparison import BLOCKS
from trimtab.limits.powerlaws import fit_power
from trimtab.limits.results import Optimum
from trimtab.theory import linear, simulate, sweep_rates


def optimum(
    x: ArrayLike,
    y: ArrayLike,
    *,
    rates: ArrayLike,
    depth: float,
    widths: Sequence[int],
    networks: int = 64,
    samples: int = 8000,
    refine: int = 3,
    seed: int = 0,
    **case: Any,
) -> Optimum:
    """Loss after the last step against the rate eta_0 in the limit and in finite networks; how fast their
    best rates approach the limit's.

    depth: of limit and networks; networks of an infinitely deep limit have 16 branches. networks: of the
    smallest width, wider ones in proportion.

    >>> case = dict(depth=1, activation="linear", steps=3)
    >>> rates = [0.05, 0.1, 0.2, 0.4]
    >>> found = optimum([[1.0]], [1.0], rates=rates, widths=[16, 32], networks=16, refine=0, **case)
    >>> [row["width"] for row in found.rows]
    [inf, 16, 32]
    """
    own: dict[str, Any] = (
        {"solver": linear} if case["activation"] == "linear" else {"samples": samples, "seed": seed}
    )
    widths = sorted(widths)
    deep = 16 if math.isinf(depth) else int(depth)
    runs = {math.inf: sweep_rates(x, y, rates=rates, depth=depth, refine=refine, **own, **case)}
    for i, w in enumerate(widths):
        nets = functools.partial(
            simulate, width=w, seeds=max(BLOCKS, round(networks * widths[0] / w)), seed=(seed + i + 1) * 10**6
        )
        runs[w] = sweep_rates(x, y, rates=rates, depth=deep, refine=refine, solver=nets, **case)
    limit = runs[math.inf]
    rows = []
    for w, found in runs.items():
        half = 1.96 * found.best_stderr
        rows.append(
            {
                "width": w,
                "lr": found.best,
                "low": found.best * 2**-half,
                "high": found.best * 2**half,
                "edge": found.edge[0],
                "shift": math.log2(found.best / limit.best),
                "shift_stderr": found.best_stderr,
            }
        )
    curves = [
        {
            "width": w,
            "lr": found.lr,
            "loss": np.where(found.stable, found.final, math.inf),
            "edge": found.edge,
        }
        for w, found in runs.items()
    ]
    shifts = [r["shift"] for r in rows[1:]], [r["shift_stderr"] for r in rows[1:]]
    offset = 0.0 if math.isnan(limit.best_stderr) else limit.best_stderr
    fit = fit_power(widths, *shifts, expected=-1.0, offset=offset, quantity="best rate", at=depth)
    return Optimum(rows, curves, fit)
