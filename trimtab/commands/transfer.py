"""`trimtab transfer` and `trimtab report`: the answer as a table in the terminal, as JSON, or as a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.errors import InputError
from trimtab.optima.tables import RunSource as Source
from trimtab.optima.tables import default_scheme, schemes
from trimtab.optima.tables import open_source as opened
from trimtab.optima.tables import size_axes as varied
from trimtab.optima.transfers import Transfer, analyse
from trimtab.optima.wording import between, headline, number, span
from trimtab.optima.wording import hp_name as named
from trimtab.sweeps.extension import extended, write

if TYPE_CHECKING:
    from trimtab.cli import Report
    from trimtab.cli import Transfer as Command

EXIT = {"transfers": 0, "drifts": 1, "cannot tell": 3}
COLOUR = {"transfers": "green", "drifts": "red", "cannot tell": "yellow"}


def told(
    source: Source, overs: Iterable[str], names: Iterable[str], hp: str, metric: str, where: Mapping[str, Any]
) -> dict[str, dict[str, Transfer]]:
    """{over: {scheme: Transfer}}."""
    table, base = source.to_pandas(), source.meta.get("base")
    return analyse(table, overs, list(names), hp=hp, metric=metric, where=where, base=base)


def transferring(command: Command) -> int:
    """Print optima, drift, regret and the verdict; the exit code is the named scheme's verdict, the worst of the axes."""
    source = opened(command.store)
    table = source.to_pandas()
    names = schemes(table)
    if not names:
        raise InputError(f"a transfer needs runs: {command.store} has none yet.")
    if command.scheme is not None and command.scheme not in names:
        raise InputError(f"scheme must be one of the store's: {', '.join(names)}; got {command.scheme!r}.")
    lead = command.scheme or default_scheme(names)
    overs = [command.over] if command.over else varied(table) or ["depth"]
    every = told(
        source,
        overs,
        [command.scheme] if command.scheme else names,
        command.hp,
        command.metric,
        conditions(command.where),
    )
    mine = {over: by[lead] for over, by in every.items()}
    code = worst(mine.values())
    said = suggested(source, mine, command) if command.suggest else ""
    if command.json:
        out = {"scheme": lead, "exit": code, "verdict": {over: t.verdict for over, t in mine.items()}}
        print(
            json.dumps(
                out
                | {
                    "transfers": {over: {n: t.to_dict() for n, t in by.items()} for over, by in every.items()}
                },
                indent=1,
            )
        )
    else:
        Console(highlight=False).print(shown(every, mine))
    if said:
        print(f"\n{said}", file=sys.stderr if command.json else sys.stdout)
    return code


def suggested(source: Source, mine: Mapping[str, Transfer], command: Command) -> str:
    """Write the sweep that would tell as a file beside the store's runs; says what was written."""
    cures = {over: t.remedy for over, t in mine.items() if t.remedy}
    path = Path(command.suggest or "")
    if not cures:
        return f"{path} was not written: the runs there are tell, or have yet to finish."
    old = source.meta.get("config")
    if not old:
        raise InputError(f"{command.store} does not say which sweep it holds, so that it cannot be extended.")
    values = sorted({v for cure in cures.values() for added in cure.values.values() for v in added})
    sizes = {f"{over}s": cure.sizes for over, cure in cures.items()}
    seeds = max(cure.seeds for cure in cures.values())
    table = extended(old, values={command.hp: values} if values else {}, seeds=seeds, **sizes)
    again = f"trimtab sweep {path} --store {command.store}"
    parts = [f"{command.hp} {', '.join(map(number, values))}"] * bool(values) + [
        f"{seeds} more seeds"
    ] * bool(seeds)
    parts += [f"{name} {', '.join(map(str, more))}" for name, more in sizes.items() if more]
    what = "; ".join(parts)
    heading = f"{old.get('name', 'sweep')} with more in it: {what}.\nRun it into the same store, where nothing runs twice:"
    held = source.to_pandas()
    cells, new = write(
        path,
        table,
        f"{heading}\n    {again}",
        held["cell"],
        held["fleet"].astype(int) if "fleet" in held else (1,),
    )
    return f"wrote {path}: {what}; {new} of its {cells} runs are new. Run it into the same store: {again}"


