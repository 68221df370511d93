"""A worker: claim a unit, train it, commit, again. It is killed -9 without harm, and never outlives its
driver.

Checkpoints lie in `<store>.work/`, named by the unit's hash, so whoever claims the unit next goes on from
there. A thread keeps the lease alive, watches the driver's pipe (closed means the driver is gone) and the
wall clock of the unit.

Asked to stop, a worker that trains leaves after its step with a checkpoint. One that is still setting its
unit up has nothing
to save: the watching thread gives the claim back and ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from trimtab.files import looking_in
from trimtab.runs import checkpoints, fleet, user_code
from trimtab.runs.arithmetic import arithmetic
from trimtab.runs.config import RunConfig
from trimtab.runs.results import RunResult
from trimtab.runs.training import Interrupted, run
from trimtab.sweeps.store import Claim, Store, StoreError

BEAT = 4.0  # seconds between heartbeats, which carry how far the run is
GLANCE = 0.2  # seconds between looks at the pipe and the clock
DISK = 28  # exit code of a worker that could not write: errno.ENOSPC's number
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
GRACE = 5.0  # seconds beyond the wall clock before a unit that does not come back is cut off


def folder_of(store: Path) -> Path:
    """Where a store's checkpoints and its workers' output lie."""
    return store.with_name(store.name + ".work")


class Worker:
    """One process's loop over units."""

    def __init__(self, path: Path, owner: str, lifeline: int | None, budget: dict[str, float]):
        self.store, self.owner, self.lifeline, self.budget = Store(path), owner, lifeline, budget
        self.folder = folder_of(path)
        self.stopping = threading.Event()
        self.steps = 0  # made by the unit under way
        self.training = False  # from the first question whether to stop until the result is committed
        self.claim: Claim | None = None
        self.begun = 0.0
        self.over = False
        self.files: dict[str, str] = {}  # the users' files as they were when this process first met them

    def loop(self) -> int:
        """Work until nothing is left or a stop is asked for; returns the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            while not self.stopping.is_set():
                claim = self.store.claim(self.owner)
                if claim is None:
                    if not self.store.counts()["running"]:
                        return 0
                    time.sleep(GLANCE)  # what others hold may come back
                    continue
                self.begun, self.over, self.training, self.steps, self.claim = (
                    time.monotonic(),
                    False,
                    False,
                    0,
                    claim,
                )
                self._do(claim)
                self.claim = None
        except (StoreError, OSError) as error:
            print(f"trimtab: {error}", file=sys.stderr, flush=True)
            return DISK
        return 0

    def _do(self, claim: Claim) -> None:
        """Train a unit and commit its results, or what went wrong."""
        changed = self._changed_files(claim)
        if changed:
            text = (
                f"{', '.join(changed)}: the file has changed since this cell was made. `trimtab sweep` "
                "again runs "
            )
            self._fail(claim, claim.cells, text + "the cells of the file as it is now.")
            return
        path = self.folder / f"{claim.unit}.checkpoint"
        try:
            configs = [RunConfig(**c) for c in claim.configs]
            results = self._train(claim, configs, path)
        except Interrupted:
            if not self.over:
                self.store.release(self.owner)
                return
            limit = f"{self.budget['cell_seconds']:g} s (budget.cell_seconds)"
            self._fail(claim, claim.cells, f"the run took longer than its wall clock of {limit}")
            checkpoints.remove(path)
            return
        except StoreError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            self._handle_error(claim)
            return
        ended = zip(claim.cells, results, configs, strict=True)
        self.store.finish_all(claim, [outcome(cell, result, c.device) for cell, result, c in ended])
        checkpoints.remove(path)

    def _changed_files(self, claim: Claim) -> list[str]:
        """The users' functions whose file is not the one that the unit's cells were made with."""
        held = {name: sha for c in claim.configs for name, sha in (c.get("sources") or {}).items()}
        self.files |= user_code.sources(*(name for name in held if name not in self.files))
        return [name for name, sha in held.items() if self.files.get(name, sha) != sha]

    def _train(self, claim: Claim, configs: list[RunConfig], path: Path) -> list[RunResult]:
        every = self.budget["checkpoint_seconds"]
        given: dict[str, Any] = dict(progress=self._note_step, stop=self._should_stop)
        if claim.fleet:
            return fleet.run(configs, checkpoint=path, every=every, **given)
        return [run(configs[0], checkpoint=path, every=every, **given)]

    def _handle_error(self, claim: Claim) -> None:
        """A unit raised. A fleet is taken apart: each member alone has the numbers it has in the fleet, and
        only the guilty fail."""
        text = traceback.format_exc()
        checkpoints.remove(self.folder / f"{claim.unit}.checkpoint")
        if claim.fleet and len(claim.cells) > 1:
            for cell, config in zip(claim.cells, claim.configs, strict=True):
                try:
                    result = fleet.run([RunConfig(**config)], stop=self._should_stop)[0]
                except Interrupted:
                    self.store.release(self.owner)
                    return
                except Exception:
                    self._fail(claim, (cell,), traceback.format_exc())
                else:
                    self.store.finish_all(claim, [outcome(cell, result, config["device"])])
        elif claim.attempts <= self.budget["retries"]:
            self.store.release(self.owner, crashed=True)
        else:
            self._fail(claim, claim.cells, text)

    def _fail(self, claim: Claim, cells: tuple[str, ...], text: str) -> None:
        self.store.finish_all(claim, [(cell, "failed", None, None, text) for cell in cells])

    def _note_step(self, step: int, *_: Any) -> None:
        self.steps = step + 1

    def _should_stop(self) -> bool:
        claim, self.training = self.claim, True
        if claim is not None and time.monotonic() - self.begun > self.budget["cell_seconds"] * len(
            claim.cells
        ):
            self.over = True
        return self.over or self.stopping.is_set()

    def _watch(self) -> None:
        """Heartbeat, lifeline and wall clock, whatever the main thread is doing."""
        store = Store(self.store.path)
        poll = select.poll()
        if self.lifeline is not None:
            poll.register(self.lifeline, select.POLLHUP)
        beaten = time.monotonic()
        while True:
            if self.lifeline is None:
                time.sleep(GLANCE)
            elif any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(GLANCE * 1000)):
                os._exit(1)
            else:
                time.sleep(0.05)
            claim = self.claim
            if claim is not None and self.stopping.is_set() and not self.training:
                store.release(self.owner)
                os._exit(0)
            limit = self.budget["cell_seconds"] * len(claim.cells) + GRACE if claim is not None else 0.0
            if (
                claim is not None and time.monotonic() - self.begun > limit
            ):  # stuck in native code: the stop is never asked
                store.finish_all(
                    claim,
                    [
                        (
                            cell,
                            "failed",
                            None,
                            None,
                            f"the run hung beyond its wall clock of {self.budget['cell_seconds']:g} s",
                        )
                        for cell in claim.cells
                    ],
                )
                os._exit(3)
            if time.monotonic() - beaten > BEAT:
                beaten = time.monotonic()
                # the main thread meets the same fault when it commits, and says so
                with contextlib.suppress(StoreError):
                    store.heartbeat(self.owner, steps=self.steps)


def warm() -> None:
    """Load what torch loads at the first recorded operation (two seconds), so that forked workers have it."""
    with FlopCounterMode(display=False):
        torch.zeros(1).add(1)


def outcome(
    cell: str, result: RunResult, device: str
) -> tuple[str, str, dict[str, Any], dict[str, Any], None]:
    """A result as the store takes it."""
    row = result.row() | {"arithmetic": arithmetic(torch.get_num_threads(), device)}
    return cell, row.pop("state"), row, result.curves, None


def start(
    path: str, owner: str, lifeline: int | None, budget: dict[str, float], folder: str | None, threads: int
) -> int:
    """What a new process does: set its threads, then loop.

    Args:
        folder: of the sweep's file, where the user's files are looked for first.
    """
    torch.set_num_threads(threads)
    with looking_in(folder):
        return Worker(Path(path), owner, lifeline, budget).loop()
