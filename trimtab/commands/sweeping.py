"""`trimtab new | sweep | status | retry`: the commands around a sweep's store, and its live display."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.errors import InputError, TrimtabError
from trimtab.sweeps.store import Store

if TYPE_CHECKING:
    from trimtab.cli import New, Retry, Status, Sweep

EXAMPLE = """\
# A sweep: does the learning rate of a 3-block network serve one of 24 blocks? `trimtab sweep {name}`, about a minute.
name = "depth"
schemes = ["mup", "depth-mup"]     # sp, ntk, mup, depth-mup, completep
base = [32, 3]                     # [width, depth] of the model that is tuned
widths = [32]
depths = [3, 6, 12, 24]
sizes = "product"                  # or "cross": depths at the centre's width and widths at its depth
# centre = [32, 6]                 # of a cross; default: the base
seeds = 3                          # how many, or a list such as [0, 1, 2]

[axes]                             # what is swept: any field of a run, as a list or as a range
lr = {{ log2 = [-6, 1], step = 1 }}  # also log10 and linear
# momentum = [0.0, 0.9]
# "model_options.k" = [1, 2]

[run]                              # what all runs share
model = "mlp"                      # mlp, resnet, vit, gpt, hf:llama, or your own build: "file.py:build"
model_options = {{ branch_scale = 0.5773502691896258 }}
data = "digits"                    # digits, cifar10, images, text, teacher, or your own: "file.py:data"
optimizer = "sgd"                  # sgd, adam, adamw, muon
batch_size = 64
steps = 200

[budget]
cell_seconds = 600                 # wall clock of one run
retries = 0                        # of a run that raised
fleet = 16                         # runs trained together at most, where that is faster; 1: each alone
"""


def new(command: New) -> int:
    """Write the example."""
    path = Path(command.path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(EXAMPLE.format(name=path.name))
    except FileExistsError as error:
        raise InputError(f"{path} is there already: it is not replaced. Name another file.") from error
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}.") from error
    print(f"wrote {path}; run it with: trimtab sweep {path}")
    return 0


def sweep(command: Sweep) -> int:
    """Run or resume a sweep with a live display; returns the exit code."""
    from trimtab.sweeps.engine import Stopped
    from trimtab.sweeps.engine import sweep as run

    console = Console(stderr=True)
    display = Display(console)
    try:
        with display:
            outcome = run(command.config, command.store, workers=command.workers, threads=command.threads, progress=display)
    except Stopped as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 130
    for line in outcome.said:
        print(f"trimtab: {line}", file=sys.stderr)
    print(told(outcome.counts, outcome.store))
    store = Store(outcome.store)
    for cell, error in store.errors(1):
        print(
            f"the first failure, cell {cell}: {error.strip().splitlines()[-1][:300] if error.strip() else '?'}\n  trimtab status {outcome.store} shows more; trimtab retry {outcome.store} --failed runs them again"
        )
    return outcome.exit_code


def told(counts: dict[str, int], path: Path) -> str:
    """A sweep's state in a sentence.

    >>> told({"waiting": 0, "running": 0, "done": 7, "diverged": 1, "failed": 0}, Path("a.db"))
    'all 8 cells finished: 7 done, 1 diverged, 0 failed (a.db)'
    """
    ended = counts["done"] + counts["diverged"] + counts["failed"]
    total = sum(counts.values())
    head = f"all {total} cells finished" if ended == total else f"{ended} of {total} cells finished, {counts['running']} running, {counts['waiting']} waiting"
    return f"{head}: {counts['done']} done, {counts['diverged']} diverged, {counts['failed']} failed ({path})"


def status(command: Status) -> int:
    """Print how far a sweep is; exit code 4 if cells failed, 3 if it is not finished."""
    store = Store(command.store)
    counts = store.counts()
    if command.csv:
        store.to_csv(command.csv)
    best = store.best()
    if command.json:
        print(json.dumps({"counts": counts, "best": None if best is None else {"train_loss": best[0], "config": best[1]}, "errors": store.errors()}))
    else:
        print(told(counts, store.path))
        if best is not None:
            print(f"best so far: loss {best[0]:.4g} at {_named(best[1])}")
        for cell, error in store.errors():
            print(f"failed {cell}: {error.strip().splitlines()[-1][:300] if error.strip() else '?'}")
        if counts["failed"]:
            print(f"trimtab retry {store.path} --failed runs them again")
    if counts["waiting"] + counts["running"]:
        return 3
    return 4 if counts["failed"] else 0


def retry(command: Retry) -> int:
    """Set cells back to waiting."""
    states = [s for s, chosen in (("failed", command.failed), ("diverged", command.diverged)) if chosen]
    if not states:
        raise InputError("say which cells run again: --failed, --diverged or both.")
    changed = Store(command.store).retry(states)
    print(f"{changed} cells wait again; trimtab sweep runs them.")
    return 0


def _named(config: dict[str, Any]) -> str:
    return f"{config['scheme']}, width {config['width']}, depth {config['depth']}, lr {config['lr']:.4g}, seed {config['seed']}"


class Display:
    """Cells done, diverged, failed and running, the best so far and the time to go: live in a terminal, lines elsewhere."""

    def __init__(self, console: Console):
        self.console = console
        self.live = console.is_terminal
        self.bar = Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn(), console=console, disable=not self.live)
        self.task: Any = None
        self.first: tuple[float, float] | None = None
        self.drawn, self.shown = 0.0, -1.0

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, store: Store, running: int) -> None:
        """Called by the driver."""
        now = time.monotonic()
        if now - self.drawn < (0.5 if self.live else 1.0) and self.task is not None:
            return
        self.drawn = now
        try:
            counts, (spent, whole), best = store.counts(), store.costs(), store.best()
        except TrimtabError:
            return
        ended, total = counts["done"] + counts["diverged"] + counts["failed"], sum(counts.values())
        if total == 0:
            return
        if self.first is None:
            self.first = (now, spent)
        made = spent - self.first[1]
        to_go = (now - self.first[0]) * (whole - spent) / made if made > 0 else None
        eta = "ETA -" if to_go is None else f"ETA {int(to_go) // 60}:{int(to_go) % 60:02d}"
        words = f"{counts['diverged']} diverged  {counts['failed']} failed  {running} workers  {eta}" + (f"  best {best[0]:.4g} ({_named(best[1])})" if best else "")
        if self.live:
            if self.task is None:
                self.task = self.bar.add_task("sweep", total=total, words="")
            self.bar.update(self.task, completed=ended, total=total, words=words)
        elif ended / total >= self.shown + 0.1 or ended == total > self.shown * total:
            self.task, self.shown = True, ended / total
            self.console.print(f"{ended}/{total} cells  {words}", highlight=False, markup=False, soft_wrap=True)
