"""What went wrong on a line of sizes, and what to add where its runs cannot tell.

Failures that are known by their signature:

- Without scaling of the residual branches by depth, the rate tuned on a shallow network diverges on a deep
  one (arXiv 2309.16620).
- Without muP, the best rate moves with width (arXiv 2203.03466).
- A base too narrow for its limit: its losses differ from those at twice its width by more than the seeds
  explain.

What would decide an open verdict: the interval of a drift narrows like one over the square root of the runs,

    runs needed = runs ( (half-width / room)^2 - 1 ),

but only where every size has its optimum inside its grid. Where an optimum lies at the edge, further seeds at
the same values say nothing: the values beyond the edge come first. Where seeds alone would take more than
`AFFORDABLE` times the runs there are, a larger size is the cheaper way: the slope's error falls with the
range of sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from trimtab.optima.drift import Drift
from trimtab.optima.tables import SizeLine, Table, numbers

UNSCALED = ("sp", "ntk", "mup")  # schemes that leave residual branches alone
LEVEL = 0.01
BEYOND = 3  # values to add past an edge, one step of the grid apart
AFFORDABLE = 4.0  # times the runs there are


def signatures(line: SizeLine, verdict: str, slope: Drift, optima: Table, regret: Table) -> list[str]:
    """The failures seen on this line, worst first."""
    over, hp = line.over, line.hp
    out = []
    unstable = regret.loc[regret["status"] == "unstable", over]
    lost = sorted({*unstable, *optima.loc[optima["status"] == "none stable", over]})
    if lost:
        where, at = ", ".join(f"{v:g}" for v in lost), regret["value"].iloc[0]
        tuned = f"the {hp} tuned at {over} {line.base:g} ({at:.3g})"
        what = tuned if np.isfinite(at) else f"every {hp} tried"
        unscaled = over == "depth" and line.scheme in UNSCALED
        why = ": divergence at depth without the branch scaling" if unscaled else ""
        out.append(f"{what} does not train at {over} {where}{why}")
    if verdict == "drifts":
        moved = f"{slope.slope:+.2f} log2" if line.axis == "log2" else f"{slope.slope:+.3g}"
        out.append(f"the optimum of {hp} moves with {over}: {moved} per doubling")
    if over == "width":
        out += _finite_width(line)
    return out


def _finite_width(line: SizeLine) -> list[str]:
    """Welch's test on the seeds' mean losses over the rates both widths have in full."""
    base, double = (
        line.cells[(line.cells["width"] == w) & line.cells["stable"]] for w in (line.base, 2 * line.base)
    )
    tables = [c.pivot_table(index="seed", columns="x", values="y") for c in (base, double)]
    if any(t.empty for t in tables):
        return []
    common = [
        x
        for x in tables[0].columns.intersection(tables[1].columns)
        if tables[0][x].notna().all() and tables[1][x].notna().all()
    ]
    if not common or min(len(t) for t in tables) < 2:
        return []
    one, two = (t[common].mean(axis=1) for t in tables)
    gap = float(two.mean() - one.mean())
    test: Any = stats.ttest_ind(one, two, equal_var=False)
    p = float(test.pvalue)
    if not p < LEVEL:
        return []
    metric = line.metric.replace("_", " ")
    return [
        f"finite-width gap: over {len(common)} values of {line.hp} the {metric} at width {2 * line.base:g} "
        f"differs from the base's by {gap:+.3g}, more than the seeds explain (p = {p:.1g})"
    ]


class Lost(NamedTuple):
    """A size at which the base's best fails: `unstable` of `runs` runs at x, the value next below it."""

    size: float
    x: float
    unstable: int
    runs: int


@dataclass(frozen=True)
class Remedy:
    """What to add to a sweep.

    values: {size: values of the hyperparameter to try there}.
    seeds: how many further ones. sizes: further sizes.
    words: the same for a reader, one entry per thing to do.
    runs: further runs of the same kind that would tell.
    """

    values: dict[float, list[float]]
    seeds: int = 0
    sizes: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    runs: int | None = None

    def __bool__(self) -> bool:
        return bool(self.values or self.seeds or self.sizes)


NOTHING = Remedy({})


