"""Which training curves the page shows: at most 500 runs, chosen by rule and said on the page.

For each scheme and size: the runs at the best rate, at the rate tuned on the base, and at the first diverged rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.optima.lines import Line
from trimtab.optima.sources import Source, records
from trimtab.optima.transfers import Transfer, plain

MOST, POINTS = 500, 120


def picked(every: Sequence[tuple[Line, Transfer]], most: int = MOST) -> list[dict[str, Any]]:
    """The runs to show, best rates first so that they are the last to be left out."""
    ranked: list[tuple[int, dict[str, Any]]] = []
    seen = set()
    for chosen, t in every:
        base = t.regret["value"].iloc[0]
        for row in records(t.optima):
            cells = chosen.cells[chosen.cells[t.over] == row[t.over]]
            tried = np.sort(cells[t.hp].unique())
            why = {"best": _nearest(tried, row["optimum"]), "the base's": _nearest(tried, base)}
            bad = cells.loc[cells["unstable"], t.hp]
            why["diverged"] = (
                bad[bad > (row["stable_max"] if np.isfinite(row["stable_max"]) else -np.inf)].min()
                if len(bad)
                else None
            )
            for rank, (kind, value) in enumerate(why.items()):
                for cell in (
                    records(cells[cells[t.hp] == value].sort_values("seed").head(5))
                    if value is not None
                    else ()
                ):
                    if cell["cell"] in seen or cell["state"] not in ("done", "diverged"):
                        continue
                    seen.add(cell["cell"])
                    run = {
                        "cell": cell["cell"],
                        "scheme": t.scheme,
                        "width": int(cell["width"]),
                        "depth": int(cell["depth"]),
                        "seed": int(cell["seed"]),
                    }
                    ranked.append(
                        (
                            rank,
                            run
                            | {
                                "hp": t.hp,
                                "value": float(cell[t.hp]),
                                "kind": kind,
                                "label": str(cell.get("label", ""))[:200],
                            },
                        )
                    )
    return [run for _, run in sorted(ranked, key=lambda r: r[0])[:most]]


def _nearest(tried: np.ndarray, value: float) -> float | None:
    return (
        float(tried[np.abs(np.log(np.maximum(tried, 1e-30)) - np.log(max(value, 1e-30))).argmin()])
        if len(tried) and np.isfinite(value)
        else None
    )


def traced(source: Source, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chosen runs with their smoothed curves, thinned to what a screen can show, sorted for reading."""
    out = []
    for run in runs:
        curve = source.curves(run["cell"])
        step, loss = (
            np.asarray(curve.get("step", []), float),
            np.asarray(curve.get("smoothed", curve.get("loss", [])), float),
        )
        n = min(len(step), len(loss))
        if not n:
            continue
        keep = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))
        out.append(
            run
            | {"step": [int(v) for v in step[keep]], "loss": plain([float(f"{v:.4g}") for v in loss[keep]])}
        )
    return sorted(out, key=lambda r: (r["scheme"], r["width"], r["depth"], r["value"], r["seed"]))
