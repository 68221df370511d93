"""What each role gets: three numbers per parameter, and from them what each optimizer needs. Pure arithmetic.

Relative to a base model, in stored (folded) form (docs/theory.md, equations (6), (7), (9), (10) and (13)):

    init   scale of the start          (init, u, s) = kind x place x richness x folds
    u      scale of a wanted update
    s      scale of the gradient

    kind          init                             u             s
    matrix        m_in^-1/2 min(1, m_out/m_in)^1/2 1/m_in        1/m_out      (for m_in, m_out >= 1)
    elementwise   1                                1             1/m_out
    scalar        1                                1             1

    place         init        u             s            (m_L: ratio of branch counts of its stack)
    outside       1           1             1
    branch        1           m_L^(alpha-1) m_L^-alpha
    tail          m_L^-alpha  1/m_L         1
    stream        1           1/m_L         1

    a fold by a   (init, u, s) -> (a init, a u, s/a)
    SGD           lr u/s, coupled L2 s/u              clipping weight sqrt(u/s)
    Adam & co.    lr u, eps s, decoupled decay 1/u, coupled L2 s/init

At base size every number is 1. Shrinking is the inverse of growing: below 1, init(m_in, m_out) is
1 / init(1/m_in, 1/m_out), so that there and back is 1. One dimension growing while the other shrinks has no
rule. Nothing here imports torch, so the rules can be printed, compared and tested by the thousand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from trimtab.errors import InputError, OptimizerError

Kind = Literal["matrix", "elementwise", "scalar"]
Where = Literal["outside", "branch", "tail", "stream"]


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How hyperparameters are carried from base to target.

    Args:
        name: how it is called in tables.
        alpha: residual branches are scaled by depth^-alpha; None leaves depth alone.
        width: "mup" learns features at every width, "ntk" becomes lazy, "sp" leaves width alone.

    >>> Scheme("mine", alpha=0.75)
    Scheme(name='mine', alpha=0.75, width='mup')
    """

    name: str
    alpha: float | None = 0.5
    width: Literal["mup", "ntk", "sp"] = "mup"

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha < math.inf:
            raise InputError(
                f"the branch exponent alpha must be a number >= 0: got {self.alpha!r}. The paper uses 0.5, "
                "CompleteP 1; None leaves depth alone."
            )
        if self.width not in ("mup", "ntk", "sp"):
            raise InputError(f"width must be one of 'mup', 'ntk', 'sp': got {self.width!r}.")

    @property
    def identity(self) -> bool:
        return self.width == "sp" and self.alpha is None


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("sp", None, "sp"),
        Scheme("ntk", None, "ntk"),
        Scheme("mup", None, "mup"),
        Scheme("depth-mup", 0.5, "mup"),
        Scheme("completep", 1.0, "mup"),
    )
}


def as_scheme(scheme: str | Scheme) -> Scheme:
    """A scheme by its name.

    >>> as_scheme("completep").alpha
    1.0
    """
    if isinstance(scheme, Scheme):
        return scheme
    if scheme not in SCHEMES:
        raise InputError(
            f"scheme must be one of {', '.join(map(repr, SCHEMES))} or a trimtab.Scheme(name, alpha, "
            f"width): got {scheme!r}."
        )
    return SCHEMES[scheme]


@dataclasses.dataclass(frozen=True)
class Scales:
    """(init, u, s) of one parameter, relative to base.

    >>> Scales(u=0.25) * Scales(init=0.5, u=0.5, s=2.0)
    Scales(init=0.5, u=0.125, s=2.0)
    >>> Scales().fold(0.5)
    Scales(init=0.5, u=0.5, s=2.0)
    """

    init: float = 1.0
    u: float = 1.0
    s: float = 1.0

    def __mul__(self, other: Scales) -> Scales:
        return Scales(self.init * other.init, self.u * other.u, self.s * other.s)

    def fold(self, a: float) -> Scales:
        """Store a * theta instead of multiplying theta by a in the forward (docs/theory.md, equation (2))."""
        return self * Scales(a, a, 1 / a)


def opposed(kind: str, m_in: float, m_out: float) -> bool:
    """A matrix grows in one dimension and shrinks in the other: no rule says how it should start.

    >>> opposed("matrix", 4.0, 0.5), opposed("matrix", 4.0, 1.0), opposed("elementwise", 1.0, 0.5)
    (True, False, False)
    """
    return kind == "matrix" and min(m_in, m_out) < 1 < max(m_in, m_out)


def matrix_init(m_in: float, m_out: float) -> float:
    """Scale of a matrix's start: m_in^-1/2 min(1, m_out/m_in)^1/2; for a smaller one, 1 / that of 1 / m.

    >>> matrix_init(4.0, 1.0), matrix_init(0.25, 1.0), matrix_init(1.0, 0.25)
    (0.25, 4.0, 1.0)
    >>> matrix_init(9.0, 4.0) * matrix_init(1 / 9, 1 / 4)
    1.0

    Raises:
        InputError: one dimension grows and the other shrinks.
    """
    if opposed("matrix", m_in, m_out):
        raise InputError(
            "a matrix must grow or shrink in both dimensions, or in one alone, for its start to have a rule: "
            f"here the fan-in is {m_in:.4g} times the base's and the fan-out {m_out:.4g} times. Say its init."
        )
    narrowing = m_out / m_in
    return ((min(1.0, narrowing) if max(m_in, m_out) > 1 else max(1.0, narrowing)) / m_in) ** 0.5


