"""`trimtab train`: one run from a TOML file, with a live line of step, loss, rate and time to go."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from trimtab.errors import InputError, faults
from trimtab.runs import checkpoints
from trimtab.runs.results import RunResult
from trimtab.runs.toml import read_toml
from trimtab.runs.training import Interrupted, Run, RunConfig

if TYPE_CHECKING:
    from trimtab.cli import Train

REFRESH = 0.1  # seconds between redraws


def train(command: Train) -> int:
    """Run the command; returns the exit code: 0 trained, 1 diverged or collapsed, 130 interrupted and resumable."""
    path = Path(command.config)
    try:
        config = RunConfig(**read_toml(path))
    except InputError as error:
        raise InputError(str(error).replace("the run's configuration", str(path))) from error
    checkpoint = Path(command.checkpoint) if command.checkpoint else path.with_suffix(".checkpoint")
    missing = [
        f"{name}: must be in a folder that exists: got {given}"
        for name, given in (("checkpoint", checkpoint), ("out", command.out))
        if given and not Path(given).resolve().parent.is_dir()
    ]
    if missing:  # said before the training, not after it
        raise faults("trimtab train:", missing)
    run = Run(config, checkpoint)
    for line in run.said:
        print(f"trimtab: {line}", file=sys.stderr)
    console = Console(stderr=True)
    if not command.json:
        resumed = f", resumed at step {len(run.losses)}" if run.losses else ""
        size = sum(p.numel() for p in run.model.parameters())
        console.print(
            f"{config.model} width {config.width} depth {config.depth} ({size:,} parameters) on {config.data}, {config.optimizer} lr {config.lr:g}, {config.scheme}{resumed}",
            highlight=False,
        )
    asked = (
        threading.Event()
    )  # a step is never cut in two: the signal only asks, the loop stops between steps
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        result = _with_progress(run, config, console, asked.is_set, quiet=command.json)
    except Interrupted:
        if not command.json:
            console.print(
                f"interrupted after {len(run.losses)} of {config.steps} steps; the same command goes on from there.",
                highlight=False,
            )
        return 130
    finally:
        signal.signal(signal.SIGINT, before)
    if command.out:
        _write(
            Path(command.out),
            {
                "config": config.model_dump(mode="json"),
                **result.row(),
                "curves": {
                    k: [None if not math.isfinite(x) else x for x in v.tolist()]
                    for k, v in result.curves.items()
                },
            },
        )
    checkpoints.remove(checkpoint)
    print(json.dumps(result.row()) if command.json else summary(result))
    return 0 if result.state == "done" and not result.collapsed else 1


def summary(result: RunResult) -> str:
    """The result in two lines.

    >>> from trimtab.results import conclude
    >>> print(summary(conclude([2.0, 1.0, float("nan")], [], steps=10, seconds=1.0, flops_per_step=1e6)))
    diverged at step 2: the last finite loss was 1
    1.0 s, 3e+06 floating point operations
    """
    if result.state == "diverged":
        first = (
            f"diverged at step {result.stopped_at}: the last finite loss was {result.last_loss:.4g}"
            if result.last_loss is not None
            else "diverged at once: the first loss was not finite"
        )
    elif result.collapsed:
        first = f"collapsed: the loss went from {result.initial_loss:.4g} to {result.train_loss:.4g}, so nothing was learned"
    else:
        first = f"loss {result.initial_loss:.4g} -> {result.train_loss:.4g} (mean of the last tenth)"
    if result.test_loss is not None:
        first += f"; test loss {result.test_loss:.4g}"
    if result.accuracy is not None:
        first += f", accuracy {100 * result.accuracy:.1f} %"
    if result.test_examples is not None:
        first += f" ({result.test_examples:,} test examples)"
    return f"{first}\n{result.seconds:.1f} s, {result.flops:.3g} floating point operations"


def _with_progress(
    run: Run, config: RunConfig, console: Console, stop: Callable[[], bool], *, quiet: bool
) -> RunResult:
    if quiet or not console.is_terminal:
        tenth = max(1, config.steps // 10)

        def line(step: int, loss: float, lr: float) -> None:
            if not quiet and (step + 1) % tenth == 0:
                console.print(
                    f"step {step + 1}/{config.steps}  loss {loss:.4g}  lr {lr:.4g}", highlight=False
                )

        return run.go(30.0, line, stop)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  lr {task.fields[lr]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("train", total=config.steps, completed=len(run.losses), loss="-", lr="-")
        drawn = 0.0

        def live(step: int, loss: float, lr: float) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn > REFRESH or step + 1 == config.steps:
                drawn = now
                bar.update(task, completed=step + 1, loss=f"{loss:.4g}", lr=f"{lr:.3g}")

        return run.go(30.0, live, stop)


def _write(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_name(path.name + ".draft")
    try:
        draft.write_text(json.dumps(content))
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(f"{path} could not be written: {error.strerror}.") from error
