"""Does it transfer? Optima with intervals, drift, regret, cost and a verdict from a sweep
(`trimtab.transfer`).

For each size on a line of sizes (tables.py) the optimum is fitted with its interval (fits.py); the line
through the optima is the drift (drift.py). The regret at a size is what using the base's optimum costs there,

    regret(size) = loss(size, x_base) - min_x loss(size, x),

with x_base the base's fitted optimum, a number one would really use. A rate is *stable* when every finished
seed at it ended below its start; a size's optimum lies below its first unstable rate. Where the base's
optimum does not train at another size more often than not, a line that says *transfers* is answered by
*cannot tell*: no slope makes a rate that diverges one to carry. `analyse` is what `transfer`, the command and
the report's page share.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from trimtab.errors import InputError
from trimtab.files import json_ready
from trimtab.optima.advice import NOTHING, Lost, Remedy, remedy, signatures
from trimtab.optima.critical import CriticalBatch, critical_batch
from trimtab.optima.curves import Edge, logarithmic
from trimtab.optima.drift import TOLERANCE, Drift, drift, runs_needed, seed_inflation, verdict
from trimtab.optima.exponents import RuleExponent, against_rules
from trimtab.optima.fits import OptimumFit, excess, fit
from trimtab.optima.tables import (
    AXES,
    FINISHED,
    RunSource,
    SizeLine,
    Table,
    choose_line,
    default_scheme,
    equal,
    learns_too_slowly,
    numbers,
    open_source,
    schemes,
)
from trimtab.optima.wording import in_words


class Cost(NamedTuple):
    """Training FLOPs of tuning at the base, of the same runs at the largest size, and what tuning at the base
    saves."""

    base: float
    target: float
    saved: float

    @property
    def ratio(self) -> float:
        return self.target / self.base if self.base else math.nan


@dataclasses.dataclass(frozen=True, repr=False)
class Transfer:
    """How one hyperparameter's optimum moves with one size axis, for one scheme.

    line: the runs it is made from; its scheme, over, hp, metric, axis, fixed and base are attributes here
    too.
    optima: one row per size: `optimum`, `low`, `high` in the hyperparameter's units (95 %; 0 and inf where
    unbounded), `log2`, `stderr` in log2 (or in units on a linear axis), `status` ("inside", "last stable",
    "beyond the grid", "none stable", "too few rates", "not finished"), `stable_max` the largest stable value,
    `loss` at the optimum, `n` stable runs.
    points: one row per size and rate, for drawing. drift: slope, low, high in log2 per doubling. regret: one
    row per size. On a linear axis the drift is in the hyperparameter's units per doubling, and half a step of
    its grid takes the place of 0.25 log2.
    log: whether the curves were fitted to the metric's logarithm.
    more: further runs of the same kind that would tell; 0 when the verdict is clear, None when runs alone
    would not do; `advice` says it in words.
    remedy: what to add where the runs cannot tell: values at which sizes, seeds, sizes (advice.py).
    rules: over batch and tokens, the fitted exponent against each rule's, and each rule's regret
    (exponents.py).
    fits: the fitted optima, one per size. critical: over batch, where they stop following it (critical.py).
    """

    line: SizeLine
    optima: Table
    points: Table
    drift: Drift
    regret: Table
    cost: Cost
    verdict: str
    more: int | None
    advice: str
    signatures: list[str]
    log: bool
    remedy: Remedy = NOTHING
    rules: tuple[RuleExponent, ...] = ()
    fits: tuple[OptimumFit, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @functools.cached_property
    def critical(self) -> CriticalBatch | None:
        """Where the optimum stops following the batch; None over other axes, or where runs follow a rule."""
        if self.over != "batch" or not self.rules:
            return None
        return critical_batch(self.fits, list(self.optima[self.over]), inflation=self.drift.inflation)

    # The line's fields that are attributes of a transfer too, one property each.
    @property
    def scheme(self) -> str:
        return self.line.scheme

    @property
    def over(self) -> str:
        return self.line.over

    @property
    def hp(self) -> str:
        return self.line.hp

    @property
    def metric(self) -> str:
        return self.line.metric

    @property
    def axis(self) -> str:
        return self.line.axis

    @property
    def fixed(self) -> dict[str, Any]:
        return self.line.fixed

    @property
    def base(self) -> float:
        return self.line.base

    @property
    def notes(self) -> tuple[str, ...]:
        notes = list(self.line.notes)
        if (rule := followed(self.line)) and self.over in AXES[2:]:
            notes.append(f"The runs follow the rule {rule}: the drift is what it leaves over")
        if self.log:
            metric = self.metric.replace("_", " ")
            scatter = "its scatter between seeds grows with it"
            note = f"Curves are fitted to the logarithm of the {metric}: {scatter}"
            notes.append(f"{note}. The choice is one for each line of sizes and moves an optimum a little")
        return tuple(notes)

    def __repr__(self) -> str:
        return f"Transfer({self.hp} over {self.over}, {self.scheme}: {self.verdict})"

    def __str__(self) -> str:
        return in_words(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: infinite and missing numbers are null."""
        names = (
            "scheme",
            "over",
            "hp",
            "metric",
            "axis",
            "fixed",
            "base",
            "optima",
            "points",
            "drift",
            "regret",
        )
        names += ("cost", "verdict", "more", "advice", "signatures", "notes", "log", "remedy")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in ("optima", "points", "regret"):
            out[name] = getattr(self, name).to_dict("records")
        out["drift"], out["cost"] = self.drift._asdict(), {**self.cost._asdict(), "ratio": self.cost.ratio}
        out["remedy"] = dataclasses.asdict(self.remedy)
        out["rules"] = [dataclasses.asdict(rule) for rule in self.rules]
        out["critical"] = None if self.critical is None else dataclasses.asdict(self.critical)
        return json_ready(out)


