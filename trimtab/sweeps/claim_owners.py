"""Who holds a claim: host / process number / its birth in the kernel's ticks / a random name [/ worker].

A process number is given out again after its process has ended, its birth is not. Our own twenty lines rather
than psutil: its `create_time` is wall-clock time, which moves when the clock is set; ticks since boot do not.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path


def new_owner() -> str:
    """The name of this process, for its claims."""
    return f"{socket.gethostname()}/{os.getpid()}/{_birth(os.getpid()) or '?'}/{uuid.uuid4().hex[:8]}"


def alive(owner: str) -> bool:
    """Whether the process behind a claim may still be there.

    One on another host is taken to be alive: there only the lease tells.

    >>> alive(new_owner()), alive(f"{socket.gethostname()}/{os.getpid()}/1/x"), alive("elsewhere/1/1/x")
    (True, False, True)
    """
    host, pid, born, *_ = [*owner.split("/"), "", "", ""]
    if host != socket.gethostname() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    birth = _birth(int(pid))  # None without /proc: the process number is all that is known
    return birth is None or not born.isdigit() or birth == born


def _birth(pid: int) -> str | None:
    """When a process began, in ticks since the kernel began; None where the kernel does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
