"""tune.toml, validated with every fault at once. No torch.

    base, target      the sizes: the search happens at the base, the answer is for the target
    [run]             what all runs share, as in sweep.toml
    [search]          one line per hyperparameter: { log2 = [low, high] } or { from = low, to = high }
    [confirm]         optional: runs at a size in between with the numbers that were found
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from trimtab.errors import InputError, faults
from trimtab.files import look_in
from trimtab.parametrization.rules import as_scheme
from trimtab.runs import catalogue
from trimtab.runs.config import RunConfig, say
from trimtab.runs.toml import read_toml
from trimtab.runs.user_code import source_file, sources
from trimtab.sweeps.grid import BUDGET, MOST, TAKEN, USERS
from trimtab.tuning.space import FRACTIONS, MULTIPLIERS, NAMES, ROLES, SIMPLE, Axis, Space, settings

Whole = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = tuple[Whole, Whole]
RATES = {"sgd": (-8.0, 2.0), "adam": (-12.0, -3.0), "adamw": (-12.0, -3.0), "muon": (-10.0, -2.0)}
RICHNESS, INPUT = (-4.0, 2.0), (-4.0, 3.0)  # of gamma0 and of the input's rate, where the file has no [search]
BETWEEN = "two finite numbers, the lower first"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Target(_Table):
    """The model that is going to be trained: its size, and its batch and tokens over the base's."""

    width: Whole
    depth: Whole
    batch: Ratio = 1.0
    tokens: Ratio = 1.0
    rule: str = "sde"

    @property
    def same_horizon(self) -> bool:
        return self.batch == 1 and self.tokens == 1


class Confirm(_Table):
    """A size between base and target at which the answer is tried."""

    size: Size
    seeds: Annotated[int, Field(ge=1, le=1000, strict=True)] = 4


class Budget(_Table):
    cell_seconds: Ratio = BUDGET["cell_seconds"]
    retries: Annotated[float, Field(ge=0, allow_inf_nan=False)] = BUDGET["retries"]
    checkpoint_seconds: Ratio = BUDGET["checkpoint_seconds"]


def _as_table(given: Any) -> Any:
    """[width, depth] as the table it is short for."""
    pair = isinstance(given, list | tuple) and len(given) == 2
    return dict(zip(("width", "depth"), given, strict=True)) if pair else given


class _File(_Table):
    """The keys of a tune.toml but for those of [search], which are open."""

    name: str = "tune"
    base: Size
    target: Annotated[Target, BeforeValidator(_as_table)]
    scheme: str = "depth-mup"
    method: Literal["refine", "optuna"] = "refine"
    trials: Annotated[int, Field(ge=2, le=10_000, strict=True)] = 64
    per_round: Annotated[int, Field(ge=1, le=1000, strict=True)] = 16
    seeds: Annotated[int, Field(ge=1, le=1000, strict=True)] = 2
    finalists: Annotated[int, Field(ge=1, le=100, strict=True)] = 4
    final_seeds: Annotated[int, Field(ge=0, le=1000, strict=True)] = 4
    metric: Literal["train_loss", "test_loss"] = "train_loss"
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    fleet: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST, strict=True)] = "auto"
    run: dict[str, Any] = {}
    search: dict[str, Any] | None = None
    confirm: Confirm | None = None
    budget: Budget = Budget()


@dataclass(frozen=True)
class TuneConfig:
    """A validated tune.

    Attributes:
        run: fields that every run has. space: what is searched.
        trials: points that are tried at most, each with `seeds` seeds. per_round: points proposed at once.
        finalists: points that get `final_seeds` further seeds at the end: the best of many noisy numbers looks better
            than it is, and fresh seeds say how good it is.
        seed: of the proposals. folder: of the file, where `file.py:function` is looked for first.
    """

    name: str
    base: tuple[int, int]
    target: Target
    scheme: str
    method: Literal["refine", "optuna"]
    run: dict[str, Any]
    space: Space
    trials: int
    per_round: int
    seeds: int
    finalists: int
    final_seeds: int
    metric: Literal["train_loss", "test_loss"]
    seed: int
    confirm: Confirm | None
    fleet: int | Literal["auto"]
    budget: dict[str, float]
    folder: Path | None = None

    def at(self, values: Mapping[str, float], size: tuple[int, int], seed: int) -> RunConfig:
        """The run at a size with these hyperparameters of the base."""
        hashes = sources(*(str(self.run.get(key, "")) for key in ("model", "data", "loss")))
        return RunConfig(
            **settings(values, self.run),
            scheme=self.scheme,
            width=size[0],
            depth=size[1],
            base=self.base,
            seed=seed,
            sources=hashes,
        )


