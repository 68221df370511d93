"""Which family an optimizer belongs to: by name where torch wrote it, by experiment where someone else did.

An unknown optimizer is tried in float64, at the user's own rate and hyperparameters (`probing`), and must pass two
tests. *Entry*: its step on one entry must not depend on the others, or it moves hidden matrices by a power
of the width of its own. *Fold*: storing a * theta, with lr, decay and eps of its group multiplied by the powers of a of
one known family (docs/theory.md, equation (3)), must give the same path. What fails is refused: it would be silently wrong.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from trimtab.errors import OptimizerError
from trimtab.parametrization import optimizer_trials
from trimtab.parametrization.optimizer_trials import Make, Problem
from trimtab.parametrization.rules import FAMILIES, REFUSED, Family, Scales, factors, family_of

A = 0.37
EXACT = 1e-9  # of the way an entry goes: rounding in float64
ROUNDED = 1e-6  # the same where an implementation may sum in another order
COARSE = 1e-2  # what bfloat16 inside an optimizer does to a factor that is no power of two
_known: dict[Any, Family] = {}


def family(cls: Any, hyper: Mapping[str, Any], lr: float | None = None) -> Family:
    """The family of an optimizer class, with the flags in `hyper` that matter.

    Args:
        hyper: hyperparameters as for the base.
        lr: the base's learning rate; an optimizer that is not torch's own is tried at this rate.

    >>> import torch
    >>> family(torch.optim.AdamW, {}).decay
    'decoupled'
    """
    name = getattr(cls, "__name__", str(cls))
    if not callable(cls):
        raise OptimizerError(f"an optimizer class is needed, such as torch.optim.AdamW: got {cls!r}.")
    in_torch = getattr(cls, "__module__", "").startswith("torch.optim")
    if in_torch or name in REFUSED:
        found = family_of(name, hyper)
        if found is not None and in_torch:
            return found
    rate = lr if lr is not None else hyper.get("lr", default(cls, "lr"))
    rate = float(rate) if isinstance(rate, int | float) and 0 < rate < math.inf else 1e-3
    accepted = {k: v for k, v in hyper.items() if k not in ("lr", "params") and _accepts(cls, k)}
    key = (cls, rate, repr(sorted(accepted.items(), key=lambda item: item[0])))
    if key not in _known:
        _known[key] = _by_experiment(cls, name, accepted, rate)
    return _known[key]


def _by_experiment(cls: Callable[..., Any], name: str, hyper: dict[str, Any], lr: float) -> Family:
    numbers = {"lr": lr}
    for key in ("weight_decay", "eps"):
        value = hyper.get(key, default(cls, key))
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[key] = float(value)
    decays = [numbers.get("weight_decay", 0.0)]
    if "weight_decay" in numbers and not decays[0]:
        decays.insert(
            0, min(0.1, 0.1 / lr)
        )  # to tell its law; where it has none, what is not decayed needs none
    try:
        _refuse_company(cls, name, hyper, numbers)
        tried = {}
        for decay in decays:
            group = numbers | ({"weight_decay": decay} if "weight_decay" in numbers else {})
            make, p = _maker(cls, hyper, lr), optimizer_trials.problem(optimizer_trials.SHAPES)
            path = optimizer_trials.train(make, p, group)
            for candidate in (FAMILIES[k] for k in ("AdamW", "Adam", "SGD", "Lion", "Adadelta")):
                tried[candidate.name] = _fold_error(make, p, path, group, candidate)
                if tried[candidate.name] <= EXACT:
                    _refuse_curvature(make, p, path, group, candidate, name)
                    return candidate
    except OptimizerError:
        raise
    except Exception as why:
        if _differentiates(_maker(cls, hyper, lr), numbers):
            raise OptimizerError(
                f"an optimizer must do with gradients alone: {name} asks for second derivatives, and no rule says how they move with the size. Use one of {', '.join(FAMILIES)}."
            ) from why
        raise OptimizerError(
            f"{name} is not known, and trying it on a small problem raised {type(why).__name__}: {why}. "
            f"Known: {', '.join(FAMILIES)}. Pass one of these, or a class that takes (params, lr=..., weight_decay=..., eps=...)."
        ) from why
    errors = ", ".join(f"{k} {v:.1g}" for k, v in tried.items())
    raise OptimizerError(
        f"a parametrization needs an optimizer whose steps fold: {name} at lr={lr:g} follows none of the known laws "
        f"(relative error of its path: {errors}). Use one of {', '.join(FAMILIES)}."
    )


def _maker(cls: Callable[..., Any], hyper: Mapping[str, Any], lr: float) -> Make:
    """Builds the optimizer as `Parametrization.optimizer` does: the base's numbers, and groups with their own."""
    return lambda groups: cls(groups, lr=lr, **copy.deepcopy(dict(hyper)))


