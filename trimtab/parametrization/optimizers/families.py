"""Optimizer families: what each known optimizer makes of a parameter's three numbers. Pure arithmetic.

From (init, u, s) of a parameter (`rules`; docs/theory.md, equations (3), (7) and (14)):

    SGD           lr u/s, coupled L2 s/u              clipping weight sqrt(u/s)
    Adam & co.    lr u, eps s, decoupled decay 1/u, coupled L2 s/init
    Muon          lr u / (how much smaller the entries of its step are in the larger shape)

A new optimizer whose law is derived is a line of FAMILIES, or of REFUSED with the reason; `lookup` measures
the law of those that have none. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from trimtab.errors import InputError, OptimizerError
from trimtab.parametrization.rules import Scales


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the entries of a step move with the stored shape, for a gradient of fixed low rank (docs/theory.md,
    (14)).

    A step's entries go as rows^-rows columns^-columns max(1, rows/columns)^tall, where rows is the first
    dimension and columns the product of the others. All zero: the entries know nothing of the shape.

    Args:
        name: what the step is normalised by; "averaged" where entries share means over the tensor (a factored
            moment) and keep their size, "own" where the powers have no name.
        eps_rows, eps_columns: the powers of rows and columns by which the number that eps is compared with
            grows.
    """

    name: Literal["elementwise", "row", "column", "spectral", "whole tensor", "averaged", "own"] = (
        "elementwise"
    )
    rows: float = 0.0
    columns: float = 0.0
    tall: float = 0.0
    eps_rows: float = 0.0
    eps_columns: float = 0.0

    @property
    def constant(self) -> bool:
        """Entries of a step are of the same size in every shape."""
        return not (self.rows or self.columns or self.tall)

    def entry(self, shape: tuple[int, ...]) -> float:
        """Size of a step's entries, up to a constant.

        >>> Shape("spectral", 0.5, 0.5).entry((4, 16)), Shape("row", columns=0.5).entry((4, 16))
        (0.125, 0.25)
        """
        rows, columns = _flat(shape)
        return rows**-self.rows * columns**-self.columns * max(1.0, rows / columns) ** self.tall

    def norm(self, shape: tuple[int, ...]) -> float:
        """Size of the number that eps is compared with, up to a constant."""
        rows, columns = _flat(shape)
        return rows**self.eps_rows * columns**self.eps_columns


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0] if shape else 1), math.prod(shape[1:])


@dataclasses.dataclass(frozen=True)
class Family:
    """How an optimizer answers to a change of scale (docs/theory.md, equation (3)) and of shape.

    Args:
        rate: "u/s" where the step follows the gradient, "u" where it is normalised, "u/init" where it is also
            in units of the parameter, "spectral" where it is normalised and takes matrices only (Muon).
        decay: "ratio" (L2 beside a gradient step), "coupled" (L2 inside a normalised step) or "decoupled".
        eps: power of s that its eps follows; 0 where it has none.
        shape: how a step's entries move with the shape of a matrix.
        vectors, kernels: the law for tensors of one dimension, and of four, where it is another one.
    """

    name: str
    rate: Literal["u/s", "u", "u/init", "spectral"]
    decay: Literal["ratio", "coupled", "decoupled"]
    eps: int
    shape: Shape = Shape()
    vectors: Family | None = None
    kernels: Family | None = None

    def of(self, shape: tuple[int, ...]) -> Family:
        """The law for a tensor of this shape.

        Raises:
            OptimizerError: the law was not measured for so many dimensions and depends on them.
        """
        if len(shape) < 2:
            return self.vectors or self
        if len(shape) == 2 or self.rate == "spectral":
            return self
        law = self.kernels or self
        if len(shape) != 4 and not (law.shape.constant and self.shape.constant):
            raise OptimizerError(
                f"a law must be measured for as many dimensions as the tensor has: {self.name} mixes entries "
                f"({self.shape.name} on matrices) and its law is known for 1, 2 and 4 dimensions, not for "
                f"{shape}. "
                "Train this tensor with torch.optim.AdamW beside it: choose with only=."
            )
        return law


# torch.optim.Muon: a spectral step times its own factor on the shape (docs/theory.md, equation (14))
MUON = {
    "original": Shape("spectral", 0.5, 0.5, 0.5, 0.5, 0.5),  # max(1, rows/columns)^1/2
    "match_rms_adamw": Shape("spectral", 0.5, 0.0, 0.5, 0.5, 0.5),  # 0.2 max(rows, columns)^1/2
}