def read(config: str | Path | Mapping[str, Any] | TuneConfig) -> TuneConfig:
    """A tune from a TOML file or a dict.

    Raises:
        InputError: every fault at once, each with the path of its key.

    >>> made = read({"base": [64, 3], "target": [512, 3], "search": {"lr": {"log2": [-10, -4]}}})
    >>> made.space.axes[0].high, made.target.width
    (-4.0, 512)
    >>> read({"base": [64], "trials": 1, "search": {"lr": {"log2": [1, 1]}, "rate": 3}})
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: 5 faults in the tune
      - base: must be [width, depth], two whole numbers >= 1: got [64]
      - target: is required
      - trials: must be >= 2: got 1
      - search.lr: log2 takes two finite numbers, the lower first: got [1, 1]
      - search: unknown key 'rate'; known: lr, gamma0, weight_decay, eps, clip, rest_lr, momentum, floor, beta1, beta2, warmup, roles.<role>.<number>
    """
    if isinstance(config, TuneConfig):
        look_in(config.folder)
        return config
    what, folder = "the tune", None
    if isinstance(config, str | Path):
        what, folder, config = str(config), Path(config).resolve().parent, read_toml(config)
    if not isinstance(config, Mapping):
        raise InputError(f"a tune is a path, a dict or a TuneConfig: got {type(config).__name__}.")
    look_in(folder)
    given, found = dict(config), []
    file: _File | None = None
    try:
        file = _File(**given)
    except ValidationError as error:
        found += list(dict.fromkeys(_say(problem) for problem in error.errors()))
    run = given.get("run") if isinstance(given.get("run"), Mapping) else {}
    axes = _axes(given.get("search"), run or {}, found)
    found += _misuse(run or {}, axes, str(given.get("scheme", "depth-mup")))
    made = None
    if file is None:
        found += _run_faults(run or {}, axes, {"width": 24, "depth": 6}, found)
    else:
        made = _made(file, axes, folder)
        found += _file_faults(made)
        found += [fault for fault in _size_faults(made) if fault not in found]
    if found or made is None:
        raise faults(f"{len(found)} fault{'s' if len(found) != 1 else ''} in {what}", found)
    return made


def _made(file: _File, axes: list[Axis], folder: Path | None) -> TuneConfig:
    return TuneConfig(
        name=file.name,
        base=file.base,
        target=file.target,
        scheme=file.scheme,
        method=file.method,
        run=dict(file.run),
        space=Space(tuple(axes)),
        trials=file.trials,
        per_round=file.per_round,
        seeds=file.seeds,
        finalists=file.finalists,
        final_seeds=file.final_seeds,
        metric=file.metric,
        seed=file.seed,
        confirm=file.confirm,
        fleet=file.fleet,
        budget=file.budget.model_dump(),
        folder=folder,
    )


