"""Rules over batch and training length: named records of exponents, with their source and what contests them.

b and d are the ratios of the batch and of the tokens seen to the base's. A rule multiplies a number by

    b^batch * d^tokens                                (docs/horizon.md)

with one column for SGD-like optimizers and one for Adam-like ones (spectral ones too, by analogy). A memory
(beta, momentum) is moved in one of two ways:

    "rate"        1 - beta  is multiplied           memory in units of the clock is kept; needs 1 - beta' < 1
    "half-life"   log beta  is multiplied           beta^b keeps the half-life in tokens; always possible

A rule of one's own is a TOML or JSON file with the same fields; `extends` names the record it starts from.
Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trimtab.errors import InputError, faults

Memory = Literal["rate", "half-life"]
MEMORIES = ("rate", "half-life")
COLUMNS = ("sgd", "adam")


@dataclasses.dataclass(frozen=True)
class Powers:
    """Exponents of one hyperparameter: it is multiplied by b^batch * d^tokens.

    >>> Powers(0.5, -0.5).of(16.0, 4.0)
    2.0
    >>> str(Powers(0.5, -0.5)), str(Powers())
    ('b^0.5 d^-0.5', '1')
    """

    batch: float = 0.0
    tokens: float = 0.0

    def of(self, b: float, d: float) -> float:
        return b**self.batch * d**self.tokens

    def __str__(self) -> str:
        parts = [f"{x}^{power:g}" for x, power in (("b", self.batch), ("d", self.tokens)) if power]
        return " ".join(part.removesuffix("^1") for part in parts) or "1"


FIXED = Powers()


@dataclasses.dataclass(frozen=True)
class Column:
    """What one class of optimizers gets. `beta1`, `beta2` and `momentum` move as `memory` says.

    `momentum` is a running mean (Muon). Torch's momentum in SGD and RMSprop is a sum: changing it changes the
    length of a step too, so it stays as it is.
    """

    lr: Powers = FIXED
    weight_decay: Powers = FIXED
    eps: Powers = FIXED
    beta1: Powers = FIXED
    beta2: Powers = FIXED
    momentum: Powers = FIXED
    memory: Memory = "rate"


POWERS = ("lr", "weight_decay", "eps", "beta1", "beta2", "momentum")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule over batch and length. A column that is None has no rule: such optimizers are refused."""

    name: str
    sgd: Column | None
    adam: Column | None
    source: str = ""
    support: str = ""
    contested_over_batch: tuple[str, ...] = ()
    contested_over_tokens: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As `rule_from` reads it."""
        return dataclasses.asdict(self)


RATIO = Powers(1.0, -1.0)  # b / d
ROOT = Powers(0.5, -0.5)

OVER_BATCH = (
    "lr constant with beta2^b (2507.07101)",
    "lr constant, weight decay b^1/2 (2411.15958)",
    "no rule holds over all workloads (Shallue et al. 2019)",
)
OVER_TOKENS = (
    "lr as d^-0.32 (2409.19913)",
    "lr as d^-0.28 to d^-0.30 (public reports)",
    "lr as d^-0.35 (2601.05049)",
    "lr as d^+0.307 with the batch growing too (Step Law)",
    "no power law (2606.29158)",
)
SQUARE_ROOT = "square root over batch (2205.10287)"

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            name="sde",
            sgd=Column(lr=RATIO),
            adam=Column(
                lr=ROOT, weight_decay=ROOT, eps=Powers(batch=-0.5), beta1=RATIO, beta2=RATIO, momentum=RATIO
            ),
            source="the clock and the decay of the stochastic differential equation kept (2205.10287; "
            "2512.22382)",
            support="over batch: linear for SGD, square root for Adam, below the critical batch "
            "(2205.10287); over length: AdamW, 50M to 7.2B parameters (2512.22382), a hypothesis and no "
            "symmetry",
            contested_over_batch=OVER_BATCH,
            contested_over_tokens=OVER_TOKENS,
        ),
        Rule(
            name="completedp",
            sgd=None,
            adam=Column(
                lr=ROOT, weight_decay=ROOT, eps=Powers(-0.5, 0.5), beta1=RATIO, beta2=RATIO, momentum=RATIO
            ),
            source="Complete(d)P (2512.22382)",
            support="AdamW, 50M to 7.2B parameters (2512.22382); sde with eps as (d/b)^1/2",
            contested_over_batch=OVER_BATCH,
            contested_over_tokens=OVER_TOKENS,
        ),
        Rule(
            name="token-half-life",
            sgd=None,
            adam=Column(beta2=Powers(batch=1.0), memory="half-life"),
            source="the half-life of the second moment kept in tokens, at a constant lr (2507.07101)",
            support="language models from batch 1 up (2507.07101); says nothing over length",
            contested_over_batch=(SQUARE_ROOT, OVER_BATCH[2]),
            contested_over_tokens=("says nothing over length",),
        ),
        Rule(
            name="constant",
            sgd=Column(),
            adam=Column(),
            source="nothing is changed but the number of steps",
            support="none: the null rule that measurements are compared with",
            contested_over_batch=("linear for SGD, square root for Adam (2205.10287)", OVER_BATCH[2]),
            contested_over_tokens=("lr as d^-1/2 for Adam (2512.22382)", *OVER_TOKENS),
        ),
    )
}


def as_rule(rule: str | Path | Rule) -> Rule:
    """A rule by its name, or from a TOML or JSON file.

    >>> as_rule("sde").adam.lr
    Powers(batch=0.5, tokens=-0.5)

    Raises:
        InputError: no rule has this name, or the file has faults (all of them are named).
    """
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    path = Path(rule) if isinstance(rule, str | Path) else None
    if path is None or path.suffix not in (".toml", ".json"):
        raise InputError(
            f"rule must be one of {', '.join(map(repr, RULES))} or the path of a .toml or .json file: got "
            f"{rule!r}."
        )
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InputError(f"the file of a rule must be readable: {path}: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} must be {path.suffix[1:].upper()}: {error}.") from error
    return rule_from(data, str(path), path.stem)


def rule_from(data: Any, where: str = "rule", name: str = "own") -> Rule:
    """A rule from its fields, as a file or `Rule.to_dict` has them.

    Args:
        data: name, extends, source, support, contested_over_batch, contested_over_tokens, and the columns
            sgd and adam: {"lr": {"batch": x, "tokens": y}, ..., "memory": "rate" or "half-life"}.
        where: what a fault is reported about.
        name: what the rule is called where `data` does not say.

    >>> mine = rule_from({"extends": "sde", "adam": {"lr": {"batch": 0.5, "tokens": -0.31}}})
    >>> mine.name, mine.adam.lr.tokens, mine.adam.weight_decay.tokens
    ('own', -0.31, -0.5)
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: a rule must be a table of fields: got {type(data).__name__}.")
    problems: list[str] = []
    base = data.get("extends")
    if base is not None and base not in RULES:
        problems.append(f"extends must be one of {', '.join(map(repr, RULES))}: got {base!r}")
    start = RULES.get(base, Rule(name, None, None)) if isinstance(base, str) else Rule(name, None, None)
    known = {"extends", *(field.name for field in dataclasses.fields(Rule))}
    problems += [f"{key!r} is not one of {', '.join(sorted(known))}" for key in data if key not in known]
    fields: dict[str, Any] = {"name": name}
    for key in ("name", "source", "support"):
        if key in data:
            fields[key] = data[key]
            if not isinstance(data[key], str):
                problems.append(f"{key} must be text: got {data[key]!r}")
    for key in ("contested_over_batch", "contested_over_tokens"):
        if key in data:
            value = [data[key]] if isinstance(data[key], str) else data[key]
            if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
                fields[key] = tuple(value)
            else:
                problems.append(f"{key} must be text or a list of text: got {value!r}")
    for key in COLUMNS:
        if data.get(key) is not None:
            fields[key] = _column(data[key], getattr(start, key) or Column(), key, problems)
    if data.get("sgd") is None and data.get("adam") is None and base is None:
        problems.append("a rule must have a column, sgd or adam, or name a rule that it extends")
    if problems:
        raise faults(f"{where}: a rule must be a table of exponents:", problems)
    return dataclasses.replace(start, **fields)


def _column(data: Any, start: Column, key: str, problems: list[str]) -> Column:
    """One column, what is not said as in `start`; faults go to `problems`."""
    if not isinstance(data, Mapping):
        problems.append(f"{key} must be a table of {', '.join(POWERS)} and memory: got {data!r}")
        return start
    fields: dict[str, Any] = {}
    for name, value in data.items():
        if name == "memory":
            if value in MEMORIES:
                fields[name] = value
            else:
                problems.append(f"{key}.memory must be 'rate' or 'half-life': got {value!r}")
        elif name not in POWERS:
            problems.append(f"{key}.{name} is not one of {', '.join(POWERS)}, memory")
        elif not isinstance(value, Mapping) or not set(value) <= {"batch", "tokens"}:
            problems.append(f"{key}.{name} must be {{batch = x, tokens = y}}, exponents: got {value!r}")
        elif wrong := [f"{axis} = {x!r}" for axis, x in value.items() if not _number(x)]:
            problems.append(f"{key}.{name} must have finite exponents: got {', '.join(wrong)}")
        else:
            fields[name] = Powers(**{axis: float(x) for axis, x in value.items()})
    return dataclasses.replace(start, **fields)


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
