"""What a small size knows about a large one: points that tie at width 64, ranked at 64, 128 and 512.

    python experiments/tune_ties.py FOLDER

A residual MLP of depth 3 on the digits (the task of tune_carried.py). An octave grid of lr, gamma0 and the
input's rate multiplier at 64, four seeds each; the points within 0.6 of the lowest mean log loss there again
at 128 (four seeds) and 512 (two). Prints Spearman's rank correlation of mean log loss between the sizes.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tune_carried import TASKS

from trimtab.runs.config import RunConfig
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.rounds import Listed, run_rounds
from trimtab.sweeps.store import Store

BASE, WITHIN = (64, 3), 0.6
GRID = list(itertools.product(range(-9, -1), range(-4, 3), range(-4, 4)))  # log2 of lr, gamma0, input's rate
Point = tuple[float, ...]


def mean_logs(
    store: Path, points: Sequence[Point], width: int, seeds: int, workers: int
) -> dict[Point, float]:
    """{point: mean log loss at a width, infinite where a run diverged or ended no better than it began}."""
    run = TASKS["digits"]
    runs = [
        RunConfig(
            **run,
            lr=2.0**lr,
            gamma0=2.0**gamma0,
            roles={"input": {"lr": 2.0**times}},
            scheme="depth-mup",
            width=width,
            depth=BASE[1],
            base=BASE,
            seed=seed,
        )
        for (lr, gamma0, times), seed in itertools.product(points, range(seeds))
    ]
    plain = SweepConfig(
        name="ties", schemes=("depth-mup",), base=BASE, sizes=((width, BASE[1]),), axes={}, seeds=(), run=run
    )
    listed = Listed(**{key: getattr(plain, key) for key in plain.__dataclass_fields__})
    rounds = iter((runs, ()))
    run_rounds(listed, lambda _: next(rounds), store, workers=workers)
    table: Any = Store(store).to_pandas()
    table = table[table["seed"] < seeds]
    good = table["state"].eq("done") & ~table["collapsed"].astype(bool)
    logs = np.log(table["train_loss"].astype(float).where(good, np.inf))
    keys = [tuple(np.log2(row)) for row in table[["lr", "gamma0", "roles.input.lr"]].to_numpy(float)]
    held: dict[Point, list[float]] = {}
    for key, y in zip(keys, logs, strict=True):
        held.setdefault(key, []).append(y)
    return {point: float(np.mean(held[point])) for point in points}


def main() -> None:
    from scipy.stats import spearmanr

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    def at(width: int, points: Sequence[Point], seeds: int) -> dict[Point, float]:
        return mean_logs(given.folder / f"ties-{width}.db", points, width, seeds, given.workers)

    small = at(64, GRID, 4)
    lowest = min(small.values())
    ties = [point for point, y in small.items() if y < lowest + WITHIN]
    middle, large = at(128, ties, 4), at(512, ties, 2)
    print("log2 of lr, gamma0, input's rate: log loss at 64, 128, 512")
    for point in sorted(ties, key=large.__getitem__):
        print(*point, *(f"{y[point]:.2f}" for y in (small, middle, large)))
    for name, y in {"64": small, "128": middle}.items():
        rank = spearmanr([y[p] for p in ties], [large[p] for p in ties])[0]
        print(f"{len(ties)} points: rank correlation of {name} with 512: {rank:.2f}")


if __name__ == "__main__":
    main()
