"""A run's numbers at its batch and length: those of the base, moved by the rule in `horizon`. No torch.

    b = batch_size / base's batch,   d = batch_size x steps / base's tokens,   number' = number x b^p x d^q

with the exponents of the rule (docs/horizon.md). Width, depth and roles come after, per parameter; warmup and
schedule are steps and fractions of the run and are not touched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trimtab.errors import Fault, InputError, OptimizerError
from trimtab.parametrization.horizons.horizon import Horizon
from trimtab.parametrization.horizons.rules import rule_from
from trimtab.runs import catalogue

if TYPE_CHECKING:
    from trimtab.runs.config import RunConfig

CLASSES = {"sgd": ("SGD",), "adam": ("Adam",), "adamw": ("AdamW",), "muon": ("Muon", "AdamW")}
KEYS = ("rule", "batch", "tokens")
SHAPE = "must be a table of rule (a name or exponents), batch and tokens (the base's, whole numbers >= 1)"


def horizon_of(config: RunConfig) -> Horizon | None:
    """How much larger a run's batch and length are than its base's; None where it follows no rule."""
    return read_horizon(config.horizon, config.batch_size, config.steps) if config.horizon else None


def read_horizon(table: Mapping[str, Any], batch_size: int, steps: int) -> Horizon:
    """The horizon of a run with this batch and so many steps.

    >>> read_horizon({"rule": "sde", "batch": 16, "tokens": 1600}, batch_size=64, steps=100)
    Horizon(batch=4, tokens=4, rule='sde')
    """
    rule = table["rule"]
    return Horizon(
        batch=batch_size / table["batch"],
        tokens=batch_size * steps / table["tokens"],
        rule=rule_from(rule) if isinstance(rule, Mapping) else rule,
    )


def carried(config: RunConfig) -> RunConfig:
    """The run of one optimizer with its numbers moved to its batch and length, and nothing left to move.

    A run alone gets the same numbers from `p.optimizer(horizon=...)`; a fleet has no optimizers to ask.

    >>> from trimtab.runs.config import RunConfig
    >>> rule = {"rule": "sde", "batch": 16, "tokens": 3200}
    >>> run = RunConfig(width=8, depth=2, lr=0.01, optimizer="adamw", batch_size=64, steps=50, horizon=rule)
    >>> moved = carried(run)
    >>> moved.lr, round(moved.betas[0], 6), moved.horizon
    (0.02, 0.6, {})
    """
    h = horizon_of(config)
    if h is None:
        return config
    (cls,) = CLASSES[config.optimizer]
    f = h.factors(cls, **_hyper(config.model_dump()))
    moved: dict[str, Any] = dict(lr=config.lr * f.lr, weight_decay=config.weight_decay * f.weight_decay)
    if config.optimizer == "sgd":
        moved["momentum"] = h.momentum(config.momentum)
    else:
        moved |= dict(betas=h.betas(config.betas), eps=config.eps * f.eps)
    return config.model_copy(update={**moved, "horizon": {}})


def horizon_faults(c: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with a run's horizon; c: the run's fields."""
    table = c["horizon"]
    counts = isinstance(table, Mapping) and all(_whole(table.get(key)) for key in KEYS[1:])
    if not counts or set(table) != set(KEYS) or not isinstance(table["rule"], str | Mapping):
        return [Fault("horizon", SHAPE, repr(table))]
    if catalogue.is_own(c["data"]):
        return [Fault("horizon", "your own data function makes the batches, so that their size is not known")]
    if not _whole(c["batch_size"]) or not _whole(c["steps"]) or c["optimizer"] not in CLASSES:
        return []  # said already
    try:
        h = read_horizon(table, c["batch_size"], c["steps"])
        for cls in CLASSES[c["optimizer"]]:
            h.factors(cls, **_hyper(c))
    except (InputError, OptimizerError) as error:
        return [Fault("horizon", str(error))]
    return []


def _hyper(c: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters that a rule moves or that decide whether it may, as the optimizers get them."""
    if c["optimizer"] == "sgd":
        return dict(momentum=c["momentum"], weight_decay=c["weight_decay"])
    held = dict(betas=tuple(c["betas"]), weight_decay=c["weight_decay"])
    return held | (dict(momentum=c["momentum"] or 0.95) if c["optimizer"] == "muon" else {})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
