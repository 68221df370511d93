"""The values an adaptive sweep may try: the file's, and on past both ends in the same spacing. No torch.

    value(i) = the file's i-th, 0 <= i < n;    v_0 q^i  or  v_{n-1} q^(i - n + 1)  beyond,  q the median ratio

(on a linear axis the differences take the place of the ratios). A value is spoken of by its index i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.optima.tables import axis_of


@dataclass(frozen=True)
class Lattice:
    """Values of one hyperparameter by index.

    >>> rates = Lattice.of("lr", [0.5, 0.25, 1.0], 2)
    >>> [rates.value(i) for i in rates.every], rates.index(0.3), rates.step
    ([0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0], 0.263..., 1.0)
    >>> Lattice.of("momentum", [0.0, 0.3, 0.6, 0.9], 2).every
    range(0, 4)
    """

    values: tuple[float, ...]
    log: bool
    first: int
    last: int

    @classmethod
    def of(cls, name: str, values: Sequence[float], beyond: int) -> Lattice:
        """beyond: steps past each end; none past a linear axis's, which may have a law of its own."""
        given = tuple(sorted(values))
        log = given[0] > 0 and (name == "lr" or axis_of(np.array(given, float)) == "log2")
        more = beyond if log else 0
        return cls(given, log, -more, len(given) - 1 + more)

    @property
    def every(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def places(self) -> np.ndarray:
        return np.log2(self.values) if self.log else np.array(self.values, float)

    @property
    def step(self) -> float:
        """Between neighbours, in octaves or in units of the axis."""
        return float(np.median(np.diff(self.places)))

    def value(self, i: int) -> float:
        """The value of an index, the file's own number where it has one."""
        if 0 <= i < len(self.values):
            return self.values[i]
        end, more = (self.values[0], i) if i < 0 else (self.values[-1], i - len(self.values) + 1)
        return end * 2.0 ** (more * self.step) if self.log else end + more * self.step

    def index(self, value: float) -> float:
        """Where a value lies, between whole indices too; NaN where it is none."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        place, places = math.log2(value) if self.log else value, self.places
        if place < places[0]:
            return float((place - places[0]) / self.step)
        if place > places[-1]:
            return float(len(places) - 1 + (place - places[-1]) / self.step)
        return float(np.interp(place, places, np.arange(len(places))))
