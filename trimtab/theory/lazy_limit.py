r"""The lazy limit gamma_0 -> 0: NNGP and NTK of the residual network, at finite depth and at infinite depth.

Finite depth (docs/theory.md, equations (38) and (41)), elementwise on (P, P) matrices, H^1 = K^x:

    H^{l+1} = H^l + b^2 Phi^l    G^l = G^{l+1} (1 + b^2 Phidot^l),  G^{L+1} = Phidot^{L+1}   b = beta L^-alpha
    K       = Phi^{L+1} + b^2 rho sum_l G^{l+1} Phi^l + G^1 K^x    rho = L^{2 alpha - 1}

Infinite depth (docs/theory.md, equation (39)), alpha = 1/2,
layer time tau in [0, 1]:  dH/dtau = beta^2 Phi(H),  dG/dtau = -beta^2 G Phidot. The second runs
backwards, so we integrate E = int beta^2 Phidot and J = int e^-E Phi forwards with H and read G(tau) =
Phidot(1) e^{E(1) - E(tau)}. For alpha > 1/2 the branches' variance L^{1 - 2 alpha} is gone in the limit and
only the tangent kernel keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp

from trimtab.theory.activations import Function
from trimtab.theory.gauss import kernel
from trimtab.theory.losses import signal
from trimtab.theory.problem import Problem, problem

_TAU = np.linspace(0.0, 1.0, 65)  # where the infinitely deep kernels are reported


@dataclass(frozen=True)
class Lazy:
    """Kernels at initialisation: `nngp`, `ntk` (P, P); `phi`, `g` (layers, P, P) at layer times `tau`."""

    nngp: np.ndarray
    ntk: np.ndarray
    phi: np.ndarray
    g: np.ndarray
    tau: np.ndarray

    def train(
        self,
        y: ArrayLike,
        *,
        lr: float | ArrayLike,
        steps: int,
        loss: str = "mse",
        momentum: float = 0.0,
        batches: Sequence[Sequence[int]] | None = None,
    ) -> np.ndarray:
        """f (T+1, P[, C]) of gradient descent with the frozen kernel, f(t) = sum_{s<t} a(t,s) K m(s)
        Delta(s), f(0) = 0 (docs/theory.md, equation (42)).

        Arguments as in `solve`. No weight decay: L2 of a strength that matters moves the weights by O(1),
        which is not lazy.

        >>> lazy([[1.0]], depth=1, activation="linear").train([1.0], lr=0.1, steps=2)[:, 0].round(4).tolist()
        [0.0, 0.5, 0.75]
        """
        task = problem(
            np.eye(len(self.ntk)),
            y,
            depth=1,
            activation="linear",
            lr=lr,
            steps=steps,
            loss=loss,
            momentum=momentum,
            batches=batches,
        )
        gain = torch.from_numpy(self.ntk)
        f = torch.zeros(task.steps + 1, task.points, task.outputs, dtype=torch.float64)
        pull = torch.zeros(task.steps, task.points, task.outputs, dtype=torch.float64)
        for t in range(task.steps):
            pull[t] = gain @ (task.batch[t][:, None] * signal(task.loss, f[t], task.y))
            f[t + 1] = torch.einsum("s,spc->pc", task.a[0, t + 1, : t + 1], pull[: t + 1])
        return (f[..., 0] if task.single else f).numpy()


def _finite(task: Problem) -> Lazy:
    square, rate, depth = task.branch**2, task.block_rate, int(task.depth)
    gram = task.gram
    h, phi, slope = gram, [], []
    for _ in range(depth + 1):
        value, derivative = kernel(task.activation, h)
        phi.append(value)
        slope.append(derivative)
        h = h + square * value
    g = [slope[-1]]
    for derivative in reversed(slope[:-1]):
        g.append(g[-1] * (1 + square * derivative))
    g.reverse()
    phi, g = torch.stack(phi), torch.stack(g)
    ntk = phi[-1] + square * rate * (g[1:] * phi[:-1]).sum(0) + g[0] * gram
    return Lazy(phi[-1].numpy(), ntk.numpy(), phi.numpy(), g.numpy(), np.arange(depth + 1) / depth)


def _infinite(task: Problem) -> Lazy:
    gram = task.gram
    points, strength = len(gram), task.beta**2
    if task.alpha > 0.5:
        value, slope = (k.numpy() for k in kernel(task.activation, gram))
        phi, g = (np.broadcast_to(k, (len(_TAU), points, points)).copy() for k in (value, slope))
        return Lazy(value, value + strength * slope * value + slope * gram.numpy(), phi, g, _TAU.copy())

    def flow(_, state):
        h, exponent, _ = torch.from_numpy(state).reshape(3, points, points)
        value, slope = kernel(task.activation, h)
        return (
            torch.stack([strength * value, strength * slope, torch.exp(-exponent) * value])
            .numpy()
            .reshape(-1)
        )

    start = np.concatenate([gram.numpy().reshape(-1), np.zeros(2 * points * points)])
    path = solve_ivp(flow, (0.0, 1.0), start, method="DOP853", t_eval=_TAU, rtol=1e-10, atol=1e-12)
    h, exponent, integral = path.y.T.reshape(len(_TAU), 3, points, points).transpose(1, 0, 2, 3)
    phi = np.stack([kernel(task.activation, torch.from_numpy(np.ascontiguousarray(k)))[0].numpy() for k in h])
    top = kernel(task.activation, torch.from_numpy(np.ascontiguousarray(h[-1])))[1].numpy()
    g = top * np.exp(exponent[-1] - exponent)
    ntk = phi[-1] + strength * top * np.exp(exponent[-1]) * integral[-1] + g[0] * gram.numpy()
    return Lazy(phi[-1], ntk, phi, g, _TAU.copy())


def lazy(
    x: ArrayLike,
    *,
    depth: float,
    activation: str | Function = "relu",
    alpha: float = 0.5,
    beta: float = 1.0,
) -> Lazy:
    r"""NNGP and NTK of the infinitely wide residual network at initialisation.

    `x` (P, D): inputs, K^x = x x^T / D. `depth` L >= 1: number of residual branches, or `math.inf` for the
    layer-time ODE. `activation`: relu, erf, tanh, gelu, linear or an elementwise torch function. Branches are
    multiplied by `beta` L^-`alpha`. `.nngp` is Phi^{L+1}; `.ntk` is the kernel of training, df = (eta_0 / P)
    K Delta, with the block rate L^{2 alpha - 1} in it. `.train(y, lr=, steps=)` trains with it.

    >>> x = [[1.0, 1.0]]
    >>> float(lazy(x, depth=math.inf).ntk[0, 0].round(6)), round(1.25 * math.exp(0.5), 6)
    (2.060902, 2.060902)
    """
    targets = [0.0] * len(x)  # type: ignore[arg-type]
    task = problem(x, targets, depth=depth, activation=activation, lr=1.0, steps=1, alpha=alpha, beta=beta)
    return _infinite(task) if math.isinf(task.depth) else _finite(task)
