"""Numbers that the meta device hides: a one-element buffer that the forward multiplies by (sqrt(width)).

A module that can be materialised keeps such a number as a plain attribute too, or it could not be filled in
later. Which attribute it is, the base says, where both are known: the float that equals the buffer there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from trimtab.errors import InputError
from trimtab.parametrization.comparison.names import template


def numbers(model: nn.Module, base: nn.Module) -> dict[str, float]:
    """{name: value} for buffers of one element on meta whose module has their value as a float of its own.

    >>> import torch
    >>> class Scaled(nn.Linear):
    ...     def __init__(self, n):
    ...         super().__init__(n, n)
    ...         self.scale = n**0.5
    ...         self.register_buffer("by", torch.tensor(self.scale))
    >>> with torch.device("meta"):
    ...     model = Scaled(16)
    >>> numbers(model, Scaled(4))
    {'by': 4.0}
    """
    twins = {template(name): name for name, _ in reversed(list(base.named_buffers()))}
    found: dict[str, float] = {}
    for name, buffer in model.named_buffers():
        twin = twins.get(template(name))
        if not buffer.is_meta or buffer.numel() != 1 or not buffer.is_floating_point() or twin is None:
            continue
        value = base.get_buffer(twin)
        if value.is_meta or value.numel() != 1:
            continue
        own, other = (
            vars(model.get_submodule(name.rpartition(".")[0])),
            vars(base.get_submodule(twin.rpartition(".")[0])),
        )
        called = [
            k
            for k, x in other.items()
            if isinstance(x, float)
            and math.isclose(x, float(value), rel_tol=1e-6)
            and isinstance(own.get(k), float)
        ]
        if len({own[k] for k in called}) == 1:
            found[name] = own[called[0]]
    return found


def confirm(model: nn.Module, assumed: Mapping[str, float]) -> None:
    """Raise where a materialised model holds another number than the one that was planned with."""
    buffers = dict(model.named_buffers())
    for name, number in assumed.items():
        if (
            name in buffers
            and not buffers[name].is_meta
            and not math.isclose(float(buffers[name]), number, rel_tol=1e-2)
        ):
            raise InputError(
                f"the model must hold the constants it was planned with: the buffer {name} is "
                f"{float(buffers[name]):.6g}, and {number:.6g} was read off its module on meta. "
                "Fill it in before apply, or parametrize the materialised model."
            )
