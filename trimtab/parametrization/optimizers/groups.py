"""From numbers per parameter to an optimizer's parameter groups, and the check that they are still there.

    group = {lr: lr x factor, weight_decay: wd x factor, eps: eps x factor}

Parameters with equal numbers share one.

A scheduler may move all rates together: lr / factor must stay one number over all groups. See docs/theory.md,
equations (5) and (7).
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import InputError, OptimizerError, faults
from trimtab.parametrization.optimizers import families
from trimtab.parametrization.optimizers.families import Family
from trimtab.parametrization.optimizers.lookup import default
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.rules import Scheme

Only = str | Callable[[Row], bool] | None
NoDecay = str | Iterable[str] | Callable[[Row], bool] | None
Factors = dict[str, dict[str, float]]  # {name: {"lr", "weight_decay", "eps"}}
REGROUPED = "Something regrouped the parameters: hand over p.optimizer(...) or p.groups(...)."


def factor_table(rows: Mapping[str, Row], scheme: Scheme, family: Family) -> Factors:
    """What each parameter multiplies the base's hyperparameters by, the user's overrides last."""
    table: Factors = {}
    for name, row in rows.items():
        f = families.factors_for(family, row.scales, row.shape, row.base_shape)
        f = families.Factors() if scheme.identity else f
        table[name] = dict(lr=f.lr, weight_decay=f.weight_decay, eps=f.eps) | dict(row.override)
    return table


def choose(rows: Mapping[str, Row], only: Only) -> list[str]:
    """The names that `only` stands for.

    Raises:
        InputError: it is a pattern that matches nothing.
    """
    if only is None:
        return list(rows)
    if callable(only):
        return [name for name, row in rows.items() if only(row)]
    if only in ("matrices", "rest"):
        return [name for name, row in rows.items() if row.muon == (only == "matrices")]
    chosen = [name for name in rows if fnmatch.fnmatchcase(name, only)]
    if not chosen:
        raise InputError(
            "only must be 'matrices', 'rest', a pattern of parameter names or a function of a row: "
            f"{only!r} matches none of {len(rows)} names."
        )
    return chosen


def exempt(rows: Mapping[str, Row], aliases: Mapping[str, str], no_decay: NoDecay) -> set[str]:
    """The names that `no_decay` exempts from weight decay.

    Raises:
        InputError: with every pattern that matches nothing.
    """
    if no_decay is None:
        return set()
    if callable(no_decay):
        return {name for name, row in rows.items() if no_decay(row)}
    called = {name: [name, *(a for a, n in aliases.items() if n == name)] for name in rows}
    chosen: set[str] = set()
    problems = []
    for pattern in [no_decay] if isinstance(no_decay, str) else list(no_decay):
        if not isinstance(pattern, str):
            problems.append(f"{pattern!r} is no pattern of names")
            continue
        found = {name for name, also in called.items() if any(fnmatch.fnmatchcase(a, pattern) for a in also)}
        if not found:
            problems.append(f"{pattern!r} matches no parameter; names look like {', '.join(list(rows)[:3])}")
        chosen |= found
    if problems:
        law = "no_decay must be a pattern of parameter names, a list of them or a function of a row:"
        raise faults(law, problems)
    return chosen


def numbers_by_name(
    cls: Any,
    lr: float,
    names: Iterable[str],
    rows: Mapping[str, Row],
    factors: Factors,
    family: Family,
    hyper: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """{name: {"lr", "weight_decay", "eps"}} as the optimizer is to have them, without what it has not.

    Raises:
        OptimizerError: a matrix optimizer is given something else, or decay would undo a folded gain.
    """
    decay, eps = (hyper.get(key, default(cls, key)) for key in ("weight_decay", "eps"))
    numbers: dict[str, dict[str, float]] = {}
    for name in names:
        f = factors[name]
        _refuse_misfit(rows[name], family, decays=bool(decay and f["weight_decay"]))
        numbers[name] = {"lr": lr * f["lr"]}
        if isinstance(decay, int | float):
            numbers[name]["weight_decay"] = decay * f["weight_decay"]
        if isinstance(eps, int | float) and family.eps:
            numbers[name]["eps"] = eps * f["eps"]
    return numbers


def merge_equal(numbers: Mapping[str, Mapping[str, float]]) -> list[tuple[list[str], dict[str, float]]]:
    """[(names, their numbers)]: names with the same numbers, to 12 digits, together, in order.

    >>> merge_equal({"a": {"lr": 0.1}, "b": {"lr": 0.2}, "c": {"lr": 0.1}})
    [(['a', 'c'], {'lr': 0.1}), (['b'], {'lr': 0.2})]
    """
    merged: dict[tuple[float, ...], tuple[list[str], dict[str, float]]] = {}
    for name, own in numbers.items():
        key = tuple(float(f"{v:.12e}") for v in own.values())
        merged.setdefault(key, ([], dict(own)))[0].append(name)
    return list(merged.values())


def make_groups(
    chosen: Mapping[str, nn.Parameter],
    numbers: Mapping[str, Mapping[str, float]],
    memories: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The groups of the trainable parameters among `chosen`; a decay factor of 0 exempts a parameter.

    Args:
        numbers: of each trainable parameter, as `numbers_by_name` gives them.
        memories: betas, momentum, alpha that every group carries in place of the base's.

    Raises:
        InputError: nothing is left to train.
    """
    if not numbers:
        raise InputError(
            "no trainable parameter is left for this optimizer: all are frozen or excluded by only=."
        )
    return [
        {"params": [chosen[name] for name in names], **own, **memories} for names, own in merge_equal(numbers)
    ]


