"""The cells of a store as a table: one row each, a run's nested fields dotted. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trimtab.runs.results import OUTCOMES

if TYPE_CHECKING:
    import pandas as pd

WORDS = ("collapsed", "arithmetic", "proof")  # outcomes that are no numbers
EMPTY = ("cell", "label", "state", "scheme", "width", "depth", "seed", "lr", *OUTCOMES, "error")


def table(cells: Iterable[tuple[str, str, str, str, str | None, str | None]]) -> pd.DataFrame:
    """One row per cell, from (cell, label, state, configuration, result, error), the two as JSON.

    >>> frame = table([("a", "first", "done", '{"lr": 0.1, "base": [32, 3]}', '{"train_loss": 0.5}', None)])
    >>> frame[["lr", "base_width", "train_loss"]].values.tolist()
    [[0.1, 32.0, 0.5]]
    """
    import pandas as pd

    rows = []
    for cell, label, state, config, result, error in cells:
        held = json.loads(result) if result else {}
        row = {"cell": cell, "label": label, "state": state} | _flat(json.loads(config))
        rows.append(row | {key: held.get(key) for key in OUTCOMES} | {"error": error})
    frame = pd.DataFrame(rows, columns=None if rows else list(EMPTY))
    for key in OUTCOMES:
        if key not in WORDS:
            frame[key] = pd.to_numeric(frame[key], errors="coerce")
    frame["collapsed"] = frame["collapsed"].map(lambda v: v is True)
    return frame


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run, each a column."""
    row: dict[str, Any] = {}
    for key, value in config.items():
        if key == "roles":
            row |= {f"{key}.{r}.{k}": v for r, multipliers in value.items() for k, v in multipliers.items()}
        elif isinstance(value, dict):
            row |= {f"{key}.{k}": v for k, v in value.items()}
        elif key == "base":
            row |= {"base_width": value[0] if value else None, "base_depth": value[1] if value else None}
        else:
            row[key] = value
    return row
