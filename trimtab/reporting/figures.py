"""The report's figures as plain Plotly JSON: SVG traces only, aggregated, at most about 5,000 marks each.

Colours are names that the page resolves for light and dark: "@2/5" is the third of five sizes on a sequential
scale, "#1" the second scheme, "@ink", "@muted" and "@grid" follow the page. Rates are drawn at their log2,
labelled 2^x.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trimtab.optima.tables import Table, numbers, records
from trimtab.optima.transfers import Transfer
from trimtab.optima.wording import between, hp_name, number, power, regret

Figure = dict[str, Any]
MARKS = 5000
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
DASHES = ("solid", "dot", "dash", "longdash", "dashdot", "longdashdot")


def safe(text: object) -> str:
    """Plotly reads labels as a little HTML: what users wrote is escaped and kept short."""
    return html.escape(str(text)[:200], quote=False)


def place(t: Transfer, value: float) -> float:
    """Where a value stands on the figure's axis."""
    return math.log2(value) if t.axis == "log2" and value > 0 else value


def rate_axis(t: Transfer, values: Sequence[float]) -> Figure:
    axis: Figure = {"title": {"text": hp_name(t.hp)}, "zeroline": False}
    if t.axis == "log2" and len(values):
        low, high = math.floor(min(values)), math.ceil(max(values))
        step = max(1, round((high - low) / 5))
        ticks = list(range(low, high + 1, step))
        axis |= {
            "tickvals": ticks,
            "ticktext": [power(v) for v in ticks],
            "range": [min(values) - 0.4, max(values) + 0.4],
        }
    return axis


class Limits(NamedTuple):
    """The vertical range of figures side by side, on a log axis where the curves were fitted there."""

    low: float
    high: float
    log: bool

    def at(self, share: float) -> float:
        """The value this share of the way up."""
        return (
            self.low * (self.high / self.low) ** share
            if self.log
            else self.low + (self.high - self.low) * share
        )

    def axis(self, title: str) -> Figure:
        out: Figure = {"title": {"text": title}, "range": [self.low, self.high], "zeroline": False}
        if self.log:
            ticks = [
                k * 10.0**e for e in range(-12, 13) for k in (1, 2, 5) if self.low <= k * 10.0**e <= self.high
            ]
            out |= {"type": "log", "range": [math.log10(self.low), math.log10(self.high)]}
            out |= {"tickvals": ticks, "ticktext": [number(v) for v in ticks]} if len(ticks) > 1 else {}
        return out


HOVER = "%{text}<extra></extra>"


def _trace(mode: str, name: str, group: str, x: list[float], y: list[float], **more: Any) -> Figure:
    """One scatter trace; `group` is what the page's legend switches on and off."""
    return {"type": "scatter", "mode": mode, "name": name, "meta": group, "x": x, "y": y, **more}


def _series(t: Transfer, j: int, x: list[float], y: list[float], error: Figure, words: list[str]) -> Figure:
    """One scheme's line over sizes with its intervals."""
    return _trace(
        "lines+markers",
        safe(t.scheme),
        t.scheme,
        x,
        y,
        line={"color": f"#{j}", "width": 1.5, "dash": DASHES[j % 6]},
        marker={"color": f"#{j}", "size": 9, "symbol": SYMBOLS[j % 6]},
        error_y=_error_bars(error, f"#{j}", 5),
        text=words,
        hovertemplate=HOVER,
    )


