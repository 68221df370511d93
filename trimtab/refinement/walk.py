"""An adaptive sweep as rounds over a store: replayed from its beginning, so that it has no state. No torch.

    results of rounds 1 .. r  --policy-->  cells of round r + 1  -->  store

A round is made from the results of whole rounds before it, never from a part of one. So a sweep that was
killed, with any number of workers, asks for the same cells when it goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trimtab.errors import InputError
from trimtab.files import looking_in
from trimtab.optima.drift import TOLERANCE, Drift
from trimtab.optima.tables import AXES, Table
from trimtab.optima.transfers import analyse
from trimtab.refinement import policy
from trimtab.refinement.lattice import Lattice
from trimtab.refinement.policy import Cell, Curve, Found, Limits, Line
from trimtab.runs.config import RunConfig
from trimtab.runs.user_code import sources
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.horizons import Point
from trimtab.sweeps.search import AdaptiveSearch
from trimtab.sweeps.store import Store
from trimtab.sweeps.units import cost

ENDED = ("done", "diverged", "failed")


class Place(NamedTuple):
    """Where a curve is: its scheme, its size, and the values of the axes that are not searched."""

    scheme: str
    point: Point
    others: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Step:
    """What an adaptive sweep asks for now; `runs` is empty when it has ended. words: why, a line each."""

    runs: tuple[RunConfig, ...]
    words: tuple[str, ...]
    rounds: int


class Walk:
    """One adaptive sweep, as far as its results go."""

    def __init__(self, config: SweepConfig):
        if config.search is None or config.search.hp is None:
            raise InputError("an adaptive sweep has a table [search] with adaptive = true.")
        self.config, self.search, self.hp = config, config.search, config.search.hp
        self.lattice = Lattice.of(self.hp, config.axes[self.hp], self.search.beyond)
        self.seeds = _more_seeds(config.seeds, self.search.seeds or 2 * len(config.seeds))
        rest = {key: values for key, values in config.axes.items() if key != self.hp}
        others = [tuple(zip(rest, values, strict=True)) for values in itertools.product(*rest.values())]
        every = itertools.product(config.schemes, config.places, others)
        self.places = [Place(*parts) for parts in every]
        with looking_in(config.folder):
            names = [str(v) for k in ("model", "data", "loss") for v in self._named(k)]
            self.hashes = sources(*names)
        self.asked: dict[Cell, str] = {}  # {cell of a whole round: its name in the store}
        self.rounds = 0

    def _named(self, key: str) -> Sequence[Any]:
        return [self.config.run.get(key, ""), *self.config.axes.get(key, ())]

    def run_of(self, cell: Cell) -> RunConfig:
        """A cell as the run it is."""
        place = self.places[cell.curve]
        numbers = dict(place.others) | {self.hp: self.lattice.value(cell.value)}
        fields = self.config.fields(place.point, numbers)
        used = {str(fields.get(key)) for key in ("model", "data", "loss")}
        held = {name: sha for name, sha in self.hashes.items() if name in used}
        return RunConfig(**fields, scheme=place.scheme, seed=self.seeds[cell.seed], sources=held)

    def advance(self, store: Store) -> Step:
        """Go on to the first round that is not finished."""
        table: Any = store.to_pandas()
        ended: Any = table[table["state"].isin(ENDED)]
        rows = {str(row["cell"]): row for row in ended.to_dict("records")}
        slots = sorted({int(n) for n in ended["fleet"].unique()}) if len(ended) else []
        while True:
            cells, words = self._ask(ended, rows)
            names = {cell: self._name(cell, slots, rows) for cell in cells}
            missing = [cell for cell, name in names.items() if name is None]
            if missing or not cells:
                return Step(tuple(map(self.run_of, missing)), tuple(words), self.rounds)
            self.asked |= {cell: name for cell, name in names.items() if name is not None}
            self.rounds += 1

    def _name(self, cell: Cell, slots: Sequence[int], rows: Mapping[str, Any]) -> str | None:
        """A finished cell's name; which fleet it trained in is part of it and is settled when it runs."""
        run = self.run_of(cell)
        names = (run.model_copy(update={"fleet": n}).hash for n in slots)
        return next((name for name in names if name in rows), None)

    def _ask(self, table: Table, rows: Mapping[str, Any]) -> tuple[list[Cell], list[str]]:
        known = {cell: rows[name] for cell, name in self.asked.items() if name in rows}
        costs = self._costs(known)
        cells: dict[Cell, None] = {}
        words = []
        for line in self._lines(table, known, costs):
            wanted = policy.ask(line, self._limits())
            cells |= dict.fromkeys(wanted.cells)
            words.append(wanted.why + (f" ({wanted.verdict})" if wanted.verdict else ""))
        kept, cut = within_budget(list(cells), known.values(), costs, self.search)
        return kept, [*words, cut] if cut else words

    def _limits(self) -> Limits:
        last = len(self.lattice.values) - 1
        return Limits(
            first=self.lattice.first,
            last=self.lattice.last,
            low=0,
            high=last,
            seeds=len(self.seeds),
            optimum=self.search.optimum_octaves,
            drift=self.search.drift_octaves,
        )

    def _costs(self, known: Mapping[Cell, Any]) -> list[float]:
        """Operations of a run of each curve: the most that one took, or in proportion to those of others."""
        guess = [cost(self.run_of(Cell(i, 0, 0))) for i in range(len(self.places))]
        seen: dict[int, float] = {}
        for cell, row in known.items():
            seen[cell.curve] = max(seen.get(cell.curve, 0.0), _number(row["flops"]))
        scale = sum(seen.values()) / sum(guess[i] for i in seen) if seen else 0.0
        return [seen.get(i) or guess[i] * (scale or 1.0) for i in range(len(self.places))]

    def _lines(self, table: Table, known: Mapping[Cell, Any], costs: Sequence[float]) -> list[Line]:
        out = []
        for over, members in lines_of(self.places):
            order = sorted(members, key=lambda i: (cost(self.run_of(Cell(i, 0, 0))), i))
            curves = [Curve(i, costs[i], self._runs(i, known)) for i in order]
            first, axis = self.places[order[0]], over or "depth"
            held = ", ".join(f"{k} {v}" for k, v in first.others)
            base = min(self._size(i, axis) for i in members)
            out.append(
                Line(
                    name=", ".join(filter(None, [f"{first.scheme} over {axis}", held])),
                    curves=curves,
                    doublings=[math.log2(self._size(i, axis) / base) for i in order],
                    analyse=lambda order=order, axis=axis: self._found(table, known, order, axis),
                    tolerance=TOLERANCE if self.lattice.log else self.lattice.step / 2,
                    step=self.lattice.step,
                    sizes=[f"{axis} {self._size(i, axis):g}" for i in order],
                )
            )
        return out

    def _size(self, i: int, axis: str) -> float:
        return float(self.places[i].point[AXES.index(axis)] or 1)

    def _runs(self, curve: int, known: Mapping[Cell, Any]) -> dict[tuple[int, int], policy.Outcome]:
        return {(c.value, c.seed): self._outcome(row) for c, row in known.items() if c.curve == curve}

    def _outcome(self, row: Mapping[str, Any]) -> policy.Outcome:
        if row["state"] == "failed":
            return policy.Outcome(math.nan, _number(row["flops"]))
        loss = float(row[self.search.metric])
        good = row["state"] == "done" and not row["collapsed"] and math.isfinite(loss)
        return policy.Outcome(loss if good else None, _number(row["flops"]))

    def _found(
        self, table: Any, known: Mapping[Cell, Any], order: Sequence[int], over: str
    ) -> tuple[Drift, list[Found]]:
        """What `trimtab.transfer` says of a line's own runs, in steps of the lattice."""
        mine = {str(row["cell"]) for cell, row in known.items() if cell.curve in order}
        rows, scheme = table[table["cell"].isin(mine)], self.places[order[0]].scheme
        base = [*self.config.base, *(self.config.lengths.here if self.config.lengths else ())]
        nothing = Found(math.nan, math.nan, math.inf)
        try:
            t = analyse(rows, [over], [scheme], hp=self.hp, metric=self.search.metric, base=base)[over][
                scheme
            ]
        except InputError:  # no run of the line has the metric: every one diverged or failed
            return Drift(math.nan, -math.inf, math.inf), [nothing] * len(order)
        by_size = {float(row[over]): row for row in t.optima.to_dict("records")}
        found = []
        for i in order:
            row = by_size.get(self._size(i, over))
            found.append(nothing if row is None else self._place(row))
        return t.drift, found

    def _place(self, row: Mapping[str, Any]) -> Found:
        at, low, high = (self.lattice.index(float(row[key])) for key in ("optimum", "low", "high"))
        width = high - low if math.isfinite(high - low) else math.inf
        return Found(at, float(row["stderr"]) / self.lattice.step, width)


