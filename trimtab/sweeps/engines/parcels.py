"""Bytes that prove themselves on the way between machines: JSON, and named blobs behind it.

    parcel = magic, SHA-256 of the rest, length of the JSON, JSON {header, blobs: {name: length}}, blobs

Nothing in a parcel can run: no pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trimtab.errors import TrimtabError

MAGIC = b"trimtabP"


class Damaged(TrimtabError):
    """A parcel is not what was sent."""


def pack(header: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None) -> bytes:
    """A parcel.

    >>> unpack(pack({"steps": 3}, {"curve": b"abc"}))
    ({'steps': 3}, {'curve': b'abc'})
    """
    blobs = dict(blobs or {})
    head = json.dumps(
        {"header": dict(header), "blobs": {name: len(blob) for name, blob in blobs.items()}}
    ).encode()
    rest = b"".join([len(head).to_bytes(8, "big"), head, *blobs.values()])
    return MAGIC + hashlib.sha256(rest).digest() + rest


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(header, blobs) of a parcel.

    Raises:
        Damaged: it is not what was sent.
    """
    head = len(MAGIC)
    rest = content[head + 32 :]
    if content[:head] != MAGIC or hashlib.sha256(rest).digest() != content[head : head + 32]:
        raise Damaged("a parcel from a node is not what was sent: its SHA-256 differs.")
    end = 8 + int.from_bytes(rest[:8], "big")
    held = json.loads(rest[8:end])
    blobs = {}
    for name, length in held["blobs"].items():
        blobs[name], end = rest[end : end + length], end + length
    return held["header"], blobs
