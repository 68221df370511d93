"""Speed of the mean field solver, by itself and against finite networks of the same accuracy.

    OMP_NUM_THREADS=1 python benchmarks/theory.py [--large]

All comparisons are ratios within one run, with the contestants interleaved, so that a busy machine slows
both. --large adds P = 16, T = 100, L = 8 and reports its peak memory.
"""

import argparse
import resource
import statistics
import time

import numpy as np
import torch

from trimtab.theory import lazy, simulate, solve

CASE = {"activation": "tanh", "steps": 20, "depth": 4}


def data(points: int) -> dict:
    draw = np.random.default_rng(0)
    return {"x": draw.standard_normal((points, 10)), "y": draw.choice([-1.0, 1.0], points)}


def timed(function, **arguments):
    start = time.perf_counter()
    result = function(**arguments)
    return time.perf_counter() - start, result


def interleaved(contestants: dict, repeats: int = 5) -> dict[str, float]:
    """Median seconds of each (function, arguments), taken in turns."""
    seconds = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, (function, arguments) in contestants.items():
            seconds[name].append(timed(function, **arguments)[0])
    return {name: statistics.median(values) for name, values in seconds.items()}


WIDTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)


def same_accuracy(task: dict) -> None:
    """Seconds to reach the accuracy in f that `solve` really has: its distance from the mean of solutions
    with 96 times the samples.

    A finite ensemble has error^2 = (c/N)^2 + v/(N seeds), so it must be wide *and* many; both constants are
    measured on 8192 networks of N = 64, whose mean is known ten times better than it is off. Every width is
    priced with the seeds it needs and the cheapest counts. Matrices in float32, where that is twice as fast,
    and as many networks side by side as fit in the cache.
    """
    truth = np.mean([solve(**task | {"samples": 128000, "seed": 1000 + i}).f for i in range(6)], axis=0)
    scale = np.linalg.norm(truth)
    small = simulate(width=64, seeds=8192, dtype=torch.float32, **task)
    noise2 = (np.linalg.norm(small.stderr.f) / scale) ** 2
    shift = 64 * max(0.0, (np.linalg.norm(small.f - truth) / scale) ** 2 - noise2) ** 0.5
    spread = 64 * 8192 * noise2
    print(f"finite networks: error^2 = ({shift:.2f}/N)^2 + {spread:.2f}/(N seeds), relative to |f|")
    for samples, repeats in ((8000, 16), (32000, 8), (128000, 4)):
        ours, own, theirs = [], [], {width: [] for width in WIDTHS}
        for seed in range(repeats):
            seconds, found = timed(solve, **task | {"seed": seed, "samples": samples})
            ours.append(seconds)
            own.append(np.linalg.norm(found.f - truth) / scale)
            for width, times in theirs.items():
                if seed < 4:
                    count = max(1, 16 * 256**2 // width**2)
                    times.append(
                        timed(simulate, width=width, seeds=count, dtype=torch.float32, **task)[0] / count
                    )
        target, mine = float(np.sqrt(np.mean(np.square(own)))), statistics.median(ours)
        print(f"solve, S = {samples}: {100 * target:.3f} % from the truth (rms of {repeats}) in {mine:.2f} s")
        prices = {}
        for width, times in theirs.items():
            room = target**2 - (shift / width) ** 2
            if room > 0:
                prices[width] = max(1.0, spread / width / room) * statistics.median(times)
        best = min(prices, key=lambda width: prices[width])
        print("  seconds by N: " + ", ".join(f"{width}: {price:.1f}" for width, price in prices.items()))
        print(
            f"  cheapest ensemble of the same accuracy, N = {best}: {prices[best]:.2f} s, "
            f"{prices[best] / mine:.1f} times solve's"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = data(2) | CASE | {"lr": 0.5}
    solve(**task)

    seconds = interleaved(
        {
            "S=8000 L=4 P=2 T=20": (solve, task),
            "twice the depth": (solve, task | {"depth": 8}),
            "four times the depth": (solve, task | {"depth": 16}),
            "four times the samples": (solve, task | {"samples": 32000}),
            "sixteen times the samples": (solve, task | {"samples": 128000}),
        }
    )
    first = seconds["S=8000 L=4 P=2 T=20"]
    for name, value in seconds.items():
        print(f"{name:28s} {value:6.2f} s   x {value / first:5.2f}")

    same_accuracy(task)

    if options.large:
        task = data(16) | CASE | {"steps": 100, "depth": 8}
        task["lr"] = 0.3 * 2 * 16 / np.linalg.eigvalsh(lazy(task["x"], depth=8, activation="tanh").ntk)[-1]
        taken, _ = timed(solve, **task)
        print(
            f"P=16 T=100 L=8 S=8000: {taken:.0f} s, peak memory "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
        )


if __name__ == "__main__":
    main()
