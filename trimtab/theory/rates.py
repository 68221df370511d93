r"""The optimum in the limit: loss after T steps against the rate eta_0, its stable edge and its minimum.

All rates are solved side by side with the same noise, so the curve is as smooth as the network's own and
differences between rates are better known than the losses. Between the last stable rate and the first
unstable one the edge is bisected in log2; the minimum is that of the parabola through the lowest point and
its neighbours, in log2(lr) and log(loss). A rate is stable if its loss stays finite and ends below where it
started. Give `solver=functools.partial(simulate, width=..., seeds=...)` to see how fast finite networks'
optima approach the limit's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trimtab.errors import InputError
from trimtab.theory.dmft import solve, solve_rates
from trimtab.theory.results import Trajectory


@dataclass(frozen=True)
class Rates:
    """Loss curves over rates, ascending: `lr` (R,), `loss` and `stderr` (R, T+1), `stable` (R,).

    `edge` = (largest rate seen stable, smallest seen unstable); the second is inf if none was. `best` is the
    rate of least final loss, `best_stderr` its standard error in log2 (nan where the minimum is at an end of
    the grid, or beside the edge: it is then the best rate tried).
    """

    lr: np.ndarray
    loss: np.ndarray
    stderr: np.ndarray
    stable: np.ndarray
    edge: tuple[float, float]
    best: float
    best_stderr: float

    @property
    def final(self) -> np.ndarray:
        """Loss after the last step, (R,)."""
        return self.loss[:, -1]


def _stable(run: Trajectory) -> bool:
    return run.diverged is None and bool(run.loss[-1] < run.loss[0])


def parabola(at: np.ndarray, value: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """Vertex of the parabola through three points, and its standard error if their errors are independent.

    >>> parabola(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0, 1.0]), np.zeros(3))
    (1.0, 0.0)
    """

    def vertex(values):
        curve, slope, _ = np.polyfit(at - at[1], values, 2)
        return at[1] - slope / (2 * curve)

    centre = vertex(value)
    moved = [vertex(value + error * unit) - centre for unit in np.eye(3)]
    return float(centre), float(np.linalg.norm(moved))


def sweep_rates(
    x: ArrayLike,
    y: ArrayLike,
    *,
    rates: ArrayLike,
    refine: int = 4,
    solver: Callable[..., Trajectory] | None = None,
    **arguments: Any,
) -> Rates:
    r"""Solve training at each of `rates` (eta_0, at least three) and find the best rate and the edge of
    stability in the limit.

    `refine`: how many times the interval of the edge is halved in log2. `arguments`: those of `solve` except
    `lr`, one seed for all rates. `solver`: `linear`, `simulate` or the like, called for one rate after the
    other; None solves all rates together (with `rtol`, which chooses samples for each, one after the other).

    >>> case = dict(depth=1, activation="linear", steps=3, samples=100)
    >>> curve = sweep_rates([[1.0]], [1.0], rates=[0.02, 0.1, 0.4, 2.0], **case)
    >>> curve.stable.tolist(), bool(0.02 < curve.best < 0.4 < curve.edge[0] < curve.edge[1] <= 2.0)
    ([True, True, True, False], True)
    """
    lr = np.unique(np.asarray(rates, dtype=float))
    if len(lr) < 3 or not (lr > 0).all() or not np.isfinite(lr).all():
        raise InputError(
            f"rates: needs at least three different positive rates, got {np.asarray(rates).tolist()}. "
            "Try 2.0 ** np.arange(-6, 3)."
        )
    if "lr" in arguments:
        raise InputError(f"lr: is what is swept, pass rates={arguments['lr']!r} instead.")
    if solver is None and arguments.get("rtol") is not None:
        solver = solve

    def solutions(several: list[float]) -> list[Trajectory]:
        if solver is not None:
            return [solver(x, y, lr=rate, **arguments) for rate in several]
        others = {name: value for name, value in arguments.items() if name != "rtol"}
        return solve_rates(x, y, rates=several, **others)

    runs = dict(zip(lr.tolist(), solutions(lr.tolist()), strict=True))
    stable = np.array([_stable(runs[rate]) for rate in lr.tolist()])
    loss, stderr = (
        np.stack([pick(runs[rate]) for rate in lr.tolist()])
        for pick in (lambda r: r.loss, lambda r: r.stderr.loss)
    )

    first_bad = int(np.argmin(stable)) if not stable.all() else len(lr)
    low = lr[first_bad - 1] if first_bad else 0.0
    high = lr[first_bad] if first_bad < len(lr) else np.inf
    # not scipy's bisect: stable or not is a yes or no, and the bracket it ends with is the result
    for _ in range(refine if low > 0 and high < np.inf else 0):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if _stable(solutions([middle])[0]) else (low, middle)

    final = np.where(stable, loss[:, -1], np.inf)
    best = int(np.argmin(final))
    centre, error = np.log2(lr[best]), np.nan
    near = slice(best - 1, best + 2)
    if 0 < best < len(lr) - 1 and np.isfinite(final[near]).all():
        floor = np.maximum(final[near], 1e-12 * loss[0, 0])
        centre, error = parabola(np.log2(lr[near]), np.log(floor), stderr[near, -1] / floor)
    return Rates(lr, loss, stderr, stable, (float(low), float(high)), float(2.0**centre), float(error))
