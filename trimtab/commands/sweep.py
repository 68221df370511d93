"""`trimtab new | sweep | status | retry`: the commands around a sweep's store, and its live display."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.errors import InputError, TrimtabError, faults
from trimtab.sweeps.grid import read
from trimtab.sweeps.store import Store

if TYPE_CHECKING:
    from trimtab.cli import New, Retry, Status, Sweep

LINE = 60.0  # seconds between lines where there is no terminal

EXAMPLE = """\
# A sweep: does the learning rate of a 3-block network serve one of 24 blocks? `trimtab sweep {name}`, about a minute
# on two cores. Keys behind a "#" are at their defaults, or examples where it says so.
name = "depth"                     # shown in reports; default "sweep"
schemes = ["mup", "depth-mup"]     # of sp, ntk, mup, depth-mup, completep; default ["depth-mup"]
base = [32, 3]                     # [width, depth] of the model that is tuned; required
widths = [32]                      # default: the base's
depths = [3, 6, 12, 24]            # default: the base's
sizes = "product"                  # or "cross": depths at the centre's width and widths at its depth
# centre = [32, 3]                 # of a cross; default: the base
seeds = 3                          # how many, or a list such as [0, 1, 2]
fleet = "auto"                     # small runs train together: "auto" (by their size), how many, or 1 (each alone)

[axes]                             # what is swept: any key of [run], as a list of values or as a range
lr = {{ log2 = [-6, 1], step = 1 }}  # 2^-6, 2^-5, ... 2^1; also log10 and linear. The base's rate, the same at every size
# momentum = [0.0, 0.9]            # an example
# "model_options.k" = [1, 2]       # an example: an option of the model

[run]                              # what all runs share
model = "mlp"                      # mlp, resnet, vit, gpt, hf:llama, or your own build(width, depth): "file.py:build"
model_options = {{ branch_scale = 0.5773502691896258 }}  # further arguments of build; default none
# overrides = {{}}                   # what trimtab.parametrize takes, as {{ "head.*" = "readout" }}
# gamma0 = 1.0                     # richness: how far features move, 1 as in the base

data = "digits"                    # digits, cifar10, images, text, teacher, or your own data(split, seed, step): "file.py:data"
# data_options = {{}}                # further arguments of the data, as {{ px = 16 }} of cifar10
# loss = "cross-entropy"           # mse, or your own loss(output, batch): "file.py:loss"; default also: loss beside your build
batch_size = 64

optimizer = "sgd"                  # sgd, adam, adamw, muon
# momentum = 0.0                   # of sgd and muon (there 0 stands for 0.95)
# nesterov = false                 # of sgd
# betas = [0.9, 0.999]             # of adam, adamw, and of muon's adamw
# eps = 1e-8                       # likewise
# weight_decay = 0.0
# rest_lr = 0.1                    # an example: the rate of what muon leaves to adamw; default lr / 10
# clip = 1.0                       # an example: largest gradient norm, the same at every size; default: no clipping

steps = 200
# warmup = 0                       # steps over which the rate rises from 0
# schedule = "constant"            # of the rate: constant, cosine, linear, step
# floor = 0.0                      # where cosine and linear end, as a share of lr
# decay_schedule = "constant"      # of the weight decay: constant, rate (as the rate's), cosine

# eval_every = 0                   # steps between evaluations on the test split; 0: at the end only
# eval_examples = 1000             # an example: test examples looked at, 0 none; default: a tenth of the training's cost
# dtype = "float32"                # float64, or bfloat16 (autocast)
# device = "cpu"                   # cuda, cuda:1, mps
# compile = false                  # torch.compile

