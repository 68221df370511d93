"""A sweep as a grid of cells: schemes x sizes x hyperparameter axes x seeds. No torch.

    cell = RunConfig,      its name = SHA-256 of the resolved configuration

so adding a value to an axis later adds exactly its cells, and the same cell is the same cell in any sweep.

The fields of a run are checked by pydantic (`runs.config`). The sweep's own keys are checked here by
hand: most take several shapes (how many or a list, a list or a range), of which pydantic reports one fault
    per shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from trimtab.errors import Fault, InputError, faults_in
from trimtab.files import looking_in
from trimtab.parametrization.rules import SCHEMES
from trimtab.runs import catalogue
from trimtab.runs.config import PRECISIONS, RunConfig, device_class
from trimtab.runs.toml import read_toml
from trimtab.runs.user_code import source_file, sources
from trimtab.sweeps.horizons import Lengths, Point, fields_of, place, read_lengths, split_base
from trimtab.sweeps.search import AdaptiveSearch, read_search

LARGEST = 1_000_000  # cells
MOST = 4096  # slots of a fleet
KEYS = (
    *("name", "schemes", "base", "widths", "depths", "batches", "tokens", "sizes", "centre", "seeds"),
    *("horizon", "run", "axes", "fleet", "budget", "ray", "search"),
)
BUDGET = {"cell_seconds": 3600.0, "retries": 0, "checkpoint_seconds": 30.0}
RAY = ("num_cpus", "num_gpus", "memory", "files")
# fields of a run that the sweep itself fills in
TAKEN = ("width", "depth", "base", "scheme", "seed", "fleet", "version", "sources", "horizon")
USERS = {
    "momentum": ("sgd", "muon"),
    "nesterov": ("sgd",),
    "betas": ("adam", "adamw", "muon"),
    "eps": ("adam", "adamw", "muon"),
    "rest_lr": ("muon",),
}
# where a fault of a run's size stands in the sweep's file
SIZES = {"width": "widths", "depth": "depths", "base width": "base", "base depth": "base"}
PAIR = "must be [width, depth], two whole numbers >= 1"
RANGES = ("log2", "log10", "linear")


@dataclass(frozen=True)
class SweepConfig:
    """A validated sweep.

    Attributes:
        sizes: the (width, depth) pairs. lengths: batches and tokens, None where they are as `run` says.
        points: where on those axes a run is; (): at every size. axes: {RunConfig field: values}.
        run: fields every run has.
        fleet: runs trained together: "auto" (by the rule of `trimtab.slots`), a number, or 1 (each alone).
        budget: "cell_seconds" (wall clock of one run), "retries" (of a run that raised),
            "checkpoint_seconds".
        gpu: the number of the GPU that the file names (device = "cuda:1"); None: workers are dealt all.
        ray: what a task asks of a cluster ("num_cpus", "num_gpus", "memory" in bytes), and "files" to send.
        folder: of the file it was read from, where `file.py:function` is looked for first; None: it has no
            file.
        search: how an adaptive sweep goes on and ends; None: the whole grid is run.
    """

    name: str
    schemes: tuple[str, ...]
    base: tuple[int, int]
    sizes: tuple[tuple[int, int], ...]
    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    run: dict[str, Any]
    fleet: int | Literal["auto"] = "auto"
    budget: dict[str, float] = field(default_factory=lambda: dict(BUDGET))
    folder: Path | None = None
    lengths: Lengths | None = None
    points: tuple[Point, ...] = ()
    ray: dict[str, Any] = field(default_factory=dict)
    gpu: int | None = None
    search: AdaptiveSearch | None = None

    def __len__(self) -> int:
        return (
            len(self.schemes)
            * len(self.places)
            * len(self.seeds)
            * math.prod(len(v) for v in self.axes.values())
        )

    @property
    def places(self) -> tuple[Point, ...]:
        return self.points or tuple(Point(*size) for size in self.sizes)

    def fields(self, point: Point, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the runs at a point, but for scheme and seed."""
        lengths = fields_of(point, self.run, self.lengths)
        return (
            _nested(self.run, numbers) | lengths | dict(width=point.width, depth=point.depth, base=self.base)
        )

    def cells(self) -> Iterator[RunConfig]:
        """Every run of the grid, resolved."""
        names = [str(self.run.get(key, "")) for key in ("model", "data", "loss")]
        names += [str(v) for key in ("model", "data", "loss") for v in self.axes.get(key, ())]
        with looking_in(self.folder):
            hashes = sources(*names)
        for scheme, point, values, seed in itertools.product(
            self.schemes, self.places, itertools.product(*self.axes.values()), self.seeds
        ):
            numbers = dict(zip(self.axes, values, strict=True))
            used = {
                k: h
                for k, h in hashes.items()
                if k in {*(str(self.run.get(key)) for key in ("model", "data", "loss")), *map(str, values)}
            }
            yield RunConfig(**self.fields(point, numbers), scheme=scheme, seed=seed, sources=used)

    def plain(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        more: dict[str, Any] = {}
        if self.lengths is not None:
            more = dict(lengths=self.lengths.plain(), points=[list(p) for p in self.places])
        if self.search is not None:
            more["search"] = self.search.model_dump(exclude_none=True)
        return more | dict(
            name=self.name,
            schemes=list(self.schemes),
            base=list(self.base),
            sizes=[list(s) for s in self.sizes],
            axes={k: list(v) for k, v in self.axes.items()},
            seeds=list(self.seeds),
            run=self.run,
            fleet=self.fleet,
            budget=self.budget,
        )


def read(config: str | Path | Mapping[str, Any] | SweepConfig) -> SweepConfig:
    """A sweep from a TOML file, a dict or a SweepConfig.

    Raises:
        InputError: every fault at once, each with the path of its key.

    >>> rates = {"lr": {"log2": [-6, -4], "step": 1}}
    >>> sweep = read({"base": [32, 3], "widths": [32], "depths": [3, 6], "axes": rates, "seeds": 2})
    >>> len(sweep), sweep.axes["lr"], sweep.sizes
    (12, (0.015625, 0.03125, 0.0625), ((32, 3), (32, 6)))
    >>> read({"base": [32], "widths": [], "axes": {"lr": {"log2": [3, 1]}}})
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: 3 faults in the sweep
      - base: must be [width, depth], two whole numbers >= 1: got [32]
      - widths: must be a list of whole numbers >= 1, none twice: got []
      - axes.lr: a range goes from low to high, finite: got [3, 1]
    """
    if isinstance(config, SweepConfig):
        return config
    what, folder = "the sweep", None
    if isinstance(config, str | Path):
        what, folder, config = str(config), Path(config).resolve().parent, read_toml(config)
    if not isinstance(config, Mapping):
        raise InputError(f"a sweep is a path, a dict or a SweepConfig: got {type(config).__name__}.")
    made, found = _validate(dict(config), folder)
    if not found and made is not None:
        made = replace(made, folder=folder)
        with looking_in(folder):
            found = _try_cells(made) + _file_faults(made)
    if found or made is None:
        raise faults_in(what, found)
    return made


def from_plain(plain: Mapping[str, Any], folder: Path | None = None) -> SweepConfig:
    """A sweep again from its `plain`, as a store keeps it."""
    lengths = plain.get("lengths")
    search = plain.get("search")
    return SweepConfig(
        name=plain["name"],
        schemes=tuple(plain["schemes"]),
        base=(plain["base"][0], plain["base"][1]),
        sizes=tuple((w, d) for w, d in plain["sizes"]),
        axes={key: tuple(values) for key, values in plain["axes"].items()},
        seeds=tuple(plain["seeds"]),
        run=dict(plain["run"]),
        fleet=plain["fleet"],
        budget=dict(plain["budget"]),
        folder=folder,
        lengths=None if lengths is None else Lengths(**lengths),
        points=tuple(Point(*p) for p in plain.get("points", ())),
        search=None if search is None else AdaptiveSearch(**search),
    )


def _as_dtype(table: Any) -> Any:
    """[run] or [axes] with `precision` as the dtype it is another way to say; wrong ones as they are.

    >>> _as_dtype({"lr": 0.1, "precision": "bf16"}), _as_dtype({"precision": ["float32", "bf16"]})
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


def _validate(c: dict[str, Any], folder: Path | None) -> tuple[SweepConfig | None, list[Fault]]:
    c |= {key: _as_dtype(c[key]) for key in ("run", "axes") if key in c}
    found = [catalogue.unknown("sweep", key, KEYS, own=False, kind="key") for key in c if key not in KEYS]
    name, base = c.get("name", "sweep"), c.get("base")
    if not isinstance(name, str):
        found.append(Fault("name", "must be a text", repr(name)))
    base, given = split_base(base, found) if base is not None else (None, {})
    schemes = _schemes(c.get("schemes", ["depth-mup"]), found)
    if c.get("base") is None:
        found.append(Fault("base", "is required: [width, depth] of the model that is tuned"))
    elif base is not None and not _pair(base):
        found.append(Fault("base", PAIR, repr(base)))
    lists = {key: _lengths(c, key, base, found) for key in ("widths", "depths")}
    sizes = _sizes(c, lists, base, found)
    seeds = _seeds(c.get("seeds", 3), found)
    run = c.get("run", {})
    if not isinstance(run, Mapping):
        found.append(Fault("run", "must be a table of RunConfig fields", repr(run)))
        run = {}
    taken = [key for key in run if key in TAKEN]
    found += [Fault(f"run.{key}", f"is filled in by the sweep; set {_instead(key)}") for key in taken]
    axes = _axes(c.get("axes", {}), run, found)
    lengths = read_lengths(c, given, run, axes, found, folder)
    fleet, budget = _fleet(c, found), _budget(c.get("budget", {}), found)
    ray = read_ray(c.get("ray", {}), found)
    search = read_search(c.get("search"), axes, run, found)
    if found or sizes is None or seeds is None or not _pair(base):
        return None, found + _run_faults(run, axes)
    made = SweepConfig(
        name=name,
        schemes=schemes,
        base=(base[0], base[1]),
        sizes=sizes,
        axes=axes,
        seeds=seeds,
        run=dict(run),
        fleet=fleet,
        budget=budget,
        lengths=lengths,
        points=_points(c, sizes, lengths, base),
        ray=ray,
        search=search,
    )
    if len(made) > LARGEST:
        found.append(Fault("axes", f"the grid has {len(made):,} cells, at most {LARGEST:,} are allowed"))
    return made, found


def _schemes(schemes: Any, found: list[Fault]) -> tuple[str, ...]:
    if not isinstance(schemes, list | tuple) or not schemes or len(set(map(str, schemes))) != len(schemes):
        found.append(Fault("schemes", "must be a list of names, none twice", repr(schemes)))
        return ()
    found += [
        catalogue.unknown(f"schemes[{i}]", scheme, SCHEMES, own=False)
        for i, scheme in enumerate(schemes)
        if not isinstance(scheme, str) or scheme not in SCHEMES
    ]
    return tuple(schemes)


def _lengths(c: dict[str, Any], key: str, base: Any, found: list[Fault]) -> Sequence[int] | None:
    """The widths or the depths; by default the base's."""
    place = ("widths", "depths").index(key)
    values = c.get(key, [base[place]] if _pair(base) else None)
    if values is None:
        return None
    whole = isinstance(values, list | tuple) and values and all(_whole(v) for v in values)
    if whole and len(set(values)) == len(values):
        return values
    found.append(Fault(key, "must be a list of whole numbers >= 1, none twice", repr(values)))
    return None


def _sizes(
    c: dict[str, Any], lists: dict[str, Any], base: Any, found: list[Fault]
) -> tuple[tuple[int, int], ...] | None:
    kind, centre = c.get("sizes", "product"), c.get("centre", base)
    if kind not in ("product", "cross"):
        found.append(catalogue.unknown("sizes", kind, ("product", "cross"), own=False))
    if "centre" in c and not _pair(centre):
        found.append(Fault("centre", PAIR, repr(centre)))
    if "centre" in c and kind == "product":
        found.append(Fault("centre", "belongs to sizes = 'cross'"))
    widths, depths = lists["widths"], lists["depths"]
    if widths is None or depths is None or not _pair(centre):
        return None
    if kind == "product":
        return tuple(itertools.product(widths, depths))
    arms = [(centre[0], depth) for depth in depths] + [(width, centre[1]) for width in widths]
    return tuple(dict.fromkeys(arms))


def _points(
    c: Mapping[str, Any], sizes: tuple[tuple[int, int], ...], lengths: Lengths | None, base: Sequence[int]
) -> tuple[Point, ...]:
    """Where the runs are, where batch and length are axes too."""
    centre = c.get("centre", base)
    cross = c.get("sizes") == "cross"
    return () if lengths is None else place(sizes, lengths, (centre[0], centre[1]), cross=cross)


def _seeds(seeds: Any, found: list[Fault]) -> tuple[int, ...] | None:
    if _whole(seeds) and seeds <= 10_000:
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


def _axes(axes: Any, run: Mapping[str, Any], found: list[Fault]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(axes, Mapping):
        found.append(Fault("axes", "must be a table of RunConfig fields", repr(axes)))
        return {}
    out: dict[str, tuple[Any, ...]] = {}
    for key, given in axes.items():
        path, top = f"axes.{key}", key.split(".")[0]
        if key in TAKEN:
            found.append(Fault(path, f"is not an axis of its own; set {_instead(key)}"))
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
    if not isinstance(bounds, list | tuple) or len(bounds) != 2 or not all(_number(b) for b in bounds):
        found.append(Fault(path, f"{kind} takes two finite numbers [low, high]", repr(bounds)))
        return None
    low, high = map(float, bounds)
    if low > high:
        found.append(Fault(path, "a range goes from low to high, finite", repr(list(bounds))))
        return None
    if not _number(step) or step <= 0 or (high - low) / step > 10_000:
        found.append(Fault(f"{path}.step", "must be > 0 and give at most 10,000 values", repr(step)))
        return None
    if kind != "linear" and max(abs(low), abs(high)) >= 300:
        found.append(Fault(path, "exponents must lie within +-300", repr(list(bounds))))
        return None
    exponents = [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]
    return exponents if kind == "linear" else [{"log2": 2.0, "log10": 10.0}[kind] ** e for e in exponents]


def _fleet(c: dict[str, Any], found: list[Fault]) -> int | Literal["auto"]:
    """The key `fleet`; `budget.fleet` is where it used to stand."""
    held = c.get("budget", {})
    older = held.get("fleet") if isinstance(held, Mapping) else None
    if older is not None and "fleet" in c:
        found.append(Fault("budget.fleet", "the key fleet says it; keep one of the two"))
    path, value = ("budget.fleet", older) if older is not None else ("fleet", c.get("fleet", "auto"))
    if value == "auto" or (_whole(value) and value <= MOST):
        return value
    law = f"must be 'auto', 1 (each run alone) or how many runs train together, at most {MOST}"
    found.append(Fault(path, law, repr(value)))
    return "auto"


def _budget(budget: Any, found: list[Fault]) -> dict[str, float]:
    if not isinstance(budget, Mapping):
        found.append(Fault("budget", "must be a table", repr(budget)))
        return dict(BUDGET)
    for key, value in budget.items():
        if key == "fleet":
            continue
        if key not in BUDGET:
            found.append(catalogue.unknown("budget", key, BUDGET, own=False, kind="key"))
        elif not _number(value) or value < 0 or (key != "retries" and value == 0):
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
        elif not _number(value) or value < 0 or (key != "num_gpus" and value == 0):
            least = ">= 0" if key == "num_gpus" else "> 0"
            found.append(Fault(f"ray.{key}", f"must be a number {least}", repr(value)))
    return dict(table)


def _run_faults(run: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> list[Fault]:
    """When the sweep itself is wrong its runs cannot be made; still say what is wrong with their fields."""
    fixed = {k: v for k, v in run.items() if k not in TAKEN}
    numbers = {
        k: v[0] for k, v in axes.items() if k.split(".")[0] in RunConfig.model_fields and k not in TAKEN
    }
    try:
        RunConfig(**_nested(fixed, {"lr": 0.1} | numbers), width=24, depth=6)
    except InputError as error:
        own = [fault for fault in error.faults if fault.path not in SIZES]  # the size here is made up
        return _in_sweep(own, axes)
    return []


def _try_cells(sweep: SweepConfig) -> list[Fault]:
    """Faults of the runs: each axis value and each size in turn, which is all a fault can depend on in
    practice."""
    if "lr" not in sweep.axes and "lr" not in sweep.run:
        return [Fault("axes.lr", "is required: a rate in run, or several as an axis")]
    found = _idle(sweep)
    first = {k: v[0] for k, v in sweep.axes.items()}
    tried = [(point, first) for point in sweep.places] + [
        (sweep.places[0], first | {k: v}) for k, values in sweep.axes.items() for v in values[1:]
    ]
    for point, numbers in tried:
        try:
            RunConfig(**sweep.fields(point, numbers), scheme=sweep.schemes[0])
        except InputError as error:
            found += [fault for fault in _in_sweep(error.faults, sweep.axes) if fault not in found]
    return found


def _file_faults(sweep: SweepConfig) -> list[Fault]:
    """Users' files that cannot be told apart: one beside the sweep's file and another in the working
    folder."""
    named = [("run", key, sweep.run.get(key)) for key in ("model", "data", "loss")]
    named += [("axes", key, value) for key in ("model", "data", "loss") for value in sweep.axes.get(key, ())]
    found = []
    for table, key, name in named:
        if catalogue.is_own(name):
            try:
                source_file(str(name).rpartition(":")[0])
            except InputError as error:
                found.append(Fault(f"{table}.{key}", str(error)))
    return found


def _idle(sweep: SweepConfig) -> list[Fault]:
    """Axes that could not change anything: every value would give the same numbers, and look as if it did not
    matter."""
    chosen = {
        key: [str(v) for v in sweep.axes.get(key, [sweep.run.get(key, default)])]
        for key, default in (("optimizer", "sgd"), ("data", "digits"))
    }
    optimizers = " and ".join(chosen["optimizer"])
    found = [
        Fault(f"axes.{key}", f"not used by {optimizers}, so that every value gives the same run")
        for key, users in USERS.items()
        if key in sweep.axes and not set(users) & set(chosen["optimizer"])
    ]
    if "batch_size" in sweep.axes and all(catalogue.is_own(name) for name in chosen["data"]):
        law = "your own data function makes the batches, so that every value gives the same run"
        cure = "sweep an option of it, as data_options.<name>"
        found.append(Fault("axes.batch_size", law, next_step=cure))
    classes = [device_class(str(v)) for v in sweep.axes.get("device", ())]
    if len(set(classes)) < len(classes) or "auto" in classes:
        law = "must be classes of devices, each once: two GPUs of a class give the same run"
        found.append(Fault("axes.device", law, repr(list(sweep.axes["device"]))))
    if "muon" in chosen["optimizer"] and 0 in sweep.axes.get("momentum", ()):
        found.append(Fault("axes.momentum", "0 stands for muon's own default, 0.95; leave it out"))
    return found


def _in_sweep(faults: Sequence[Fault], axes: Mapping[str, Any]) -> list[Fault]:
    """The faults of a run with the path they have in the sweep's file."""
    out = []
    for fault in faults:
        swept = fault.path in axes or fault.path.split(".")[0] in axes
        top = SIZES | {"horizon": "horizon"}  # what stands at the top of the sweep's file
        path = top.get(fault.path) or f"{'axes' if swept else 'run'}.{fault.path}"
        out.append(replace(fault, path=path))
    return out


def _nested(run: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run; an axis `model_options.k` or `roles.input.lr` goes into that table."""
    out = {k: dict(v) if isinstance(v, Mapping) else v for k, v in run.items()}
    for key, value in numbers.items():
        top, _, rest = key.partition(".")
        if top == "roles" and rest:
            role, _, number = rest.partition(".")
            held = {name: dict(table) for name, table in out.get(top, {}).items()}
            out[top] = held | {role: held.get(role, {}) | {number: value}}
        elif rest:
            out.setdefault(top, {})[rest] = value
        else:
            out[key] = value
    return out


def _nests(key: str) -> bool:
    """Whether an axis may go into a table of a run: model_options.k, roles.input.lr."""
    top, _, rest = key.partition(".")
    return top.endswith("_options") or (top == "roles" and rest.count(".") == 1)


def _instead(key: str) -> str:
    return {"width": "widths", "depth": "depths", "scheme": "schemes", "seed": "seeds"}.get(
        key, f"{key} at the top"
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pair(value: Any) -> TypeGuard[Sequence[int]]:
    return isinstance(value, list | tuple) and len(value) == 2 and all(_whole(v) for v in value)
