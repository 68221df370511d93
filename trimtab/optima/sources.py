"""Where results come from: a sweep's store, or a table of runs.

Everything after a sweep reads four things and writes nothing: a table with one row per cell, a cell's training curves, what the
sweep was (`meta`), and what else was attached to it (a coordinate check, a comparison with theory).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from trimtab.errors import InputError

Table = Any  # a pandas DataFrame: pandas has no types of its own, and those guessed from its source get in the way


@runtime_checkable
class Source(Protocol):
    """What `transfer` and `report` ask of a store."""

    @property
    def meta(self) -> Mapping[str, Any]: ...

    def to_pandas(self) -> Table: ...

    def curves(self, cell: str) -> Mapping[str, Any]: ...

    def attached(self, kind: str) -> list[dict[str, Any]]: ...


class Frame:
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


def opened(store: str | Path | pd.DataFrame | Source) -> Source:
    """The source behind a path, a table or a store.

    >>> len(opened(pd.DataFrame({"lr": [0.1]})).to_pandas())
    1
    """
    if isinstance(store, pd.DataFrame):
        return Frame(store)
    if isinstance(store, (str, Path)):
        path = Path(store)
        if not path.is_file():
            raise InputError(
                f"a store is the file that `trimtab sweep` wrote: {path} is {'a folder' if path.is_dir() else 'not there'}."
            )
        return importlib.import_module("trimtab.sweeps.store").Store.open(
            path
        )  # when it is needed: a table needs no store
    if isinstance(store, Source):
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
