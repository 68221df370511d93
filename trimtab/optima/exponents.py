"""A fitted exponent over batch or tokens against what each rule says: refuted, agrees, or cannot tell.

The drift of log2(optimum) per doubling is the exponent p of  best lr ~ (batch or tokens)^p.  A rule with
exponent q is

    refuted     when the interval of p does not hold q,
    agrees      when it does and lies within +-0.25 of q,
    cannot tell otherwise.

The runs keep their other numbers (betas, decay, eps) as they are, while a rule moves those too: what is
compared is the learning rate alone, and the regret of a rule is that of its rate.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.errors import InputError
from trimtab.optima.drift import TOLERANCE, Drift
from trimtab.parametrization.horizons.rules import RULES

COLUMN = {"sgd": "sgd", "adam": "adam", "adamw": "adam", "muon": "adam"}


@dataclasses.dataclass(frozen=True)
class RuleExponent:
    """One rule's exponent of the rate, what the runs say of it, and its regret at the largest size."""

    rule: str
    exponent: float
    verdict: str
    regret: float


def against_rules(
    over: str, optimizer: str, slope: Drift, regret: Callable[[float], float]
) -> tuple[RuleExponent, ...]:
    """Every rule that speaks of this optimizer.

    over: "batch" or "tokens". regret: of an exponent, in loss.

    >>> found = against_rules("tokens", "adamw", Drift(-0.31, -0.38, -0.24), lambda q: 0.0)
    >>> [(r.rule, r.exponent, r.verdict) for r in found if r.rule in ("sde", "constant")]
    [('sde', -0.5, 'refuted'), ('constant', 0.0, 'refuted')]
    """
    out = []
    for rule in RULES.values():
        column = getattr(rule, COLUMN.get(optimizer.lower(), "adam"))
        if column is not None:
            q = getattr(column.lr, over)
            out.append(RuleExponent(rule=rule.name, exponent=q, verdict=judge(slope, q), regret=regret(q)))
    return tuple(out)


def judge(slope: Drift, q: float) -> str:
    """What an interval says of an exponent.

    >>> [judge(Drift(0.5, 0.4, 0.6), q) for q in (0.5, 1.0)], judge(Drift(0.5, -1.0, 2.0), 0.5)
    (['agrees', 'refuted'], 'cannot tell')
    """
    if math.isnan(slope.slope):
        return "cannot tell"
    if not slope.low <= q <= slope.high:
        return "refuted"
    return "agrees" if q - TOLERANCE <= slope.low and slope.high <= q + TOLERANCE else "cannot tell"


def write_rule(path: str | Path, found: dict[str, Any]) -> str:
    """Write measured exponents as a rule's file, for `trimtab.Horizon(rule=path)`.

    found: {"batch" | "tokens": a Transfer over it}. lr x wd x steps is kept: weight decay gets the rest of
    d/b, as in `sde`; what was not measured is as in `sde`.
    """
    target = Path(path)
    if target.suffix != ".json":
        raise InputError(f"a measured rule is written to a .json file: got {target}.")
    lines, lr = [], {"batch": 0.0, "tokens": 0.0}
    optimizers = {str(t.line.cells["optimizer"].iloc[0]) for t in found.values()}
    if len(optimizers) != 1:
        raise InputError(f"a rule is measured with one optimizer: these runs have {', '.join(optimizers)}.")
    column = COLUMN.get(optimizers.pop(), "adam")
    for over in lr:
        lr[over] = getattr(getattr(RULES["sde"], column).lr, over)
        if over in found:
            d = found[over].drift
            if math.isnan(d.slope):
                raise InputError(
                    f"there is no exponent over {over}: the runs cannot tell where the optima are."
                )
            lr[over] = d.slope
            sizes = found[over].optima[over]
            lines.append(
                f"lr as {over}^{d.slope:.3f} ({d.low:.3f} to {d.high:.3f}) from {sizes.min():g} to "
                f"{sizes.max():g}"
            )
    decay = {"batch": 1 - lr["batch"], "tokens": -1 - lr["tokens"]}
    rule = {
        "name": target.stem,
        "extends": "sde",
        "source": f"measured: {'; '.join(lines)}",
        "support": "these runs",
        "contested_over_batch": [],
        "contested_over_tokens": [],
        column: {"lr": lr, "weight_decay": decay},
    }
    target.write_text(json.dumps(rule, indent=2) + "\n", encoding="utf-8")
    return f"wrote {target}: {'; '.join(lines)}. Use it with trimtab.Horizon(rule={str(target)!r})."