[budget]
cell_seconds = 600                 # wall clock of one run; default 3600
# retries = 0                      # of a run that raised
# checkpoint_seconds = 30.0        # between checkpoints of a run
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
    from trimtab.sweeps.driver import Stopped
    from trimtab.sweeps.driver import sweep as run

    made = read(command.config)
    devices = {str(d) for d in made.axes.get("device", [made.run.get("device", "cpu")])} - {"cpu"}
    if devices:  # said before any work, and without loading torch where there is nothing to ask it
        from trimtab.runs.setup import device_fault

        found = [f"run.{fault}" for fault in map(device_fault, sorted(devices)) if fault is not None]
        if found:
            raise faults(f"{len(found)} fault{'s' if len(found) > 1 else ''} in {command.config}", found)
    console = Console(stderr=True)
    display = Display(console)
    try:
        with display:
            outcome = run(
                command.config,
                command.store,
                workers=command.workers,
                threads=command.threads,
                progress=display,
            )
    except Stopped as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 130
    store = Store(outcome.store)
    print(told(counted(store), outcome.store))
    for cell, error in store.errors(1):
        print(
            f"the first failure, cell {cell}: {error.strip().splitlines()[-1][:300] if error.strip() else '?'}\n  trimtab status {outcome.store} shows more; trimtab retry {outcome.store} --failed runs them again"
        )
    return outcome.exit_code


def told(counts: Mapping[str, int], path: Path) -> str:
    """A sweep's state in a sentence.

    >>> told({"waiting": 0, "running": 0, "done": 7, "diverged": 1, "failed": 0}, Path("a.db"))
    'all 8 cells finished: 7 done, 1 diverged, 0 failed (a.db)'
    >>> told({"waiting": 1, "running": 0, "interrupted": 2, "done": 7, "collapsed": 3, "diverged": 0, "failed": 0}, Path("a.db"))
    '7 of 10 cells finished, 0 running, 2 interrupted, 1 waiting: 7 done (3 of them collapsed), 0 diverged, 0 failed (a.db)'
    """
    ended = counts["done"] + counts["diverged"] + counts["failed"]
    interrupted = counts.get("interrupted", 0)
    total = ended + counts["running"] + interrupted + counts["waiting"]
    stopped = f", {interrupted} interrupted" if interrupted else ""
    head = f"{ended} of {total} cells finished, {counts['running']} running{stopped}, {counts['waiting']} waiting"
    collapsed = f" ({counts['collapsed']} of them collapsed)" if counts.get("collapsed") else ""
    body = (
        f"{counts['done']} done{collapsed}, {counts['diverged']} diverged, {counts['failed']} failed ({path})"
    )
    return f"{f'all {total} cells finished' if ended == total else head}: {body}"


def counted(store: Store, now: float | None = None) -> dict[str, int]:
    """The store's counts, told as they are now.

    "running" are cells that someone runs; those whose owner is gone or whose lease is over are "interrupted": the next
    `trimtab sweep` takes them. "collapsed" are those of "done" that ended no better than they began. With "diverged" they
    are what does not train, which is how `trimtab transfer` counts.
    """
    counts = store.counts()
    held = store._read(
        "SELECT owner, lease, count(*) FROM cells WHERE state = 'running' GROUP BY owner, lease"
    )
    now = time.time() if now is None else now
    lost = sum(n for owner, lease, n in held if lease is None or lease < now or not alive(owner or ""))
    told = "SELECT count(*) FROM cells WHERE state = 'done' AND json_extract(result, '$.collapsed') = 1"
    collapsed = store._read(told)[0][0]
    return counts | {"running": counts["running"] - lost, "interrupted": lost, "collapsed": collapsed}


def alive(owner: str) -> bool:
    """Whether the process behind a claim may still be there: owners are named host/process/its birth in ticks/...

    One on another host is taken to be alive: there only the lease tells.
    """
    host, pid, born, *_ = [*owner.split("/"), "", "", ""]
    if host != socket.gethostname() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        birth = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return True  # no /proc: the process number is all that is known
    return not born.isdigit() or birth == born


