r"""Sigma_L while training: N x the variance over networks of f and of the NTK, over widths and depths, with
intervals.

    OMP_NUM_THREADS=1 python experiments/theory_sigma.py [--sites 600000] [--edge 0.3] \
        [--activations tanh,relu] [--sizes 32x4,...]

Two points, ten steps; networks without matrices (`simulate(matrices=False)`), as many of each width as make
`sites` sites, at least 256. A variance of n draws is known to sqrt((kurtosis - 1)/n); the intervals are 95 %
from ten batches of networks (Student's t). f is its mean over points after the last step, relative to |f|^2
of the limit; the NTK its trace before the first and after the last step, relative to its square.
"""

import argparse
import math

import numpy as np
import torch

from trimtab.theory import fluctuate, lazy, simulate
from trimtab.theory.finite import init_fluctuation

BATCHES, STUDENT = 10, 2.262


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    return draw.standard_normal((2, 10)), np.array([1.0, -1.0])


def row(activation: str, width: int, depth: int, sites: int, gamma0: float, edge: float) -> str:
    x, y = data()
    count = max(256, sites // width) // BATCHES
    rate = edge * 2 * len(y) / np.linalg.eigvalsh(lazy(x, depth=depth, activation=activation).ntk)[-1]
    found = []
    for batch in range(BATCHES):
        nets = simulate(
            x,
            y,
            width=width,
            seeds=count,
            seed=10**6 * (1 + batch),
            depth=depth,
            activation=activation,
            lr=rate,
            steps=10,
            gamma0=gamma0,
            matrices=False,
        )
        spread, f, kernel = nets.variance, nets.f, nets.ntk
        found.append(
            [spread.f[t].sum() / np.sum(f[t] ** 2) for t in (1, 3, 10)]
            + [np.diagonal(spread.ntk[t]).sum() / np.sum(np.diagonal(kernel[t]) ** 2) for t in (0, 3, 10)]
        )
    mean, half = np.mean(found, 0), STUDENT * np.std(found, 0, ddof=1) / math.sqrt(BATCHES)
    return (
        "  ".join(f"{m:6.2f} ± {h:4.2f}" for m, h in zip(mean, half, strict=True)) + f"   {BATCHES * count}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=600_000)
    parser.add_argument("--gamma0", type=float, default=1.0)
    parser.add_argument("--edge", type=float, default=0.3, help="rate in units of the lazy edge of stability")
    parser.add_argument("--activations", default="tanh,relu")
    parser.add_argument("--sizes", default="32x4,128x4,512x4,2048x4,512x1,512x2,512x8,512x16")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("at the start, one point, no sampling: N Var / mean^2 of |h|^2/N, of Phi, G and the NTK")
    for activation in ("linear", "relu", "tanh", "erf", "gelu"):
        for depth in (1, 4, 16, 64, math.inf):
            s = fluctuate(depth=depth, activation=activation)
            ratios = (
                s.stream[-1] / s.mean_stream[-1] ** 2,
                s.phi[-1] / s.mean_phi[-1] ** 2,
                s.g[0] / s.mean_g[0] ** 2,
                s.ntk / s.mean_ntk**2,
            )
            closed = f"   closed form {init_fluctuation(depth):.4f}" if activation == "linear" else ""
            print(
                f"{activation:7s} L = {depth:<4} " + "  ".join(f"{r:8.4f}" for r in ratios) + closed,
                flush=True,
            )
    print(
        "\nwhile training: N Var / mean^2 of f after 1, 3, 10 steps, of the NTK's diagonal after 0, 3, 10, "
        "with 95 % intervals; networks"
    )
    for activation in options.activations.split(","):
        for width, depth in ([int(n) for n in size.split("x")] for size in options.sizes.split(",")):
            print(
                f"{activation:5s} N = {width:<5d} L = {depth:<3d} "
                f"{row(activation, width, depth, options.sites, options.gamma0, options.edge)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
