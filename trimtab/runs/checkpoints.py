"""Checkpoints that are whole or not there: temporary name, fsync, rename, SHA-256, and the one before kept.

bytes = magic, SHA-256 of the rest, torch.save bytes          (read with weights_only: nothing in it can run)

A keeper is where a run's checkpoints go: a file (`FileKeeper`), or whoever takes the bytes (`BytesKeeper`: a
node of a cluster sends them to the driver).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from trimtab.errors import InputError
from trimtab.files import replacing

MAGIC = b"trimtab1"
State = dict[str, Any]


class Keeper(Protocol):
    """Where a run's checkpoints are read from and written to."""

    name: str

    def load(self) -> tuple[State | None, list[str]]:
        """(the newest whole checkpoint or None, what was wrong with those passed over)."""
        ...

    def save(self, state: State) -> None: ...

    def remove(self) -> None:
        """Forget the run's checkpoints."""
        ...


class FileKeeper:
    """A run's checkpoints in a file, the one before beside it."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)

    def load(self) -> tuple[State | None, list[str]]:
        return load(self.path)

    def save(self, state: State) -> None:
        save(self.path, state)

    def remove(self) -> None:
        remove(self.path)


class BytesKeeper:
    """A run's checkpoints as bytes.

    Args:
        content: the checkpoint to resume from; None: from the start.
        send: takes the bytes of each new checkpoint.
    """

    name = "that was sent here"

    def __init__(self, content: bytes | None, send: Callable[[bytes], None]):
        self.content, self._send = content, send

    def load(self) -> tuple[State | None, list[str]]:
        if self.content is None:
            return None, []
        try:
            return decode(self.content, self.name), []
        except InputError as error:
            return None, [str(error)]

    def save(self, state: State) -> None:
        self.content = encode(state)
        self._send(self.content)

    def remove(self) -> None:
        self.content = None


def keeper(checkpoint: Path | str | Keeper | None) -> Keeper | None:
    """The keeper a caller means: a path stands for a file."""
    return FileKeeper(Path(checkpoint)) if isinstance(checkpoint, str | Path) else checkpoint


def encode(state: State) -> bytes:
    """A checkpoint's bytes.

    >>> decode(encode({"step": 3}), "x")
    {'step': 3}
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    return MAGIC + hashlib.sha256(content).digest() + content


def decode(content: bytes, name: str) -> State:
    """The checkpoint in these bytes.

    Raises:
        InputError: they are not whole.
    """
    if not is_whole(content):
        raise InputError(f"the checkpoint {name} is not whole (its SHA-256 differs): it is passed over.")
    return torch.load(io.BytesIO(content[len(MAGIC) + 32 :]), weights_only=True, map_location="cpu")


def is_whole(content: bytes) -> bool:
    """Whether bytes are a checkpoint as it was written."""
    head = len(MAGIC)
    return (
        content[:head] == MAGIC and hashlib.sha256(content[head + 32 :]).digest() == content[head : head + 32]
    )


def save(path: Path, state: State) -> None:
    """Write a checkpoint; the one that was there becomes `<name>.before`."""
    write(path, encode(state))


def write(path: Path, content: bytes) -> None:
    """Write a checkpoint's bytes; the one that was there becomes `<name>.before`."""
    try:
        with replacing(path, keep=_before(path)) as draft:
            draft.write_bytes(content)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the checkpoint {path} could not be written: {error.strerror}. Free some space; what was "
            "finished is safe",
        ) from error


def read(path: Path) -> bytes | None:
    """The bytes of the newest whole checkpoint; None if there is none."""
    for place in (path, _before(path)):
        if place.exists() and is_whole(content := place.read_bytes()):
            return content
    return None


def load(path: Path) -> tuple[State | None, list[str]]:
    """(the newest whole checkpoint or None, what was wrong with those passed over)."""
    said = []
    for place in (path, _before(path)):
        if not place.exists():
            continue
        try:
            return decode(place.read_bytes(), str(place)), said
        except InputError as error:
            said.append(str(error))
    return None, said


def remove(path: Path) -> None:
    """Forget a run's checkpoints."""
    for place in (path, _before(path), *path.parent.glob(f"{path.name}.*.draft")):
        place.unlink(missing_ok=True)


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".before")
