"""What else is attached to a store (a coordinate check, a comparison with theory), made safe to show on the
page.

A section comes from elsewhere: its figures keep SVG traces only, nothing is fetched, and labels keep no
markup but line breaks, bold, italics, sub- and superscripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from trimtab.optima.tables import RunSource
from trimtab.optima.wording import number

SVG_TRACES = {"scatter", "bar", "box", "violin", "histogram", "heatmap", "contour"}
FETCHING = ("template", "images", "sliders", "updatemenus", "mapbox", "map", "geo")


def attached_sections(source: RunSource, figures: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for kind in ("check", "limit"):
        out += [
            attached_section(kind, i, section, figures) for i, section in enumerate(source.attached(kind))
        ]
    return out


def attached_section(
    kind: str, i: int, section: Mapping[str, Any], figures: dict[str, Any]
) -> dict[str, Any]:
    """What the page shows of an attached section; its figures join the page's."""
    names = []
    for j, figure in enumerate(section.get("figures") or []):
        names.append(f"{kind}-{i}-{j}")
        figures[names[-1]] = _safe_figure(figure)
    return {
        "id": f"{kind}-{i}",
        "title": str(section.get("title", kind)),
        "verdict": str(section.get("verdict") or ""),
        "text": str(section.get("text") or ""),
        "figures": names,
        "tables": [_table_cells(t) for t in section.get("tables") or []],
    }


def _table_cells(table: Any) -> dict[str, Any]:
    if isinstance(table, pd.DataFrame):
        table = table.to_dict("records")
    if isinstance(table, Mapping):
        return {
            "columns": [str(c) for c in table.get("columns", [])],
            "rows": [[_cell_text(v) for v in row] for row in table.get("rows", [])],
            "title": str(table.get("title", "")),
        }
    rows = list(table)
    columns = list(rows[0]) if rows else []
    return {
        "columns": [str(c) for c in columns],
        "rows": [[_cell_text(row.get(c)) for c in columns] for row in rows],
        "title": "",
    }


def _cell_text(value: Any) -> str:
    return number(value) if isinstance(value, float) else "" if value is None else str(value)


def _safe_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure from elsewhere with what the page allows."""
    layout = {k: v for k, v in dict(figure.get("layout") or {}).items() if k not in FETCHING}
    traces = [dict(t) for t in figure.get("data") or [] if t.get("type", "scatter") in SVG_TRACES]
    return _without_markup({"data": traces, "layout": layout})


def _without_markup(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _without_markup(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_without_markup(v) for v in value]
    return re.sub(r"<(?!/?(?:br|sub|sup|b|i)\s*/?>)", "&lt;", value) if isinstance(value, str) else value