def remedy(
    line: SizeLine, slope: Drift, needed: int | None, optima: Table, lost: Sequence[Lost] = ()
) -> Remedy:
    """What would tell, for a line whose verdict is "cannot tell"; needed: further runs (drift.runs_needed);
    lost: where the base's best value does not train."""
    words, values = _edges(line, optima)
    if needed == 0 and lost:  # the slope is known; it is the value itself that cannot be carried
        return Remedy(values, words=(_lost(line, lost), *words))
    if len(optima) < 2:
        sizes = (2 * int(line.base), 4 * int(line.base))
        first = f"a drift needs two sizes: there is one {line.over}. Add {line.over} {_list(sizes)}"
        return Remedy(values, 0, sizes, (first, *words))
    unfinished = optima["status"] == "not finished"
    if values or unfinished.all():  # nothing more is known until the edges are
        return Remedy(values, words=tuple(words))
    if slope.scatter > 0:
        sizes = _midway(line.sizes)
        words.append(
            f"the optima scatter about a line by {slope.scatter:.2f} log2, more than their seeds explain: "
            f"more sizes would tell, more seeds would not. Add {line.over} {_list(sizes)}"
        )
        return Remedy(values, 0, sizes, tuple(words))
    runs = int(optima["n"].sum())
    seeds = max(int(line.cells["seed"].nunique()), 1)
    if needed is not None and needed <= AFFORDABLE * runs:
        extra = max(math.ceil(needed * seeds / max(runs, 1)), 1)
        words.append(f"{more_seeds(extra)} (about {needed} runs) would tell, if the slope stays where it is")
        return Remedy(values, extra, (), tuple(words), needed)
    sizes = (2 * int(max(line.sizes)),)
    times = "" if needed is None else f"{math.ceil(needed / max(runs, 1)) + 1} times the runs there are"
    many = f" (seeds alone: about {times})" if times else ""
    words.append(
        f"the interval is too wide for a few more seeds{many}. "
        f"Add {line.over} {_list(sizes)} and {more_seeds(seeds)}"
    )
    return Remedy(values, seeds, sizes, tuple(words))


def _lost(line: SizeLine, lost: Sequence[Lost]) -> str:
    """Why a line of small slope does not transfer."""
    at, sizes = lost[-1], _list(one.size for one in lost)
    return (
        f"the base's best {line.hp} does not train at {line.over} {sizes}, though the "
        f"slope is small: at {line.over} {at.size:g}, {at.unstable} of {at.runs} runs at "
        f"{line.value(at.x):.3g} fail. Do not carry it there; start from a base nearer to that size"
    )


def _edges(line: SizeLine, optima: Table) -> tuple[list[str], dict[float, list[float]]]:
    """Values to add where the grid ends too soon, and why, sizes with the same answer together."""
    every = np.unique(numbers(line.cells["x"]))
    step = float(np.median(np.diff(every))) if len(every) > 1 else 1.0
    values: dict[float, list[float]] = {}
    reasons: dict[tuple[str, tuple[float, ...]], list[float]] = {}
    for row in optima.to_dict("records"):
        tried = np.unique(numbers(line.cells.loc[line.cells[line.over] == row[line.over], "x"]))
        sides, why = _sides(row, tried, line)
        places = [tried[0] - step * k for k in range(BEYOND, 0, -1)] * ("below" in sides)
        places += [tried[-1] + step * k for k in range(1, BEYOND + 1)] * ("above" in sides)
        add = _values(line, places)
        if why:
            reasons.setdefault((why, tuple(add)), []).append(row[line.over])
        if add:
            values[row[line.over]] = add
    words = []
    for (why, add), sizes in reasons.items():
        where = f"at {line.over} {_list(sizes)}"
        words.append(why.format(where=where) + (f": add {line.hp} {_list(add)} there" if add else ""))
    return words, values


def _sides(row: dict[str, Any], tried: np.ndarray, line: SizeLine) -> tuple[tuple[str, ...], str]:
    """Past which ends of what was tried at a size the optimum may lie, and why it is not known."""
    hp, status = line.hp, row["status"]
    if status == "none stable" and not math.isfinite(row["high"]):  # no value is ruled out from above
        return ("above",), (
            f"nothing was learned {{where}}, and the loss still falls with {hp}: try larger values"
        )
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
        best = math.log2(row["optimum"]) if line.axis == "log2" else row["optimum"]
        side = "below" if best - tried[0] <= tried[-1] - best else "above"
        return (side,), f"the best {hp} {{where}} lies at the edge of the grid"
    return (), ""


def _values(line: SizeLine, places: list[float]) -> list[float]:
    """The hyperparameter's values at places of the fit's axis; counts stay whole, what was positive
    stays so."""
    tried = numbers(line.cells[line.hp])
    values = [float(2.0**p if line.axis == "log2" else p) for p in places]
    if (tried == np.round(tried)).all() and (tried >= 1).all() and line.hp != "lr":
        values = [float(round(v)) for v in values]
    least = 0.0 if (tried == 0).any() else np.nextafter(0.0, 1.0)
    return sorted({v for v in values if v >= least or (tried < 0).any()})


def _midway(sizes: list[float]) -> tuple[int, ...]:
    """Sizes midway between neighbours, whole multiples of the smallest; the next doubling where there is no
    room.

    >>> _midway([3, 6, 12, 24]), _midway([32, 64, 128]), _midway([1, 2])
    ((9, 18), (96,), (4,))
    """
    middle = [(a + b) / 2 for a, b in itertools.pairwise(sizes)]
    out = tuple(int(m) for m in middle if m % sizes[0] == 0)
    return out or (2 * int(sizes[-1]),)


def more_seeds(count: int) -> str:
    return "1 more seed" if count == 1 else f"{count} more seeds"


def _list(values: Any) -> str:
    return ", ".join(f"{v:.4g}" for v in values)
