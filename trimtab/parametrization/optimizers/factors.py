"""All that multiplies an optimizer's numbers: size, choice of decay, role, override, batch and length.

    factor = size x role's multiplier                an override of the user's stands in place of both
           x horizon                                 the same for every parameter

Over size, weight decay follows 1/lr to the power that `decay` says: 1 keeps lr x wd, 0 keeps wd (`decay`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trimtab.errors import InputError, OptimizerError
from trimtab.parametrization.horizons.decay import DECAYS, Decay, as_decay, timescale
from trimtab.parametrization.horizons.horizon import Horizon, HorizonFactors
from trimtab.parametrization.optimizers.families import Family
from trimtab.parametrization.optimizers.lookup import default
from trimtab.parametrization.parameters import Row

MEMORIES = ("betas", "momentum", "alpha")
BASE = Horizon()


@dataclasses.dataclass(frozen=True)
class Carry:
    """How one optimizer's numbers follow batch, length and the choice of decay.

    Args:
        hyper: the base's hyperparameters, the optimizer's defaults among them.
    """

    family: Family
    horizon: Horizon
    decay: Decay
    hyper: Mapping[str, Any]

    @classmethod
    def of(cls, optimizer: Any, family: Family, hyper: Mapping[str, Any], horizon: Any, decay: Any) -> Carry:
        """Checked, and refused where the rule or the choice says nothing about this optimizer."""
        if horizon is not None and not isinstance(horizon, Horizon):
            raise InputError(
                f"horizon must be a trimtab.Horizon(batch=ratio, tokens=ratio, rule=...): got {horizon!r}."
            )
        names = (*MEMORIES, "weight_decay", "eps")
        full = {name: hyper.get(name, default(optimizer, name)) for name in names} | dict(hyper)
        carry = cls(
            family, horizon or BASE, as_decay(decay), {k: v for k, v in full.items() if v is not None}
        )
        carry.decay.refuse(family)
        carry.horizon.of_family(family, carry.hyper)
        return carry

    @property
    def moved(self) -> HorizonFactors:
        return self.horizon.of_family(self.family, self.hyper)

    @property
    def memories(self) -> dict[str, Any]:
        """Betas, momentum and alpha as they become; empty where batch and length are the base's."""
        if self.horizon.identity:
            return {}
        moved = self.horizon.hyper(self.family, self.hyper)
        return {name: x for name, x in moved.items() if x != _plain(self.hyper[name])}

    def table(
        self, size: Mapping[str, Mapping[str, float]], rows: Mapping[str, Row]
    ) -> dict[str, dict[str, float]]:
        """{name: factors of lr, weight_decay and eps}, from those over size (overrides included)."""
        moved = self.moved
        wide = 1.0 if self.family.decay == "coupled" else self.decay.width
        shrink = self.decay.over_horizon(self.horizon, moved)
        over = {"lr": moved.lr, "weight_decay": shrink, "eps": moved.eps}
        table: dict[str, dict[str, float]] = {}
        for name, factors in size.items():
            own, role = dict(rows[name].override), dict(rows[name].multipliers)
            f = dict(factors)
            if "weight_decay" not in own and wide != 1:
                f["weight_decay"] **= wide  # over size it is 1/lr
            f = {key: x * (1.0 if key in own else role.get(key, 1.0)) for key, x in f.items()}
            table[name] = {key: x * over[key] for key, x in f.items()}
        return table

    def notes(self, lr: float, *, grown: bool) -> list[str]:
        """What the user should know: the choice of decay as a timescale, and what the horizon says.

        Args:
            lr: the base's learning rate.
            grown: the model is of another size than its base.
        """
        notes: list[str] = []
        decay = self.hyper.get("weight_decay")
        if decay and self.family.decay != "coupled" and (grown or not self.horizon.identity):
            there = f"{timescale(lr, decay)} at the base" if lr else "without end at lr = 0"
            steps = 1 / (self.moved.lr * self.decay.over_horizon(self.horizon, self.moved))
            by = "" if self.horizon.identity else f", x {steps:.4g} steps here by batch and length"
            notes.append(
                f"weight decay by decay={self.decay.name!r} ({self.decay.source}): its timescale 1/(lr wd) "
                f"is {there}{by}. "
                f"Contested: {self.decay.contested or 'nobody says otherwise'}. Others: {', '.join(DECAYS)}."
            )
        return notes + list(self.moved.notes)

    def check(self, optimizer: Any) -> None:
        """Raise if the memories that batch and length ask for are gone.

        A schedule may cycle momentum and beta1 (OneCycleLR does), so that beta2 and alpha are compared.
        """
        for name, wanted in self.memories.items():
            if name == "momentum":
                continue
            for i, group in enumerate(optimizer.param_groups):
                found, asked = (
                    x[-1] if isinstance(x, list | tuple) else x for x in (group.get(name), wanted)
                )
                if found is None or not math.isclose(float(found), float(asked), rel_tol=1e-7):
                    raise OptimizerError(
                        f"{name} must be those of {self.horizon!r}: {_plain(wanted)}, group {i} has "
                        f"{_plain(group.get(name))}. A trainer or a reload has erased them: rebuild with "
                        "p.optimizer."
                    )


def _plain(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x
