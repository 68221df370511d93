"""A worker: claim a unit, train it, commit, again. It is killed -9 without harm, and never outlives its
driver.

Checkpoints lie in `<store>.work/`, named by the unit's hash, so whoever claims the unit next goes on from
there. A thread keeps the lease alive, watches the driver's pipe (closed means the driver is gone) and the
wall clock of the unit.

Asked to stop, a worker that trains leaves after its step with a checkpoint. One that is still setting its
unit up has nothing to save: the watching thread gives the claim back and ends the process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from trimtab.files import looking_in
from trimtab.runs import devices
from trimtab.runs.checkpoints import FileKeeper
from trimtab.sweeps.attempts import Attempt, Ended
from trimtab.sweeps.database import StoreError
from trimtab.sweeps.store import Claim, Store

BEAT = 4.0  # seconds between heartbeats, which carry how far the run is
GLANCE = 0.2  # seconds between looks at the pipe and the clock
DISK = 28  # exit code of a worker that could not write: errno.ENOSPC's number


def folder_of(store: Path) -> Path:
    """Where a store's checkpoints and its workers' output lie."""
    return store.with_name(store.name + ".work")


def checkpoint_of(store: Path, unit: str) -> Path:
    """Where a unit's checkpoint lies."""
    return folder_of(store) / f"{unit}.checkpoint"


class Worker:
    """One process's loop over units."""

    def __init__(self, path: Path, owner: str, lifeline: int | None, budget: dict[str, float]):
        self.store, self.owner, self.lifeline, self.budget = Store(path), owner, lifeline, budget
        self.path = path
        self.stopping = False
        self.attempt: Attempt | None = None
        self.files: dict[str, str] = {}  # the users' files as they were when this process first met them

    def loop(self) -> int:
        """Work until nothing is left or a stop is asked for; returns the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            while not self.stopping:
                claim = self.store.claim(self.owner)
                if claim is not None:
                    self._do(claim)
                elif not self.store.counts()["running"]:
                    return 0
                else:
                    time.sleep(GLANCE)  # what others hold may come back
        except (StoreError, OSError) as error:
            print(f"trimtab: {error}", file=sys.stderr, flush=True)
            return DISK
        return 0

    def _do(self, claim: Claim) -> None:
        """Train a unit and commit how it ended."""
        keeper = FileKeeper(checkpoint_of(self.path, claim.unit))
        attempt = self.attempt = Attempt(claim, keeper, self.budget, self.files, log=self._log())
        if self.stopping:
            attempt.stopping.set()
        self._commit(self.store, claim, attempt.run())
        self.attempt = None

    def _log(self) -> str | None:
        """Where runs are logged, as the sweep's file says; it is no part of a cell."""
        return self.store.meta.get("config", {}).get("run", {}).get("log")

    def _commit(self, store: Store, claim: Claim, ended: Ended) -> None:
        if ended.outcomes:
            store.finish_all(claim, ended.outcomes)
        if ended.left or ended.crashed:
            store.release(self.owner, crashed=ended.crashed)
        else:
            FileKeeper(checkpoint_of(self.path, claim.unit)).remove()

    def _stop(self, *_: object) -> None:
        self.stopping = True
        if self.attempt is not None:
            self.attempt.stopping.set()

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
            attempt = self.attempt
            if attempt is not None and self.stopping and not attempt.training:
                store.release(self.owner)
                os._exit(0)
            if attempt is not None and (ended := attempt.hung()) is not None:
                store.finish_all(attempt.claim, ended.outcomes)
                os._exit(3)
            if time.monotonic() - beaten > BEAT:
                beaten = time.monotonic()
                # the main thread meets the same fault when it commits, and says so
                with contextlib.suppress(StoreError):
                    store.heartbeat(self.owner, steps=attempt.steps if attempt is not None else 0)


def warm() -> None:
    """Load what torch loads at the first recorded operation and with the first optimizer (two seconds), so
    that forked workers have it."""
    importlib.import_module("torch._dynamo")


def take_device(slot: int, wanted: Sequence[str], gpu: int | None) -> None:
    """Make the device that a worker's slot is dealt the current one, for the classes that the sweep is on.

    Args:
        gpu: the number that the sweep's file names; None: all are dealt in turn.
    """
    for kind in wanted:
        if kind != "cpu" and (count := devices.KINDS[kind].count()):
            devices.KINDS[kind].take(devices.deal(slot, count, gpu))


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
