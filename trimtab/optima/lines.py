"""Which cells answer "over depth" or "over width": one line of sizes, one scheme, one setting of everything else.

A sweep is a grid over sizes, rates, seeds and perhaps more, often a cross: depth varied at one width, width varied at one depth.
A *line* holds the cells that differ in one size axis, the hyperparameter asked about and the seed, and in nothing else. What
cannot be told is refused with the values to choose from.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from trimtab.errors import InputError
from trimtab.optima.sources import Table, numbers
from trimtab.parametrization.rules import SCHEMES
from trimtab.runs.results import METRICS, OUTCOMES

SIZES = ("width", "depth")
NEEDED = ("state", "scheme", "width", "depth", "seed")
# What a row says about its run rather than about its configuration.
ABOUT = {"cell", "label", "state", "seed", "scheme", "error", *SIZES, *OUTCOMES}
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


@dataclasses.dataclass(frozen=True)
class Line:
    """Cells of one scheme along one size axis. `x` is the hyperparameter on the fit's axis, `y` the metric (NaN unless stable)."""

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


def default_scheme(schemes: Sequence[str]) -> str:
    """The scheme a verdict is about when none is named: the one that one would use, not a baseline beside it.

    depth-mup, else completep, else any other that scales with depth (or is not known here), else mup, ntk, sp.

    >>> default_scheme(["mup", "depth-mup"]), default_scheme(["sp", "completep"]), default_scheme(["sp", "ntk", "mup"])
    ('depth-mup', 'completep', 'mup')
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
    found = [str(s) for s in pd.unique(table["scheme"].dropna())] if "scheme" in table else []
    return sorted(found, key=lambda s: (order.index(s) if s in order else len(order), s))


def varied(table: Table) -> list[str]:
    """The size axes along which some scheme has two sizes with the other one fixed."""
    out = []
    for over, other in (("depth", "width"), ("width", "depth")):
        if len(table) and table.groupby(["scheme", other], sort=False)[over].nunique().max() > 1:
            out.append(over)
    return out


def axis_of(values: np.ndarray) -> str:
    """log2 for what is positive and more evenly spaced there (rates, decays; zeros aside), else linear (momentum).

    >>> axis_of(np.array([0.01, 0.1])), axis_of(np.array([0.0, 0.3, 0.6, 0.9])), axis_of(np.array([0.0, 1e-4, 1e-3, 1e-2]))
    ('log2', 'linear', 'log2')
    """
    if not (values >= 0).all():
        return "linear"
    positive = np.unique(values[values > 0])
    if len(positive) < 3:
        return "log2" if len(positive) == 2 and positive[1] >= 4 * positive[0] else "linear"
    uneven = [np.diff(v).std() / np.diff(v).mean() for v in (positive, np.log(positive))]
    return "log2" if uneven[1] < uneven[0] else "linear"


def checked(table: Table, over: str, hp: str, metric: str, where: Mapping[str, Any]) -> None:
    """Refuse what cannot be asked of this table, all faults at once."""
    problems = [f"the table has no column {c!r}" for c in NEEDED if c not in table]
    if over not in SIZES:
        problems.append(f'over must be "depth" or "width": got {over!r}')
    if metric not in METRICS or metric not in table:
        problems.append(
            f"metric must be one of {', '.join(m for m in METRICS if m in table)}: got {metric!r}"
        )
    numeric = [
        c
        for c in table
        if c not in ABOUT
        and pd.api.types.is_numeric_dtype(table[c])
        and not pd.api.types.is_bool_dtype(table[c])
    ]
    if hp not in numeric:
        swept = [str(c) for c in numeric if table[c].nunique() > 1]
        problems.append(
            f"hp must be a number that was swept: got {hp!r}; swept here: {', '.join(swept) or 'nothing'}"
        )
    problems += [f"where names {c!r}, which is no column" for c in where if c not in table]
    if problems:
        raise InputError("\n".join(["this cannot be asked of the store:", *(f"  - {p}" for p in problems)]))


def line(
    table: Table,
    over: str,
    hp: str,
    scheme: str,
    *,
    metric: str = "train_loss",
    where: Mapping[str, Any] | None = None,
    base: Sequence[float] | None = None,
) -> Line:
    """The cells of `scheme` along `over`; `where` fixes what else was swept, `base` is (width, depth)."""
    where = dict(where or {})
    checked(table, over, hp, metric, where)
    cells = table[table["scheme"] == scheme]
    if not len(cells):
        raise InputError(
            f"scheme must be one of the store's: {', '.join(schemes(table)) or 'it has none'}; got {scheme!r}."
        )
    for column, value in where.items():
        values = cells[column]
        kept = cells[equal(values, value)]
        if not len(kept):
            raise InputError(
                f"where={{{column!r}: {value!r}}} leaves nothing: the values are {_listed(values)}."
            )
        cells = kept
    other = "width" if over == "depth" else "depth"
    counts = cells.groupby(other)[over].nunique()
    # The longest line; among equals the base's, then the smallest.
    wanted = base[["width", "depth"].index(other)] if base is not None else None
    at = max(counts.index, key=lambda v: (counts[v], v == wanted, -v))
    cells = cells[cells[other] == at]
    cells = cells[cells[hp].notna()]
    cells, notes = _newest(cells, where)
    ambiguous = also_swept(cells, over, hp)
    if ambiguous:
        choose = "; ".join(f"{c}: {_listed(cells[c])}" for c in ambiguous)
        raise InputError(
            f"one curve per size needs one value of everything but {hp} and the seed. Swept here too: {choose}. Choose with where={{{ambiguous[0]!r}: ...}}."
        )
    values = cells[hp].to_numpy(float)
    axis = (
        "log2" if hp == "lr" else axis_of(values)
    )  # rates are multiplied, however few or evenly they were tried
    if axis == "log2" and (values == 0).any():
        cells, notes = cells[values > 0], [*notes, f"{hp} = 0 has no place on a log axis and is left out"]
    x = np.log2(cells[hp].to_numpy(float)) if axis == "log2" else cells[hp].to_numpy(float)
    state = cells["state"].to_numpy(str)
    y = numbers(cells[metric])
    collapsed = (
        cells["collapsed"].fillna(False).astype(bool).to_numpy()
        if "collapsed" in cells
        else np.zeros(len(cells), bool)
    )
    learned = (state == "done") & ~collapsed
    if learned.any() and not np.isfinite(y[learned]).any():
        raise InputError(
            f"{metric} was not measured in these runs: they have {', '.join(m for m in METRICS if m in cells and np.isfinite(numbers(cells[m])[learned]).any()) or 'nothing'}."
        )
    stable = learned & np.isfinite(y)
    unstable = (state == "diverged") | ((state == "done") & ~stable)
    cells = cells.assign(x=np.round(x, 9), y=np.where(stable, y, np.nan), stable=stable, unstable=unstable)
    sizes = sorted(cells[over].unique())
    wanted = base[["width", "depth"].index(over)] if base is not None else None
    return Line(
        scheme,
        over,
        hp,
        metric,
        axis,
        {other: at, **where},
        wanted if wanted is not None and wanted in sizes else sizes[0],
        cells,
        tuple(notes),
    )


def _newest(cells: Table, where: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """The cells of the user's files as they were last; earlier versions of a file stay in the store but are other runs."""
    notes = []
    for column in (c for c in cells.columns if c.startswith("sources.") and c not in where):
        if cells[column].nunique(dropna=False) > 1:
            last = cells[column].iloc[-1]
            kept = cells[equal(cells[column], last)]
            notes.append(
                f"{len(cells) - len(kept)} runs of an earlier version of {column.removeprefix('sources.')} are left out"
            )
            cells = kept
    return cells, notes


