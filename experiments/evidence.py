"""The experiments: list them, rerun one, and make every figure, README and docs/evidence.md from the stored
results.

    python experiments/evidence.py                        write figures, READMEs and docs/evidence.md from the
    CSV files
    python experiments/evidence.py list                   the experiments with their cost and state
    python experiments/evidence.py run NAME               run or resume its sweeps (--size paper: on a GPU;
    tiny: a few
                                                          seconds, for CI, nothing kept), then write its CSV
                                                          files
    python experiments/evidence.py export NAME FOLDER     write the CSV files from stores that lie in FOLDER

An experiment is a folder with `question.toml`: the question, which sweep files fill which store, and the
lines to judge. Each line is one call of `trimtab.transfer`. No number on the pages is typed by hand; `expect`
says which verdict the text speaks of, and the page says so where the runs say otherwise.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path

import pandas as pd
from scipy import stats

import trimtab

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEEP = [
    "scheme",
    "width",
    "depth",
    "seed",
    "lr",
    "state",
    "train_loss",
    "test_loss",
    "accuracy",
    "initial_loss",
    "collapsed",
    "seconds",
    "flops",
]
DROP = {
    "cell",
    "label",
    "error",
    "arithmetic",
    "proof",
    "stopped_at",
    "last_loss",
    "test_examples",
    "fleet",
    "version",
    "base_width",
    "base_depth",
    "eval_examples",
}

JUDGED: dict[tuple[Path, str], object] = {}
# Light to dark with size, safe for colour-blind readers.
COLOURS = ("#9ecae1", "#5ba3d0", "#2f7dbb", "#11539a", "#08203f")
WIDE, HIGH, LEFT, TOP = 230, 160, 52, 38
CELL_W, CELL_H, ACROSS = WIDE + LEFT + 18, HIGH + TOP + 62, 3
STYLE = "text{font-family:system-ui,sans-serif;fill:#222;font-size:11px}.t{font-size:12px;font-weight:600}.g{stroke:#eee}.f{fill:#fff;stroke:#bbb}"  # noqa: E501


# ---------------------------------------------------------------- results


def folders() -> list[Path]:
    """The experiments in the order of their numbers."""
    found = [p.parent for p in HERE.glob("*/question.toml")]
    return sorted(found, key=lambda f: (question(f)["number"], f.name))


def question(folder: Path) -> dict:
    return tomllib.loads((folder / "question.toml").read_text(encoding="utf-8"))


def slim(table: pd.DataFrame, also: tuple[str, ...] = ()) -> pd.DataFrame:
    """What the pages need: the columns that vary, those named besides, the results, six digits."""
    swept = [
        c
        for c in table
        if c not in DROP
        and c not in KEEP
        and not c.startswith("sources.")
        and (c in also or table[c].map(repr).nunique() > 1)
    ]
    if {"steps", "batch_size"} & set(swept):  # over batch or tokens: both say where a run is
        swept += [c for c in ("batch_size", "steps", "optimizer") if c not in swept]
    out = table[[c for c in KEEP if c in table] + swept].copy()
    for column in ("train_loss", "test_loss", "accuracy", "initial_loss", "seconds", "lr"):
        out[column] = out[column].map(lambda v: float(f"{v:.6g}"))
    return out[out["state"].isin(("done", "diverged"))].sort_values(
        [c for c in ("scheme", "width", "depth", *swept, "lr", "seed") if c in out]
    )


def export(folder: Path, stores: Path) -> None:
    """Write an experiment's CSV files from its stores. A store may hold some of the runs only, those of a
    sweep that was added later: the others stay as the file has them."""
    from trimtab.sweeps.store import Store

    for name in question(folder).get("stores", {}):
        path = stores / f"{name}.db"
        if path.is_file():
            joined(read(folder, name), Store(path).to_pandas()).to_csv(folder / f"{name}.csv", index=False)
            print(f"{folder.name}/{name}.csv")


def joined(kept: pd.DataFrame | None, store: pd.DataFrame) -> pd.DataFrame:
    """A store's runs, and those that are kept and that it does not have."""
    if kept is None:
        return slim(store)
    new = slim(store, also=tuple(kept))
    results = KEEP[KEEP.index("state") :]
    if set(new) != set(kept):
        raise SystemExit(f"the store and the file have other columns: {sorted(set(new) ^ set(kept))}")
    key = [c for c in kept if c not in results]
    both = pd.concat([kept, new[list(kept)]]).drop_duplicates(key, keep="last")
    return both.sort_values([c for c in key if c not in ("lr", "seed")] + ["lr", "seed"])


