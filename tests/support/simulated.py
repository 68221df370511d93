"""Loss curves with a known optimum, to measure how often intervals cover it and verdicts are right.

Rates are half an octave apart. `se` is the standard error of the optimum that the fit itself reports (the
median of a pilot), reached by scaling the noise. Seeds, when shared across rates, shift whole curves by twice
the noise.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd

from trimtab.optima.drift import drift, seed_inflation, verdict
from trimtab.optima.fits import fit

RATES = np.arange(-5, 2.5, 0.5)
KINDS = ("quadratic", "two-sided", "wall", "flat")
SES = (0.05, 0.15, 0.3)


class Measured(NamedTuple):
    covered: float
    bounded: float
    covered_bounded: float
    stderr: float
    bias: float
    spread: float


def curve(kind: str, x: np.ndarray, m: float) -> np.ndarray:
    d = x - m
    left, right = {"two-sided": (0.05, 0.2), "two-sided, mirrored": (0.2, 0.05), "flat": (0.002, 0.002)}.get(
        kind, (0.1, 0.1)
    )
    if kind == "quartic":
        return 1 + 0.03 * d**4
    if kind == "cliff":  # what small networks do: slowly down by a factor of ten, then up a cliff
        return 0.01 * (np.exp(-0.5 * d) / 0.5 + np.exp(3 * d) / 3)
    return 1 + np.where(d < 0, left, right) * d * d


def runs(rng: np.random.Generator, kind: str, noise: float, seeds: int, shared: bool, m: float | None = None):
    """(x, y, seed, wall, optimum) of one made-up size."""
    x, wall = RATES, math.inf
    m = -1.0 + rng.uniform(-0.25, 0.25) if m is None else m
    if kind.startswith(
        "wall"
    ):  # one step right of the minimum; "wall, short" stands before the minimum is reached
        limit = m + (0.5 if kind == "wall" else -0.1)
        wall = float(x[x >= limit][0])
        x = x[x < wall]
        m = min(m, limit)
    off = noise * rng.standard_normal((len(x), seeds))
    if shared:
        off = off + 2 * noise * rng.standard_normal(seeds)
    y = curve(kind, x, m)[:, None]
    y = y * np.exp(off) if kind == "cliff" else y + off  # next to a cliff the noise is as large as the loss
    seed = np.tile(np.arange(seeds), len(x)) if shared else np.arange(y.size)
    return np.repeat(x, seeds), y.ravel(), seed, wall, m


@functools.cache
def noise_for(kind: str, se: float, seeds: int, shared: bool = True) -> float:
    """The noise at which the fit's own standard error is `se`: three pilots of 60."""
    if kind == "flat":
        return 0.02 * math.sqrt(
            seeds / 3
        )  # the curve rises by less than one standard deviation of a run within three octaves
    if kind.startswith("wall"):  # half a curve says little of its own error: the same noise as on a whole one
        return noise_for("quadratic", se, seeds, shared)
    noise = (2.0 if kind == "cliff" else 0.5) * se * math.sqrt(seeds / 3)
    for _ in range(3):
        rng = np.random.default_rng(7)
        errors = []
        for _ in range(60):
            x, y, seed, wall, _m = runs(rng, kind, noise, seeds, shared)
            errors.append(fit(x, y, seed, wall=wall).stderr)
        noise *= se / float(np.nanmedian(errors))
    return noise


def coverage(kind: str, se: float, seeds: int, shared: bool, n: int, rng: int = 0) -> Measured:
    """How often the 95 % interval holds the optimum."""
    draw, noise = np.random.default_rng(rng), noise_for(kind, se, seeds, shared)
    rows = []
    for _ in range(n):
        x, y, seed, wall, m = runs(draw, kind, noise, seeds, shared)
        f = fit(x, y, seed, wall=wall)
        rows.append((f.low <= m <= f.high, math.isfinite(f.high - f.low), f.stderr, f.optimum - m))
    covered, bounded, stderr, off = np.array(rows, float).T
    inside = covered[bounded > 0]
    return Measured(
        covered.mean(),
        bounded.mean(),
        inside.mean() if len(inside) else math.nan,
        float(np.nanmedian(stderr)),
        float(off.mean()),
        float(off.std()),
    )


