"""A process that has torch loaded and forks workers from itself: 0.02 s each instead of seconds.

    driver  --stdin:  "spawn <owner> <slot>" | "stop"-->  server
    server  --stdout: "ready" | "born <owner> <pid>" | "died <owner> <status>"-->  driver

It is our own hundred lines rather than multiprocessing's forkserver, which imports the user's main script
once more in every worker. Workers watch the pipe the driver writes to: when the driver dies, it closes, and
they and the server go.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn


class Server:
    """The workers that were forked, and the pipes to the driver.

    Args:
        settings: store, budget, folder, threads, devices, gpu and log, as the driver sends them.
        protocol: descriptor of the pipe to the driver.
    """

    def __init__(self, settings: dict[str, Any], protocol: int):
        self.settings, self.protocol = settings, protocol
        self.children: dict[int, str] = {}
        self.pending = b""
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        signal.set_wakeup_fd(self.wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def loop(self) -> NoReturn:
        """Obey until the driver is gone."""
        self._say("ready")
        while True:
            readable, _, _ = select.select([0, self.wake_read], [], [], 5.0)
            if self.wake_read in readable:
                os.read(self.wake_read, 4096)
            self._reap()
            if 0 in readable:
                self._obey(os.read(0, 65536))

    def _say(self, text: str) -> None:
        os.write(self.protocol, (text + "\n").encode())

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            self._say(f"died {self.children.pop(pid)} {os.waitstatus_to_exitcode(status)}")

    def _obey(self, read: bytes) -> None:
        if not read:
            os._exit(0)  # the driver is gone; the workers see the same closed pipe
        *lines, self.pending = (self.pending + read).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "spawn":
                self._spawn(*rest.split())
            elif word == "stop":
                for pid in self.children:
                    os.kill(pid, signal.SIGTERM)

    def _spawn(self, owner: str, slot: str) -> None:
        pid = os.fork()
        if pid:
            self.children[pid] = owner
            self._say(f"born {owner} {pid}")
            return
        from trimtab.sweeps import worker

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self.wake_read, self.wake_write, self.protocol):
            os.close(descriptor)
        s, code = self.settings, 1
        try:
            worker.take_device(int(slot), s["devices"], s["gpu"])
            code = worker.start(s["store"], owner, 0, s["budget"], s["folder"], s["threads"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def main(settings: dict[str, Any]) -> NoReturn:
    """Send the output to the log, load torch once, then serve."""
    os.environ.setdefault("OMP_NUM_THREADS", str(settings["threads"]))
    Path(settings["log"]).parent.mkdir(parents=True, exist_ok=True)
    protocol = os.dup(1)  # what a user's function prints must not be taken for a message
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from trimtab.sweeps import worker  # torch is loaded here, once

    worker.warm()
    Server(settings, protocol).loop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
