"""How much each hyperparameter matters, read off the fitted surface through the best point. No torch.

room    the stretch of the axis around the best on which  f <= f(best) + log(1.01)
loss    exp(f(best +- one unit) - f(best)) - 1          one unit: an octave, or a tenth of a linear range
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from trimtab.tuning.space import Axis, Space
from trimtab.tuning.surface import Surface, Trial, observe

WITHIN = math.log(1.01)  # of log loss: one percent
STEPS = 400  # looked at along an axis


@dataclass(frozen=True)
class Sensitivity:
    """One hyperparameter around the best.

    Attributes:
        value: the best. unit: "octave", or the size of a tenth of its linear range.
        below, above: how far it can be moved, in octaves (or as it is), until one percent of loss is lost.
        reaches_low, reaches_high: the range ends before that.
        lost_below, lost_above: share of the loss that moving it by one unit costs; None: beyond the range.
        edge: "low" or "high" where the best is at that end of its range: the true best may lie beyond.
    """

    name: str
    value: float
    unit: str
    below: float
    above: float
    reaches_low: bool
    reaches_high: bool
    lost_below: float | None
    lost_above: float | None
    edge: str | None


def sensitivities(
    space: Space, trials: Sequence[Trial], best: tuple[float, ...], seed: int
) -> list[Sensitivity]:
    """One row per axis; none where there are too few trials for a surface."""
    seen = observe(trials)
    if seen is None or len(trials) < 3:
        return []
    with threadpool_limits(1):
        surface = Surface(seen, seed, space.features())
        return [_along(surface, axis, i, best) for i, axis in enumerate(space.axes)]


def _along(surface: Surface, axis: Axis, place: int, best: tuple[float, ...]) -> Sensitivity:
    here, span = best[place], axis.high - axis.low
    line = np.tile(np.array(best), (STEPS + 1, 1))
    line[:, place] = np.linspace(0.0, 1.0, STEPS + 1)
    f = surface.log_loss(line) - surface.log_loss(np.array([best]))[0]
    parts = line[:, place]
    # a parameter that runs backwards (1 - momentum) is spoken of by its coordinate, as its range is
    low, lowest = _room(parts[parts <= here][::-1], f[parts <= here][::-1], here)
    high, highest = _room(parts[parts >= here], f[parts >= here], here)
    unit = axis.unit / span

    def lost(part: float) -> float | None:
        if not -1e-9 <= part <= 1 + 1e-9:
            return None
        return math.expm1(float(np.interp(part, parts, f)))

    return Sensitivity(
        name=axis.name,
        value=axis.value(here),
        unit="octave" if axis.scale == "log2" else f"{axis.unit:.4g}",
        below=low * span,
        above=high * span,
        reaches_low=lowest,
        reaches_high=highest,
        lost_below=lost(here - unit),
        lost_above=lost(here + unit),
        edge="low" if here <= 0 else "high" if here >= 1 else None,
    )


def _room(parts: np.ndarray, f: np.ndarray, here: float) -> tuple[float, bool]:
    """(how far along `parts` the surface stays within a percent, whether that is to the end of the range)."""
    beyond = np.nonzero(f > WITHIN)[0]
    if not len(beyond):
        return (abs(float(parts[-1]) - here) if len(parts) else 0.0), True
    return abs(float(parts[max(0, beyond[0] - 1)]) - here), False
