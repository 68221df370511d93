"""The width ratios of one parameter, model against base, from how it is used.

    a matrix product    m_in, m_out = ratios of its fan-in and its fan-out
    a lookup            m_in = 1 (a vocabulary is no width), m_out = ratio of a row's length
    element by element  m_in = 1, m_out = ratio of its numbers; a bias of the readout does not grow

An override's word comes first. What differs and is neither width nor depth is an error that says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.names import pattern
from trimtab.parametrization.comparison.overrides import ROLES
from trimtab.parametrization.rules import Kind
from trimtab.structure.graph import Graph
from trimtab.structure.uses import Use

NEAREST = ("elementwise", "input", "hidden", "readout", "scalar")  # to what acts element by element
Fans = tuple[int, int, int, int]  # fan_in, fan_out of the model, of the base


@dataclasses.dataclass(frozen=True)
class Twins:
    """One parameter beside its twin in the base, and the role the user gave it; `of_readout`: the role of the
    readout whose bias this is, None where it is no such bias."""

    name: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    uses: Sequence[Use]
    base_uses: Sequence[Use]
    role: str | None
    model: Graph
    base: Graph
    stacked: float = 1.0  # how many times more like paths, or numbers of blocks, it holds in one tensor
    of_readout: str | None = None

    def of_kind(self, kind: str) -> tuple[list[Use], list[Use]]:
        """Its uses of one kind, in the model and in the base."""
        mine, theirs = ([u for u in uses if u.kind == kind] for uses in (self.uses, self.base_uses))
        return mine, theirs

    @property
    def growth(self) -> float:
        """How many times more numbers it has."""
        return math.prod(self.shape) / math.prod(self.base_shape) / self.stacked

    @property
    def growing(self) -> list[float]:
        """The ratios of the dimensions that differ."""
        first = 1 if self.stacked != 1 else 0
        pairs = list(zip(self.shape, self.base_shape, strict=True))[first:]
        return [a / b for a, b in pairs if a != b]

    @property
    def shapes(self) -> str:
        return f"{self.name} {self.shape} (base {self.base_shape})"

    def refused(self, law: str, *roles: str) -> StructureError:
        """The error that says a law; the roles that might settle it are proposed for all blocks at once."""
        return StructureError(law, [{pattern(self.name): role} for role in roles or ROLES])


@dataclasses.dataclass(frozen=True, slots=True)
class Ratios:
    """What the rules need of a parameter. `tied`: it is both embedding and readout, or used in two ways."""

    kind: Kind
    m_in: float
    m_out: float
    fans: Fans
    tied: bool = False


def ratios(t: Twins) -> Ratios:
    """The kind and the width ratios of a parameter.

    Raises:
        StructureError: what differs is no width, or its use is not known.
    """
    (contract, base_contract), (lookup, base_lookup) = t.of_kind("contract"), t.of_kind("lookup")
    if t.role in ("scalar", "elementwise") or (t.role is None and not contract and not lookup):
        return _elementwise(t)
    if lookup and base_lookup:
        return _looked_up(t, lookup[0], base_lookup[0], tied=bool(contract))
    if contract and base_contract:
        return _contracted(t, contract, base_contract)
    if t.role is not None:
        return _by_role(t, t.role)
    raise StructureError(
        f"{t.name} is used as {sorted({u.kind for u in t.uses})} here and as "
        f"{sorted({u.kind for u in t.base_uses})} in the base: another architecture, or an example that "
        "takes another path."
    )


def _fans(a: Use, b: Use) -> Fans:
    return a.fan_in, a.fan_out, b.fan_in, b.fan_out


def _looked_up(t: Twins, a: Use, b: Use, *, tied: bool) -> Ratios:
    rows = a.fan_in / b.fan_in
    if rows != 1 and t.role is None:
        raise t.refused(
            f"{t.name}: its rows are looked up by an input (a vocabulary or positions), {b.fan_in} in the "
            f"base and {a.fan_in} here, which is no width. Use the same.",
            "input",
        )
    m_in = 1.0 if t.role in (None, "input") else rows
    return Ratios(kind="matrix", m_in=m_in, m_out=a.fan_out / b.fan_out, fans=_fans(a, b), tied=tied)


# -- matrix products -----------------------------------------------------------------------------------------


def _contracted(t: Twins, uses: list[Use], base_uses: list[Use]) -> Ratios:
    a, b = uses[0], base_uses[0]
    pairs = {(x.fan_in / y.fan_in, _growth(t, x, y)) for x, y in zip(uses, base_uses, strict=False)}
    if t.role is None:
        _refuse_copies(t, uses, base_uses)
    m_in, m_out = a.fan_in / b.fan_in, _growth(t, a, b)
    readout = t.name in t.model.readouts
    found = Ratios(kind="matrix", m_in=m_in, m_out=m_out, fans=_fans(a, b))
    if t.role == "input":
        return dataclasses.replace(found, m_in=1.0)
    if t.role == "readout":
        return dataclasses.replace(found, m_out=1.0)
    if len(pairs) > 1 and (readout or t.role is not None):
        return dataclasses.replace(found, tied=True)
    if len(pairs) > 1:
        raise t.refused(
            f"{t.name} is used in several ways whose width ratios differ, {sorted(pairs)}: one init cannot "
            "serve both. Say the role that counts.",
            "hidden",
            "readout",
            "input",
        )
    if m_out != 1 and readout and t.role is None:
        raise t.refused(
            f"{t.name} is the network's readout with {b.fan_out} outputs in the base and {a.fan_out} here: "
            "outputs (classes, a vocabulary) are no width. Use the same, or say 'hidden' if this is a width.",
            "readout",
            "hidden",
        )
    return found


def _refuse_copies(t: Twins, uses: list[Use], base_uses: list[Use]) -> None:
    """Several matrices in one tensor: experts of another number, or the weights of several blocks."""
    a, b = uses[0], base_uses[0]
    if a.copies != b.copies * t.stacked:
        raise t.refused(
            f"{t.name} holds {a.copies} matrices (experts, groups) and {b.copies} in the base: their number "
            "is no width. Use the same.",
            "hidden",
            "input",
            "readout",
        )
    if a.fan_in * a.fan_out * a.copies < math.prod(t.shape) and len(uses) != len(base_uses):
        raise StructureError(
            f"{t.shapes} is used slice by slice, {len(uses)} times here and {len(base_uses)} in the base: "
            "the weights of several blocks in one tensor. One rate cannot serve them; keep them in a "
            "ParameterList."
        )


def _growth(t: Twins, a: Use, b: Use) -> float:
    """m_out. Of a product that is cut into parts that grow and parts that do not, that of the former."""
    m_out = a.fan_out / b.fan_out
    if m_out == 1:
        return m_out
    cuts, base_cuts = t.model.flow.pieces(a), t.base.flow.pieces(b)
    if len(cuts) == len(base_cuts) > 0:
        found = {x / y for x, y in zip(cuts, base_cuts, strict=True)}
        if len(found) == 2 and 1.0 in found:
            return max(found - {1.0})
    return m_out


# -- element by element, or by the user's word ---------------------------------------------------------------


def _elementwise(t: Twins) -> Ratios:
    fans = (1, math.prod(t.shape), 1, math.prod(t.base_shape))
    whole = Ratios(kind="elementwise", m_in=1.0, m_out=t.growth, fans=fans)
    if t.role == "scalar" or math.prod(t.shape) == math.prod(t.base_shape) == 1:
        return Ratios(kind="scalar", m_in=1.0, m_out=1.0, fans=fans)
    if t.role == "elementwise" or not t.growing:
        return whole
    if not t.uses:
        return _unused(t, whole)
    _refuse_disguised(t)
    if t.of_readout == "readout":
        return dataclasses.replace(whole, m_out=1.0)
    _, base_uses = t.of_kind("elementwise")
    seen = t.uses[0].fan_out / base_uses[0].fan_out if base_uses else t.growth
    if not math.isclose(seen, t.growth):
        raise t.refused(
            f"{t.shapes} grows by {t.growth:g}, but the part of it this example uses grows by {seen:g}: "
            "positions or another size that is no width. Use the same.",
            "elementwise",
            "scalar",
        )
    return whole


def _unused(t: Twins, whole: Ratios) -> Ratios:
    """Of a parameter that this example does not use, what its shape says."""
    growing = t.growing
    if len(growing) == 1 and max(t.shape) == math.prod(t.shape):
        return whole
    if len(t.shape) == 2 and len(growing) == 2 and growing[0] == growing[1]:
        fans = (t.shape[1], t.shape[0], t.base_shape[1], t.base_shape[0])
        return Ratios(kind="matrix", m_in=growing[0], m_out=growing[0], fans=fans)
    raise t.refused(
        f"{t.shapes} is not used in this example's forward, so its role is not known. Pass an example that "
        f"uses it, or say its role ({', '.join(ROLES)})."
    )


def _refuse_disguised(t: Twins) -> None:
    """What seems to act element by element and grows: by an unknown operation, or in two dimensions."""
    if any(u.kind == "unknown" for u in t.uses):
        operation = t.model.trace.nodes[t.uses[0].node].name
        raise t.refused(
            f"{t.shapes} is used by the operation {operation!r}, whose contraction is not known. Say its "
            f"role ({', '.join(ROLES)}).",
        )
    if len(t.growing) > 1:
        raise t.refused(
            f"{t.shapes} acts element by element but grows in {len(t.growing)} dimensions: a matrix in "
            f"disguise, or positions that differ. Say its role ({', '.join(ROLES)}).",
            *NEAREST,  # what it does is the nearest; of roles that hold, the first is suggested
        )


def _by_role(t: Twins, role: str) -> Ratios:
    """The user's word where no use was seen: torch's (out, in, ...) convention, else the count of numbers."""
    if len(t.shape) >= 2:
        fans = (math.prod(t.shape[1:]), t.shape[0], math.prod(t.base_shape[1:]), t.base_shape[0])
        m_in, m_out = fans[0] / fans[2], fans[1] / fans[3]
    else:
        fans = (1, 1, 1, 1)
        m_in, m_out = (t.growth if role == "readout" else 1.0), (t.growth if role == "input" else 1.0)
    return Ratios(
        kind="matrix",
        m_in=1.0 if role == "input" else m_in,
        m_out=1.0 if role == "readout" else m_out,
        fans=fans,
    )