def _refuse_misfit(row: Row, family: Family, *, decays: bool) -> None:
    if family.rate == "spectral" and len(row.shape) != 2:
        raise OptimizerError(
            f"{family.name} trains matrices only: {row.name} has {len(row.shape)} dimensions. "
            "Pass only='matrices' here and p.optimizer(torch.optim.AdamW, ..., only='rest') beside it."
        )
    start = row.init * dict(row.multipliers).get("init", 1.0)
    if row.offset and start != 1 and decays and "weight_decay" not in dict(row.override):
        raise OptimizerError(
            f"{row.name} is a gain stored as 1 + w, folded to {start:.4g}: decay would pull it back to 1. "
            f"Exempt it: no_decay='{row.name}' here, or "
            f"overrides={{'{row.name}': {{'weight_decay': 0}}}} in parametrize."
        )


def factors_by_group(optimizer: Any, names: Mapping[int, str], expected: Factors) -> list[dict[str, float]]:
    """The factors each group of an optimizer should carry.

    Args:
        names: of the parametrization's parameters, by identity.

    Raises:
        OptimizerError: a group mixes parameters with different factors, or holds unknown ones.
    """
    result = []
    for i, group in enumerate(optimizer.param_groups):
        own = names_in(group, names)
        unknown = [p for p in group["params"] if id(p) not in names] if own is None else []
        strange = [name for name in own or () if name not in expected]
        if own is None or strange:
            raise OptimizerError(
                f"group {i} holds {len(unknown or strange)} parameters that are not of the parametrized "
                "model. Build it with p.groups(..., model=the wrapped model)."
            )
        found = [(name, expected[name]) for name in own]
        for name, f in found:
            _refuse_mixture(i, group, found[0], (name, f))
        result.append(found[0][1] if found else dict(lr=1.0, weight_decay=1.0, eps=1.0))
    return result


def names_in(group: Mapping[str, Any], names: Mapping[int, str]) -> list[str] | None:
    """The names of a group's parameters, None where they are not known.

    ZeRO trains flat pieces in place of the parameters and keeps a group's other keys, so that the `names` the
    DeepSpeed export puts there say what is in it.
    """
    if all(id(p) in names for p in group["params"]) and (group["params"] or "names" not in group):
        return [names[id(p)] for p in group["params"]]
    said = group.get("names")
    return list(said) if isinstance(said, list | tuple) else None


def _refuse_mixture(
    i: int, group: Mapping[str, Any], first: tuple[str, dict[str, float]], other: tuple[str, dict[str, float]]
) -> None:
    for key, value in other[1].items():
        matters = {"lr": True, "eps": "eps" in group, "weight_decay": bool(group.get("weight_decay"))}
        if matters.get(key, True) and not math.isclose(value, first[1][key], rel_tol=1e-9):
            raise OptimizerError(
                f"group {i} mixes parameters whose {key} factors differ: {first[0]} {first[1][key]:.6g}, "
                f"{other[0]} {value:.6g}. {REGROUPED}"
            )


def check_factors(optimizer: Any, expected: list[dict[str, float]], undecayed: set[int]) -> None:
    """Raise unless each of lr, weight decay and eps, over its factor, is one number over all groups.

    Args:
        expected: by group, as `factors_by_group` gives them.
        undecayed: groups that are to have no decay.
    """
    for key in ("lr", "weight_decay", "eps"):
        bases = _base_values(optimizer, key, expected, undecayed)
        near = 1e-5 if any(isinstance(g.get(key), Tensor) for g in optimizer.param_groups) else 1e-7
        for i, x in bases[1:]:
            j, y = bases[0]
            if not math.isclose(x, y, rel_tol=near, abs_tol=0.0):
                erased = "A trainer or a reload has erased the factors: rebuild with p.optimizer."
                raise OptimizerError(
                    f"{key} divided by its factor must be one number over all groups: group {j} gives "
                    f"{y:.6g}, group {i} gives {x:.6g}. "
                    f"{_schedule_advice(optimizer) if key == 'lr' else erased}"
                )


