"""tune.toml, validated with every fault at once. No torch.

base, target      the sizes: the search happens at the base, the answer is for the target
[run]             what all runs share, as in sweep.toml
[search]          one line per hyperparameter: { log2 = [low, high] } or { from = low, to = high }
final_size        where the finalists are compared: by default larger than the base, smaller than the target
[confirm]         optional: runs at a size in between with the numbers that were found
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from trimtab.errors import Fault, InputError, faults_in
from trimtab.files import looking_in
from trimtab.runs import catalogue
from trimtab.runs.config import RunConfig, field_fault
from trimtab.runs.toml import read_toml, refuse_other_kinds
from trimtab.runs.user_code import sources
from trimtab.sweeps.grid import BUDGET, MOST
from trimtab.tuning.space import Axis, Space, settings
from trimtab.tuning.validation import missing_parts, missing_rate, misuse, read_axes, run_faults

Whole = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = tuple[Whole, Whole]
PAIR = "must be [width, depth], two whole numbers >= 1"
GROWS = 4  # times as large as the base's: an axis of the target that is doubled for the finalists


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
    trials: Annotated[int, Field(ge=2, le=10_000, strict=True)] = 96
    per_round: Annotated[int, Field(ge=1, le=1000, strict=True)] = 16
    seeds: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    finalists: Annotated[int, Field(ge=1, le=100, strict=True)] = 12
    final_size: Literal["auto", "base"] | Size = "auto"
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
        finalists: points that are compared at `final_size` with up to `final_seeds` fresh seeds: the best of
            many noisy numbers looks better than it is, and what ties at the base need not tie at the target.
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
    final_size: tuple[int, int]
    final_seeds: int
    metric: Literal["train_loss", "test_loss"]
    seed: int
    confirm: Confirm | None
    fleet: int | Literal["auto"]
    budget: dict[str, float]
    folder: Path | None = None

    def at(self, values: Mapping[str, float], size: tuple[int, int], seed: int) -> RunConfig:
        """The run at a size with these hyperparameters of the base."""
        with looking_in(self.folder):
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
    >>> read({"base": [64], "trials": 1, "search": {"lr": {"log2": [1, 1]}, "momentum": 3}})
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: 5 faults in the tune
      - base: must be [width, depth], two whole numbers >= 1: got [64]
      - target: is required
      - trials: must be >= 2: got 1
      - search.lr: log2 takes two finite numbers, the lower first: got [1, 1]
      - search.momentum: must be { log2 = [low, high] } or { from = low, to = high }: got 3
    """
    if isinstance(config, TuneConfig):
        return config
    what, folder = "the tune", None
    if isinstance(config, str | Path):
        what, folder, config = str(config), Path(config).resolve().parent, read_toml(config)
        refuse_other_kinds(what, config, "tune")
    if not isinstance(config, Mapping):
        raise InputError(f"a tune is a path, a dict or a TuneConfig: got {type(config).__name__}.")
    with looking_in(folder):
        made, found = _validate(dict(config), folder)
    if found or made is None:
        raise faults_in(what, found)
    return made


def _validate(given: dict[str, Any], folder: Path | None) -> tuple[TuneConfig | None, list[Fault]]:
    found: list[Fault] = []
    file: _File | None = None
    try:
        file = _File(**given)
    except ValidationError as error:
        found += list(dict.fromkeys(_key_fault(problem) for problem in error.errors()))
    run = given.get("run")
    run = dict(run) if isinstance(run, Mapping) else {}
    axes = read_axes(given.get("search"), run, found)
    found += misuse(run, axes, str(given.get("scheme", "depth-mup")))
    if file is None:
        return None, found + [fault for fault in run_faults(run, axes, {}) if fault not in found]
    made = _made(file, axes, folder)
    if not any(fault.path == "search.lr" for fault in found):  # one that is wrong is not missing
        found += missing_rate(run, axes)
    found += missing_parts(run, metric=made.metric, method=made.method, same_horizon=made.target.same_horizon)
    sizes = {"base": made.base, "target": (made.target.width, made.target.depth)}
    if made.final_size != made.base:
        sizes["final_size"] = made.final_size
    if made.confirm is not None:
        sizes["confirm.size"] = made.confirm.size
    more = run_faults(run, axes, sizes, base=made.base, scheme=made.scheme)
    return made, found + [fault for fault in more if fault.path not in {f.path for f in found}]


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
        final_size=_final_size(file),
        final_seeds=file.final_seeds,
        metric=file.metric,
        seed=file.seed,
        confirm=file.confirm,
        fleet=file.fleet,
        budget=file.budget.model_dump(),
        folder=folder,
    )


def _final_size(file: _File) -> Size:
    """Where the finalists are compared: every axis that grows at least fourfold is doubled.

    The first doubling is where most of the difference between a narrow network and a wide one goes, and the
    runs there are still a small part of the target's.
    """
    if file.final_size == "base":
        return file.base
    if file.final_size != "auto":
        return file.final_size
    to = (file.target.width, file.target.depth)
    width, depth = (2 * a if b >= GROWS * a else a for a, b in zip(file.base, to, strict=True))
    return width, depth


def _key_fault(problem: Mapping[str, Any]) -> Fault:
    """A fault of pydantic's in our words; a size is spoken of as one thing."""
    place, kind = [str(part) for part in problem["loc"]], problem["type"]
    value = repr(problem.get("input"))[:80]
    whole = kind in ("too_short", "too_long", "tuple_type", "missing") and place[-1] in (
        "base",
        "size",
        "0",
        "1",
    )
    if place[0] == "final_size":  # of two shapes pydantic reports a fault for each
        return Fault("final_size", f"must be 'auto', 'base' or a size: {PAIR.removeprefix('must be ')}")
    if place[0] == "base" and len(place) == 1 and kind == "missing":
        return Fault("base", "is required", next_step="[width, depth] of the model that is tuned")
    if whole and (place[-1] not in ("base", "size") or kind != "missing"):
        return Fault("confirm.size" if place[0] == "confirm" else place[0], PAIR, value)
    if place[0] == "target" and kind in ("model_type", "model_attributes_type"):
        return Fault("target", f"{PAIR}, or a table", value)
    if kind == "extra_forbidden":
        table = (
            {"target": Target, "confirm": Confirm, "budget": Budget}[place[0]] if len(place) > 1 else _File
        )
        where = ".".join(place[:-1]) or "tune"
        return catalogue.unknown(where, place[-1], table.model_fields, own=False, kind="key")
    if place[0] == "fleet":
        return Fault(
            "fleet", f"must be 'auto', 1 (each run alone) or how many train together, at most {MOST}", value
        )
    return field_fault(problem)
