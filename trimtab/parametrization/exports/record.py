"""What every export starts from, what it is, and how it is read back.

An export is data in the tool's own words, a text to paste, and a list of what the tool cannot say. It is read
back the way the tool reads it, parameter by parameter, before it is returned:

    read(data)[name] = {lr: base lr x factor, weight_decay: base wd x factor, eps: base eps x factor}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trimtab.errors import InputError
from trimtab.parametrization.optimizers.groups import merge_equal
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.rules import Scheme

Numbers = dict[str, dict[str, float]]  # {name: {"lr", "weight_decay", "eps"}}
Reader = Callable[[Any, Iterable[str]], Numbers]

CLIPPING = (
    "clipping: the tool clips by the plain norm of all gradients, which moves with the size of the model; "
    "p.clip_grad_norm_ in your own loop means the same at every size."
)
START = (
    "init: the tool has no word for the start. Rescale the model before training (trimtab.parametrize or "
    "p.apply does it in place), or train from weights saved after it."
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is exported: an optimizer, its numbers at the base, and what each parameter gets of them.

    Attributes:
        optimizer: the class's name.
        base: the base's hyperparameters: lr, weight_decay, eps, betas or momentum and what else was given.
        shared: betas, momentum or alpha as they become by batch and length; empty where they stay.
        factors: {name: {"lr", "weight_decay", "eps"}} relative to base.
        numbers: the same, multiplied by the base's, without what the optimizer has not.
    """

    optimizer: str
    base: Mapping[str, Any]
    shared: Mapping[str, Any]
    factors: Mapping[str, Mapping[str, float]]
    numbers: Mapping[str, Mapping[str, float]]
    rows: Mapping[str, Row]
    aliases: Mapping[str, str]
    scheme: Scheme
    width: float
    depth: float | Mapping[str, float]

    @property
    def groups(self) -> list[tuple[list[str], dict[str, float]]]:
        """[(names, their numbers)], equal numbers together."""
        return merge_equal(self.numbers)

    @property
    def rest(self) -> dict[str, Any]:
        """Hyperparameters that are the same for every parameter, as they are at this size."""
        own = {"lr", "weight_decay", "eps"}
        return {key: x for key, x in self.base.items() if key not in own} | dict(self.shared)

    def start(self, name: str) -> float:
        """The scale of a parameter's start over its twin's in the base, its role's multiplier included."""
        row = self.rows[name]
        return row.init * dict(row.multipliers).get("init", 1.0)


@dataclasses.dataclass(frozen=True)
class Export:
    """A parametrization in another tool's words.

    Attributes:
        tool: its name, as given to `p.export`.
        data: plain data: dicts, lists, numbers, strings.
        text: what to paste into a file of the tool's project, as Python or JSON.
        lost: what the tool cannot say, each with what to do about it.
        numbers: {name: {"lr", "weight_decay", "eps"}} as read back from `data`.
    """

    tool: str
    data: Any
    text: str
    lost: tuple[str, ...]
    numbers: Numbers = dataclasses.field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.text


def read_back(export: Export, read: Reader, settings: Settings) -> Export:
    """The export with its numbers as the tool reads them.

    Raises:
        InputError: the tool would read another number, or none, for some parameter.
    """
    found = read(export.data, settings.numbers)
    for name, wanted in settings.numbers.items():
        for key, x in wanted.items():
            got = found.get(name, {}).get(key, math.nan)
            if not math.isclose(got, x, rel_tol=1e-12, abs_tol=0.0):
                raise InputError(
                    f"an export must be read as it was meant: {export.tool} reads {key} = {got:.6g} for "
                    f"{name}, meant is {x:.6g}. Rename the parameter, or choose without it by only=."
                )
    return dataclasses.replace(export, numbers=found)


def literal(x: Any, indent: int = 0) -> str:
    """Data as Python text, one entry to a line where it does not fit.

    >>> print(literal({"lr": 0.1, "betas": (0.9, 0.95)}))
    {'lr': 0.1, 'betas': (0.9, 0.95)}
    """
    flat = repr(x)
    pad, close = " " * (indent + 4), " " * indent
    if len(flat) + indent <= 100 or not isinstance(x, dict | list) or not x:
        return flat
    if isinstance(x, dict):
        lines = [f"{pad}{k!r}: {literal(v, indent + 4)}," for k, v in x.items()]
        return "\n".join(["{", *lines, close + "}"])
    return "\n".join(["[", *(f"{pad}{literal(v, indent + 4)}," for v in x), close + "]"])