def read(folder: Path, name: str) -> pd.DataFrame | None:
    path = folder / f"{name}.csv"
    return pd.read_csv(path) if path.is_file() else None


def chosen(table: pd.DataFrame, where: dict) -> pd.DataFrame:
    """The rows with these values."""
    for column, value in where.items():
        table = table[
            (table[column] - value).abs() < 1e-9 if isinstance(value, float) else table[column] == value
        ]
    return table


def line_table(folder: Path, line: dict) -> pd.DataFrame | None:
    """The runs of one line, or None where there are none yet."""
    table = read(folder, line["store"])
    if table is None:
        return None
    table = chosen(table, line.get("where", {})).drop(columns=list(line.get("where", {})))
    table = table[table["scheme"] == line["scheme"]]
    if "least" in line:
        table = table[table[line.get("over", "depth")] >= line["least"]]
    hp = line.get("hp", "lr")
    if hp == "1 - momentum":
        table = table.assign(**{hp: 1 - table["momentum"]}).drop(columns="momentum")
    return table if len(table) else None


def judged(folder: Path, line: dict):
    """`trimtab.transfer` of one line, or None where there are no runs yet; once per line and run of this
    file, since three tables show it."""
    key = (folder, line["label"])
    if key not in JUDGED:
        JUDGED[key] = _judge(folder, line)
    return JUDGED[key]


def _judge(folder: Path, line: dict):
    table = line_table(folder, line)
    if table is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.transfer(
            table,
            over=line.get("over", "depth"),
            hp=line.get("hp", "lr"),
            scheme=line["scheme"],
            metric=line.get("metric", "train_loss"),
        )


# ---------------------------------------------------------------- words


def signed(x: float) -> str:
    return "-inf" if x == -math.inf else "inf" if x == math.inf else f"{x:+.2f}"


def short(x: float) -> str:
    return "-" if x is None or math.isnan(x) else f"{x:.2f}"


def worst(t) -> str:
    """The largest regret over the sizes, relative to the size's own best."""
    own = {r[t.over]: r["loss"] for r in t.optima.to_dict("records")}
    rows = t.regret.to_dict("records")
    for status, words in (("unstable", "does not train"), ("at the edge of stability", "at the edge")):
        sizes = [r[t.over] for r in rows if r["status"] == status]
        if sizes:
            return f"{words} from {t.over} {min(sizes):g}"
    known = [
        r["regret"] / own[r[t.over]]
        for r in rows
        if math.isfinite(r["regret"]) and math.isfinite(own[r[t.over]])
    ]
    return f"{100 * max(known):.1f} %" if known else "-"


def verdicts(lines: list[tuple[dict, object]]) -> list[str]:
    """The table of an experiment's lines."""
    out = [
        "| line | sizes | log2 of the optimum | drift per doubling | verdict | regret | loss at the "
        "largest, and at the base |",
        "|---|---|---|---|---|---|---|",
    ]
    for line, t in lines:
        if t is None:
            out.append(f"| {line['label']} | | | | not run | | |")
            continue
        rows = t.optima.to_dict("records")
        marks = {
            "inside": "",
            "last stable": "*",
            "beyond the grid": ">",
            "none stable": "none",
            "too few rates": "?",
        }
        best = ", ".join(
            "none" if math.isnan(r["log2"]) else short(r["log2"]) + marks.get(r["status"], "?") for r in rows
        )
        sizes = f"{t.over} {', '.join(f'{r[t.over]:g}' for r in rows)}"
        drift = f"{signed(t.drift.slope)} ({signed(t.drift.low)} to {signed(t.drift.high)})"
        told = f"**{t.verdict}**" + (
            "" if line.get("expect") in (None, t.verdict) else f" (the text expects *{line['expect']}*)"
        )
        last = (
            f"{rows[-1]['loss']:.3f}, {rows[0]['loss']:.3f}"
            if math.isfinite(rows[-1]["loss"])
            else f"none, {rows[0]['loss']:.3f}"
        )
        out.append(f"| {line['label']} | {sizes} | {best} | {drift} | {told} | {worst(t)} | {last} |")
    return out


