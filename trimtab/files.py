"""Files: where one named in a configuration is looked for, how one is written whole, and what JSON can hold.

A relative path is looked for in the configuration's own folder, then in the working folder. Two files of one
name with different contents are refused: which one was meant is ambiguous. The configuration's folder is a
scope:

    with looking_in(folder):        # as long as the configuration is at work
        find_file("mine.py")
"""

from __future__ import annotations

import filecmp
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from trimtab.errors import InputError

_scope: ContextVar[Path | None] = ContextVar("configuration's folder", default=None)


@contextmanager
def looking_in(folder: str | Path | None) -> Iterator[None]:
    """Look for relative paths in `folder` first, inside this block; None: only in the working folder.

    >>> with looking_in("/"):
    ...     folders()[0]
    PosixPath('/')
    """
    token = _scope.set(None if folder is None else Path(folder).resolve())
    try:
        yield
    finally:
        _scope.reset(token)


def folders() -> list[Path]:
    """Where a relative path is looked for, in order: the configuration's folder, then the working folder."""
    folder, here = _scope.get(), Path.cwd()
    return [here] if folder is None or folder == here else [folder, here]


def find_file(name: str | Path) -> Path | None:
    """The file or folder a relative path stands for; None where there is none.

    Raises:
        InputError: two are found that differ.
    """
    found = [folder / name for folder in folders() if (folder / name).exists()]
    for other in found[1:]:
        if not _same(found[0], other):
            raise InputError(
                f"{name} is ambiguous: {found[0]} (beside the configuration) and {other} (in the working "
                "folder) "
                "differ. Remove one of them, or write the path of the one you mean in full."
            )
    return found[0] if found else None


def _same(one: Path, other: Path) -> bool:
    if one.samefile(other):
        return True
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


@contextmanager
def replacing(path: str | Path, *, keep: Path | None = None) -> Iterator[Path]:
    """Write a file whole or not at all: yields a temporary path, which becomes `path` when the block ends
    well.

    The temporary file is synced, renamed, and its folder synced, so that after a crash there is the old file
    or the new one, never half of one. `keep`: where the file that was there goes; None: it is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as draft:
    ...         _ = draft.write_text("whole")
    ...     [(place.name, place.read_text()) for place in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    path = Path(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        _sync(draft)
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(draft, path)
        _sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file that the user asked for, whole or not at all.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}.") from error


def create_text(path: str | Path, text: str) -> None:
    """Write a text file that must not be there yet.

    Raises:
        InputError: it is there, or cannot be written.
    """
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(f"{path} is there already: it is not replaced. Name another file.") from error
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}.") from error


def json_ready(value: Any) -> Any:
    """What JSON can hold: arrays as lists, numpy's numbers as Python's, NaN and infinities as null.

    >>> json_ready({"loss": float("nan"), 1: (2.0, float("inf"))})
    {'loss': None, '1': [2.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(part) for key, part in value.items()}
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [json_ready(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
