"""What a coordinate check is given, looked at before any model is built: every fault at once."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.errors import InputError
from trimtab.parametrization.rules import as_scheme
from trimtab.runs.config import PRECISIONS


def argument_faults(
    build: Any,
    widths: Any,
    depths: Any,
    base: Any,
    data: Any,
    scheme: Any,
    optimizer: Any,
    lr: Any,
    steps: Any,
    seeds: Any,
    loss: Any,
    expect: Any,
    hyper: Any,
    gamma0: Any,
    precision: Any,
) -> list[str]:
    """The faults of `check`'s arguments, named as there, a line each."""
    problems = [
        f"{name} must be callable: got {value!r}"
        for name, value in (("build", build), ("data", data))
        if not callable(value)
    ]
    problems += _size_faults(widths, depths)
    if not (
        isinstance(base, Sequence)
        and not isinstance(base, str)
        and len(base) == 2
        and all(_whole(v) for v in base)
    ):
        problems.append(f"base must be (width, depth), two whole numbers >= 1: got {base!r}")
    for name, value in (("steps", steps), ("seeds", seeds)):
        if not _whole(value):
            problems.append(f"{name} must be a whole number >= 1: got {value!r}")
    if (lr is not None or scheme is not None) and (
        isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < math.inf
    ):
        problems.append(f"lr must be a finite number > 0: got {lr!r}")
    if isinstance(gamma0, bool) or not isinstance(gamma0, int | float) or not 0 < gamma0 < math.inf:
        problems.append(f"gamma0 must be a finite number > 0: got {gamma0!r}")
    if loss is not None and not callable(loss):
        problems.append(f"loss must be callable, loss(output, target): got {loss!r}")
    if hyper is not None and not isinstance(hyper, Mapping):
        problems.append(f"hyper must be a dict of the optimizer's hyperparameters: got {hyper!r}")
    if precision not in PRECISIONS:
        problems.append(f"precision must be one of {', '.join(PRECISIONS)}: got {precision!r}")
    for name, value in (("scheme", scheme), ("expect", expect)):
        try:
            _ = as_scheme(value) if value is not None else None
        except (InputError, TypeError) as error:
            problems.append(str(error) if name == "scheme" else f"{name}: {error}")
    return problems + _optimizer_faults(scheme, optimizer)


def _size_faults(widths: Any, depths: Any) -> list[str]:
    problems = []
    sizes = {}
    for name, values in (("widths", widths), ("depths", depths)):
        good = isinstance(values, Sequence) and not isinstance(values, str) and all(_whole(v) for v in values)
        if not good:
            problems.append(f"{name} must be a list of whole numbers >= 1: got {values!r}")
        else:
            sizes[name] = set(values)
    if len(sizes) == 2 and all(len(s) < 2 for s in sizes.values()):
        problems.append(
            f"a slope needs two sizes: got widths {list(widths)} and depths {list(depths)}; "
            "three or more are better"
        )
    return problems


def _optimizer_faults(scheme: Any, optimizer: Any) -> list[str]:
    a_class = inspect.isclass(optimizer)
    if not callable(optimizer):
        built = f"an {type(optimizer).__name__} that is built already, for one model"
        return [
            "optimizer must be a class, or with scheme=None a callable (model, width, depth) -> optimizer: "
            f"got {built if hasattr(optimizer, 'param_groups') else repr(optimizer)}"
        ]
    if scheme is None and a_class:
        return [
            "scheme=None measures your own set-up: optimizer must be a callable (model, width, depth) "
            f"-> optimizer, got the class {optimizer.__name__}"
        ]
    if scheme is not None and not a_class and not _builds(optimizer):
        return [
            "a callable optimizer is your own set-up: pass scheme=None and expect='depth-mup' (or another "
            "scheme), or pass an optimizer class"
        ]
    return []


def _builds(optimizer: Any) -> bool:
    """A factory that takes parameter groups, such as functools.partial(AdamW, betas=...), is as good as a
    class."""
    return inspect.isclass(getattr(optimizer, "func", None))


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1
