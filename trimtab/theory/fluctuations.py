r"""Sigma_L at the start: N x the variance over networks of the kernels and of the NTK, one input, any
activation, no sampling.

At initialisation sites are independent given the averages they share (docs/theory.md, equation (46)):
h^{l+1} = h^l + b sqrt(Phi^l) eps,
g^l = g^{l+1} + b phi'(h^l) sqrt(G^{l+1}) eps'. So an average q = (Phi^l, G^l, ...) over N sites moves by the
sites' own scatter xi and by what the other averages have moved,

    dq = xi + J dq        N Cov(q) = (I - J)^-1 kappa (I - J)^-T
    kappa = Cov of one site's (h^2, phi^2, g^2) over all layers

    Phi^l = E[phi^2],  var h^l = K^x + b^2 sum_{k<l} Phi^k    J by  d E[F(h)] / dq = E[F(h) (h^2 - q)] / 2 q^2
    g^l given h is N(0, V_l),  V_l = phi'(h^{L+1})^2 + b^2 sum_{k>=l} phi'(h^k)^2 G^{k+1}
    E[g_l^2 g_m^2] = E[2 V_m^2 + V_l V_m],  l <= m

and kappa needs only averages over pairs (h^l, h^m), whose covariance is the smaller variance. Forward and
backward share their matrices, but what that adds, B(0,0) ~ N^-1/2, meets <g ...> = 0. The NTK is a function
of q, and in the lazy limit training is a function of the NTK.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.errors import faults
from trimtab.theory.activations import Activation, Function
from trimtab.theory.depths import neville
from trimtab.theory.gauss import products
from trimtab.theory.problem import Problem, problem

_LADDER = (4, 8, 16, 32, 64)  # depths extrapolated to infinity
_NODES = 40  # per panel: 1e-10


@dataclass(frozen=True)
class Fluctuations:
    """Means in the limit (`mean_*`) and N x variance over networks, at initialisation: `stream` |h^l|^2 / N,
    `phi`, `g` (L+1,) over the layer times `tau`, and `ntk`."""

    stream: np.ndarray
    phi: np.ndarray
    g: np.ndarray
    ntk: float
    mean_stream: np.ndarray
    mean_phi: np.ndarray
    mean_g: np.ndarray
    mean_ntk: float
    tau: np.ndarray

    def train(self, y: float, *, lr: float, steps: int) -> np.ndarray:
        """N Var f(t) (T+1,) while a *lazy* network learns `y` by gradient descent on (f - y)^2 / 2:
        f = y (1 - (1 - lr K)^t), K fluctuates (docs/theory.md, equation (47)).

        >>> bool(fluctuate(depth=1, activation="linear").train(1.0, lr=0.01, steps=3)[0] == 0)
        True
        """
        t = np.arange(steps + 1)
        return (y * t * lr * (1 - lr * self.mean_ntk) ** np.maximum(t - 1, 0)) ** 2 * self.ntk


@dataclass(frozen=True)
class _Averages:
    """The limit at the start, layer by layer (one row each)."""

    variance: torch.Tensor  # q = E[h^2]
    moments: torch.Tensor  # (3, layers): E of h^2, phi(h)^2 and phi'(h)^2
    change: torch.Tensor  # (3, layers): their derivatives in q
    gradient: torch.Tensor  # G = E[g^2]

    @property
    def phi(self) -> torch.Tensor:
        return self.moments[1]

    @property
    def slope(self) -> torch.Tensor:
        return self.moments[2]


def _functions(phi: Activation, h: torch.Tensor) -> torch.Tensor:
    value, slope = phi.both(h)
    return torch.stack([h * h, value * value, slope * slope])


def _averages(task: Problem, layers: int) -> _Averages:
    square, phi = task.branch**2, task.activation
    variance, average, change = [task.gram[0, 0]], [], []
    for _ in range(layers):
        q = variance[-1]
        moments = products(
            lambda h: torch.cat([_functions(phi, h), torch.ones_like(h)[None]]),
            q[None],
            q[None],
            q[None],
            nodes=_NODES,
        )[0]
        average.append(moments[:3, 3])
        change.append((moments[:3, 0] - q * moments[:3, 3]) / (2 * q * q))
        variance.append(q + square * moments[1, 3])
    moments = torch.stack(average, 1)
    gradient = [moments[2, -1]]
    for s in reversed(moments[2, :-1].tolist()):
        gradient.insert(0, gradient[0] * (1 + square * s))
    return _Averages(torch.stack(variance[:layers]), moments, torch.stack(change, 1), torch.stack(gradient))


def _later(task: Problem, at: _Averages) -> torch.Tensor:
    """V = later s: V_l = sum over k >= l of share_k slope_k^2, what of a site's gradient is still to come."""
    layers = len(at.gradient)
    share = torch.cat([task.branch**2 * at.gradient[1:], torch.ones(1, dtype=torch.float64)])
    return torch.triu(share.expand(layers, layers))


