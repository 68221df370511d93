"""A damaged store is put right before any work: rows that do not match their SHA-256 run again, a broken file
gives way to its copy.

Nothing is deleted: the damaged file is set aside under a name of its own, and what was done is said.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trimtab.errors import InputError
from trimtab.sweeps.store import HEADER, Store, StoreError, intact


def open_for_work(path: str | Path) -> tuple[Store, list[str]]:
    """Open a store for work, or make it; a damaged one is set aside and its copy, or a fresh start, takes its
    place.

    Single rows that do not match their SHA-256 are run again; the rest is kept.

    Returns:
        the store, and what was done to it in words.
    """
    place, said = Path(path), []
    try:
        store = Store(place, create=True)
        wrong = store.check()
    except StoreError as error:
        if error.full:  # not damaged
            raise
        store, wrong = None, [str(error)]
    if not wrong and store is not None:
        return store, said
    if store is not None and all(w.startswith("cell ") for w in wrong):
        return store, [_drop_rows(store)]
    if store is not None:
        store.close()
    copied = place.with_name(place.name + ".copy").exists()
    with place.open("rb") as file:
        if not copied and file.read(len(HEADER)) != HEADER:  # somebody's notes, not a store that was damaged
            raise InputError(
                f"{place} is there and is no store: it is not replaced. Name another file as the store."
            )
    aside = place.with_name(f"{place.name}.damaged-{hashlib.sha256(place.read_bytes()).hexdigest()[:8]}")
    os.replace(place, aside)
    for tail in ("-wal", "-shm"):
        place.with_name(place.name + tail).unlink(missing_ok=True)
    copy = place.with_name(place.name + ".copy")
    said.append(f"the store {place} is damaged ({wrong[0]}); it was set aside as {aside.name}.")
    if copy.exists():
        try:
            held = Store(copy)
            bad = [w for w in held.check() if not w.startswith("cell ")]
            held.close()
        except (StoreError, InputError) as error:
            bad = [str(error)]
        if not bad:
            place.write_bytes(copy.read_bytes())
            said.append("Its copy was put back; what was finished after the copy was made runs again.")
            store = Store(place)
            if store.check():
                said.append(_drop_rows(store))
            return store, said
    said.append("There is no whole copy of it: the sweep begins anew.")
    return Store(place, create=True), said


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
