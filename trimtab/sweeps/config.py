"""What a sweep is: schemes x sizes x hyperparameter axes x seeds, and the cells that this makes. No torch.

    cell = RunConfig,      its name = SHA-256 of the resolved configuration

so adding a value to an axis later adds exactly its cells, and the same cell is the same cell in any sweep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trimtab.files import looking_in
from trimtab.runs.config import RunConfig
from trimtab.runs.user_code import sources
from trimtab.sweeps.horizons import Lengths, Point, fields_of
from trimtab.sweeps.search import AdaptiveSearch

BUDGET = {"cell_seconds": 3600.0, "retries": 0, "checkpoint_seconds": 30.0}


@dataclass(frozen=True)
class SweepConfig:
    """A validated sweep.

    Attributes:
        sizes: the (width, depth) pairs. lengths: batches and tokens, None where they are as `run` says.
        points: where on those axes a run is; (): at every size. axes: {RunConfig field: values}.
        run: fields every run has.
        fleet: runs trained together: "auto" (by the rule of `trimtab.slots`), a number, or 1 (each alone).
        budget: "cell_seconds" (wall clock of one run), "retries" (of a run that raised),
            "checkpoint_seconds".
        gpu: the number of the GPU that the file names (device = "cuda:1"); None: workers are dealt all.
        ray: what a task asks of a cluster ("num_cpus", "num_gpus", "memory" in bytes), and "files" to send.
        folder: of the file it was read from, where `file.py:function` is looked for first; None: it has no
            file.
        search: how an adaptive sweep goes on and ends; None: the whole grid is run.
    """

    name: str
    schemes: tuple[str, ...]
    base: tuple[int, int]
    sizes: tuple[tuple[int, int], ...]
    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    run: dict[str, Any]
    fleet: int | Literal["auto"] = "auto"
    budget: dict[str, float] = field(default_factory=lambda: dict(BUDGET))
    folder: Path | None = None
    lengths: Lengths | None = None
    points: tuple[Point, ...] = ()
    ray: dict[str, Any] = field(default_factory=dict)
    gpu: int | None = None
    search: AdaptiveSearch | None = None

    def __len__(self) -> int:
        return (
            len(self.schemes)
            * len(self.places)
            * len(self.seeds)
            * math.prod(len(v) for v in self.axes.values())
        )

    @property
    def places(self) -> tuple[Point, ...]:
        return self.points or tuple(Point(*size) for size in self.sizes)

    def fields(self, point: Point, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the runs at a point, but for scheme and seed."""
        lengths = fields_of(point, self.run, self.lengths)
        return (
            nested(self.run, numbers) | lengths | dict(width=point.width, depth=point.depth, base=self.base)
        )

    def cells(self) -> Iterator[RunConfig]:
        """Every run of the grid, resolved."""
        names = [str(self.run.get(key, "")) for key in ("model", "data", "loss")]
        names += [str(v) for key in ("model", "data", "loss") for v in self.axes.get(key, ())]
        with looking_in(self.folder):
            hashes = sources(*names)
        for scheme, point, values, seed in itertools.product(
            self.schemes, self.places, itertools.product(*self.axes.values()), self.seeds
        ):
            numbers = dict(zip(self.axes, values, strict=True))
            used = {
                k: h
                for k, h in hashes.items()
                if k in {*(str(self.run.get(key)) for key in ("model", "data", "loss")), *map(str, values)}
            }
            yield RunConfig(**self.fields(point, numbers), scheme=scheme, seed=seed, sources=used)

    def plain(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        more: dict[str, Any] = {}
        if self.lengths is not None:
            more = dict(lengths=self.lengths.plain(), points=[list(p) for p in self.places])
        if self.search is not None:
            more["search"] = self.search.model_dump(exclude_none=True)
        return more | dict(
            name=self.name,
            schemes=list(self.schemes),
            base=list(self.base),
            sizes=[list(s) for s in self.sizes],
            axes={k: list(v) for k, v in self.axes.items()},
            seeds=list(self.seeds),
            run=self.run,
            fleet=self.fleet,
            budget=self.budget,
        )


def from_plain(plain: Mapping[str, Any], folder: Path | None = None) -> SweepConfig:
    """A sweep again from its `plain`, as a store keeps it."""
    lengths = plain.get("lengths")
    search = plain.get("search")
    return SweepConfig(
        name=plain["name"],
        schemes=tuple(plain["schemes"]),
        base=(plain["base"][0], plain["base"][1]),
        sizes=tuple((w, d) for w, d in plain["sizes"]),
        axes={key: tuple(values) for key, values in plain["axes"].items()},
        seeds=tuple(plain["seeds"]),
        run=dict(plain["run"]),
        fleet=plain["fleet"],
        budget=dict(plain["budget"]),
        folder=folder,
        lengths=None if lengths is None else Lengths(**lengths),
        points=tuple(Point(*p) for p in plain.get("points", ())),
        search=None if search is None else AdaptiveSearch(**search),
    )


def nested(run: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run; an axis `model_options.k` or `roles.input.lr` goes into that table."""
    out = {k: dict(v) if isinstance(v, Mapping) else v for k, v in run.items()}
    for key, value in numbers.items():
        top, _, rest = key.partition(".")
        if top == "roles" and rest:
            role, _, number = rest.partition(".")
            held = {name: dict(table) for name, table in out.get(top, {}).items()}
            out[top] = held | {role: held.get(role, {}) | {number: value}}
        elif rest:
            out.setdefault(top, {})[rest] = value
        else:
            out[key] = value
    return out
