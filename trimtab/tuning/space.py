"""Hyperparameters as coordinates of a box. No torch.

    log2     x = log2(value)            lr, gamma0, weight_decay, eps, clip, rest_lr, roles.<role>.<x>
             x = log2(1 - value)        momentum, beta1, beta2: what has a memory of 1 / (1 - value) steps
    linear   x = value                  warmup (a fraction of the steps), floor, and any other on request

The surface sees lr x gamma0 in the place of lr (`features`): hidden weights move by that per step, whatever
the optimizer (Adam's rate has the factor gamma0; SGD's has gamma0^2 on gradients of 1 / gamma0), and what a
small network can take of it is nearly one number. So the valley of its loss lies along an axis.

A proposal is rounded to a grid, 1/8 of an octave (gamma0: 1/2) or 1/64 of a linear range: two machines that
round the same surface differently then still ask for the same runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.runs.config import RunConfig

SIMPLE = ("lr", "gamma0", "weight_decay", "eps", "clip", "rest_lr", "momentum", "floor")  # fields of a run
MEMORIES = ("momentum", "beta1", "beta2")
FRACTIONS = ("warmup", "floor")
ROLES = ("input", "hidden", "readout", "elementwise", "scalar")
MULTIPLIERS = ("lr", "init", "weight_decay", "eps")
NAMES = (*SIMPLE, "beta1", "beta2", "warmup", "roles.<role>.<number>")
OCTAVE = 0.125  # of the grid, in octaves
COARSE = {"gamma0": 0.5}  # a start scaled by less is not told from one that is not, and would be refused
PARTS = 64  # of a linear range


@dataclass(frozen=True)
class Axis:
    """One hyperparameter and its range.

    Attributes:
        name: a field of a run, beta1, beta2, or roles.<role>.<number>.
        low, high: of the coordinate: an exponent of 2, or the value itself.

    >>> Axis("lr", "log2", -8, -2).value(0.5), Axis("beta2", "log2", -10, -2).value(1.0)
    (0.03125, 0.75)
    """

    name: str
    scale: Literal["log2", "linear"]
    low: float
    high: float

    @property
    def unit(self) -> float:
        """The step that `sensitivity` speaks of: one octave, or a tenth of a linear range."""
        return 1.0 if self.scale == "log2" else (self.high - self.low) / 10

    def snap(self, part: float) -> float:
        """A place in [0, 1] moved to the grid."""
        span = self.high - self.low
        step = COARSE.get(self.name, OCTAVE)
        parts = max(1, round(span / step)) if self.scale == "log2" else PARTS
        return round(min(1.0, max(0.0, part)) * parts) / parts

    def coordinate(self, part: float) -> float:
        return self.low + part * (self.high - self.low)

    def part(self, coordinate: float) -> float:
        return (coordinate - self.low) / (self.high - self.low)

    def value(self, part: float) -> float:
        """The hyperparameter at a place in [0, 1]."""
        x = self.coordinate(part)
        if self.scale == "linear":
            return x
        return 1 - 2.0**x if self.name in MEMORIES else 2.0**x


@dataclass(frozen=True)
class Space:
    """The box that is searched; a point of it is a tuple of numbers in [0, 1].

    >>> space = Space((Axis("lr", "log2", -8, -2), Axis("warmup", "linear", 0.0, 0.5)))
    >>> space.values((0.5, 0.5))
    {'lr': 0.03125, 'warmup': 0.25}
    >>> space.settings((0.5, 0.5), {"steps": 100})
    {'steps': 100, 'lr': 0.03125, 'warmup': 25}
    """

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return len(self.axes)

    def snap(self, point: Sequence[float]) -> tuple[float, ...]:
        return tuple(axis.snap(float(x)) for axis, x in zip(self.axes, point, strict=True))

    def features(self) -> NDArray[np.float64]:
        """The matrix that a point is multiplied with from the right before the surface sees it.

        >>> Space((Axis("lr", "log2", -8, -2), Axis("gamma0", "log2", -1, 2))).features().tolist()
        [[1.0, 0.0], [0.5, 1.0]]
        """
        matrix = np.eye(len(self))
        places = {axis.name: i for i, axis in enumerate(self.axes) if axis.scale == "log2"}
        if {"lr", "gamma0"} <= set(places):
            rate, richness = places["lr"], places["gamma0"]
            spans = [self.axes[i].high - self.axes[i].low for i in (richness, rate)]
            matrix[richness, rate] = spans[0] / spans[1]
        return matrix

    def values(self, point: Sequence[float]) -> dict[str, float]:
        """{name: value} at a point."""
        return {axis.name: axis.value(x) for axis, x in zip(self.axes, point, strict=True)}

    def settings(self, point: Sequence[float], run: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a run at a point, those of `run` where the search does not speak."""
        return settings(self.values(point), run)


def settings(values: Mapping[str, float], run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's fields with searched values put in: betas as a pair, warmup as steps, roles as a table.

    >>> settings({"beta2": 0.99, "roles.input.lr": 0.25}, {"roles": {"input": {"init": 2.0}}})
    {'roles': {'input': {'init': 2.0, 'lr': 0.25}}, 'betas': (0.9, 0.99)}
    """
    out = dict(run)
    betas = list(out.get("betas", RunConfig.model_fields["betas"].default))
    for name, value in values.items():
        if name.startswith("roles."):
            _, role, number = name.split(".")
            held = {key: dict(table) for key, table in out.get("roles", {}).items()}
            held.setdefault(role, {})[number] = value
            out["roles"] = held
        elif name in ("beta1", "beta2"):
            betas[int(name[-1]) - 1] = value
            out["betas"] = tuple(betas)
        elif name == "warmup":
            steps = out.get("steps", RunConfig.model_fields["steps"].default)
            out["warmup"] = min(steps - 1, math.floor(value * steps + 0.5))
        else:
            out[name] = value
    return out
