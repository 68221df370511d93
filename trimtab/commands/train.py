"""`trimtab train`: one run from a TOML file, with a live line of step, loss, rate and time to go."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.commands.options import Positional, Text
from trimtab.errors import InputError, TrimtabError, faults, faults_in
from trimtab.files import json_ready, looking_in, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from trimtab.runs.config import RunConfig
    from trimtab.runs.results import RunResult
    from trimtab.runs.training import Run

REFRESH = 0.1  # seconds between redraws


@dataclasses.dataclass
class Train:
    """Train one run, described by a TOML file. Ctrl-C and the same command again: it goes on where it was."""

    config: Positional[str]
    """run.toml: what `[run]` of a sweep holds (`trimtab new` shows every key), with width, depth, lr, seed
    and scheme beside it: docs/sweeps.md, "One run"."""
    checkpoint: Text = None
    """Where to keep the run while it lasts; default: beside the file, as run.checkpoint."""
    out: Text = None
    """Write the result with its curves to this JSON file."""
    json: bool = False
    """Print the result as JSON, without progress."""

    def run(self) -> int:
        """Train; the exit code is 0 trained, 1 diverged or collapsed, 130 interrupted and resumable."""
        with looking_in(Path(self.config).parent):
            return self._train()

    def _train(self) -> int:
        from rich.console import Console

        from trimtab.runs import checkpoints
        from trimtab.runs.training import Interrupted, Run

        path = Path(self.config)
        config = read_run(path)
        checkpoint = Path(self.checkpoint) if self.checkpoint else path.with_suffix(".checkpoint")
        missing = [
            f"{name}: must be in a folder that exists: got {given}"
            for name, given in (("checkpoint", checkpoint), ("out", self.out))
            if given and not Path(given).resolve().parent.is_dir()
        ]
        if missing:  # said before the training, not after it
            raise faults("trimtab train:", missing)
        _try_once(config)
        run = Run(config, checkpoint)
        for line in run.said:
            print(f"trimtab: {line}", file=sys.stderr)
        console = Console(stderr=True)
        if not self.json:
            console.print(introduction(run, config), highlight=False)
        asked = threading.Event()  # a signal only asks: the loop stops between steps, no step is cut in two
        before = signal.signal(signal.SIGINT, lambda *_: asked.set())
        try:
            result = _with_progress(run, config, console, asked.is_set, quiet=self.json)
        except Interrupted:
            done = f"interrupted after {len(run.losses)} of {config.steps} steps"
            if not self.json:
                console.print(f"{done}; the same command goes on from there.", highlight=False)
            return 130
        except Exception as error:
            raise _failed(error, len(run.losses), config.steps) from error
        finally:
            signal.signal(signal.SIGINT, before)
        if self.out:
            write_text(self.out, json.dumps(_content(config, result)) + "\n")
        checkpoints.remove(checkpoint)
        print(json.dumps(result.row()) if self.json else summary(result))
        return 0 if result.state == "done" and not result.collapsed else 1


def _try_once(config: RunConfig) -> None:
    """One forward with its loss, before any work."""
    from trimtab.runs.tasks import prepare

    try:
        _ = prepare(config).flops
    except (TrimtabError, ImportError):  # of a package that is not installed the command says more
        raise
    except Exception as error:
        raise InputError(f"the run cannot be set up: {type(error).__name__}: {error}.") from error


def _failed(error: Exception, made: int, steps: int) -> Exception:
    """What a run raised, as the user's fault with its place where it came out of the user's code; else as it
    is."""
    package = Path(__file__).parent.parent
    frames = [Path(f.filename) for f in traceback.extract_tb(error.__traceback__)]
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)]
    elsewhere = ("site-packages", f"python{sys.version_info.major}.{sys.version_info.minor}")
    own = [
        f"{frame.name}, line {line}"
        for frame, line in zip(frames, lines, strict=True)
        if package not in frame.parents and not any(part in frame.parts for part in elsewhere)
    ]
    if isinstance(error, TrimtabError) or not own:
        return error
    return InputError(
        f"the run stopped after {made} of {steps} steps: {type(error).__name__}: {error} ({own[-1]}). Mend "
        "it and run the same command again."
    )


def read_run(path: Path) -> RunConfig:
    """The run that a TOML file describes, with the SHA-256 of the user's own files, so that a checkpoint of
    other code is never resumed; faults are said of the file."""
    from trimtab.runs.config import RunConfig
    from trimtab.runs.toml import read_toml, refuse_other_kinds
    from trimtab.runs.user_code import sources

    table = read_toml(path)
    refuse_other_kinds(str(path), table, "run")
    try:
        config = RunConfig(**table)
    except InputError as error:
        raise faults_in(str(path), error.faults) from error
    files = (name for name in (config.model, config.data, config.loss) if isinstance(name, str))
    return config.replace(sources=sources(*files))


def introduction(run: Run, config: RunConfig) -> str:
    """What is about to be trained, and where it goes on."""
    size = sum(p.numel() for p in run.model.parameters())
    model = f"{config.model} width {config.width} depth {config.depth} ({size:,} parameters) on {config.data}"
    resumed = f", resumed at step {len(run.losses)}" if run.losses else ""
    return f"{model}, {config.optimizer} lr {config.lr:g}, {config.scheme}{resumed}"


def _content(config: RunConfig, result: RunResult) -> dict[str, Any]:
    row = {"config": config.model_dump(mode="json"), **result.row()}
    return row | {"curves": json_ready(result.curves)}


def summary(result: RunResult) -> str:
    """The result in two lines.

    >>> from trimtab.runs.results import conclude
    >>> print(summary(conclude([2.0, 1.0, float("nan")], [], steps=10, seconds=1.0, flops_per_step=1e6)))
    diverged at step 2: the last finite loss was 1
    1.0 s, 3e+06 floating point operations
    """
    from trimtab.runs.results import has_diverged

    short = result.stopped_at is not None and result.stopped_at < result.steps
    if short and not has_diverged(result.curves["loss"][-1], result.initial_loss):
        first = (
            f"given up after {result.steps} steps: the loss was {result.last_loss:.4g} and began at "
            f"{result.initial_loss:.4g}"
        )
    elif result.state == "diverged":
        first = (
            f"diverged at step {result.stopped_at}: the last finite loss was {result.last_loss:.4g}"
            if result.last_loss is not None
            else "diverged at once: the first loss was not finite"
        )
    elif result.collapsed:
        first = (
            f"collapsed: the loss went from {result.initial_loss:.4g} to {result.train_loss:.4g}, so "
            "nothing was learned"
        )
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
    from rich import progress

    if quiet or not console.is_terminal:
        tenth = max(1, config.steps // 10)

        def line(step: int, loss: float, lr: float) -> None:
            if not quiet and (step + 1) % tenth == 0:
                console.print(
                    f"step {step + 1}/{config.steps}  loss {loss:.4g}  lr {lr:.4g}", highlight=False
                )

        return run.go(30.0, line, stop)
    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("loss {task.fields[loss]}  lr {task.fields[lr]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("ETA"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console) as bar:
        task = bar.add_task("train", total=config.steps, completed=len(run.losses), loss="-", lr="-")
        drawn = 0.0

        def live(step: int, loss: float, lr: float) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn > REFRESH or step + 1 == config.steps:
                drawn = now
                bar.update(task, completed=step + 1, loss=f"{loss:.4g}", lr=f"{lr:.3g}")

        return run.go(30.0, live, stop)
