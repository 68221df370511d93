"""What a sweep costs beside the training itself; ratios in one run.

    python benchmarks/sweep.py            the quick lines, about three minutes
    python benchmarks/sweep.py --long     also the engine's overhead on 30 s cells, about five more

- a 60-run sweep against the same runs in a sequential plain-PyTorch loop, and two workers against one
- `status` on a store of 100,000 cells; `trimtab --help`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from trimtab.runs.config import RunConfig
from trimtab.runs.losses import cross_entropy, forward
from trimtab.runs.tasks import prepare
from trimtab.sweeps.driver import sweep
from trimtab.sweeps.store import Store

SIXTY = {
    "base": [32, 3],
    "depths": [12],
    "seeds": 3,
    "axes": {"lr": {"log2": [-9, -4.25], "step": 0.25}},
    "run": {"steps": 400, "model_options": {"branch_scale": 0.5}, "eval_examples": 0},
}


def plain(cells: list[RunConfig]) -> float:
    """Seconds of a loop that a user would write: one run after the other, torch's own optimizer."""
    begun = time.perf_counter()
    for config in cells:
        made = prepare(config)
        model = made.start(config.seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
        for step in range(config.steps):
            batch = made.batch(config.seed, step)
            loss = cross_entropy(forward(model, batch), batch)
            loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - begun


def timed(table: dict, folder: Path, name: str, workers: int) -> float:
    begun = time.perf_counter()
    outcome = sweep(table, folder / f"{name}.db", workers=workers)
    assert outcome.exit_code == 0, outcome
    return time.perf_counter() - begun


def sixty(folder: Path) -> None:
    from trimtab.sweeps import grid

    cells = list(grid.read(SIXTY).cells())
    alone = plain(cells)
    ours = timed(SIXTY, folder, "sixty", 2)
    print(
        f"60 runs: plain loop {alone:.1f} s, sweep {ours:.1f} s with loading torch: {alone / ours:.2f} x   "
        "(wanted 2)"
    )


def workers(folder: Path) -> None:
    """Cells of several seconds, so that loading torch does not decide."""
    table = SIXTY | {
        "seeds": 2,
        "axes": {"lr": [0.01, 0.02, 0.03, 0.04]},
        "run": SIXTY["run"] | {"steps": 6000},
        "budget": {"fleet": 1},
    }
    one, two = timed(table, folder, "one", 1), timed(table, folder, "two", 2)
    print(
        f"8 cells of {one / 8:.1f} s: one worker {one:.1f} s, two {two:.1f} s: {one / two:.2f} x   (wanted "
        "1.8)"
    )


def overhead(folder: Path) -> None:
    """Cells of about 30 s in one worker against the same training in this process."""
    config = SIXTY | {
        "seeds": 2,
        "axes": {"lr": [0.01, 0.02]},
        "run": SIXTY["run"] | {"steps": 30_000},
        "budget": {"fleet": 1},
    }
    from trimtab.runs.training import run
    from trimtab.sweeps import grid

    cells = list(grid.read(config).cells())
    begun = time.perf_counter()
    for cell in cells:
        run(cell)
    bare = time.perf_counter() - begun
    timed(config, folder, "over", 1)
    spent = float(Store(folder / "over.db").to_pandas().seconds.sum())
    print(
        f"4 cells of {bare / 4:.0f} s: in the worker {spent / bare:.3f} x the same training alone   (wanted "
        "1.02)"
    )


def reading(folder: Path) -> None:
    store = Store(folder / "large.db", create=True)
    config = RunConfig(width=32, depth=3, lr=0.1)
    plain_config = config.model_dump(mode="json")
    store.add((f"cell-{i}", "large", plain_config, f"unit-{i}", False, 1.0) for i in range(100_000))
    store._db.execute(
        "UPDATE cells SET state = 'done', result = ?", (json.dumps({"train_loss": 0.5, "collapsed": False}),)
    )
    store.close()
    for what, command in (
        ("status of 100,000 cells", ["status", str(folder / "large.db")]),
        ("--help", ["--help"]),
    ):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "trimtab.cli", *command], capture_output=True, check=True)
        print(f"{what}: {time.perf_counter() - begun:.2f} s   (wanted {2 if 'status' in what else 1})")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        reading(place)
        sixty(place)
        workers(place)
        if "--long" in sys.argv:
            overhead(place)
