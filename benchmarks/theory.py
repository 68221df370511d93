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


def error(result) -> float:
    return float(np.linalg.norm(result.stderr.f) / np.linalg.norm(result.f))


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

    # Finite networks carry an O(1/N) error no ensemble averages away, so width is as much a part of accuracy as seeds:
    # N = 1000 leaves about .1 % in f. Seeds are then chosen to give the solver's standard error.
    theory = error(solve(**task))
    pilot = simulate(width=1000, seeds=12, dtype=torch.float32, **task)
    seeds = max(2, round(12 * (error(pilot) / theory) ** 2))
    pair = interleaved({"theory": (solve, task), "networks": (simulate, task | {"width": 1000, "seeds": seeds, "dtype": torch.float32})}, 3)
    print(f"accuracy {100 * theory:.2f} % in f: solve {pair['theory']:.2f} s; {seeds} networks, N = 1000: {pair['networks']:.2f} s;"
          f" ratio {pair['networks'] / pair['theory']:.1f}")  # fmt: skip

    if options.large:
        task = data(16) | CASE | {"steps": 100, "depth": 8}
        task["lr"] = 0.3 * 2 * 16 / np.linalg.eigvalsh(lazy(task["x"], depth=8, activation="tanh").ntk)[-1]
        taken, _ = timed(solve, **task)
        print(f"P=16 T=100 L=8 S=8000: {taken:.0f} s, peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
