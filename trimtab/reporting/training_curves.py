"""Which training curves the page shows: at most 500 runs, chosen by rule and said on the page.

For each scheme and size: the runs at the best rate, at the rate tuned on the base, and at the first diverged
rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.files import json_ready
from trimtab.optima.tables import FINISHED, RunSource, Table, records
from trimtab.optima.transfers import Transfer

MOST, POINTS = 500, 120


def choose_runs(transfers: Sequence[Transfer], most: int = MOST) -> list[dict[str, Any]]:
    """The runs to show, best rates first so that they are the last to be left out."""
    ranked: list[tuple[int, dict[str, Any]]] = []
    seen = set()
    for t in transfers:
        for row in records(t.optima):
            cells = t.line.cells[t.line.cells[t.over] == row[t.over]]
            for rank, (kind, value) in enumerate(_rates(t, row, cells).items()):
                if value is None:
                    continue
                for cell in records(cells[cells[t.hp] == value].sort_values("seed").head(5)):
                    if cell["cell"] not in seen and cell["state"] in FINISHED:
                        seen.add(cell["cell"])
                        ranked.append((rank, _run(t, cell, kind)))
    return [run for _, run in sorted(ranked, key=lambda r: r[0])[:most]]


def _rates(t: Transfer, row: Mapping[str, Any], cells: Table) -> dict[str, float | None]:
    """The best rate at a size, the one tuned on the base, and the first that diverged, of those that were
    tried."""
    tried = np.sort(cells[t.hp].unique())
    bad = cells.loc[cells["unstable"], t.hp]
    largest = row["stable_max"] if np.isfinite(row["stable_max"]) else -np.inf
    return {
        "best": _nearest(tried, row["optimum"]),
        "the base's": _nearest(tried, t.regret["value"].iloc[0]),
        "diverged": bad[bad > largest].min() if len(bad) else None,
    }


def _run(t: Transfer, cell: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "cell": cell["cell"],
        "scheme": t.scheme,
        "width": int(cell["width"]),
        "depth": int(cell["depth"]),
        "seed": int(cell["seed"]),
        "hp": t.hp,
        "value": float(cell[t.hp]),
        "kind": kind,
        "label": str(cell.get("label", ""))[:200],
    }


def _nearest(tried: np.ndarray, value: float) -> float | None:
    """The value tried that is nearest by ratio."""
    if not len(tried) or not np.isfinite(value):
        return None
    apart = np.abs(np.log(np.maximum(tried, 1e-30)) - np.log(max(value, 1e-30)))
    return float(tried[apart.argmin()])


def with_curves(source: RunSource, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chosen runs with their smoothed curves, thinned to what a screen can show, sorted for reading."""
    out = []
    for run in runs:
        curve = source.curves(run["cell"])
        step = np.asarray(curve.get("step", []), float)
        loss = np.asarray(curve.get("smoothed", curve.get("loss", [])), float)
        n = min(len(step), len(loss))
        if not n:
            continue
        keep = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))
        losses = json_ready([float(f"{v:.4g}") for v in loss[keep]])
        out.append(run | {"step": [int(v) for v in step[keep]], "loss": losses})
    return sorted(out, key=lambda r: (r["scheme"], r["width"], r["depth"], r["value"], r["seed"]))
