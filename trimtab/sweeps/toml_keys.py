"""The keys of a sweep.toml: what each may be, and its fault with its path where it is not. No torch.

They are checked by hand: most take several shapes (how many or a list, a list or a range), of which pydantic
reports one fault per shape. The fields of a run are pydantic's (`runs.config`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard

from trimtab.errors import Fault
from trimtab.parametrization.rules import SCHEMES
from trimtab.runs import catalogue
from trimtab.runs.config import PRECISIONS, RunConfig
from trimtab.runs.toml import WHOLE, are_whole, is_number, is_whole
from trimtab.sweeps.config import BUDGET

KEYS = (
    *("name", "schemes", "base", "widths", "depths", "batches", "tokens", "sizes", "centre", "seeds"),
    *("horizon", "run", "axes", "fleet", "budget", "ray", "search"),
)
MOST = 4096  # slots of a fleet
RAY = ("num_cpus", "num_gpus", "memory", "files")
# fields of a run that the sweep itself fills in
TAKEN = ("width", "depth", "base", "scheme", "seed", "fleet", "version", "sources", "horizon")
PAIR = "must be [width, depth], two whole numbers >= 1"
RANGES = ("log2", "log10", "linear")


def as_dtype(table: Any) -> Any:
    """[run] or [axes] with `precision` as the dtype it is another way to say; wrong ones as they are.

    >>> as_dtype({"lr": 0.1, "precision": "bf16"}), as_dtype({"precision": ["float32", "bf16"]})
    ({'lr': 0.1, 'dtype': 'bfloat16'}, {'dtype': ['float32', 'bfloat16']})
    """
    if not isinstance(table, Mapping) or "precision" not in table or "dtype" in table:
        return table
    given = table["precision"]
    values = given if isinstance(given, list | tuple) else [given]
    if not all(isinstance(v, str) and v in PRECISIONS for v in values):
        return table
    named = [PRECISIONS[v] for v in values]
    rest = {key: value for key, value in table.items() if key != "precision"}
    return rest | {"dtype": named if isinstance(given, list | tuple) else named[0]}


def read_schemes(schemes: Any, found: list[Fault]) -> tuple[str, ...]:
    """The key `schemes`."""
    if not isinstance(schemes, list | tuple) or not schemes or len(set(map(str, schemes))) != len(schemes):
        found.append(Fault("schemes", "must be a list of names, none twice", repr(schemes)))
        return ()
    found += [
        catalogue.unknown(f"schemes[{i}]", scheme, SCHEMES, own=False)
        for i, scheme in enumerate(schemes)
        if not isinstance(scheme, str) or scheme not in SCHEMES
    ]
    return tuple(schemes)


def read_sizes_along(c: dict[str, Any], key: str, base: Any, found: list[Fault]) -> Sequence[int] | None:
    """The widths or the depths; by default the base's."""
    place = ("widths", "depths").index(key)
    values = c.get(key, [base[place]] if is_pair(base) else None)
    if values is None:
        return None
    if are_whole(values):
        return values
    found.append(Fault(key, WHOLE, repr(values)))
    return None


def read_sizes(
    c: dict[str, Any], lists: dict[str, Any], base: Any, found: list[Fault]
) -> tuple[tuple[int, int], ...] | None:
    """(width, depth) of every size, by the key `sizes`: all of `lists`, or a cross through `centre`."""
    kind, centre = c.get("sizes", "product"), c.get("centre", base)
    if kind not in ("product", "cross"):
        found.append(catalogue.unknown("sizes", kind, ("product", "cross"), own=False))
    if "centre" in c and not is_pair(centre):
        found.append(Fault("centre", PAIR, repr(centre)))
    if "centre" in c and kind == "product":
        found.append(Fault("centre", "belongs to sizes = 'cross'"))
    widths, depths = lists["widths"], lists["depths"]
    if widths is None or depths is None or not is_pair(centre):
        return None
    if kind == "product":
        return tuple(itertools.product(widths, depths))
    arms = [(centre[0], depth) for depth in depths] + [(width, centre[1]) for width in widths]
    return tuple(dict.fromkeys(arms))


def read_seeds(seeds: Any, found: list[Fault]) -> tuple[int, ...] | None:
    """The key `seeds`: how many, or which."""
    if is_whole(seeds) and seeds <= 10_000:
        return tuple(range(seeds))
    if (
        isinstance(seeds, list | tuple)
        and seeds
        and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds)
        and len(set(seeds)) == len(seeds)
    ):
        return tuple(seeds)
    law = "must be how many, or a list of whole numbers >= 0, none twice"
    found.append(Fault("seeds", law, repr(seeds)))
    return None


