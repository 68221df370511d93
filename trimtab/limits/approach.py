r"""Finite networks against the infinite one: how far off, how fast that falls, how large is large enough.

docs/theory.md, equation (44):

    E f_{N,L} = f_{inf,L} + a/N + ...        sd f_{N,L} = s N^-1/2        f_{inf,L} = f_{inf,inf} + b/L + ...

`approach` runs ensembles (`theory.simulate`) and the limit (`theory.solve`) at every width and depth;
`comparison` fits the three rates (`powerlaws`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trimtab.errors import InputError, faults
from trimtab.limits.comparison import BLOCKS, Ensemble, compare
from trimtab.limits.results import Limit
from trimtab.theory import linear, simulate, solve
from trimtab.theory.problem import problem
from trimtab.theory.results import Trajectory

FAR = (4, 8)  # finite depths that stand in where only infinity is asked for


def _ensemble(
    x: ArrayLike, y: ArrayLike, width: int, depth: int, networks: int, seed: int, case: dict[str, Any]
) -> Ensemble:
    each = networks // BLOCKS
    runs = [
        simulate(
            x, y, width=width, depth=depth, seeds=list(range(seed + b * each, seed + (b + 1) * each)), **case
        )
        for b in range(BLOCKS)
    ]
    f, loss = np.stack([r.f for r in runs]), np.stack([r.loss for r in runs])
    within = np.array([0.0 if r.variance is None or each == 1 else r.variance.f.sum() / width for r in runs])
    between = np.square(f - f.mean(0)).reshape(BLOCKS, -1).sum(1)
    return Ensemble(f, loss, BLOCKS * ((each - 1) * within + each * between) / (networks - 1), networks)


def _limit_of(
    x: ArrayLike, y: ArrayLike, depth: float, samples: int, seed: int, case: dict[str, Any]
) -> tuple[Trajectory, Trajectory]:
    """Two independent solutions."""
    if case["activation"] == "linear":
        exact = linear(x, y, depth=depth, **case)
        return exact, exact
    one, two = (solve(x, y, depth=depth, samples=samples, seed=2 * seed + i, **case) for i in range(2))
    return one, two


def approach(
    x: ArrayLike,
    y: ArrayLike,
    *,
    widths: Sequence[int],
    depths: Sequence[float],
    networks: int = 256,
    samples: int = 8000,
    seed: int = 0,
    tolerance: float = 0.05,
    progress: Callable[[int, int], None] | None = None,
    **case: Any,
) -> Limit:
    """Train networks of every width and depth beside the limit, fit the rates at which they approach it.

    widths: N, integers. depths: L, integers and `math.inf`; infinity alone stands for 4, 8 and infinity.
    networks: how many of the smallest width and depth; wider ones in proportion 1/N, at least 16. samples: of
    each of two solutions. tolerance: relative error of the practical bound.
    `case`: the arguments of `theory.solve` (activation, lr, steps, gamma0, ...). A limit that diverges is a
    result: nothing can be told.

    >>> case = dict(activation="tanh", lr=0.2, steps=3, samples=400)
    >>> found = approach([[1.0, 1.0]], [1.0], widths=[16, 32], depths=[2], networks=64, **case)
    >>> found.table.shape, [r.quantity for r in found.rates]
    ((2, 10), ['mean output', 'mean loss', 'one network'])
    """
    problems = argument_faults(x, y, widths, depths, networks, samples, tolerance, case)
    if problems:
        raise faults(f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments", problems)
    widths, depths = (
        sorted({int(w) for w in widths}),
        sorted({d if d == math.inf else int(d) for d in depths}),
    )
    depths = [*FAR, math.inf] if depths == [math.inf] else depths
    finite = [int(d) for d in depths if math.isfinite(d)]
    total, done = len(depths) + len(widths) * len(finite), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    limits = {}
    for i, depth in enumerate(depths):
        limits[depth] = _limit_of(x, y, depth, samples, seed * 1000 + i, case)
        tick()
    nets: dict[tuple[int, int], Ensemble] = {}
    for i, (depth, width) in enumerate((d, w) for d in finite for w in widths):
        count = BLOCKS * max(1, round(networks * widths[0] / width / BLOCKS))
        nets[width, depth] = _ensemble(x, y, width, depth, count, (seed * 1000 + i + 1) * 10**6, case)
        tick()
    about = {
        "widths": widths,
        "depths": depths,
        "networks": networks,
        "samples": samples,
        "seed": seed,
        "points": len(np.asarray(y)),
    }
    return compare(
        limits,
        nets,
        tolerance=tolerance,
        alpha=float(case.get("alpha", 0.5)),
        about=about | {k: v for k, v in case.items() if isinstance(v, (int, float, str))},
    )


def argument_faults(x, y, widths, depths, networks, samples, tolerance, case) -> list[str]:
    """All faults of the arguments of `approach`, in words.

    >>> case = {"activation": "tanh", "lr": 0.1, "steps": 0}
    >>> for fault in argument_faults([[1.0]], [1.0], [8.5], [1], 16, 400, 0.05, case):
    ...     print(fault)
    width: must be integers >= 2, got [8.5].
    steps: the number of gradient steps T must be an integer >= 1, got 0.
    """
    problems: list[str] = []
    if not len(widths) or any(isinstance(w, bool) or not 2 <= w < math.inf or int(w) != w for w in widths):
        problems.append(f"width: must be integers >= 2, got {list(widths)}.")
    good = len(depths) and all(
        not isinstance(d, bool) and (d == math.inf or (d >= 1 and int(d) == d)) for d in depths
    )
    if not good:
        problems.append(f"depth: must be integers >= 1 or inf, got {list(depths)}.")
    if isinstance(networks, bool) or int(networks) != networks or networks < BLOCKS:
        problems.append(f"networks: must be an integer >= {BLOCKS}, got {networks!r}.")
    if not 0 < tolerance < 1:
        problems.append(f"tolerance: must be between 0 and 1, got {tolerance!r}. 0.05 is 5 %.")
    try:
        task = problem(x, y, depth=math.inf if good and math.inf in depths else 1, **case)
        least = 8 * (2 + 2 * task.points * task.outputs + task.outputs)
        if samples < least:
            problems.append(
                f"samples: {task.points} points and {task.outputs} outputs need at least {least}, "
                f"got {samples}."
            )
    except InputError as error:
        problems += [line.removeprefix("  - ") for line in str(error).splitlines()[1:]]
    except TypeError as error:
        problems.append(f"arguments: {error}.")
    return problems
