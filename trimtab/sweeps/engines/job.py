"""What an engine is told, and what the driver asks of it.

    start -> (fill, listen)* -> close           wake: from a signal handler, ends a wait

An engine keeps units under way until the store has none left. It never decides what is trained: that is
written in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trimtab.errors import TrimtabError
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.store import Store


class Stopped(TrimtabError):
    """The sweep stopped before its end and can be resumed with the same call."""


@dataclass(frozen=True)
class Job:
    """One call of `sweep`, as an engine sees it.

    Attributes:
        path: the store's file.
        mark: this driver's name; its claims begin with it.
        config: the sweep: its budget, its folder, what it asks of a cluster.
        workers: units under way at once, at most. threads: of each.
        say: tells the user something now.
    """

    path: Path
    mark: str
    config: SweepConfig
    workers: int
    threads: int
    say: Callable[[str], None]

    @property
    def budget(self) -> dict[str, float]:
        """ "cell_seconds", "retries", "checkpoint_seconds"."""
        return self.config.budget

    @property
    def folder(self) -> Path | None:
        """Of the sweep's file, where the user's files are looked for first."""
        return self.config.folder


class Engine(Protocol):
    """What the driver asks of an engine."""

    @property
    def running(self) -> int:
        """How many workers or tasks there are."""
        ...

    def start(self, store: Store) -> None:
        """Get ready; returns before it is, where that takes time."""
        ...

    def fill(self, waiting: int) -> None:
        """Put workers to work on cells that wait; `waiting` is how many cells do."""
        ...

    def listen(self, wait: float) -> None:
        """Take in what happened, for at most about `wait` seconds. Raises Stopped when it cannot go on."""
        ...

    def wake(self) -> None:
        """End a `listen` or `close` that waits; called from a signal handler."""
        ...

    def close(self, stopping: Callable[[int], Any] | None) -> None:
        """End all work: what trains finishes its step and is checkpointed; nothing keeps a claim.

        Args:
            stopping: called with the number of workers that are waited for; None: nobody asked for a stop.
        """
        ...