def kind_scales(kind: Kind, m_in: float, m_out: float, *, init: float | None = None) -> Scales:
    """The width rule.

    Args:
        m_in, m_out: ratios of fan-in and fan-out to base, above 1 or below.
        init: a matrix's start where the user says it; None follows the rule.

    >>> kind_scales("matrix", 4.0, 4.0)     # hidden
    Scales(init=0.5, u=0.25, s=0.25)
    >>> kind_scales("matrix", 4.0, 1.0)     # readout
    Scales(init=0.25, u=0.25, s=1.0)
    >>> kind_scales("matrix", 1.0, 4.0)     # input
    Scales(init=1.0, u=1.0, s=0.25)
    >>> kind_scales("matrix", 0.25, 0.25)   # hidden, of a target narrower than its base
    Scales(init=2.0, u=4.0, s=4.0)
    """
    if kind == "scalar":
        return Scales()
    if kind == "elementwise":
        return Scales(s=1 / m_out)
    return Scales(init=matrix_init(m_in, m_out) if init is None else init, u=1 / m_in, s=1 / m_out)


def place_scales(
    where: Where, m_L: float, alpha: float, *, uses: float = 1.0, zero_tail: bool = False
) -> Scales:
    """The depth rule (docs/theory.md, equations (10) and (11)).

    Args:
        m_L: ratio of the branch counts of the parameter's stack.
        alpha: branch exponent.
        uses: ratio of how often a shared parameter is used (ALBERT, loops); 1 where each block has its own.
        zero_tail: the branch's tail starts at zero: it is left there, and what is before it obeys alpha = 1.

    >>> place_scales("tail", 4.0, 0.5)
    Scales(init=0.5, u=0.25, s=1.0)
    >>> place_scales("branch", 4.0, 0.5)
    Scales(init=1.0, u=0.5, s=0.5)
    >>> place_scales("branch", 4.0, 0.5, uses=4.0)
    Scales(init=1.0, u=1.0, s=1.0)
    """
    if uses != 1:
        alpha = 1.0
    if where == "outside":
        scales = Scales()
    elif where == "stream":
        scales = Scales(u=1 / m_L)
    elif where == "tail":
        scales = Scales(init=1.0 if zero_tail else m_L**-alpha, u=1 / m_L)
    else:
        alpha = 1.0 if zero_tail else alpha
        scales = Scales(u=m_L ** (alpha - 1), s=m_L**-alpha)
    return scales * Scales(s=uses)


def richness_scales(readout: Literal["weight", "bias"] | None, gamma0: float) -> Scales:
    """How far features move for a given change of the output (docs/theory.md, equation (12)).

    >>> richness_scales("weight", 2.0), richness_scales(None, 2.0)
    (Scales(init=0.5, u=1.0, s=1.0), Scales(init=1.0, u=2.0, s=0.5))
    """
    if readout == "weight":
        return Scales(init=1 / gamma0)
    if readout == "bias":
        return Scales()
    return Scales(u=gamma0, s=1 / gamma0)


def scheme_scales(
    scheme: Scheme,
    kind: Kind,
    where: Where,
    *,
    m_in: float,
    m_out: float,
    m_L: float,
    readout: Literal["weight", "bias"] | None = None,
    gamma0: float = 1.0,
    uses: float = 1.0,
    zero_tail: bool = False,
    init: float | None = None,
) -> Scales:
    """kind x place x richness under a scheme (docs/theory.md, equation (6)); arguments as in those three.

    Args:
        gamma0: richness; under "ntk" with its factor m^-1/2, m the ratio of the readout's fan-in.

    >>> scheme_scales(SCHEMES["depth-mup"], "matrix", "tail", m_in=4.0, m_out=4.0, m_L=4.0)
    Scales(init=0.25, u=0.0625, s=0.25)
    """
    if scheme.identity:
        return Scales()
    scales = Scales()
    if scheme.width != "sp":
        scales *= kind_scales(kind, m_in, m_out, init=init)
    if scheme.alpha is not None:
        scales *= place_scales(where, m_L, scheme.alpha, uses=uses, zero_tail=zero_tail)
    return scales * richness_scales(readout, gamma0)


# -- optimizers ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the entries of a step move with the stored shape, for a gradient of fixed low rank (docs/theory.md,
    (14)).

    A step's entries go as rows^-rows columns^-columns max(1, rows/columns)^tall, where rows is the first
    dimension
    and columns the product of the others. All zero: the entries know nothing of the shape.

    Args:
        name: what the step is normalised by; "averaged" where entries share means over the tensor (a factored
            moment)
            and keep their size, "own" where the powers have no name.
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
            in
            units of the parameter, "spectral" where it is normalised and takes matrices only (Muon).
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
