"""What would decide a verdict that cannot be told: which values to add and at which sizes, more seeds, more sizes.

The interval of a drift narrows like one over the square root of the runs, but only where every size has its optimum
inside its grid. Where an optimum lies at the edge, further seeds at the same values say nothing: the values beyond the
edge come first. Where seeds alone would take more than `AFFORDABLE` times the runs there are, a larger size is the
cheaper way: the slope's error falls with the range of sizes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.optima.drift import Drift
from trimtab.optima.lines import Line
from trimtab.optima.sources import Table, numbers

BEYOND = 3  # values to add past an edge, one step of the grid apart
AFFORDABLE = 4.0  # times the runs there are


@dataclass(frozen=True)
class Remedy:
    """What to add to a sweep.

    values: {size: values of the hyperparameter to try there}. seeds: how many further ones. sizes: further sizes.
    words: the same for a reader, one entry per thing to do. runs: further runs of the same kind that would tell.
    """

    values: dict[float, list[float]]
    seeds: int = 0
    sizes: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    runs: int | None = None

    def __bool__(self) -> bool:
        return bool(self.values or self.seeds or self.sizes)


NOTHING = Remedy({})


def remedy(chosen: Line, slope: Drift, needed: int | None, optima: Table) -> Remedy:
    """What would tell, for a line whose verdict is "cannot tell"; `needed` is drift.more's number of runs."""
    words, values = _edges(chosen, optima)
    if len(optima) < 2:
        sizes = (2 * int(chosen.base), 4 * int(chosen.base))
        words = [
            f"a drift needs two sizes: there is one {chosen.over}. Add {chosen.over} {_listed(sizes)}",
            *words,
        ]
        return Remedy(values, 0, sizes, tuple(words))
    unfinished = optima["status"] == "not finished"
    if values or unfinished.all():  # nothing more is known until the edges are
        return Remedy(values, words=tuple(words))
    if slope.scatter > 0:
        sizes = _between(chosen.sizes)
        scatter = (
            f"the optima scatter about a line by {slope.scatter:.2f} log2, more than their seeds explain"
        )
        words.append(
            f"{scatter}: more sizes would tell, more seeds would not. Add {chosen.over} {_listed(sizes)}"
        )
        return Remedy(values, 0, sizes, tuple(words))
    runs = int(optima["n"].sum())
    seeds = max(int(chosen.cells["seed"].nunique()), 1)
    if needed is not None and needed <= AFFORDABLE * runs:
        extra = max(math.ceil(needed * seeds / max(runs, 1)), 1)
        words.append(f"{extra} more seeds (about {needed} runs) would tell, if the slope stays where it is")
        return Remedy(values, extra, (), tuple(words), needed)
    sizes = (2 * int(max(chosen.sizes)),)
    many = (
        ""
        if needed is None
        else f" (seeds alone: about {math.ceil(needed / max(runs, 1)) + 1} times the runs there are)"
    )
    words.append(
        f"the interval is too wide for a few more seeds{many}. Add {chosen.over} {_listed(sizes)} and {seeds} more seeds"
    )
    return Remedy(values, seeds, sizes, tuple(words))


def _edges(chosen: Line, optima: Table) -> tuple[list[str], dict[float, list[float]]]:
    """Values to add where the grid ends too soon, and why, sizes with the same answer together."""
    every = np.unique(numbers(chosen.cells["x"]))
    step = float(np.median(np.diff(every))) if len(every) > 1 else 1.0
    values: dict[float, list[float]] = {}
    reasons: dict[tuple[str, tuple[float, ...]], list[float]] = {}
    for row in optima.to_dict("records"):
        tried = np.unique(numbers(chosen.cells.loc[chosen.cells[chosen.over] == row[chosen.over], "x"]))
        sides, why = _sides(row, tried, chosen)
        places = [tried[0] - step * k for k in range(BEYOND, 0, -1)] * ("below" in sides)
        places += [tried[-1] + step * k for k in range(1, BEYOND + 1)] * ("above" in sides)
        add = _values(chosen, places)
        if why:
            reasons.setdefault((why, tuple(add)), []).append(row[chosen.over])
        if add:
            values[row[chosen.over]] = add
    words = []
    for (why, add), sizes in reasons.items():
        where = f"at {chosen.over} {_listed(sizes)}"
        words.append(why.format(where=where) + (f": add {chosen.hp} {_listed(add)} there" if add else ""))
    return words, values


def _sides(row: dict[str, Any], tried: np.ndarray, chosen: Line) -> tuple[tuple[str, ...], str]:
    """Past which ends of what was tried at a size the optimum may lie, and why it is not known."""
    hp, status = chosen.hp, row["status"]
    if status == "none stable":
        return ("below",), f"nothing was stable {{where}}, try smaller values of {hp}"
    if status == "last stable" and row["rates"] < 3:
        return ("below",), f"fewer than three values of {hp} are stable {{where}}, try smaller ones"
    if status == "too few rates":
        return (
            "below",
            *(("above",) if row["unstable"] == 0 else ()),
        ), f"too few values of {hp} were tried {{where}}"
    if status == "beyond the grid":
        best = math.log2(row["optimum"]) if chosen.axis == "log2" else row["optimum"]
        side = "below" if best - tried[0] <= tried[-1] - best else "above"
        return (side,), f"the best {hp} {{where}} lies at the edge of the grid"
    return (), ""


def _values(chosen: Line, places: list[float]) -> list[float]:
    """The hyperparameter's values at places of the fit's axis; counts stay whole, what was positive
    stays so."""
    tried = numbers(chosen.cells[chosen.hp])
    values = [float(2.0**p if chosen.axis == "log2" else p) for p in places]
    if (tried == np.round(tried)).all() and (tried >= 1).all() and chosen.hp != "lr":
        values = [float(round(v)) for v in values]
    least = 0.0 if (tried == 0).any() else np.nextafter(0.0, 1.0)
    return sorted({v for v in values if v >= least or (tried < 0).any()})


def _between(sizes: list[float]) -> tuple[int, ...]:
    """Sizes midway between neighbours, whole multiples of the smallest; the next doubling where there is no room.

    >>> _between([3, 6, 12, 24]), _between([32, 64, 128]), _between([1, 2])
    ((9, 18), (96,), (4,))
    """
    middle = [(a + b) / 2 for a, b in itertools.pairwise(sizes)]
    out = tuple(int(m) for m in middle if m % sizes[0] == 0)
    return out or (2 * int(sizes[-1]),)


def _listed(values: Any) -> str:
    return ", ".join(f"{v:.4g}" for v in values)
