"""One self-contained page from a store: what it says, and how it is kept safe and the same.

The page is data (JSON in inert script blocks), Plotly once, and one script of ours; the content security policy allows exactly
those two scripts by their hashes, nothing from the network and no eval. Whatever users wrote (names, labels, exception texts)
passes jinja's autoescape or a JSON string, never markup. No clock and no random number: the same store gives the same bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from trimtab.errors import InputError
from trimtab.optima.lines import NEEDED, Line, default_scheme, equal, line, schemes, settled, varied
from trimtab.optima.sources import Source, Table, opened, records
from trimtab.optima.transfers import Transfer, analysed, joint, plain
from trimtab.optima.wording import between, named, number, optimum, regret, sentence, short, slope, span
from trimtab.reporting import figures as draw
from trimtab.reporting.selection import MOST, picked, traced

HERE = Path(__file__).parent / "templates"
ERRORS = 20
SVG_TRACES = {"scatter", "bar", "box", "violin", "histogram", "heatmap", "contour"}


def report(
    store: str | Path | Table | Source,
    path: str | Path = "report.html",
    *,
    hp: str = "lr",
    metric: str = "train_loss",
) -> Path:
    """Write one offline, interactive page about a sweep; returns its path.

    store: a sweep's file, its Store, or a table with a row per run. The same store gives the same bytes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = report(pd.DataFrame(), Path(folder) / "report.html").read_text()
    >>> "no run has finished" in page
    True
    """
    return written(render(opened(store), hp=hp, metric=metric), path)


def written(text: str, path: str | Path) -> Path:
    """Put a page in place of what was there, whole."""
    path = Path(path)
    draft = path.parent / f"{path.name}.{os.getpid()}.draft"
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)  # a reader sees the old page or the new one, never half of one
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(f"the report could not be written to {path}: {error.strerror}.") from error
    return path


def render(source: Source, *, hp: str = "lr", metric: str = "train_loss") -> str:
    """The page as text."""
    return paged(gathered(source, hp, metric))


def render_section(
    kind: str,
    section: Mapping[str, Any],
    *,
    headline: str,
    verdict: str,
    command: str = "",
    counts: Sequence[tuple[str, int]] = (),
) -> str:
    """A page about one section alone, as it would be attached to a store: the same page without a sweep.

    verdict: "transfers", "drifts" or "cannot tell", for the headline's colour.
    """
    figures: dict[str, Any] = {}
    attached = [_section(kind, 0, section, figures)]
    nothing = dict(
        told=[],
        lead="",
        axes=[],
        matrix=[],
        overs=[],
        hp="",
        metric="",
        where={},
        joint=[],
        runs=[],
        finished=0,
        unfinished=0,
        config="{}",
        alone=True,
    )
    told = dict(
        title=str(section.get("title", kind)),
        headline=headline,
        verdict=verdict,
        counts=list(counts),
        failed={"count": 0, "rows": []},
    )
    return paged(
        nothing
        | told
        | dict(figures=figures, attached=attached, meta={"command": command, "toml": "", "versions": {}})
    )


def paged(content: dict[str, Any]) -> str:
    """The page that says `content`, with its policy."""
    figures = plain(content.pop("figures"))
    runs = content.pop("runs")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "named": named}
    ours, library = (HERE / "report.js").read_text(encoding="utf-8"), _plotly()
    return environment.get_template("report.html.j2").render(
        **content,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        library=Markup(library),
        script=Markup(ours),
        policy=f"default-src 'none'; script-src '{_hash(library)}' '{_hash(ours)}'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
        figures=inert(figures),
        runs=inert(runs),
        shown=len(runs),
        most=MOST,
    )


@functools.lru_cache(maxsize=1)
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script").strip()


@functools.lru_cache(maxsize=4)
def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()


def inert(value: Any) -> Markup:
    """JSON that cannot close its script block or begin a comment in it.

    >>> print(inert({"name": "</script><!--"}))
    {"name":"\\u003c/script\\u003e\\u003c!--"}
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def gathered(source: Source, hp: str = "lr", metric: str = "train_loss") -> dict[str, Any]:
    """All that the page says, as plain values."""
    table, meta = source.to_pandas(), dict(source.meta)
    ready = all(c in table for c in (*NEEDED, hp, metric)) and len(table) > 0
    base = meta.get("base")
    where = settled(table, hp, metric, base) if ready else {}
    overs = (varied(table) or ["depth"]) if ready else []
    names = schemes(table) if ready else []
    every: dict[str, list[tuple[Line, Transfer]]] = {}
    for over in overs:
        lines = [
            line(table, over, hp, name, metric=metric, where=_present(table, name, where), base=base)
            for name in names
        ]
        every[over] = [(chosen, analysed(chosen)) for chosen in lines]
    figures: dict[str, Any] = {}
    axes = [_axis(over, pairs, figures) for over, pairs in every.items()]
    lead = default_scheme(names) if names else ""
    told = {
        over: t
        for over, pairs in every.items()
        for _, t in pairs
        if t.scheme == lead and (table["state"].isin(("done", "diverged"))).any()
    }
    verdicts = {t.verdict for t in told.values()}
    worst = (
        "drifts"
        if "drifts" in verdicts
        else "cannot tell"
        if "cannot tell" in verdicts or not verdicts
        else "transfers"
    )
    runs = (
        traced(source, picked([pair for pairs in every.values() for pair in pairs]))
        if "cell" in table
        else []
    )
    return {
        "title": str(meta.get("name") or "sweep"),
        "headline": short(told),
        "verdict": worst,
        "told": [
            {"over": over, "sentence": sentence(t), "verdict": t.verdict, "advice": t.advice}
            for over, t in told.items()
        ],
        "lead": lead,
        "axes": axes,
        "matrix": [
            {
                "scheme": name,
                "cells": [_cell(next(t for _, t in every[over] if t.scheme == name)) for over in overs],
            }
            for name in names
        ],
        "overs": overs,
        "hp": hp,
        "metric": metric.replace("_", " "),
        "where": where,
        "joint": _joint(source, where, overs, hp, metric),
        "counts": _counts(table),
        "failed": _failed(table),
        "figures": figures,
        "runs": runs,
        "finished": int(table["state"].isin(("done", "diverged")).sum()) if "state" in table else 0,
        "unfinished": int(table["state"].isin(("waiting", "running")).sum()) if "state" in table else 0,
        "attached": _attached(source, figures),
        "meta": {
            "command": str(meta.get("command", "")),
            "toml": str(meta.get("toml", "")),
            "versions": {str(k): str(v) for k, v in dict(meta.get("versions") or {}).items()},
        },
        "config": json.dumps(
            plain(dict(meta.get("config") or {})), indent=2, ensure_ascii=False, default=str
        ),
    }


