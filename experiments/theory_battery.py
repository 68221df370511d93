"""Random problems, solved and simulated: how often is the infinite network within the stated bounds of wide
ones?

    OMP_NUM_THREADS=1 python experiments/theory_battery.py [--cases 12] [--seed 0]

A case counts as agreeing in a field if the distance is below 1 % (f), 2 % (loss), 3 % (NTK), or twice the
combined standard error in that norm.
"""

import argparse

import numpy as np
import torch

from trimtab.theory import lazy, simulate, solve

BOUNDS = {"f": 0.01, "loss": 0.02, "ntk": 0.03}


def draw_case(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict]:
    points = int(draw.integers(2, 7))
    x = draw.standard_normal((points, int(draw.integers(2, 20))))
    y = draw.standard_normal(points)
    case = {
        "depth": int(draw.integers(1, 9)),
        "activation": str(draw.choice(["tanh", "relu", "erf", "gelu"])),
        "gamma0": float(np.exp(draw.uniform(np.log(0.3), np.log(3)))),
        "alpha": float(draw.choice([0.5, 0.75, 1.0])),
        "momentum": float(draw.choice([0.0, 0.5])),
        "weight_decay": float(draw.choice([0.0, 0.0, 0.2])),
        "steps": int(draw.integers(15, 41)),
    }
    top = np.linalg.eigvalsh(
        lazy(x, depth=case["depth"], activation=case["activation"], alpha=case["alpha"]).ntk
    )[-1]
    case["lr"] = float(
        draw.uniform(0.05, 0.2) * 2 * points / top * (1 - case["momentum"]) / max(1.0, case["gamma0"])
    )
    return x, y, case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draw = np.random.default_rng(options.seed)
    good = dict.fromkeys(BOUNDS, 0)
    for _ in range(options.cases):
        x, y, case = draw_case(draw)
        theory, nets = solve(x, y, **case), simulate(x, y, width=1000, seeds=16, dtype=torch.float32, **case)
        cells = []
        for name, bound in BOUNDS.items():
            truth = getattr(nets, name)
            off = np.linalg.norm(getattr(theory, name) - truth) / np.linalg.norm(truth)
            error = np.linalg.norm(np.hypot(theory.stderr[name], nets.stderr[name])) / np.linalg.norm(truth)
            good[name] += bool(off < max(bound, 2 * error))
            cells.append(f"{name} {100 * off:5.2f} % ({off / error:4.2f} stderr)")
        summary = " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in case.items())
        print("  ".join(cells), f"| P={len(y)} {summary}", flush=True)
    print("agreeing:", ", ".join(f"{name} {count}/{options.cases}" for name, count in good.items()))


if __name__ == "__main__":
    main()