def _say(problem: Mapping[str, Any]) -> str:
    """A fault of pydantic's in our words; sizes are spoken of as one thing."""
    place = [str(part) for part in problem["loc"]]
    top, value = place[0], problem.get("input")
    if top in ("base", "confirm") and problem["type"] in ("missing", "too_short", "too_long", "tuple_type"):
        size = "confirm.size" if top == "confirm" else top
        if place[-1] in (top, "size", "0", "1") and problem["type"] != "missing":
            return f"{size}: must be [width, depth], two whole numbers >= 1: got {value!r}"
        if len(place) > 1 and place[-1] in ("0", "1"):
            return f"{size}: must be [width, depth], two whole numbers >= 1: got {value!r}"
    if top == "target" and problem["type"] in ("model_type", "model_attributes_type"):
        return f"target: must be [width, depth], two whole numbers >= 1, or a table: got {value!r}"
    if problem["type"] == "extra_forbidden":
        table = {"target": Target, "confirm": Confirm, "budget": Budget}.get(top, _File)
        known = list((table if len(place) > 1 else _File).model_fields)
        where = ".".join(place[:-1]) or "tune"
        return catalogue.unknown(where, place[-1], known, own=False).replace("name", "key", 1)
    if top == "fleet":
        return f"fleet: must be 'auto', 1 (each run alone) or how many train together, at most {MOST}: got {value!r}"
    return say(problem)


# -- [search] --------------------------------------------------------------------------------------------------------


def _axes(search: Any, run: Mapping[str, Any], found: list[str]) -> list[Axis]:
    if search is None:
        return _default(run)
    if not isinstance(search, Mapping):
        return []  # said already
    if not search:
        found.append("search: must name at least one hyperparameter; leave the table out for lr and gamma0")
    axes = []
    for name, given in search.items():
        if not _known(name):
            found.append(catalogue.unknown("search", name, NAMES, own=False).replace("name", "key", 1))
            continue
        if (axis := _axis(name, given, found)) is not None:
            axes.append(axis)
    return axes


def _default(run: Mapping[str, Any]) -> list[Axis]:
    """More than the rate: how far features move, and the input's own rate, decide what a base can carry."""
    low, high = RATES.get(str(run.get("optimizer", "sgd")), RATES["adamw"])
    wanted = {"lr": (low, high), "gamma0": RICHNESS}
    if "roles" in RunConfig.model_fields:
        wanted["roles.input.lr"] = INPUT
    return [Axis(name, "log2", *range_) for name, range_ in wanted.items() if name not in run]


def _known(name: str) -> bool:
    if name in SIMPLE or name in ("beta1", "beta2", "warmup"):
        return True
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "roles" and parts[1] in ROLES and parts[2] in MULTIPLIERS


def _axis(name: str, given: Any, found: list[str]) -> Axis | None:
    place = f"search.{name}"
    shape = "{ log2 = [low, high] } or { from = low, to = high }"
    if not isinstance(given, Mapping) or set(given) not in ({"log2"}, {"from", "to"}):
        found.append(f"{place}: must be {shape}: got {given!r}")
        return None
    logarithmic = "log2" in given
    pair = given["log2"] if logarithmic else [given["from"], given["to"]]
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(map(_number, pair)) or pair[0] >= pair[1]:
        found.append(f"{place}: {'log2 takes' if logarithmic else 'from and to are'} {BETWEEN}: got {list(pair)!r}"
                     if isinstance(pair, list | tuple) else f"{place}: must be {shape}: got {given!r}")
        return None
    if logarithmic and max(map(abs, pair)) > 300:
        found.append(f"{place}: exponents must lie within +-300: got {list(pair)!r}")
        return None
    if logarithmic and name in FRACTIONS:
        found.append(f"{place}: is a fraction: pass {{ from = 0.0, to = 0.2 }}: got {dict(given)!r}")
        return None
    if name == "warmup" and not 0 <= pair[0] < pair[1] < 1:
        found.append(f"{place}: is a fraction of the steps, from 0 to below 1: got {list(pair)!r}")
        return None
    return Axis(name, "log2" if logarithmic else "linear", float(pair[0]), float(pair[1]))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- what the parts mean together -------------------------------------------------------------------------------------


