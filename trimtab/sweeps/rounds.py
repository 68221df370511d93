"""Cells that are not a grid: explicit runs, asked for in rounds by a function of the results so far.

    round 0 -> results -> ask(store) -> round 1 -> results -> ask(store) -> ... -> nothing more

One driver serves all rounds: its workers keep torch loaded between them. What a sweep promises holds here
too: killed at any moment and called again, only what is missing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.errors import InputError
from trimtab.files import looking_in
from trimtab.runs.config import RunConfig
from trimtab.sweeps.driver import Driver, Outcome
from trimtab.sweeps.engines.job import Engine, Job
from trimtab.sweeps.engines.local import Local
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.store import Store

Ask = Callable[[Store], Sequence[RunConfig]]


@dataclass(frozen=True)
class Listed(SweepConfig):
    """A sweep whose cells are listed, not multiplied."""

    runs: tuple[RunConfig, ...] = ()

    def __len__(self) -> int:
        return len(self.runs)

    def cells(self) -> Any:
        return iter(self.runs)


class Rounds(Driver):
    """A driver that asks for more when all is done."""

    def __init__(
        self,
        config: Listed,
        ask: Ask,
        path: Path,
        workers: int,
        threads: int,
        progress: Any,
        engine: Callable[[Job], Engine] = Local,
    ):
        super().__init__(config, path, workers, threads, None, progress, engine=engine)
        self.listed, self.ask = config, ask

    def _fill(self) -> None:
        """The first round; later ones come from `_supervise`."""
        self._ask()
        super()._fill()

    def _ask(self) -> bool:
        """Whether there is more; a cell that is there already is not run again."""
        more = tuple(self.ask(self.store))
        self.config = replace(self.listed, runs=more)
        return bool(more)

    def _supervise(self) -> None:
        while True:
            super()._supervise()
            if self.interrupted or not self._ask():
                return
            super()._fill()


def run_rounds(
    config: Listed,
    ask: Ask,
    store: str | Path,
    *,
    workers: int = 2,
    threads: int = 1,
    progress: Any = None,
    engine: Callable[[Job], Engine] = Local,
) -> Outcome:
    """Run what `ask` asks for until it asks for nothing.

    Args:
        config: name, base, fleet and budget of the runs.
        ask: (store) -> runs. Those in the store already are not run again; () ends it. It must give the same
            answer for the same results, so that a killed call goes on where it was.
        engine: what runs the cells, as `choose_engine` gives it.

    Raises:
        Stopped: interrupted, or the disk is full: the same call goes on.
    """
    place = Path(store)
    if not place.parent.is_dir():
        raise InputError(f"the store's folder must exist: there is no {place.parent.resolve()}.")
    with looking_in(config.folder):
        return Rounds(config, ask, place, workers, threads, progress, engine).go()
