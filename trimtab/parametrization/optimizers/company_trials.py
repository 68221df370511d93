"""What stands beside an entry: does its path depend on the rest of its tensor, or on other tensors?

Gradients are the entries' own affair in a `Problem`, so whatever an entry's path has from the others it has
from the optimizer. An elementwise optimizer treats an entry alike whether it is alone or in a matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trimtab.errors import OptimizerError
from trimtab.parametrization.optimizers.trials import (
    INSTEAD,
    Problem,
    Trial,
    apart,
    finite_times,
    problem,
)


def company(trial: Trial) -> dict[int, float]:
    """By number of dimensions, how much an entry's path depends on the other entries of its tensor.

    At the user's rate and at 1: some estimate their own rate (Prodigy) and at a small one take long to show
    it.

    Raises:
        OptimizerError: it depends on other tensors.
    """
    limit, p = trial.limit, trial.problem()
    tensors = torch.cat([torch.full((n,), i % 2 == 0) for i, n in enumerate(p.sizes)])
    even = torch.arange(len(p.start)) % 2 == 0
    found, path = dict.fromkeys(trial.dims, 0.0), p.slope
    for lr in (1.0, trial.numbers["lr"]):
        numbers = [trial.numbers | {"lr": lr}] * len(p.shapes)
        path = trial.train(p, numbers)
        if lr == 1.0 and not finite_times(path):
            continue
        other = trial.train(p.changed(tensors), numbers)
        much = max(x for i, x in enumerate(apart(p, path, other, by_tensor=True)) if i % 2)
        if not much <= limit:
            raise OptimizerError(
                f"an optimizer's step on one tensor must not depend on other tensors: with {trial.name} at "
                f"lr={lr:g} it does (by {much:.2g} of the way it goes). A distance or a norm over all "
                f"parameters has units of all of them, and no lr of one undoes it. {INSTEAD}"
            )
        other = trial.train(p.changed(even), numbers)
        for dims in trial.dims:
            found[dims] = max(found[dims], _entries_apart(p, path, other, _entries(trial, p, dims) & ~even))
    return {dims: _in_company(trial, p, path, dims, much) for dims, much in found.items()}


def _entries(trial: Trial, p: Problem, dims: int) -> Tensor:
    """Which entries are in tensors of so many dimensions."""
    own = torch.zeros(len(p.start), dtype=torch.bool)
    for i in trial.of(dims):
        own[p.tensor(i)] = True
    return own


def _in_company(trial: Trial, p: Problem, path: Tensor, dims: int, worst: float) -> float:
    """`worst`, or how far an entry's path in a small or large tensor is from its path alone."""
    own, limit = _entries(trial, p, dims), trial.limit
    if worst <= limit and 1 in trial.dims:
        chosen = torch.nonzero(own).flatten()[::3]
        alone = p.alone(chosen)
        worst = max(worst, max(apart(alone, path[:, chosen], trial.train(alone))))
    if worst <= limit and dims == 2 and 1 in trial.dims:
        big = problem(((130, 131),), dtype=trial.dtype)
        chosen = torch.tensor([0, 129, 131 * 64 + 7, 131 * 130 - 1])
        alone = big.alone(chosen)
        worst = max(worst, max(apart(alone, trial.train(big)[:, chosen], trial.train(alone))))
    return worst


def _entries_apart(p: Problem, one: Tensor, other: Tensor, kept: Tensor) -> float:
    part = p.alone(torch.nonzero(kept).flatten())
    found = apart(part, one[:, kept], other[:, kept])
    return max(math.inf if math.isnan(x) else x for x in found)
