"""What each role gets: three numbers per parameter. Pure arithmetic.

Relative to a base model, in stored (folded) form (docs/theory.md, equations (6), (9), (10) and (13)):

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

At base size every number is 1. Shrinking is the inverse of growing: below 1, init(m_in, m_out) is
1 / init(1/m_in, 1/m_out), so that there and back is 1. One dimension growing while the other shrinks has no
rule. What an optimizer makes of the three numbers is in `optimizers/families`. Neither file imports torch, so
the rules can be printed, compared and tested by the thousand.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from trimtab.errors import InputError

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
