"""`trimtab limit`: finite networks beside the infinite one, as a table in the terminal, JSON, a page, or a section of a sweep's report."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from trimtab.errors import InputError, TrimtabError, faults
from trimtab.limits.approach import Limit, approach, optimum, sentence
from trimtab.limits.approach import argument_faults as checked

if TYPE_CHECKING:
    from trimtab.cli import Limit as Command

EXIT = {"converges": 0, "contradicts": 1, "cannot tell": 3}
COLOUR = {
    "converges": "green",
    "contradicts": "red",
    "cannot tell": "yellow",
    "open": "yellow",
    "agrees": "green",
    "disagrees": "red",
}
TEXT = (
    "Networks of every width and depth were trained beside the solved dynamical mean field theory. Mean output: how far the mean over networks is from the limit, over the whole"
    " trajectory. Scatter: how far one network is from their mean. Mean loss: after the last step. All relative to the limit; infinite widths are compared with infinite depth."
)
TITLES = (
    "How fast errors fall",
    "Distance from the limit, ± one standard error (infinite widths: from infinite depth)",
    "Best rate",
)
SHORT = {"mean output": "output", "mean loss": "loss", "one network": "scatter"}
PAGE = {"converges": "transfers", "contradicts": "drifts", "cannot tell": "cannot tell"}


def limiting(command: Command) -> int:
    """Check everything, run, tell; the exit code is the verdict."""
    problems: list[str] = []
    widths, depths = _numbers("width", command.width, problems), _numbers("depth", command.depth, problems)
    rates = _numbers("rates", command.rates, problems) if command.rates is not None else []
    if command.rates is not None and (len(set(rates)) < 3 or not all(0 < r < math.inf for r in rates)):
        problems.append(f"rates: needs at least three different positive rates, got {command.rates!r}.")
    if command.out is not None and not Path(command.out).resolve().parent.is_dir():
        problems.append(f"out: must be in a folder that exists, got {command.out}.")
    store = _opened(command.store, problems)
    x, y = _data(command, problems)
    case: dict[str, Any] = dict(
        activation=command.activation,
        lr=command.lr,
        steps=command.steps,
        gamma0=command.gamma0,
        alpha=command.alpha,
    )
    for own in checked(x, y, widths, depths, command.networks, command.samples, command.tolerance, case):
        if own.split(":")[0] not in {p.split(":")[0] for p in problems}:
            problems.append(own)
    if problems:
        raise faults(
            f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments of trimtab limit", problems
        )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=command.json or not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("limit and networks")
        shared: dict[str, Any] = dict(
            widths=[int(w) for w in widths], samples=command.samples, seed=command.seed
        )
        found = approach(
            x,
            y,
            depths=depths,
            networks=command.networks,
            tolerance=command.tolerance,
            progress=lambda i, n: bar.update(task, completed=i, total=n),
            **shared,
            **case,
        )
        if rates:
            bar.add_task("best rate", total=None)
            best = optimum(
                x,
                y,
                rates=rates,
                depth=max(depths),
                networks=command.networks,
                **shared,
                **{k: v for k, v in case.items() if k != "lr"},
            )
            found = dataclasses.replace(found, optimum=best)

    content = section(found, command)
    if store is not None:
        store.attach("limit", content)
    if command.out is not None:
        from trimtab.reporting import render_section
        from trimtab.reporting import write_page as written

        count = int(sum(r["networks"] for r in found.rows))
        written(
            render_section(
                "limit",
                content,
                headline=sentence(found),
                verdict=PAGE[found.verdict],
                command=_line(command),
                counts=[("networks trained", count)],
            ),
            command.out,
        )
    code = EXIT[found.verdict]
    if command.json:
        print(json.dumps({"exit": code} | found.to_dict(), indent=1))
    else:
        Console(highlight=False).print(shown(found))
        if command.out is not None:
            print(f"{command.out}: open it in any browser, it needs no network.")
    return code


def _numbers(name: str, text: str, problems: list[str]) -> list[float]:
    """Comma-separated numbers; whole ones are ints.

    >>> _numbers("depth", "4, 8,inf", [])
    [4, 8, inf]
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        problems.append(f"{name}: must be numbers with commas between them, got {text!r}.")
        return []
    return [int(v) if math.isfinite(v) and v == int(v) else v for v in found]


def _opened(path: str | None, problems: list[str]) -> Any:
    if path is None:
        return None
    from trimtab.optima.tables import open_source as opened

    try:
        return opened(path)
    except TrimtabError as error:
        problems.append(f"store: {error}")
        return None


