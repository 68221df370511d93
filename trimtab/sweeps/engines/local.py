"""Processes of this machine: each claims, trains and commits for itself (`sweeps.worker`).

The engine talks to one server process (`sweeps.worker_server`), which has torch loaded and forks workers:

    spawn <owner> <slot> | stop  -->  server  -->  ready | born <owner> <pid> | died <owner> <status>
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.runs.arithmetic import environment
from trimtab.sweeps.database import StoreError
from trimtab.sweeps.engines.job import Job, Stopped
from trimtab.sweeps.placement import classes
from trimtab.sweeps.store import Store
from trimtab.sweeps.worker import DISK, folder_of


class Local:
    """Workers of one machine."""

    def __init__(self, job: Job):
        self.job = job
        self.alive: dict[str, int] = {}
        self.births = 0
        self.slots: dict[str, int] = {}  # of workers: who is dealt which device
        self.messages: queue.SimpleQueue[str] = queue.SimpleQueue()  # a signal handler may put into it

    @property
    def running(self) -> int:
        return len(self.alive)

    def start(self, store: Store) -> None:
        """Start the server: it loads torch while the cells are made."""
        self.store = store
        self.server = self._start_server()

    def fill(self, waiting: int) -> None:
        while waiting and len(self.alive) < min(self.job.workers, waiting + len(self.alive)):
            self.births += 1
            owner = f"{self.job.mark}/{self.births}"
            self.alive[owner] = 0
            self._order(f"spawn {owner} {self._take_slot(owner)}")

    def _take_slot(self, owner: str) -> int:
        """The lowest slot that no living worker is in."""
        self.slots = {name: slot for name, slot in self.slots.items() if name in self.alive}
        self.slots[owner] = next(i for i in range(len(self.slots) + 1) if i not in self.slots.values())
        return self.slots[owner]

    def listen(self, wait: float) -> None:
        if not self._hear(wait):
            return
        self._end_server()
        self._release_all()
        self.server = self._start_server()

    def wake(self) -> None:
        self.messages.put("interrupted")

    def close(self, stopping: Callable[[int], Any] | None) -> None:
        """Let the workers checkpoint and release, then close the pipe they live by.

        There is no deadline here: a worker leaves after the step it is in, and whoever does not want to wait
        for that asks twice.
        """
        if self.alive and self.server.poll() is None:
            self._order("stop")
            if stopping is not None:
                stopping(len(self.alive))
            self._await_workers()
        self._end_server()
        with contextlib.suppress(StoreError):
            self._release_all()

    def _await_workers(self) -> None:
        while self.alive:
            try:
                message = self.messages.get(timeout=1.0)
            except queue.Empty:
                if self.server.poll() is not None:
                    return
                continue
            if message.startswith("died"):
                self.alive.pop(message.split()[1], None)
            if message == "gone":
                return

    def _hear(self, wait: float) -> bool:
        """Take the server's messages; True when it is gone."""
        try:
            message = self.messages.get(timeout=wait)
        except queue.Empty:
            return False
        while True:
            word, *rest = message.split()
            if word in ("gone", "interrupted"):
                return word == "gone"
            if word == "born":
                self.alive[rest[0]] = int(rest[1])
            if word == "died":
                self._bury(rest[0], int(rest[1]))
            try:
                message = self.messages.get_nowait()
            except queue.Empty:
                return False

    def _bury(self, owner: str, code: int) -> None:
        self.alive.pop(owner, None)
        try:
            self.store.release(owner, crashed=True)
        except StoreError:
            code = DISK
        if code == DISK:
            raise Stopped(
                f"the disk that holds {self.job.path} is full, or the store cannot be written "
                f"({_last_line(self.job.path)}). What was finished is safe: free some space and run the same "
                "command again."
            )

    def _release_all(self) -> None:
        for owner in list(self.alive):
            self.store.release(owner, crashed=True)
        self.alive.clear()

    # -- the server ------------------------------------------------------------------------------------------

    def _start_server(self) -> subprocess.Popen[bytes]:
        job = self.job
        settings = dict(
            store=str(job.path.resolve()),
            budget=job.budget,
            folder=None if job.folder is None else str(job.folder),
            threads=job.threads,
            devices=classes(job.config),
            gpu=job.config.gpu,
            log=str((folder_of(job.path) / "workers.log").resolve()),
        )
        path = os.pathsep.join([*(p or os.getcwd() for p in sys.path), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab.sweeps.worker_server", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | environment(job.threads) | {"PYTHONPATH": path},
        )
        self.messages = queue.SimpleQueue()
        assert process.stdout is not None
        threading.Thread(target=_listen, args=(process.stdout, self.messages), daemon=True).start()
        return process

    def _order(self, text: str) -> None:
        assert self.server.stdin is not None
        # a server that is gone says so by its own end
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.server.stdin.write((text + "\n").encode())
            self.server.stdin.flush()

    def _end_server(self) -> None:
        assert self.server.stdin is not None
        for pid in self.alive.values():
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.server.stdin.close()
        try:
            self.server.wait(1.0)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


def _listen(pipe: Any, messages: queue.SimpleQueue[str]) -> None:
    for line in pipe:
        messages.put(line.decode().strip() or "ready")
    messages.put("gone")


def _last_line(path: Path) -> str:
    try:
        return (folder_of(path) / "workers.log").read_text(errors="replace").strip().splitlines()[-1][-300:]
    except (OSError, IndexError):
        return "no message"
