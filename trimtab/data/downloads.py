"""One file over HTTP: resumed by byte range, compared with its checksum, there whole or not at all.

    name.part        the bytes so far        `Range: bytes=<size>-`, `If-Range: <validator>` on the next try
    name.part.json   {"url", "validator"}: of which address and version of the file they are

A server that ignores the range, or whose file has changed since, sends it from the start, and so it is
written. Nothing here trusts the length a server announces: a body that ends early is another try.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.data.sources import Remote
from trimtab.errors import InputError
from trimtab.files import replacing

CHUNK = 1 << 18
TRIES = 5  # that brought no byte, in a row
TIMEOUT = 30.0  # seconds without a byte
SEEN = "checksums.json"
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Part:
    """A download under way: the bytes so far and what they are bytes of."""

    path: Path
    url: str

    @property
    def note(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def validator(self) -> str | None:
        """The version of the file that the bytes belong to; None: not known, so they cannot be resumed."""
        try:
            held = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return held.get("validator") if isinstance(held, dict) and held.get("url") == self.url else None

    def begin(self, validator: str | None) -> None:
        """Forget the bytes so far."""
        self.path.write_bytes(b"")
        self.note.write_text(json.dumps({"url": self.url, "validator": validator}), encoding="utf-8")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def download(
    remote: Remote, folder: Path, *, progress: Progress | None = None, pause: float = 1.0, tries: int = TRIES
) -> Path:
    """The file, in `folder`, complete and with the right checksum; what an earlier call left is resumed.

    Args:
        progress: called with (name, bytes so far, bytes in all or None).
        pause: seconds before the second try, doubled each time. tries: fruitless ones in a row.

    Raises:
        InputError: no connection, not found, no room, or another file than the published one.
    """
    done = folder / remote.name
    if done.exists() and _fault(remote, done, folder) is None:
        return done
    part = Part(folder / f"{remote.name}.part", remote.url)
    failed = 0
    while True:
        before = part.size
        try:
            if _receive(remote, part, progress or _silent):
                break
            error: Exception | None = None
        except urllib.error.HTTPError as refused:
            if refused.code < 500 and refused.code not in (408, 429):
                raise InputError(
                    _words(remote, f"the server answered {refused.code} {refused.reason}")
                ) from None
            error = refused
        except (OSError, http.client.HTTPException) as broken:
            if getattr(broken, "errno", None) in DISK:
                raise InputError(f"{part.path} could not be written: {broken}.") from broken
            error = broken
        failed = 0 if part.size > before else failed + 1
        if failed >= tries:
            kept = f" {part.size:,} bytes are kept: the same command resumes." if part.size else ""
            raise InputError(_words(remote, _reason(error)) + kept) from error
        time.sleep(pause * 2**failed)
    problem = _fault(remote, part.path, folder)
    if problem is not None:
        part.remove()
        raise InputError(problem)
    part.path.replace(done)
    part.remove()
    return done


def _silent(name: str, size: int, total: int | None) -> None:
    pass


def _receive(remote: Remote, part: Part, progress: Progress) -> bool:
    """One request; True when the file is complete."""
    have, validator = part.size, part.validator()
    headers = {"User-Agent": "trimtab", "Accept-Encoding": "identity"}
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    try:
        answer: Any = urllib.request.urlopen(
            urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.remove()  # longer than the file: it cannot be its beginning
        return False
    with answer:
        resumed = answer.status == 206 and _start(answer) == have
        if not resumed:
            if answer.status == 206:
                part.remove()
                return False
            have = 0
            part.begin(_validator(answer))
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        _check_room(remote, part.path.parent, None if total is None else total - have)
        with part.path.open("ab") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                progress(remote.name, file.tell(), total)
            size = file.tell()
    return size == total if total is not None else True


def _start(answer: Any) -> int | None:
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _validator(answer: Any) -> str | None:
    """A strong ETag, else the date of the last change: what `If-Range` takes."""
    tag = answer.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified")


def _check_room(remote: Remote, folder: Path, needed: int | None) -> None:
    free = shutil.disk_usage(folder).free
    if needed is not None and needed > free:
        raise InputError(
            f"{remote.name} needs {needed / 1e6:,.0f} MB more and {folder} has {free / 1e6:,.0f} MB free. "
            "Make room, or set TRIMTAB_DATA to a folder on another disk."
        )


def _words(remote: Remote, reason: str) -> str:
    return (
        f"{remote.url} could not be fetched: {reason}. Without a network, put the file itself there as the "
        f"data set's page says, and set TRIMTAB_DATA."
    )


def _reason(error: Exception | None) -> str:
    if error is None:
        return "the connection ended early each time"
    return str(getattr(error, "reason", None) or error or type(error).__name__)


# -- checksums ----------------------------------------------------------------------------------------------


def checksum(path: Path, kind: str) -> str:
    """The digest of a file, by the name of the algorithm."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def remembered(folder: Path) -> dict[str, str]:
    """{address: SHA-256} of the files without a published checksum, as they were first seen here."""
    try:
        held = json.loads((folder / SEEN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / SEEN} cannot be read: {error}. Remove it to begin anew.") from error
    return {str(url): str(digest) for url, digest in held.items()} if isinstance(held, dict) else {}


def remember(remote: Remote, path: Path, folder: Path) -> str:
    """Write down the SHA-256 of a file that has no published checksum; returns it."""
    digest = checksum(path, "sha256")
    with replacing(folder / SEEN) as draft:
        draft.write_text(json.dumps(remembered(folder) | {remote.url: digest}, indent=1), encoding="utf-8")
    return digest


def _fault(remote: Remote, path: Path, folder: Path) -> str | None:
    """Why a file is not the one meant; None if it is, or if nobody knows."""
    kind, wanted, whose = "md5", remote.md5, "the published one"
    if wanted is None:
        kind, wanted, whose = "sha256", remembered(folder).get(remote.url), "the one first seen here"
    if wanted is None:
        return None
    found = checksum(path, kind)
    if found == wanted:
        return None
    name = {"md5": "MD5", "sha256": "SHA-256"}[kind]
    cure = "It was removed: try again." if remote.md5 else f"If the change is meant, remove {folder / SEEN}."
    return f"{remote.url} must be the file meant: its {name} is {found}, {whose} {wanted}. {cure}"