def read_axes(axes: Any, run: Mapping[str, Any], found: list[Fault]) -> dict[str, tuple[Any, ...]]:
    """The table [axes]: {field of a run: its values}."""
    if not isinstance(axes, Mapping):
        found.append(Fault("axes", "must be a table of RunConfig fields", repr(axes)))
        return {}
    out: dict[str, tuple[Any, ...]] = {}
    for key, given in axes.items():
        path, top = f"axes.{key}", key.split(".")[0]
        if key in TAKEN:
            found.append(Fault(path, f"is not an axis of its own; set {instead_of(key)}"))
        elif top not in RunConfig.model_fields or ("." in key and not _nests(key)):
            known = [k for k in RunConfig.model_fields if k not in TAKEN]
            found.append(catalogue.unknown("axes", key, known, own=False, kind="key"))
        if key in run:
            found.append(Fault(path, "is also set in run; keep one of the two"))
        values = _range(given, path, found) if isinstance(given, Mapping) else given
        if values is None:
            continue
        if not isinstance(values, list | tuple) or not values:
            law = "must be a list of values or a range such as { log2 = [-6, 4], step = 1 }"
            found.append(Fault(path, law, repr(given)))
            continue
        if len({repr(v) for v in values}) != len(values):
            found.append(Fault(path, "a value stands there twice", repr(list(values))))
        out[key] = tuple(values)
    return out


def _range(given: Mapping[str, Any], path: str, found: list[Fault]) -> list[float] | None:
    kinds = [k for k in RANGES if k in given]
    extra = [k for k in given if k not in (*RANGES, "step")]
    if len(kinds) != 1 or extra:
        found.append(Fault(path, f"a range has one of {', '.join(RANGES)} and a step", repr(dict(given))))
        return None
    kind, bounds, step = kinds[0], given[kinds[0]], given.get("step", 1)
    if not isinstance(bounds, list | tuple) or len(bounds) != 2 or not all(is_number(b) for b in bounds):
        found.append(Fault(path, f"{kind} takes two finite numbers [low, high]", repr(bounds)))
        return None
    low, high = map(float, bounds)
    if low > high:
        found.append(Fault(path, "a range goes from low to high, finite", repr(list(bounds))))
        return None
    if not is_number(step) or step <= 0 or (high - low) / step > 10_000:
        found.append(Fault(f"{path}.step", "must be > 0 and give at most 10,000 values", repr(step)))
        return None
    if kind != "linear" and max(abs(low), abs(high)) >= 300:
        found.append(Fault(path, "exponents must lie within +-300", repr(list(bounds))))
        return None
    exponents = [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]
    return exponents if kind == "linear" else [{"log2": 2.0, "log10": 10.0}[kind] ** e for e in exponents]


def read_fleet(c: dict[str, Any], found: list[Fault]) -> int | Literal["auto"]:
    """The key `fleet`; `budget.fleet` is where it used to stand."""
    held = c.get("budget", {})
    older = held.get("fleet") if isinstance(held, Mapping) else None
    if older is not None and "fleet" in c:
        found.append(Fault("budget.fleet", "the key fleet says it; keep one of the two"))
    path, value = ("budget.fleet", older) if older is not None else ("fleet", c.get("fleet", "auto"))
    if value == "auto" or (is_whole(value) and value <= MOST):
        return value
    law = f"must be 'auto', 1 (each run alone) or how many runs train together, at most {MOST}"
    found.append(Fault(path, law, repr(value)))
    return "auto"


def read_budget(budget: Any, found: list[Fault]) -> dict[str, float]:
    """The table [budget]."""
    if not isinstance(budget, Mapping):
        found.append(Fault("budget", "must be a table", repr(budget)))
        return dict(BUDGET)
    for key, value in budget.items():
        if key == "fleet":
            continue
        if key not in BUDGET:
            found.append(catalogue.unknown("budget", key, BUDGET, own=False, kind="key"))
        elif not is_number(value) or value < 0 or (key != "retries" and value == 0):
            least = ">= 0" if key == "retries" else "> 0"
            found.append(Fault(f"budget.{key}", f"must be a number {least}", repr(value)))
    return {**BUDGET, **{k: v for k, v in budget.items() if k in BUDGET}}


def read_ray(table: Any, found: list[Fault]) -> dict[str, Any]:
    """The table [ray]: resources of a task, and files for the nodes."""
    if not isinstance(table, Mapping):
        found.append(Fault("ray", "must be a table", repr(table)))
        return {}
    for key, value in table.items():
        if key not in RAY:
            found.append(catalogue.unknown("ray", key, RAY, own=False, kind="key"))
        elif key == "files":
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
                found.append(Fault("ray.files", "must be a list of file names or patterns", repr(value)))
        elif not is_number(value) or value < 0 or (key != "num_gpus" and value == 0):
            least = ">= 0" if key == "num_gpus" else "> 0"
            found.append(Fault(f"ray.{key}", f"must be a number {least}", repr(value)))
    return dict(table)


def _nests(key: str) -> bool:
    """Whether an axis may go into a table of a run: model_options.k, roles.input.lr."""
    top, _, rest = key.partition(".")
    return top.endswith("_options") or (top == "roles" and rest.count(".") == 1)


def instead_of(key: str) -> str:
    """Where a field that the sweep fills in is set."""
    return {"width": "widths", "depth": "depths", "scheme": "schemes", "seed": "seeds"}.get(
        key, f"{key} at the top"
    )


def is_pair(value: Any) -> TypeGuard[Sequence[int]]:
    """[width, depth]."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(is_whole(v) for v in value)