# ---------------------------------------------------------------- figures


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def panel(
    title: str,
    curves: dict[str, list[tuple[float, float]]],
    dots: dict[str, tuple[float, float]],
    xs,
    ys,
    xlabel: str,
    ylabel: str,
    sizes=(),
) -> str:
    """One frame of lines; y on a log scale."""
    (low, high), (least, most) = xs, ys

    def at(x, y):
        y = min(max(y, least), most)
        return LEFT + (x - low) / (high - low) * WIDE, TOP + (math.log(most) - math.log(y)) / (
            math.log(most) - math.log(least)
        ) * HIGH

    out = [
        f'<text x="{LEFT}" y="26" class="t">{escaped(title)}</text><rect x="{LEFT}" y="{TOP}" '
        f'width="{WIDE}" height="{HIGH}" class="f"/>'
    ]
    step = max(1, math.ceil((high - low) / 8))
    for k in range(math.ceil(low), math.floor(high) + 1, step):
        x, _ = at(k, most)
        out.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + HIGH}" class="g"/><text x="{x:.1f}" '
            f'y="{TOP + HIGH + 14}" text-anchor="middle">{k}</text>'
        )
    for i in range(5):
        value = math.exp(math.log(least) + (math.log(most) - math.log(least)) * (i + 0.5) / 5)
        _, y = at(low, value)
        out.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDE}" y1="{y:.1f}" y2="{y:.1f}" class="g"/><text '
            f'x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    names = list(sizes) or list(curves)
    for i, name in enumerate(names):
        colour = COLOURS[round(i * (len(COLOURS) - 1) / max(1, len(names) - 1))]
        shown = [p for p in curves.get(name, []) if p[1] <= most * 1.02]
        out.append(
            f'<polyline points="{" ".join("{:.1f},{:.1f}".format(*at(*p)) for p in shown)}" fill="none" '
            f'stroke="{colour}" stroke-width="1.8"/>'
        )
        if name in dots:
            x, y = at(*dots[name])
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" stroke="#fff"/>')
        out.append(
            f'<circle cx="{LEFT + 6 + 46 * i}" cy="{TOP + HIGH + 44}" r="4" fill="{colour}"/><text '
            f'x="{LEFT + 13 + 46 * i}" y="{TOP + HIGH + 48}">{escaped(name)}</text>'
        )
    out.append(
        f'<text x="{LEFT + WIDE / 2}" y="{TOP + HIGH + 29}" text-anchor="middle">{escaped(xlabel)}</text>'
    )
    out.append(
        f'<text transform="translate(11,{TOP + HIGH / 2}) rotate(-90)" '
        f'text-anchor="middle">{escaped(ylabel)}</text>'
    )
    return "".join(out)


