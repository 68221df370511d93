"""Multipliers by role: tuned at base, carried unchanged through size and horizon. Pure arithmetic.

    roles = {"input": {"lr": 0.25, "init": 2.0}, "readout": {"weight_decay": 0.0}}

A parameter of that role gets, at the base and at every other size alike,

    init x 2.0,  lr x 0.25,  weight decay x 1             beside what the rules give

They change what the base *is*; the rules (u, s, clipping, coupled L2) go on to speak of size alone. So a
base whose embedding rate or init scale is off can be mended at base, and does not carry its fault to every
size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from trimtab.errors import faults

ROLES = ("input", "hidden", "readout", "elementwise", "scalar")


@dataclasses.dataclass(frozen=True)
class Multipliers:
    """What one role's numbers are multiplied by, at every size.

    >>> Multipliers(lr=0.25).to_dict()
    {'lr': 0.25}
    """

    init: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0

    def to_dict(self) -> dict[str, float]:
        """Those that say something."""
        return {name: x for name, x in dataclasses.asdict(self).items() if x != 1}


NUMBERS = tuple(field.name for field in dataclasses.fields(Multipliers))


def read_roles(roles: Any) -> dict[str, Multipliers]:
    """The multipliers of each role, checked.

    Args:
        roles: {role: {"init" | "lr" | "weight_decay" | "eps": number}}, or None.

    >>> read_roles({"input": {"lr": 0.25, "init": 2.0}})["input"].init
    2.0

    Raises:
        InputError: with all faults at once.
    """
    if roles is None:
        return {}
    if not isinstance(roles, Mapping):
        raise faults("roles must be {role: {number: multiplier}}:", [f"got {roles!r}"])
    problems: list[str] = []
    for role, numbers in roles.items():
        if role not in ROLES:
            problems.append(f"{role!r} is not one of {', '.join(ROLES)}")
        if not isinstance(numbers, Mapping):
            problems.append(f"{role!r} must be a table of {', '.join(NUMBERS)}: got {numbers!r}")
            continue
        problems += [fault for key, x in numbers.items() if (fault := _fault(role, key, x))]
    if problems:
        raise faults("roles must say what each role's numbers are multiplied by:", problems)
    return {role: Multipliers(**{k: float(x) for k, x in numbers.items()}) for role, numbers in roles.items()}


def _fault(role: Any, key: Any, x: Any) -> str | None:
    """Why a multiplier is none. Decay alone may be 0; what starts or learns at 0 is frozen, which is another
    thing."""
    if key not in NUMBERS:
        return f"{role!r}: {key!r} is not one of {', '.join(NUMBERS)}"
    number = isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
    if not number or x < 0 or (x == 0 and key != "weight_decay"):
        law = ">= 0" if key == "weight_decay" else "> 0"
        return f"{role!r}: {key} must be a finite number {law}: got {x!r}"
    return None


def refuse_absent(roles: Mapping[str, Multipliers], found: Collection[str]) -> None:
    """Raise where a role is multiplied that no parameter has.

    Args:
        found: the roles that the model's parameters have.
    """
    if absent := [role for role in roles if role not in found]:
        raise faults(
            "roles must be those that the model's parameters have:",
            [f"no parameter is {role!r}; there are {', '.join(sorted(found))}" for role in absent],
        )
