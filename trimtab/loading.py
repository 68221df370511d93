"""Find the user's own functions: `pkg.mod:function` or `path/to/file.py:function`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.errors import InputError

ROOTS: list[Path] = []  # further folders in which file.py is looked for: those of the configuration files read


def load(spec: str) -> Callable[..., Any]:
    """The function a spec names.

    >>> load("math:sqrt")(9.0)
    3.0
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise InputError(f"a function is named as pkg.mod:function or file.py:function: got {spec!r}.")
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
        raise InputError(f"{place} has no function {name!r}; it has {', '.join(known[:8]) or 'none'}.")
    return found


def beside(spec: str, name: str) -> Callable[..., Any] | None:
    """Another function in the module that a spec names, None if there is none.

    >>> beside("math:sqrt", "cos")(0.0)
    1.0
    """
    found = getattr(_module(spec.rpartition(":")[0]), name, None)
    return found if callable(found) else None


def source_file(place: str) -> Path | None:
    """The file a user's `file.py` or `pkg.mod` stands for; None where there is none."""
    if place.endswith(".py"):
        return next((root / place for root in (Path(), *ROOTS) if (root / place).is_file()), None)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        spec = None
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def sources(*names: str) -> dict[str, str]:
    """{name: SHA-256 of the file behind it} of those that are users' functions."""
    files = {name: source_file(name.rpartition(":")[0]) for name in names if ":" in name}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path is not None}


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = source_file(place)
        if path is None:
            raise InputError(f"there is no file {place}, looked for at {', '.join(str((root / place).resolve()) for root in (Path(), *ROOTS))}.")
        name = f"_trimtab_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
        if name in sys.modules:  # one module however many functions are named: they may share state
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.resolve().parent))
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise InputError(f"{place} raised {type(error).__name__} when it was imported: {error}.") from error
        finally:
            sys.path.remove(str(path.resolve().parent))
        return module
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise InputError(f"module {place!r} could not be imported: {error}. Run from the folder that holds it, or pass file.py:function.") from error
