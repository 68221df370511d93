"""Read a TOML file: one that is missing, too large or no TOML is refused with its path."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from trimtab.errors import InputError

LARGEST = 10_000_000  # bytes


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
