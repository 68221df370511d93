"""The table [search] of a sweep.toml: an adaptive sweep, when it ends, and how far it may go. No torch.

[search]
adaptive = true       the grid's values are a lattice: a few are run first, further ones where they tell most
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trimtab.errors import Fault
from trimtab.runs import catalogue
from trimtab.runs.config import field_fault
from trimtab.runs.toml import is_number

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
FEWEST = 3  # values of a lattice


class AdaptiveSearch(BaseModel):
    """When an adaptive sweep ends.

    Attributes:
        adaptive: false is the whole grid.
        hp: the axis that is refined; None: lr, or the only axis of numbers.
        metric: what is minimised.
        runs, flops, hours: the budget: runs at most, their training's floating point operations, their
            training's wall clock summed over all runs. A round is cut to what is left.
        optimum_octaves: go on until each optimum's 95 % interval is at most so wide, in octaves (in units of
            the axis where it is linear); None: the verdict alone decides.
        drift_octaves: end where the drift's 95 % interval, in log2 per doubling, is at most so wide, even if
            the verdict is still open.
        seeds: of one value at most; None: twice those of the sweep, which come first.
        beyond: steps of the lattice that may be tried past each of its ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    adaptive: Annotated[bool, Field(strict=True)]
    hp: str | None = None
    metric: Literal["train_loss", "test_loss"] = "train_loss"
    runs: Whole | None = None
    flops: Positive | None = None
    hours: Positive | None = None
    optimum_octaves: Positive | None = None
    drift_octaves: Positive = 0.2
    seeds: Annotated[int, Field(ge=2, le=10_000, strict=True)] | None = None
    beyond: Annotated[int, Field(ge=0, le=1000, strict=True)] = 8


def read_search(
    given: Any, axes: Mapping[str, tuple[Any, ...]], run: Mapping[str, Any], found: list[Fault]
) -> AdaptiveSearch | None:
    """[search] of a sweep, checked; None where the whole grid is run.

    >>> faults = []
    >>> read_search({"adaptive": True, "runs": 0, "flop": 1e9}, {"lr": (0.1, 0.2)}, {}, faults)
    >>> for fault in faults: print(fault)
    search.runs: must be >= 1: got 0
    search: unknown key 'flop', nearest 'flops'; known: adaptive, hp, metric, runs, flops, hours, \
optimum_octaves, drift_octaves, seeds, beyond
    axes.lr: a lattice to search has at least 3 different numbers: got [0.1, 0.2]
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        found.append(Fault("search", "must be a table such as { adaptive = true }", repr(given)))
        return None
    made: AdaptiveSearch | None = None
    try:
        made = AdaptiveSearch(**given)
    except ValidationError as error:
        found += [_fault(problem) for problem in error.errors()]
    if given.get("adaptive") is False:
        return None
    hp = given.get("hp", axis_of_search(axes))
    if hp not in axes:
        known = ", ".join(axes) or "none"
        found.append(Fault("search.hp", f"must be an axis of numbers; the axes are {known}", repr(hp)))
    elif len({v for v in axes[hp] if is_number(v)}) < max(FEWEST, len(axes[hp])):
        law = f"a lattice to search has at least {FEWEST} different numbers"
        found.append(Fault(f"axes.{hp}", law, repr(list(axes[hp]))))
    if given.get("metric") == "test_loss" and run.get("eval_examples") == 0:
        found.append(Fault("search.metric", "test_loss needs test examples", "run.eval_examples = 0"))
    return made if made is None or made.hp is not None else made.model_copy(update={"hp": hp})


def axis_of_search(axes: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The axis that is refined unless the file names one: lr, or the only one of numbers."""
    numeric = [key for key, values in axes.items() if all(map(is_number, values))]
    return "lr" if "lr" in numeric else numeric[0] if len(numeric) == 1 else None


def _fault(problem: Mapping[str, Any]) -> Fault:
    place = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        return catalogue.unknown("search", place[-1], AdaptiveSearch.model_fields, own=False, kind="key")
    return field_fault({**problem, "loc": ("search", *problem["loc"])})
