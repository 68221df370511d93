"""Find the user's own functions: `pkg.mod:function` or `path/to/file.py:function`.

Where a file is looked for says `trimtab.files`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.errors import InputError, calling, raised
from trimtab.files import find_file, folders


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
        known = [
            n
            for n, v in vars(module).items()
            if callable(v) and not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
        ]
        raise InputError(f"{place} has no function {name!r}; it has {', '.join(known[:8]) or 'none'}.")
    return found


def beside(spec: str, name: str) -> Callable[..., Any] | None:
    """Another function in the module that a spec names, None if there is none.

    >>> beside("math:sqrt", "cos")(0.0)
    1.0
    """
    found = getattr(_module(spec.rpartition(":")[0]), name, None)
    return found if callable(found) else None


def of_step(data: Callable[..., Any], *, whole: bool = False) -> Callable[[int], Any]:
    """The training batches of seed 0 as a function of the step: from data(split, seed, step), or data(step)
    itself.

    The former is what a sweep takes, and there a loss is called with the whole batch: `whole` puts it in the
    target's place.

    >>> of_step(lambda split, seed, step: (split, seed, step))(7), of_step(lambda step: step)(7)
    (('train', 0, 7), 7)
    >>> of_step(lambda split, seed, step: ("x", "y"), whole=True)(7)
    ('x', ('x', 'y'))
    """
    if not by_split(data):
        return data

    def batch(step: int) -> Any:
        one = data("train", 0, step)
        return (one[0], tuple(one)) if whole and isinstance(one, list | tuple) and len(one) == 2 else one

    return batch


def by_split(data: Callable[..., Any]) -> bool:
    """Whether a function is data(split, seed, step), as files and commands name it; else it is data(step).

    >>> by_split(lambda split, seed=0, step=0: None), by_split(lambda step, size=8, noise=0.0: None)
    (True, False)
    """
    try:
        given = [p for p in inspect.signature(data).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    except (TypeError, ValueError):
        return True
    needed = [
        p for p in given if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    named = bool(given) and given[0].name == "split"
    return (
        named or len(needed) == 3 or (not needed and bool(given) and given[0].kind is given[0].VAR_POSITIONAL)
    )


def accepts(function: Callable[..., Any], *args: Any) -> bool:
    """Whether it can be called with these arguments, as far as its signature tells.

    >>> accepts(lambda split, seed, step: None, "train", 0, 0), accepts(lambda split: None, "train", 0, 0)
    (True, False)
    """
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def build_model(
    build: Callable[..., Any],
    width: int,
    depth: int,
    options: Mapping[str, Any] | None = None,
    *,
    name: str = "build",
) -> Any:
    """The model that a user's `build(width, depth, **options)` returns. Every command builds with this.

    Raises:
        InputError: build cannot be called like this, raises, or returns something that is no nn.Module.

    >>> build_model(lambda width: None, 8, 2, name="f")
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: f must take (width, depth): it is f(width), and cannot be called as f(8, 2).
    """
    options = dict(options or {})
    problem = _signature_fault(build, width, depth, name, options)
    if problem:
        raise InputError(problem)
    with calling(f"{name}(width={width}, depth={depth})"):
        model = build(width, depth, **options)
    torch = sys.modules.get("torch")  # not imported here: configurations are read without it
    if torch is None or not isinstance(model, torch.nn.Module):
        what = "None: end it with `return model`" if model is None else type(model).__name__
        raise InputError(f"{name} must return an nn.Module: {name}({width}, {depth}) returned {what}.")
    return model


def _signature_fault(
    build: Callable[..., Any], width: int, depth: int, name: str, options: dict[str, Any]
) -> str:
    """Why build(width, depth, **options) cannot be called; empty if it can, or if nobody can tell before."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):
        return ""
    shown = f"{name}({', '.join(str(p).split(':')[0] for p in signature.parameters.values())})"
    call = ", ".join([str(width), str(depth), *(f"{key}={value!r}" for key, value in options.items())])
    if list(signature.parameters)[:2] == ["depth", "width"]:
        return f"{name} is called with the width first: it is {shown}. Swap its first two arguments."
    try:
        signature.bind(width, depth, **options)
    except TypeError as error:
        law = "(width, depth)" if not options else "(width, depth) and the model_options"
        why = "" if not options else f" ({error})"
        return f"{name} must take {law}: it is {shown}, and cannot be called as {name}({call}){why}."
    return ""


def source_file(place: str) -> Path | None:
    """The file a user's `file.py` or `pkg.mod` stands for; None where there is none."""
    if place.endswith(".py"):
        found = find_file(place)
        return found if found is not None and found.is_file() else None
    try:
        with _importable_from(""):
            spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        spec = None
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def sources(*names: str) -> dict[str, str]:
    """{name: SHA-256 of the file behind it} of those that are users' functions."""
    files = {name: source_file(name.rpartition(":")[0]) for name in names if ":" in name}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if path is not None
    }


@contextlib.contextmanager
def _importable_from(folder: str) -> Iterator[None]:
    """Modules in `folder` can be imported inside this block; afterwards `sys.path` is as it was."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's module may have changed it
            sys.path.remove(folder)


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = source_file(place)
        if path is None:
            looked = ", ".join(str(folder / place) for folder in folders())
            raise InputError(f"there is no file {place}, looked for at {looked}.")
        name = f"_trimtab_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
        if name in sys.modules:  # one module however many functions are named: they may share state
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with _importable_from(str(path.resolve().parent)):
                spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise InputError(f"{place}, when it was imported, raised {raised(error)}.") from error
        return module
    try:
        with _importable_from(""):  # the working folder
            return importlib.import_module(place)
    except ImportError as error:
        raise InputError(
            f"module {place!r} could not be imported: {error}. Run from the folder that holds it, or pass "
            "file.py:function."
        ) from error
