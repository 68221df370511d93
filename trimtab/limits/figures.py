"""Pictures of the approach to the limit: loss curves, kernels over layer time, convergence, loss against
rate. Plain Plotly dicts, SVG traces only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trimtab.limits.powerlaws import Rate
    from trimtab.limits.results import Limit, Optimum

Figure = dict[str, Any]
COLOURS = (
    "#1f9e89",
    "#d1750a",
    "#5b7fd0",
    "#b0508f",
    "#7a8a1d",
    "#8a6d5a",
)  # read on light and on dark paper
INK = "#8a8a8a"
TITLES = {"mean output": "Mean output", "mean loss": "Mean loss", "one network": "Scatter of one network"}


def draw(limit: Limit) -> list[Figure]:
    """All figures of a `Limit`, in the order they are told."""
    depths = sorted({c["depth"] for c in limit.curves if math.isfinite(c["width"])})
    out = [curves(limit, depth) for depth in depths[-1:]]
    if math.inf in {c["depth"] for c in limit.curves}:
        out.append(deep(limit))
    rows = limit.rows
    for quantity, value, error in (
        ("one network", "fluctuation", "fluctuation_stderr"),
        ("mean loss", "loss_error", "loss_stderr"),
        ("mean output", "error", "stderr"),
    ):
        own = [r for r in limit.rates if r.quantity == quantity and r.axis == "width"]
        out.append(
            convergence(
                TITLES[quantity],
                own,
                [[r for r in rows if r["depth"] == rate.at and math.isfinite(r["width"])] for rate in own],
                "width",
                value,
                error,
            )
        )
    over = [r for r in limit.rates if r.axis == "depth"]
    infinite = [r for r in rows if math.isinf(r["width"])]
    for rate, value, error in zip(over, ("error", "loss_error"), ("stderr", "loss_stderr"), strict=False):
        out.append(
            convergence(f"{TITLES[rate.quantity]}, infinite width", [rate], [infinite], "depth", value, error)
        )
    out += [
        kernel(limit, name, label)
        for name, label in (("phi", "Features Φ(τ; t, t)"), ("g", "Gradients G(τ; t, t)"))
    ]
    return out + ([rates(limit.optimum)] if limit.optimum is not None else [])


def _layout(title: str, x: str, y: str, **axes: Any) -> Figure:
    return {
        "title": {"text": title, "font": {"size": 15}},
        "xaxis": {"title": {"text": x}, "zeroline": False, **axes.get("xaxis", {})},
        "yaxis": {"title": {"text": y}, "zeroline": False, **axes.get("yaxis", {})},
        "margin": {"l": 64, "r": 16, "t": 44, "b": 52},
        "height": 380,
    }


def _line(x: Any, y: Any, name: str, colour: str, error: Any = None, **more: Any) -> Figure:
    out = {
        "type": "scatter",
        "mode": "lines",
        "x": np.asarray(x).tolist(),
        "y": np.asarray(y).tolist(),
        "name": name,
        "line": {"color": colour, "width": 2},
    } | more
    if error is not None:
        out |= {
            "mode": "markers",
            "marker": {"color": colour, "size": 7},
            "error_y": {"type": "data", "array": (1.96 * np.asarray(error)).tolist(), "color": colour},
        }
    return out


def curves(limit: Limit, depth: float) -> Figure:
    """Theory over the loss curves of finite networks of one depth."""
    own = sorted((c for c in limit.curves if c["depth"] == depth), key=lambda c: c["width"])
    data = []
    for i, c in enumerate(c for c in own if math.isfinite(c["width"])):
        data.append(
            _line(
                range(len(c["loss"])),
                c["loss"],
                f"width {c['width']:g}",
                COLOURS[i % len(COLOURS)],
                c["stderr"],
            )
        )
    theory = own[-1]
    data.append(_line(range(len(theory["loss"])), theory["loss"], "theory", INK))
    return {"data": data, "layout": _layout(f"Loss, depth {depth:g}", "step", "loss", yaxis={"type": "log"})}


def deep(limit: Limit) -> Figure:
    """The limit's loss at every depth."""
    own = sorted((c for c in limit.curves if math.isinf(c["width"])), key=lambda c: c["depth"])
    data = [
        _line(
            range(len(c["loss"])),
            c["loss"],
            f"depth {_size(c['depth'])}",
            COLOURS[i % len(COLOURS)] if math.isfinite(c["depth"]) else INK,
        )
        for i, c in enumerate(own)
    ]
    return {"data": data, "layout": _layout("Loss, infinite width", "step", "loss", yaxis={"type": "log"})}


def convergence(
    title: str,
    fitted: Sequence[Rate],
    rows: Sequence[Sequence[dict[str, float]]],
    axis: str,
    value: str,
    error: str,
) -> Figure:
    """|error| against size with 95 % bars, the fitted power law of the theory's exponent behind."""
    data = []
    for i, (rate, own) in enumerate(zip(fitted, rows, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        sizes = np.array([r[axis] for r in own], dtype=float)
        data.append(
            _line(
                sizes,
                [abs(r[value]) for r in own],
                f"depth {_size(rate.at)}" if axis == "width" else "theory",
                colour,
                [r[error] for r in own],
            )
        )
        if math.isfinite(rate.constant) and len(sizes):
            data.append(
                _line(
                    sizes,
                    abs(rate.constant) * sizes**rate.used,
                    f"{axis}^{rate.used:.2g}",
                    colour,
                    line={"color": colour, "width": 1, "dash": "dot"},
                )
            )
    return {
        "data": data,
        "layout": _layout(title, axis, "relative error", xaxis={"type": "log"}, yaxis={"type": "log"}),
    }


def kernel(limit: Limit, name: str, label: str) -> Figure:
    """A kernel's diagonal over layer time and step, mean over points."""
    k = limit.kernels
    value = np.asarray(k[name])
    heat = {
        "type": "heatmap",
        "x": list(range(value.shape[1])),
        "y": np.asarray(k["tau"]).tolist(),
        "z": value.tolist(),
        "colorscale": "Viridis",
        "colorbar": {"thickness": 12},
    }
    return {
        "data": [heat],
        "layout": _layout(f"{label}, depth {_size(k['depth'])}", "step t", "layer time τ"),
    }


def rates(optimum: Optimum) -> Figure:
    """Loss after the last step against the rate: the limit, its edge, and finite networks."""
    data = []
    for i, c in enumerate(sorted(optimum.curves, key=lambda c: c["width"])):
        colour = COLOURS[i % len(COLOURS)] if math.isfinite(c["width"]) else INK
        good = np.isfinite(c["loss"])
        data.append(
            _line(
                np.asarray(c["lr"])[good],
                np.asarray(c["loss"])[good],
                f"width {_size(c['width'])}",
                colour,
                mode="lines+markers",
                marker={"color": colour},
            )
        )
    layout = _layout(
        "Loss against rate",
        "rate η₀",
        "loss after the last step",
        xaxis={"type": "log"},
        yaxis={"type": "log"},
    )
    edge = next(c["edge"][0] for c in optimum.curves if math.isinf(c["width"]))
    if edge > 0 and math.isfinite(edge):
        layout["shapes"] = [
            {
                "type": "line",
                "x0": edge,
                "x1": edge,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": INK, "dash": "dash", "width": 1},
            }
        ]
    return {"data": data, "layout": layout}


def _size(x: float) -> str:
    return "∞" if math.isinf(x) else f"{x:g}"
