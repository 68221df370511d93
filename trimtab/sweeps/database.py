"""A sweep's store as a file: SQLite (WAL, synchronous FULL), its schema, transactions and copy. No torch.

What the rows mean is the matter of `store`; whether they are what was written, of `row_checksums`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.errors import InputError, TrimtabError
from trimtab.files import replacing

APPLICATION = 0x7472696D  # "trim"
HEADER = b"SQLite format 3\0"

MIGRATIONS = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE cells (
        id INTEGER PRIMARY KEY, cell TEXT NOT NULL UNIQUE, label TEXT NOT NULL, config TEXT NOT NULL,
        unit TEXT NOT NULL, fleet INTEGER NOT NULL, cost REAL NOT NULL,
        state TEXT NOT NULL, owner TEXT, token INTEGER NOT NULL DEFAULT 0, lease REAL,
        attempts INTEGER NOT NULL DEFAULT 0, accepted INTEGER NOT NULL DEFAULT 0,
        result TEXT, error TEXT, sha TEXT
    );
    CREATE INDEX cells_next ON cells (state, attempts, cost DESC, id);
    CREATE INDEX cells_unit ON cells (unit);
    CREATE TABLE curves (cell TEXT PRIMARY KEY, data BLOB NOT NULL);
    """,
    """
    CREATE TABLE attachments (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL, sha TEXT NOT NULL
    );
    """,
    "ALTER TABLE cells ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;",  # made so far by the run under way
)


# what SQLite says where it may not open or write a file: its bytes are not in question
REFUSALS = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_BUSY", "SQLITE_LOCKED")


class StoreError(TrimtabError):
    """The store's file cannot be read or written as it should; `full`: for want of space, so that the same
    call resumes; `refused`: by the file system or another process, so that nothing is known to be damaged."""

    full = False
    refused = False


class Database:
    """A SQLite file with this schema.

    Args:
        path: the file.
        create: make it if it is not there. Otherwise a missing file is an error.
    """

    def __init__(self, path: str | Path, *, create: bool = False):
        self.path = Path(path)
        if not self.path.exists() and not create:
            raise InputError(
                f"there is no store at {self.path}. `trimtab sweep sweep.toml` makes one beside the file."
            )
        if self.path.exists() and not self.path.is_file():
            raise InputError(f"a store is a file: {self.path} is not.")
        try:
            place, uri = (str(self.path), False) if create else _place(self.path)
            self._db = sqlite3.connect(
                place, timeout=60.0, isolation_level=None, check_same_thread=False, uri=uri
            )
            if self.path.stat().st_size == 0 and not create:
                raise InputError(f"{self.path} is empty: it is no store.")
            self._open()
        except sqlite3.DatabaseError as error:
            raise self._fault(error, "opened") from error

    def _open(self) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION:
            raise InputError(f"{self.path} is a database, but not a sweep's store.")
        if version > len(MIGRATIONS):
            raise InputError(
                f"{self.path} was written by a newer trimtab (schema {version}, this one knows "
                f"{len(MIGRATIONS)}). Update trimtab."
            )
        self._db.execute("PRAGMA synchronous = FULL")
        if version < len(MIGRATIONS):
            self._db.execute("PRAGMA journal_mode = WAL")
            with self._writing():
                # another process may have been first
                version = self._db.execute("PRAGMA user_version").fetchone()[0]
                for step in range(version, len(MIGRATIONS)):
                    for statement in filter(str.strip, MIGRATIONS[step].split(";")):
                        self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
                self._db.execute(f"PRAGMA application_id = {APPLICATION}")

    def _fault(self, error: sqlite3.Error, done: str) -> StoreError:
        hint = (
            "Free some space and run the same command again: what was finished is safe."
            if "full" in str(error) or "I/O" in str(error)
            else "See `trimtab doctor`."
        )
        if "not a database" in str(error) and not self.copy_path.exists():
            hint = "Name the file that `trimtab sweep` wrote."
        elif "malformed" in str(error) or "not a database" in str(error):
            hint = (
                "Its bytes have changed. `trimtab sweep` again puts the copy beside it back, if there is one."
            )
        refused = str(getattr(error, "sqlite_errorname", None)).startswith(REFUSALS)
        if refused and not (_writable(self.path) and _writable(self.path.parent)):
            hint = (
                f"This needs a file and a folder that can be written: {self.path.parent.resolve()} or the "
                "file is read-only. Copy the store to a folder of your own, or begin another with `trimtab "
                "sweep --store FILE`."
            )
        fault = StoreError(f"the store {self.path} could not be {done}: {error}. {hint}")
        fault.full = "full" in str(error) or "I/O" in str(error)
        fault.refused = refused
        return fault

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, taken at once so that two writers never deadlock; undone whole on any error."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._fault(error, "written") from error

    def _read(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._fault(error, "read") from error

    def close(self) -> None:
        self._db.close()

    @property
    def copy_path(self) -> Path:
        """Where the copy is kept that a damaged store falls back to."""
        return copy_of(self.path)

    def copy(self) -> None:
        """Keep a whole copy beside the store: written under a temporary name, synced, renamed."""
        try:
            with replacing(self.copy_path) as draft:
                try:
                    target = sqlite3.connect(draft)
                    self._db.backup(target)
                    target.execute("PRAGMA journal_mode = DELETE")
                    target.close()
                finally:
                    Path(f"{draft}-journal").unlink(missing_ok=True)
        except (sqlite3.Error, OSError) as error:
            fault = StoreError(
                f"the copy {self.copy_path} could not be written: {error}. Free some space and run the same "
                "command again."
            )
            fault.full = True
            raise fault from error


def _writable(place: Path) -> bool:
    return not place.exists() or os.access(place, os.W_OK)


def _place(path: Path) -> tuple[str, bool]:
    """What SQLite is given to read a store, and whether it is a URI.

    A file in WAL mode is read with two files beside it, which a read-only folder does not take. Where all is
    in the file (no WAL is left), it can be read as one that does not change.
    """
    wal = path.with_name(path.name + "-wal")
    settled = not wal.exists() or wal.stat().st_size == 0
    if settled and not (_writable(path) and _writable(path.parent)):
        return f"{path.resolve().as_uri()}?immutable=1", True
    return str(path), False


def copy_of(place: Path) -> Path:
    """Where the copy of a store is kept.

    >>> copy_of(Path("sweep.db")).name
    'sweep.db.copy'
    """
    return place.with_name(place.name + ".copy")
