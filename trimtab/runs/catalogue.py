"""Names in a configuration: one of ours, or the user's own `pkg.mod:function` / `file.py:function`. No torch.

What each of our names takes stands beside it: `models.catalogue`, `data.catalogue`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.data.catalogue import Option
from trimtab.errors import Fault

KINDS: dict[Any, str] = {(int, float): "a number", int: "a whole number", str: "a text"}
LOSSES = ("cross-entropy", "mse")


def unknown(path: str, name: Any, known: Iterable[str], *, own: bool = True, kind: str = "name") -> Fault:
    """A fault that lists the known names and the nearest; `own`: a user's function would do, too.

    >>> print(unknown("model", "resnett", ["mlp", "resnet"]))
    model: unknown name 'resnett', nearest 'resnet'; known: mlp, resnet, or your own file.py:function
    """
    known = list(known)
    near = [k for k in known if k.lower() == str(name).lower()]  # AdamW is adamw, not adam
    near = near or difflib.get_close_matches(str(name), known, n=1)
    nearest = f", nearest {near[0]!r}" if near else ""
    others = ", or your own file.py:function" if own else ""
    return Fault(
        path,
        f"unknown {kind} {str(name)[:80]!r}{nearest}",
        next_step=f"known: {', '.join(known)}{others}",
    )


def is_own(name: Any) -> bool:
    """Whether a name is a user's function rather than one of the zoo's."""
    return isinstance(name, str) and ":" in name


def option_faults(
    what: str, table: Mapping[str, Mapping[str, Option]], name: str, options: Mapping[str, Any]
) -> list[Fault]:
    """Every fault of the options given to one zoo name."""
    found = []
    for key, value in options.items():
        option, path = table[name].get(key), f"{what}_options.{key}"
        if option is None:
            found.append(unknown(f"{what}_options", key, table[name], own=False))
        elif option.among is not None:
            if value not in option.among or isinstance(value, bool) != isinstance(option.among[0], bool):
                among = ", ".join(map(str, option.among))
                found.append(Fault(path, f"must be one of {among}", repr(value)))
        elif value is None and option.default is None:
            continue
        elif value is None or not isinstance(value, option.kind) or isinstance(value, bool):
            found.append(Fault(path, f"must be {KINDS[option.kind]}", repr(value)))
        elif option.above is not None and not option.above < float(value) < math.inf:
            found.append(Fault(path, f"must be > {option.above:g}", repr(value)))
    return found
