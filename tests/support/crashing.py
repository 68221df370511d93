"""Start a sweep as a user does, find its processes, and be unkind to them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from hanging import HANGS

from trimtab.sweeps.store import Store

# A data file whose batches let a test act on a sweep at events, however fast the machine is. The environment
# says what happens: nothing (no variable), HOLD (a folder): the first process to reach a step of HOLDS writes
# its number there and waits to be killed, with HOLD_SEED only in runs of that seed; PACE (a file): every
# batch takes 5 ms until that file is there.
GATED = """
import os, pathlib, time, torch

HOLDS = (20, 40, 60, 80, 100)

def gate(split, seed, step):
    hold, pace = os.environ.get("HOLD"), os.environ.get("PACE")
    if os.environ.get("HOLD_SEED", str(seed)) != str(seed):
        hold = None
    if pace and not os.path.exists(pace):
        time.sleep(0.005)
    if hold and split == "train" and step in HOLDS:
        mine = pathlib.Path(hold, f"process {os.getpid()}")
        mine.write_text(str(os.getpid()))
        try:
            os.link(mine, f"{hold}/{step}")
        except FileExistsError:
            return
        time.sleep(86400)

def drawn(split, seed, step, *shape):
    gate(split, seed, step)
    g = torch.Generator().manual_seed(seed * 1009 + step)
    x = torch.randn(16, *shape, generator=g)
    return x, (x.flatten(1)[:, :10]).argmax(1)

def rows(split, seed, step):
    return drawn(split, seed, step, 64)

def images(split, seed, step):
    return drawn(split, seed, step, 1, 8, 8)

def letters(split, seed, step):
    gate(split, seed, step)
    g = torch.Generator().manual_seed(seed * 1009 + step)
    x = torch.randint(0, 9, (6, 9), generator=g)
    return x, (x + 1) % 9
"""
SMALL = {"steps": 120, "batch_size": 16, "model_options": {"branch_scale": 0.5}, "eval_examples": 32}


def toml(table, prefix=""):
    """A dict as TOML, enough for our sweeps."""
    lines = [f"{json.dumps(k)} = {_value(v)}" for k, v in table.items()]
    return "\n".join(lines)


def _value(v):
    if isinstance(v, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(x)}" for k, x in v.items()) + " }"
    if isinstance(v, list | tuple):
        return "[" + ", ".join(map(_value, v)) + "]"
    return json.dumps(v)


def write(folder: Path, sweep: dict) -> Path:
    path = folder / "sweep.toml"
    path.write_text(toml(sweep))
    return path


def start(path: Path, workers=2, gates=None, command=("sweep",), **popen):
    """The sweep command, or another with its options; `gates`: the variables of GATED."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | {k: str(v) for k, v in (gates or {}).items()}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    name, *options = command
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli", name, str(path), "--workers", str(workers), *options],
        env=env,
        **(pipes | popen),
    )


def finish(path: Path, workers=2, timeout=HANGS, **popen):
    process = start(path, workers, **popen)
    out = process.communicate(timeout=timeout)[0]
    return process.returncode, out


def processes(store: Path):
    """(nurseries, workers) of a store: process numbers."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if "trimtab.sweeps.worker_server" in command and str(store) in command and state != "Z":
                found[int(entry.name)] = parent
    workers = [pid for pid, parent in found.items() if parent in found]
    return [pid for pid in found if pid not in workers], workers


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


def results(store: Path):
    """{cell: (state, result without the time it took, curves)} and how often each was accepted."""
    held = Store(store)
    out = {}
    for cell, state, text, accepted in held._read("SELECT cell, state, result, accepted FROM cells"):
        result = {k: v for k, v in json.loads(text or "{}").items() if k != "seconds"}
        out[cell] = (state, result, held.curves(cell), accepted)
    held.close()
    return out


def same(a, b):
    assert a.keys() == b.keys()
    for cell in a:
        assert a[cell][:2] == b[cell][:2], cell
        assert all(np.array_equal(a[cell][2][k], b[cell][2][k], equal_nan=True) for k in a[cell][2]), cell


def gone(store: Path) -> bool:
    """Whether all processes of a store leave."""
    end = time.monotonic() + HANGS
    while time.monotonic() < end:
        if not any(map(len, processes(store))):
            return True
        time.sleep(0.1)
    return False


def until(condition):
    """Wait for an event."""
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
