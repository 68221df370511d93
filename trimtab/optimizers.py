"""Which family an optimizer belongs to: by name where torch wrote it, by experiment where someone else did.

An unknown optimizer is tried on a small problem in float64: if storing a * theta, with lr, decay and eps multiplied by
the powers of a of one known family (THEORY 1.1), gives the same trajectory, it is of that family. If none fits, it is
refused: a rate that does not fold would be silently wrong.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import OptimizerError
from trimtab.rules import FAMILIES, REFUSED, Family, Scales, factors, family_of

A = 0.37
STEPS = 12


def family(cls: Any, hyper: dict[str, Any]) -> Family:
    """The family of an optimizer class, with the flags in `hyper` that matter.

    >>> family(torch.optim.AdamW, {}).decay
    'decoupled'
    """
    name = getattr(cls, "__name__", str(cls))
    if not callable(cls):
        raise OptimizerError(f"an optimizer class is needed, such as torch.optim.AdamW: got {cls!r}.")
    in_torch = getattr(cls, "__module__", "").startswith("torch.optim")
    if in_torch:
        found = family_of(name, hyper)
        if found is not None:
            return found
    return _by_experiment(cls, name, hyper)


def _by_experiment(cls: Callable[..., Any], name: str, hyper: dict[str, Any]) -> Family:
    if name in REFUSED:
        family_of(name, hyper)
    arguments = _arguments(cls)
    kept = {k: v for k, v in hyper.items() if not (k == "weight_decay" and v == 0)}
    if "weight_decay" in arguments and "weight_decay" not in kept:
        kept["weight_decay"] = 0.1
    if "eps" in arguments and "eps" not in kept:
        kept["eps"] = 1e-3
    tried = []
    try:
        reference = _train(cls, 1.0, 0.01, kept)
        for candidate in (FAMILIES[k] for k in ("AdamW", "Adam", "SGD", "Lion", "Adadelta")):
            f = factors(candidate, Scales().fold(A))
            changed = dict(kept)
            if "weight_decay" in kept:
                changed["weight_decay"] = kept["weight_decay"] * f.weight_decay
            if "eps" in kept:
                changed["eps"] = kept["eps"] * f.eps
            error = float((_train(cls, A, 0.01 * f.lr, changed) - reference).abs().max() / reference.abs().max())
            tried.append(f"{candidate.name} {error:.1g}")
            if error < 1e-9:
                return candidate
    except Exception as why:
        raise OptimizerError(
            f"{name} is not known, and trying it on a small problem raised {type(why).__name__}: {why}. Known: {', '.join(FAMILIES)}. Pass one of these, or a class that takes (params, lr=..., weight_decay=..., eps=...)."
        ) from why
    raise OptimizerError(
        f"a parametrization needs an optimizer whose steps fold: {name} follows none of the known laws (relative error of its trajectory: {', '.join(tried)}). Use one of {', '.join(FAMILIES)}."
    )


def _arguments(cls: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(cls).parameters)
    except (TypeError, ValueError):
        return set()


def _train(cls: Callable[..., Any], a: float, lr: float, hyper: dict[str, Any]) -> Tensor:
    """a^-1 theta after some steps on a curved loss of theta = stored / a, so that every family gives one answer."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    data = torch.randn(STEPS, 5, 3, generator=generator, dtype=torch.float64)
    stored = torch.nn.Parameter(theta * a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = cls([stored], lr=lr, **hyper)
        for x in data:
            optimizer.zero_grad()
            (0.5 * (x @ (stored / a).T).square() - torch.tanh(x @ (stored / a).T)).mean().backward()
            optimizer.step()
    return stored.detach() / a
