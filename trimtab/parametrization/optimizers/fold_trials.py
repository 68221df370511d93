"""Under which law an optimizer's path folds (docs/theory.md, equation (3)).

Storing a theta, with lr, decay and eps of its group multiplied by powers of a, must give the same path: over
400 steps and then late ones, every tensor with an a of its own. Candidates are tried on a few steps, what is
left on all. In an optimizer that rounds inside, only powers of two are exact, and these are used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import OptimizerError
from trimtab.parametrization.optimizers.families import FAMILIES, Family, factors
from trimtab.parametrization.optimizers.trials import (
    INSTEAD,
    LONG,
    QUICK,
    ROUNDED,
    Numbers,
    Problem,
    Trial,
    apart,
    finite_times,
)
from trimtab.parametrization.rules import Scales

EXACT = 1e-9  # of the way an entry goes, over a few steps: rounding in float64
COARSE = 1e-2  # what low precision inside an optimizer does to a factor that is no power of two
BFLOAT = 0.1  # the same to a spectral step, whose iteration in bfloat16 rounds many times
ANY = (0.37, 2.3, 1.7, 0.6, 2.3, 0.37)
FOURS = (0.25, 4.0, 4.0, 0.25, 4.0, 0.25)  # exact in every precision, roots of fourth order too
CANDIDATES = (
    *(FAMILIES[name] for name in ("AdamW", "Adam", "SGD", "Lion", "Adadelta")),
    Family("AdamW, eps in squares", "u", "decoupled", 2),
    Family("Adam, eps in squares", "u", "coupled", 2),
    Family("sign", "u", "coupled", 0),
    Family("SGD with eps", "u/s", "ratio", 1),
    Family("relative", "u/init", "decoupled", 0),
    Family("relative with eps", "u/init", "decoupled", 1),
    Family("relative, coupled", "u/init", "coupled", 1),
)


@dataclasses.dataclass(frozen=True)
class Fold:
    """A family under which a path folds: with what a, and how far it is off over the long and late steps."""

    family: Family
    a: tuple[float, ...]
    error: float


def _folded(group: Numbers, candidate: Family, a: float) -> Numbers:
    f = factors(candidate, Scales().fold(a))
    by = {"lr": f.lr, "weight_decay": f.weight_decay, "eps": f.eps}
    return {k: v * by[k] for k, v in group.items()}


def _errors(
    trial: Trial,
    p: Problem,
    path: Tensor,
    group: Numbers,
    use: Mapping[int, tuple[Family, Sequence[float]]],
    mixed: set[int],
    **more: Any,
) -> dict[int, float]:
    """By number of dimensions, how far the path of a theta is from that of theta, under these families."""
    a = [use[len(shape)][1][i] for i, shape in enumerate(p.shapes)]
    numbers = [_folded(group, use[len(shape)][0], a[i]) for i, shape in enumerate(p.shapes)]
    folded = trial.train(p, numbers, a=a, **more)
    found = {}
    for dims in trial.dims:
        each = apart(p, path, folded, by_tensor=dims in mixed)
        found[dims] = max(math.inf if math.isnan(each[i]) else each[i] for i in trial.of(dims))
    return found


def _survivors(
    trial: Trial, group: Numbers, mixed: set[int], tried: dict[str, float]
) -> dict[int, list[tuple[Family, tuple[float, ...]]]]:
    """By number of dimensions, the candidates under which a short path folds; `tried` gets the errors on
    matrices.

    In an optimizer that rounds inside, only a power of two is exact: then that counts, if another a is as
    near as the optimizer's own precision lets it be.
    """
    p = trial.problem(QUICK, decades=1.0 if mixed else 6.0)
    path = trial.train(p, [group] * len(p.shapes))
    coarse = _precision(trial, p, path, group, mixed)
    found: dict[int, list[tuple[Family, tuple[float, ...]]]] = {dims: [] for dims in trial.dims}
    for candidate in CANDIDATES:
        any_a = _errors(trial, p, path, group, dict.fromkeys(trial.dims, (candidate, ANY)), mixed)
        near = [d for d in trial.dims if EXACT < any_a[d] <= coarse[d]]
        fours = any_a
        if near:
            fours = _errors(trial, p, path, group, dict.fromkeys(trial.dims, (candidate, FOURS)), mixed)
        for dims in trial.dims:
            if any_a[dims] <= EXACT:
                found[dims].append((candidate, ANY))
            elif dims in near and fours[dims] <= EXACT:
                found[dims].append((candidate, FOURS))
        tried[candidate.name] = max(fours[d] if d in near else any_a[d] for d in trial.dims)
        if candidate.name == "Adadelta" and all(found.values()):
            break
    return found


def _precision(trial: Trial, p: Problem, path: Tensor, group: Numbers, mixed: set[int]) -> dict[int, float]:
    """By number of dimensions, what rounding does to a path.

    A spectral step has directions that only rounding decides (the null space of the first gradient, for
    SOAP): there it is measured, by gradients that differ in the last digits.
    """
    found = dict.fromkeys(trial.dims, COARSE)
    if mixed:
        noise = torch.randn(p.slope.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        near = dataclasses.replace(
            p, slope=p.slope * (1 + 8 * torch.finfo(trial.dtype).eps * noise.to(trial.dtype))
        )
        each = apart(p, path, trial.train(near, [group] * len(p.shapes)), by_tensor=True)
        found |= {d: max(BFLOAT, *(3 * each[i] for i in trial.of(d))) for d in mixed}
    return found


def fold(trial: Trial, mixed: set[int]) -> dict[int, Fold]:
    """By number of dimensions, the first family under which the long and late path folds.

    Raises:
        OptimizerError: there is none.
    """
    tried: dict[str, float] = {}
    long = 0.0
    for group in _groups(trial.numbers):
        left = _survivors(trial, group, mixed, tried)
        p = trial.problem(LONG, decades=1.0 if mixed else 6.0)
        path = trial.train(p, [group] * len(p.shapes))
        done: dict[int, Fold] = {}
        while all(left.values()):
            use = {dims: candidates[0] for dims, candidates in left.items()}
            errors = _errors(trial, p, path, group, use, mixed)
            done |= {d: Fold(*use[d], errors[d]) for d in errors if errors[d] <= ROUNDED}
            if len(done) == len(errors):
                _refuse_curvature(trial, group, use, mixed)
                _refuse_own_rate(trial, use, mixed)
                return done
            long = max(long, *errors.values())
            left = {d: c if d in done else c[1:] for d, c in left.items()}
    errors = ", ".join(f"{k} {v:.1g}" for k, v in sorted(tried.items(), key=lambda item: item[1])[:3])
    late = f"; over {LONG} steps and late ones {long:.1g}" if long else ""
    raise OptimizerError(
        f"a parametrization needs an optimizer whose steps fold: {trial.name} at lr={trial.numbers['lr']:g} "
        f"follows none of the known laws (relative error of its path by the nearest: {errors}{late}). "
        f"Something in it is in absolute units. {INSTEAD}"
    )


def _refuse_own_rate(
    trial: Trial, use: Mapping[int, tuple[Family, Sequence[float]]], mixed: set[int]
) -> None:
    """A step that mixes entries must fold at lr = 1 too: an estimated distance hides at small rates."""
    if not mixed:
        return
    p = trial.problem(decades=1.0)
    group = trial.numbers | {"lr": 1.0} | ({"weight_decay": 0.0} if "weight_decay" in trial.numbers else {})
    path = trial.train(p, [group] * len(p.shapes))
    error = max(_errors(trial, p, path, group, use, mixed).values())
    if finite_times(path) and not error <= ROUNDED:
        raise OptimizerError(
            f"a parametrization needs an optimizer whose steps fold: {trial.name} does at "
            f"lr={trial.numbers['lr']:g} and not at lr=1 (relative error of its path {error:.1g}), so it "
            f"follows none of the known laws for long. {INSTEAD}"
        )


def _groups(numbers: Numbers) -> list[Numbers]:
    """With decay, to tell its law; then as the user has it, for what has none needs no law of it."""
    if numbers.get("weight_decay", 1.0):
        return [numbers]
    return [numbers | {"weight_decay": min(0.1, 0.1 / numbers["lr"])}, numbers]


def _refuse_curvature(
    trial: Trial, group: Numbers, use: Mapping[int, tuple[Family, Sequence[float]]], mixed: set[int]
) -> None:
    """An optimizer that uses more than gradients where it gets it (a loss, a Hessian) must fold there too."""
    p = trial.problem(decades=1.0 if mixed else 6.0)
    numbers = [group] * len(p.shapes)
    try:
        path, with_more = trial.train(p, numbers), trial.train(p, numbers, ways=("graph",))
    except Exception:  # it takes no closure: then it gets nothing more
        return
    if max(apart(p, path, with_more, by_tensor=bool(mixed))) <= trial.limit:
        return
    error = max(_errors(trial, p, with_more, group, use, mixed, ways=("graph",)).values())
    if not error <= EXACT:
        raise OptimizerError(
            f"a parametrization needs an optimizer whose steps fold: {trial.name} does by gradients alone, "
            "but where step(closure) gives it a loss and gradients that can be differentiated it does not "
            f"(relative error of its path {error:.1g}). {INSTEAD}"
        )
