r"""Losses l(f, y) per point and the error signal Delta = -dl/df (docs/theory.md, equation (29)).

    mse        sum_c (f_c - y_c)^2 / 2           Delta = y - f
    logistic   log(1 + exp(-y f)),  y = +-1      Delta = y / (1 + exp(y f))
    softmax    log sum_c e^{f_c} - sum_c y_c f_c Delta = y - softmax(f)

`f` and `y` are (..., P, C) in here, one output being C = 1; the training loss is the mean over the P points.
"""

from __future__ import annotations

import torch
from torch.nn import functional

LOSSES = ("mse", "logistic", "softmax")


def signal(loss: str, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Delta (..., P, C).

    >>> signal("mse", torch.zeros(1, 1), torch.ones(1, 1))
    tensor([[1.]])
    """
    if loss == "mse":
        return y - f
    if loss == "logistic":
        return y * torch.sigmoid(-y * f)
    return y - torch.softmax(f, -1)


def mean_loss(loss: str, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Training loss (...), the mean of l over the points.

    >>> mean_loss("logistic", torch.zeros(2, 1), torch.ones(2, 1))
    tensor(0.6931)
    """
    if loss == "mse":
        return ((f - y) ** 2).sum(-1).mean(-1) / 2
    if loss == "logistic":
        return functional.softplus(-y * f).sum(-1).mean(-1)
    return (torch.logsumexp(f, -1) - (y * f).sum(-1)).mean(-1)
