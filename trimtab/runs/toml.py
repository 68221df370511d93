"""Read a TOML file or a dict in its place, and what its values may be.

A file that is missing, too large or no TOML is refused with its path.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trimtab.errors import InputError

LARGEST = 10_000_000  # bytes
WHOLE = "must be a list of whole numbers >= 1, none twice"


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file. Whoever uses them looks for `file.py:function` in its folder
    (`files.looking_in`).

    Raises:
        InputError: the path, and where in the file the fault is.
    """
    place = Path(path)
    try:
        if place.stat().st_size > LARGEST:
            raise InputError(
                f"{place} must be a TOML file of at most {LARGEST:,} bytes: it has {place.stat().st_size:,}."
            )
        content = place.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(
            f"{place} could not be read: {error.strerror}. `trimtab new {place}` writes an example of a "
            f"sweep, `trimtab new --tune {place}` one of a tune."
        ) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{place} must be a TOML file in UTF-8: {error}.") from error
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{place} is not TOML: {error}.") from error


# keys at the top of a file that tell whose it is, and the command that takes it
KINDS = {
    "sweep": (("axes",), "trimtab sweep"),
    "tune": (("target",), "trimtab tune"),
    "run": (("width", "depth"), "trimtab train"),
}
EXAMPLES = {
    "sweep": "; `trimtab new FILE` writes an example of a sweep",
    "tune": "; `trimtab new --tune FILE` writes an example of a tune",
}


def refuse_other_kinds(what: str, keys: Mapping[str, Any], noun: str) -> None:
    """Say which command takes a file that was clearly written for another one.

    >>> refuse_other_kinds("t.toml", {"base": [8, 1], "target": [64, 1]}, "sweep")
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: t.toml must describe a sweep: it has target, as the file of a tune has. \
`trimtab tune t.toml` takes it; `trimtab new FILE` writes an example of a sweep.
    """
    if any(key in keys for key in KINDS[noun][0]):
        return
    for other, (marks, command) in KINDS.items():
        if other != noun and all(key in keys for key in marks):
            raise InputError(
                f"{what} must describe a {noun}: it has {' and '.join(marks)}, as the file of a {other} has. "
                f"`{command} {what}` takes it{EXAMPLES.get(noun, '')}."
            )


class Table(NamedTuple):
    """A configuration as it was given: what to call it in messages, the folder of its file, its keys."""

    what: str
    folder: Path | None
    keys: dict[str, Any]


def read_table(config: Any, noun: str, kind: type) -> Table:
    """The keys of a TOML file or of a dict; `noun` and `kind` are what an error calls it.

    >>> read_table({"lr": 0.1}, "sweep", dict)
    Table(what='the sweep', folder=None, keys={'lr': 0.1})
    """
    if isinstance(config, str | Path):
        return Table(str(config), Path(config).resolve().parent, read_toml(config))
    if not isinstance(config, Mapping):
        raise InputError(f"a {noun} is a path, a dict or a {kind.__name__}: got {type(config).__name__}.")
    return Table(f"the {noun}", None, dict(config))


def is_number(value: Any) -> bool:
    """A finite number.

    >>> is_number(1), is_number(0.5), is_number(True), is_number(math.inf)
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """A whole number >= 1 that a 32-bit counter holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def are_whole(values: Any) -> bool:
    """A list of whole numbers >= 1, none twice.

    >>> are_whole([1, 2]), are_whole([]), are_whole([1, 1]), are_whole(3)
    (True, False, False, False)
    """
    listed = isinstance(values, list | tuple) and len(values) > 0 and all(map(is_whole, values))
    return listed and len(set(values)) == len(values)
