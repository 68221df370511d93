"""Types of the commands' options: what `trimtab <command> --help` shows of each.

A command's options are a dataclass, from which tyro makes the arguments. Its annotations are text until tyro
reads them, so every command module can be imported with torch alone installed; `trimtab.cli` then says what
is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from trimtab.errors import InputError

if TYPE_CHECKING:
    from tyro.conf import Positional

    Text = str | None
    Number = float | None
    Betas = tuple[float, float] | None
    Size = Literal["depth", "width", "batch", "tokens"] | None
    Sizes = tuple[int | str, ...]
    Page = str
    PageOrNone = str | None
else:
    try:
        from tyro.conf import Positional, arg
    except ModuleNotFoundError:
        Positional = Text = Number = Betas = Size = Sizes = Page = PageOrNone = None
    else:  # --help shows what to write, not that None is what an option left out stands for
        Text = Annotated[str | None, arg(metavar="STR", help_behavior_hint="")]
        Number = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
        Betas = Annotated[tuple[float, float] | None, arg(metavar="FLOAT FLOAT", help_behavior_hint="")]
        Size = Annotated[
            Literal["depth", "width", "batch", "tokens"] | None,
            arg(metavar="{depth,width,batch,tokens}", help_behavior_hint=""),
        ]
        Sizes = Annotated[tuple[str, ...], arg(metavar="INT [INT ...]", help_behavior_hint="")]
        Page = Annotated[str, arg(aliases=["-o"])]
        PageOrNone = Annotated[str | None, arg(aliases=["-o"], metavar="STR", help_behavior_hint="")]

__all__ = [
    "Betas",
    "Number",
    "Page",
    "PageOrNone",
    "Positional",
    "Size",
    "Sizes",
    "Text",
    "got_class",
    "whole_numbers",
]


def got_class(name: str, known: Iterable[str]) -> str:
    """What was given for a class, and the one of those known that differs in capitals only.

    >>> got_class("adamw", ["Adam", "AdamW"])
    "got 'adamw', nearest 'AdamW'"
    """
    near = [k for k in known if k.lower() == name.lower() and k[0].isupper()]
    return f"got {name!r}{f', nearest {near[0]!r}' if near else ''}"


def whole_numbers(name: str, values: Iterable[int | str]) -> list[int]:
    """Sizes as they are written on a command line, with spaces or commas between them.

    Raises:
        InputError: one is no whole number.

    >>> whole_numbers("widths", ["32,64", "128"]), whole_numbers("widths", (32, 64))
    ([32, 64, 128], [32, 64])
    """
    parts = [part for value in values for part in str(value).split(",") if part.strip()]
    if not all(part.strip().isdigit() for part in parts):
        raise InputError(f"{name} must be whole numbers such as 32 64 128: got {', '.join(parts)}")
    return [int(part) for part in parts]
