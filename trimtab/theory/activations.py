r"""Nonlinearities phi(h) and their slopes phi'(h), elementwise, on torch tensors.

Only values and slopes are ever needed: the solver takes its responses from Stein's lemma
(docs/theory.md, equation (33)), so no second derivative appears and kinks are welcome.
`erf` is erf(h) (not erf(h / sqrt 2)) and `relu` has no gain sqrt(2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trimtab.errors import InputError

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Activation:
    """phi by `name`; `both(h)` gives (phi(h), phi'(h)) in one pass."""

    name: str
    both: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        return self.both(h)[0]


def _relu(h):
    return h.clamp_min(0.0), (h > 0).to(h.dtype)


def _erf(h):
    return torch.erf(h), (2 / math.sqrt(math.pi)) * torch.exp(-h * h)


def _tanh(h):
    value = torch.tanh(h)
    return value, 1 - value * value


def _gelu(h):
    cdf = 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    return h * cdf, cdf + h * torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)


def _linear(h):
    return h, torch.ones_like(h)


NAMED = {"relu": _relu, "erf": _erf, "tanh": _tanh, "gelu": _gelu, "linear": _linear}


def _by_autograd(function: Function):
    def both(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        graph = h.requires_grad
        with torch.enable_grad():
            point = h if graph else h.detach().requires_grad_(True)
            value = function(point)
            slope = torch.zeros_like(point)
            if value.requires_grad:
                (found,) = torch.autograd.grad(value.sum(), point, create_graph=graph, allow_unused=True)
                slope = slope if found is None else found
        return (value, slope) if graph else (value.detach(), slope.detach())

    return both


def activation(spec: str | Function | Activation) -> Activation:
    """The nonlinearity called `spec`: a name, or any elementwise torch function.

    >>> activation("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    >>> activation(torch.sin).both(torch.zeros(1))
    (tensor([0.]), tensor([1.]))
    """
    if isinstance(spec, Activation):
        return spec
    if isinstance(spec, str):
        if spec not in NAMED:
            raise InputError(
                f"activation must be one of {', '.join(NAMED)} or a callable on torch tensors: got {spec!r}."
            )
        return Activation(spec, NAMED[spec])
    if not callable(spec):
        raise InputError(f"activation must be a name or a callable on torch tensors: got {spec!r}.")
    name = getattr(spec, "__name__", type(spec).__name__)
    if isinstance(spec, (torch.nn.ReLU, torch.nn.Tanh)) or spec in (torch.relu, torch.tanh, torch.erf):
        found = name.lower()
        return Activation(found, NAMED[found])
    probe = torch.tensor([-0.7, 0.0, 1.3], dtype=torch.float64)
    try:
        value, slope = _by_autograd(spec)(probe)
        good = value.shape == probe.shape and torch.allclose(value[2:], spec(probe[2:]))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(
            "activation must map a torch tensor to a torch tensor elementwise and be differentiable: "
            f"{name} failed with"
            f" {type(error).__name__}: {error}. Write it with torch functions."
        ) from error
    if not good or not torch.isfinite(value + slope).all():
        raise InputError(
            "activation must act on each element by itself and be finite: "
            f"{name} of {probe.tolist()} gave {value.tolist()}. Write it with elementwise torch functions."
        )
    return Activation(name, _by_autograd(spec))