def drawn(path: Path, panels: list[str], label: str) -> None:
    """Panels, three in a row, as one SVG."""
    rows = math.ceil(len(panels) / ACROSS)
    wide, high = CELL_W * min(ACROSS, len(panels)), CELL_H * rows
    body = "".join(
        f'<g transform="translate({CELL_W * (i % ACROSS)},{CELL_H * (i // ACROSS)})">{p}</g>'
        for i, p in enumerate(panels)
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img" aria-label="{escaped(label)}">'  # noqa: E501
    path.write_text(
        f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n',
        encoding="utf-8",
    )


def figure(folder: Path, lines: list[tuple[dict, object]]) -> bool:
    """The curves of every line, optima as dots; lines of one store and metric share their axes."""
    shown = [(line, t) for line, t in lines if t is not None]
    panels = []
    groups: dict[tuple, list] = {}
    for line, t in shown:
        groups.setdefault((line["store"], line.get("hp", "lr"), line.get("metric", "train_loss")), []).append(
            (line, t)
        )
    for members in groups.values():
        every = {}
        for line, t in members:
            fine = t.points[t.points["fine"]]
            x = (lambda v: math.log2(v)) if t.axis == "log2" else (lambda v: v)
            every[line["label"]] = {
                f"{size:g}": [
                    (x(r), y) for r, y in zip(c[t.hp], c["mean"], strict=True) if r > 0 or t.axis != "log2"
                ]
                for size, c in fine.groupby(t.over)
            }
        points = [p for curves in every.values() for c in curves.values() for p in c]
        if not points:
            continue
        ys = sorted(y for _, y in points)
        top = min(1.02 * ys[-1], max(1.35 * ys[0], 1.02 * ys[len(ys) * 3 // 4]))
        xs = (min(x for x, _ in points), max(x for x, _ in points))
        sizes = [f"{size:g}" for size in sorted({r for _, t in members for r in t.optima[t.over]})]
        for line, t in members:
            dots = {
                f"{r[t.over]:g}": (r["log2"] if t.axis == "log2" else r["optimum"], r["loss"])
                for r in t.optima.to_dict("records")
                if math.isfinite(r["loss"])
            }
            name = {"lr": "learning rate", "weight_decay": "weight decay"}.get(t.hp, t.hp)
            axis = f"log2 {name}" if t.axis == "log2" else name
            panels.append(
                panel(
                    f"{line['label']}: {t.verdict}",
                    every[line["label"]],
                    dots,
                    xs,
                    (0.985 * ys[0], top),
                    axis,
                    t.metric.replace("_", " "),
                    sizes,
                )
            )
    panels += [p for row in question(folder).get("carried", []) if (p := compared(folder, row))]
    panels += [
        extra(folder, spec)
        for spec in question(folder).get("curves", [])
        if (folder / spec["file"]).is_file()
    ]
    if panels:
        drawn(folder / "figure.svg", panels, question(folder)["title"])
    return bool(panels)


def compared(folder: Path, row: dict) -> str | None:
    """A panel of loss against rate: the base, the target carried to, the standard parametrization at the
    target."""
    tables = sides(folder, row)
    if tables is None:
        return None
    curves = {
        name: [(math.log2(lr), y) for lr, y in levelled(t).items()] for name, t in tables.items() if len(t)
    }
    points = [p for c in curves.values() for p in c]
    if not points:
        return None
    xs, ys = (min(x for x, _ in points), max(x for x, _ in points)), sorted(y for _, y in points)
    return panel(
        row["label"],
        curves,
        {n: min(c, key=lambda p: p[1]) for n, c in curves.items()},
        xs,
        (0.985 * ys[0], min(1.02 * ys[-1], 1.3 * ys[0])),
        "log2 learning rate",
        "train loss",
    )


def extra(folder: Path, spec: dict) -> str:
    """A panel of something else than loss against rate: the mean of `y` against log2 of `x`, a line per value
    of `by`."""
    table = chosen(pd.read_csv(folder / spec["file"]), spec.get("where", {}))
    curves = {
        f"{value:g}": [(math.log2(x), y) for x, y in group.groupby(spec["x"])[spec["y"]].mean().items()]
        for value, group in table.groupby(spec["by"])
    }
    points = [p for c in curves.values() for p in c]
    xs, ys = (
        (min(x for x, _ in points), max(x for x, _ in points)),
        (0.9 * min(y for _, y in points), 1.1 * max(y for _, y in points)),
    )
    return panel(
        spec["title"], curves, {}, xs, ys, f"log2 {spec['x']}; a line per {spec['by']}", spec["name"]
    )


def slopes(folder: Path, spec: dict) -> list[str]:
    """Exponents of some columns over the size: value ~ size^p, with 95 % intervals."""
    table = pd.read_csv(folder / spec["file"])
    out = [
        f"| {', '.join(spec['by'])} | " + " | ".join(spec["names"]) + " |",
        "|---" * (len(spec["names"]) + 1) + "|",
    ]
    for key, group in table.groupby(spec["by"]):
        cells = []
        for column in spec["columns"]:
            fit = stats.linregress(group[spec["x"]].map(math.log2), group[column].map(math.log2))
            half = stats.t.ppf(0.975, len(group) - 2) * fit.stderr
            cells.append(f"{fit.slope:+.2f} (± {half:.2f})")
        out.append("| " + ", ".join(f"{k:g}" for k in key) + " | " + " | ".join(cells) + " |")
    return out


def cells(folder: Path, spec: dict) -> list[str]:
    """A stored table as it is, a column per format of its fields; with `by` the mean ± half of its 95 %
    interval over the rows that share it."""
    table = pd.read_csv(folder / spec["file"])
    out = [f"| {' | '.join(spec['names'])} |", "|---" * len(spec["names"]) + "|"]
    if "by" in spec:
        rows = []
        for key, group in table.groupby(spec["by"], sort=False):
            found = {c: interval(group[c]) for c in group.select_dtypes("number")}
            means = {c: m for c, (m, _) in found.items()} | {f"{c}_half": h for c, (_, h) in found.items()}
            rows.append({spec["by"]: key, **means})
    else:
        rows = table.to_dict("records")
    return out + ["| " + " | ".join(form.format(**row) for form in spec["columns"]) + " |" for row in rows]


# ---------------------------------------------------------------- carried against tuned at the target


def mean_at(table: pd.DataFrame, **where) -> pd.DataFrame:
    """Seeds' losses by rate, only rates at which every seed that was run trains."""
    table = chosen(table, where)
    fine = table[(table["state"] == "done") & ~table["collapsed"].astype(bool)]
    by = fine.pivot_table(index="lr", columns="seed", values="train_loss")
    return by[by.notna().sum(axis=1) == table.groupby("lr")["seed"].nunique().reindex(by.index)]


def best_rate(by: pd.DataFrame) -> float:
    """The rate with the lowest mean among those with the most seeds; one with fewer, but three, is compared
    on the seeds that both have, so that a lucky few do not win."""
    seeds = by.notna().sum(axis=1)
    first = by[seeds == seeds.max()].mean(axis=1).idxmin()
    above = by[seeds >= min(3, by.shape[1])].sub(by.loc[first], axis=1).mean(axis=1)
    return above.idxmin()


def levelled(by: pd.DataFrame) -> pd.Series:
    """The mean loss by rate; rates with fewer seeds are placed by their difference on the seeds they share
    with the best one, so that easy seeds make no dip."""
    best = by.loc[best_rate(by)]
    return best.mean() + by.sub(best, axis=1).mean(axis=1)


def sides(folder: Path, row: dict) -> dict[str, pd.DataFrame] | None:
    """What one comparison is made of: the base, the target carried to, the standard one at the target."""
    base, target = read(folder, row["base_store"]), read(folder, row["target_store"])
    plain = read(folder, row.get("standard_store", row["target_store"]))
    if base is None or target is None or plain is None:
        return None
    small, large = ({"width": size[0], "depth": size[1]} for size in (row["base"], row["target"]))
    extra = {"scheme": row["scheme"], **row.get("where", {})}
    return {
        "base": mean_at(base, **small, **extra, **row.get("base_where", {})),
        "target": mean_at(target, **large, **extra),
        "sp": mean_at(plain, **large, scheme="sp", **row.get("standard", {})),
    }


def flops_ratio(folder: Path, row: dict) -> float:
    """FLOPs of a run at the target over one at the base."""
    found = []
    for store, (width, depth) in ((row["target_store"], row["target"]), (row["base_store"], row["base"])):
        table = read(folder, store)
        found.append(chosen(table, {"width": width, "depth": depth})["flops"].max())
    return found[0] / found[1]


def interval(values) -> tuple[float, float]:
    """Mean and half of its 95 % interval (Student's t)."""
    values = pd.Series(values).dropna()
    half = (
        stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
        if len(values) > 1
        else math.nan
    )
    return float(values.mean()), float(half)


def carried(folder: Path, rows: list[dict]) -> list[str]:
    """Per family: the base's best rate used at the target, beside the target's own best and the standard one
    tuned there."""
    out = [
        "| family | base | target | rate tuned at the base, log2 | loss at the target with it | best of the "
        "same scheme at the target | standard, tuned at the target | carried over standard | tuning FLOPs, "
        "target over base |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = sides(folder, row)
        if found is None or not all(len(t) for t in found.values()):
            continue
        at_base, at_target, plain = found.values()
        rate = best_rate(at_base)
        near = min(at_target.index, key=lambda r: abs(math.log2(r / rate)))
        here, best, standard = (
            at_target.loc[near],
            at_target.loc[best_rate(at_target)],
            plain.loc[best_rate(plain)],
        )
        ratios = (100 * (here / standard - 1)).dropna()
        gap, half = interval(ratios)
        edge = " (the end of what was tried)" if standard.name in (plain.index[0], plain.index[-1]) else ""
        missing = "" if abs(math.log2(near / rate)) < 0.01 else f" (nearest tried: {math.log2(near):.1f})"
        few = f" ({best.count()} seeds)" if best.count() < here.count() else ""
        size = lambda s: f"{s[0]} wide, {s[1]} deep"  # noqa: E731
        out.append(
            f"| {row['label']} | {size(row['base'])} | {size(row['target'])} | "
            f"{math.log2(rate):.1f}{missing} | {here.mean():.3f} | {best.mean():.3f} at "
            f"{math.log2(best.name):.1f}{few}"
            f" | {standard.mean():.3f} at {math.log2(standard.name):.1f}{edge} | {gap:+.1f} % (± "
            f"{half:.1f}, {len(ratios)} seeds) | {flops_ratio(folder, row):.0f} |"
        )
    return out


def losses(folder: Path, spec: dict) -> list[str]:
    """A table of the best loss (over the rates, mean of the seeds ± half of its interval) by two columns."""
    table = read(folder, spec["store"])
    if table is None:
        return []
    table = chosen(table, spec.get("where", {}))
    table = table[table["seed"] < spec.get("seeds", math.inf)]  # the first ones, where some lines have more
    metric = spec.get("metric", "train_loss")
    columns = sorted(table[spec["columns"]].unique())
    out = [
        f"| {' , '.join(spec['rows'])} | "
        + " | ".join(
            f"{spec['columns'].split('.')[-1]} {c:g}" if not isinstance(c, str) else c for c in columns
        )
        + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for key, group in table.groupby(spec["rows"], sort=True):
        cells = []
        for c in columns:
            part = group[group[spec["columns"]] == c]
            fine = part[(part["state"] == "done") & ~part["collapsed"].astype(bool)]
            by = fine.pivot_table(index="lr", columns="seed", values="train_loss")
            by = by[by.notna().sum(axis=1) >= min(3, by.shape[1])] if len(by) else by
            if not len(by):
                cells.append("none")
                continue
            at = best_rate(by)
            found = fine[fine["lr"] == at][metric]
            m, h = interval(found)
            cells.append(f"{m:.3f} ± {h:.3f}" if metric != "accuracy" else f"{100 * m:.1f} ± {100 * h:.1f} %")
        out.append(
            "| "
            + ", ".join(f"{k:.3g}" if isinstance(k, float) else str(k) for k in key)
            + " | "
            + " | ".join(cells)
            + " |"
        )
    return out


# ---------------------------------------------------------------- the infinite network


def some(x, form: str = ".3g") -> str:
    return "-" if x is None else format(x, form)


def infinite(path: Path) -> list[str]:
    """What `trimtab limit` measured, and where the rate was asked for too, what it means for a proxy."""
    found = json.loads(path.read_text(encoding="utf-8"))
    verdict = f" says: *{found['verdict']}*." if found["verdict"] else ", what it says over depth:"
    out = [
        f"`trimtab limit {found['asked']}`{verdict}",
        "",
        "| quantity | over | at | exponent (95 %) | the theory's | verdict | size for 5 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in found["rates"]:
        at = "infinite" if r["at"] is None else f"{r['at']:g}"
        out.append(
            f"| {r['quantity']} | {r['axis']} | {at} | {some(r['exponent'], '.2f')} "
            f"({some(r['low'], '.2f')} to {some(r['high'], '.2f')}) | {r['expected']:g} | {r['verdict']} | "
            f"{some(r['needed'])} ({some(r['needed_low'])} to {some(r['needed_high'])}) |"
        )
    return [*out, *(["", *proxies(found["optimum"])] if found.get("optimum") else [])]


def proxies(optimum: dict) -> list[str]:
    """The best rate by width, and how far that of a proxy is off."""
    best, law = optimum["rows"], optimum["rate"]
    out = ["| width | best rate (95 %) | octaves from the limit's |", "|---|---|---|"]
    for r in best:
        width = "infinite" if r["width"] is None else f"{r['width']:g}"
        out.append(
            f"| {width} | {some(r['lr'])} ({some(r['low'])} to {some(r['high'])}) | "
            f"{some(r['shift'], '+.2f')} |"
        )
    finite = [r for r in best if r["width"] is not None]
    wide = finite[-1]
    out += [
        "",
        f"The same against the widest network tried ({wide['width']:g}), whose best rate is known better "
        "than the limit's: how far the best rate of a proxy is off.",
    ]
    out += ["", "| proxy's width | octaves off | 95 % |", "|---|---|---|"]
    for r in finite[:-1]:
        off, half = (
            math.log2(r["lr"] / wide["lr"]),
            1.96 * math.hypot(r["shift_stderr"], wide["shift_stderr"]),
        )
        out.append(f"| {r['width']:g} | {off:+.2f} | ± {half:.2f} |")
    out += [
        "",
        f"As a law, shift = c / N: c = {law['constant']:.1f} ({law['constant_low']:.1f} to "
        f"{law['constant_high']:.1f}) octaves x width.",
    ]
    return out


# ---------------------------------------------------------------- pages


def spent(folder: Path) -> tuple[int, float]:
    """(runs, seconds of a worker by the clock) of the stored results."""
    tables = [read(folder, name) for name in question(folder).get("stores", {})]
    tables = [t for t in tables if t is not None]
    return sum(len(t) for t in tables), sum(float(t["seconds"].sum()) for t in tables)


def section(folder: Path, q: dict, up: str) -> list[str]:
    """The part of a page about one experiment; `up`: the way to its folder."""
    lines = [(line, judged(folder, line)) for line in q.get("lines", [])]
    out = [q["question"], ""]
    if figure(folder, lines) or (folder / "figure.svg").is_file():
        out += [f"![{q['title']}]({up}figure.svg)", ""]
    if lines:
        out += [*verdicts(lines), ""]
    for spec in q.get("tables", []):
        found = losses(folder, spec)
        out += [spec["title"], "", *found, ""] if found else []
    for spec in q.get("cells", []):
        out += [spec["title"], "", *cells(folder, spec), ""] if (folder / spec["file"]).is_file() else []
    for spec in q.get("slopes", []):
        out += [spec["title"], "", *slopes(folder, spec), ""] if (folder / spec["file"]).is_file() else []
    for path in sorted(folder.glob("limit*.json")):
        out += [*infinite(path), ""]
    if "carried" in q:
        out += [*carried(folder, q["carried"]), ""]
    for path in sorted(folder.glob("*.md.part")):
        out += [*path.read_text(encoding="utf-8").strip().splitlines(), ""]
    out += [q["says"], ""] if q.get("says") else []
    if q.get("act"):
        out += [f"**What to do.** {q['act']}", ""]
    runs, seconds = spent(folder)
    if runs:
        out += [f"{runs} runs, {seconds / 60:.0f} minutes of one worker on a busy two-core machine.", ""]
    return out


MARKS = (
    "Columns: the optimum of each size in log2 (`*`: the last rate that trains; `>`: beyond the grid; none: "
    "nothing trains); how far it moves per doubling of the"
    " size, with its 95 % interval; the verdict; the largest regret of keeping the base's optimum, over the "
    "size's own best; the loss at the optimum of the largest size"
    " and of the base. *Transfers*: the interval lies within ±0.25. *Drifts*: it excludes 0 and the slope "
    "is beyond 0.25."
)


CAUTION = (
    "Read with care. These are small networks, small images and short runs. Where the first three seeds or "
    "the first grid could not tell, more seeds, rates or sizes were added after looking"
    " (`sweep-more*.toml`, `sweep-narrow.toml`, `sweep-post-norm-more.toml`), while lines that were told at "
    "once were left alone; the intervals do not account for that. About eighty lines"
    " are judged at 95 %, so some four may be wrong by chance. `docs/statistics.md` says what three seeds "
    "are worth."
)


def write() -> None:
    """Figures, READMEs, docs/evidence.md."""
    page = [
        "# The evidence",
        "",
        "*Made by `python experiments/evidence.py` from the results in `experiments/`; do not edit.*",
        "",
        MARKS,
        "",
        CAUTION,
        "",
    ]
    summary, body = (
        ["| question | line | drift per doubling | verdict | regret |", "|---|---|---|---|---|"],
        [],
    )
    for folder in folders():
        q = question(folder)
        body += [f"## {q['number']}. {q['title']}", "", *section(folder, q, f"../experiments/{folder.name}/")]
        for line in q.get("lines", []):
            t = judged(folder, line) if line.get("headline") else None
            if t is not None:
                summary.append(
                    f"| {q['number']}. {q['title']} | {line['label']} | {signed(t.drift.slope)} "
                    f"({signed(t.drift.low)} to {signed(t.drift.high)}) | **{t.verdict}** | {worst(t)} |"
                )
        how = ["## Run it", "", "```", f"python experiments/evidence.py run {folder.name}", "```", ""]
        how += (
            [
                "`sweep-paper.toml` is the same question at the paper's size, for a GPU: `trimtab sweep "
                "sweep-paper.toml`.",
                "",
            ]
            if (folder / "sweep-paper.toml").is_file()
            else []
        )
        text = [f"# {q['title']}", "", *section(folder, q, ""), *how, MARKS]
        (folder / "README.md").write_text("\n".join(wrapped(text)).strip() + "\n", encoding="utf-8")
    text = [*page, *summary, "", *body]
    (ROOT / "docs" / "evidence.md").write_text("\n".join(wrapped(text)).strip() + "\n", encoding="utf-8")


def wrapped(lines: list[str]) -> list[str]:
    """Paragraphs at 110 columns; tables, code and pictures as they are."""
    import textwrap

    out = []
    for line in lines:
        out += (
            textwrap.wrap(line, 110, break_long_words=False, break_on_hyphens=False)
            if len(line) > 110 and line[0] not in "|!`#"
            else [line]
        )
    return out


def listed() -> None:
    """Name, state, runs, cost."""
    for folder in folders():
        q = question(folder)
        have = [name for name in q.get("stores", {}) if (folder / f"{name}.csv").is_file()]
        runs, seconds = spent(folder)
        state = (
            "stored" if len(have) == len(q.get("stores", {})) else f"{len(have)} of {len(q['stores'])} stored"
        )
        print(
            f"{q['number']:>3}  {folder.name:<24} {state:<16} {runs:>6} runs {seconds / 60:>6.1f} "
            f"worker-minutes  {q['title']}"
        )


def run(name: str, size: str, workers: str) -> None:
    """Run or resume the sweeps of one experiment into its folder, then write its CSV files."""
    folder = HERE / name
    if size == "paper":
        jobs = [("paper", "sweep-paper.toml")]
    else:
        jobs = [
            (store, file) for store, files in question(folder).get("stores", {}).items() for file in files
        ]
    for store, file in jobs:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "trimtab.cli",
                "sweep",
                str(folder / file),
                "--store",
                str(folder / f"{store}.db"),
                "--workers",
                workers,
            ],
            check=True,
        )
    for script in question(folder).get("scripts", []):
        subprocess.run([sys.executable, str(folder / script)], check=True, cwd=ROOT)
    if size != "paper":
        export(folder, folder)


def shrunk(path: Path) -> dict:
    """A sweep cut down to a few seconds: two sizes, two values of each axis, three steps, on digits where the
    data are not there."""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    run = config["run"]
    for key in ("widths", "depths"):
        if key in config:
            config[key] = config[key][:2]
    for key, values in config["axes"].items():
        config["axes"][key] = (
            values[:2]
            if isinstance(values, list)
            else [2.0 ** values["log2"][0], 2.0 ** (values["log2"][0] + 1)]
        )
    run |= {"steps": 3, "warmup": 0, "eval_examples": 64 if run.get("eval_examples") else 0}
    if isinstance(config["base"], dict) and "tokens" in config["base"]:  # steps follow from batch and tokens
        run.pop("steps")
        config["batches"] = config.get("batches", [config["base"]["batch"]])[:2]
        config["base"]["tokens"] = 3 * max(config["batches"])
        config["tokens"] = [
            n * config["base"]["tokens"] for n in range(1, len(config.get("tokens", [0])[:2]) + 1)
        ]
    for key in ("model", "data"):
        if str(run[key]).partition(":")[0].endswith(".py"):
            run[key] = str(path.parent / run[key])
    if run["data"] == "cifar10" and not os.environ.get("TRIMTAB_DATA") and ":" not in run["model"]:
        run["data"], run["data_options"] = "digits", {}
    return config | {"seeds": 1}


def members(folder: Path) -> dict[str, Path]:
    """{store: its first sweep} of the stores that try something the ones before do not: another model, data,
    optimizer or kind of axis."""
    out, seen = {}, set()
    for store, files in question(folder).get("stores", {}).items():
        config = tomllib.loads((folder / files[0]).read_text(encoding="utf-8"))
        run = config["run"]
        kind = (run["model"], run["data"], run.get("optimizer"), "batches" in config, "tokens" in config)
        if kind not in seen:
            seen.add(kind)
            out[store] = folder / files[0]
    return out


def tiny(name: str) -> None:
    """Small members of an experiment, from their files to their tables."""
    from trimtab.sweeps.store import Store

    found = members(HERE / name)
    if not found:
        print(f"{name}: has no sweep of its own")
    for store, file in found.items():
        config = shrunk(file)
        if config["run"]["data"] in ("cifar10", "images", "text") and not os.environ.get("TRIMTAB_DATA"):
            print(f"{name}/{store}: needs data in $TRIMTAB_DATA, not run")
            continue
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / f"{store}.db"
            trimtab.sweep(config, path, workers=1)
            table = slim(Store(path).to_pandas())
        if not len(table) or set(table["state"]) - {"done", "diverged"}:
            raise SystemExit(f"{name}/{store}: the tiny sweep did not finish")
        print(f"{name}/{store}: {len(table)} tiny runs finished")


def main(given: list[str]) -> None:
    options = dict(itertools.pairwise(given))
    if not given:
        write()
    elif given[0] == "list":
        listed()
    elif given[0] == "run":
        size = options.get("--size", "small")
        tiny(given[1]) if size == "tiny" else run(given[1], size, options.get("--workers", "2"))
    elif given[0] == "export":
        export(HERE / given[1], Path(given[2]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
