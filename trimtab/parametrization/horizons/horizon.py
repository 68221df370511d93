"""Batch and training length: what a run with b times the batch and d times the tokens gets. Pure arithmetic.

Training that noise dominates follows a stochastic differential equation. Over batch (d = 1) its solution is
kept when its clock, its noise and its decay are. Over length the clock and the decay are kept over the whole
run while the ratio of signal to noise gets better by d: a rule over length is a hypothesis, no symmetry
(docs/horizon.md). The rule `sde`:

                   SGD-like       Adam-like, spectral
    lr             b/d            (b/d)^1/2
    weight decay   1              (b/d)^1/2               lr x wd x steps is kept
    1 - beta       1              b/d                     memory in units of the clock is kept
    eps            -              b^-1/2                  against the size of a noisy gradient
    steps          d/b            d/b                     warmup and decay as fractions of them

(b, d) and then (b', d') is (b b', d d'). Other rules are records of exponents (`horizon_rules`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import InputError, OptimizerError, faults
from trimtab.parametrization.horizons.rules import Column, Powers, Rule, as_rule, rule_from
from trimtab.parametrization.horizons.table import render
from trimtab.parametrization.optimizers.families import FAMILIES, Family, family_of

SHORT = 0.5  # of 1 - beta: a memory of less than two steps
FRACTIONS = (
    "steps change by {steps:.4g}: give warmup and decay as fractions of the run. A schedule in absolute "
    "numbers of steps (warmup_steps, T_max, milestones) must be multiplied by {steps:.4g} too."
)
SUM_MOMENTUM = (
    "momentum stays as it is: torch adds gradients up, so its clock is lr / (1 - momentum). Keeping the "
    "memory in tokens instead would multiply 1 - momentum by b/d = {ratio:.4g} and lr by (b/d)^2 = "
    "{square:.4g}."
)
ANALOGY = "spectral optimizers take the Adam column by analogy: no source derives it for them."


@dataclasses.dataclass(frozen=True)
class HorizonFactors:
    """What to multiply the base's hyperparameters by. `betas` and `momentum` are moved by `Horizon`'s own
    functions."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    steps: float = 1.0
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Horizon:
    """How much larger the batch and how much longer the training is than the base's.

    Args:
        batch: batch of this run over the base's, in tokens or examples of one step.
        tokens: tokens (examples) seen in the whole run over the base's.
        rule: "sde", "completedp", "token-half-life", "constant", or the path of a .toml or .json file.
        critical: the critical batch over the base's batch, where it was measured: beyond it a note says so.

    >>> h = Horizon(batch=16, tokens=4)
    >>> f = h.factors("AdamW")
    >>> f.lr, f.weight_decay, f.eps, f.steps
    (2.0, 2.0, 0.25, 0.25)
    >>> [round(beta, 6) for beta in h.betas((0.9, 0.99))]
    [0.6, 0.96]
    >>> h == Horizon(batch=16) * Horizon(tokens=4)
    True

    Raises:
        InputError: a ratio is no finite number above 0, or there is no such rule; all faults at once.
    """

    batch: float = 1.0
    tokens: float = 1.0
    rule: Rule | str | Path = "sde"
    critical: float | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a finite number > 0, a ratio to the base's: got {value!r}"
            for name, value in (("batch", self.batch), ("tokens", self.tokens), ("critical", self.critical))
            if not (_positive(value) or (name == "critical" and value is None))
        ]
        try:
            object.__setattr__(self, "rule", as_rule(self.rule))
        except InputError as error:
            problems.append(str(error))
        if problems:
            raise faults("Horizon(batch, tokens, rule):", problems)

    @property
    def record(self) -> Rule:
        """The rule, with its exponents, source, support and what contests it."""
        assert isinstance(self.rule, Rule)
        return self.rule

    @property
    def identity(self) -> bool:
        return self.batch == 1 and self.tokens == 1

    @property
    def steps(self) -> float:
        """Number of steps over the base's: d / b."""
        return self.tokens / self.batch

    # -- what an optimizer gets -----------------------------------------------------------------------------

    def factors(self, cls: Any, **hyper: Any) -> HorizonFactors:
        """What to multiply the base's lr, weight decay, eps and number of steps by.

        Args:
            cls: optimizer class, or its name.
            hyper: the base's hyperparameters that matter: weight_decay, decoupled_weight_decay, betas,
                momentum.

        >>> Horizon(batch=4).factors("SGD", momentum=0.9).lr
        4.0

        Raises:
            OptimizerError: the rule says nothing about this optimizer, or its weight decay is coupled L2
                inside a normalising step.
            InputError: a beta or momentum that the rule would move out of its range.
        """
        return self.of_family(known_family(cls, hyper), hyper)

    def of_family(self, family: Family, hyper: Mapping[str, Any]) -> HorizonFactors:
        """`factors` for an optimizer whose family is known already."""
        column = self._column(family)
        moved = self.hyper(family, hyper)
        notes = list(self.notes)
        if family.rate == "spectral" and not self.identity:
            notes.append(ANALOGY)
        if _sums(family) and hyper.get("momentum") and column.lr != Powers() and not self.identity:
            ratio = self.batch / self.tokens
            notes.append(SUM_MOMENTUM.format(ratio=ratio, square=ratio**2))
        notes += [
            f"{name} becomes {beta:.4g}, a memory of {1 / (1 - beta):.3g} steps: the rule holds where it is "
            "many."
            for name, beta in _memories(moved)
            if 1 - beta > SHORT and beta and not self.identity
        ]
        coupled = family.decay == "coupled"
        if coupled and self._moves(column) and hyper.get("weight_decay"):
            raise OptimizerError(
                f"weight decay over batch and length needs a rule: {family.name} adds it to the gradient as "
                "L2 and then normalises, which keeps neither its time scale nor its balance with the loss. "
                "Use AdamW (or decoupled_weight_decay=True), or weight_decay=0."
            )
        return HorizonFactors(
            lr=self._power(column.lr),
            weight_decay=1.0 if coupled else self._power(column.weight_decay),
            eps=self._power(column.eps) if family.eps else 1.0,
            steps=self.steps,
            notes=tuple(notes),
        )

    def hyper(self, family: Family, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """The memories among an optimizer's hyperparameters (betas, momentum, alpha), moved; nothing else.

        >>> Horizon(batch=4).hyper(FAMILIES["RMSprop"], {"alpha": 0.99, "momentum": 0.9, "lr": 0.1})
        {'alpha': 0.96, 'momentum': 0.9}
        """
        column = self._column(family)
        momentum = Powers() if _sums(family) else column.momentum
        problems: list[str] = []
        moved: dict[str, Any] = {}
        if (betas := hyper.get("betas")) is not None:
            pair = tuple(betas) if isinstance(betas, Sequence) else ()
            if len(pair) != 2:
                problems.append(f"betas must be two numbers: got {betas!r}")
            powers = (("beta1", column.beta1), ("beta2", column.beta2))
            moved["betas"] = tuple(
                self._memory(name, beta, power, column, problems)
                for (name, power), beta in zip(powers, pair, strict=False)
            )
        for name, power in (("alpha", column.beta2), ("momentum", momentum)):
            if hyper.get(name) is not None:
                moved[name] = self._memory(name, hyper[name], power, column, problems)
        if problems:
            raise faults(f"{self!r}: a memory must stay between 0 and 1:", problems)
        return moved

    def betas(self, betas: Sequence[float]) -> tuple[float, float]:
        """An Adam-like optimizer's betas at this batch and length.

        >>> tuple(round(beta, 4) for beta in Horizon(batch=4).betas((0.9, 0.95)))
        (0.6, 0.8)
        >>> tuple(round(beta, 4) for beta in Horizon(batch=4, rule="token-half-life").betas((0.9, 0.95)))
        (0.9, 0.8145)
        """
        return self.hyper(FAMILIES["AdamW"], {"betas": betas})["betas"]

    def momentum(self, momentum: float, cls: Any = "SGD") -> float:
        """The momentum at this batch and length: unchanged where it is a sum (SGD), moved where it is a mean
        (Muon).

        >>> Horizon(batch=2).momentum(0.9), round(Horizon(batch=2).momentum(0.9, "Muon"), 4)
        (0.9, 0.8)
        """
        return self.hyper(known_family(cls, {}), {"momentum": momentum})["momentum"]

    def _power(self, powers: Powers) -> float:
        return powers.of(self.batch, self.tokens)

    def _moves(self, column: Column) -> bool:
        return not self.identity and not column.lr == column.weight_decay == Powers()

    def _column(self, family: Family) -> Column:
        """The column of the rule that speaks of this family."""
        rule = self.record
        column = rule.sgd if _follows_gradient(family) else rule.adam
        if column is None and self.identity:
            return Column()
        if column is None:
            like = "SGD-like" if _follows_gradient(family) else "Adam-like"
            raise OptimizerError(
                f"rule {rule.name!r} says nothing about {like} optimizers: {family.name} is one. Use "
                "rule='sde', 'constant' or a file that has this column."
            )
        if (why := NO_RULE.get(family.name)) and self._moves(column):
            raise OptimizerError(
                f"{family.name} has no rule over batch and length: {why} Use AdamW, or rule='constant'."
            )
        return column

    def _memory(self, name: str, beta: Any, powers: Powers, column: Column, problems: list[str]) -> float:
        """beta at this horizon. 0 is no memory and stays 0; faults go to `problems`."""
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < 1:
            problems.append(f"{name} must be a number from 0 to below 1: got {beta!r}")
            return 0.0
        factor = self._power(powers)
        if beta == 0 or factor == 1:
            return beta
        if column.memory == "half-life":
            return beta**factor
        if (1 - beta) * factor >= 1 - 1e-9:
            problems.append(
                f"{name}: 1 - {beta:.6g} times {factor:.4g} ({powers}) is {(1 - beta) * factor:.4g}, no "
                f"memory at all. The base needs more than {1 - 1 / factor:.6g}, or this run a smaller batch; "
                "rule='token-half-life' always has one"
            )
            return 0.0
        return 1 - (1 - beta) * factor

    # -- what is said ---------------------------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        """What to know before it is used: range, schedule, what is contested."""
        return self.advice + self.disputes

    @property
    def advice(self) -> list[str]:
        """The range of the rule, and the schedule."""
        notes: list[str] = []
        if self.critical is not None and self.batch > self.critical:
            notes.append(
                f"the batch is {self.batch:.4g} times the base's, beyond the critical {self.critical:.4g}: "
                "there the best rate stops following the batch, and no rule has support."
            )
        elif self.batch > 1 and self.critical is None and self.record.name != "constant":
            notes.append(
                "the rule holds below the critical batch, which is not known here: pass critical= where it "
                "was measured."
            )
        if self.steps != 1:
            notes.append(FRACTIONS.format(steps=self.steps))
        return notes

    @property
    def disputes(self) -> list[str]:
        """Who says otherwise, over each axis that changes."""
        rule = self.record
        over = (
            ("batch", self.batch, rule.contested_over_batch),
            ("tokens", self.tokens, rule.contested_over_tokens),
        )
        return [
            f"rule {rule.name} is contested over {axis}: {'; '.join(disputes)}."
            for axis, ratio, disputes in over
            if ratio != 1 and disputes
        ]

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        critical = "" if self.critical is None else f", critical={self.critical:g}"
        return f"Horizon(batch={self.batch:g}, tokens={self.tokens:g}, rule={self.record.name!r}{critical})"

    # -- compose and save -----------------------------------------------------------------------------------

    def then(self, other: Horizon) -> Horizon:
        """This horizon and then `other`, whose base is this one's run.

        >>> Horizon(batch=2).then(Horizon(batch=4, tokens=8))
        Horizon(batch=8, tokens=8, rule='sde')
        """
        if self.record != other.record:
            raise InputError(
                f"horizons compose under one rule: this one has {self.record.name!r}, the other "
                f"{other.record.name!r}. Write one file with the exponents over batch of the one and over "
                "tokens of the other."
            )
        known = [
            *([self.critical] if self.critical is not None else []),
            *([self.batch * other.critical] if other.critical is not None else []),
        ]
        return Horizon(
            batch=self.batch * other.batch,
            tokens=self.tokens * other.tokens,
            rule=self.record,
            critical=min(known, default=None),
        )

    def __mul__(self, other: Horizon) -> Horizon:
        return self.then(other)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, the rule's exponents included, so that a file of one's own need not be kept."""
        return dict(batch=self.batch, tokens=self.tokens, rule=self.record.to_dict(), critical=self.critical)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Horizon:
        return cls(data["batch"], data["tokens"], rule_from(data["rule"]), data["critical"])


NO_RULE = {
    "Adagrad": "it sums squared gradients over the whole run and has no memory to keep.",
    "Adadelta": "its steps are measured by its own past steps, so lr does not set its clock.",
}


def _positive(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < math.inf


def known_family(cls: Any, hyper: Mapping[str, Any]) -> Family:
    """The family of an optimizer by its class or its name.

    >>> known_family("AdamW", {}).decay
    'decoupled'
    """
    name = cls if isinstance(cls, str) else getattr(cls, "__name__", str(cls))
    family = family_of(name, hyper)
    if family is None:
        near = next((f" (nearest {known})" for known in FAMILIES if known.lower() == name.lower()), "")
        raise OptimizerError(
            f"the law of an optimizer must be known: {name} is none of {', '.join(FAMILIES)}{near}. Pass "
            "the one whose steps are like its own, or p.optimizer(cls, horizon=...), which tries it."
        )
    return family


def _follows_gradient(family: Family) -> bool:
    """SGD-like: a step is as long as the gradient. Adadelta's is not, though its lr has the same unit."""
    return family.rate == "u/s" and not family.eps


def _sums(family: Family) -> bool:
    """Its momentum is a sum of steps, so that the length of a step depends on it."""
    return family.rate != "spectral"


def _memories(moved: Mapping[str, Any]) -> list[tuple[str, float]]:
    found = [(f"beta{i}", beta) for i, beta in enumerate(moved.get("betas", ()), start=1)]
    return found + [(name, moved[name]) for name in ("alpha", "momentum") if name in moved]
