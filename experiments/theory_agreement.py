"""The infinitely wide network against wide finite ones, over activations, richness, branch exponents, losses
and optimizers.

    OMP_NUM_THREADS=1 python experiments/theory_agreement.py [--only NAME] [--samples 8000] [--seeds 24]

Prints for every case the relative distance |theory - ensemble| / |ensemble| over the trajectory of f, loss
and NTK, the same distance in units of the combined standard error (root mean square over entries), and the
distance of f and loss without responses. Rates are a fraction `edge` of 2 P / lambda_max of the lazy kernel,
small where the kernel grows much: past the edge of stability, finite networks themselves scatter by tens of
percent and there is nothing to compare. float32 is used for the N x N matrices only.
"""

import argparse
import time

import numpy as np
import torch

from trimtab.theory import lazy, simulate, solve

BASE = {"depth": 4, "points": 3, "steps": 40, "activation": "tanh", "width": 1000, "edge": 0.3}
CASES = {
    "linear": {"activation": "linear", "edge": 0.2},
    "tanh": {},
    "relu": {"activation": "relu", "width": 2000},
    "erf": {"activation": "erf"},
    "gelu": {"activation": "gelu"},
    "tanh gamma0=.3": {"gamma0": 0.3},
    "tanh gamma0=3": {"gamma0": 3.0, "edge": 0.15},
    "relu gamma0=.3": {"activation": "relu", "gamma0": 0.3},
    "relu gamma0=3": {"activation": "relu", "gamma0": 3.0, "edge": 0.05},
    "erf gamma0=3": {"activation": "erf", "gamma0": 3.0, "edge": 0.15},
    "tanh alpha=1": {"alpha": 1.0},
    "relu alpha=1": {"activation": "relu", "alpha": 1.0},
    "erf alpha=1 gamma0=3": {"activation": "erf", "alpha": 1.0, "gamma0": 3.0, "edge": 0.15},
    "tanh P=8": {"points": 8, "edge": 0.15},
    "relu P=8": {"activation": "relu", "points": 8, "edge": 0.15},
    "relu P=2 L=8": {"activation": "relu", "points": 2, "depth": 8, "edge": 0.2},
    "heavy ball .8": {"momentum": 0.8, "edge": 0.06},
    "L2 .3": {"weight_decay": 0.3, "edge": 0.2},
    "batch 1": {"batches": 1, "edge": 0.15},
    "logistic": {"loss": "logistic", "edge": 1.0},
    "softmax 3": {"loss": "softmax", "edge": 1.0},
    "L=32 tanh": {"depth": 32, "width": 600, "steps": 20},
}


def data(points: int, loss: str, inputs: int = 10):
    draw = np.random.default_rng(1)
    x = draw.standard_normal((points, inputs))
    y = draw.choice([-1.0, 1.0], points) if loss != "softmax" else np.arange(points) % 3
    return x, y


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def deviation(name: str, theory, nets) -> float:
    """Root mean square of (theory - ensemble) / combined standard error, over entries that move."""
    error = np.hypot(theory.stderr[name], nets.stderr[name])
    moving = error > 1e-3 * error.max()
    return float(
        np.sqrt(np.mean(((getattr(theory, name) - getattr(nets, name))[moving] / error[moving]) ** 2))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "case                     f %    loss %  ntk %   | in stderr: f  loss  ntk | no responses: "
        "f %  loss % | solve s  nets s"
    )
    for name, change in CASES.items():
        if options.only not in name:
            continue
        case = BASE | change
        points, width, edge = case.pop("points"), case.pop("width"), case.pop("edge")
        x, y = data(points, case.get("loss", "mse"))
        top = np.linalg.eigvalsh(
            lazy(x, depth=case["depth"], activation=case["activation"], alpha=case.get("alpha", 0.5)).ntk
        )[-1]
        case["lr"] = edge * 2 * points / top
        if "batches" in case:
            case["batches"] = [[t % points] for t in range(case["steps"])]
        clock = [time.perf_counter()]
        theory = solve(x, y, samples=options.samples, **case)
        clock.append(time.perf_counter())
        nets = simulate(x, y, width=width, seeds=options.seeds, dtype=torch.float32, **case)
        clock.append(time.perf_counter())
        bare = solve(x, y, samples=options.samples, responses=False, **case)
        row = [100 * distance(getattr(theory, k), getattr(nets, k)) for k in ("f", "loss", "ntk")]
        sigma = [deviation(k, theory, nets) for k in ("f", "loss", "ntk")]
        without = [100 * distance(getattr(bare, k), getattr(nets, k)) for k in ("f", "loss")]
        seconds = np.diff(clock)
        print(
            f"{name:22s} {row[0]:6.2f} {row[1]:7.2f} {row[2]:7.2f}   | {sigma[0]:9.2f} {sigma[1]:5.2f} "
            f"{sigma[2]:5.2f}"
            f"      | {without[0]:9.2f} {without[1]:9.2f}      | {seconds[0]:5.1f} {seconds[1]:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