class Transfers(dict[str, Transfer]):
    """One Transfer per scheme; attributes are those of the default scheme (depth-mup when present)."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.values()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not self:
            raise AttributeError(name)
        return getattr(self[default_scheme(list(self))], name)


def transfer(
    store: str | Path | Table | RunSource,
    over: str = "depth",
    hp: str = "lr",
    *,
    scheme: str | None = None,
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
) -> Transfer | Transfers:
    """Whether the optimum of `hp` stays where it is as the network grows.

    store: a sweep's file, its Store, or a table with a row per run (state, scheme, width, depth, seed, lr,
    train_loss, ...).
    over: "depth", "width", "batch" or "tokens". scheme: one of the sweep's; None gives all, as a dict whose
    attributes are the default scheme's.
    where: what to hold fixed where more was swept, such as {"width": 64, "weight_decay": 0.1}; else the
    longest line of sizes.

    >>> def run(d, x, s):
    ...     loss = 1 + 0.1 * (x + 3) ** 2 + 0.01 * math.sin(d + 7 * x + s)
    ...     same = dict(state="done", scheme="depth-mup", width=32)
    ...     return same | dict(depth=d, seed=s, lr=2.0**x, train_loss=loss)
    >>> runs = [run(d, x, s) for d in (2, 4, 8, 16) for x in range(-7, 1) for s in range(3)]
    >>> t = transfer(pd.DataFrame(runs), over="depth")
    >>> t.verdict, t.optima.log2.round(1).tolist(), t.optima.status.unique().tolist()
    ('transfers', [-3.0, -3.0, -3.0, -3.0], ['inside'])
    """
    source = open_source(store)
    table = source.to_pandas()
    names = [scheme] if scheme is not None else schemes(table)
    if not names:
        raise InputError("a transfer needs runs: the store has none yet.")
    every = analyse(table, [over], names, hp=hp, metric=metric, where=where, base=source.meta.get("base"))[
        over
    ]
    return every[names[0]] if len(names) == 1 else Transfers(every)


def analyse(
    table: Table,
    overs: Iterable[str],
    names: Sequence[str],
    *,
    hp: str = "lr",
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
    preferred: Mapping[str, Any] | None = None,
    base: Sequence[float] | None = None,
) -> dict[str, dict[str, Transfer]]:
    """{over: {scheme: Transfer}} for some size axes and schemes of a table of runs.

    where: what to hold fixed. preferred: the same, but only where a scheme was run at that value; a scheme
    that never varied it keeps its own. base: (width, depth).
    """

    def held(scheme: str) -> dict[str, Any]:
        mine = table[table["scheme"] == scheme] if preferred else table
        return {**(where or {}), **{c: v for c, v in (preferred or {}).items() if equal(mine[c], v).any()}}

    def one(over: str, scheme: str) -> Transfer:
        return analyse_line(
            choose_line(table, over, hp, scheme, metric=metric, where=held(scheme), base=base)
        )

    return {over: {name: one(over, name) for name in names} for over in overs}


class Size(NamedTuple):
    """The runs at one size of a line: all, those at stable rates below the wall, and the optimum fitted to
    these."""

    cells: Table
    runs: Table
    wall: float

    def columns(self, sign: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, y (smaller is better) and seed of the stable runs."""
        return self.runs["x"].to_numpy(), sign * self.runs["y"].to_numpy(), self.runs["seed"].to_numpy()


