"""What a training step costs with each norm, over one without: conv ResNets of several sizes, in turns.

    python experiments/norms/steps.py        about a minute on one core; writes steps.csv

The three networks of a size make a few steps each in alternating order, so that a busy machine slows all of
them; a ratio is taken within a round, and the median over the rounds has an interval from order statistics
(benchmarks/records.py). The clock is processor time with one thread.
"""

import statistics
import sys
from pathlib import Path

import pandas as pd
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))

from records import in_turns, median_interval  # noqa: E402

from trimtab.runs.config import RunConfig  # noqa: E402
from trimtab.runs.training import Run  # noqa: E402

NORMS, SIZES = ("none", "batch", "layer"), ((16, 3), (16, 12), (64, 3), (64, 12))
STEPS, ROUNDS = 5, 15


def side(norm: str, width: int, depth: int):
    """A function that makes a few steps of the question's network, on digits: the cost is not in the data."""
    made = RunConfig(
        model="resnet",
        model_options={"norm": norm},
        data="digits",
        width=width,
        depth=depth,
        lr=1e-3,
        steps=10**6,
        batch_size=32,
        eval_examples=0,
    )
    run, done = Run(made), iter(range(10**6))
    return lambda: [run.step(next(done)) for _ in range(STEPS)]


def main(sizes=SIZES, rounds: int = ROUNDS, out: Path = HERE / "steps.csv") -> None:
    torch.set_num_threads(1)
    rows = []
    for width, depth in sizes:
        taken = in_turns({norm: side(norm, width, depth) for norm in NORMS}, rounds)
        for norm in NORMS[1:]:
            ratios = [a / b for a, b in zip(taken[norm], taken["none"], strict=True)]
            low, high = median_interval(ratios)
            rows.append(dict(width=width, depth=depth, norm=norm, ratio=statistics.median(ratios)))
            rows[-1] |= dict(low=low, high=high, none_ms=1000 * statistics.median(taken["none"]) / STEPS)
    pd.DataFrame(rows).round(3).to_csv(out, index=False)


if __name__ == "__main__":
    main()
