"""Whether a row of a store is what was written: each carries a SHA-256 of what it says. No torch.

sha = SHA-256(cell, state, result, error; curves),      cell = SHA-256(configuration)[:16]
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

STATES = ("waiting", "running", "done", "diverged", "failed")


@dataclass(frozen=True)
class Damage:
    """One place where a store is not what was written: "file", "structure" or "cell", and in words."""

    place: str
    text: str

    def __str__(self) -> str:
        return self.text


def intact(cell: Any, config: Any, state: Any, result: Any, error: Any, sha: Any, data: Any) -> bool:
    """Whether a row says what was written."""
    if not isinstance(config, str) or not isinstance(cell, str) or state not in STATES:
        return False
    if len(cell) == 16 and name_of(config) != cell:
        return False
    return state in ("waiting", "running") or sha == seal(cell, state, result, error, data)


def name_of(config: str) -> str:
    """A cell's name from its configuration's canonical JSON."""
    return hashlib.sha256(config.encode()).hexdigest()[:16]


def seal(cell: str, state: str, result: str | None, error: str | None, data: bytes | None) -> str:
    """The SHA-256 of a finished row and its curves."""
    digest = hashlib.sha256()
    for part in (cell, state, result or "", error or ""):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(data or b"")
    return digest.hexdigest()


def pack_curves(curves: Mapping[str, Any]) -> bytes:
    """Curves as the bytes that are stored and sent."""
    buffer = io.BytesIO()
    held: dict[str, Any] = {key: np.asarray(value) for key, value in curves.items()}
    np.savez_compressed(buffer, **held)
    return buffer.getvalue()


def unpack_curves(data: bytes) -> dict[str, np.ndarray]:
    """The curves in these bytes.

    >>> unpack_curves(pack_curves({"loss": [2.0, 1.0]}))["loss"].tolist()
    [2.0, 1.0]
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {key: held[key] for key in held.files}
