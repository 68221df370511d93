"""Whether a model still has the numbers that its own code draws, where a plan would have rescaled them.

A fresh model of the same class in the place of the one that was parametrized (a trainer's `model_init`, a
`reset_parameters` afterwards) trains on scaled rates from unscaled weights, without a word. Its weights give
it away: for a tensor that the plan multiplies by r,

    rms = rms of its own draw              fresh, within the scatter of n numbers, about (2 n)^-1/2
    rms = r x rms of its own draw          rescaled, or trained from there

A trained model has neither in every one of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from trimtab.parametrization.parameters import Row

CLEAR = 1.2  # a factor of the plan, either way, beyond which the two cases can be told apart
LEAST = 1024  # numbers of a tensor, whose rms scatters by 2.2 %; fewer are looked at where they are all one
MOST = 24  # tensors looked at, so that it costs nothing


def rms(x: Tensor) -> float:
    """Root mean square, in double precision.

    >>> rms(Tensor([3.0, 4.0, 0.0, 0.0]))
    2.5
    """
    return float(x.detach().double().square().mean().sqrt())


def _constant(x: Tensor) -> bool:
    return x.numel() > 0 and bool((x.detach() == x.detach().flatten()[0]).all())


def never_rescaled(params: Mapping[str, Tensor], rows: Mapping[str, Row], own: Mapping[str, float]) -> str:
    """The first of the tensors whose size is that of the model's own draw, where all of them are; else empty.

    Args:
        own: {parameter: rms of its own draw}, kept when the plan rescaled it.
    """
    told: list[str] = []
    for name in own:
        p, factor = params.get(name), rows[name].rescale
        if p is None or not factor or not own[name] or type(p.data) is not Tensor or p.is_meta:
            continue
        if abs(math.log(abs(factor))) <= math.log(CLEAR) or not (p.numel() >= LEAST or _constant(p)):
            continue
        if abs(rms(p) / own[name] - 1) > 6 / math.sqrt(2 * max(p.numel(), LEAST)):
            return ""
        told.append(name)
        if len(told) == MOST:
            break
    return told[0] if told else ""
