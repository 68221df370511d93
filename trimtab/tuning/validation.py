"""What is wrong with a tune.toml beyond its own keys: [search], the runs, and what they mean together."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trimtab.errors import Fault, InputError
from trimtab.parametrization.rules import as_scheme
from trimtab.runs import catalogue
from trimtab.runs.config import WHOLE, RunConfig
from trimtab.runs.user_code import source_file
from trimtab.sweeps.grid import TAKEN, USERS
from trimtab.tuning.space import FRACTIONS, MULTIPLIERS, NAMES, ROLES, SIMPLE, Axis, settings

RATES = {"sgd": (-8.0, 2.0), "adam": (-12.0, -3.0), "adamw": (-12.0, -3.0), "muon": (-10.0, -2.0)}
RICHNESS, INPUT = (
    (-4.0, 2.0),
    (-4.0, 3.0),
)  # of gamma0 and of the input's rate, where the file has no [search]
SHAPE = "{ log2 = [low, high] } or { from = low, to = high }"
BETWEEN = "two finite numbers, the lower first"
SAME = "so that every value gives the same run"


def read_axes(search: Any, run: Mapping[str, Any], found: list[Fault]) -> list[Axis]:
    """The axes of [search]; where there is none, more than the rate."""
    if search is None:
        return _default(run)
    if not isinstance(search, Mapping):
        return []  # said already
    if not search:
        found.append(
            Fault(
                "search",
                "must name a hyperparameter",
                next_step="leave it out for lr, gamma0 and the input's rate",
            )
        )
    axes = []
    for name, given in search.items():
        if not _known(name):
            found.append(catalogue.unknown("search", name, NAMES, own=False, kind="key"))
        elif isinstance(axis := _axis(name, given), Fault):
            found.append(axis)
        else:
            axes.append(axis)
    return axes


def _default(run: Mapping[str, Any]) -> list[Axis]:
    """How far features move, and the input's own rate, decide with the rate what a base can carry."""
    ranges = {"lr": RATES.get(str(run.get("optimizer", "sgd")), RATES["adamw"]), "gamma0": RICHNESS}
    if "roles" not in run:
        ranges["roles.input.lr"] = INPUT
    return [Axis(name, "log2", low, high) for name, (low, high) in ranges.items() if name not in run]


def _known(name: str) -> bool:
    if name in SIMPLE or name in ("beta1", "beta2", "warmup"):
        return True
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "roles" and parts[1] in ROLES and parts[2] in MULTIPLIERS


def _axis(name: str, given: Any) -> Axis | Fault:
    place = f"search.{name}"
    if not isinstance(given, Mapping) or set(given) not in ({"log2"}, {"from", "to"}):
        return Fault(place, f"must be {SHAPE}", repr(given))
    logarithmic = "log2" in given
    pair = given["log2"] if logarithmic else [given["from"], given["to"]]
    if (
        not isinstance(pair, list | tuple)
        or len(pair) != 2
        or not all(map(_number, pair))
        or pair[0] >= pair[1]
    ):
        return Fault(place, f"{'log2 takes' if logarithmic else 'from and to are'} {BETWEEN}", repr(pair))
    if logarithmic and name in FRACTIONS:
        return Fault(place, "is a fraction", repr(dict(given)), "pass { from = 0.0, to = 0.2 }")
    if logarithmic and max(map(abs, pair)) > 300:
        return Fault(place, "exponents must lie within +-300", repr(pair))
    if name == "warmup" and not 0 <= pair[0] < pair[1] < 1:
        return Fault(place, "is a fraction of the steps, from 0 to below 1", repr(pair))
    return Axis(name, "log2" if logarithmic else "linear", float(pair[0]), float(pair[1]))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def misuse(run: Mapping[str, Any], axes: Sequence[Axis], scheme: str) -> list[Fault]:
    """Keys that the tune fills in, keys given twice, and searches that could not change anything."""
    found = [
        Fault(f"run.{key}", "is filled in by the tune", next_step=f"set {_instead(key)}")
        for key in run
        if key in TAKEN
    ]
    optimizer = str(run.get("optimizer", "sgd"))
    for axis in axes:
        place, field = f"search.{axis.name}", "betas" if axis.name in ("beta1", "beta2") else axis.name
        if field in run and field != "betas":
            found.append(Fault(place, "is also set in run", next_step="keep one of the two"))
        if field in USERS and optimizer not in USERS[field]:
            found.append(Fault(place, f"not used by {optimizer}, {SAME}"))
    try:
        identity = as_scheme(scheme).identity
    except InputError as error:
        return [*found, Fault("scheme", str(error))]
    if identity and any(axis.name == "gamma0" for axis in axes):
        found.append(Fault("search.gamma0", f"scheme {scheme} leaves the model as it is, {SAME}"))
    return found


