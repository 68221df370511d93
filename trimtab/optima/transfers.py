"""Does it transfer? Optima with intervals, drift, regret, cost and a verdict from a sweep (`trimtab.transfer`).

For each size on a line of sizes (lines.py) the optimum is fitted with its interval (fits.py); the line through the optima is
the drift (drift.py). The regret at a size is what using the base's optimum costs there,

    regret(size) = loss(size, x_base) - min_x loss(size, x),

with x_base the base's fitted optimum, a number one would really use. A rate is *stable* when every finished seed at it ended
below its start; a size's optimum lies below its first unstable rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from trimtab.errors import InputError
from trimtab.optima.drift import TOLERANCE, Drift, drift, more, verdict
from trimtab.optima.edges import Edge
from trimtab.optima.fits import Fit, excess, fit
from trimtab.optima.jackknife import inflation
from trimtab.optima.lines import Line, default_scheme, line, schemes
from trimtab.optima.remedies import NOTHING, Remedy, remedy
from trimtab.optima.scales import logarithmic
from trimtab.optima.signatures import signatures
from trimtab.optima.sources import Source, Table, numbers, opened


class Cost(NamedTuple):
    """Training FLOPs of tuning at the base, of the same runs at the largest size, and what tuning at the base saves."""

    base: float
    target: float
    saved: float

    @property
    def ratio(self) -> float:
        return self.target / self.base if self.base else math.nan


@dataclasses.dataclass(frozen=True)
class Transfer:
    """How one hyperparameter's optimum moves with one size axis, for one scheme.

    optima: one row per size: `optimum`, `low`, `high` in the hyperparameter's units (95 %; 0 and inf where unbounded), `log2`,
    `stderr` in log2 (or in units on a linear axis), `status` ("inside", "last stable", "beyond the grid", "none stable", "too few
    rates", "not finished"), `stable_max` the largest stable value, `loss` at the optimum, `n` stable runs.
    points: one row per size and rate, for drawing. drift: slope, low, high in log2 per doubling. regret: one row per size.
    On a linear axis the drift is in the hyperparameter's units per doubling, and half a step of its grid takes the place of 0.25 log2.
    log: whether the curves were fitted to the metric's logarithm. more: further runs of the same kind that would tell; 0 when told, None when runs alone would not; `advice` says it in words.
    remedy: what to add where the runs cannot tell: values at which sizes, seeds, sizes (remedies.py).
    """

    scheme: str
    over: str
    hp: str
    metric: str
    axis: str
    fixed: dict[str, Any]
    base: float
    optima: Table
    points: Table
    drift: Drift
    regret: Table
    cost: Cost
    verdict: str
    more: int | None
    advice: str
    signatures: list[str]
    notes: tuple[str, ...]
    log: bool
    remedy: Remedy = NOTHING

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: infinite and missing numbers are null."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("optima", "points", "regret"):
            out[name] = getattr(self, name).to_dict("records")
        out["drift"], out["cost"] = self.drift._asdict(), {**self.cost._asdict(), "ratio": self.cost.ratio}
        out["remedy"] = dataclasses.asdict(self.remedy)
        return plain(out)


class Transfers(dict[str, Transfer]):
    """One Transfer per scheme; attributes are those of the default scheme (depth-mup when present)."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not self:
            raise AttributeError(name)
        return getattr(self[default_scheme(list(self))], name)


def transfer(
    store: str | Path | Table | Source,
    over: str = "depth",
    hp: str = "lr",
    *,
    scheme: str | None = None,
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
) -> Transfer | Transfers:
    """Whether the optimum of `hp` stays where it is as the network grows.

    store: a sweep's file, its Store, or a table with a row per run (state, scheme, width, depth, seed, lr, train_loss, ...).
    over: "depth" or "width". scheme: one of the sweep's; None gives all, as a dict whose attributes are the default scheme's.
    where: what to hold fixed where more was swept, such as {"width": 64, "weight_decay": 0.1}; else the longest line of sizes.

    >>> runs = [dict(state="done", scheme="depth-mup", width=32, depth=d, seed=s, lr=2.0**x, train_loss=1 + 0.1 * (x + 3) ** 2 + 0.01 * math.sin(d + 7 * x + s))
    ...         for d in (2, 4, 8, 16) for x in range(-7, 1) for s in range(3)]
    >>> t = transfer(pd.DataFrame(runs), over="depth")
    >>> t.verdict, t.optima.log2.round(1).tolist(), t.optima.status.unique().tolist()
    ('transfers', [-3.0, -3.0, -3.0, -3.0], ['inside'])
    """
    source = opened(store)
    table = source.to_pandas()
    base = source.meta.get("base")
    names = [scheme] if scheme is not None else schemes(table)
    if not names:
        raise InputError("a transfer needs runs: the store has none yet.")
    every = Transfers(
        {name: analysed(line(table, over, hp, name, metric=metric, where=where, base=base)) for name in names}
    )
    return every[names[0]] if len(names) == 1 else every


def analysed(chosen: Line) -> Transfer:
    """All that can be said of one line."""
    sign = -1.0 if chosen.metric == "accuracy" else 1.0
    sizes = chosen.sizes
    parts: dict[Any, Table] = dict(iter(chosen.cells.groupby(chosen.over, sort=True)))
    walls = {size: _wall(parts[size], sign) for size in sizes}
    runs = {
        size: parts[size][
            parts[size]["x"].isin(_stable_rates(parts[size]))
            & parts[size]["stable"]
            & (parts[size]["x"] < walls[size])
        ]
        for size in sizes
    }
    columns = {
        size: (r["x"].to_numpy(), sign * r["y"].to_numpy(), r["seed"].to_numpy()) for size, r in runs.items()
    }
    log = logarithmic(columns[size] for size in sizes)
    fits = {size: fit(*columns[size], wall=walls[size], log=log, edge=_edge(parts[size])) for size in sizes}
    optima = pd.DataFrame(
        [_row(chosen, size, parts[size], runs[size], fits[size], walls[size]) for size in sizes]
    )
    wider = inflation([columns[s] for s in sizes], [fits[s] for s in sizes], [walls[s] for s in sizes])
    slope = drift([fits[s] for s in sizes], [math.log2(s / chosen.base) for s in sizes], inflation=wider)
    regret = pd.DataFrame([_regret(chosen, size, fits, runs[size], walls[size], sign) for size in sizes])
    tried = np.unique(numbers(chosen.cells["x"]))
    gap = float(np.median(np.diff(tried))) if len(tried) > 1 else 1.0
    limit = (
        TOLERANCE if chosen.axis == "log2" else gap / 2
    )  # a quarter octave is half a step of the usual grid
    told, pending = verdict(slope, limit), int((~chosen.cells["state"].isin(("done", "diverged"))).sum())
    needed = more(slope, sum(f.n for f in fits.values()), limit)
    cure = remedy(chosen, slope, needed, optima) if told == "cannot tell" else NOTHING
    return Transfer(
        chosen.scheme,
        chosen.over,
        chosen.hp,
        chosen.metric,
        chosen.axis,
        chosen.fixed,
        chosen.base,
        optima,
        _points(chosen),
        slope,
        regret,
        _cost(chosen, parts),
        told,
        cure.runs if told == "cannot tell" else needed,
        _advice(chosen, told, pending, cure),
        signatures(chosen, told, slope, optima, regret),
        (
            *chosen.notes,
            *[
                f"Curves are fitted to the logarithm of the {chosen.metric.replace('_', ' ')}: its scatter between seeds grows with it"
            ]
            * log,
        ),
        log,
        cure,
    )


def _stable_rates(cells: Table) -> np.ndarray:
    by = cells.groupby("x")[["stable", "unstable"]].sum()
    return by.index[(by["unstable"] == 0) & (by["stable"] > 0)].to_numpy()


def _edge(cells: Table) -> Edge:
    by = cells.groupby("x")[["stable", "unstable"]].sum()
    by = by[by.sum(axis=1) > 0]
    return Edge(by.index.to_numpy(float), by["unstable"].to_numpy(float), by.sum(axis=1).to_numpy(float))


def _wall(cells: Table, sign: float) -> float:
    """The first unstable rate above the best stable one; where nothing is stable, the lowest one that was tried."""
    stable = cells[cells["x"].isin(_stable_rates(cells)) & cells["stable"]]
    bad = np.sort(cells.loc[cells["unstable"], "x"].unique())
    if not len(bad):
        return math.inf
    if not len(stable):
        return float(bad[0])
    best = (sign * stable.groupby("x")["y"].mean()).idxmin()
    above = bad[bad > best]
    return float(above[0]) if len(above) else math.inf


def _units(chosen: Line, x: float) -> float:
    return float(2.0**x) if chosen.axis == "log2" else float(x)


def _row(chosen: Line, size: float, cells: Table, runs: Table, f: Fit, wall: float) -> dict[str, Any]:
    rates = _stable_rates(cells)
    rates = rates[rates < wall]
    return {
        **_size(chosen, size),
        "optimum": _units(chosen, f.optimum),
        "log2": f.optimum if chosen.axis == "log2" else math.nan,
        "low": _units(chosen, f.low),
        "high": _units(chosen, f.high),
        "stderr": f.stderr,
        "n": f.n,
        "rates": f.rates,
        "status": "not finished" if f.status == "none stable" and not cells["unstable"].any() else f.status,
        "shape": f.shape,
        "stable_max": _units(chosen, float(rates.max())) if len(rates) else math.nan,
        "loss": _measured(runs, f.optimum),
        "unstable": int(cells["unstable"].sum()),
        "pending": int((~cells["state"].isin(("done", "diverged"))).sum()),
    }


def _measured(runs: Table, x: float) -> float:
    """The mean of the seeds at x, between the values tried; a fit's own minimum may lie below anything that was seen."""
    if not len(runs) or not math.isfinite(x):
        return math.nan
    means = runs.groupby("x")["y"].mean()
    return float(np.interp(x, means.index.to_numpy(dtype=float), means.to_numpy()))


def _size(chosen: Line, size: float) -> dict[str, Any]:
    other = "width" if chosen.over == "depth" else "depth"
    both = {chosen.over: size, other: chosen.fixed[other]}
    return {"width": int(both["width"]), "depth": int(both["depth"])}


def _regret(
    chosen: Line, size: float, fits: Mapping[float, Fit], runs: Table, wall: float, sign: float
) -> dict[str, Any]:
    at, own = fits[chosen.base].optimum, fits[size]
    row = {**_size(chosen, size), "value": _units(chosen, at), "loss": _measured(runs, own.optimum)}
    if not math.isfinite(at):
        return {
            **row,
            "regret": math.nan,
            "low": math.nan,
            "high": math.nan,
            "status": "the base has no optimum",
        }
    if at >= wall:
        return {**row, "regret": math.inf, "low": math.inf, "high": math.inf, "status": "unstable"}
    if len(runs) and at > runs["x"].max() and math.isfinite(wall):
        return {
            **row,
            "regret": math.nan,
            "low": math.nan,
            "high": math.nan,
            "status": "at the edge of stability",
        }
    value, low, high = excess(own, at, runs["x"].to_numpy(), sign * runs["y"].to_numpy())
    return {
        **row,
        "regret": value,
        "low": low,
        "high": high,
        "status": "measured" if math.isfinite(value) else "outside what was tried",
    }


def _points(chosen: Line) -> Table:
    """Mean, least and greatest over seeds at each size and rate."""
    cells = chosen.cells
    by = cells.groupby([chosen.over, chosen.hp], sort=True)
    out = by.agg(
        mean=("y", "mean"),
        least=("y", "min"),
        most=("y", "max"),
        stable=("stable", "sum"),
        unstable=("unstable", "sum"),
        runs=("state", "size"),
    ).reset_index()
    return out.assign(fine=(out["unstable"] == 0) & (out["stable"] > 0))


def _cost(chosen: Line, parts: Mapping[float, Table]) -> Cost:
    """FLOPs of the base's finished runs, against as many full runs at the largest size."""
    if "flops" not in chosen.cells:
        return Cost(math.nan, math.nan, math.nan)
    flops = {size: numbers(cells.loc[cells["state"] == "done", "flops"]) for size, cells in parts.items()}
    flops = {size: values[np.isfinite(values)] for size, values in flops.items()}
    base, target = flops[chosen.base], flops[max(parts)]
    if not len(base) or not len(target):
        return Cost(math.nan, math.nan, math.nan)
    tuning, same = float(base.sum()), float(target.mean()) * len(base)
    return Cost(tuning, same, same - tuning)


def _advice(chosen: Line, told: str, pending: int, cure: Remedy) -> str:
    if told != "cannot tell":
        return ""
    failed = int((chosen.cells["state"] == "failed").sum())
    parts = [f"{pending - failed} cells of this line are not finished"] * (pending > failed)
    parts += [f"{failed} cells of this line failed: see `trimtab status`"] * (failed > 0)
    return "; ".join([*parts, *cure.words]) or "the interval touches the limit: more seeds narrow it"


def joint(
    store: str | Path | Table | Source,
    hp2: str,
    over: str = "depth",
    hp: str = "lr",
    *,
    scheme: str | None = None,
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
) -> Table:
    """Optima of `hp` for each value of a second swept hyperparameter `hp2`, per size; `best` marks the joint optimum.

    >>> runs = [dict(state="done", scheme="sp", width=8, depth=d, seed=s, lr=2.0**x, decay=w, train_loss=1 + w + 0.1 * (x + 3) ** 2 + 0.01 * math.sin(d + 7 * x + s))
    ...         for d in (2, 4) for x in range(-7, 1) for s in range(3) for w in (0.0, 0.5)]
    >>> joint(pd.DataFrame(runs), "decay")[["depth", "decay", "status", "best"]].values.tolist()
    [[2, 0.0, 'inside', True], [2, 0.5, 'inside', False], [4, 0.0, 'inside', True], [4, 0.5, 'inside', False]]
    """
    source = opened(store)
    table = source.to_pandas()
    if hp2 not in table or not pd.api.types.is_hashable(table[hp2].iloc[0] if len(table) else None):
        raise InputError(f"hp2 must be a column of the store that holds numbers or names: got {hp2!r}.")
    name = scheme or default_scheme(schemes(table))
    tables = []
    for value in sorted(table[hp2].dropna().unique()):
        t = analysed(
            line(
                table,
                over,
                hp,
                name,
                metric=metric,
                where={**(where or {}), hp2: value},
                base=source.meta.get("base"),
            )
        )
        tables.append(t.optima.assign(**{hp2: value}))
    out = pd.concat(tables, ignore_index=True).sort_values([over, hp2], ignore_index=True)
    score = -out["loss"] if metric == "accuracy" else out["loss"]
    out["best"] = score == score.groupby(out[over]).transform("min")
    return out[["width", "depth", hp2, *[c for c in out if c not in ("width", "depth", hp2)]]]


def plain(value: Any) -> Any:
    """What JSON can hold: numpy scalars unwrapped, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
