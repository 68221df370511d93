"""`trimtab limit`: finite networks beside the infinite one.

A table in the terminal, JSON, a page of its own, or a section of a sweep's report.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.commands.options import PageOrNone, Text
from trimtab.errors import InputError, TrimtabError, faults

if TYPE_CHECKING:
    import numpy as np

    from trimtab.limits.results import Limit as Answer

EXIT = {"converges": 0, "contradicts": 1, "cannot tell": 3}
TEXT = (
    "Networks of every width and depth were trained beside the solved dynamical mean field theory. Mean "
    "output: how far the mean over networks is from the limit, over the whole"
    " trajectory. Scatter: how far one network is from their mean. Mean loss: after the last step. All "
    "relative to the limit; infinite widths are compared with infinite depth."
)
PAGE = {"converges": "transfers", "contradicts": "drifts", "cannot tell": "cannot tell"}


@dataclasses.dataclass
class Limit:
    """Finite networks against the infinite one: how far off, how fast that falls, how large is large enough.
    Exit code 0 as the theory says, 1 not, 3 cannot tell."""

    width: str = "32,64,128,256"
    """Widths of the networks, comma-separated."""
    depth: str = "2,4,8,inf"
    """Numbers of residual branches and inf, comma-separated; inf alone stands for 4,8,inf."""
    activation: str = "tanh"
    """relu, tanh, erf, gelu or linear."""
    lr: float = 0.2
    """Base rate eta_0, independent of width and depth."""
    steps: int = 10
    """Gradient steps."""
    data: str = "digits"
    """A data set of images, its points labelled +1 for even classes and -1 for odd ones."""
    points: int = 4
    """Training points."""
    gamma0: float = 1.0
    """Richness: how much features learn."""
    alpha: float = 0.5
    """Branches are scaled by depth^-alpha."""
    networks: int = 128
    """Networks of the smallest width; wider ones in proportion 1/width, at least 16."""
    samples: int = 8000
    """Samples of the theory's solution; its error falls as their root."""
    tolerance: float = 0.05
    """Relative error that counts as close enough."""
    rates: Text = None
    """Also the best rate: loss against these rates, comma-separated, in the limit and in networks."""
    seed: int = 0
    """Of networks, samples and points."""
    store: Text = None
    """A sweep's file to attach the section to; `trimtab report` then shows it."""
    out: PageOrNone = None
    """Write an offline page to this HTML file."""
    json: bool = False
    """Print everything as JSON; infinite and missing numbers are null."""

    def run(self) -> int:
        """Check everything, run, tell; the exit code is the verdict."""
        asked = validate(self)
        found = measure(self, asked)
        content = section(found, self)
        if asked.store is not None:
            asked.store.attach("limit", content)
        if self.out is not None:
            write_page(self, self.out, found, content)
        code = EXIT[found.verdict]
        if self.json:
            print(json.dumps({"exit": code} | found.to_dict(), indent=1))
            return code
        from rich.console import Console

        from trimtab.commands.limit_tables import overview

        Console(highlight=False).print(overview(found))
        if self.out is not None:
            print(f"{self.out}: open it in any browser, it needs no network.")
        return code


@dataclasses.dataclass(frozen=True)
class Question:
    """The options of `trimtab limit`, read and found right."""

    x: np.ndarray
    y: np.ndarray
    widths: list[float]
    depths: list[float]
    rates: list[float]
    case: dict[str, Any]
    store: Any


def validate(options: Limit) -> Question:
    """Read the options; every fault at once."""
    from trimtab.limits.approach import argument_faults

    problems: list[str] = []
    widths, depths = _numbers("width", options.width, problems), _numbers("depth", options.depth, problems)
    rates = _numbers("rates", options.rates, problems) if options.rates is not None else []
    if options.rates is not None and (len(set(rates)) < 3 or not all(0 < r < math.inf for r in rates)):
        problems.append(f"rates: needs at least three different positive rates, got {options.rates!r}.")
    if options.out is not None and not Path(options.out).resolve().parent.is_dir():
        problems.append(f"out: must be in a folder that exists, got {options.out}.")
    store = _open_store(options.store, problems)
    x, y = _points(options, problems)
    case: dict[str, Any] = dict(
        activation=options.activation,
        lr=options.lr,
        steps=options.steps,
        gamma0=options.gamma0,
        alpha=options.alpha,
    )
    wrong = argument_faults(x, y, widths, depths, options.networks, options.samples, options.tolerance, case)
    for own in wrong:
        if own.split(":")[0] not in {p.split(":")[0] for p in problems}:
            problems.append(own)
    if problems:
        title = f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments of trimtab limit"
        raise faults(title, problems)
    return Question(x=x, y=y, widths=widths, depths=depths, rates=rates, case=case, store=store)


