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

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import InputError, TrimtabError
from trimtab.files import looking_in
from trimtab.runs.arithmetic import arithmetic, environment
from trimtab.runs.config import VERSION
from trimtab.runs.user_code import sources
from trimtab.sweeps import grid
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.owners import alive, new_owner
from trimtab.sweeps.repair import open_for_work
from trimtab.sweeps.store import Store, StoreError
from trimtab.sweeps.units import choose_slots, cost, group
from trimtab.sweeps.worker import DISK, NO_SPACE, folder_of

COPY = 60.0  # seconds between copies of the store


class Stopped(TrimtabError):
    """The sweep stopped before its end and can be resumed with the same call."""


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
    progress: Any = None,
    threads: int = 1,
) -> Outcome:
    """Run a sweep, or go on with it: calling it again does only what is missing.

    Args:
        config: the path of a sweep.toml, a dict or a SweepConfig.
        store: the SQLite file; default: beside the file, as sweep.db.
        workers: processes. threads: of each.
        engine: "local".
        progress: an object with `update(store, running)`, called twice a second, and `stopping(running)`,
            called when the sweep is interrupted and waits for this many workers, and `note(text)`; None is
            silent.

    Raises:
        InputError: everything that is wrong with the sweep, before any work.
        Stopped: Ctrl-C, or a disk that is full: call again to go on.
    """
    problems = []
    if engine != "local":
        problems.append(f"engine: only 'local' is there in this version: got {engine!r}")
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        problems.append(f"workers: must be >= 1: got {workers!r}")
    if store is None and not isinstance(config, str | Path):
        problems.append("store: name the SQLite file of a sweep that is not read from a file")
    if problems:
        raise InputError("\n".join(["trimtab sweep:", *(f"  - {p}" for p in problems)]))
    made = grid.read(config)
    text = Path(config).read_text() if isinstance(config, str | Path) else None
    place = Path(store) if store is not None else Path(config).with_suffix(".db")  # type: ignore[arg-type]
    if not place.parent.is_dir():
        raise InputError(f"the store's folder must exist: there is no {place.parent.resolve()}.")
    with looking_in(made.folder):
        return Driver(made, place, workers, threads, text, progress).go()