def _data(command: Command, problems: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Points of a data set, flattened; +1 for even classes, -1 for odd ones."""
    from trimtab.data.opening import open_data

    try:
        source = open_data(command.data)
        if command.points < 1 or command.points > (source.shape.train or 0):
            raise InputError(f"points: must be between 1 and {source.shape.train}, got {command.points}.")
        x, y = source.batch("train", command.seed, 0, command.points)
        if not x.is_floating_point() or y.ndim != 1:
            raise InputError(
                f"data: must be a set of labelled images, got {command.data!r}. Try digits or cifar10."
            )
        return x.flatten(1).double().numpy(), np.where(y.numpy() % 2 == 0, 1.0, -1.0)
    except TrimtabError as error:
        text = str(error)
        problems.append(text if text.startswith(("points:", "data:")) else f"data: {text}")
        return np.ones((1, 1)), np.ones(1)


def section(found: Limit, command: Command) -> dict[str, Any]:
    """What the report shows of it."""
    from trimtab.limits.approach import plain

    title = f"The infinite network: {command.activation}, {command.points} points of {command.data}, rate {command.lr:g}, {command.steps} steps"
    return plain(
        {
            "title": title,
            "verdict": found.verdict,
            "text": TEXT,
            "figures": found.figures(),
            "tables": _tables(found),
        }
    )


def _tables(found: Limit) -> list[dict[str, Any]]:
    tables = [_rates(found), _sizes(found)] + ([_optima(found)] if found.optimum is not None else [])
    return [table | {"title": title} for title, table in zip(TITLES, tables, strict=False)]


def _number(x: float, form: str = ".3g") -> str:
    return "-" if math.isnan(x) else ("∞" if x > 0 else "-∞") if math.isinf(x) else format(x, form)


def _percent(x: float, error: float) -> str:
    return "-" if not math.isfinite(x) else f"{100 * x:.2f} ± {_number(100 * error, '.2f')}"


def _rates(found: Limit) -> dict[str, Any]:
    tolerance = found.bound.tolerance
    rows = []
    for r in found.rates + (() if found.optimum is None else (found.optimum.rate,)):
        size, low, high = (_number(v, ".0f" if v < 1e4 else ".1g") for v in r.needed(tolerance))
        over = f"{r.axis}, {'L' if r.axis == 'width' else 'N'} {_number(r.at, 'g')}"
        exponent = f"{_number(r.exponent, '.2f')} ({_number(r.low, '.2f')}, {_number(r.high, '.2f')})"
        rows.append(
            [
                SHORT.get(r.quantity, r.quantity),
                over,
                exponent,
                f"{r.expected:.2f}",
                "open" if r.verdict == "cannot tell" else r.verdict,
                "-" if r.quantity == "best rate" else f"{size} ({low} to {high})",
            ]
        )
    return {
        "columns": ["quantity", "over", "exponent (95 %)", "theory", "", f"size for {100 * tolerance:g} %"],
        "rows": rows,
    }


def _sizes(found: Limit) -> dict[str, Any]:
    columns = ["width", "depth", "mean output, %", "scatter, %", "loss", "mean loss, %", "networks"]
    rows = [
        [_number(r["width"], "g"), f"{r['depth']:g}", _percent(r["error"], r["stderr"]), "-" if math.isinf(r["width"]) else _percent(r["fluctuation"], r["fluctuation_stderr"]),
         _number(r["loss"]), _percent(r["loss_error"], r["loss_stderr"]), "theory" if math.isinf(r["width"]) else f"{r['networks']:g}"]
        for r in found.rows
    ]  # fmt: skip
    return {"columns": columns, "rows": rows}


def _optima(found: Limit) -> dict[str, Any]:
    assert found.optimum is not None
    columns = ["width", "best rate", "95 % interval", "stable to", "log2 from the limit's"]
    rows = []
    for r, curve in zip(found.optimum.rows, found.optimum.curves, strict=True):
        ends = "beyond these rates" if r["lr"] in (curve["lr"][0], curve["lr"][-1]) else "at the edge"
        interval = ends if math.isnan(r["low"]) else f"{_number(r['low'])} to {_number(r['high'])}"
        rows.append(
            [
                _number(r["width"], "g"),
                _number(r["lr"]),
                interval,
                _number(r["edge"]),
                f"{r['shift']:+.2f} ± {_number(r['shift_stderr'], '.2f')}",
            ]
        )
    return {"columns": columns, "rows": rows}


def shown(found: Limit) -> RenderableType:
    """What the terminal shows: the bound first, then rates, then sizes."""
    parts: list[RenderableType] = [Text(sentence(found), style=f"bold {COLOUR[found.verdict]}")]
    for content in _tables(found):
        table = Table(
            title=Text(content["title"], style="bold"),
            title_justify="left",
            title_style="",
            box=None,
            pad_edge=False,
            header_style="dim",
        )
        for name in content["columns"]:
            table.add_column(
                name,
                justify="left" if name in ("quantity", "over", "exponent (95 %)", "") else "right",
                no_wrap=True,
            )
        for row in content["rows"]:
            table.add_row(*(Text(str(v), style=COLOUR.get(v, "")) for v in row))
        parts += [Text(""), table]
    return Group(*parts)


def _line(command: Command) -> str:
    """The command that makes the page again."""
    words = ["trimtab", "limit"]
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if value is not None and value is not False and field.name not in ("json", "store"):
            words += [f"--{field.name}", str(value)]
    return shlex.join(words)
