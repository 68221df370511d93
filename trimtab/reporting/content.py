"""What the page says of a store, as plain values: the answer first, then each size axis, what was run, what
is attached.

Where more was swept than rates, sizes and seeds, the curves are those of the best setting at the base, and a
table says how the optimum moves with the second hyperparameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from trimtab.errors import InputError
from trimtab.files import json_ready
from trimtab.optima.drift import worst_verdict
from trimtab.optima.tables import (
    FINISHED,
    NEEDED,
    RunSource,
    Table,
    best_setting,
    default_scheme,
    records,
    schemes,
    size_axes,
)
from trimtab.optima.transfers import Transfer, analyse, joint
from trimtab.optima.wording import between, hp_name, number, optimum, regret, sentence, short, slope, span
from trimtab.reporting import figures as draw
from trimtab.reporting.sections import attached_sections
from trimtab.reporting.training_curves import choose_runs, with_curves

ERRORS = 20


def page_content(source: RunSource, hp: str = "lr", metric: str = "train_loss") -> dict[str, Any]:
    """All that the page says."""
    table, meta = source.to_pandas(), dict(source.meta)
    ready = all(c in table for c in (*NEEDED, hp, metric)) and len(table) > 0
    base = meta.get("base")
    where = best_setting(table, hp, metric, base) if ready else {}
    overs = (size_axes(table, base) or ["depth"]) if ready else []
    names = schemes(table) if ready else []
    every = analyse(table, overs, names, hp=hp, metric=metric, preferred=where, base=base)
    figures: dict[str, Any] = {}
    axes = [_axis(over, list(by.values()), figures) for over, by in every.items()]
    lead = default_scheme(names) if names else ""
    finished = ready and table["state"].isin(FINISHED).any()
    answers = {over: by[lead] for over, by in every.items()} if finished else {}
    transfers = [t for by in every.values() for t in by.values()]
    matrix = [{"scheme": name, "cells": [_cell(every[over][name]) for over in overs]} for name in names]
    return {
        "title": str(meta.get("name") or "sweep"),
        "headline": short(answers),
        "verdict": worst_verdict(t.verdict for t in answers.values()),
        "answers": [_answer(over, t) for over, t in answers.items()],
        "lead": lead,
        "axes": axes,
        "matrix": matrix,
        "overs": overs,
        "hp": hp,
        "metric": metric.replace("_", " "),
        "where": where,
        "joint": _joint(source, where, overs, hp, metric),
        "counts": _counts(table),
        "failed": _failures(table),
        "wrong": _wrong(table),
        "figures": figures,
        "runs": with_curves(source, choose_runs(transfers)) if "cell" in table else [],
        "finished": _count(table, FINISHED),
        "unfinished": _count(table, ("waiting", "running")),
        "attached": attached_sections(source, figures),
        **_origin(meta),
    }


def _origin(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The command, the file and the versions a sweep was run with."""
    versions = {str(k): str(v) for k, v in dict(meta.get("versions") or {}).items()}
    origin = {
        "command": str(meta.get("command", "")),
        "toml": str(meta.get("toml", "")),
        "versions": versions,
    }
    config = json.dumps(json_ready(dict(meta.get("config") or {})), indent=2, ensure_ascii=False, default=str)
    return {"meta": origin, "config": config}


def _answer(over: str, t: Transfer) -> dict[str, str]:
    return {"over": over, "sentence": sentence(t), "verdict": t.verdict, "advice": t.advice}


def _count(table: Table, states: Sequence[str]) -> int:
    return int(table["state"].isin(states).sum()) if "state" in table else 0


def _axis(over: str, transfers: Sequence[Transfer], figures: dict[str, Any]) -> dict[str, Any]:
    """One size axis: its figures, which join the page's, and its table of optima."""
    limits = draw.limits(transfers)
    sizes = sorted({s for t in transfers for s in t.optima[over]})
    for i, t in enumerate(transfers):
        figures[f"{over}-curves-{i}"] = draw.curves(t, limits)
        figures[f"{over}-stability-{i}"] = draw.stability(t)
    figures[f"{over}-positions"] = draw.positions(transfers)
    figures[f"{over}-regret"] = draw.regrets(transfers)
    first = transfers[0]
    columns = ["scheme", over, f"best {hp_name(first.hp)}", "95 % interval", "status", "largest stable"]
    columns += [first.metric.replace("_", " "), "regret", "runs", "do not train"]
    colours = [f"@{i}/{len(sizes)}" for i in range(len(sizes))]
    return {
        "over": over,
        "fixed": ", ".join(f"{k} {v}" for k, v in first.fixed.items()),
        "sizes": [
            {"key": f"{s:g}", "colour": c, "name": f"{s:g}"} for s, c in zip(sizes, colours, strict=True)
        ],
        "schemes": [{"key": t.scheme, "colour": f"#{j}"} for j, t in enumerate(transfers)],
        "panels": [_panel(over, i, t) for i, t in enumerate(transfers)],
        "columns": columns,
        "rows": [row for t in transfers for row in _rows(t)],
        "signatures": [{"scheme": t.scheme, "text": s} for t in transfers for s in t.signatures],
        "base": f"{over} {first.base:g}",
        "cost": _cost(next((t for t in transfers if np.isfinite(t.cost.ratio)), first)),
        "notes": sorted({n for t in transfers for n in t.notes}),
    }


