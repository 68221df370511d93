"""The same sweep whatever happens to it: are its numbers the same bit for bit?

    python experiments/same_numbers.py 20        # kills per model; --load 0: where the machine is busy anyway

For an MLP, a BatchNorm ResNet, a ViT and a GPT one sweep runs undisturbed on two workers. Then in each round
it runs again on 1, 2 or 4 workers, every second round beside busy processes (one for each core), every third
with a part of its cells first and the others added later. At a random moment the command or one of its
workers gets `kill -9`, mostly while runs are under way; the command is started again until it is finished.
Rounds that end before it are compared too and not counted as kills. The models and the
comparison are those of tests/sweeps/test_same_numbers.py. Prints a line a round and the counts.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "sweeps")]

from crashing import finish, gone, kill, processes, results, same, start  # noqa: E402
from test_same_numbers import KINDS, SMALL, grid  # noqa: E402

STEPS = 240
NOTHING = "nothing: it was done"


def _spin() -> None:
    while True:
        sum(range(100_000))


@contextlib.contextmanager
def beside(number: int) -> Iterator[None]:
    """That many busy processes."""
    spinning = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(number)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()


def disturb(path: Path, workers: int, calm: float, dice: random.Random) -> str:
    """Run a sweep and kill one of its processes: the command at a moment drawn over all the time it takes, or
    a worker some time after the first one is there; what was killed."""
    process, store = start(path, workers), path.with_suffix(".db")
    if dice.random() < 0.3:
        if ended(process, dice.uniform(0.0, calm)):
            return NOTHING
    else:
        while not processes(store)[1]:
            if ended(process, 0.1):
                return NOTHING
        if ended(process, dice.uniform(0.0, 0.5 * calm)):
            return NOTHING
    return strike(process, store, dice)


def strike(process: subprocess.Popen[str], store: Path, dice: random.Random) -> str:
    """`kill -9` of one of a command's workers, which it is left to notice, or of the command; what was
    killed."""
    hands = processes(store)[1]
    if hands and dice.random() < 0.5:
        struck = kill(dice.choice(hands))
        process.communicate(timeout=900)
        return "a worker" if struck else NOTHING
    kill(process.pid)
    process.communicate(timeout=60)
    if not gone(store, 60.0):
        raise RuntimeError("workers outlive a killed command by a minute")
    return "the command"


def ended(process: subprocess.Popen[str], within: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within)
        return True
    return False


def one_round(folder: Path, kind: str, number: int, calm: float, load: int, dice: random.Random) -> str:
    """One disturbed sweep, finished; what happened to it."""
    run = {"run": SMALL | KINDS[kind] | {"steps": STEPS}}
    workers, later = dice.choice((1, 2, 4)), number % 3 == 0
    with beside(load if number % 2 else 0):
        if later:
            path = grid(folder, kind, **run, axes={"lr": [2.0**-7, 1e6]}, seeds=[1])
            code, said = finish(path, workers, timeout=600)
            if code:
                raise RuntimeError(said)
        path = grid(folder, kind, **run)
        killed = disturb(path, workers, calm, dice)
        for _ in range(5):
            code, said = finish(path, dice.choice((1, 2, 4)), timeout=900)
            if not code:
                break
        else:
            raise RuntimeError(said)
    return f"{workers} workers, killed {killed}{', cells added later' if later else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in given.kinds}
    for kind in given.kinds:
        dice = random.Random(f"{kind} {given.seed}")
        with tempfile.TemporaryDirectory() as place:
            calm = grid(Path(place) / "calm", kind, run=SMALL | KINDS[kind] | {"steps": STEPS})
            begun = time.monotonic()
            code, said = finish(calm, 2, timeout=900)
            took = time.monotonic() - begun
            if code:
                raise RuntimeError(said)
            truth = results(calm.with_suffix(".db"))
            number, kills = -1, 0
            while kills < given.kills:
                number += 1
                folder = Path(place) / str(number)
                what = one_round(folder, kind, number, took, given.load, dice)
                try:
                    same(results(folder / "sweep.db"), truth)
                    answer = "same"
                except AssertionError:
                    answer = "DIFFERENT"
                kills += NOTHING not in what
                counts[kind][answer] += 1
                counts[kind]["killed " + what.split("killed ")[1].split(",")[0]] += 1
                print(f"{kind} {number}: {what}: {answer}", flush=True)
        print(f"{kind}: {len(truth)} cells, {took:.1f} s undisturbed; {dict(counts[kind])}", flush=True)
    sys.exit(any(counter["DIFFERENT"] for counter in counts.values()))


if __name__ == "__main__":
    main()