def _error_bars(ends: Figure, colour: str, width: int) -> Figure:
    return {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": width} | ends


def _thin(rows: Table, most: int) -> Table:
    """At most so many rows, evenly spread."""
    if len(rows) <= most:
        return rows
    return rows.iloc[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]


def curves(t: Transfer, limits: Limits) -> Figure:
    """Loss against rate, one line per size, the optimum with its interval, a cross where runs first fail to
    train."""
    sizes = t.optima[t.over].tolist()
    each = max(2, MARKS // (2 * max(len(sizes), 1)))
    seeds = _seeds(t)
    data = []
    for i, size in enumerate(sizes):
        colour = f"@{i}/{len(sizes)}"
        points = t.points[t.points[t.over] == size]
        fine = _thin(points[points["fine"]], each)
        data.append(_curve(t, size, fine, colour, seeds))
        bad = points[points["unstable"] > 0]
        first = (bad[bad[t.hp] > fine[t.hp].max()] if len(fine) else bad).head(1)
        if len(first):
            data.append(_cross(t, size, first.iloc[0], limits.at(1 - 0.035 * (i + 0.7)), colour))
        row = t.optima[t.optima[t.over] == size].iloc[0]
        if math.isfinite(row["optimum"]) and math.isfinite(row["loss"]):
            data.append(_diamond(t, size, row, colour))
    xs = [place(t, v) for v in t.points[t.hp]]
    layout = {"xaxis": rate_axis(t, xs), "yaxis": limits.axis(t.metric.replace("_", " ")), "height": 340}
    return {"data": data, "layout": layout}


def _curve(
    t: Transfer, size: float, fine: Table, colour: str, seeds: Mapping[tuple[float, float], str]
) -> Figure:
    """The mean loss at each rate where all seeds train; hovering shows the seeds."""
    head = f"{t.over} {size:g}, {safe(t.hp)}"
    return _trace(
        "lines+markers",
        f"{t.over} {size:g}",
        f"{size:g}",
        [place(t, v) for v in fine[t.hp]],
        fine["mean"].tolist(),
        line={"color": colour, "width": 2},
        marker={"color": colour, "size": 5},
        text=[f"{head} {number(v)}<br>{seeds.get((size, v), '')}" for v in fine[t.hp]],
        hovertemplate=HOVER,
    )


def _cross(t: Transfer, size: float, row: Any, top: float, colour: str) -> Figure:
    """The first rate at which runs do not train."""
    words = f"{t.over} {size:g}, {safe(t.hp)} {number(row[t.hp])}<br>"
    words += f"{int(row['unstable'])} of {int(row['runs'])} runs do not train"
    line = {"color": colour, "width": 2}
    return _dot(f"{size:g}", place(t, row[t.hp]), top, colour, "x-thin", words, line=line)


def _diamond(t: Transfer, size: float, row: Any, colour: str) -> Figure:
    """The optimum with its interval."""
    x = place(t, row["optimum"])
    words = f"{t.over} {size:g}: best {safe(t.hp)} {number(row['optimum'])}<br>"
    words += f"{between(row, t.axis)}<br>{row['status']}"
    bars = _error_bars(_bars(t, row, x), colour, 4)
    return _dot(f"{size:g}", x, row["loss"], colour, "diamond", words, error_x=bars)


def _dot(
    group: str,
    x: float,
    y: float,
    colour: str,
    symbol: str,
    words: str,
    line: Figure | None = None,
    **more: Any,
) -> Figure:
    rim = line or {"color": "@paper", "width": 1.5}
    marker = {"color": colour, "size": 11, "symbol": symbol, "line": rim}
    return _trace("markers", "", group, [x], [y], marker=marker, text=[words], hovertemplate=HOVER, **more)


def _bars(t: Transfer, row: Mapping[str, Any], x: float, reach: float = 20.0) -> Figure:
    """How far an interval reaches from x; open ends run off the figure."""
    closed = math.isfinite(row["low"]) and (row["low"] > 0 or t.axis == "linear")
    low = place(t, row["low"]) if closed else x - reach
    high = place(t, row["high"]) if math.isfinite(row["high"]) else x + reach
    return {"array": [max(high - x, 0.0)], "arrayminus": [max(x - low, 0.0)]}


def _seeds(t: Transfer, most: int = 6) -> dict[tuple[float, float], str]:
    """What hovering shows: each run at a size and rate, a few of them when there are many."""
    out = {}
    for key, runs in t.line.cells.groupby([t.over, t.hp], sort=False):
        words = [
            f"seed {int(s)}: {number(y, 4)}" if ok else f"seed {int(s)}: {safe(state)}"
            for s, y, ok, state in zip(runs["seed"], runs["y"], runs["stable"], runs["state"], strict=True)
        ][:most]
        out[key] = "<br>".join(words) + (f"<br>and {len(runs) - most} more" if len(runs) > most else "")
    return out


def limits(every: Sequence[Transfer]) -> Limits:
    """One vertical range for schemes side by side: from the best loss to where curves are no longer worth
    comparing."""
    fine = (
        np.concatenate([numbers(t.points.loc[t.points["fine"], "mean"]) for t in every])
        if every
        else np.zeros(0)
    )
    if not len(fine):
        return Limits(0.0, 1.0, False)
    low, high = float(fine.min()), float(np.quantile(fine, 0.9))
    if any(t.log for t in every) and low > 0:
        pad = max(high / low, 1.1)
        return Limits(low * pad**-0.08, high * pad**0.25, True)
    pad = max(high - low, 1e-9 + 1e-3 * abs(low))
    return Limits(low - 0.08 * pad, high + 0.25 * pad, False)


def _nudge(j: int, every: Sequence[Transfer]) -> float:
    """Schemes stand a little beside each other."""
    return (j - (len(every) - 1) / 2) * 0.08


def positions(every: Sequence[Transfer]) -> Figure:
    """Optimum against size with intervals, one series per scheme; open ends run off the figure."""
    data, ends = [], []
    for j, t in enumerate(every):
        rows = t.optima[np.isfinite(t.optima["optimum"])]
        x = [math.log2(v) + _nudge(j, every) for v in rows[t.over]]
        y = [place(t, v) for v in rows["optimum"]]
        bars = [_bars(t, row, at) for row, at in zip(records(rows), y, strict=True)]
        for b, at in zip(bars, y, strict=True):
            ends += [e for e in (at - b["arrayminus"][0], at + b["array"][0]) if abs(e - at) < 15]
        ends += y
        words = [
            f"{safe(t.scheme)}, {t.over} {row[t.over]:g}: {number(row['optimum'])}<br>"
            f"{between(row, t.axis)}<br>{row['status']}"
            for row in records(rows)
        ]
        error = {side: [b[side][0] for b in bars] for side in ("array", "arrayminus")}
        data.append(_series(t, j, x, y, error, words))
    t = every[0]
    vertical = rate_axis(t, ends or [0.0, 1.0]) | {"title": {"text": f"best {hp_name(t.hp)}"}}
    return {"data": data, "layout": {"xaxis": size_axis(every), "yaxis": vertical, "height": 340}}


def size_axis(every: Sequence[Transfer]) -> Figure:
    sizes = sorted({s for t in every for s in t.optima[t.over]})
    return {
        "title": {"text": every[0].over},
        "tickvals": [math.log2(s) for s in sizes],
        "ticktext": [f"{s:g}" for s in sizes],
        "zeroline": False,
    }


def stability(t: Transfer) -> Figure:
    """Which sizes train at which rates: filled where all seeds do, half where some do, a cross where none
    does."""
    sizes = t.optima[t.over].tolist()
    points = _thin(t.points, MARKS)
    kinds = [
        ("all seeds train", "square", "@stable"),
        ("some seeds train", "diamond-open", "@some"),
        ("none trains", "x-thin", "@none"),
        ("not finished", "circle-open", "@muted"),
    ]
    done = points["stable"] + points["unstable"]
    kind = np.where(done == 0, 3, np.where(points["unstable"] == 0, 0, np.where(points["stable"] > 0, 1, 2)))
    data = []
    for i, (name, symbol, colour) in enumerate(kinds):
        rows = points[kind == i]
        if not len(rows):
            continue
        words = [
            f"{t.over} {r[t.over]:g}, {safe(t.hp)} {number(r[t.hp])}<br>"
            f"{int(r['stable'])} of {int(r['runs'])} train"
            for r in records(rows)
        ]
        marker = {"symbol": symbol, "size": 12, "color": colour, "line": {"color": colour, "width": 2}}
        x, y = [place(t, v) for v in rows[t.hp]], [sizes.index(s) for s in rows[t.over]]
        data.append(_trace("markers", name, name, x, y, marker=marker, text=words, hovertemplate=HOVER))
    layout = {"xaxis": rate_axis(t, [place(t, v) for v in t.points[t.hp]]), "height": 130 + 34 * len(sizes)}
    layout["yaxis"] = {
        "title": {"text": t.over},
        "tickvals": list(range(len(sizes))),
        "ticktext": [f"{s:g}" for s in sizes],
        "range": [-0.7, len(sizes) - 0.3],
        "zeroline": False,
    }
    return {"data": data, "layout": layout}


def regrets(every: Sequence[Transfer]) -> Figure:
    """What the base's optimum costs at each size; a cross on the rim where it does not train."""
    finite = [v for t in every for c in ("regret", "high") for v in t.regret[c] if math.isfinite(v)]
    top = max([*finite, 1e-3]) * 1.15
    data = []
    for j, t in enumerate(every):
        rows, nudge = t.regret, _nudge(j, every)
        known, lost = rows[np.isfinite(rows["regret"])], rows[np.isposinf(rows["regret"])]
        error = {
            "array": (known["high"] - known["regret"]).tolist(),
            "arrayminus": (known["regret"] - known["low"]).tolist(),
        }
        words = [f"{safe(t.scheme)}, {t.over} {r[t.over]:g}: {regret(r)}" for r in records(known)]
        x = [math.log2(v) + nudge for v in known[t.over]]
        data.append(_series(t, j, x, known["regret"].tolist(), error, words))
        if len(lost):
            words = [f"{safe(t.scheme)}, {t.over} {v:g}: does not train" for v in lost[t.over]]
            line = {"color": f"#{j}", "width": 2.5}
            marker = {"symbol": "x-thin", "size": 10, "color": f"#{j}", "line": line}
            x, y = [math.log2(v) + nudge for v in lost[t.over]], [top * 0.97] * len(lost)
            data.append(_trace("markers", "", t.scheme, x, y, marker=marker, text=words, hovertemplate=HOVER))
    title = "regret in " + every[0].metric.replace("_", " ")
    vertical = {"title": {"text": title}, "range": [-0.04 * top, top], "zeroline": False}
    return {"data": data, "layout": {"xaxis": size_axis(every), "yaxis": vertical, "height": 340}}