def _base_values(
    optimizer: Any, key: str, expected: list[dict[str, float]], undecayed: set[int]
) -> list[tuple[int, float]]:
    """(group, its number over its factor); at lr = 0 (a warmup's first step) `initial_lr` stands for lr."""
    groups = optimizer.param_groups
    standing = key == "lr" and all(float(g["lr"]) == 0 for g in groups)
    bases: list[tuple[int, float]] = []
    for i, (group, f) in enumerate(zip(groups, expected, strict=True)):
        if key not in group or (key == "weight_decay" and i in undecayed):
            continue
        value = float(group.get("initial_lr", group[key]) if standing else group[key])
        if f[key] != 0:
            bases.append((i, value / f[key]))
        elif value != 0:
            raise OptimizerError(
                f"{key} of group {i} must be 0 (an override or its role says so): it is {value:.6g}."
            )
    return bases


def groups_without_decay(
    optimizer: Any, names: Mapping[int, str], exempted: set[str], decayed: set[str]
) -> set[int]:
    """The groups that `no_decay` leaves without decay.

    Raises:
        OptimizerError: parameters that are always exempt are decayed.
    """
    found = set[int]()
    for i, group in enumerate(optimizer.param_groups):
        own = set(names_in(group, names) or ())
        decay = float(group.get("weight_decay") or 0.0)
        always = sorted(own & exempted - decayed)
        if decay and always:
            raise OptimizerError(
                f"weight_decay of {always[0]} must be 0 (no_decay says so): group {i} has {decay:.6g}. "
                f"{REGROUPED}"
            )
        if own and own <= exempted and not decay:
            found.add(i)
    return found


def innermost(optimizer: Any) -> Any:
    """The optimizer inside a trainer's wrapper (Accelerate's, and so Hugging Face's).

    Raises:
        InputError: it is none.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if not hasattr(optimizer, "param_groups"):
        kind = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise InputError(f"an optimizer is needed, as p.optimizer(...) returns it: got {kind}.")
    return optimizer


def check_rate(lr: Any) -> None:
    """Raise unless `lr` is a learning rate."""
    number = float(lr) if isinstance(lr, int | float | Tensor) and not isinstance(lr, bool) else math.nan
    if not 0 <= number < math.inf:
        raise InputError(f"lr must be a finite number >= 0, the base's learning rate: got {lr!r}.")


def _floor(optimizer: Any) -> float | None:
    """The floor that a schedule holds all groups to, over the base's rate: d > 0 in lr = c initial_lr + d."""
    groups = [(float(g["initial_lr"]), float(g["lr"])) for g in optimizer.param_groups if "initial_lr" in g]
    base = float(optimizer.defaults.get("lr") or 0.0)
    (x0, y0), (x1, y1) = min(groups, default=(0.0, 0.0)), max(groups, default=(0.0, 0.0))
    if x0 == x1 or not base:
        return None
    c = (y1 - y0) / (x1 - x0)
    d = y0 - c * x0
    fits = all(math.isclose(y, c * x + d, rel_tol=1e-6) for x, y in groups)
    return d / (1 - c) / base if fits and 0 <= c < 1 - 1e-9 and d > 0 else None


def _schedule_advice(optimizer: Any) -> str:
    """What to do about a schedule in absolute rates, as lines that run."""
    floor = _floor(optimizer)
    f, rest = ("f", "(1 - f)") if floor is None else (f"{floor:.6g}", f"{1 - floor:.6g}")
    line = (
        "torch.optim.lr_scheduler.LambdaLR(optimizer, "
        f"lambda t: {f} + {rest} * (1 + math.cos(math.pi * t / T_max)) / 2)"
    )
    end = (
        ", with f = x / lr, the base's."
        if floor is None
        else f", a floor of {floor:.6g} times the rate in each group."
    )
    return (
        "A schedule with an absolute peak or floor, a trainer or a reload has erased the factors. Build "
        "the optimizer anew with p.optimizer. Then:\n"
        "  - OneCycleLR(max_lr=x), CyclicLR(base_lr=x, max_lr=y), ReduceLROnPlateau(min_lr=x): pass "
        "p.lrs(optimizer, x) in place of x\n"
        '  - a loop that sets group["lr"] = x: take the rates from p.lrs(optimizer, x), one for each group\n'
        f"  - CosineAnnealingLR(eta_min=x), one number for all groups: use {line} in its place{end}"
    )