def analyse_line(line: SizeLine) -> Transfer:
    """All that can be said of one line."""
    parts: dict[Any, Table] = dict(iter(line.cells.groupby(line.over, sort=True)))
    sizes = {size: size_of(parts[size], line.sign) for size in line.sizes}
    columns = [size.columns(line.sign) for size in sizes.values()]
    walls = [size.wall for size in sizes.values()]
    log = logarithmic(columns)
    edges = [_edge(size.cells) for size in sizes.values()]
    fits = [
        fit(*runs, wall=wall, log=log, edge=edge)
        for runs, wall, edge in zip(columns, walls, edges, strict=True)
    ]
    by_size = dict(zip(sizes, fits, strict=True))
    optima = pd.DataFrame([_row(line, size, sizes[size], f) for size, f in by_size.items()])
    doublings = [math.log2(size / line.base) for size in sizes]
    slope = drift(fits, doublings, inflation=seed_inflation(columns, fits, walls))
    regret = pd.DataFrame([_regret(line, size, sizes[size], by_size) for size in sizes])
    tolerance = _tolerance(line)
    answer = verdict(slope, tolerance)
    lost = does_not_train(by_size[line.base].optimum, {size: at.cells for size, at in sizes.items()})
    if answer == "transfers" and lost:
        answer = "cannot tell"
    needed = runs_needed(slope, sum(f.n for f in fits), tolerance)
    cure = remedy(line, slope, needed, optima, lost) if answer == "cannot tell" else NOTHING
    return Transfer(
        line=line,
        optima=optima,
        points=_points(line),
        drift=slope,
        regret=regret,
        cost=_cost(line, parts),
        verdict=answer,
        more=cure.runs if answer == "cannot tell" else needed,
        advice=_advice(line, cure) if answer == "cannot tell" else "",
        signatures=signatures(line, answer, slope, optima, regret),
        log=log,
        remedy=cure,
        rules=_rules(line, slope, sizes, by_size),
        fits=tuple(fits),
    )


def _rules(
    line: SizeLine, slope: Drift, sizes: Mapping[float, Size], fits: Mapping[float, OptimumFit]
) -> tuple[RuleExponent, ...]:
    """The exponent over batch or tokens against each rule's, with each rule's regret at the largest size."""
    if line.over not in AXES[2:] or line.hp != "lr" or line.axis != "log2" or followed(line):
        return ()
    optimizer = str(line.cells["optimizer"].iloc[0]) if "optimizer" in line.cells else "sgd"
    far = max(sizes)
    x, y, _ = sizes[far].columns(line.sign)

    def regret(exponent: float) -> float:
        at = fits[line.base].optimum + exponent * math.log2(far / line.base)
        if not math.isfinite(at):
            return math.nan
        return math.inf if at >= sizes[far].wall else excess(fits[far], at, x, y)[0]

    return against_rules(line.over, optimizer, slope, regret)


def followed(line: SizeLine) -> str:
    """The rule over batch and length that the runs of a line follow; "" where their numbers stay."""
    column = "horizon.rule"
    found = list(line.cells[column].dropna()) if column in line.cells else []
    rule = found[0] if found else ""
    return str(rule.get("name", "of a file")) if isinstance(rule, Mapping) else str(rule)


def size_of(cells: Table, sign: float) -> Size:
    """The runs at one size; sign: -1 for a metric that is better when larger."""
    rates, wall = _stable_rates(cells), _wall(cells, sign)
    return Size(cells, cells[cells["x"].isin(rates) & cells["stable"] & (cells["x"] < wall)], wall)


