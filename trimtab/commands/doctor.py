"""`trimtab doctor`: what trimtab stands on, tried out: versions, extras, devices, threads, data sets, and the
folder's file system.

A store needs three things of a file system, and network folders do not always keep them: a lock that excludes
a second process, an fsync that returns, a rename that replaces.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from trimtab.commands.data import describe
from trimtab.commands.options import Positional
from trimtab.errors import InputError

DEVELOPERS = ("dev", "docs")  # extras that users do not need
LOCK = (
    "import sqlite3, sys\ntry:\n    sqlite3.connect(sys.argv[1], timeout=0.2, "
    "isolation_level=None).execute('BEGIN IMMEDIATE')\nexcept sqlite3.OperationalError:\n    sys.exit(7)\n"
)


@dataclasses.dataclass
class Doctor:
    """Versions, extras, devices, data sets, and whether a folder's file system keeps what a sweep needs."""

    folder: Positional[str] = "."
    """The folder a store is going to lie in."""

    def run(self) -> int:
        """Print what was found; exit code 1 if the folder cannot hold a store."""
        import torch

        from trimtab.data.places import root
        from trimtab.sweeps.driver import versions

        folder = Path(self.folder)
        if not folder.is_dir():
            raise InputError(f"doctor takes a folder: {folder} is none.")
        for name, value in versions().items():
            print(f"  {name:10s} {value}")
        print(f"  {'sqlite':10s} {sqlite3.sqlite_version}")
        print(f"  devices    {', '.join(devices())}")
        print(
            f"  threads    {os.cpu_count()} cores, torch uses {torch.get_num_threads()}; a sweep's workers "
            "use one each"
        )
        for extra, words in extras().items():
            print(f"  [{extra}]".ljust(13) + words)
        print(
            f"  data       TRIMTAB_DATA={os.environ.get('TRIMTAB_DATA') or '(not set)'}, looked in {root()}"
        )
        for line in describe(root()):
            print(f"  {'':10s} {line}")
        print(f"  free       {shutil.disk_usage(folder).free / 1e9:.1f} GB in {folder.resolve()}")
        faults = probe(folder)
        for name, words in faults.items():
            print(f"  {name:10s} {'good' if words is None else 'BAD: ' + words}")
        if any(faults.values()):
            print("this folder cannot hold a store safely: put the store on a local disk (--store).")
            return 1
        print("all good.")
        return 0


def devices() -> list[str]:
    """What torch can compute on here."""
    from trimtab.runs.devices import find, visible

    return [name if name in ("cpu", "mps") else f"{name} {find(name).label}" for name in visible()]


def extras() -> dict[str, str]:
    """{extra: the packages it asks for, with their versions or how to install them}, from trimtab's own
    metadata; those of developers are left out."""
    asked: dict[str, list[str]] = {}
    try:
        lines = metadata.requires("trimtab") or []
    except metadata.PackageNotFoundError:  # run from a folder, not installed
        return {}
    for line in lines:
        found = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if found and found[2] not in DEVELOPERS:
            asked.setdefault(found[2], []).append(found[1])
    return {extra: _installed(extra, packages) for extra, packages in asked.items()}


def _installed(extra: str, packages: list[str]) -> str:
    words = []
    for package in packages:
        try:
            words.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            words.append(f"{package} is not installed")
    cure = f": pip install 'trimtab[{extra}]'" if any("is not" in word for word in words) else ""
    return ", ".join(words) + cure


def probe(folder: Path) -> dict[str, str | None]:
    """{what was tried: what went wrong, None if nothing}."""
    found: dict[str, str | None] = {}
    try:
        place = Path(tempfile.mkdtemp(prefix=".trimtab-doctor-", dir=folder))
    except OSError as error:
        return {"write": f"no file can be made in {folder}: {error.strerror}"}
    try:
        path = place / "probe.db"
        db = sqlite3.connect(path, isolation_level=None)
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        found["wal"] = None if mode == "wal" else f"SQLite falls back to {mode}"
        db.execute("CREATE TABLE t (x)")
        db.execute("BEGIN IMMEDIATE")
        other = subprocess.run([sys.executable, "-c", LOCK, str(path)], timeout=60).returncode
        found["lock"] = None if other == 7 else "a second process wrote while the first held the lock"
        db.execute("COMMIT")
        db.close()
        begun = time.monotonic()
        with (place / "a").open("wb") as file:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
        found["fsync"] = None if time.monotonic() - begun < 5 else f"took {time.monotonic() - begun:.1f} s"
        (place / "b").write_bytes(b"old")
        os.replace(place / "a", place / "b")
        found["rename"] = (
            None
            if (place / "b").stat().st_size == 4096 and not (place / "a").exists()
            else "a rename did not replace"
        )
    except (OSError, sqlite3.Error) as error:
        found["probe"] = str(error)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found
