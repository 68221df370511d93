"""A tune that is killed at random moments: is its answer the same bit for bit?

    python experiments/tune_kills.py 20          # kills

One tune (three rounds, finalists, confirming runs) goes undisturbed on two workers. Then in each round it is
begun anew on 1, 2 or 4 workers, and at a random moment the command or one of its workers gets `kill -9`; in
every second round what goes on afterwards is killed once more. The command is started again until it is
finished. All that `--json` prints (`Tuned.to_json()`, which holds no times) and all results of the store must
be those of the undisturbed one. Rounds that end before the kill are compared and not counted as kills.
"""

from __future__ import annotations

import argparse
import collections
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / "support")]

from crashing import processes, results, same, start, write  # noqa: E402
from same_numbers import NOTHING, ended, strike  # noqa: E402

TUNE = dict(
    base=[24, 2],
    target=[96, 4],
    trials=12,
    per_round=4,
    seeds=2,
    finalists=2,
    final_seeds=2,
    run=dict(model="mlp", data="digits", optimizer="adamw", batch_size=32, steps=400, eval_examples=0),
    search={"lr": dict(log2=[-10, -2]), "gamma0": dict(log2=[-3, 1])},
    confirm=dict(size=[48, 2], seeds=2),
    budget={"checkpoint_seconds": 0.05},
)


def begin(path: Path, workers: int) -> subprocess.Popen[str]:
    return start(path, workers, command=("tune", "--json"), stderr=subprocess.DEVNULL)


def finish(path: Path, workers: int) -> str:
    """The answer as JSON; the exit code is the confirming runs' verdict."""
    process = begin(path, workers)
    said = process.communicate(timeout=900)[0]
    if process.returncode not in (0, 1, 3):
        raise RuntimeError(f"exit code {process.returncode}: {said[-2000:]}")
    return said


def disturb(path: Path, workers: int, calm: float, dice: random.Random) -> str:
    """Go on with a tune and kill one of its processes: mostly some time after its first worker is there (much
    of the command is loading torch), else at a moment drawn over all the time it takes; what was killed."""
    process, store = begin(path, workers), path.with_suffix(".db")
    if dice.random() < 0.7:
        while not processes(store)[1]:
            if ended(process, 0.1):
                return NOTHING
        moment = dice.uniform(0.0, 0.4 * calm)
    else:
        moment = dice.uniform(0.0, 0.7 * calm)
    if ended(process, moment):
        return NOTHING
    return strike(process, store, dice)


def made(folder: Path) -> Path:
    folder.mkdir()
    return write(folder, TUNE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dice, counts = random.Random(given.seed), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        calm = made(Path(place) / "calm")
        begun = time.monotonic()
        answer = finish(calm, 2)
        took, truth = time.monotonic() - begun, results(calm.with_suffix(".db"))
        print(f"undisturbed: {len(truth)} runs in {took:.1f} s", flush=True)
        number = kills = 0
        while kills < given.kills:
            path = made(Path(place) / str(number))
            struck = [
                disturb(path, dice.choice((1, 2, 4)), took, dice) for _ in range(2 if number % 2 else 1)
            ]
            equal = finish(path, dice.choice((1, 2, 4))) == answer
            try:
                same(results(path.with_suffix(".db")), truth)
            except AssertionError:
                equal = False
            kills += sum(what != NOTHING for what in struck)
            counts.update(["same answer" if equal else "DIFFERENT", *(f"killed {what}" for what in struck)])
            end = "same" if equal else "DIFFERENT"
            print(f"{number}: killed {', then '.join(struck)}: {end}", flush=True)
            number += 1
    print(f"{kills} kills in {number} rounds: {dict(counts)}", flush=True)
    sys.exit(bool(counts["DIFFERENT"]))


if __name__ == "__main__":
    main()
