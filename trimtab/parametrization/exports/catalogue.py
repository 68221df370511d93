"""`p.export(tool)`: one name to one writer, read back before it is returned."""

from __future__ import annotations

from typing import Any

from trimtab.errors import InputError
from trimtab.parametrization.exports import deepspeed, megatron, optax, plain, torchtitan
from trimtab.parametrization.exports.record import Export, Settings, read_back

TOOLS = {
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "megatron": megatron,
    "optax": optax,
    "json": plain,
}


def check_tool(tool: Any) -> None:
    """Raise unless there is such a tool."""
    if not isinstance(tool, str) or tool not in TOOLS:
        raise InputError(
            f"export knows {', '.join(TOOLS)}: got {tool!r}. For another tool take 'json' and read the "
            "numbers per parameter, or p.groups(...) in torch."
        )


def write_export(tool: str, settings: Settings) -> Export:
    """The settings in this tool's words, read back."""
    check_tool(tool)
    return read_back(TOOLS[tool].write(settings), TOOLS[tool].read, settings)
