"""Ctrl-C at random moments, beside load: how long until the command is gone, and does the run continue where
it was?

    python experiments/ctrl_c.py 50            # --load 0: where the machine is busy anyway

The bound adds up: one step, one checkpoint, 2 s. A step is measured in the run itself (the largest gap
between two batches). The
load is two busy processes for each core. Each round continues the sweep of the round before; `missed` counts
rounds after which
a step was made twice or left out.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOW = """
import os, pathlib, time, torch
def data(split, seed, step):
    with pathlib.Path(os.environ["TRACE"]).open("a") as file:
        file.write(f"{split} {seed} {step} {time.monotonic()}\\n")
    g = torch.Generator().manual_seed(seed * 1000 + step)
    x = torch.randn(64, 64, generator=g)
    return x, (x[:, 0] > 0).long()
"""
SWEEP = """
base = [32, 3]
seeds = 2
fleet = 1
axes = { lr = [0.01] }
[run]
data = "mine.py:data"
steps = 1000000
model_options = { inputs = 64, classes = 10 }
eval_examples = 0
[budget]
checkpoint_seconds = 3600
cell_seconds = 360000
"""


def busy() -> None:
    while True:
        sum(range(100_000))


def rows(trace: Path) -> list[tuple[int, int, float]]:
    """(seed, step, when) of every training batch but the first few that planning looks at."""
    found = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return [(int(seed), int(step), float(when)) for split, seed, step, when in found if split == "train"]


def interrupt(folder: Path, dice: random.Random) -> tuple[float, float]:
    """(seconds until the command was gone, the longest step) of one round."""
    trace = folder / "trace"
    before = len(rows(trace))
    env = os.environ | {"TRACE": str(trace), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trimtab.cli", "sweep", str(folder / "sweep.toml"), "--workers", "2"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if dice.random() < 0.8:  # most rounds while runs are under way, some while they are being set up
        while len(rows(trace)) < before + 30:
            time.sleep(0.05)
    time.sleep(dice.uniform(0.0, 3.0))
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    process.wait()
    took = time.monotonic() - begun
    # ended by the signal itself, while Python was still starting: 130 to a shell, too
    assert process.returncode in (130, -signal.SIGINT), process.returncode
    by_seed: dict[int, list[float]] = {}
    for seed, _, when in rows(trace)[before:]:
        by_seed.setdefault(seed, []).append(when)
    gaps = [b - a for times in by_seed.values() for a, b in itertools.pairwise(times[5:])]
    return took, max(gaps, default=0.0)


def main(rounds: int, loops: int) -> None:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job would ignore it, and so its children
    load = [multiprocessing.Process(target=busy, daemon=True) for _ in range(loops)]
    for process in load:
        process.start()
    dice, found = random.Random(0), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "mine.py").write_text(SLOW)
        (folder / "sweep.toml").write_text(SWEEP)
        for i in range(rounds):
            took, step = interrupt(folder, dice)
            found.append((took, step))
            print(
                f"{i + 1:3d}  gone after {took:.2f} s, longest step {step:.2f} s, load "
                f"{os.getloadavg()[0]:.0f}, {'within' if took < step + 2 else 'BEYOND'} the bound",
                flush=True,
            )
        steps: dict[int, list[int]] = {}
        for seed, step, _ in rows(folder / "trace"):
            steps.setdefault(seed, []).append(step)
        missed = 0
        for made in steps.values():
            trained = [s for s in made if s > 0]  # batch 0 is also looked at while a run is set up
            missed += len(trained) - len(set(trained)) + (max(trained) - len(set(trained)))
    late = sum(took >= step + 2 for took, step in found)
    print(
        f"{rounds} rounds: longest {max(t for t, _ in found):.2f} s, {late} beyond a step + 2 s, {missed} "
        "steps made twice or left out"
    )
    for process in load:
        process.kill()
    sys.exit(bool(late or missed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=50)
    parser.add_argument(
        "--load", type=int, default=2 * (os.cpu_count() or 1), help="busy processes beside it"
    )
    given = parser.parse_args()
    main(given.rounds, given.load)
