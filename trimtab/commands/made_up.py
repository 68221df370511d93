"""A batch for a check without data: random inputs and random targets, shaped by the model, the same at every
step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.coordinates.quantities import output_of
from trimtab.errors import InputError
from trimtab.runs.user_code import build_model
from trimtab.structure.inputs import cure, infer
from trimtab.structure.recording import as_call, untouched

BATCH = 16  # examples of a batch that is made up; four times as many vectors
WANTED = "data(split, seed, step), which returns (inputs, target) or a dict,"


class MadeUp(NamedTuple):
    """Data that was made up: one batch at every step, the loss that goes with it, and what they are, in
    words."""

    data: Callable[[int], Any]
    loss: Any
    words: str


def make_up(name: str, build: Any, loss: Any, base: tuple[int, int], widest: int) -> MadeUp:
    """Random inputs and targets for a model that comes without data.

    Args:
        name: the build as the user wrote it, for the message. loss: the user's own, or None.
        base: (width, depth). widest: width of the widest model measured, which tells widths from data
            dimensions.
    """
    small, wide = (build_model(build, width, base[1], name=name) for width in (base[0], widest))
    found = infer(small, wide, batch=BATCH)
    if found.example is None:
        raise InputError(cure(name, found, "--data", WANTED))
    if found.words.startswith("vectors"):
        found = infer(small, wide, batch=4 * BATCH)
    args, kwargs = as_call(found.example)
    with untouched(small, training=False):
        output = output_of(small(*args, **kwargs))
    target, chosen, words = _target(output, loss)
    said = (
        f"there is no data: inputs were inferred ({found.words}), targets are {words}, one batch at every "
        "step; "
    )
    batch = (found.example, target)
    return MadeUp(lambda step: batch, chosen, said + "pass --data file.py:function to choose")


def _target(output: Tensor, loss: Any) -> tuple[Tensor, Any, str]:
    """Random targets that a loss takes with an output of this shape."""
    generator = torch.Generator().manual_seed(1)
    axis = 1 if output.ndim > 3 else output.ndim - 1
    shape = [n for i, n in enumerate(output.shape) if i != axis]
    classes = torch.randint(0, output.shape[axis], shape, generator=generator)
    numbers = torch.randn(output.shape, generator=generator)
    kinds = {"random classes": classes, "random numbers": numbers}
    if loss is None and output.shape[axis] > 1:
        return classes, None, f"{output.shape[axis]} random classes (cross-entropy)"
    if loss is None:
        return numbers, functional.mse_loss, "random numbers (mean squared error)"
    for words, target in kinds.items():
        try:
            if torch.isfinite(loss(output, target)).all():
                return target, loss, words
        except Exception:  # the other kind may do
            continue
    raise InputError(
        f"the loss takes neither random classes of shape {tuple(classes.shape)} nor numbers of shape "
        f"{tuple(output.shape)}: write {WANTED} beside build, or pass --data file.py:function"
    )
