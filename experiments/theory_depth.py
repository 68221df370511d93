r"""How fast a network of depth L comes to that of infinite depth: F(L) = F(inf) (1 + a/L + b/L^2 + ...).

    OMP_NUM_THREADS=1 python experiments/theory_depth.py [--size 16000] [--blocks 8] \
        [--depths 2,4,8,16,32,64] [--gamma0 1]

First the lazy limit, without noise and with F(inf) known: f of training with the frozen kernel. Then trained
networks (two points, ten steps), where F(L) is f over the trajectory projected on that of the deepest. All
depths share their noise: a branch of the shallow network gets the sum of what the branches of the deepest get
that it stands for. Then a, b, ... come from differences F(2L) - F(L). L x error must tend to the constant a,
and L^2 x the error of Richardson's 2 F(2L) - F(L) to -b/2.
"""

import argparse
import math

import numpy as np
import torch

from trimtab.theory import fields, lazy
from trimtab.theory.anchor import Anchor
from trimtab.theory.dynamics import train
from trimtab.theory.fields import GaussianSites
from trimtab.theory.problem import problem

STEPS = 10


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    return draw.standard_normal((2, 10)), np.array([1.0, -1.0])


def table(depths: list[int], value: np.ndarray, limit: float) -> None:
    print("   L   error, %   L x error, %   L^2 x Richardson's, %")
    for i, depth in enumerate(depths):
        off = 100 * (value[i] / limit - 1)
        left = (
            f"{100 * depth**2 * ((2 * value[i + 1] - value[i]) / limit - 1):12.2f}"
            if i + 1 < len(depths)
            else ""
        )
        print(f"{depth:4d}   {off:8.4f}   {depth * off:10.3f}   {left}")


class Fine:
    """Noise of the layers of a network of `finest` branches, summed over those that make one branch of a
    shallower one: F(2L) - F(L) is then less noisy than either. `at` = (step, direction, layer) is set before
    each draw."""

    frame: np.ndarray

    def __init__(self, seed: int, depth: int, finest: int, rows: int):
        self.seed, self.per, self.rows, self.at = seed, finest // depth, rows, (0, 0, 0)

    def standard_normal(self, shape: tuple[int, int]) -> np.ndarray:
        step, direction, layer = self.at
        keys = [
            [self.seed, 1 + step, 1 + direction, 1 + k]
            for k in range(layer * self.per, (layer + 1) * self.per)
        ]
        total = sum(
            np.random.default_rng(key).standard_normal((self.rows, shape[1])) for key in keys
        ) / math.sqrt(self.per)
        return self.frame[:, self.rows - shape[0] :].T @ total


def framed(covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvectors, remembered: noise is given in the frame of the points, not in that of eigenvectors, which
    turn or flip from depth to depth."""
    lam, vectors = torch.linalg.eigh(covariance)
    Fine.frame = vectors[0].numpy()
    return lam, vectors


def coupled(task, finest: int, seeds: list[int], size: int) -> np.ndarray:
    """f (blocks, T+1, P) of the limit at one depth."""
    anchor = Anchor(task) if Anchor.fits(task, size // 2) else None
    sites = GaussianSites(task, size, seeds, responses=True, tol=1e-3, share=0.5, passes=1, anchor=anchor)
    sources = [Fine(seed, int(task.depth), finest, task.points) for seed in seeds]
    sites.even.generators = sites.odd.generators = sources
    clock = [-1]

    def sends(send, direction):
        def sent(layer, seen):
            clock[0] += direction == 0 and layer == 0
            for source in sources:
                source.at = (clock[0], direction, layer)
            return send(layer, seen)

        return sent

    sites.forward, sites.backward = sends(sites.forward, 0), sends(sites.backward, 1)
    return train(task, sites).f[..., 0].numpy()


def differences(depths: list[int], value: np.ndarray, order: int) -> None:
    """Fit of F(2L) - F(L) = -a/2L - 3b/4L^2 - ..., block by block; errors from the blocks' scatter."""
    blocks = len(value)
    step = np.diff(value, axis=1)
    noise = step.std(0, ddof=1)
    rows = np.array(
        [[(2.0**-k - 1) * float(depth) ** -k for k in range(1, order + 1)] for depth in depths[:-1]]
    )
    found = np.array([np.linalg.lstsq(rows / noise[:, None], each / noise, rcond=None)[0] for each in step])
    limit = value[:, -1] - found @ np.array([float(depths[-1]) ** -k for k in range(1, order + 1)])
    scale = 100 / limit.mean()

    def tell(several: np.ndarray) -> str:
        return f"{scale * several.mean():8.2f} ± {scale * several.std(ddof=1) / math.sqrt(blocks):.2f}"

    chi2 = float(np.sum(((step.mean(0) - rows @ found.mean(0)) / noise) ** 2) * blocks)
    print(
        f"order {order}: chi^2 = {chi2:.1f} of {len(depths) - 1 - order}; "
        f"in % of F(inf) = {limit.mean():.5f}:"
        + "".join(f"  {tell(c)} (L^-{k})" for k, c in enumerate(found.T, 1))
    )
    print("   L   error, %           L x error, %        2L (F(L) - F(2L)), %    L^2 x Richardson's, %")
    for i, depth in enumerate(depths):
        line = f"{depth:4d}  {tell(value[:, i] - limit)}   {tell(depth * (value[:, i] - limit))}"
        if i + 1 < len(depths):
            line += (
                f"   {tell(-2 * depth * step[:, i])}         "
                f"{tell(depth**2 * (value[:, i + 1] + step[:, i] - limit))}"
            )
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=16000)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--depths", default="2,4,8,16,32,64")
    parser.add_argument("--gamma0", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--activation", default="relu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = data()
    depths = [2**k for k in range(1, 11)]
    for activation in ("relu", "tanh"):
        truth = lazy(x, depth=math.inf, activation=activation).train(y, lr=options.lr, steps=STEPS)
        value = np.array(
            [
                np.vdot(lazy(x, depth=d, activation=activation).train(y, lr=options.lr, steps=STEPS), truth)
                for d in depths
            ]
        )
        print(f"lazy {activation}")
        table(depths, value, np.vdot(truth, truth))
    fields._eigh = framed
    depths = [int(d) for d in options.depths.split(",")]
    found = []
    for depth in depths:
        task = problem(
            x,
            y,
            depth=depth,
            activation=options.activation,
            lr=options.lr,
            steps=STEPS,
            gamma0=options.gamma0,
        )
        found.append(
            np.concatenate(
                [coupled(task, depths[-1], [seed], options.size) for seed in range(options.blocks)]
            )
        )
        print(f"depth {depth} done", flush=True)
    direction = found[-1].mean(0) / np.linalg.norm(found[-1].mean(0))
    value = np.array([[np.vdot(f, direction) for f in several] for several in found]).T
    print(
        f"trained {options.activation}, gamma0 = {options.gamma0:g}, {options.blocks} blocks of "
        f"{options.size} samples"
    )
    for order in (1, 2, 3):
        differences(depths, value, order)


if __name__ == "__main__":
    main()