def _present(table: Table, scheme: str, where: Mapping[str, Any]) -> dict[str, Any]:
    """The settled values that this scheme was run at; a scheme that never varied a column keeps its own value."""
    mine = table[table["scheme"] == scheme]
    return {c: v for c, v in where.items() if equal(mine[c], v).any()}


def _axis(over: str, pairs: Sequence[tuple[Line, Transfer]], figures: dict[str, Any]) -> dict[str, Any]:
    transfers = [t for _, t in pairs]
    limits = draw.limits(transfers)
    sizes = sorted({s for t in transfers for s in t.optima[over]})
    panels = []
    for i, (chosen, t) in enumerate(pairs):
        figures[f"{over}-curves-{i}"] = draw.curves(t, chosen.cells, limits)
        figures[f"{over}-stability-{i}"] = draw.stability(t)
        panels.append(
            {
                "scheme": t.scheme,
                "curves": f"{over}-curves-{i}",
                "stability": f"{over}-stability-{i}",
                "verdict": t.verdict,
                "slope": slope(t),
                "alt": _alt(t),
            }
        )
    figures[f"{over}-positions"], figures[f"{over}-regret"] = (
        draw.positions(transfers),
        draw.regrets(transfers),
    )
    rows = []
    for t in transfers:
        for o, r in zip(records(t.optima), records(t.regret), strict=True):
            rows.append(
                [
                    t.scheme,
                    f"{o[over]:g}",
                    optimum(o),
                    between(o, t.axis),
                    o["status"],
                    number(o["stable_max"]),
                    number(o["loss"]),
                    regret(r),
                    str(int(o["n"])),
                    str(int(o["unstable"])),
                ]
            )
    first = transfers[0]
    return {
        "over": over,
        "fixed": ", ".join(f"{k} {v}" for k, v in first.fixed.items()),
        "sizes": [
            {"key": f"{s:g}", "colour": f"@{i}/{len(sizes)}", "name": f"{s:g}"} for i, s in enumerate(sizes)
        ],
        "schemes": [{"key": t.scheme, "colour": f"#{j}"} for j, t in enumerate(transfers)],
        "panels": panels,
        "columns": [
            "scheme",
            over,
            f"best {named(first.hp)}",
            "95 % interval",
            "status",
            "largest stable",
            first.metric.replace("_", " "),
            "regret",
            "runs",
            "do not train",
        ],
        "rows": rows,
        "signatures": [{"scheme": t.scheme, "text": s} for t in transfers for s in t.signatures],
        "base": f"{over} {first.base:g}",
        "cost": _cost(next((t for t in transfers if np.isfinite(t.cost.ratio)), first)),
        "notes": sorted({n for t in transfers for n in t.notes}),
    }