def _tolerance(line: SizeLine) -> float:
    """0.25 log2 per doubling; on a linear axis half a step of the grid, as a quarter octave is of the usual
    one."""
    if line.axis == "log2":
        return TOLERANCE
    tried = np.unique(numbers(line.cells["x"]))
    return (float(np.median(np.diff(tried))) if len(tried) > 1 else 1.0) / 2


def _stable_rates(cells: Table) -> np.ndarray:
    by = cells.groupby("x")[["stable", "unstable"]].sum()
    return by.index[(by["unstable"] == 0) & (by["stable"] > 0)].to_numpy()


def _edge(cells: Table) -> Edge:
    by = cells.groupby("x")[["stable", "unstable"]].sum()
    by = by[by.sum(axis=1) > 0]
    return Edge(by.index.to_numpy(float), by["unstable"].to_numpy(float), by.sum(axis=1).to_numpy(float))


def does_not_train(x: float, cells: Mapping[float, Table]) -> tuple[Lost, ...]:
    """The sizes at which x fails more often than not: so do the runs at the value tried next below it."""
    out = []
    for size, edge in ((size, _edge(table)) for size, table in cells.items()):
        below = np.flatnonzero(edge.rates <= x)  # none where x is not finite
        if len(below) and 2 * edge.unstable[below[-1]] > edge.runs[below[-1]]:
            out.append(
                Lost(
                    size,
                    float(edge.rates[below[-1]]),
                    int(edge.unstable[below[-1]]),
                    int(edge.runs[below[-1]]),
                )
            )
    return tuple(out)


def _wall(cells: Table, sign: float) -> float:
    """The first unstable rate above the best stable one; where nothing is stable, the lowest one that was
    tried, unless all are too small to learn."""
    stable = cells[cells["x"].isin(_stable_rates(cells)) & cells["stable"]]
    bad = np.sort(cells.loc[cells["unstable"], "x"].unique())
    if not len(bad):
        return math.inf
    if not len(stable):
        return math.inf if learns_too_slowly(cells) else float(bad[0])
    best = (sign * stable.groupby("x")["y"].mean()).idxmin()
    above = bad[bad > best]
    return float(above[0]) if len(above) else math.inf


def _row(line: SizeLine, size: float, at: Size, f: OptimumFit) -> dict[str, Any]:
    rates = _stable_rates(at.cells)
    rates = rates[rates < at.wall]
    unfinished = f.status == "none stable" and not at.cells["unstable"].any()
    return {
        **_both_sizes(line, size),
        "optimum": line.value(f.optimum),
        "log2": f.optimum if line.axis == "log2" else math.nan,
        "low": line.value(f.low),
        "high": line.value(f.high),
        "stderr": f.stderr,
        "n": f.n,
        "rates": f.rates,
        "status": "not finished" if unfinished else f.status,
        "shape": f.shape,
        "stable_max": line.value(float(rates.max())) if len(rates) else math.nan,
        "loss": _mean_loss(at.runs, f.optimum),
        "unstable": int(at.cells["unstable"].sum()),
        "pending": int((~at.cells["state"].isin(FINISHED)).sum()),
    }


def _mean_loss(runs: Table, x: float) -> float:
    """The mean of the seeds at x, between the values tried; a fit's own minimum may lie below anything that
    was seen."""
    if not len(runs) or not math.isfinite(x):
        return math.nan
    means = runs.groupby("x")["y"].mean()
    return float(np.interp(x, means.index.to_numpy(dtype=float), means.to_numpy()))


def _both_sizes(line: SizeLine, size: float) -> dict[str, Any]:
    places = {**line.fixed, line.over: size}
    return {axis: int(places[axis]) for axis in AXES if axis in places}


def _regret(line: SizeLine, size: float, at: Size, fits: Mapping[float, OptimumFit]) -> dict[str, Any]:
    """What the base's optimum costs at a size, with interval; infinite where it does not train."""
    x, mine, runs = fits[line.base].optimum, fits[size], at.runs
    row = {**_both_sizes(line, size), "value": line.value(x), "loss": _mean_loss(runs, mine.optimum)}
    if not math.isfinite(x):
        found, status = (math.nan,) * 3, "the base has no optimum"
    elif x >= at.wall:
        found, status = (math.inf,) * 3, "unstable"
    elif len(runs) and x > runs["x"].max() and math.isfinite(at.wall):
        found, status = (math.nan,) * 3, "at the edge of stability"
    elif mine.status == "beyond the grid":
        found, status = (math.nan,) * 3, "the best is beyond the grid"
    else:
        found = excess(mine, x, *at.columns(line.sign)[:2])
        status = "measured" if math.isfinite(found[0]) else "outside what was tried"
    return {**row, "regret": found[0], "low": found[1], "high": found[2], "status": status}


