"""Does the exponent of the smaller sizes hold at a larger one that it has not seen?

    p from every size but the largest, S;   lr = lr_base (S / S_base)^p;   regret = loss(lr) - loss(best) at S

The runs at S are used for its own optimum and for the regret, and for nothing else.
"""

from __future__ import annotations

import dataclasses
import math

from trimtab.optima.drift import Drift
from trimtab.optima.fits import excess
from trimtab.optima.transfers import Transfer, analyse_line, followed, size_of

LEAST = 3  # sizes that an exponent is measured on


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """An exponent and what its rate costs at a size it was not measured on.

    Args:
        drift: the exponent from the smaller sizes, with its interval.
        rate, best: the hyperparameter it says for `size`, and the best one there.
        regret, low, high: in units of the metric, with interval; infinite where the rate does not train.
        loss: at the best rate of that size.
    """

    over: str
    size: float
    drift: Drift
    rate: float
    best: float
    regret: float
    low: float
    high: float
    loss: float

    def __str__(self) -> str:
        d = self.drift
        interval = f"{d.slope:+.2f} ({d.low:+.2f} to {d.high:+.2f})"
        fitted = f"without {self.over} {self.size:g} the exponent is {interval}"
        if not math.isfinite(self.regret):
            why = "does not train" if math.isinf(self.regret) else "was not tried"
            return f"held out: {fitted}; its rate there, {self.rate:.3g}, {why} (the best is {self.best:.3g})"
        share = [100 * x / abs(self.loss) for x in (self.regret, self.low, self.high)]
        return (
            f"held out: {fitted}; its rate there, {self.rate:.3g}, ends {share[0]:.1f} % ({share[1]:.1f} to "
            f"{share[2]:.1f}) above the best, {self.best:.3g}"
        )


def hold_out(t: Transfer) -> HeldOut | None:
    """Measure the exponent without the largest size and try it there; None where too few sizes are left or an
    optimum is not known."""
    line = t.line
    far = max(line.sizes)
    powers = line.hp == "lr" and line.axis == "log2" and not followed(line)
    if len(line.sizes) <= LEAST or far == line.base or not powers:
        return None
    smaller = analyse_line(dataclasses.replace(line, cells=line.cells[line.cells[line.over] != far]))
    start = dict(zip(smaller.line.sizes, smaller.fits, strict=True))[line.base].optimum
    at = start + smaller.drift.slope * math.log2(far / line.base)
    own, size = t.fits[line.sizes.index(far)], size_of(line.cells[line.cells[line.over] == far], line.sign)
    if not math.isfinite(at) or not math.isfinite(own.optimum):
        return None
    x, y, _ = size.columns(line.sign)
    found = (math.inf,) * 3 if at >= size.wall else excess(own, at, x, y)
    return HeldOut(
        over=line.over,
        size=far,
        drift=smaller.drift,
        rate=line.value(at),
        best=line.value(own.optimum),
        regret=found[0],
        low=found[1],
        high=found[2],
        loss=own.value,
    )
