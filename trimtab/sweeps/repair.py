"""A damaged store is put right before any work: rows that do not match their SHA-256 run again, a broken file
gives way to its copy.

Nothing is deleted: the damaged file is set aside under a name of its own, and what was done is said.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trimtab.errors import InputError
from trimtab.sweeps.database import HEADER, StoreError, copy_of
from trimtab.sweeps.row_checksums import Damage, intact
from trimtab.sweeps.store import Store


def open_for_work(path: str | Path) -> tuple[Store, list[str]]:
    """Open a store for work, or make it; a damaged one is set aside and its copy, or a fresh start, takes its
    place.

    Single rows that do not match their SHA-256 are run again; the rest is kept.

    Returns:
        the store, and what was done to it in words.
    """
    place = Path(path)
    try:
        store = Store(place, create=True)
        wrong = store.check()
    except StoreError as error:
        if error.full or error.refused:  # not damaged
            raise
        store, wrong = None, [Damage("file", str(error))]
    if store is not None and not wrong:
        return store, []
    if store is not None and all(damage.place == "cell" for damage in wrong):
        return store, [_drop_rows(store)]
    if store is not None:
        store.close()
    aside = _set_aside(place)
    said = [f"the store {place} is damaged ({wrong[0]}); it was set aside as {aside.name}."]
    copy = copy_of(place)
    if not _is_whole(copy):
        said.append("There is no whole copy of it: the sweep begins anew.")
        return Store(place, create=True), said
    place.write_bytes(copy.read_bytes())
    said.append("Its copy was put back; what was finished after the copy was made runs again.")
    store = Store(place)
    if store.check():
        said.append(_drop_rows(store))
    return store, said


def _set_aside(place: Path) -> Path:
    """Rename a damaged store, so that nothing is lost; a file that never was a store is left alone."""
    with place.open("rb") as file:
        if not copy_of(place).exists() and file.read(len(HEADER)) != HEADER:  # somebody's notes
            raise InputError(
                f"{place} is there and is no store: it is not replaced. Name another file as the store."
            )
    aside = place.with_name(f"{place.name}.damaged-{hashlib.sha256(place.read_bytes()).hexdigest()[:8]}")
    os.replace(place, aside)
    for tail in ("-wal", "-shm"):
        place.with_name(place.name + tail).unlink(missing_ok=True)
    return aside


def _is_whole(copy: Path) -> bool:
    """Whether there is a copy whose structure is sound; single rows of it may be damaged."""
    if not copy.exists():
        return False
    try:
        held = Store(copy)
        wrong = held.check()
        held.close()
    except (StoreError, InputError):
        return False
    return all(damage.place == "cell" for damage in wrong)


def _drop_rows(store: Store) -> str:
    """Run again every cell whose row is not what was written."""
    bad = []
    for cell, config, state, result, error, sha, data, row in store._read(
        "SELECT c.cell, c.config, c.state, c.result, c.error, c.sha, v.data, c.id FROM cells c LEFT JOIN "
        "curves v ON v.cell = c.cell"
    ):
        if not intact(cell, config, state, result, error, sha, data):
            bad.append((row, cell))
    with store._writing():
        for row, cell in bad:
            store._db.execute("DELETE FROM curves WHERE cell = ?", (cell,))
            store._db.execute("DELETE FROM cells WHERE id = ?", (row,))
    return f"{len(bad)} cells of {store.path} did not match their SHA-256 and run again."
