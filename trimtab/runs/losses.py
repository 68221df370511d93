"""What a loss is taken of, and the losses with a name (NAMED). Runs, sweeps and checks all use these.

    cross-entropy   mean over examples (and positions) of -log softmax(scores)[class], in nats
    mse             (f - y)^2 / 2 summed over outputs, averaged over examples

Classes are on the last axis of the scores, or on the second, where torch has them for images. Where both
would fit (as many classes as pixels in a row) the loss is refused: which one was meant is ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.errors import InputError

IGNORED = -100  # a target that torch's cross-entropy leaves out
OWN = (
    "Pass a loss function of your own: loss = 'file.py:loss' in a file or a command, loss=function in Python"
)
Batch = Any  # (inputs, target), or a dict of keyword arguments


def forward(model: Callable[..., Any], batch: Batch) -> Any:
    """The model's output on a batch: keyword arguments of a dict, else the inputs: a tensor, a tuple or a
    dict."""
    inputs = batch if isinstance(batch, dict) else batch[0]
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def as_batch(made: Any, maker: str) -> Batch:
    """What a user's data function returned, as a batch; `maker`: what an error calls the function.

    >>> as_batch([1, 2], "data(step)"), as_batch({"x": 1}, "data(step)")
    ((1, 2), {'x': 1})
    """
    if isinstance(made, Mapping):
        return dict(made)
    several = isinstance(made, list | tuple)
    if several and len(made) == 2:
        return tuple(made)
    seen = f"{type(made).__name__}{f' of {len(made)}' if several else ''}"
    raise InputError(f"{maker} must return a dict of the model's arguments or (inputs, target): got {seen}.")


def length(batch: Batch) -> int:
    """Examples in a batch."""
    values = batch.values() if isinstance(batch, dict) else [batch[1]]
    return next((len(v) for v in values if isinstance(v, Tensor) and v.ndim), 1)


def logits(output: Any) -> Tensor | None:
    """The tensor of scores in a model's output, if there is one."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        found = output[0]
    return found


def scores_and_target(output: Any, batch: Batch, loss: str) -> tuple[Tensor, Tensor]:
    """(scores, target) that the loss of this name is taken of."""
    scores, target = logits(output), None if isinstance(batch, Mapping) else batch[1]
    if scores is None or not isinstance(target, Tensor):
        given = "a dict batch" if target is None else type(target).__name__
        raise InputError(
            f"{loss} needs a tensor of outputs (or .logits) and a target tensor: got {type(output).__name__} "
            f"and {given}. {OWN}."
        )
    return scores, target


def class_axis(scores: Tensor, target: Tensor) -> int | None:
    """Where the classes are: last, or second as torch has them for images; None where neither fits, or both.

    >>> classes = lambda *shape: torch.zeros(shape, dtype=torch.long)
    >>> class_axis(torch.zeros(2, 3, 4), classes(2, 3)), class_axis(torch.zeros(2, 3, 4), classes(2, 4))
    (-1, 1)
    >>> class_axis(torch.zeros(2, 5, 5, 5), classes(2, 5, 5)) is None
    True
    """
    last = scores.shape[:-1] == target.shape
    if last and scores.ndim < 4:
        return -1
    if scores.ndim > 1 and (scores.shape[0], *scores.shape[2:]) == tuple(target.shape):
        return None if last else 1
    return -1 if last else None


def cross_entropy(output: Any, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats over examples and, for sequences, positions; a dict's own loss where it has
    one.

    >>> round(float(cross_entropy(torch.zeros(2, 3, 4), (None, torch.zeros(2, 3, dtype=torch.long)))), 4)
    1.3863
    """
    if isinstance(batch, Mapping):
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is None:
            raise InputError(
                "a batch that is a dict needs a model whose output has .loss (for transformers: labels in "
                "the "
                f"batch). {OWN}."
            )
        return loss
    scores, target = scores_and_target(output, batch, "cross-entropy")
    shapes = f"the outputs are {tuple(scores.shape)}, the target {tuple(target.shape)}"
    if target.is_floating_point():
        if target.shape != scores.shape or not _sums_to_one(target):
            raise InputError(
                "cross-entropy takes classes, or probabilities over the last dimension, and the target holds "
                "other "
                f"numbers: {shapes}. {OWN}; loss = 'mse' in a file."
            )
        return functional.cross_entropy(scores.flatten(0, -2), target.flatten(0, -2))
    axis = class_axis(scores, target)
    if axis is None:
        raise InputError(
            f"cross-entropy needs one class per output row: {shapes}. {OWN}; loss = 'mse' in a file."
        )
    if axis == 1:
        return functional.cross_entropy(scores, target)
    return functional.cross_entropy(scores.flatten(0, target.ndim - 1), target.flatten())


def _sums_to_one(target: Tensor) -> bool:
    total = target.sum(-1)
    return torch.allclose(total, torch.ones_like(total), atol=1e-3)


def mse(output: Any, batch: Batch) -> Tensor:
    """(f - y)^2 / 2 summed over outputs, averaged over examples; classes count as one-hot targets."""
    f, y = scores_and_target(output, batch, "mse")
    if y.is_floating_point():
        if y.numel() != f.numel():
            raise InputError(
                f"mse needs one number per output: the outputs are {tuple(f.shape)}, the target "
                f"{tuple(y.shape)}."
            )
        y = y.reshape(f.shape)
    else:
        y = functional.one_hot(y, f.shape[-1]).to(f.dtype)
    return (f - y).square().reshape(len(f), -1).sum(1).mean() / 2


NAMED: dict[str, Callable[[Any, Batch], Tensor]] = {"cross-entropy": cross_entropy, "mse": mse}


def count_correct(output: Any, batch: Batch) -> tuple[int, int] | None:
    """(right, all) predictions of a classifier, None where targets are not classes.

    Targets of -100 are not asked, as in the loss.
    """
    scores = logits(output)
    target = batch.get("labels") if isinstance(batch, dict) else batch[1]
    if scores is None or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    if isinstance(batch, dict) and target.ndim > 1:
        return None
    axis = class_axis(scores, target)
    if axis is None:
        return None
    asked = target != IGNORED
    return int(((scores.argmax(axis) == target) & asked).sum()), int(asked.sum())
