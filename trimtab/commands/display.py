"""How far a sweep is: live in a terminal, a line a minute elsewhere. `trimtab sweep` and `trimtab demo` show
it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.commands.status import run_name
from trimtab.errors import TrimtabError
from trimtab.sweeps.driver import Stopped
from trimtab.sweeps.store import Store

Result = TypeVar("Result")

LINE = 60.0  # seconds between lines where there is no terminal


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
        self.drawn, self.shown = 0.0, 0  # when, and of how many cells the last whole line spoke

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
        if early and self.live:
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
        finished = not self.live and ended == total
        # the last line of a round is always written, and once; a search then adds cells and goes on
        if total == 0 or (finished and self.shown == total) or (early and not finished):
            return
        if finished:
            self.shown = total
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
        pace = 60 * (ended - self.first[2]) / passed if ended > self.first[2] and passed > 1 else 0.0
        speed = f"{pace:.0f} runs/min" if pace >= 10 else f"{pace:.2g} runs/min" if pace else ""
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
            f"best {best[0]:.4g} ({run_name(best[1])})" if best else "",
        ]


def run_shown(run: Callable[..., Result], options: Any, *, quiet: bool = False) -> Result | None:
    """`trimtab.sweep` or `trimtab.tune` as a command's options ask for it, with its progress on standard
    error; None where it was interrupted, which is then said."""
    display = Display(Console(stderr=True, quiet=quiet))
    try:
        with display:
            return run(
                options.config,
                options.store,
                workers=options.workers,
                threads=options.threads,
                engine="local" if options.ray is None else "ray",
                address=options.ray or "local",
                progress=display,
            )
    except Stopped as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return None


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, or m:ss below an hour.

    >>> clock(75), clock(4000)
    ('1:15', '1:06:40')
    """
    whole = int(seconds)
    hours = f"{whole // 3600}:{whole % 3600 // 60:02d}" if whole >= 3600 else f"{whole // 60}"
    return f"{hours}:{whole % 60:02d}"
