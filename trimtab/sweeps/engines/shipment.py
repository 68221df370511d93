"""The user's files on their way to the nodes: what a sweep's file names is copied into one folder, which Ray
unpacks as every task's working folder (`runtime_env`), and this trimtab goes with it.

A file that is named comes with the Python files and packages beside it, which it may import. What is large
stays: data sets lie on the nodes, where $TRIMTAB_DATA says.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab import errors
from trimtab.errors import InputError
from trimtab.files import find_file, folders
from trimtab.runs.catalogue import is_own
from trimtab.runs.user_code import source_file
from trimtab.sweeps.grid import SweepConfig

LARGEST = 200 * 2**20  # bytes that travel; Ray itself refuses 500 MiB


@dataclass(frozen=True)
class Shipment:
    """A folder on its way to the nodes; None: nothing travels.

    Attributes:
        notes: what the user should know.
    """

    folder: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, Any]:
        """Ray's runtime_env of it."""
        if self.folder is None:
            return {}
        return {"working_dir": str(self.folder), "py_modules": [str(Path(errors.__file__).parent)]}

    def remove(self) -> None:
        """Remove the folder; Ray has its own copy."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def pack_files(config: SweepConfig) -> Shipment:
    """Copy what a sweep names into a folder of its own.

    Raises:
        InputError: a file is not there, lies outside the sweep's folder, or all together are too large.
    """
    pairs, notes = _named(config)
    size = sum(place.stat().st_size for place, _ in pairs)
    if size > LARGEST:
        raise InputError(
            f"what travels to the nodes must be at most {LARGEST >> 20} MiB: the files named are "
            f"{size >> 20} MiB. Put large data on every node, where $TRIMTAB_DATA says there."
        )
    target = Path(tempfile.mkdtemp(prefix="trimtab-shipment-"))
    for place, name in pairs:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place, target / name)
    return Shipment(target, tuple(notes))


def _named(config: SweepConfig) -> tuple[list[tuple[Path, Path]], list[str]]:
    """((file, its relative name on the nodes)..., notes)."""
    found: dict[Path, Path] = {}
    notes: list[str] = []
    run, axes = config.run, config.axes
    names = [str(v) for key in ("model", "data", "loss") for v in (run.get(key), *axes.get(key, ())) if v]
    for name in filter(is_own, names):
        if not name.startswith("hf:"):
            found |= _code(name.rpartition(":")[0], notes)
    options = run.get("data_options") or {}
    data = [options.get(key) for key in ("file", "folder")]
    data += [v for key in ("data_options.file", "data_options.folder") for v in axes.get(key, ())]
    for name in [*filter(None, data), *config.ray.get("files", ())]:
        found |= _data(str(name), notes)
    return [(place, name) for name, place in found.items()], notes


def _code(place: str, notes: list[str]) -> dict[Path, Path]:
    """A user's module and the Python files it may import."""
    source = source_file(place)
    if source is None:
        raise InputError(f"{place}: there is no such file or module to send to the nodes.")
    if not place.endswith(".py"):
        top = source.parents[place.count(".") + (source.name == "__init__.py")]
        if any(part in ("site-packages", "dist-packages") for part in source.parts):
            notes.append(f"{place} is an installed package: every node must have it.")
            return {}
        first = top / place.split(".")[0]
        files = [source] if not first.is_dir() else _python(first)
        return {path.relative_to(top): path for path in files}
    inside = _relative(place)
    files = [source, *(p for p in source.parent.glob("*.py") if p != source)]
    for package in source.parent.iterdir():
        if package.is_dir() and (package / "__init__.py").exists():
            files += _python(package)
    return {inside.parent / path.relative_to(source.parent): path for path in files}


def _python(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts]


def _data(name: str, notes: list[str]) -> dict[Path, Path]:
    if Path(name).is_absolute():
        notes.append(f"{name} is an absolute path: it must be there on every node.")
        return {}
    if any(mark in name for mark in "*?["):
        places = {_relative(str(p.relative_to(f))): p for f in folders() for p in f.glob(name) if p.is_file()}
        if not places:
            raise InputError(f"ray.files: {name} matches no file in {', '.join(map(str, folders()))}.")
        return places
    place = find_file(name)
    if place is None:
        raise InputError(f"{name}: there is no such file or folder to send to the nodes.")
    return {_relative(name) / path.relative_to(place): path for path in _within(place)}


def _within(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    else:
        yield from (path for path in sorted(place.rglob("*")) if path.is_file())


def _relative(name: str) -> Path:
    """A name as it stands below the nodes' working folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(
            f"a file that travels to the nodes lies in or below the sweep's folder: got {name}. Move it "
            "there, or make it a package that is installed on every node."
        )
    return Path(name)
