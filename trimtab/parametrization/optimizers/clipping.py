"""Clip gradients by a norm that means the same at every size (docs/theory.md, equation (8)):

|g|^2 = sum_p (u_p / s_p) |g_p|^2                          at base size: torch's own norm
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def clip(params: Sequence[nn.Parameter], weights: Sequence[float], max_norm: float) -> Tensor:
    """Scale the gradients in place to a weighted norm of at most `max_norm`; return the norm before.

    Args:
        weights: sqrt(u / s) of each parameter.

    >>> w = nn.Parameter(torch.zeros(2))
    >>> w.grad = torch.tensor([3.0, 4.0])
    >>> clip([w], [1.0], 1.0).item(), round(w.grad.norm().item(), 4)
    (5.0, 1.0)
    """
    pairs = [(p.grad, w) for p, w in zip(params, weights, strict=True) if p.grad is not None]
    if not pairs:
        return torch.tensor(0.0)
    norms = [torch.linalg.vector_norm(g) for g, _ in pairs]
    norms = [n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]  # type: ignore[attr-defined]
    weighted = [n.to(norms[0].device) * w for n, (_, w) in zip(norms, pairs, strict=True)]
    total = torch.linalg.vector_norm(torch.stack(weighted))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for g, _ in pairs:
        sharded = hasattr(g, "full_tensor")
        g.mul_(float(factor) if sharded else factor.to(device=g.device, dtype=g.dtype))
    return total