def _points(line: SizeLine) -> Table:
    """Mean, least and greatest over seeds at each size and rate."""
    cells = line.cells
    by = cells.groupby([line.over, line.hp], sort=True)
    out = by.agg(
        mean=("y", "mean"),
        least=("y", "min"),
        most=("y", "max"),
        stable=("stable", "sum"),
        unstable=("unstable", "sum"),
        runs=("state", "size"),
    ).reset_index()
    return out.assign(fine=(out["unstable"] == 0) & (out["stable"] > 0))


def _cost(line: SizeLine, parts: Mapping[float, Table]) -> Cost:
    """FLOPs of the base's finished runs, against as many full runs at the largest size."""
    if "flops" not in line.cells:
        return Cost(math.nan, math.nan, math.nan)
    flops = {size: numbers(cells.loc[cells["state"] == "done", "flops"]) for size, cells in parts.items()}
    flops = {size: values[np.isfinite(values)] for size, values in flops.items()}
    base, target = flops[line.base], flops[max(parts)]
    if not len(base) or not len(target):
        return Cost(math.nan, math.nan, math.nan)
    tuning, same = float(base.sum()), float(target.mean()) * len(base)
    return Cost(tuning, same, same - tuning)


def _advice(line: SizeLine, cure: Remedy) -> str:
    """What to do where the runs cannot tell: what is still running or failed first, then what to add."""
    state = line.cells["state"]
    failed = int((state == "failed").sum())
    waiting = int((~state.isin(FINISHED)).sum()) - failed
    parts = [f"{waiting} cells of this line are not finished"] * (waiting > 0)
    parts += [f"{failed} cells of this line failed: see `trimtab status`"] * (failed > 0)
    return "; ".join([*parts, *cure.words]) or "the interval touches the limit: more seeds narrow it"


def joint(
    store: str | Path | Table | RunSource,
    hp2: str,
    over: str = "depth",
    hp: str = "lr",
    *,
    scheme: str | None = None,
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
) -> Table:
    """Optima of `hp` for each value of a second swept hyperparameter `hp2`, per size; `best` marks the joint
    optimum.

    >>> def run(d, x, s, w):
    ...     loss = 1 + w + 0.1 * (x + 3) ** 2 + 0.01 * math.sin(d + 7 * x + s)
    ...     same = dict(state="done", scheme="sp", width=8)
    ...     return same | dict(depth=d, seed=s, lr=2.0**x, decay=w, train_loss=loss)
    >>> runs = [run(d, x, s, w) for d in (2, 4) for x in range(-7, 1) for s in range(3) for w in (0.0, 0.5)]
    >>> joint(pd.DataFrame(runs), "decay")[["depth", "decay", "status", "best"]].values.tolist()
    [[2, 0.0, 'inside', True], [2, 0.5, 'inside', False], [4, 0.0, 'inside', True], [4, 0.5, 'inside', False]]
    """
    source = open_source(store)
    table, base = source.to_pandas(), source.meta.get("base")
    if hp2 not in table or not pd.api.types.is_hashable(table[hp2].iloc[0] if len(table) else None):
        raise InputError(f"hp2 must be a column of the store that holds numbers or names: got {hp2!r}.")
    name = scheme or default_scheme(schemes(table))
    tables = []
    for value in sorted(table[hp2].dropna().unique()):
        held = {**(where or {}), hp2: value}
        t = analyse(table, [over], [name], hp=hp, metric=metric, where=held, base=base)[over][name]
        tables.append(t.optima.assign(**{hp2: value}))
    out = pd.concat(tables, ignore_index=True).sort_values([over, hp2], ignore_index=True)
    score = -out["loss"] if metric == "accuracy" else out["loss"]
    out["best"] = score == score.groupby(out[over]).transform("min")
    return out[["width", "depth", hp2, *[c for c in out if c not in ("width", "depth", hp2)]]]