def _misuse(run: Mapping[str, Any], axes: list[Axis], scheme: str) -> list[str]:
    """Keys that the tune fills in, keys given twice, and searches that could not change anything."""
    found = [f"run.{key}: is filled in by the tune; set {_instead(key)}" for key in run if key in TAKEN]
    optimizer = str(run.get("optimizer", "sgd"))
    for axis in axes:
        field = {"beta1": "betas", "beta2": "betas"}.get(axis.name, axis.name)
        if field in run and field != "betas":
            found.append(f"search.{axis.name}: is also set in run; keep one of the two")
        if field in USERS and optimizer not in USERS[field]:
            found.append(
                f"search.{axis.name}: not used by {optimizer}, so that every value gives the same run"
            )
        if field.startswith("roles.") and "roles" not in RunConfig.model_fields:
            found.append(f"search.{axis.name}: multipliers by role are not in this version; remove the line")
    try:
        identity = as_scheme(scheme).identity
    except InputError as error:
        return [*found, f"scheme: {error}"]
    if identity and any(axis.name == "gamma0" for axis in axes):
        found.append(f"search.gamma0: scheme {scheme} leaves the model as it is, so that every value gives the same run")
    return found


def _instead(key: str) -> str:
    return {"width": "base and target", "depth": "base and target", "seed": "seeds"}.get(key, f"{key} at the top")


def _file_faults(made: TuneConfig) -> list[str]:
    found = []
    if "lr" not in made.run and all(axis.name != "lr" for axis in made.space.axes):
        found.append("search.lr: is required: a range here, or a rate in run")
    if made.metric == "test_loss" and made.run.get("eval_examples") == 0:
        found.append("metric: test_loss needs test examples: run.eval_examples is 0")
    if not made.target.same_horizon and importlib.util.find_spec("trimtab.parametrization.horizon") is None:
        found.append("target: rules over batch and tokens are not in this version; give [width, depth]")
    if made.method == "optuna" and importlib.util.find_spec("optuna") is None:
        found.append("method: optuna is not installed: pip install 'trimtab[optuna]', or method = \"refine\"")
    for key in ("model", "data", "loss"):
        if catalogue.own(name := made.run.get(key)):
            try:
                source_file(str(name).rpartition(":")[0])
            except InputError as error:
                found.append(f"run.{key}: {error}")
    return found


def _size_faults(made: TuneConfig) -> list[str]:
    """Faults of the runs at every size and at both ends of every range."""
    sizes = {"base": made.base, "target": (made.target.width, made.target.depth)}
    if made.confirm is not None:
        sizes["confirm.size"] = made.confirm.size
    found: list[str] = []
    for place, (width, depth) in sizes.items():
        fields = {"width": width, "depth": depth, "base": made.base, "scheme": made.scheme}
        for fault in _run_faults(made.run, list(made.space.axes), fields, found):
            key, _, rest = fault.partition(":")
            named = {"run.width": place, "run.depth": place, "run.base width": "base", "run.base depth": "base"}
            found.append(f"{named.get(key, key)}:{rest}")
    return list(dict.fromkeys(found))


def _run_faults(
    run: Mapping[str, Any], axes: list[Axis], fields: Mapping[str, Any], known: list[str]
) -> list[str]:
    """What is wrong with the fields of a run, at both ends of the ranges, with the path each has in the file."""
    fixed = {key: value for key, value in run.items() if key not in TAKEN}
    if "roles" not in RunConfig.model_fields:  # said already
        axes = [axis for axis in axes if not axis.name.startswith("roles.")]
    found: list[str] = []
    for end in (0.0, 1.0):
        try:
            values = {"lr": 0.1} if "lr" not in run else {}
            values |= {axis.name: axis.value(end) for axis in axes}
            RunConfig(**settings(values, fixed), **fields)
        except InputError as error:
            for line in str(error).splitlines()[1:]:
                fault = line.removeprefix("  - ")
                searched = any(axis.name == fault.split(":")[0] for axis in axes)
                found.append(f"{'search' if searched else 'run'}.{fault}")
        except (TypeError, ValueError, AttributeError):  # a betas or a steps that is no such thing: RunConfig says it
            try:
                RunConfig(**{**fixed, "lr": fixed.get("lr", 0.1)}, **fields)
            except InputError as error:
                found += [f"run.{line.removeprefix('  - ')}" for line in str(error).splitlines()[1:]]
    return [fault for fault in dict.fromkeys(found) if fault not in known]
