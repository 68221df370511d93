"""Speed of the mean field solver, by itself and against finite networks of the same accuracy.

    OMP_NUM_THREADS=1 python benchmarks/theory.py [--large]

All comparisons are ratios within one run, with the contestants interleaved, so that a busy machine slows both. --large adds P = 16, T = 100, L = 8
and reports its peak memory.
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


def same_accuracy(task: dict) -> None:
    """Seconds to reach the accuracy in f that `solve` really has: its distance from a solution with 64 times the samples.

    A finite ensemble has error^2 = (c/N)^2 + v/(N seeds), so it must be wide *and* many; both constants are measured on 400 networks of N = 125.
    Each width that can reach the solver's error at all is priced with the seeds it needs. Matrices in float32, where that is twice as fast.
    """
    truth = solve(**task | {"samples": 128 * 8000, "seed": 1000}).f
    scale = np.linalg.norm(truth)
    small = simulate(width=125, seeds=400, dtype=torch.float32, **task)
    noise2 = (np.linalg.norm(small.stderr.f) / scale) ** 2
    shift = 125 * max(0.0, (np.linalg.norm(small.f - truth) / scale) ** 2 - noise2) ** 0.5
    spread = 125 * 400 * noise2
    print(f"finite networks: error^2 = ({shift:.2f}/N)^2 + {spread:.2f}/(N seeds), relative to |f|")
    for samples, seeds in ((8000, 6), (128000, 3)):
        ours, own, theirs = [], [], {width: [] for width in (250, 500, 1000, 2000, 4000)}
        for seed in range(seeds):
            seconds, found = timed(solve, **task | {"seed": seed, "samples": samples})
            ours.append(seconds)
            own.append(np.linalg.norm(found.f - truth) / scale)
            for width, times in theirs.items():
                count = max(1, 8 * 250**2 // width**2)
                times.append(timed(simulate, width=width, seeds=count, dtype=torch.float32, **task)[0] / count)
        target, mine = float(np.sqrt(np.mean(np.square(own)))), statistics.median(ours)
        print(f"solve, S = {samples}: {100 * target:.3f} % from the truth in {mine:.2f} s")
        ratios = []
        for width, times in theirs.items():
            room = target**2 - (shift / width) ** 2
            if room > 0:
                price = max(1.0, spread / width / room) * statistics.median(times)
                ratios.append(price / mine)
                print(f"  N = {width:4d}: {spread / width / room:5.0f} networks, {price:6.1f} s, ratio {ratios[-1]:.1f}")
            else:
                print(f"  N = {width:4d}: cannot, its bias is {100 * shift / width:.2f} %")
        print(f"  cheapest ensemble of the same accuracy / solve: {min(ratios, default=float('inf')):.1f}")


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
        print(f"P=16 T=100 L=8 S=8000: {taken:.0f} s, peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