FAMILIES: dict[str, Family] = {
    "SGD": Family("SGD", "u/s", "ratio", 0),
    "Adam": Family("Adam", "u", "coupled", 1),
    "AdamW": Family("AdamW", "u", "decoupled", 1),
    "NAdam": Family("NAdam", "u", "coupled", 1),
    "RMSprop": Family("RMSprop", "u", "coupled", 1),
    "Adamax": Family("Adamax", "u", "coupled", 1),
    "Adagrad": Family("Adagrad", "u", "coupled", 1),
    "Adadelta": Family("Adadelta", "u/s", "coupled", 2),
    "Lion": Family("Lion", "u", "decoupled", 0),
    "Muon": Family("Muon", "spectral", "decoupled", 1, MUON["original"], Family("Muon", "u", "decoupled", 1)),
}

REFUSED = {
    "RAdam": (
        "its first steps are not normalised and later ones are, so no single power of the scale folds. Use "
        "AdamW with warmup."
    ),
    "Adafactor": (
        "its step is a part of the parameter's rms but at least 1e-3 in absolute units, so what starts near "
        "zero trains differently when it is stored at another scale, and its rate is min(lr, 1/sqrt(t)). Use "
        "AdamW."
    ),
    "LBFGS": (
        "it mixes all parameters into one line search, which has no per-parameter rate. Use SGD or AdamW."
    ),
    "SparseAdam": "it keeps state only for rows that were seen, which does not fold. Use AdamW.",
    "Rprop": "its step sizes are bounded by absolute numbers that a group cannot scale. Use Lion or AdamW.",
    "SWATS": "it is Adam at first and SGD once a test on whole tensors says so. Use one of the two.",
    "ASGD": "its rate decays with an absolute constant (lambd) that mixes with the scale. Use SGD.",
}


def family_of(name: str, hyper: Mapping[str, Any]) -> Family | None:
    """The family of a known optimizer by the name of its class, None for an unknown one.

    >>> family_of("Adam", {"decoupled_weight_decay": True}).decay
    'decoupled'

    Raises:
        OptimizerError: the optimizer is known not to fold.
    """
    if name in REFUSED:
        raise OptimizerError(
            f"a parametrization needs an optimizer whose steps fold: {name} does not, {REFUSED[name]}"
        )
    family = FAMILIES.get(name)
    if family is not None and hyper.get("decoupled_weight_decay"):
        family = dataclasses.replace(family, decay="decoupled")
    if family is not None and name == "Muon":
        fn = hyper.get("adjust_lr_fn") or "original"
        if fn not in MUON:
            raise InputError(f"adjust_lr_fn must be 'original', 'match_rms_adamw' or None: got {fn!r}.")
        family = dataclasses.replace(family, shape=MUON[fn])
    return family


@dataclasses.dataclass(frozen=True)
class Factors:
    """What to multiply the base's hyperparameters by."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


def factors(family: Family, scales: Scales, *, entry: float = 1.0, norm: float = 1.0) -> Factors:
    """The optimizer's numbers for one parameter (docs/theory.md, equation (7)).

    Args:
        entry: `Shape.entry` of the shape over that of the base's: what the optimizer does to a step by
            itself.
        norm: `Shape.norm`, the same ratio.

    >>> factors(FAMILIES["SGD"], Scales(0.5, 0.25, 0.25))
    Factors(lr=1.0, weight_decay=1.0, eps=1.0)
    >>> factors(FAMILIES["AdamW"], Scales(0.5, 0.25, 0.25))
    Factors(lr=0.25, weight_decay=4.0, eps=0.25)
    >>> factors(FAMILIES["Muon"], Scales(0.5, 0.25, 0.25), entry=0.25).lr   # hidden, 4 times as wide
    1.0
    """
    init, u, s = scales.init, scales.u, scales.s
    if family.rate == "u/s":
        lr = u / s
    elif family.rate == "u/init" and init > 0:
        lr = u / init
    else:
        lr = u
    lr /= entry
    if family.decay != "coupled":
        decay = 1 / lr
    else:  # what starts at zero has the size of its updates
        decay = s / (init if init > 0 else u)
    return Factors(lr, decay, (s * norm) ** family.eps if family.eps else 1.0)


def factors_for(family: Family, scales: Scales, shape: tuple[int, ...], base: tuple[int, ...]) -> Factors:
    """The optimizer's numbers for a parameter of this shape, from one of the base's shape.

    >>> factors_for(FAMILIES["Muon"], Scales(0.5, 0.25, 0.25), (64, 64), (16, 16))
    Factors(lr=1.0, weight_decay=1.0, eps=1.0)
    """
    own = family.of(shape)
    entry = own.shape.entry(shape) / own.shape.entry(base)
    return factors(own, scales, entry=entry, norm=own.shape.norm(shape) / own.shape.norm(base))
