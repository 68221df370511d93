"""Made-up sweeps that resemble real ones, with a known truth: sources for tests of the statistics and of the
report."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pandas as pd

from trimtab.optima.tables import TableSource

DEPTHS, WIDTHS, RATES = (3, 6, 12, 24, 48), (32, 64, 128), np.arange(-6, 2, 0.5)


class Made(TableSource):
    """A table with training curves that end where the table says."""

    def __init__(self, table, meta, attached=None):
        super().__init__(table, meta)
        self.extra = attached or {}
        self.rows = {row.cell: row for row in table.itertuples()} if len(table) else {}

    def curves(self, cell):
        row = self.rows[cell]
        if row.state not in ("done", "diverged"):
            return {k: [] for k in ("step", "loss", "smoothed", "test_step", "test_loss", "accuracy")}
        step = np.arange(0, 201, 4)
        if row.state == "diverged":
            step = step[step <= row.stopped_at]
            loss = 2.3 * np.exp((step / max(row.stopped_at, 1)) ** 2 * 5)
        else:
            loss = row.train_loss + (2.3 - row.train_loss) * np.exp(-step / 30)
        wiggle = 1 + 0.05 * np.sin(step * (1 + row.seed))
        return {
            "step": step,
            "loss": loss * wiggle,
            "smoothed": loss,
            "test_step": step[::10],
            "test_loss": 1.1 * loss[::10],
            "accuracy": np.full(len(step[::10]), 0.9),
        }

    def attached(self, kind):
        return self.extra.get(kind, [])


def optimum(scheme: str, width: int, depth: int) -> float:
    """log2 of the best rate: depth-mup stays, mup falls with depth, sp falls with both."""
    deep, wide = math.log2(depth / 3), math.log2(width / 32)
    return (
        -2.2 - {"depth-mup": 0.0, "mup": 0.9, "sp": 0.9}[scheme] * deep - {"sp": 0.6}.get(scheme, 0.0) * wide
    )


def sizes(cross: bool = True):
    return (
        [(32, d) for d in DEPTHS] + [(w, 6) for w in WIDTHS[1:]]
        if cross
        else [(w, d) for w in WIDTHS for d in DEPTHS]
    )


def made(
    schemes=("sp", "mup", "depth-mup"), seeds=3, noise=0.02, rng=0, cross=True, rates=RATES, **meta
) -> Made:
    """Half-octave rates, lopsided curves, a wall one and a half octaves above the optimum, seeds that shift
    whole curves."""
    draw = np.random.default_rng(rng)
    rows = []
    for scheme in schemes:
        for width, depth in sizes(cross):
            best = optimum(scheme, width, depth)
            floor = (
                0.25
                + 0.05 * (math.log2(depth / 3) if scheme != "depth-mup" else -0.3 * math.log2(depth / 3))
                - 0.02 * math.log2(width / 32)
            )
            shift = noise * draw.standard_normal(seeds)
            for x in rates:
                for seed in range(seeds):
                    d = x - best
                    diverged = d > 1.6 + 0.2 * draw.standard_normal()
                    loss = (
                        floor
                        + shift[seed]
                        + (2.1 * (1 - math.exp(-0.06 * d * d)) if d < 0 else 0.2 * d * d)
                        + noise * draw.standard_normal()
                    )
                    name = hashlib.sha256(f"{scheme} {width} {depth} {x} {seed}".encode()).hexdigest()[:16]
                    row = dict(
                        cell=name,
                        label=f"{scheme} w{width} d{depth}",
                        state="diverged" if diverged else "done",
                        scheme=scheme,
                        width=width,
                        depth=depth,
                        seed=seed,
                        lr=2.0**x,
                    )
                    row |= dict(
                        model="mlp",
                        data="digits",
                        optimizer="SGD",
                        momentum=0.0,
                        weight_decay=0.0,
                        batch_size=64,
                        steps=200,
                    )
                    row |= dict(
                        train_loss=math.nan if diverged else loss,
                        test_loss=math.nan if diverged else 1.1 * loss,
                        accuracy=math.nan if diverged else 1 / (1 + loss),
                    )
                    row |= dict(
                        initial_loss=2.3,
                        collapsed=False,
                        stopped_at=40.0 if diverged else math.nan,
                        flops=6.0 * 64 * 200 * width * width * depth,
                        seconds=0.1,
                        error=None,
                    )
                    rows.append(row)
    about = dict(
        name="digits cross",
        base=[32, 3],
        config={"model": "mlp", "data": "digits", "optimizer": "SGD"},
        toml='name = "digits cross"\nbase = [32, 3]\n',
    )
    about |= dict(versions={"trimtab": "0.1.0", "torch": "2.9.0"}, command="trimtab sweep digits.toml")
    return Made(pd.DataFrame(rows), about | meta)
