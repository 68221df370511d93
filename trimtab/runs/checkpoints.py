"""Checkpoints that are whole or not there: temporary name, fsync, rename, SHA-256, and the one before kept.

file = magic, SHA-256 of the rest, torch.save bytes           (read with weights_only: nothing in it can run)
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from trimtab.errors import InputError
from trimtab.files import replacing

MAGIC = b"trimtab1"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the one that was there becomes `<name>.before`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    try:
        with replacing(path, keep=_before(path)) as draft:
            draft.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the checkpoint {path} could not be written: {error.strerror}. Free some space; what was "
            "finished is "
            "safe",
        ) from error


def load(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """(the newest whole checkpoint or None, what was wrong with those passed over)."""
    said = []
    for place in (path, _before(path)):
        if not place.exists():
            continue
        try:
            return _read(place), said
        except InputError as error:
            said.append(str(error))
    return None, said


def remove(path: Path) -> None:
    """Forget a run's checkpoints."""
    for place in (path, _before(path), *path.parent.glob(f"{path.name}.*.draft")):
        place.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    head = len(MAGIC)
    if content[:head] != MAGIC or hashlib.sha256(content[head + 32 :]).digest() != content[head : head + 32]:
        raise InputError(f"the checkpoint {path} is not whole (its SHA-256 differs): it is passed over.")
    return torch.load(io.BytesIO(content[head + 32 :]), weights_only=True, map_location="cpu")


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".before")
