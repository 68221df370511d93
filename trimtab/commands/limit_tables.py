"""A limit in the terminal and on the page: how fast errors fall, how far each size is off, where the best
rate lies."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.limits.results import Limit, sentence

COLOUR = {
    "converges": "green",
    "contradicts": "red",
    "cannot tell": "yellow",
    "open": "yellow",
    "agrees": "green",
    "disagrees": "red",
}
TITLES = (
    "How fast errors fall",
    "Distance from the limit, ± one standard error (infinite widths: from infinite depth)",
    "Best rate",
)
LEGEND = (
    "output: how far the mean over networks is from the limit along the run; loss: the same after the last "
    "step; scatter: one network about their mean",
    "over width at depth L, or over depth at width N; exponent: the error goes as size to this power; open: "
    "the interval does not tell",
)
SHORT = {"mean output": "output", "mean loss": "loss", "one network": "scatter"}


def tables(found: Limit) -> list[dict[str, Any]]:
    """Every table as columns and rows of text."""
    parts = [_rates(found), _sizes(found)] + ([_optima(found)] if found.optimum is not None else [])
    return [table | {"title": title} for title, table in zip(TITLES, parts, strict=False)]


def _number(x: float, form: str = ".3g") -> str:
    return "-" if math.isnan(x) else ("∞" if x > 0 else "-∞") if math.isinf(x) else format(x, form)


def _percent(x: float, error: float) -> str:
    return "-" if not math.isfinite(x) else f"{100 * x:.2f} ± {_number(100 * error, '.2f')}"


def _rates(found: Limit) -> dict[str, Any]:
    tolerance = found.bound.tolerance
    rows = []
    for r in found.rates + (() if found.optimum is None else (found.optimum.rate,)):
        size, low, high = (_number(v, ".0f" if v < 1e4 else ".1g") for v in r.needed(tolerance))
        over = f"{r.axis}, {'L' if r.axis == 'width' else 'N'} {_number(r.at, 'g')}"
        exponent = f"{_number(r.exponent, '.2f')} ({_number(r.low, '.2f')}, {_number(r.high, '.2f')})"
        rows.append(
            [
                SHORT.get(r.quantity, r.quantity),
                over,
                exponent,
                f"{r.expected:.2f}",
                "open" if r.verdict == "cannot tell" else r.verdict,
                "-" if r.quantity == "best rate" else f"{size} ({low} to {high})",
            ]
        )
    return {
        "columns": ["quantity", "over", "exponent (95 %)", "theory", "", f"size for {100 * tolerance:g} %"],
        "rows": rows,
    }


def _sizes(found: Limit) -> dict[str, Any]:
    columns = ["width", "depth", "mean output, %", "scatter, %", "loss", "mean loss, %", "networks"]
    rows = []
    for r in found.rows:
        theory = math.isinf(r["width"])
        rows.append(
            [
                _number(r["width"], "g"),
                f"{r['depth']:g}",
                _percent(r["error"], r["stderr"]),
                "-" if theory else _percent(r["fluctuation"], r["fluctuation_stderr"]),
                _number(r["loss"]),
                _percent(r["loss_error"], r["loss_stderr"]),
                "theory" if theory else f"{r['networks']:g}",
            ]
        )
    return {"columns": columns, "rows": rows}


def _optima(found: Limit) -> dict[str, Any]:
    assert found.optimum is not None
    columns = ["width", "best rate", "95 % interval", "stable to", "log2 from the limit's"]
    rows = []
    for r, curve in zip(found.optimum.rows, found.optimum.curves, strict=True):
        ends = "beyond these rates" if r["lr"] in (curve["lr"][0], curve["lr"][-1]) else "at the edge"
        interval = ends if math.isnan(r["low"]) else f"{_number(r['low'])} to {_number(r['high'])}"
        rows.append(
            [
                _number(r["width"], "g"),
                _number(r["lr"]),
                interval,
                _number(r["edge"]),
                f"{r['shift']:+.2f} ± {_number(r['shift_stderr'], '.2f')}",
            ]
        )
    return {"columns": columns, "rows": rows}


def overview(found: Limit) -> RenderableType:
    """What the terminal shows: the bound first, then rates, then sizes."""
    parts: list[RenderableType] = [Text(sentence(found), style=f"bold {COLOUR[found.verdict]}")]
    for content in tables(found):
        table = Table(
            title=Text(content["title"], style="bold"),
            title_justify="left",
            title_style="",
            box=None,
            pad_edge=False,
            header_style="dim",
        )
        for name in content["columns"]:
            table.add_column(
                name,
                justify="left" if name in ("quantity", "over", "exponent (95 %)", "") else "right",
                no_wrap=True,
            )
        for row in content["rows"]:
            table.add_row(*(Text(str(v), style=COLOUR.get(v, "")) for v in row))
        parts += [Text(""), table]
    return Group(*parts, Text(""), *(Text(line, style="dim") for line in LEGEND))