def _instead(key: str) -> str:
    return {"width": "base and target", "depth": "base and target", "seed": "seeds"}.get(
        key, f"{key} at the top"
    )


def missing_rate(run: Mapping[str, Any], axes: Sequence[Axis]) -> list[Fault]:
    """A tune needs a rate, searched or given."""
    if "lr" in run or any(axis.name == "lr" for axis in axes):
        return []
    return [Fault("search.lr", "is required", next_step="give a range here, or a rate in run")]


def missing_parts(run: Mapping[str, Any], *, metric: str, method: str, same_horizon: bool) -> list[Fault]:
    """What the tune needs and does not have: test examples, modules, the user's files."""
    found = []
    if metric == "test_loss" and run.get("eval_examples") == 0:
        found.append(Fault("metric", "test_loss needs test examples", "run.eval_examples = 0"))
    if not same_horizon and not horizon_is_there():
        law = "rules over batch and tokens are not in this version"
        found.append(Fault("target", law, next_step="give [width, depth]"))
    if method == "optuna" and importlib.util.find_spec("optuna") is None:
        cure = "pip install 'trimtab[optuna]', or method = \"refine\""
        found.append(Fault("method", "optuna is not installed", next_step=cure))
    for key in ("model", "data", "loss"):
        if catalogue.is_own(name := run.get(key)):
            try:
                source_file(str(name).rpartition(":")[0])
            except InputError as error:
                found.append(Fault(f"run.{key}", str(error)))
    return found


def horizon_is_there() -> bool:
    """Whether batch and tokens may differ from the base's: whether a parametrization takes a Horizon."""
    if importlib.util.find_spec("trimtab.parametrization.horizons.horizon") is None:
        return False
    from trimtab.parametrization.result import Parametrization

    return "horizon" in inspect.signature(Parametrization.groups).parameters


def run_faults(
    run: Mapping[str, Any], axes: Sequence[Axis], sizes: Mapping[str, tuple[int, int]], **fields: Any
) -> list[Fault]:
    """What is wrong with the runs at each size and at both ends of the ranges, by the path in the file.

    Args:
        sizes: {path: (width, depth)}; with none the fields are tried at a size that every model takes.
        fields: base and scheme.
    """
    fixed = {key: value for key, value in run.items() if key not in TAKEN}
    found: list[Fault] = []
    for place, (width, depth) in (sizes or {"": (24, 6)}).items():
        for end in (0.0, 1.0):
            numbers = {"lr": 0.1} if "lr" not in run else {}
            numbers |= {axis.name: axis.value(end) for axis in axes}
            try:
                RunConfig(**_placed(numbers, fixed), **fields, width=width, depth=depth)
            except InputError as error:
                named = [_in_file(fault, place, axes) for fault in error.faults]
                found += [fault for fault in named if fault.path and fault not in found]
    return found


def _placed(numbers: Mapping[str, float], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """`settings`, where the fields they go into are sound; else the run alone, which says what is not."""
    betas, steps = fixed.get("betas", ()), fixed.get("steps", 1)
    sound = (
        isinstance(betas, list | tuple)
        and isinstance(steps, int)
        and isinstance(fixed.get("roles", {}), Mapping)
    )
    return settings(numbers, fixed) if sound else {"lr": 0.1, **fixed}


def _in_file(fault: Fault, place: str, axes: Sequence[Axis]) -> Fault:
    sizes = {
        "width": place,
        "depth": place,
        "base": "base",
        "base width": "base",
        "base depth": "base",
        WHOLE: "run",
    }
    if fault.path in sizes:
        return replace(fault, path=sizes[fault.path])
    searched = any(axis.name == fault.path for axis in axes)
    return replace(fault, path=f"{'search' if searched else 'run'}.{fault.path}")
