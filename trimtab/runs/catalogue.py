"""Names in a configuration: one of ours, or the user's own `pkg.mod:function` / `file.py:function`. No torch.

What each of our names takes stands beside it: `models.catalogue`, `data.catalogue`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.data.catalogue import Option

LOSSES = ("cross-entropy", "mse")


def unknown(what: str, name: Any, known: Iterable[str], *, own: bool = True) -> str:
    """A fault that lists the known names and the nearest.

    >>> unknown("model", "resnett", ["mlp", "resnet"])
    "model: unknown name 'resnett', nearest 'resnet'; known: mlp, resnet, or your own pkg.mod:function"
    """
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return (
        f"{what}: unknown name {str(name)[:80]!r}{f', nearest {near[0]!r}' if near else ''}; known: "
        f"{', '.join(known)}{', or your own pkg.mod:function' if own else ''}"
    )


def own(name: Any) -> bool:
    """Whether a name is a user's function rather than one of the zoo's."""
    return isinstance(name, str) and ":" in name


def option_faults(
    what: str, table: Mapping[str, Mapping[str, Option]], name: str, options: Mapping[str, Any]
) -> list[str]:
    """Every fault of the options given to one zoo name."""
    found = []
    for key, value in options.items():
        option = table[name].get(key)
        if option is None:
            found.append(unknown(f"{what}_options", key, table[name], own=False))
        elif option.among is not None:
            if value not in option.among or isinstance(value, bool) != isinstance(option.among[0], bool):
                found.append(
                    f"{what}_options.{key}: must be one of {', '.join(map(str, option.among))}: got {value!r}"
                )
        elif value is None and option.default is None:
            continue
        elif value is None or not isinstance(value, option.kind) or isinstance(value, bool):
            wanted = (
                "a number"
                if option.kind == (int, float)
                else {int: "a whole number", str: "a text"}[option.kind]
            )  # type: ignore[index]
            found.append(f"{what}_options.{key}: must be {wanted}: got {value!r}")
        elif option.above is not None and not option.above < float(value) < math.inf:
            found.append(f"{what}_options.{key}: must be > {option.above:g}: got {value!r}")
    return found
