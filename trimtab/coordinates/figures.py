"""The picture of a coordinate check: size of each quantity against width and depth, and what is expected of
it."""

from __future__ import annotations

import math
from typing import Any, Protocol

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

SHOWN = 12  # curves in a panel: the worst, then the first


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
    columns = 2
    titles = [f"{q} over {a}" for q, a in panels]
    figure = make_subplots(
        rows=max(1, math.ceil(len(panels) / columns)),
        cols=columns,
        subplot_titles=titles or None,
        vertical_spacing=0.35 / max(1, math.ceil(len(panels) / columns)),
    )
    points: Any = check.measurements
    for n, (quantity, axis) in enumerate(panels):
        place: dict[str, Any] = dict(row=n // columns + 1, col=n % columns + 1)
        own = rows[(rows["quantity"] == quantity) & (rows["axis"] == axis)]
        own = own.sort_values(
            "answer", key=lambda a: a.map({"bad": 0, "unsure": 1, "good": 2}), kind="stable"
        )[:SHOWN]
        for i, row in enumerate(own.itertuples()):
            chosen = points[
                (points["module"] == row.module)
                & (points["quantity"] == quantity)
                & (points["axis"] == axis)
                & (points["step"] == row.step)
            ]
            mean = chosen.groupby("size")["value"].mean()
            colour = "crimson" if row.answer == "bad" else qualitative.Safe[i % len(qualitative.Safe)]
            name = f"{row.module} {row.slope:+.2f}"
            figure.add_scatter(
                x=mean.index,
                y=mean.values,
                mode="lines",
                line=dict(color=colour),
                name=name,
                showlegend=False,
                hovertext=name,
                **place,
            )
            figure.add_scatter(
                x=chosen["size"],
                y=chosen["value"],
                mode="markers",
                marker=dict(color=colour, size=4),
                showlegend=False,
                hovertext=name,
                **place,
            )
            if i == 0 and len(mean):
                sizes = mean.index.to_numpy()
                figure.add_scatter(
                    x=sizes,
                    y=mean.iloc[0] * (sizes / sizes[0]) ** row.expected,
                    mode="lines",
                    line=dict(color="grey", dash="dash"),
                    name="expected",
                    showlegend=False,
                    **place,
                )
        figure.update_xaxes(type="log", title_text=axis, **place)
        figure.update_yaxes(type="log", **place)
    figure.update_layout(
        title=f"Coordinate check: {check.verdict}",
        template="plotly_white",
        height=280 * max(1, math.ceil(len(panels) / columns)) + 80,
        margin=dict(t=80),
    )
    return figure
