"""Where a file named in a configuration is looked for: the configuration's own folder, then the working
folder.

Two files of one name with different contents are refused: which one was meant is ambiguous.
"""

from __future__ import annotations

import filecmp
from pathlib import Path

from trimtab.errors import InputError

# the folder of the configuration that is at work; a sweep's workers get their driver's
ROOTS: list[Path] = []


def look_in(folder: Path | None) -> None:
    """Make `folder` the one where file.py is looked for first; None: only the working folder, for what has no
    file."""
    ROOTS[:] = [] if folder is None else [folder.resolve()]


def folders() -> list[Path]:
    """Where a relative path is looked for, in order: the working folder comes last, whoever put it among the
    roots."""
    here = Path.cwd()
    return [*dict.fromkeys(root for root in map(Path.resolve, ROOTS) if root != here), here]


def found_at(name: str | Path) -> Path | None:
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
