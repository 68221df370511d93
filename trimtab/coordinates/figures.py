"""The picture of a coordinate check: size of each quantity against width and depth, and what is expected of
it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

SHOWN = 12  # curves in a panel: the worst, then the first
COLUMNS = 2  # of panels
WORST_FIRST = {"bad": 0, "unsure": 1, "good": 2}


class Judged(Protocol):
    """What a picture needs of a `Check`: its verdicts, its slopes and the numbers behind them."""

    @property
    def verdict(self) -> str: ...
    @property
    def verdicts(self) -> dict[str, str]: ...
    @property
    def slopes(self) -> Any: ...
    @property
    def measurements(self) -> Any: ...


def draw(check: Judged) -> go.Figure:
    """One panel per judged quantity and axis; a curve per module through the mean of the seeds, the seeds as
    dots."""
    rows: Any = check.slopes
    rows = rows[rows["answer"] != ""]
    axes, quantities = list(check.verdicts), list(dict.fromkeys(rows["quantity"]))
    panels = [
        (q, a) for q in quantities for a in axes if ((rows["quantity"] == q) & (rows["axis"] == a)).any()
    ]
    high = max(1, math.ceil(len(panels) / COLUMNS))
    figure = make_subplots(
        rows=high,
        cols=COLUMNS,
        subplot_titles=[f"{q} over {a}" for q, a in panels] or None,
        vertical_spacing=0.35 / high,
    )
    points: Any = check.measurements
    for n, (quantity, axis) in enumerate(panels):
        place: dict[str, Any] = dict(row=n // COLUMNS + 1, col=n % COLUMNS + 1)
        own = rows[(rows["quantity"] == quantity) & (rows["axis"] == axis)]
        own = own.sort_values("answer", key=lambda a: a.map(WORST_FIRST), kind="stable")[:SHOWN]
        measured = points[(points["quantity"] == quantity) & (points["axis"] == axis)]
        for i, row in enumerate(own.itertuples()):
            colour = "crimson" if row.answer == "bad" else qualitative.Safe[i % len(qualitative.Safe)]
            chosen = measured[(measured["module"] == row.module) & (measured["step"] == row.step)]
            _curve(figure, chosen, f"{row.module} {row.slope:+.2f}", colour, place)
            if i == 0:
                _expected(figure, chosen, row.expected, place)
        figure.update_xaxes(type="log", title_text=axis, **place)
        figure.update_yaxes(type="log", **place)
    figure.update_layout(
        title=f"Coordinate check: {check.verdict}",
        template="plotly_white",
        height=280 * high + 80,
        margin=dict(t=80),
    )
    return figure


def _curve(figure: go.Figure, points: Any, name: str, colour: str, place: Mapping[str, Any]) -> None:
    """One module's sizes: the seeds as dots, a line through their mean."""
    mean = points.groupby("size")["value"].mean()
    same: dict[str, Any] = dict(showlegend=False, hovertext=name, **place)
    figure.add_scatter(x=mean.index, y=mean.values, mode="lines", line=dict(color=colour), name=name, **same)
    marker = dict(color=colour, size=4)
    figure.add_scatter(x=points["size"], y=points["value"], mode="markers", marker=marker, **same)


def _expected(figure: go.Figure, points: Any, slope: float, place: Mapping[str, Any]) -> None:
    """The line that transfer asks for, through the first size of a module."""
    mean = points.groupby("size")["value"].mean()
    if not len(mean):
        return
    sizes = mean.index.to_numpy()
    figure.add_scatter(
        x=sizes,
        y=mean.iloc[0] * (sizes / sizes[0]) ** slope,
        mode="lines",
        line=dict(color="grey", dash="dash"),
        name="expected",
        showlegend=False,
        **place,
    )
