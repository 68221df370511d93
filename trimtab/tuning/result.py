"""What a tune gives: the best at the base, how much each number matters, what the target gets. No torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import InputError
from trimtab.files import json_ready

FORMAT = 2
LEVEL = 0.95  # of the intervals


@dataclass(frozen=True)
class Best:
    """The best trial.

    Attributes:
        values: {hyperparameter: value} at base size.
        size: (width, depth) at which the finalists were compared, and `loss` measured.
        loss: geometric mean over `seeds` seeds; low, high: 95 % interval of it (Student's t on log loss);
            None where one seed cannot tell.
        fresh: how many of the seeds were drawn only after the point had been chosen.
    """

    values: dict[str, float]
    metric: str
    size: tuple[int, int]
    loss: float
    low: float | None
    high: float | None
    seeds: int
    fresh: int
    diverged: int


@dataclass(frozen=True)
class Confirmation:
    """The carried numbers, tried at another size: verdict "as good", "worse" or "cannot tell"."""

    size: tuple[int, int]
    loss: float | None
    low: float | None
    high: float | None
    seeds: int
    diverged: int
    verdict: str


@dataclass(frozen=True)
class Cost:
    """FLOPs of training: of the tune, and of the same runs at the target, None where that is not known."""

    trials: int
    runs: int
    flops: float
    at_target: float | None

    @property
    def share(self) -> float | None:
        return None if not self.at_target else self.flops / self.at_target


@dataclass(frozen=True)
class Tuned:
    """The answer of `trimtab.tune`.

    Attributes:
        best: what was found at the base and was best among the finalists. sensitivity: one row per
            hyperparameter. target: one row per parameter group.
        snippet: Python that builds base and target and trains the target with these numbers.
        expected: the target's loss is expected not to be above this, the upper end of the best's interval.
        size, base, scheme: what was asked. why: why no further trial was made. notes: what to know.
        failed: runs that raised.
    """

    name: str
    base: tuple[int, int]
    size: tuple[int, int]
    scheme: str
    best: Best
    sensitivity: tuple[Any, ...]
    target: tuple[Any, ...]
    snippet: str
    expected: float
    cost: Cost
    confirmation: Confirmation | None
    why: str
    notes: tuple[str, ...]
    failed: int = 0

    @property
    def exit_code(self) -> int:
        """0 good; 1 the confirming runs are worse than the best; 3 they cannot tell; 4 some runs failed."""
        if self.confirmation is not None and self.confirmation.verdict != "as good":
            return 1 if self.confirmation.verdict == "worse" else 3
        return 4 if self.failed else 0

    def to_json(self) -> str:
        """Everything, for `from_json`."""
        return json.dumps({"format": FORMAT, **json_ready(dataclasses.asdict(self))})

    @classmethod
    def from_json(cls, text: str) -> Tuned:
        """What `to_json` wrote.

        Raises:
            InputError: it is something else.
        """
        from trimtab.tuning.sensitivity import Sensitivity

        try:
            held = json.loads(text)
            if held.pop("format") != FORMAT:
                raise KeyError("format")
            made = dict(
                held,
                base=tuple(held["base"]),
                size=tuple(held["size"]),
                best=Best(**_tuples(held["best"])),
                sensitivity=tuple(Sensitivity(**row) for row in held["sensitivity"]),
                target=tuple(Group(**_tuples(row)) for row in held["target"]),
                cost=Cost(**held["cost"]),
                confirmation=None
                if held["confirmation"] is None
                else Confirmation(**_tuples(held["confirmation"])),
                notes=tuple(held["notes"]),
            )
            return cls(**made)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is not what Tuned.to_json of this version writes: {error!r}.") from error


@dataclass(frozen=True)
class Group:
    """Parameters of the target that get the same numbers.

    Attributes:
        parameters: their names. pattern: the same with block numbers taken out, `branches.#.0.weight x 4`.
        lr, weight_decay, eps: absolute numbers for the target's optimizer; None: it has no such number.
        betas, momentum: likewise; batch and length move them.
        init: scale of the initial weights over the base's.
    """

    optimizer: str
    pattern: str
    roles: tuple[str, ...]
    parameters: tuple[str, ...]
    lr: float
    weight_decay: float | None
    eps: float | None
    init: float
    betas: tuple[float, float] | None = None
    momentum: float | None = None


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def interval(losses: Sequence[float]) -> tuple[float, float | None, float | None]:
    """(geometric mean, low, high) of losses: Student's t on their logarithms.

    >>> interval([2.0])
    (2.0, None, None)
    >>> [round(x, 3) for x in interval([0.5, 2.0, 1.0])]
    [1.0, 0.179, 5.595]
    """
    from scipy.stats import t

    logs = [math.log(loss) for loss in losses]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    error = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    half = float(t.ppf(0.5 + LEVEL / 2, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
