"""The user's word on parameters: a role, a branch, a skip, or numbers, by patterns of names.

The last pattern that matches wins for each thing it says. All faults are reported at once.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.errors import faults

ROLES = ("input", "hidden", "readout", "elementwise", "scalar")
WORDS = (*ROLES, "branch", "skip")
NUMBERS = ("init", "lr", "weight_decay", "eps")


class Overrides:
    """What the user says of the parameters `names`.

    >>> said = Overrides({"head.*": "readout", "*.weight": {"lr": 2.0}}, ["head.weight", "stem.weight"])
    >>> said.role("head.weight"), said.numbers("stem.weight")
    ('readout', {'lr': 2.0})

    Raises:
        InputError: a pattern matches nothing, or says what nobody knows.
    """

    def __init__(self, overrides: Mapping[str, Any] | None, names: Sequence[str]):
        self.given = dict(overrides or {})
        problems = [
            fault for pattern, value in self.given.items() for fault in _faults(pattern, value, names)
        ]
        if problems:
            raise faults("overrides must name parameters and say what they are:", problems)

    def patterns(self, word: str) -> tuple[str, ...]:
        return tuple(p for p, v in self.given.items() if v == word)

    def role(self, name: str) -> str | None:
        found = [v for p, v in self.given.items() if v in ROLES and fnmatch.fnmatchcase(name, p)]
        return found[-1] if found else None

    def numbers(self, name: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for pattern, value in self.given.items():
            if isinstance(value, Mapping) and fnmatch.fnmatchcase(name, pattern):
                merged |= value
        return merged


def _faults(pattern: str, value: Any, names: Sequence[str]) -> Iterator[str]:
    if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
        yield f"{pattern!r} matches no parameter; names look like {', '.join(names[:3])}"
    if isinstance(value, Mapping):
        for key, number in value.items():
            yield from (f"{pattern!r}: {fault}" for fault in _number_faults(key, number))
    elif not isinstance(value, str):
        yield f"{pattern!r}: must be a role, 'branch', 'skip' or a dict of numbers: got {value!r}"
    elif value not in WORDS:
        yield f"{pattern!r}: {value!r} is not one of {', '.join(map(repr, WORDS))}"


def _number_faults(key: str, number: Any) -> Iterator[str]:
    if key == "init_law":
        if not isinstance(number, str | int | float) or isinstance(number, bool):
            yield (
                "init_law must be a number (std of the model / std of the base) or the name of a law: "
                f"got {number!r}"
            )
    elif key not in NUMBERS:
        yield f"{key!r} is not one of {', '.join((*NUMBERS, 'init_law'))}"
    elif isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
        yield f"{key} must be a finite number >= 0: got {number!r}"