def _refuse_company(
    cls: Callable[..., Any], name: str, hyper: Mapping[str, Any], numbers: dict[str, float]
) -> None:
    """Refuse an optimizer whose step on one entry depends on other entries, at the user's rate or at 1.

    At 1 too, because some estimate their own rate (Prodigy) and at a small one take long to show it.
    """
    for lr in (numbers["lr"], 1.0):
        found = optimizer_trials.company(
            _maker(cls, hyper, lr), numbers | {"lr": lr}, ROUNDED, large=lr == numbers["lr"]
        )
        if math.isnan(found.others) and lr == 1.0:
            return
        what = {
            "changes with the gradients of the other entries": found.others,
            "is not that of the entry alone": found.alone,
            "is another one in a matrix of 130 x 131": found.large,
        }
        for says, much in what.items():
            if not much <= ROUNDED:
                raise OptimizerError(
                    f"an optimizer's step on one entry must not depend on the other entries: with {name} it {says} "
                    f"(by {much:.2g} of the way it goes). A norm, a factored moment or a spectral step over a tensor moves "
                    f"hidden matrices by a power of the width that no known rule undoes. Use one of {', '.join(FAMILIES)}; "
                    "torch.optim.Muon is the spectral one."
                )


def _fold_error(
    make: Make,
    p: Problem,
    path: Tensor,
    group: dict[str, float],
    candidate: Family,
    ways: Sequence[str] = optimizer_trials.WAYS,
) -> float:
    """How far the path of a * theta is from that of theta, under the powers of a of this family.

    In an optimizer that rounds inside, only a power of two is exact: then that counts, if another a is near.
    """
    errors = []
    for a in (A, 0.25):
        f = factors(candidate, Scales().fold(a))
        by = {"lr": f.lr, "weight_decay": f.weight_decay, "eps": f.eps}
        folded = optimizer_trials.train(make, p, {k: v * by[k] for k, v in group.items()}, a, ways=ways)
        error = optimizer_trials.apart(p, path, folded)
        errors.append(math.inf if math.isnan(error) else error)
        if errors[0] <= EXACT or errors[0] > COARSE:
            return errors[0]
    return errors[1]


def _differentiates(make: Make, group: dict[str, float]) -> bool:
    """It runs where gradients can be differentiated (it does not where they cannot)."""
    try:
        optimizer_trials.train(
            make, optimizer_trials.problem(optimizer_trials.SHAPES), group, ways=("graph",)
        )
    except Exception:
        return False
    return True


def _refuse_curvature(
    make: Make, p: Problem, path: Tensor, group: dict[str, float], candidate: Family, name: str
) -> None:
    """An optimizer that uses more than gradients where it gets it (a loss, a Hessian) must fold there too."""
    ways = ("graph",)
    try:
        with_more = optimizer_trials.train(make, p, group, ways=ways)
    except Exception:  # it takes no closure: then it gets nothing more
        return
    if optimizer_trials.apart(p, path, with_more) <= ROUNDED:
        return
    error = _fold_error(make, p, with_more, group, candidate, ways)
    if not error <= EXACT:
        raise OptimizerError(
            f"a parametrization needs an optimizer whose steps fold: {name} does by gradients alone, but where step(closure) "
            f"gives it a loss and gradients that can be differentiated it does not (relative error of its path {error:.1g}). "
            f"Use one of {', '.join(FAMILIES)}."
        )


def _accepts(cls: Callable[..., Any], key: str) -> bool:
    """The constructor takes this argument (an optimizer's `defaults` hold more than that)."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return True
    return key in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def default(cls: Any, key: str) -> Any:
    """An optimizer's default for a hyperparameter, None where it has none."""
    try:
        parameter = inspect.signature(cls).parameters.get(key)
    except (TypeError, ValueError):
        return None
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default
