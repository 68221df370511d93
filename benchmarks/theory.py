"""Speed of the mean field solver, by itself and against finite networks of the same accuracy.

    OMP_NUM_THREADS=1 python benchmarks/theory.py [--scaling] [--large]

--scaling adds what depth and samples cost; --large adds P = 16, T = 100, L = 8 and reports its peak memory.
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from records import Row, compare, in_turns, main, seconds

from trimtab.theory import lazy, simulate, solve

CASE = {"activation": "tanh", "steps": 20, "depth": 4}


def data(points: int) -> dict:
    draw = np.random.default_rng(0)
    return {"x": draw.standard_normal((points, 10)), "y": draw.choice([-1.0, 1.0], points)}


WIDTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)


def constants(task: dict, truth: np.ndarray, seeds: int) -> tuple[float, float]:
    """(c, v) of a finite ensemble's error^2 = (c/N)^2 + v/(N seeds), relative to |f|.

    Measured on networks of N = 64, whose mean over 8192 is known ten times better than it is off.
    """
    scale = np.linalg.norm(truth)
    small = simulate(width=64, seeds=seeds, dtype=torch.float32, **task)
    noise2 = (np.linalg.norm(small.stderr.f) / scale) ** 2
    shift = 64 * max(0.0, (np.linalg.norm(small.f - truth) / scale) ** 2 - noise2) ** 0.5
    return shift, 64 * seeds * noise2


def accuracy_rows(tiny: bool) -> Iterator[Row]:
    """Seconds to reach the accuracy in f that `solve` really has: its distance from the mean of solutions
    with many more samples.

    An ensemble must be wide *and* many. Every width is priced with the seeds it needs and the cheapest
    counts. Matrices in float32, where that is twice as fast, and as many networks side by side as fit in the
    cache.
    """
    task = data(2) | CASE | {"lr": 0.5} | ({"steps": 3, "depth": 2} if tiny else {})
    much, draws, seeds = (4000, 2, 64) if tiny else (128000, 6, 8192)
    truth = np.mean([solve(**task | {"samples": much, "seed": 1000 + i}).f for i in range(draws)], axis=0)
    shift, spread = constants(task, truth, seeds)
    for samples, rounds in ((1000, 1),) if tiny else ((8000, 10), (32000, 8), (128000, 6)):
        own: list[float] = []

        def ours(samples: int = samples, own: list[float] = own) -> None:
            found = solve(**task | {"seed": len(own), "samples": samples})
            own.append(float(np.linalg.norm(found.f - truth) / np.linalg.norm(truth)))

        def finite(width: int) -> None:
            simulate(width=width, seeds=together(width), dtype=torch.float32, **task)

        sides: dict[str, Callable[[], object]] = {"trimtab": ours}
        sides |= {str(width): lambda width=width: finite(width) for width in WIDTHS[:: 4 if tiny else 1]}
        taken = in_turns(sides, rounds)
        target = float(np.sqrt(np.mean(np.square(own))))
        prices = {}
        for width in map(int, list(sides)[1:]):
            room = target**2 - (shift / width) ** 2
            if room > 0:
                networks = max(1.0, spread / width / room)
                prices[width] = [networks / together(width) * t for t in taken[str(width)]]
        if not prices:
            continue
        best = min(prices, key=lambda width: statistics.median(prices[width]))
        peer = f"an ensemble of networks, {best} wide"
        what = f"f of the infinite network to {100 * target:.2g} % ({samples} samples)"
        why = (
            f"an ensemble's error^2 is ({shift:.2f}/N)^2 + {spread:.2f}/(N seeds); the cheapest width counts"
        )
        yield from compare({"trimtab": taken["trimtab"], peer: prices[best]}, what, {peer: why}, 1, "s")


def together(width: int) -> int:
    """Networks side by side that fit in the cache."""
    return max(1, 16 * 256**2 // width**2)


def rows(tiny: bool = False) -> Iterator[Row]:
    torch.set_num_threads(1)
    yield from accuracy_rows(tiny)


def scaling() -> None:
    """What more depth and more samples cost, over the smallest case."""
    task = data(2) | CASE | {"lr": 0.5}
    cases = {
        "S=8000 L=4 P=2 T=20": {},
        "twice the depth": {"depth": 8},
        "four times the depth": {"depth": 16},
    }
    cases |= {"four times the samples": {"samples": 32000}, "sixteen times the samples": {"samples": 128000}}
    taken = in_turns({name: lambda more=more: solve(**task | more) for name, more in cases.items()}, 5)
    first = statistics.median(taken["S=8000 L=4 P=2 T=20"])
    for name, values in taken.items():
        print(f"{name:28s} {statistics.median(values):6.2f} s   x {statistics.median(values) / first:5.2f}")


def large() -> None:
    task = data(16) | CASE | {"steps": 100, "depth": 8}
    task["lr"] = 0.3 * 2 * 16 / np.linalg.eigvalsh(lazy(task["x"], depth=8, activation="tanh").ntk)[-1]
    taken = seconds(lambda: solve(**task))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"P=16 T=100 L=8 S=8000: {taken:.0f} s, peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main(rows)
    if "--scaling" in sys.argv:
        scaling()
    if "--large" in sys.argv:
        large()
