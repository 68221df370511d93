"""Cases nobody asked for: the solver beside wide networks at unusual settings.

    OMP_NUM_THREADS=1 python experiments/theory_unusual.py [--width 1000] [--networks 24] [--samples 8000]

For every case the distance over the trajectory of f, loss, NTK (and f at test points), in %, and in units of
the combined standard error. "within" is 1 % (f, f_test), 2 % (loss), 3 % (NTK) or twice the combined standard
error.
"""

import argparse
import math

import numpy as np
import torch

from trimtab.theory import simulate, solve

BOUNDS = {"f": 0.01, "loss": 0.02, "ntk": 0.03, "f_test": 0.01}


def cases() -> dict[str, dict]:
    draw = np.random.default_rng(7)
    x = draw.standard_normal((4, 12))
    y = np.array([1.0, -1.0, 0.5, -0.2])
    base = {"x": x, "y": y, "depth": 3, "activation": "tanh", "lr": 0.4, "steps": 30}
    near = x[[0, 0, 1, 2]] + 1e-3 * draw.standard_normal((4, 12))
    cosine = 0.4 * (1 + np.cos(np.pi * np.arange(30) / 30)) / 2
    pairs = [[t % 4, (t + 1) % 4] for t in range(30)]
    labels = np.full((4, 3), 1 / 3) + 0.3 * np.eye(3)[[0, 1, 2, 0]] - 0.1
    changes = {
        "softmax, 3 outputs, batches of 2": {
            "loss": "softmax", "y": [0, 1, 2, 1], "batches": pairs, "activation": "relu",
        },
        "softmax, soft labels, momentum .9": {"loss": "softmax", "y": labels, "momentum": 0.9, "lr": 0.05},
        "mse, 3 outputs": {"y": draw.standard_normal((4, 3)), "activation": "erf"},
        "logistic, relu, momentum .9": {
            "loss": "logistic", "y": [1, 0, 1, 0], "momentum": 0.9, "lr": 0.1, "activation": "relu",
        },
        "minibatches of 1, L2": {"batches": [[t % 4] for t in range(30)], "weight_decay": 0.5, "lr": 0.15},
        "momentum .9, relu": {"momentum": 0.9, "lr": 0.05, "activation": "relu"},
        "cosine schedule, gelu": {"lr": cosine, "activation": "gelu"},
        "warm-up from 0": {"lr": np.minimum(1, np.arange(30) / 10) * 0.5},
        "test points, one equal, one opposite": {
            "x_test": np.stack([x[1], -x[1], draw.standard_normal(12)]), "activation": "relu",
        },
        "test points, L2, erf": {
            "x_test": draw.standard_normal((5, 12)), "activation": "erf", "weight_decay": 0.2,
        },
        "gamma0 .1": {"gamma0": 0.1, "activation": "relu"},
        "gamma0 3": {"gamma0": 3.0, "lr": 0.15, "activation": "relu"},
        "alpha .75": {"alpha": 0.75, "activation": "relu"},
        "alpha .3": {"alpha": 0.3, "lr": 0.15},
        "beta 2": {"beta": 2.0, "lr": 0.1},
        "depth 1": {"depth": 1, "activation": "relu"},
        "depth 8": {"depth": 8, "activation": "erf"},
        "one point": {"x": x[:1], "y": y[:1], "activation": "relu"},
        "one dimension": {"x": x[:, :1], "y": y, "lr": 0.2},
        "sin": {"activation": torch.sin},
        "leaky relu": {"activation": lambda h: torch.nn.functional.leaky_relu(h, 0.2)},
        "softplus": {"activation": torch.nn.functional.softplus, "lr": 0.1},
        "large inputs": {"x": 3 * x, "lr": 0.06},
        "small inputs": {"x": 0.2 * x, "lr": 1.5},
        "unequal inputs": {"x": x * np.array([[0.1], [1.0], [2.0], [0.5]]), "lr": 0.15, "activation": "relu"},
        "a repeated input, two targets": {"x": x[[0, 0, 1, 2]], "activation": "relu"},
        "nearly collinear": {"x": near, "activation": "relu"},
        "opposite inputs": {"x": np.concatenate([x[:2], -x[:2]]), "activation": "relu"},
        "a zero input": {"x": np.concatenate([x[:3], np.zeros((1, 12))]), "activation": "gelu"},
        "infinite depth against 32": {"depth": math.inf, "steps": 10},
    }  # fmt: skip
    return {name: base | change for name, change in changes.items()}


def compare(name: str, case: dict, width: int, networks: int, samples: int, first: int) -> str:
    theory = solve(**case, samples=samples)
    finite = case | {"depth": 32, "steps": case["steps"]} if math.isinf(case["depth"]) else case
    nets = simulate(**finite, width=width, seeds=networks, seed=first, dtype=torch.float32)
    parts, good = [], True
    for field, bound in BOUNDS.items():
        truth, ours = getattr(nets, field), getattr(theory, field)
        if truth is None:
            continue
        error = np.hypot(theory.stderr[field], nets.stderr[field])
        if theory.depth_error is not None:
            error = error + theory.depth_error[field] + np.abs(truth) / 32
        size = np.linalg.norm(truth)
        off, own = np.linalg.norm(ours - truth) / size, np.linalg.norm(error) / size
        good &= off < max(bound, 2 * own)
        parts.append(f"{field} {100 * off:5.2f} % {off / own:4.1f}")
    return f"{name:38s} {'within' if good else 'OFF   '}  {'   '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--networks", type=int, default=24)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the first network: networks are shared by all cases"
    )
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in cases().items():
        if options.only in name:
            print(
                compare(name, case, options.width, options.networks, options.samples, options.first),
                flush=True,
            )


if __name__ == "__main__":
    main()