def status(command: Status) -> int:
    """Print how far a sweep is; exit code 4 if cells failed, 3 if it is not finished."""
    store = Store(command.store)
    counts = counted(store)
    if command.csv:
        store.to_csv(command.csv)
    best = store.best()
    if command.json:
        shown = None if best is None else {"train_loss": best[0], "config": best[1]}
        print(json.dumps({"counts": counts, "best": shown, "errors": store.errors()}))
    else:
        print(told(counts, store.path))
        if counts["interrupted"]:
            print("interrupted: nothing runs these cells now; the same trimtab sweep goes on with them.")
        if counts["collapsed"]:
            print(
                "collapsed: the loss ended no lower than it began; trimtab transfer counts these with the diverged."
            )
        if best is not None:
            print(f"best so far: loss {best[0]:.4g} at {_named(best[1])}")
        for cell, error in store.errors():
            print(f"failed {cell}: {error.strip().splitlines()[-1][:300] if error.strip() else '?'}")
        if counts["failed"]:
            print(f"trimtab retry {store.path} --failed runs them again")
    if counts["waiting"] + counts["running"] + counts["interrupted"]:
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
    """How far a sweep is: live in a terminal, a line a minute elsewhere."""

    def __init__(self, console: Console):
        self.console = console
        self.live = console.is_terminal
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task: Any = None
        self.first: tuple[float, float, int] | None = (
            None  # when, what was spent and how many cells were finished then
        )
        self.drawn, self.over = 0.0, False

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def note(self, text: str) -> None:
        """Called by the driver with what the user should know now."""
        self.console.print(f"trimtab: {text}", highlight=False, markup=False, soft_wrap=True)

    def stopping(self, running: int) -> None:
        """Called by the driver when it was interrupted."""
        what = (
            "one run finishes its step and saves"
            if running == 1
            else f"{running} runs finish their step and save"
        )
        self.console.print(f"stopping: {what}; Ctrl-C again leaves at once", highlight=False, markup=False)

    def update(self, store: Store, running: int) -> None:
        """Called by the driver."""
        now = time.monotonic()
        early = self.first is not None and now - self.drawn < (0.5 if self.live else LINE)
        if self.over or (early and self.live):
            return
        try:
            counts, (spent, whole), best, under_way = (
                store.counts(),
                store.costs(),
                store.best(),
                store.under_way(),
            )
        except TrimtabError:
            return
        ended, total = counts["done"] + counts["diverged"] + counts["failed"], sum(counts.values())
        self.over = not self.live and ended == total
        if total == 0 or (early and not self.over):  # the last line is always written, and once
            return
        self.drawn = now
        if self.first is None:
            self.first = (now, spent, ended)
        words = "  ".join(filter(None, self._words(now, counts, spent, whole, under_way, best, running)))
        if self.live:
            if self.task is None:
                self.task = self.bar.add_task("sweep", total=total, words="")
            self.bar.update(self.task, completed=ended, total=total, words=words)
        else:
            self.console.print(
                f"{ended}/{total} cells  {words}", highlight=False, markup=False, soft_wrap=True
            )

    def _words(
        self,
        now: float,
        counts: dict[str, int],
        spent: float,
        whole: float,
        under_way: list[Any],
        best: Any,
        running: int,
    ) -> list[str]:
        assert self.first is not None
        passed, made = now - self.first[0], spent - self.first[1]
        ended = counts["done"] + counts["diverged"] + counts["failed"]
        steps = [f"{made} of {of}" for made, of in under_way if made]
        speed = (
            f"{60 * (ended - self.first[2]) / passed:.0f} runs/min"
            if ended > self.first[2] and passed > 1
            else ""
        )
        to_go = passed * (whole - spent) / made if made > 0 else None
        return [
            f"{counts['diverged']} diverged" if counts["diverged"] else "",
            f"{counts['failed']} failed" if counts["failed"] else "",
            f"{running} worker{'s' if running != 1 else ''}"
            + (f" at step {', '.join(steps[:4])}" if steps else ""),
            speed,
            ""
            if not counts["waiting"] + counts["running"]
            else "time to go -"
            if to_go is None
            else f"time to go {clock(to_go)}",
            f"best {best[0]:.4g} ({_named(best[1])})" if best else "",
        ]


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, or m:ss below an hour.

    >>> clock(75), clock(4000)
    ('1:15', '1:06:40')
    """
    whole = int(seconds)
    hours = f"{whole // 3600}:{whole % 3600 // 60:02d}" if whole >= 3600 else f"{whole // 60}"
    return f"{hours}:{whole % 60:02d}"
