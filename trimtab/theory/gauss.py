r"""Averages of phi over correlated Gaussians, which the lazy limit needs (docs/theory.md, equation (40)).

For (a, b) ~ N(0, [[q1, c], [c, q2]]) this gives

    Phi    = E[phi(a) phi(b)]          Phidot = E[phi'(a) phi'(b)] = dPhi/dc     (Price's theorem)

Closed forms (rho = c / sqrt(q1 q2), theta = arccos rho):

    linear   c                                                     1
    relu     sqrt(q1 q2) (sin theta + (pi - theta) cos theta)/2pi  (pi - theta)/2pi
    erf      (2/pi) arcsin 2c/sqrt((1+2q1)(1+2q2))                 (4/pi)/sqrt((1+2q1)(1+2q2) - 4c^2)
    gelu     a b 1(u>0) 1(v>0) with u = a - z1, v = b - z2, both conditioned on (u, v); Phidot by Price

relu: Cho and Saul 2009; erf: Williams 1997. Everything else goes through quadrature: Gauss-Legendre panels in
a, then in b given a, both cut at zero, where activations have their kinks, and a again where b given a leaves
its kink; so leaky relus and their like converge as fast as tanh does. All of it is differentiable in q1, q2
and c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from trimtab.theory.activations import Activation, activation

_REACH = 9.0  # standard deviations kept by the quadrature: the tail beyond weighs 2e-19
_NODES = 64  # Gauss-Legendre nodes per panel; four panels in a, two in b
_LAYER = 8.0  # conditional standard deviations on each side of the kink of b
_TINY = 1e-300


class _ArcCosine1(torch.autograd.Function):
    """sin theta + (pi - theta) cos theta. Its derivative in rho is pi - theta, finite at rho = 1, where the
    chain rule gives inf * 0."""

    @staticmethod
    def forward(ctx, rho):
        ctx.save_for_backward(rho)
        return torch.sqrt((1 - rho * rho).clamp_min(0)) + (math.pi - torch.arccos(rho)) * rho

    @staticmethod
    def backward(ctx, *grad_outputs):
        (grad,), (rho,) = grad_outputs, ctx.saved_tensors
        return grad * (math.pi - torch.arccos(rho))


def _relu(q1, q2, c):
    scale = torch.sqrt((q1 * q2).clamp_min(_TINY))
    rho = (c / scale).clamp(-1, 1)
    return scale * _ArcCosine1.apply(rho) / (2 * math.pi), (math.pi - torch.arccos(rho)) / (2 * math.pi)


def _erf(q1, q2, c):
    room = (1 + 2 * q1) * (1 + 2 * q2)
    return (2 / math.pi) * torch.arcsin(2 * c / torch.sqrt(room)), (4 / math.pi) / torch.sqrt(
        room - 4 * c * c
    )


def _linear(q1, q2, c):
    return c + 0 * q1 * q2, torch.ones_like(c)


def _gelu_value(q1, q2, c):
    v1, v2 = 1 + q1, 1 + q2
    det = v1 * v2 - c * c
    # E[a | u, v] = (k11 u + k12 v)/det and E[b | u, v] = (k21 u + k22 v)/det
    k11, k12 = q1 * v2 - c * c, c * v1 - q1 * c
    k21, k22 = c * v2 - q2 * c, q2 * v1 - c * c
    residual = c - (k11 * c + k12 * q2) / det
    rho = c / torch.sqrt(v1 * v2)
    angle, root = math.pi - torch.arccos(rho), torch.sqrt(1 - rho * rho)
    both = angle / (2 * math.pi)
    square = (angle + rho * root) / (2 * math.pi)  # E[U^2 1 1] of the standardised pair
    cross = (root + angle * rho) / (2 * math.pi)  # E[U V 1 1]
    quadratic = (
        k11 * k21 * v1 * square
        + k12 * k22 * v2 * square
        + (k11 * k22 + k12 * k21) * torch.sqrt(v1 * v2) * cross
    )
    return residual * both + quadratic / (det * det)


def _gelu(q1, q2, c):
    graph = torch.is_grad_enabled() and any(t.requires_grad for t in (q1, q2, c))
    with torch.enable_grad():
        point = c + 0.0 if c.requires_grad else c.detach().clone().requires_grad_(True)
        value = _gelu_value(q1, q2, point)
        (slope,) = torch.autograd.grad(value.sum(), point, create_graph=graph)
    return (value, slope) if graph else (value.detach(), slope.detach())


CLOSED = {"relu": _relu, "erf": _erf, "linear": _linear, "gelu": _gelu}


@lru_cache(maxsize=4)
def _legendre(nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)


def _panels(mean, sd, cuts, nodes):
    """Nodes and weights for E[.] over N(mean, sd^2), in panels between `cuts`, ascending and in units of sd
    from the mean; the last axis is the nodes."""
    unit, weight = _legendre(nodes)
    # in units of sd, so that sd -> 0 (two equal points) costs no digits
    edges = [
        cut.clamp(-_REACH, _REACH).unsqueeze(-1)
        for cut in (torch.full_like(sd, -_REACH), *cuts, torch.full_like(sd, _REACH))
    ]
    points, weights = [], []
    for start, end in itertools.pairwise(edges):
        z = start + (end - start) * unit
        points.append(mean.unsqueeze(-1) + sd.unsqueeze(-1) * z)
        weights.append((end - start) * weight * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    return torch.cat(points, -1), torch.cat(weights, -1)


def _nodes(q1, q2, c, nodes: int):
    """a (..., k) and b given a (..., k, m), with their weights."""
    sd1 = torch.sqrt(q1.clamp_min(1e-24))
    slope = c / sd1**2
    sd2 = torch.sqrt((q2 - slope * c).clamp_min(1e-24))
    # given a, b crosses its kink at zero within a layer of this width, thin where the two are nearly
    # collinear
    layer = _LAYER * sd2 / (slope * sd1).abs().clamp_min(_TINY)
    a, weight_a = _panels(torch.zeros_like(q1), sd1, (-layer, torch.zeros_like(q1), layer), nodes)
    mean, sd = slope.unsqueeze(-1) * a, sd2.unsqueeze(-1).expand(a.shape)
    b, weight_b = _panels(mean, sd, (-mean / sd,), nodes)
    return a, weight_a, b, weight_b


def _quadrature(phi: Activation, q1, q2, c, *, nodes: int):
    a, weight_a, b, weight_b = _nodes(q1, q2, c, nodes)
    (va, da), (vb, db) = phi.both(a), phi.both(b)
    value = (weight_a * va * (weight_b * vb).sum(-1)).sum(-1)
    return value, (weight_a * da * (weight_b * db).sum(-1)).sum(-1)


def products(
    functions: Callable[[torch.Tensor], torch.Tensor],
    q1: torch.Tensor,
    q2: torch.Tensor,
    c: torch.Tensor,
    *,
    nodes: int = _NODES,
) -> torch.Tensor:
    """E[F_i(a) F_j(b)] (n, k, k) of the k `functions` F, stacked in the first axis, for n pairs of variances
    `q1`, `q2` and covariance `c`.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> found = products(lambda h: torch.stack([h, h**2]), one, one, 0.5 * one)  # c, and 1 + 2 c^2
    >>> found[0].round(decimals=6).tolist()
    [[0.5, 0.0], [0.0, 1.5]]
    """
    chunk, parts = max(1, 1_000_000 // (8 * nodes * nodes)), []
    for i in range(0, len(c), chunk):
        a, weight_a, b, weight_b = _nodes(q1[i : i + chunk], q2[i : i + chunk], c[i : i + chunk], nodes)
        parts.append(torch.einsum("ink,jnk->nij", weight_a * functions(a), (weight_b * functions(b)).sum(-1)))
    return torch.cat(parts)


def pair(phi, q1: torch.Tensor, q2: torch.Tensor, c: torch.Tensor, *, nodes: int = _NODES):
    """(E[phi(a) phi(b)], E[phi'(a) phi'(b)]) for a, b of variances `q1`, `q2` and covariance `c`,
    elementwise.

    `nodes` is the number of quadrature nodes per panel; closed forms ignore it.

    >>> one = torch.ones((), dtype=torch.float64)
    >>> [round(float(v), 6) for v in pair("relu", one, one, 0 * one)]   # 1/2pi, 1/4
    [0.159155, 0.25]
    """
    phi = activation(phi)
    if phi.name in CLOSED:
        return CLOSED[phi.name](q1, q2, c)
    flat = [t.reshape(-1) for t in torch.broadcast_tensors(q1, q2, c)]
    chunk = max(1, 2_000_000 // (8 * nodes * nodes))
    parts = [
        _quadrature(phi, *(t[i : i + chunk] for t in flat), nodes=nodes)
        for i in range(0, len(flat[0]), chunk)
    ]
    shape = torch.broadcast_shapes(q1.shape, q2.shape, c.shape)
    return torch.cat([p[0] for p in parts]).reshape(shape), torch.cat([p[1] for p in parts]).reshape(shape)


def kernel(phi, h: torch.Tensor, *, nodes: int = _NODES) -> tuple[torch.Tensor, torch.Tensor]:
    """(Phi, Phidot), both (P, P), of a centred Gaussian vector of covariance `h` (P, P).

    >>> value, slope = kernel("linear", torch.eye(2, dtype=torch.float64))
    >>> value.tolist(), slope.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]])
    """
    rows, cols = torch.triu_indices(len(h), len(h))
    diagonal = torch.diagonal(h)
    value, slope = pair(phi, diagonal[rows], diagonal[cols], h[rows, cols], nodes=nodes)

    def symmetric(upper):
        full = torch.zeros_like(h).index_put((rows, cols), upper)
        return full + full.T - torch.diag(torch.diagonal(full))

    return symmetric(value), symmetric(slope)
