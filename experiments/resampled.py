"""Verdicts on a real sweep drawn again and again: residual MLPs over depth with 24 seeds, of which a few are
drawn each time.

    python experiments/resampled.py [draws, 200] [store, resampled.db]

The sweep (3,840 runs) takes a few minutes on two cores and is kept in the store; a second call goes on with
it.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np

import trimtab
from trimtab.sweeps.store import Store

SEEDS = 24


def sweep(path: str) -> Store:
    wanted = dict(
        name="resampled",
        schemes=["mup", "depth-mup"],
        base=[32, 3],
        depths=[3, 6, 12, 24, 48],
        widths=[32],
        seeds=list(range(100, 100 + SEEDS)),
        axes={"lr": {"log2": [-6, 1.5], "step": 0.5}},
        run=dict(
            model="mlp",
            model_options={"branch_scale": 3**-0.5},
            data="digits",
            optimizer="sgd",
            batch_size=64,
            steps=200,
        ),
    )
    trimtab.sweep(wanted, path, workers=2)
    return Store(path)


def drawn(table, scheme: str, seeds: int, draws: int, truth: float) -> str:
    """One row: the verdicts' shares, and how often the interval holds the slope of all seeds together."""
    rng, told, held = np.random.default_rng(0), Counter(), 0
    every = table["seed"].unique()
    for _ in range(draws):
        t = trimtab.transfer(
            table[table["seed"].isin(rng.choice(every, seeds, replace=False))], over="depth", scheme=scheme
        )
        told[t.verdict] += 1
        held += t.drift.low <= truth <= t.drift.high
    share = [f"{told[v] / draws:.1%}" for v in ("transfers", "cannot tell", "drifts")]
    return f"| {scheme} | {seeds} | {draws} | {' | '.join(share)} | {held / draws:.1%} |"


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    table = sweep(sys.argv[2] if len(sys.argv) > 2 else "resampled.db").to_pandas()
    for scheme in ("depth-mup", "mup"):
        whole = trimtab.transfer(table, over="depth", scheme=scheme)
        print(
            f"{scheme}, all {SEEDS} seeds: {whole.verdict}, {whole.drift.slope:+.3f} "
            f"({whole.drift.low:+.3f} to {whole.drift.high:+.3f}) log2 per doubling",
            flush=True,
        )
        for seeds in (3, 5):
            print(drawn(table, scheme, seeds, draws, whole.drift.slope), flush=True)


if __name__ == "__main__":
    main()