def lines_of(places: Sequence[Place]) -> list[tuple[str, list[int]]]:
    """(axis of growth, curves along it) for every line of two sizes or more; a curve in none stands alone,
    with the axis "".

    >>> at = [Place("mup", Point(w, d), ()) for w, d in ((8, 2), (8, 4), (16, 2))]
    >>> lines_of(at)
    [('width', [0, 2]), ('depth', [0, 1])]
    >>> lines_of(at[:1])
    [('', [0])]
    """
    out: list[tuple[str, list[int]]] = []
    for k, axis in enumerate(AXES):
        groups: dict[Any, list[int]] = {}
        for i, place in enumerate(places):
            rest = tuple(v for j, v in enumerate(place.point) if j != k)
            groups.setdefault((place.scheme, rest, repr(place.others)), []).append(i)
        out += [(axis, members) for members in groups.values() if len(members) > 1]
    held = {i for _, members in out for i in members}
    return out + [("", [i]) for i in range(len(places)) if i not in held]


def within_budget(
    cells: list[Cell], known: Any, costs: Sequence[float], search: AdaptiveSearch
) -> tuple[list[Cell], str]:
    """The first cells that the budget still pays for, and what it is where it cuts some off.

    >>> wanted = [Cell(0, v, 0) for v in range(4)]
    >>> kept, why = within_budget(wanted, [], [1e9], AdaptiveSearch(adaptive=True, runs=3))
    >>> len(kept), why
    (3, 'the budget of 3 runs is spent')
    """
    known = list(known)
    flops, seconds = sum(_number(r["flops"]) for r in known), sum(_number(r["seconds"]) for r in known)
    pace = seconds / flops if flops else 0.0
    for n, cell in enumerate(cells):
        flops += costs[cell.curve]
        seconds += pace * costs[cell.curve]
        if search.runs is not None and len(known) + n + 1 > search.runs:
            return cells[:n], f"the budget of {search.runs} runs is spent"
        if search.flops is not None and flops > search.flops and known:
            return cells[:n], f"the budget of {search.flops:g} FLOPs is spent"
        if search.hours is not None and seconds > 3600 * search.hours:
            return cells[:n], f"the budget of {search.hours:g} hours is spent"
    return cells, ""


def _more_seeds(seeds: Sequence[int], most: int) -> list[int]:
    """The sweep's own seeds, then the next ones that are free."""
    fresh = (s for s in itertools.count() if s not in seeds)
    return [*seeds, *itertools.islice(fresh, max(0, most - len(seeds)))][:most]


def _number(value: Any) -> float:
    return float(value) if value is not None and math.isfinite(value) else 0.0
