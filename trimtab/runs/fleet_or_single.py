"""Fleet or alone: a rule of the file and the sizes, never a stopwatch, because the two differ in rounding.

    slots = 16   where a model has at most 2^17 parameters and a training step at most 2^30 operations
    slots = 1    elsewhere, and where a fleet cannot train the run at all

Below these bounds 16 steps of one run were measured to cost 1.3 to 4.5 times a step of a fleet of 16; from
twice them on, less than one (`benchmarks/fleet.py --rule`, LOG.md; between the two it depends on the model).
A user's own model, data or loss is rehearsed first: two steps as a fleet must give the losses of the single
runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trimtab.runs import catalogue, fleet
from trimtab.runs.config import RunConfig
from trimtab.runs.devices import is_out_of_memory
from trimtab.runs.fleet_groups import SLOTS, hindrance
from trimtab.runs.tasks import open_task
from trimtab.runs.training import Run

PARAMETERS = 2**17
FLOPS = 2.0**30
# relative difference of two steps' losses: rounding is 1e-6, a model that does not stack is off by more than
# a tenth
AGREE = 1e-3


@dataclass(frozen=True)
class Choice:
    """How many slots a run's fleet has, and why it has only one where that is not a matter of size."""

    slots: int
    reason: str = ""


def choose(config: RunConfig, wanted: int | Literal["auto"] = "auto") -> Choice:
    """The slots of the fleet that runs like this one train in: a function of model, size, data and `wanted`
    alone.

    >>> small = RunConfig(width=32, depth=3, lr=0.1)
    >>> choose(small).slots, choose(small.replace(width=1024)).slots
    (16, 1)
    >>> choose(small, 8).slots, choose(small, 1).slots
    (8, 1)
    >>> choose(small.replace(optimizer="muon"))
    Choice(slots=1, reason='it steps sgd, adam, adamw only, not muon')
    """
    if wanted == 1:
        return Choice(1)
    reason = hindrance(config)
    if reason:
        return Choice(1, reason)
    if wanted == "auto" and _large(config):
        return Choice(1)
    slots = SLOTS if wanted == "auto" else wanted
    if any(name is not None and catalogue.is_own(name) for name in (config.model, config.data, config.loss)):
        reason = rehearsal(config.replace(fleet=slots))
        if reason:
            return Choice(1, reason)
    return Choice(slots)


def rehearsal(config: RunConfig) -> str:
    """Why a fleet of this user's model does not give the single runs' numbers; "" where it does."""
    config = config.replace(steps=max(config.steps, 2), warmup=0, eval_examples=0)
    pair = [
        config,
        config.replace(seed=config.seed + 1),
    ]  # another draw: what is kept outside parameters and buffers is not stacked
    singles = [Run(c) for c in pair]
    alone = [[single.step(step) for step in (0, 1)] for single in singles]
    try:
        together = fleet.Fleet(pair)
        for step in (0, 1):
            together.step(step)
    # whatever vmap or the user's code says: one by one always works, and the reason is passed on
    except Exception as error:
        if is_out_of_memory(error):  # how much memory is free must not decide what a cell is
            raise
        return (
            f"as a fleet it raises {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"
        )
    for one, other in zip(alone, together.losses, strict=True):
        for a, b in zip(one, other, strict=False):
            if not math.isclose(a, b, rel_tol=AGREE) and not (math.isnan(a) and math.isnan(b)):
                return f"as a fleet it gives a loss of {b:.6g} where the run alone gives {a:.6g}"
    return ""


def _large(config: RunConfig) -> bool:
    made = open_task(config)
    return sum(p.numel() for p in made.sample.parameters()) > PARAMETERS or made.flops > FLOPS