def also_swept(cells: Table, over: str, hp: str) -> list[str]:
    """Columns of the configuration that take several values at one size and one value of hp."""
    cells = cells.assign(
        **{str(c): _words(cells[c]) for c in cells.columns if c not in ABOUT and not _scalar(cells[c])}
    )
    columns = [
        c
        for c in cells.columns
        if c not in ABOUT and c not in (over, hp) and cells[c].nunique(dropna=False) > 1
    ]
    if not columns:
        return []
    most = cells.groupby([*SIZES, "scheme", hp], dropna=False)[columns].nunique(dropna=False).max()
    return [str(c) for c in columns if most[c] > 1]


def equal(values: Any, value: Any) -> Any:
    """Where a column has a value, which may be a list, a table or None."""
    if isinstance(value, (int, float)) and not math.isnan(value) and pd.api.types.is_numeric_dtype(values):
        return np.isclose(values, value, rtol=1e-9, atol=0)
    return (_words(values) == _word(value)).to_numpy(bool)


def _scalar(values: Any) -> bool:
    return (
        values.dtype != object
        or values.map(lambda v: v is None or isinstance(v, (int, float, str, bool))).all()
    )


def _words(values: Any) -> Any:
    """A column as texts that are equal where its values are: lists and tables too, None and NaN alike."""
    return values.map(_word)


def _word(value: Any) -> str:
    """
    >>> _word([0.9, 0.95]) == _word((0.9, 0.95)), _word(None) == _word(math.nan), _word("None") == _word(None)
    (True, True, False)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "None"
    return json.dumps(
        value, sort_keys=True, default=lambda v: v.item() if isinstance(v, np.generic) else str(v)
    )


def settled(table: Table, hp: str, metric: str, base: Sequence[float] | None) -> dict[str, Any]:
    """For showing rather than asking: of what else was swept, the setting with the best run of the default scheme at the base."""
    swept = also_swept(table, "depth", hp)
    if not swept:
        return {}
    cells = table[
        (table["scheme"] == default_scheme(schemes(table)))
        & (table["state"] == "done")
        & table[metric].notna()
    ]
    if base is not None and len(at := cells[(cells["width"] == base[0]) & (cells["depth"] == base[1])]):
        cells = at
    if not len(cells):
        cells = table
    row = (
        cells.loc[
            cells[metric].astype(float).idxmin()
            if metric != "accuracy"
            else cells[metric].astype(float).idxmax()
        ]
        if cells[metric].notna().any()
        else cells.iloc[0]
    )
    return {c: (row[c].item() if isinstance(row[c], np.generic) else row[c]) for c in swept}


def _listed(values: Any, most: int = 8) -> str:
    if values.dtype == object:
        unique = sorted(_words(values).unique())
        shown = [word.strip('"') for word in unique]
    else:
        unique = sorted(values.dropna().unique())
        shown = [str(v) for v in unique] + (["None"] if values.isna().any() else [])
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
