"""`trimtab.sweep`: fill the store with the grid's cells, keep workers alive until all are finished.

Everything is decided when cells are created and written with them: which cells form a fleet, what each costs.
A second call resumes; two calls at once share the work. A driver that died left claims behind: its host and
process are in their names, so the next driver on that host takes them back at once instead of waiting for the
lease.

Ctrl-C: the driver tells the workers and waits until they are gone. A worker that trains finishes its step,
writes its checkpoint and leaves; one that does anything else leaves at once. So the command ends within one
step and one checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import InputError, TrimtabError, faults
from trimtab.files import looking_in
from trimtab.runs.arithmetic import arithmetic, environment
from trimtab.runs.config import VERSION
from trimtab.runs.devices import device_fault
from trimtab.runs.user_code import sources
from trimtab.sweeps import grid, placement
from trimtab.sweeps.attempts import NO_SPACE
from trimtab.sweeps.claim_owners import alive, new_owner
from trimtab.sweeps.database import StoreError
from trimtab.sweeps.engines.choice import choose_engine
from trimtab.sweeps.engines.job import Engine, Job, Stopped
from trimtab.sweeps.engines.local import Local
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.repair import open_for_work
from trimtab.sweeps.store import Store
from trimtab.sweeps.units import choose_slots, cost, group
from trimtab.sweeps.worker import folder_of

COPY = 60.0  # seconds between copies of the store


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of `sweep` ended."""

    store: Path
    counts: dict[str, int]
    seconds: float
    said: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 all finished; 4 some cells failed; 130 interrupted."""
        if self.counts["waiting"] or self.counts["running"]:
            return 130
        return 4 if self.counts["failed"] else 0


def sweep(
    config: str | Path | Mapping[str, Any] | SweepConfig,
    store: str | Path | None = None,
    *,
    workers: int = 2,
    engine: str = "local",
    address: str = "local",
    progress: Any = None,
    threads: int = 1,
) -> Outcome:
    """Run a whole grid, or go on with it. `trimtab.sweep` (refinement.sweeping) stands above it, adds
    adaptive sweeps, and says what the arguments are: the two have one signature.

    Raises:
        InputError: everything that is wrong with the sweep, before any work.
        Stopped: Ctrl-C, or a disk that is full: call again to go on.
    """
    problems: list[str] = []
    chosen = choose_engine(engine, address, problems)
    problems += call_faults(config, store, workers)
    if problems or chosen is None:
        raise faults("trimtab sweep:", problems)
    made = grid.read(config)
    if made.search is not None:
        raise InputError("search: this runs whole grids; trimtab.sweep(...) runs an adaptive sweep.")
    text = Path(config).read_text() if isinstance(config, str | Path) else None
    what = str(config) if isinstance(config, str | Path) else "the sweep"
    made = placement.settle(made, remote=engine == "ray" and address != "local", what=what)
    place = store_path(config, store)
    with looking_in(made.folder):
        return Driver(made, place, workers, threads, text, progress, engine=chosen).go()


def call_faults(config: Any, store: str | Path | None, workers: Any) -> list[str]:
    """What is wrong with the arguments of a sweep that are not in its file.

    >>> call_faults("sweep.toml", None, 0)
    ['workers: must be >= 1: got 0']
    """
    found = []
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        found.append(f"workers: must be >= 1: got {workers!r}")
    if store is None and not isinstance(config, str | Path):
        found.append("store: name the SQLite file of a sweep that is not read from a file")
    return found


def store_path(config: Any, store: str | Path | None) -> Path:
    """The store's file: by default beside the sweep's, as sweep.db."""
    place = Path(store) if store is not None else Path(config).with_suffix(".db")
    if not place.parent.is_dir():
        raise InputError(f"the store's folder must exist: there is no {place.parent.resolve()}.")
    return place


class Driver:
    """One call of `sweep`."""

    def __init__(
        self,
        config: SweepConfig,
        path: Path,
        workers: int,
        threads: int,
        text: str | None,
        progress: Any,
        *,
        engine: Callable[[Job], Engine] = Local,
    ):
        self.config, self.path, self.threads, self.text, self.progress = config, path, threads, text, progress
        self.begun = time.monotonic()
        self.said: list[str] = []
        self.opened: Store | None = None
        self.filled = self.interrupted = self.supervising = False
        self.engine = engine(
            Job(
                path=path,
                mark=new_owner(),
                config=config,
                workers=workers,
                threads=threads,
                say=self._say,
            )
        )

    def go(self) -> Outcome:
        fresh = not self.path.exists()
        try:
            return self._go()
        except KeyboardInterrupt as error:
            self._leave_nothing(fresh)
            raise Stopped(
                f"interrupted before any run was begun in {self.path}; the same command begins again."
            ) from error
        except (StoreError, OSError) as error:
            full = error.full if isinstance(error, StoreError) else error.errno in NO_SPACE
            self._leave_nothing(fresh)
            if not full:
                raise
            raise Stopped(str(error)) from error
        except TrimtabError:  # what was asked, or a model that cannot be planned
            self._leave_nothing(fresh)
            raise

    @property
    def store(self) -> Store:
        assert self.opened is not None
        return self.opened

    def _say(self, text: str) -> None:
        """Tell the user now, and the caller in the outcome."""
        self.said.append(text)
        if self.progress is not None:
            self.progress.note(text)

    def _leave_nothing(self, fresh: bool) -> None:
        """A store that this call made and that holds no cell goes again."""
        if self.opened is not None:
            self.opened.close()
        if fresh and not self.filled:
            shutil.rmtree(folder_of(self.path), ignore_errors=True)
            for end in ("", "-wal", "-shm", ".copy"):
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    def _go(self) -> Outcome:
        self.opened, told = open_for_work(self.path)
        folder_of(self.path).mkdir(exist_ok=True)
        for line in told:
            self._say(line)
        self._take_back()
        self.engine.start(self.store)
        before = (
            signal.signal(signal.SIGINT, self._interrupt)
            if threading.current_thread() is threading.main_thread()
            else None
        )
        try:
            self._fill()
            self.filled = self.supervising = True
            self._supervise()
        finally:
            self.supervising = True  # from here on a first Ctrl-C only hastens what is done anyway
            self._close()
            if before is not None:
                signal.signal(signal.SIGINT, before)
        counts = self.store.counts()
        self.store.close()
        outcome = Outcome(self.path, counts, time.monotonic() - self.begun, tuple(self.said))
        if self.interrupted:
            raise Stopped(
                f"interrupted with {counts['done'] + counts['diverged'] + counts['failed']} of "
                f"{sum(counts.values())} cells finished in {self.path}; the same command goes on."
            )
        return outcome

    # -- cells -----------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Add the cells that are missing, each with its unit."""
        self._forget_stale()
        self._compare()
        known = self.store.cell_names()
        cells, reasons = choose_slots(list(self.config.cells()), self.config.fleet)
        for reason, count in reasons.items():
            many = "1 cell trains alone" if count == 1 else f"{count} cells train one by one"
            self._say(f"{many}: a fleet cannot train this, {reason}.")
        new = [(name, c) for name, c in ((c.hash, c) for c in cells) if name not in known]
        before = self.store.finished_elsewhere() if new else set()
        again = sum(c.as_json(sources=False) in before for _, c in new if c.sources)
        if again:
            self._say(
                f"a file of yours has changed: {again} cells that were finished with it as it was run again "
                "with it as it is now."
            )
        earlier = self.store.meta.get("name", self.config.name)
        if new and earlier != self.config.name:
            self._say(
                f"{self.path} also holds {len(known)} cells, the last of them of {earlier!r}: transfer and "
                f"report look at all of them. If {self.config.name!r} is not to be compared with them, stop "
                "and name another store (--store FILE)."
            )
        if not self.store.meta or new:
            self.store.set_meta(
                name=self.config.name,
                config=self.config.plain(),
                toml=self.text,
                base=[*self.config.base, *(self.config.lengths.here if self.config.lengths else ())],
                versions=versions(),
                command=_command(),
                roots=[str(folder) for folder in (Path.cwd(), self.config.folder) if folder is not None],
            )
        if new:
            label = self.config.name
            self.store.add(
                (name, label, c.model_dump(mode="json"), unit, fleet, cost(c))
                for name, c, unit, fleet in group(new)
            )
            self.store.copy()

    def _compare(self) -> None:
        """Refuse a store whose cells mean something else; say when its numbers were rounded elsewhere."""
        others = {version: count for version, count in self.store.versions().items() if version != VERSION}
        if others:
            raise InputError(
                f"{self.path} holds {sum(others.values())} cells of version "
                f"{', '.join(map(str, sorted(others)))}, this trimtab makes version {VERSION}: "
                "the same numbers under another name would run again beside them. `trimtab transfer` and "
                "`trimtab report` read the file as "
                "before; to run this sweep name another store (--store FILE)."
            )
        mode = environment(self.threads)["MKL_CBWR"]
        kinds = [kind for kind in placement.classes(self.config) if device_fault(kind) is None]
        known = [arithmetic(self.threads, kind, mode) for kind in kinds]
        elsewhere = {name: count for name, count in self.store.arithmetics().items() if name not in known}
        if elsewhere and known:
            here = "; or ".join(known)
            self._say(
                f"{sum(elsewhere.values())} results in {self.path} were made with {'; or '.join(elsewhere)}. "
                f"This is {here}: new results agree with them to "
                "rounding, not bit for bit."
            )

    def _forget_stale(self) -> None:
        """Drop waiting cells of a user's file as it no longer is: they would carry the old file's name and
        the new one's numbers."""
        waiting = self.store.waiting_sources()
        now = sources(*{name for _, held in waiting for name in held})
        stale = [
            cell for cell, held in waiting if any(now.get(name, sha) != sha for name, sha in held.items())
        ]
        if stale and (dropped := self.store.forget(stale)):
            self._say(
                f"{dropped} cells that were still waiting belong to an earlier version of a file of yours; "
                "they were dropped, those of the file as it is now take their place."
            )

    def _take_back(self) -> None:
        """Release the claims of drivers of this host that are gone."""
        for owner in self.store.owners():
            if not alive(owner):
                self.store.release(owner, crashed=True)

    # -- work ------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Keep the engine busy until nothing is left to do."""
        copied = time.monotonic()
        known = dict(self.store.wrong_proofs())
        while not self.interrupted:
            counts = self.store.counts()
            left = counts["waiting"] + counts["running"]
            if not left and not self.engine.running:
                break
            self.engine.fill(counts["waiting"])
            if self.progress is not None:
                self.progress.update(self.store, self.engine.running)
            self.engine.listen(0.5 if left else 0.1)
            self._warn(known)
            if time.monotonic() - copied > COPY:
                copied = time.monotonic()
                self.store.copy()
            if left and not counts["waiting"] and not self.engine.running:
                self._take_back()  # what runs belongs to another driver; it may have died
        self._warn(known)
        if self.progress is not None:
            self.progress.update(self.store, self.engine.running)
        if not self.interrupted:
            self.store.copy()

    def _warn(self, known: dict[str, str]) -> None:
        """Say, once for each size, that a first step does not do there what the plan promises."""
        for where, said in self.store.wrong_proofs():
            if where not in known:
                known[where] = said
                self._say(proof_warning(where, said))

    def _interrupt(self, *_: Any) -> None:
        if self.interrupted:  # asked twice: at once
            os._exit(130)
        self.interrupted = True
        if not self.supervising:
            raise KeyboardInterrupt  # not an Exception: no handler of a fault may take it for one
        self.engine.wake()

    def _close(self) -> None:
        shown = self.progress if self.interrupted else None
        self.engine.close(None if shown is None else shown.stopping)


def proof_warning(where: str, said: str) -> str:
    """What the user is told of a size whose proof by one step failed.

    >>> print(proof_warning("mup, width 64, depth 2", "wrong: head.weight: ..."))
    WARNING: at mup, width 64, depth 2 the parametrization does not hold for a first step
      (wrong: head.weight: ...). What is seen at this size says nothing about the scheme: docs/proof.md
    """
    return (
        f"WARNING: at {where} the parametrization does not hold for a first step\n"
        f"  ({said}). What is seen at this size says nothing about the scheme: docs/proof.md"
    )


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("trimtab", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "?"
    return found


def _command() -> str:
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return " ".join(["trimtab" if name in ("cli.py", "trimtab", "__main__.py") else name, *sys.argv[1:]])[
        :500
    ]
