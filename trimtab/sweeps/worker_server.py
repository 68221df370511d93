"""A process that has torch loaded and forks workers from itself: 0.02 s each instead of seconds.

    driver --stdin: "spawn <owner>" | "stop"-->  server  --stdout: "born <owner> <pid>" | "died <owner>
    <status>"--> driver

It is our own forty lines rather than multiprocessing's forkserver, which imports the user's main script once
more in every worker. Workers watch the pipe the driver writes to: when the driver dies, it closes, and they
and the server go.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.environ.setdefault("OMP_NUM_THREADS", str(settings["threads"]))
    protocol = os.dup(1)  # what a user's function prints must not be taken for a message
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from trimtab.sweeps import worker  # torch is loaded here, once

    worker.warm()

    children: dict[int, str] = {}
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def say(text: str) -> None:
        os.write(protocol, (text + "\n").encode())

    def spawn(owner: str) -> None:
        pid = os.fork()
        if pid:
            children[pid] = owner
            say(f"born {owner} {pid}")
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (wake_read, wake_write, protocol):
            os.close(descriptor)
        code = 1
        try:
            code = worker.start(
                settings["store"], owner, 0, settings["budget"], settings["folder"], settings["threads"]
            )
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    say("ready")
    pending = b""
    while True:
        readable, _, _ = select.select([0, wake_read], [], [], 5.0)
        if wake_read in readable:
            os.read(wake_read, 4096)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            say(f"died {children.pop(pid)} {os.waitstatus_to_exitcode(status)}")
        if 0 in readable:
            read = os.read(0, 65536)
            if not read:
                os._exit(0)  # the driver is gone; the workers see the same closed pipe
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                word, _, rest = line.decode().partition(" ")
                if word == "spawn":
                    spawn(rest)
                elif word == "stop":
                    for pid in children:
                        os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    Path(json.loads(sys.argv[1])["log"]).parent.mkdir(parents=True, exist_ok=True)
    main()
