"""Weight decay over size and horizon: which number is kept. Pure arithmetic.

A decoupled decay forgets weights over 1/(lr wd) steps: its timescale. When lr is multiplied by f (size) and r
(horizon), decay can keep

    product   lr x wd per step over width            wd x 1/f          and the horizon's own rule
    root      between the two                        wd x f^-1/2       and the horizon's own rule
    value     wd itself over width                   wd x 1            and the horizon's own rule
    tokens    the timescale in tokens, B/(lr wd)     wd x 1/f x b/r
    epochs    the timescale in passes over the data  wd x 1/f x b/(r D)      D: ratio of the data set's size

b is the ratio of batches. With one pass over the data (D = d, the ratio of tokens) `epochs` keeps lr x wd x
steps, as the rule `sde` does. Which of them transfers is contested (docs/horizon.md).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from trimtab.errors import InputError, OptimizerError, faults
from trimtab.parametrization.horizons.horizon import Horizon, HorizonFactors
from trimtab.parametrization.optimizers.families import Family


@dataclasses.dataclass(frozen=True)
class Decay:
    """What weight decay keeps as a model grows.

    Args:
        name: how it is called.
        width: power p of wd x f^-p, f the factor of the learning rate over size: 1 keeps lr x wd, 0 keeps wd.
        keeps: what is kept over batch and length: "rule" (as the horizon's rule says), "tokens" or "epochs".
        dataset: size of the data set over the base's, for "epochs". None: one pass, it grows with the tokens.
        source: where it comes from; `contested`: who disagrees.
    """

    name: str
    width: float = 1.0
    keeps: Literal["rule", "tokens", "epochs"] = "rule"
    dataset: float | None = None
    source: str = ""
    contested: str = ""

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.width, bool) or not isinstance(self.width, int | float):
            problems.append(f"width must be a number, a power of the rate's factor: got {self.width!r}")
        elif not math.isfinite(self.width):
            problems.append(f"width must be finite: got {self.width!r}")
        if self.keeps not in ("rule", "tokens", "epochs"):
            problems.append(f"keeps must be 'rule', 'tokens' or 'epochs': got {self.keeps!r}")
        if self.dataset is not None and not (
            isinstance(self.dataset, int | float) and 0 < self.dataset < math.inf
        ):
            problems.append(f"dataset must be a finite number > 0, a ratio: got {self.dataset!r}")
        if problems:
            raise faults(f"Decay({self.name!r}):", problems)

    def over_size(self, lr: float) -> float:
        """Factor of weight decay where size multiplies the rate by `lr`.

        >>> DECAYS["product"].over_size(0.25), DECAYS["root"].over_size(0.25), DECAYS["value"].over_size(0.25)
        (4.0, 2.0, 1.0)
        """
        return lr**-self.width

    def over_horizon(self, horizon: Horizon, factors: HorizonFactors) -> float:
        """Factor of weight decay over batch and length, where those move the rate by `factors.lr`.

        >>> h = Horizon(batch=4, tokens=16)
        >>> f = h.factors("AdamW")
        >>> f.lr, [DECAYS[name].over_horizon(h, f) for name in ("product", "tokens", "epochs")]
        (0.5, [0.5, 8.0, 0.5])
        """
        if self.keeps == "rule":
            return factors.weight_decay
        data = 1.0 if self.keeps == "tokens" else self.dataset or horizon.tokens
        return horizon.batch / (factors.lr * data)

    def refuse(self, family: Family) -> None:
        """L2 that is normalised with the gradient has no timescale to choose.

        Raises:
            OptimizerError: this is a choice and the optimizer has none.
        """
        if family.decay == "coupled" and self != DECAYS["product"]:
            raise OptimizerError(
                f"decay={self.name!r} needs weight decay apart from the gradient: {family.name} adds it to "
                "the gradient and normalises both. Use AdamW, or decoupled_weight_decay=True."
            )


WIDTH = "lr x wd as m^-1/2 (2510.15262) or as 1/m (2512.05620)"

DECAYS: dict[str, Decay] = {
    decay.name: decay
    for decay in (
        Decay("product", source="lr x wd is one number at every width (docs/theory.md)", contested=WIDTH),
        Decay("root", width=0.5, source="2510.15262", contested="lr x wd constant; as 1/m (2512.05620)"),
        Decay("value", width=0.0, source="2512.05620", contested="lr x wd constant; as m^-1/2 (2510.15262)"),
        Decay("tokens", keeps="tokens", source="the AdamW timescale in tokens", contested=WIDTH),
        Decay(
            "epochs",
            keeps="epochs",
            source="the AdamW timescale in epochs (2405.13698)",
            contested="a power law in tokens per parameter (2505.13738); " + WIDTH,
        ),
    )
}


def as_decay(decay: str | Decay) -> Decay:
    """A choice of decay by its name.

    >>> as_decay("value").width
    0.0
    """
    if isinstance(decay, Decay):
        return decay
    if not isinstance(decay, str) or decay not in DECAYS:
        raise InputError(
            f"decay must be one of {', '.join(map(repr, DECAYS))} or a Decay(name, width, keeps): got "
            f"{decay!r}."
        )
    return DECAYS[decay]


@dataclasses.dataclass(frozen=True)
class Timescale:
    """How long a decoupled decay remembers: 1/(lr wd), in steps, and where they are known in tokens, epochs,
    runs."""

    steps: float
    tokens: float | None = None
    epochs: float | None = None
    runs: float | None = None

    def __str__(self) -> str:
        if math.isinf(self.steps):
            return "no decay"
        parts = [(self.steps, "steps"), (self.tokens, "tokens"), (self.epochs, "epochs"), (self.runs, "runs")]
        return " = ".join(f"{x:.4g} {unit}" for x, unit in parts if x is not None)


def timescale(
    lr: float,
    weight_decay: float,
    *,
    batch: float | None = None,
    dataset: float | None = None,
    steps: float | None = None,
) -> Timescale:
    """The timescale 1/(lr wd) of a decoupled weight decay (2405.13698).

    Args:
        lr: learning rate at its peak. weight_decay: as AdamW takes it.
        batch: tokens (or examples) of a step. dataset: tokens of the data set. steps: steps of the run.

    >>> print(timescale(1e-3, 0.1, batch=4096, steps=20000))
    1e+04 steps = 4.096e+07 tokens = 0.5 runs
    """
    given: dict[str, Any] = dict(lr=lr, weight_decay=weight_decay, batch=batch, dataset=dataset, steps=steps)
    problems = [
        f"{name} must be a finite number >= 0: got {x!r}"
        for name, x in given.items()
        if x is not None and (isinstance(x, bool) or not isinstance(x, int | float) or not 0 <= x < math.inf)
    ]
    if problems:
        raise faults("timescale(lr, weight_decay):", problems)
    long = 1 / (lr * weight_decay) if lr * weight_decay else math.inf
    tokens = None if batch is None else long * batch
    return Timescale(
        steps=long,
        tokens=tokens,
        epochs=tokens / dataset if tokens is not None and dataset else None,
        runs=long / steps if steps else None,
    )
