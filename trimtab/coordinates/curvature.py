"""Sharpness in the optimizer's own metric: the top eigenvalue of P^1/2 H P^1/2, by Lanczos with
Hessian-vector products.

    P = lr for gradient descent, lr / (sqrt(v / (1 - beta2^t)) + eps) for Adam (arXiv 2207.14484)

(docs/theory.md, equation (26))

so that 2 is where a quadratic loss stops to shrink (without momentum), at every size, whatever multiplier was
folded where. Trajectories over size coincide when the rate transfers (arXiv 2402.17457).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ITERATIONS = 12


def effective_sharpness(
    model: nn.Module, optimizers: list[Any], loss: Callable[[], Tensor], iterations: int = ITERATIONS
) -> float:
    """The largest eigenvalue, by size, of the preconditioned Hessian of `loss()`; the model's buffers and
    random states stay.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> round(effective_sharpness(model, [optimizer], lambda: 0.5 * (model(x) ** 2).sum()), 4)
    2.0
    """
    roots = {
        id(p): r
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p, r in _roots(optimizer, group)
    }
    params = [p for p in model.parameters() if p.requires_grad and id(p) in roots]
    buffers = [(b, b.clone()) for b in model.buffers()]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # fused kernels have no second derivative
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            grads = torch.autograd.grad(loss(), params, create_graph=True, allow_unused=True)
        kept = [(p, g) for p, g in zip(params, grads, strict=True) if g is not None and g.requires_grad]

        def product(v: list[Tensor]) -> list[Tensor]:
            scaled = [x * roots[id(p)] for x, (p, _) in zip(v, kept, strict=True)]
            out = torch.autograd.grad(
                [g for _, g in kept], [p for p, _ in kept], scaled, retain_graph=True, allow_unused=True
            )
            return [
                torch.zeros_like(p) if h is None else h.detach() * roots[id(p)]
                for h, (p, _) in zip(out, kept, strict=True)
            ]

        top = _lanczos(product, [torch.randn_like(p) for p, _ in kept], iterations) if kept else 0.0
    with torch.no_grad():
        for b, before in buffers:
            b.copy_(before)
    return top


def _roots(optimizer: Any, group: dict[str, Any]) -> list[tuple[nn.Parameter, Any]]:
    """sqrt(P) of each parameter of a group."""
    found = []
    for p in group["params"]:
        state = optimizer.state.get(p, {})
        if "exp_avg_sq" in state:
            step, beta2 = float(state["step"]), group["betas"][1]
            scale = group["lr"] / ((state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"])
            found.append((p, scale.sqrt()))
        else:
            found.append((p, math.sqrt(group["lr"])))
    return found


def _lanczos(product: Callable[[list[Tensor]], list[Tensor]], v: list[Tensor], iterations: int) -> float:
    """The eigenvalue of largest size of a symmetric operator, with full reorthogonalisation.

    Not scipy's eigsh: that runs to convergence, at least twenty products where twelve give the three digits
    needed, and takes every vector from torch to numpy and back.
    """
    norm = math.sqrt(_dot(v, v))
    basis = [[x / norm for x in v]]
    alphas: list[float] = []
    betas: list[float] = []
    for _ in range(min(iterations, sum(x.numel() for x in v))):
        w = product(basis[-1])
        if not all(bool(torch.isfinite(x).all()) for x in w):
            return math.nan
        alphas.append(_dot(w, basis[-1]))
        for q in basis:
            c = _dot(w, q)
            w = [x - c * y for x, y in zip(w, q, strict=True)]
        beta = math.sqrt(max(_dot(w, w), 0.0))
        if beta < 1e-8 * max(1e-30, max(map(abs, alphas))):
            break
        betas.append(beta)
        basis.append([x / beta for x in w])
    n = len(alphas)
    t = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    for i, b in enumerate(betas[: n - 1]):
        t[i, i + 1] = t[i + 1, i] = b
    values = torch.linalg.eigvalsh(t)
    return float(values[values.abs().argmax()])


def _dot(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