def worst(transfers: Iterable[Transfer]) -> int:
    """Drifts on any axis is a no; else cannot tell on any is no answer."""
    codes = {EXIT[t.verdict] for t in transfers}
    return 1 if 1 in codes else 3 if 3 in codes else 0


def conditions(pairs: Iterable[str]) -> dict[str, Any]:
    """name=value pairs of the command line.

    >>> conditions(["width=64", "optimizer=SGD", "weight_decay=1e-3"])
    {'width': 64, 'optimizer': 'SGD', 'weight_decay': 0.001}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--where takes name=value: got {pair!r}.")
        try:
            out[name] = json.loads(value)
        except json.JSONDecodeError:
            out[name] = value
    return out


def shown(every: Mapping[str, Mapping[str, Transfer]], mine: Mapping[str, Transfer]) -> RenderableType:
    """What the terminal shows: the verdict first, then the details."""
    return Group(Text(headline(mine), style="bold"), details(every, mine))


def details(every: Mapping[str, Mapping[str, Transfer]], mine: Mapping[str, Transfer]) -> RenderableType:
    """What would tell where nothing is told, every scheme's verdict, then a table of optima per axis."""
    parts: list[RenderableType] = []
    parts += [Text(f"To tell over {t.over}: {t.advice}.", style="yellow") for t in mine.values() if t.advice]
    parts += [Text(""), verdicts(every)]
    for over, by in every.items():
        parts += [Text(""), tabled(over, list(by.values()))]
        failures = [Text(f"- {t.scheme}: {s}.") for t in by.values() for s in t.signatures]
        failures += [Text(f"- {n}.") for n in dict.fromkeys(n for t in by.values() for n in t.notes)]
        parts += failures
        lead = mine[over]
        if lead.cost.ratio == lead.cost.ratio:
            parts.append(
                Text(
                    f"- Tuning at {over} {lead.base:g} saves: the same runs at {over} {lead.optima[over].max():g} take {number(lead.cost.ratio)} times the FLOPs.",
                    style="dim",
                )
            )
    return Group(*parts)


def verdicts(every: Mapping[str, Mapping[str, Transfer]]) -> Table:
    """One row per scheme, one column per axis."""
    first = next(iter(next(iter(every.values())).values()))
    title = Text(
        f"Drift of the optimum, {'log2 ' if first.axis == 'log2' else ''}per doubling (95 % interval)",
        style="bold",
    )
    out = Table(
        title=title,
        title_justify="left",
        title_style="",
        box=None,
        pad_edge=False,
        padding=(0, 1),
        header_style="dim",
    )
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


def tabled(over: str, transfers: list[Transfer]) -> Table:
    """The optima; regret is that of keeping the base's, as its interval."""
    first = transfers[0]
    fixed = ", ".join(f"{k} {v}" for k, v in first.fixed.items())
    title = Text(
        f"Best {named(first.hp)} over {span(first)}" + (f", at {fixed}" if fixed else ""), style="bold"
    )
    out = Table(
        title=title,
        title_justify="left",
        title_style="",
        box=None,
        pad_edge=False,
        padding=(0, 1),
        header_style="dim",
    )
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


def _regret(row: Mapping[str, Any]) -> str:
    if row["status"] != "measured":
        return "does not train" if row["status"] == "unstable" else "-"
    high = number(row["high"], 2)
    return f"under {high}" if row["low"] < 0.1 * row["high"] else f"{number(row['low'], 2)} to {high}"


def _end(x: float) -> str:
    return "?" if x != x else f"{x:+.2f}" if abs(x) != float("inf") else ("∞" if x > 0 else "-∞")


def reporting(command: Report) -> int:
    """Write the page and say where it is."""
    from trimtab.reporting import report

    path = report(command.store, command.out, hp=command.hp, metric=command.metric)
    size = path.stat().st_size
    print(
        json.dumps({"path": str(path), "bytes": size})
        if command.json
        else f"{path} ({size / 1e6:.1f} MB): open it in any browser, it needs no network."
    )
    return 0