def _kappa(task: Problem, at: _Averages, later: torch.Tensor) -> torch.Tensor:
    """The covariance of one site's (h^2, phi^2, V), (3, layers, 3, layers)."""
    layers, q, g = len(at.gradient), at.variance, at.gradient
    rows, columns = torch.triu_indices(layers, layers)
    functions = functools.partial(_functions, task.activation)
    found = products(functions, q[rows], q[columns], q[rows], nodes=_NODES)
    both = torch.zeros(layers, layers, 3, 3, dtype=torch.float64)
    both[columns, rows] = found.transpose(1, 2)
    both[rows, columns] = found
    centred = both - torch.einsum("il,jm->lmij", at.moments, at.moments)
    kappa = torch.zeros(3, layers, 3, layers, dtype=torch.float64)
    kappa[:2, :, :2] = centred[:, :, :2, :2].permute(2, 0, 3, 1)
    kappa[:2, :, 2] = torch.einsum("lkj,mk->jlm", centred[:, :, :2, 2], later)
    kappa[2, :, :2] = kappa[:2, :, 2].permute(2, 0, 1)
    spread = later @ both[:, :, 2, 2] @ later.T  # E[V_l V_m]
    last = torch.maximum(torch.arange(layers)[:, None], torch.arange(layers))
    kappa[2, :, 2] = spread + 2 * spread.diagonal()[last] - torch.outer(g, g)
    return kappa


def _jacobian(task: Problem, at: _Averages, later: torch.Tensor) -> torch.Tensor:
    """J: variances of h follow Phi of the layers below, G those above."""
    layers, square = len(at.gradient), task.branch**2
    below = square * torch.tril(torch.ones(layers, layers, dtype=torch.float64), -1)  # d var(h^l) / d Phi^k
    step = torch.zeros(3, layers, 3, layers, dtype=torch.float64)
    step[0, :, 1] = below
    step[1, :, 1] = at.change[1][:, None] * below
    step[2, :, 1] = later @ (at.change[2][:, None] * below)
    step[2, :, 2, 1:] = square * torch.triu(at.slope[:-1].expand(layers, layers - 1))
    return step


def _start(task: Problem) -> Fluctuations:
    """N Cov = (I - J)^-1 kappa (I - J)^-T of the kernels, and what it gives the tangent kernel."""
    layers = int(task.depth) + 1
    at = _averages(task, layers)
    later, size = _later(task, at), 3 * layers
    kappa, step = (part(task, at, later).reshape(size, size) for part in (_kappa, _jacobian))
    solved = torch.linalg.inv(torch.eye(size, dtype=torch.float64) - step)
    covariance = solved @ kappa @ solved.T

    rate, q, g, mean = task.branch**2 * task.block_rate, at.variance, at.gradient, at.phi
    ntk = mean[-1] + rate * (g[1:] * mean[:-1]).sum() + g[0] * q[0]
    weight = torch.zeros(3, layers, dtype=torch.float64)
    weight[1, -1], weight[2, 0] = 1.0, q[0]
    weight[1, :-1] += rate * g[1:]
    weight[2, 1:] += rate * mean[:-1]
    weight = weight.reshape(-1)
    stream, features, gradients = covariance.diagonal().reshape(3, layers).numpy()
    return Fluctuations(
        stream=stream,
        phi=features,
        g=gradients,
        ntk=float(weight @ covariance @ weight),
        mean_stream=q.numpy(),
        mean_phi=mean.numpy(),
        mean_g=g.numpy(),
        mean_ntk=float(ntk),
        tau=np.arange(layers) / (layers - 1),
    )


def fluctuate(
    *,
    depth: float,
    activation: str | Function,
    size: float = 1.0,
    alpha: float = 0.5,
    beta: float = 1.0,
) -> Fluctuations:
    r"""N x variance over networks of width N at initialisation, to leading order in 1/N, for one input of
    |x|^2 / D = `size`.

    `depth` L branches `beta` L^-`alpha`, or `math.inf` (depths 4 to 64 extrapolated, to 1e-5). Kernels of a
    network of width N then have standard deviation sqrt(.phi / N) around `.mean_phi`, its NTK sqrt(.ntk / N)
    around `.mean_ntk`.

    >>> found = fluctuate(depth=4, activation="linear")
    >>> closed = 2 + 4.5 / 1.25**2  # `init_fluctuation`
    >>> float(round(found.stream[-1] / found.mean_stream[-1] ** 2, 6)), closed
    (4.88, 4.88)
    """
    if not (isinstance(size, (int, float, np.number)) and 0 < size < math.inf):
        raise faults(
            "1 fault in the arguments", [f"size: |x|^2 / D must be a positive number, got {size!r}."]
        )
    x = [[math.sqrt(size)]]
    task = problem(x, [0.0], depth=depth, activation=activation, lr=1.0, steps=1, alpha=alpha, beta=beta)
    if not math.isinf(task.depth):
        return _start(task)
    levels = [_start(task.at_depth(level)) for level in _LADDER]
    limit = {}
    for name in ("stream", "phi", "g", "ntk", "mean_stream", "mean_phi", "mean_g", "mean_ntk"):
        values = [np.asarray(getattr(level, name)) for level in levels]
        limit[name] = neville(
            [value[:: 2**i] if value.ndim else value for i, value in enumerate(values)],
            order=len(_LADDER) - 1,
        )[0]
    limit |= {name: float(limit[name]) for name in ("ntk", "mean_ntk")}
    return Fluctuations(**limit, tau=levels[0].tau)
