"""A sweep's file with more in it: values, seeds, sizes. What the store already holds keeps its name and is
not run again.

A grid is a product, so that a value added for one size is tried at every size and scheme; the file says how
many runs that is. No torch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import InputError
from trimtab.files import create_text
from trimtab.sweeps import grid

TABLES = ("axes", "run", "budget", "search")


def extend(
    plain: Mapping[str, Any],
    *,
    values: Mapping[str, Iterable[float]] | None = None,
    seeds: int = 0,
    widths: Iterable[int] = (),
    depths: Iterable[int] = (),
) -> dict[str, Any]:
    """A sweep (`SweepConfig.plain`) as the table of a sweep.toml, with further axis values, seeds and sizes.

    >>> old = {"sizes": [[8, 2], [8, 4]], "axes": {"lr": [0.1, 0.2]}, "seeds": [0, 1]}
    >>> extend(old, values={"lr": [0.4]}, seeds=1, depths=[8])
    {'axes': {'lr': [0.1, 0.2, 0.4]}, 'seeds': [0, 1, 2], 'widths': [8], 'depths': [2, 4, 8]}
    """
    if plain.get("lengths"):
        raise InputError(
            "a sweep over batch or tokens is extended by hand: add to batches, tokens or axes in its file "
            "and run it into the same store, where nothing runs twice."
        )
    out = {key: value for key, value in plain.items() if key != "sizes"}
    out["axes"] = {key: list(given) for key, given in plain["axes"].items()}
    for key, more in (values or {}).items():
        if key not in out["axes"]:
            raise InputError(
                f"{key} is no axis of the last sweep in this store, which has {', '.join(out['axes'])}."
            )
        whole = all(isinstance(v, int) for v in out["axes"][key])
        new = [int(v) if whole else v for v in more]
        out["axes"][key] = sorted({*out["axes"][key], *new})
    old = list(plain["seeds"])
    fresh = (s for s in itertools.count() if s not in old)
    out["seeds"] = [*old, *itertools.islice(fresh, seeds)]
    return out | _sizes([tuple(s) for s in plain["sizes"]], list(widths), list(depths))


def _sizes(sizes: Sequence[tuple[int, int]], widths: list[int], depths: list[int]) -> dict[str, Any]:
    """The sizes as a sweep.toml has them: a product, or a cross through a centre."""
    wide, deep = sorted({w for w, _ in sizes}), sorted({d for _, d in sizes})
    both = {"widths": sorted({*wide, *widths}), "depths": sorted({*deep, *depths})}
    if set(sizes) == set(itertools.product(wide, deep)):
        return both
    for centre in sizes:
        if set(sizes) == {*((centre[0], d) for d in deep), *((w, centre[1]) for w in wide)}:
            return {"sizes": "cross", "centre": list(centre), **both}
    raise InputError(
        f"the sizes of the last sweep in this store are neither a product nor a cross: {list(sizes)}."
    )


def to_toml(table: Mapping[str, Any], heading: str = "") -> str:
    """A sweep's table as TOML.

    >>> axes, run = {"model_options.k": [1, 2]}, {"data": "digits", "clip": None}
    >>> print(to_toml({"base": [8, 2], "axes": axes, "run": run}, "More."))
    # More.
    base = [8, 2]
    <BLANKLINE>
    [axes]
    "model_options.k" = [1, 2]
    <BLANKLINE>
    [run]
    data = "digits"
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in heading.splitlines()]
    lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if k not in TABLES and v is not None]
    for name in TABLES:
        if table.get(name):
            lines += [
                "",
                f"[{name}]",
                *(f"{_key(k)} = {_value(v)}" for k, v in table[name].items() if v is not None),
            ]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # JSON's escapes are TOML's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items() if v is not None)
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return repr(value)


def write(
    path: Path, table: Mapping[str, Any], heading: str, known: Iterable[str], slots: Iterable[int] = (1,)
) -> tuple[int, int]:
    """Write a sweep's file that runs; returns (its cells, those among them that the store does not hold yet).

    Args:
        known: the store's cells. slots: those their fleets have; which of them a new cell gets is settled
            when it runs.

    Raises:
        InputError: a file is there, the sweep is refused, or it would run all anew because a user's file is
        another one.
    """
    known = set(known)
    create_text(path, to_toml(table, heading))
    try:
        cells, sizes = list(grid.read(path).cells()), set(slots)
        new = [c for c in cells if not any(c.model_copy(update={"fleet": n}).hash in known for n in sizes)]
        if known and len(new) == len(cells):
            own = ", ".join(
                str(table["run"][k]) for k in ("model", "data", "loss") if ":" in str(table["run"].get(k))
            )
            raise InputError(
                f"{path} would run every cell anew: {own or 'a file'} is not what the store's runs were made "
                "with. Write it into the folder of the sweep's own file, with your files as they were."
            )
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return len(cells), len(new)