def measure(options: Limit, asked: Question) -> Answer:
    """Train the networks and solve the limit, with a progress bar; the best rate too where rates were
    given."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from trimtab.limits.approach import approach
    from trimtab.limits.best_rates import optimum

    quiet = options.json or not sys.stderr.isatty()
    lines = quiet and not options.json  # as of the check: a log file shows that it is at work
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("limit and networks")

        def seen(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if lines:
                print(f"limit and networks: {done} of {total}", file=sys.stderr, flush=True)

        widths = [int(w) for w in asked.widths]
        shared: dict[str, Any] = dict(widths=widths, samples=options.samples, seed=options.seed)
        found = approach(
            asked.x,
            asked.y,
            depths=asked.depths,
            networks=options.networks,
            tolerance=options.tolerance,
            progress=seen,
            **shared,
            **asked.case,
        )
        if not asked.rates:
            return found
        bar.add_task("best rate", total=None)
        best = optimum(
            asked.x,
            asked.y,
            rates=asked.rates,
            depth=max(asked.depths),
            networks=options.networks,
            **shared,
            **{k: v for k, v in asked.case.items() if k != "lr"},
        )
        return dataclasses.replace(found, optimum=best)


def write_page(options: Limit, path: str, found: Answer, content: dict[str, Any]) -> None:
    """The section as a page of its own."""
    from trimtab.limits.results import sentence
    from trimtab.reporting import page as pages

    page = pages.render_section(
        "limit",
        content,
        headline=sentence(found),
        verdict=PAGE[found.verdict],
        command=_line(options),
        counts=[("networks trained", int(sum(r["networks"] for r in found.rows)))],
    )
    pages.write_page(page, path)


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


def _open_store(path: str | None, problems: list[str]) -> Any:
    if path is None:
        return None
    from trimtab.optima.tables import open_source

    try:
        return open_source(path)
    except TrimtabError as error:
        problems.append(f"store: {error}")
        return None


def _points(options: Limit, problems: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Points of a data set, flattened; +1 for even classes, -1 for odd ones."""
    import numpy as np

    from trimtab.data.opening import open_data

    try:
        source = open_data(options.data)
        if options.points < 1 or options.points > (source.shape.train or 0):
            raise InputError(f"points: must be between 1 and {source.shape.train}, got {options.points}.")
        x, y = source.batch("train", options.seed, 0, options.points)
        if not x.is_floating_point() or y.ndim != 1:
            raise InputError(
                f"data: must be a set of labelled images, got {options.data!r}. Try digits, cifar10 or "
                "fashion-mnist."
            )
        return x.flatten(1).double().numpy(), np.where(y.numpy() % 2 == 0, 1.0, -1.0)
    except TrimtabError as error:
        text = str(error)
        problems.append(text if text.startswith(("points:", "data:")) else f"data: {text}")
        return np.ones((1, 1)), np.ones(1)


def section(found: Answer, options: Limit) -> dict[str, Any]:
    """What the report shows of it."""
    from trimtab.commands.limit_tables import tables
    from trimtab.files import json_ready

    case = f"{options.activation}, {options.points} points of {options.data}"
    title = f"The infinite network: {case}, rate {options.lr:g}, {options.steps} steps"
    content = {"title": title, "verdict": found.verdict, "text": TEXT}
    return json_ready(content | {"figures": found.figures(), "tables": tables(found)})


def _line(options: Limit) -> str:
    """The command that makes the page again."""
    words = ["trimtab", "limit"]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is not None and value is not False and field.name not in ("json", "store"):
            words += [f"--{field.name}", str(value)]
    return shlex.join(words)