def _panel(over: str, i: int, t: Transfer) -> dict[str, Any]:
    return {
        "scheme": t.scheme,
        "curves": f"{over}-curves-{i}",
        "stability": f"{over}-stability-{i}",
        "verdict": t.verdict,
        "slope": slope(t),
        "alt": _alt(t),
    }


def _rows(t: Transfer) -> list[list[str]]:
    """The table of optima, a row per size."""
    return [
        [
            t.scheme,
            f"{o[t.over]:g}",
            optimum(o),
            between(o, t.axis),
            o["status"],
            number(o["stable_max"]),
            number(o["loss"]),
            regret(r),
            str(int(o["n"])),
            str(int(o["unstable"])),
        ]
        for o, r in zip(records(t.optima), records(t.regret), strict=True)
    ]


def _cell(t: Transfer) -> dict[str, str]:
    return {"verdict": t.verdict, "slope": slope(t), "span": span(t), "over": t.over}


def _alt(t: Transfer) -> str:
    best = "; ".join(f"{t.over} {r[t.over]:g}: {optimum(r)}" for r in records(t.optima))
    metric, hp = t.metric.replace("_", " "), hp_name(t.hp)
    return f"{metric} against {hp} for {t.scheme}. Best {hp} by {t.over}: {best}."


def _cost(t: Transfer) -> str:
    if not np.isfinite(t.cost.ratio):
        return ""
    largest, times = f"{t.over} {t.optima[t.over].max():g}", number(t.cost.ratio)
    return (
        f"Tuning at {t.over} {t.base:g} took {number(t.cost.base)} training FLOPs; "
        f"the same runs at {largest} would take {number(t.cost.target)}, {times} times as many."
    )


def _joint(
    source: RunSource, where: Mapping[str, Any], overs: Sequence[str], hp: str, metric: str
) -> list[dict[str, Any]]:
    """How the optimum moves with each further hyperparameter that was swept, over the first size axis."""
    out = []
    for hp2 in where:
        if not overs or not pd.api.types.is_numeric_dtype(source.to_pandas()[hp2]):
            continue
        others = {k: v for k, v in where.items() if k != hp2}
        try:
            t = joint(source, hp2, overs[0], hp, metric=metric, where=others)
        except InputError:
            continue
        columns = [
            overs[0],
            hp_name(hp2),
            f"best {hp_name(hp)}",
            "95 % interval",
            metric.replace("_", " "),
            "",
        ]
        rows = [
            [f"{r[overs[0]]:g}", number(r[hp2]), optimum(r), between(r, "log2"), number(r["loss"]), mark]
            for r in records(t.head(200))
            for mark in ["best" if r["best"] else ""]
        ]
        out.append({"hp2": hp2, "columns": columns, "rows": rows})
    return out


def _counts(table: Table) -> list[tuple[str, int]]:
    if "state" not in table:
        return []
    counts = table["state"].value_counts()
    out = [(s, int(counts[s])) for s in ("done", "diverged", "running", "waiting", "failed") if s in counts]
    collapsed = int(table["collapsed"].fillna(False).astype(bool).sum()) if "collapsed" in table else 0
    return out + ([("collapsed (of done)", collapsed)] if collapsed else [])


def _wrong(table: Table) -> list[dict[str, str]]:
    """The sizes at which a first step does not do what the plan promises."""
    if "proof" not in table:
        return []
    said = table[table["proof"].astype(str).str.startswith("wrong")]
    return [
        {"size": f"{r['scheme']}, width {r['width']}, depth {r['depth']}", "text": str(r["proof"])[:1000]}
        for r in records(said.drop_duplicates(["scheme", "width", "depth"]).head(ERRORS))
    ]


def _failures(table: Table) -> dict[str, Any]:
    if "state" not in table or "error" not in table:
        return {"count": 0, "rows": []}
    rows = table[table["state"] == "failed"]
    listed = [
        {
            "label": str(r.get("label", ""))[:200],
            "size": f"width {r.get('width')}, depth {r.get('depth')}",
            "error": str(r.get("error") or "")[-2000:],
        }
        for r in records(rows.head(ERRORS))
    ]
    return {"count": len(rows), "rows": listed}
