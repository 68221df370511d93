"""A sweep.toml as a grid of cells: the file is read, its keys are checked, its runs tried. No torch.

Every fault is found before any work and said at once, with the path of its key in the sweep's file: the
sweep's own keys (`toml_keys`), then the fields of the runs it would make. What a sweep is: `config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.errors import Fault, InputError, faults_in
from trimtab.files import looking_in
from trimtab.runs import catalogue
from trimtab.runs.config import WHOLE, RunConfig, device_class
from trimtab.runs.toml import read_table, refuse_other_kinds
from trimtab.runs.user_code import source_file
from trimtab.sweeps.config import BUDGET, SweepConfig, from_plain, nested
from trimtab.sweeps.horizons import Lengths, Point, place, read_lengths, split_base
from trimtab.sweeps.search import read_search
from trimtab.sweeps.toml_keys import (
    KEYS,
    MOST,
    PAIR,
    TAKEN,
    as_dtype,
    instead_of,
    is_pair,
    read_axes,
    read_budget,
    read_fleet,
    read_ray,
    read_schemes,
    read_seeds,
    read_sizes,
    read_sizes_along,
)

__all__ = ["BUDGET", "MOST", "TAKEN", "USERS", "SweepConfig", "from_plain", "read"]

LARGEST = 1_000_000  # cells
USERS = {
    "momentum": ("sgd", "muon"),
    "nesterov": ("sgd",),
    "betas": ("adam", "adamw", "muon"),
    "eps": ("adam", "adamw", "muon"),
    "rest_lr": ("muon",),
}
# where a fault of a run's size stands in the sweep's file
SIZES = {"width": "widths", "depth": "depths", "base width": "base", "base depth": "base"}


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
    what, folder, keys = read_table(config, "sweep", SweepConfig)
    if folder is not None:
        refuse_other_kinds(what, keys, "sweep")
    made, found = _validate(keys, folder)
    if not found and made is not None:
        made = replace(made, folder=folder)
        with looking_in(folder):
            found = _try_cells(made) + _file_faults(made)
    if found or made is None:
        raise faults_in(what, found)
    return made


def _validate(c: dict[str, Any], folder: Path | None) -> tuple[SweepConfig | None, list[Fault]]:
    c |= {key: as_dtype(c[key]) for key in ("run", "axes") if key in c}
    found = [catalogue.unknown("sweep", key, KEYS, own=False, kind="key") for key in c if key not in KEYS]
    name, base = c.get("name", "sweep"), c.get("base")
    if not isinstance(name, str):
        found.append(Fault("name", "must be a text", repr(name)))
    base, given = split_base(base, found) if base is not None else (None, {})
    schemes = read_schemes(c.get("schemes", ["depth-mup"]), found)
    if c.get("base") is None:
        found.append(Fault("base", "is required: [width, depth] of the model that is tuned"))
    elif base is not None and not is_pair(base):
        found.append(Fault("base", PAIR, repr(base)))
    lists = {key: read_sizes_along(c, key, base, found) for key in ("widths", "depths")}
    sizes = read_sizes(c, lists, base, found)
    seeds = read_seeds(c.get("seeds", 3), found)
    run = c.get("run", {})
    if not isinstance(run, Mapping):
        found.append(Fault("run", "must be a table of RunConfig fields", repr(run)))
        run = {}
    taken = [key for key in run if key in TAKEN]
    found += [Fault(f"run.{key}", f"is filled in by the sweep; set {instead_of(key)}") for key in taken]
    axes = read_axes(c.get("axes", {}), run, found)
    lengths = read_lengths(c, given, run, axes, found, folder)
    fleet, budget = read_fleet(c, found), read_budget(c.get("budget", {}), found)
    ray = read_ray(c.get("ray", {}), found)
    search = read_search(c.get("search"), axes, run, found)
    if found or sizes is None or seeds is None or not is_pair(base):
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


def _points(
    c: Mapping[str, Any], sizes: tuple[tuple[int, int], ...], lengths: Lengths | None, base: Sequence[int]
) -> tuple[Point, ...]:
    """Where the runs are, where batch and length are axes too."""
    centre = c.get("centre", base)
    cross = c.get("sizes") == "cross"
    return () if lengths is None else place(sizes, lengths, (centre[0], centre[1]), cross=cross)


def _run_faults(run: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> list[Fault]:
    """When the sweep itself is wrong its runs cannot be made; still say what is wrong with their fields."""
    fixed = {k: v for k, v in run.items() if k not in TAKEN}
    numbers = {
        k: v[0] for k, v in axes.items() if k.split(".")[0] in RunConfig.model_fields and k not in TAKEN
    }
    try:
        RunConfig(**nested(fixed, {"lr": 0.1} | numbers), width=24, depth=6)
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
        top = SIZES | {"horizon": "horizon", WHOLE: "run"}  # what stands at the top of the sweep's file
        path = top.get(fault.path) or f"{'axes' if swept else 'run'}.{fault.path}"
        out.append(replace(fault, path=path))
    return out
