"""A transfer in the terminal: the verdict first, what would tell where the runs cannot, then tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.optima.transfers import Transfer
from trimtab.optima.wording import between, headline, hp_name, number, span

LEGEND = (
    "best: where the curve fitted to a size's runs is lowest; stable: the largest value at which every seed "
    "trained; loss: at the best",
    "regret: what keeping the base's best costs there, its 95 % interval; ?: the best is beyond the grid",
)
COLOUR = {"transfers": "green", "drifts": "red", "cannot tell": "yellow"}


def overview(
    every: Mapping[str, Mapping[str, Transfer]],
    mine: Mapping[str, Transfer],
    scale: Mapping[str, Any] | None = None,
) -> RenderableType:
    """What the terminal shows: the verdict first, then the details. scale: the gradient noise scale, if it
    was measured."""
    return Group(Text(headline(mine), style="bold"), details(every, mine, scale))


def details(
    every: Mapping[str, Mapping[str, Transfer]],
    mine: Mapping[str, Transfer],
    scale: Mapping[str, Any] | None = None,
) -> RenderableType:
    """What would tell where nothing is told, every scheme's verdict, then a table of optima per axis."""
    parts: list[RenderableType] = []
    parts += [Text(f"To tell over {t.over}: {t.advice}.", style="yellow") for t in mine.values() if t.advice]
    parts += [Text(""), drift_table(every)]
    for over, by in every.items():
        parts += [Text(""), optima_table(over, list(by.values()))]
        failures = [Text(f"- {t.scheme}: {s}.") for t in by.values() for s in t.signatures]
        failures += [Text(f"- {n}.") for n in dict.fromkeys(n for t in by.values() for n in t.notes)]
        parts += failures
        lead = mine[over]
        if lead.verdict == "cannot tell" and (line := _apart(lead)):
            parts.append(Text(f"- {lead.scheme}: {line}", style="dim"))
        if lead.rules:
            parts.append(rules_table(lead))
        if lead.critical is not None:
            parts.append(Text(f"- Critical batch: {lead.critical.status}; {noise(scale)}."))
        if lead.cost.ratio == lead.cost.ratio and lead.optima[over].max() > lead.base:
            parts.append(
                Text(
                    f"- Tuning at {over} {lead.base:g} saves: the same runs at {over} "
                    f"{lead.optima[over].max():g} take {number(lead.cost.ratio)} times the FLOPs.",
                    style="dim",
                )
            )
    return Group(*parts, Text(""), *(Text(line, style="dim") for line in LEGEND))


def titled(title: Text) -> Table:
    """A table without lines, its title on the left."""
    look: Any = dict(title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1))
    return Table(title=title, header_style="dim", **look)


def drift_table(every: Mapping[str, Mapping[str, Transfer]]) -> Table:
    """One row per scheme, one column per axis."""
    first = next(iter(next(iter(every.values())).values()))
    title = Text(
        f"Drift of the optimum, {'log2 ' if first.axis == 'log2' else ''}per doubling (95 % interval)",
        style="bold",
    )
    out = titled(title)
    for name in ("scheme", *(f"over {over}" for over in every)):
        out.add_column(name)
    for scheme in next(iter(every.values())):
        cells = [by[scheme] for by in every.values()]
        out.add_row(
            Text(scheme),
            *(
                Text(
                    f"{t.verdict} {_end(t.drift.slope)} ({_end(t.drift.low)} to {_end(t.drift.high)})",
                    style=COLOUR[t.verdict],
                )
                for t in cells
            ),
        )
    return out


def optima_table(over: str, transfers: list[Transfer]) -> Table:
    """The optima; regret is that of keeping the base's, as its interval."""
    first = transfers[0]
    fixed = ", ".join(f"{k} {v}" for k, v in first.fixed.items())
    title = Text(
        f"Best {hp_name(first.hp)} over {span(first)}" + (f", at {fixed}" if fixed else ""), style="bold"
    )
    out = titled(title)
    heads = (
        ("scheme", "left"),
        (over, "right"),
        ("best", "right"),
        ("95 % interval", "left"),
        ("stable", "right"),
        ("loss" if first.metric == "train_loss" else first.metric.replace("_", " "), "right"),
        ("regret", "left"),
        ("", "left"),
    )
    for name, justify in (
        heads if any((t.optima["status"] != "inside").any() for t in transfers) else heads[:-1]
    ):
        out.add_column(name, justify=justify, no_wrap=name != "")  # type: ignore[arg-type]
    for t in transfers:
        for j, (o, r) in enumerate(
            zip(t.optima.to_dict("records"), t.regret.to_dict("records"), strict=True)
        ):
            word = "" if o["status"] == "inside" else o["status"]
            cells = (
                f"{o[over]:g}",
                number(o["optimum"]),
                between(o, t.axis, 2),
                number(o["stable_max"]),
                number(o["loss"]),
                _regret(r),
                word,
            )
            out.add_row(Text(t.scheme if j == 0 else ""), *cells[: len(out.columns) - 1])
    return out


def rules_table(t: Transfer) -> Table:
    """The fitted exponent against each rule's."""
    d = t.drift
    title = (
        f"The best rate goes as {t.over}^{_end(d.slope)} ({_end(d.low)} to {_end(d.high)}), against each rule"
    )
    out = titled(Text(title, style="bold"))
    for name in ("rule", "exponent", "here", f"regret at {t.over} {t.optima[t.over].max():g}"):
        out.add_column(name)
    for rule in t.rules:
        lost = "does not train" if rule.regret == float("inf") else number(rule.regret)
        out.add_row(Text(rule.rule), f"{rule.exponent:+.2f}", rule.verdict, lost)
    return out


def noise(scale: Mapping[str, Any] | None) -> str:
    """The prediction beside a critical batch.

    >>> noise({"batch": 61.2, "first": 20.0, "last": 110.0})
    'the gradient noise scale predicts 61.2 (20 in the first half of a run, 110 in the second)'
    """
    if scale is None:
        return "--noise-scale measures what gradients predict"
    ends = [number(scale[k]) if scale[k] is not None else "∞" for k in ("batch", "first", "last")]
    return (
        f"the gradient noise scale predicts {ends[0]} ({ends[1]} in the first half of a run, {ends[2]} in "
        "the second)"
    )


def _apart(t: Transfer) -> str:
    """Why the drift is not the slope through the optima above it, where it is clearly not."""
    inside = t.optima[t.optima["status"] == "inside"]
    if len(inside) < 2 or t.axis != "log2" or t.drift.slope != t.drift.slope:
        return ""
    x, y = (np.log2(inside[name].to_numpy(float)) for name in (t.over, "optimum"))
    through = float(np.polyfit(x, y, 1)[0])
    if abs(through - t.drift.slope) < 0.1:
        return ""
    return (
        f"the drift ({t.drift.slope:+.2f}) is fitted to all sizes at once, with one shape of curve and the "
        f"seeds paired; a line through the optima inside the grid has {through:+.2f}. Where they differ the "
        "runs say little: look at the interval."
    )


def _regret(row: Mapping[str, Any]) -> str:
    if row["status"] != "measured":
        unknown = "?" if row["status"] == "the best is beyond the grid" else "-"
        return "does not train" if row["status"] == "unstable" else unknown
    high = number(row["high"], 2)
    return f"under {high}" if row["low"] < 0.1 * row["high"] else f"{number(row['low'], 2)} to {high}"


def _end(x: float) -> str:
    return "?" if x != x else f"{x:+.2f}" if abs(x) != float("inf") else ("∞" if x > 0 else "-∞")