class Driver:
    """One call of `sweep`."""

    def __init__(
        self, config: SweepConfig, path: Path, workers: int, threads: int, text: str | None, progress: Any
    ):
        self.config, self.path, self.workers, self.threads, self.text, self.progress = (
            config,
            path,
            workers,
            threads,
            text,
            progress,
        )
        self.begun = time.monotonic()
        self.mark = new_owner()
        self.said: list[str] = []
        self.opened: Store | None = None
        self.alive: dict[str, int] = {}
        self.births = 0
        self.filled = self.interrupted = self.supervising = False

    def go(self) -> Outcome:
        fresh = not self.path.exists()
        try:
            return self._go()
        except KeyboardInterrupt as error:
            self._leave_nothing(fresh)
            raise Stopped(
                f"interrupted before any run was begun in {self.path}; the same command begins again."
            ) from error
        except InputError:
            self._leave_nothing(fresh)
            raise
        except (StoreError, OSError) as error:
            full = error.full if isinstance(error, StoreError) else error.errno in NO_SPACE
            self._leave_nothing(fresh)
            if not full:
                raise
            raise Stopped(str(error)) from error

    @property
    def store(self) -> Store:
        assert self.opened is not None
        return self.opened

    def _say(self, text: str) -> None:
        """Tell the user now, and the caller in the outcome."""
        self.said.append(text)
        if self.progress is not None:
            self.progress.note(text)

    def _no_space(self, why: str) -> str:
        return (
            f"the disk that holds {self.path} is full, or the store cannot be written ({why}). What was "
            "finished is safe: free some space and run the same command again."
        )

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
        server = self._start_server()  # it loads torch while the cells are made
        before = (
            signal.signal(signal.SIGINT, self._interrupt)
            if threading.current_thread() is threading.main_thread()
            else None
        )
        try:
            self._fill()
            self.filled = self.supervising = True
            server = self._supervise(server)
        finally:
            self.supervising = True  # from here on a first Ctrl-C only hastens what is done anyway
            self._close(server)
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

    # -- cells
    # --------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Add the cells that are missing, each with its unit."""
        self._forget_stale()
        self._compare()
        known = self.store.cell_names()
        cells, reasons = choose_slots(list(self.config.cells()), self.config.fleet)
        for reason, count in reasons.items():
            self._say(f"{count} cells train one by one, not as fleets: {reason}.")
        new = [(name, c) for name, c in ((c.hash, c) for c in cells) if name not in known]
        before = self.store.finished_elsewhere() if new else set()
        again = sum(c.as_json(sources=False) in before for _, c in new if c.sources)
        if again:
            self._say(
                f"a file of yours has changed: {again} cells that were finished with it as it was run again "
                "with it as it is now."
            )
        if not self.store.meta or new:
            self.store.set_meta(
                name=self.config.name,
                config=self.config.plain(),
                toml=self.text,
                base=[*self.config.base, *(self.config.lengths[2:] if self.config.lengths else ())],
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
        here = arithmetic(self.threads, mkl=environment(self.threads)["MKL_CBWR"])
        elsewhere = {name: count for name, count in self.store.arithmetics().items() if name != here}
        if elsewhere:
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

    # -- workers ---------------------------------------------------------------------------------------------

    def _start_server(self) -> subprocess.Popen[bytes]:
        folder = folder_of(self.path)
        settings = dict(
            store=str(self.path.resolve()),
            budget=self.config.budget,
            folder=None if self.config.folder is None else str(self.config.folder),
            threads=self.threads,
            log=str((folder / "workers.log").resolve()),
        )
        path = os.pathsep.join([*(p or os.getcwd() for p in sys.path), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab.sweeps.worker_server", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | environment(self.threads) | {"PYTHONPATH": path},
        )
        self.messages: queue.SimpleQueue[str] = (
            queue.SimpleQueue()
        )  # the one queue a signal handler may put into
        assert process.stdout is not None
        threading.Thread(target=_listen, args=(process.stdout, self.messages), daemon=True).start()
        return process

    def _order(self, server: subprocess.Popen[bytes], text: str) -> None:
        assert server.stdin is not None
        try:
            server.stdin.write((text + "\n").encode())
            server.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it is gone; `_supervise` notices

    def _supervise(self, server: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Keep the wanted number of workers until nothing is left to do; returns the server that is there
        then."""
        copied = time.monotonic()
        while True:
            counts = self.store.counts()
            left = counts["waiting"] + counts["running"]
            if not left and not self.alive:
                break
            if self.interrupted:
                break
            while counts["waiting"] and len(self.alive) < min(
                self.workers, counts["waiting"] + len(self.alive)
            ):
                self.births += 1
                owner = f"{self.mark}/{self.births}"
                self.alive[owner] = 0
                self._order(server, f"spawn {owner}")
            if self.progress is not None:
                self.progress.update(self.store, len(self.alive))
            if self._hear(0.5 if left else 0.1):
                self._close(server, kill=True)
                for owner in list(self.alive):
                    self.store.release(owner, crashed=True)
                self.alive.clear()
                server = self._start_server()
            if time.monotonic() - copied > COPY:
                copied = time.monotonic()
                self.store.copy()
            if left and not counts["waiting"] and not self.alive:
                self._take_back()  # what runs belongs to another driver; it may have died
        if self.progress is not None:
            self.progress.update(self.store, len(self.alive))
        if not self.interrupted:
            self.store.copy()
        return server

    def _hear(self, wait: float) -> bool:
        """Take the server's messages; True when it is gone."""
        try:
            message = self.messages.get(timeout=wait)
        except queue.Empty:
            return False
        while True:
            word, *rest = message.split()
            if word == "gone":
                return not self.interrupted
            if word == "born":
                self.alive[rest[0]] = int(rest[1])
            if word == "died":
                self.alive.pop(rest[0], None)
                code = int(rest[1])
                try:
                    self.store.release(rest[0], crashed=True)
                except StoreError:
                    code = DISK
                if code == DISK:
                    raise Stopped(self._no_space(_last_line(self.path)))
            try:
                message = self.messages.get_nowait()
            except queue.Empty:
                return False

    def _interrupt(self, *_: Any) -> None:
        if self.interrupted:  # asked twice: at once
            os._exit(130)
        self.interrupted = True
        if not self.supervising:
            raise KeyboardInterrupt  # not an Exception: no handler of a fault may take it for one
        self.messages.put("interrupted")  # wakes whoever waits for the workers

    def _close(self, server: subprocess.Popen[bytes], *, kill: bool = False) -> None:
        """Let the workers checkpoint and release, then close the pipe they live by.

        There is no deadline here: a worker leaves after the step it is in, and whoever does not want to wait
        for that asks twice.
        """
        if not kill and self.alive and server.poll() is None:
            self._order(server, "stop")
            if self.interrupted and self.progress is not None:
                self.progress.stopping(len(self.alive))
            while self.alive:
                try:
                    message = self.messages.get(timeout=1.0)
                except queue.Empty:
                    if server.poll() is not None:
                        break
                    continue
                if message.startswith("died"):
                    self.alive.pop(message.split()[1], None)
                if message == "gone":
                    break
        assert server.stdin is not None
        for pid in self.alive.values():
            if pid:
                _kill(pid)
        with contextlib.suppress(BrokenPipeError):
            server.stdin.close()
        try:
            server.wait(1.0)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        if not kill:
            for owner in list(self.alive):
                try:
                    self.store.release(owner, crashed=True)
                except StoreError:
                    break
            self.alive.clear()


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


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _listen(pipe: Any, messages: queue.Queue[str]) -> None:
    for line in pipe:
        messages.put(line.decode().strip() or "ready")
    messages.put("gone")


def _last_line(path: Path) -> str:
    try:
        return (folder_of(path) / "workers.log").read_text(errors="replace").strip().splitlines()[-1][-300:]
    except (OSError, IndexError):
        return "no message"