class Told(NamedTuple):
    transfers: float
    drifts: float
    covered: float


def verdicts(
    slope: float,
    se: float,
    n: int,
    kind: str = "quadratic",
    sizes: int = 4,
    seeds: int = 3,
    scatter: float = 0.0,
    rng: int = 0,
) -> Told:
    """How often each verdict is given, and how often the drift's interval holds the slope, over `sizes`
    doublings."""
    draw, noise = np.random.default_rng(rng), noise_for(kind, se, seeds)
    count, covered = Counter(), 0
    for _ in range(n):
        made = [
            runs(draw, kind, noise, seeds, True, -0.75 - slope * i + scatter * draw.standard_normal())
            for i in range(sizes)
        ]
        fits = [fit(x, y, seed, wall=wall) for x, y, seed, wall, _ in made]
        d = drift(
            fits, range(sizes), inflation=seed_inflation([m[:3] for m in made], fits, [m[3] for m in made])
        )
        count[verdict(d)] += 1
        covered += d.low <= -slope <= d.high
    return Told(count["transfers"] / n, count["drifts"] / n, covered / n)


class Counted(NamedTuple):
    """How often the exponent's interval held the truth, how often the rule that is true was refuted, and how
    often the critical batch was in its interval (nan where there is none)."""

    covered: float
    refuted: float
    critical: float


def table(
    rng: np.random.Generator, kind: str, noise: float, over: str, optimum, sizes: list[int], seeds: int = 3
):
    """Runs over batch or tokens, as a store has them: rates behind the wall have diverged."""
    rows = []
    for size in sizes:
        x, y, seed, wall, _ = runs(rng, kind, noise, seeds, True, optimum(size))
        batch, tokens = (size, 2**20) if over == "batch" else (16, 16 * size)
        same = dict(
            scheme="mup", width=8, depth=2, optimizer="adamw", batch_size=batch, steps=tokens // batch
        )
        rows += [
            same | dict(state="done", seed=s, lr=2.0**a, train_loss=b)
            for a, b, s in zip(x, y, seed, strict=True)
        ]
        rows += [
            same | dict(state="diverged", seed=s, lr=2.0**a, train_loss=math.nan)
            for a in RATES[wall <= RATES]
            for s in range(seeds)
        ]
    return pd.DataFrame(rows)


def counted(
    kind: str, over: str, slope: float, se: float, n: int, critical: int = 0, rng: int = 0
) -> Counted:
    """Coverage over a count axis of 16 (with a critical batch: 64) times, the whole way from a table of runs.

    Args:
        slope: the true exponent; the best rate is 2^-1.25 in the middle of the axis, or from `critical` on.
        critical: of 8 to 512, the batch from which on the optimum stays; 0: none.
    """
    import trimtab

    draw, noise = np.random.default_rng(rng), noise_for(kind, se, 3)
    sizes = [8 * 2**k for k in range(7 if critical else 5)]
    middle = math.log2(critical or sizes[2])
    covered, refuted, held = 0, 0, 0
    for _ in range(n):

        def optimum(size: int) -> float:
            return -1.25 + slope * (min(math.log2(size), math.log2(critical or size)) - middle)

        t = trimtab.transfer(table(draw, kind, noise, over, optimum, sizes), over=over)
        covered += t.drift.low <= slope <= t.drift.high
        refuted += any(r.verdict == "refuted" for r in t.rules if r.rule == "sde" and r.exponent == slope)
        held += bool(critical) and t.critical.low <= critical <= t.critical.high
    return Counted(covered / n, refuted / n, held / n if critical else math.nan)