def _cell(t: Transfer) -> dict[str, str]:
    return {"verdict": t.verdict, "slope": slope(t), "span": span(t), "over": t.over}


def _alt(t: Transfer) -> str:
    best = "; ".join(f"{t.over} {r[t.over]:g}: {optimum(r)}" for r in records(t.optima))
    return f"{t.metric.replace('_', ' ')} against {named(t.hp)} for {t.scheme}. Best {named(t.hp)} by {t.over}: {best}."


def _cost(t: Transfer) -> str:
    if not np.isfinite(t.cost.ratio):
        return ""
    return f"Tuning at {t.over} {t.base:g} took {number(t.cost.base)} training FLOPs; the same runs at {t.over} {t.optima[t.over].max():g} would take {number(t.cost.target)}, {number(t.cost.ratio)} times as many."


def _joint(
    source: Source, where: Mapping[str, Any], overs: Sequence[str], hp: str, metric: str
) -> list[dict[str, Any]]:
    out = []
    for hp2 in where:
        if not overs or not pd.api.types.is_numeric_dtype(source.to_pandas()[hp2]):
            continue
        try:
            t = joint(
                source, hp2, overs[0], hp, metric=metric, where={k: v for k, v in where.items() if k != hp2}
            )
        except InputError:
            continue
        rows = [
            [
                f"{r[overs[0]]:g}",
                number(r[hp2]),
                optimum(r),
                between(r, "log2"),
                number(r["loss"]),
                "best" if r["best"] else "",
            ]
            for r in records(t.head(200))
        ]
        out.append(
            {
                "hp2": hp2,
                "columns": [
                    overs[0],
                    named(hp2),
                    f"best {named(hp)}",
                    "95 % interval",
                    metric.replace("_", " "),
                    "",
                ],
                "rows": rows,
            }
        )
    return out


def _counts(table: Table) -> list[tuple[str, int]]:
    if "state" not in table:
        return []
    counts = table["state"].value_counts()
    out = [(s, int(counts[s])) for s in ("done", "diverged", "running", "waiting", "failed") if s in counts]
    collapsed = int(table["collapsed"].fillna(False).astype(bool).sum()) if "collapsed" in table else 0
    return out + ([("collapsed (of done)", collapsed)] if collapsed else [])


def _failed(table: Table) -> dict[str, Any]:
    if "state" not in table or "error" not in table:
        return {"count": 0, "rows": []}
    rows = table[table["state"] == "failed"]
    shown = [
        {
            "label": str(r.get("label", ""))[:200],
            "size": f"width {r.get('width')}, depth {r.get('depth')}",
            "error": str(r.get("error") or "")[-2000:],
        }
        for r in records(rows.head(ERRORS))
    ]
    return {"count": len(rows), "rows": shown}


def _attached(source: Source, figures: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for kind in ("check", "limit"):
        out += [_section(kind, i, section, figures) for i, section in enumerate(source.attached(kind))]
    return out


def _section(kind: str, i: int, section: Mapping[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of an attached section; its figures join the page's."""
    names = []
    for j, figure in enumerate(section.get("figures") or []):
        names.append(f"{kind}-{i}-{j}")
        figures[names[-1]] = _tamed(figure)
    return {
        "id": f"{kind}-{i}",
        "title": str(section.get("title", kind)),
        "verdict": str(section.get("verdict") or ""),
        "text": str(section.get("text") or ""),
        "figures": names,
        "tables": [_tabled(t) for t in section.get("tables") or []],
    }


def _tabled(table: Any) -> dict[str, Any]:
    if isinstance(table, pd.DataFrame):
        table = table.to_dict("records")
    if isinstance(table, Mapping):
        shown = {
            "columns": [str(c) for c in table.get("columns", [])],
            "rows": [[_shown(v) for v in row] for row in table.get("rows", [])],
        }
        return shown | {"title": str(table.get("title", ""))}
    rows = list(table)
    columns = list(rows[0]) if rows else []
    return {
        "columns": [str(c) for c in columns],
        "rows": [[_shown(row.get(c)) for c in columns] for row in rows],
        "title": "",
    }


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, float) else "" if value is None else str(value)


def _tamed(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure from elsewhere: SVG traces only, nothing fetched, labels with no markup but line breaks and the like."""
    layout = {
        k: v
        for k, v in dict(figure.get("layout") or {}).items()
        if k not in ("template", "images", "sliders", "updatemenus", "mapbox", "map", "geo")
    }
    traces = [dict(t) for t in figure.get("data") or [] if t.get("type", "scatter") in SVG_TRACES]
    return _calm({"data": traces, "layout": layout})


def _calm(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _calm(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_calm(v) for v in value]
    return re.sub(r"<(?!/?(?:br|sub|sup|b|i)\s*/?>)", "&lt;", value) if isinstance(value, str) else value
