"""Get a data set: download, compare, unpack, lay out for its reader, then one rename.

    root/.trimtab/       downloads under way, checksums first seen, the set while it is being laid out
    root/<place>         the set: there whole or not at all

One process at a time works on a root: a second one is told so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trimtab.data.archives import unpack
from trimtab.data.downloads import Progress, download, remember, remembered
from trimtab.data.sources import Source
from trimtab.errors import InputError

WORK = ".trimtab"
ARCHIVES = (".tar.gz", ".zip")


def get(
    source: Source,
    root: Path,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
    pause: float = 1.0,
    tries: int = 5,
) -> Path:
    """The set's place inside `root`, got if it is not there.

    Args:
        progress: called with (file, bytes so far, bytes in all or None). say: called with what was done.
        pause, tries: of a download that fails, `downloads.download`.

    Raises:
        InputError: an incomplete set is in the way, or the set cannot be got; nothing half-made is left.
    """
    place = root / source.place
    if _is_whole(source, root):
        say(f"{source.title} is there already: {place}")
        return place
    with _work_folder(root) as work:
        files = [download(file, work, progress=progress, pause=pause, tries=tries) for file in source.files]
        draft = work / "unpacked"
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        draft.mkdir()
        try:
            made = _lay_out(source, files, draft)
            for file, path in zip(source.files, files, strict=True):
                if file.md5 is None:
                    first = file.url not in remembered(work)
                    digest = remember(file, path, work)
                    seen = "noted: another file will be refused" if first else "as it was seen first"
                    say(f"{file.name} has no published checksum; its SHA-256 is {digest}, {seen}")
            os.replace(made, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for path in files:
            path.unlink(missing_ok=True)
    say(f"{source.title} is in {place} ({source.terms})")
    return place


def _is_whole(source: Source, root: Path) -> bool:
    missing = source.missing(root)
    if missing:
        raise InputError(
            f"{source.title} in {root / source.place} is incomplete: {', '.join(missing)} missing. Move that "
            "folder away; then the same command gets the whole set."
        )
    return missing is not None


def _lay_out(source: Source, files: list[Path], draft: Path) -> Path:
    """The set as its reader expects it, inside `draft`."""
    made = draft / source.place
    if len(files) == 1 and files[0].name.endswith(ARCHIVES):
        unpack(files[0], draft)
        if (made / "val" / "val_annotations.txt").exists():
            sort_validation(made)
    elif len(files) == 1 and not source.holds:
        shutil.copyfile(files[0], made)
    else:
        made.mkdir()
        for path in files:
            shutil.copyfile(path, made / path.name)
    lacking = source.missing(draft)
    if lacking is None or lacking:
        what = ", ".join(lacking or [source.place])
        raise InputError(f"{source.title}'s files must hold {what}: they do not. Nothing of them was kept.")
    return made


def sort_validation(folder: Path) -> None:
    """Tiny-ImageNet's validation images into one folder per class, as `folders` reads them.

    The set comes with val/images/*.JPEG and a table of (file, class) in val/val_annotations.txt.
    """
    val = folder / "val"
    classes = {path.name for path in (folder / "train").iterdir() if path.is_dir()}
    table = val / "val_annotations.txt"
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        name, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        image = val / "images" / name
        if label not in classes or Path(name).name != name or not image.is_file():
            raise InputError(
                f"{table.name}, line {number}, must name an image of val/images and a class of train: got "
                f"{line[:80]!r}. Nothing of the archive was kept."
            )
        (val / label).mkdir(exist_ok=True)
        os.replace(image, val / label / name)
    with contextlib.suppress(OSError):  # images without a class stay where they are, and are not read
        (val / "images").rmdir()


@contextlib.contextmanager
def _work_folder(root: Path) -> Iterator[Path]:
    """The folder of downloads under way, held by this process alone."""
    work = root / WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"{root} cannot be written to: {error.strerror}. Set TRIMTAB_DATA to a folder of yours."
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"another process is getting data into {root}: wait for it to end.") from error
        yield work
    finally:
        os.close(lock)
