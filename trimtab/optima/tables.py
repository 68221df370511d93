"""Which runs form a curve: from a sweep's store, or a table of runs, to one line of sizes.

A sweep is a grid over sizes, rates, seeds and perhaps more, often a cross: depth varied at one width, width
varied at one depth. A *line* of sizes holds the runs that differ in one size axis, in the hyperparameter
asked about and in the seed, and in nothing else,

    { (size, x, seed) -> y },      x = log2(value) or the value itself,   y = the metric where a run trained.

Batch and length are axes like width and depth where the sweep says so (its base has four numbers) or where
one asks over them: `batch` is a run's batch_size, `tokens` its batch_size x steps. If something else was
swept too, choosing a value for the user would be a guess: it is refused, with the values to choose from.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from trimtab.errors import InputError
from trimtab.parametrization.rules import SCHEMES
from trimtab.runs.results import METRICS, OUTCOMES
from trimtab.sweeps.store import Store

# a pandas DataFrame: pandas has no types of its own, and those guessed from its source get in the way
Table = Any
SIZES = ("width", "depth")
AXES = (*SIZES, "batch", "tokens")
NEEDED = ("state", "scheme", "width", "depth", "seed")
# What a row says about its run rather than about its configuration.
ABOUT = {"cell", "label", "state", "seed", "scheme", "error", *AXES, *OUTCOMES}
ABOUT |= {
    "fleet",
    "member",
    "attempt",
    "attempts",
    "worker",
    "lease",
    "created",
    "started",
    "finished",
    "updated",
}
FINISHED = ("done", "diverged")
# "deep": others that scale with depth; "": without
PREFERRED = ("depth-mup", "completep", "deep", "mup", "ntk", "", "sp")


@runtime_checkable
class RunSource(Protocol):
    """What `transfer` and `report` ask of a store; they write nothing to it.

    A table with one row per cell, a cell's training curves, what the sweep was (`meta`), and what else was
    attached to it (a coordinate check, a comparison with theory).
    """

    @property
    def meta(self) -> Mapping[str, Any]: ...

    def to_pandas(self) -> Table: ...

    def curves(self, cell: str) -> Mapping[str, Any]: ...

    def attached(self, kind: str) -> list[dict[str, Any]]: ...


class TableSource:
    """A plain table of runs as a source: no curves, nothing attached."""

    def __init__(self, table: Table, meta: Mapping[str, Any] | None = None) -> None:
        self.table = table
        self.meta: Mapping[str, Any] = meta or {}

    def to_pandas(self) -> Table:
        return self.table

    def curves(self, cell: str) -> Mapping[str, Any]:
        return {}

    def attached(self, kind: str) -> list[dict[str, Any]]:
        return []


def open_source(store: str | Path | pd.DataFrame | RunSource) -> RunSource:
    """The source behind a path, a table or a store.

    >>> len(open_source(pd.DataFrame({"lr": [0.1]})).to_pandas())
    1
    """
    if isinstance(store, pd.DataFrame):
        return TableSource(store)
    if isinstance(store, (str, Path)):
        path = Path(store)
        if not path.is_file():
            found = "a folder" if path.is_dir() else "not there"
            raise InputError(f"a store is the file that `trimtab sweep` wrote: {path} is {found}.")
        return Store.open(path)
    if isinstance(store, RunSource):
        return store
    raise InputError(f"store must be a path, a Store or a DataFrame: got {type(store).__name__}.")


def records(table: Table) -> list[dict[str, Any]]:
    """The rows of a table as dicts.

    >>> records(pd.DataFrame({"a": [1, 2]}))
    [{'a': 1}, {'a': 2}]
    """
    return table.to_dict("records")


def numbers(column: Any) -> np.ndarray:
    """A column as floats; what is no number is NaN.

    >>> numbers(pd.Series([1, None, "x"]))
    array([ 1., nan, nan])
    """
    converted: Any = pd.to_numeric(column, errors="coerce")
    return converted.to_numpy(float)


@dataclasses.dataclass(frozen=True)
class SizeLine:
    """Runs of one scheme along one size axis.

    cells: one row per run, with `x`, the hyperparameter on the fit's axis; `y`, the metric (NaN unless
    stable); `stable` and `unstable`. fixed: the other size, and what the caller held fixed. base: the size
    that was tuned.
    """

    scheme: str
    over: str
    hp: str
    metric: str
    axis: str
    fixed: dict[str, Any]
    base: float
    cells: Table
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> list[float]:
        return sorted(self.cells[self.over].unique())

    @property
    def sign(self) -> float:
        """-1 for what is better when larger."""
        return -1.0 if self.metric == "accuracy" else 1.0

    def value(self, x: float) -> float:
        """A place on the fit's axis in the hyperparameter's own units."""
        return float(2.0**x) if self.axis == "log2" else float(x)


def default_scheme(schemes: Sequence[str]) -> str:
    """The scheme a verdict is about when none is named: the one that one would use, not a baseline beside it.

    depth-mup, else completep, else any other that scales with depth (or is not known here), else mup, ntk,
    sp.

    >>> [default_scheme(names) for names in (["mup", "depth-mup"], ["sp", "completep"], ["sp", "ntk", "mup"])]
    ['depth-mup', 'completep', 'mup']
    """

    def rank(name: str) -> int:
        if name in PREFERRED:
            return PREFERRED.index(name)
        known = SCHEMES.get(name)
        return PREFERRED.index("" if known is not None and known.alpha is None else "deep")

    return min(schemes, key=rank)


def schemes(table: Table) -> list[str]:
    """The schemes of a table, the plainest first."""
    order = ["sp", "ntk", "mup", "depth-mup", "completep"]
    names = [str(s) for s in pd.unique(table["scheme"].dropna())] if "scheme" in table else []
    return sorted(names, key=lambda s: (order.index(s) if s in order else len(order), s))


def with_lengths(table: Table) -> Table:
    """The table with the columns batch and tokens, where its runs say their batch and their steps.

    >>> with_lengths(pd.DataFrame({"batch_size": [16], "steps": [10]}))[["batch", "tokens"]].values.tolist()
    [[16, 160]]
    """
    if "batch_size" not in table or "steps" not in table or "tokens" in table:
        return table
    return table.assign(batch=table["batch_size"], tokens=table["batch_size"] * table["steps"])


def axes_of(base: Sequence[float] | None, over: str = "") -> tuple[str, ...]:
    """The axes of growth: width and depth; batch and tokens where the base has them or `over` is one."""
    return AXES if over in AXES[2:] or (base is not None and len(base) == len(AXES)) else SIZES


def size_axes(table: Table, base: Sequence[float] | None = None) -> list[str]:
    """The axes of growth along which some scheme has two sizes with the others fixed."""
    axes, table, out = axes_of(base), with_lengths(table), []
    for over in ("depth", "width", "batch", "tokens"):
        others = [axis for axis in axes if axis != over]
        if over not in axes or not len(table) or over not in table:
            continue
        if table.groupby(["scheme", *others], sort=False)[over].nunique().max() > 1:
            out.append(over)
    return out


def axis_of(values: np.ndarray) -> str:
    """log2 for what is positive and more evenly spaced there (rates, decays; zeros aside), else linear
    (momentum).

    >>> [axis_of(np.array(v)) for v in ([0.01, 0.1], [0.0, 0.3, 0.6, 0.9], [0.0, 1e-4, 1e-3, 1e-2])]
    ['log2', 'linear', 'log2']
    """
    if not (values >= 0).all():
        return "linear"
    positive = np.unique(values[values > 0])
    if len(positive) < 3:
        return "log2" if len(positive) == 2 and positive[1] >= 4 * positive[0] else "linear"
    uneven = [np.diff(v).std() / np.diff(v).mean() for v in (positive, np.log(positive))]
    return "log2" if uneven[1] < uneven[0] else "linear"


def _refuse(table: Table, over: str, hp: str, metric: str, where: Mapping[str, Any]) -> None:
    """Refuse what cannot be asked of this table, all faults at once."""
    problems = [f"the table has no column {c!r}" for c in NEEDED if c not in table]
    if over not in AXES:
        problems.append(f"over must be one of {', '.join(AXES)}: got {over!r}")
    elif over not in SIZES and over not in table:
        problems.append(f"over {over} needs the columns batch_size and steps, which the table does not have")
    if metric not in METRICS or metric not in table:
        known = ", ".join(m for m in METRICS if m in table)
        problems.append(f"metric must be one of {known}: got {metric!r}")
    numeric = [c for c in table if c not in ABOUT and _is_numeric(table[c])]
    swept = ", ".join(str(c) for c in numeric if table[c].nunique() > 1) or "nothing"
    if hp not in numeric:
        problems.append(f"hp must be a number that was swept: got {hp!r}; swept here: {swept}")
    problems += [
        f"where names {c!r}, which is no column; swept here: {swept}" for c in where if c not in table
    ]
    if problems:
        raise InputError("\n".join(["this cannot be asked of the store:", *(f"  - {p}" for p in problems)]))


def choose_line(
    table: Table,
    over: str,
    hp: str,
    scheme: str,
    *,
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
    base: Sequence[float] | None = None,
) -> SizeLine:
    """The runs of `scheme` along `over`; `where` fixes what else was swept.

    base: (width, depth), or (width, depth, batch, tokens) of a sweep over those.
    """
    where, table = dict(where or {}), with_lengths(table)
    _refuse(table, over, hp, metric, where)
    cells = table[table["scheme"] == scheme]
    if not len(cells):
        known = ", ".join(schemes(table)) or "it has none"
        raise InputError(f"scheme must be one of the store's: {known}; got {scheme!r}.")
    for column, value in where.items():
        kept = cells[equal(cells[column], value)]
        if not len(kept):
            tried = _list_values(cells[column])
            raise InputError(f"where={{{column!r}: {value!r}}} leaves nothing: the values are {tried}.")
        cells = kept
    others = _longest(cells, over, base)
    for axis, at in others.items():
        cells = cells[cells[axis] == at]
    cells = cells[cells[hp].notna()]
    cells, notes = _newest(cells, where)
    if ambiguous := also_swept(cells, over, hp, base):
        choose = "; ".join(f"{c}: {_list_values(cells[c])}" for c in ambiguous)
        raise InputError(
            f"one curve per size needs one value of everything but {hp} and the seed. "
            f"Swept here too: {choose}. Choose with --where {ambiguous[0]}=... "
            f"(in Python where={{{ambiguous[0]!r}: ...}})."
        )
    values = cells[hp].to_numpy(float)
    axis = (
        "log2" if hp == "lr" else axis_of(values)
    )  # rates are multiplied, however few or evenly they were tried
    if axis == "log2" and (values == 0).any():
        cells, notes = cells[values > 0], [*notes, f"{hp} = 0 has no place on a log axis and is left out"]
    cells = _with_outcomes(cells, hp, axis, metric)
    sizes = sorted(cells[over].unique())
    wanted = _by_axis(base).get(over)
    return SizeLine(
        scheme=scheme,
        over=over,
        hp=hp,
        metric=metric,
        axis=axis,
        fixed={**others, **where},
        base=wanted if wanted is not None and wanted in sizes else sizes[0],
        cells=cells,
        notes=tuple(notes),
    )


def _by_axis(base: Sequence[float] | None) -> dict[str, float]:
    return dict(zip(AXES, base or (), strict=False))


def _longest(cells: Table, over: str, base: Sequence[float] | None) -> dict[str, Any]:
    """The values of the other axes with the most sizes along `over`; among equals the base's, then the
    smallest."""
    others = [axis for axis in axes_of(base, over) if axis != over]
    wanted = _by_axis(base)
    counts = {
        (key if isinstance(key, tuple) else (key,)): group[over].nunique()
        for key, group in cells.groupby(others)
    }

    def rank(values: tuple[Any, ...]) -> tuple[Any, ...]:
        near = sum(v == wanted.get(axis) for axis, v in zip(others, values, strict=True))
        return counts[values], near, *(-v for v in values)

    return dict(zip(others, max(counts, key=rank), strict=True))


def learns_too_slowly(cells: Table) -> bool:
    """Whether runs of one size that all fail do so because the hyperparameter is too small: none diverged,
    and the loss falls from each value tried to the next.

    A run too small to learn ends where it began, up to the noise of its batches; the same seed has the same
    batches at every value, so that the little it learned shows all the same.

    >>> learns_too_slowly(pd.DataFrame(dict(x=[-9, -8], state="done", train_loss=[2.72, 2.71])))
    True
    >>> learns_too_slowly(pd.DataFrame(dict(x=[-9, -8], state="done", train_loss=[2.72, 2.91])))
    False
    """
    finished = cells[cells["state"].isin(("done", "diverged"))]
    if "train_loss" not in cells or (finished["state"] == "diverged").any():
        return False
    means = finished.groupby("x")["train_loss"].mean().sort_index().to_numpy(float)
    return len(means) > 1 and bool((np.diff(means) < 0).all())


def _with_outcomes(cells: Table, hp: str, axis: str, metric: str) -> Table:
    """The cells with x, y, stable and unstable. A run that ended at or above its starting loss counts as
    unstable."""
    x = np.log2(cells[hp].to_numpy(float)) if axis == "log2" else cells[hp].to_numpy(float)
    state = cells["state"].to_numpy(str)
    y = numbers(cells[metric])
    collapsed = np.zeros(len(cells), bool)
    if "collapsed" in cells:
        collapsed = cells["collapsed"].fillna(False).astype(bool).to_numpy()
    learned = (state == "done") & ~collapsed
    if learned.any() and not np.isfinite(y[learned]).any():
        have = [m for m in METRICS if m in cells and np.isfinite(numbers(cells[m])[learned]).any()]
        raise InputError(
            f"{metric} was not measured in these runs: they have {', '.join(have) or 'nothing'}."
        )
    stable = learned & np.isfinite(y)
    unstable = (state == "diverged") | ((state == "done") & ~stable)
    return cells.assign(x=np.round(x, 9), y=np.where(stable, y, np.nan), stable=stable, unstable=unstable)


def _newest(cells: Table, where: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """The cells of the user's files as they were last; earlier versions of a file stay in the store but are
    other runs."""
    notes = []
    for column in (c for c in cells.columns if c.startswith("sources.") and c not in where):
        if cells[column].nunique(dropna=False) > 1:
            kept = cells[equal(cells[column], cells[column].iloc[-1])]
            file, left = column.removeprefix("sources."), len(cells) - len(kept)
            notes.append(f"{left} runs of an earlier version of {file} are left out")
            cells = kept
    return cells, notes


def also_swept(cells: Table, over: str, hp: str, base: Sequence[float] | None = None) -> list[str]:
    """Columns of the configuration that take several values at one size and one value of hp."""
    axes = axes_of(base, over)
    cells = with_lengths(cells)
    settings = [c for c in cells.columns if c not in ABOUT]
    cells = cells.assign(**{str(c): cells[c].map(_word) for c in settings if not _scalar(cells[c])})
    columns = [c for c in settings if c not in (over, hp) and cells[c].nunique(dropna=False) > 1]
    if not columns:
        return []
    most = cells.groupby([*axes, "scheme", hp], dropna=False)[columns].nunique(dropna=False).max()
    return [str(c) for c in columns if most[c] > 1]


def best_setting(table: Table, hp: str, metric: str, base: Sequence[float] | None) -> dict[str, Any]:
    """Of what else was swept, the setting of the default scheme's best run at the base: for showing, not for
    asking."""
    swept = also_swept(table, "depth", hp, base)
    if not swept:
        return {}
    mine = table["scheme"] == default_scheme(schemes(table))
    cells = table[mine & (table["state"] == "done") & table[metric].notna()]
    if base is not None and len(at := cells[(cells["width"] == base[0]) & (cells["depth"] == base[1])]):
        cells = at
    if not len(cells):
        cells = table
    row = cells.iloc[0]
    if cells[metric].notna().any():
        values = cells[metric].astype(float)
        row = cells.loc[values.idxmax() if metric == "accuracy" else values.idxmin()]
    return {c: (row[c].item() if isinstance(row[c], np.generic) else row[c]) for c in swept}


def equal(values: Any, value: Any) -> Any:
    """Where a column has a value, which may be a list, a table or None."""
    if isinstance(value, (int, float)) and not math.isnan(value) and pd.api.types.is_numeric_dtype(values):
        return np.isclose(values, value, rtol=1e-9, atol=0)
    return (values.map(_word) == _word(value)).to_numpy(bool)


def _is_numeric(column: Any) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _scalar(column: Any) -> bool:
    plain = (int, float, str, bool)
    return column.dtype != object or column.map(lambda v: v is None or isinstance(v, plain)).all()


def _word(value: Any) -> str:
    """A text that is equal where values are: lists and tables too, None and NaN alike.

    >>> _word([0.9, 0.95]) == _word((0.9, 0.95)), _word(None) == _word(math.nan), _word("None") == _word(None)
    (True, True, False)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "None"
    return json.dumps(
        value, sort_keys=True, default=lambda v: v.item() if isinstance(v, np.generic) else str(v)
    )


def _list_values(values: Any, most: int = 8) -> str:
    if values.dtype == object:
        words = [word.strip('"') for word in sorted(values.map(_word).unique())]
    else:
        words = [str(v) for v in sorted(values.dropna().unique())] + ["None"] * bool(values.isna().any())
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
