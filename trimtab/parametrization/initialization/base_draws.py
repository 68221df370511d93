"""What the base says of how each parameter was drawn: its moments, and the laws that may explain the model's.

The base is measured once, when a parametrization is made, so that a model that had no weights then (meta
device) can be measured when it has (`init_measurement`). See docs/theory.md, equations (19) and (23).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn

from trimtab.errors import InputError
from trimtab.parametrization.comparison.names import template
from trimtab.parametrization.comparison.overrides import Overrides
from trimtab.parametrization.comparison.roles import Facts
from trimtab.parametrization.initialization import init_laws
from trimtab.parametrization.initialization.init_laws import Law, Moments
from trimtab.parametrization.parameters import Row
from trimtab.structure.trace import adjustable

MANY = 1000  # numbers that tell a depth law from none at a glance


@dataclasses.dataclass(frozen=True)
class Draw:
    """What is needed to judge one parameter's draw.

    Args:
        twin: its counterpart in the base, and `base`, that tensor's moments (None: all zero).
        laws: the known laws and the ratio to base that each gives.
        pool: parameters with the same key are judged as one; those with the same `kin` (called alike, of one
            shape), then those with the same `sort`, help each other out.
        forced: the user's own ratio.
        default: the ways in which the base's tensor is torch's own draw: {way: (law, the model's fan)}.
    """

    twin: str
    base: Moments | None
    laws: dict[str, Law]
    pool: str
    kin: str
    sort: str
    forced: float | None
    default: dict[str, tuple[str, float]]


def moments(p: Tensor, offset: bool) -> Moments | None:
    """Moments of a parameter, of 1 + w where that is the gain; None where all is zero."""
    x = p.detach().double() + (1.0 if offset else 0.0)
    square = float(x.pow(2).mean())
    return (
        Moments(x.numel(), square, float(x.pow(4).mean())) if square > 0 and math.isfinite(square) else None
    )


def prepare(
    facts: Mapping[str, Facts], rows: Mapping[str, Row], base: nn.Module, said: Overrides, m_N: float
) -> dict[str, Draw]:
    """Measure the base and list the laws for each parameter of the model."""
    found = _Measured(facts, base)
    width, depth = _extent(facts, m_N), _main_depth(facts)
    draws: dict[str, Draw] = {}
    for name, f in facts.items():
        partner = facts.get(f.partner) if f.partner is not None else None
        measured = found.moments(f.twin, rows[name].offset)
        default = _torch_ways(f, partner, measured, found.largest(f.twin))
        laws = _laws(f, partner, rows[name].init, m_N, frozenset(), depth=depth)
        known = _textbook(measured, f.fans[2:], "lookup" in f.uses, width)
        known &= frozenset(laws) if f.kind == "matrix" else {"width"} if partner is None else frozenset()
        by_torch = bool(default) and _may_be_default(f, partner, found)
        # gains at 1 say nothing of what is drawn
        constant = measured is not None and measured.variance < 1e-12
        draws[name] = Draw(
            twin=f.twin,
            base=measured,
            laws=_laws(f, partner, rows[name].init, m_N, known, default=by_torch, depth=depth),
            pool=f"{template(name)} {f.rank} {f.where} {f.kind} {f.fans} {f.m_L}",
            kin=f"{'.'.join(name.split('.')[-2:])} {f.kind} {f.fans}",
            sort=f"{f.kind} {'bias' if partner else ''} {'constant' if constant else ''}",
            forced=_forced(name, said, laws),
            default=default,
        )
    return draws


class _Measured:
    """The numbers of the base's tensors, each measured once: several blocks of the model have one twin."""

    def __init__(self, facts: Mapping[str, Facts], base: nn.Module):
        held = dict(base.named_parameters(remove_duplicate=False))
        twins = dict.fromkeys(f.twin for f in facts.values())
        self._tensors = {twin: held[twin].detach() for twin in twins if adjustable(held[twin])}
        self._moments: dict[tuple[str, bool], Moments | None] = {}
        self._largest: dict[str, float] = {}
        # twins called alike in every block: few numbers each, more together
        self.alike: dict[str, dict[str, None]] = {}
        for f in facts.values():
            if f.twin in self._tensors:
                self.alike.setdefault(_called(f), {})[f.twin] = None

    def moments(self, twin: str, offset: bool) -> Moments | None:
        """None where all is zero, or nothing that is measured."""
        if (twin, offset) not in self._moments:
            tensor = self._tensors.get(twin)
            self._moments[twin, offset] = moments(tensor, offset) if tensor is not None else None
        return self._moments[twin, offset]

    def largest(self, twin: str) -> float:
        if twin not in self._largest:
            tensor = self._tensors.get(twin)
            self._largest[twin] = float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0
        return self._largest[twin]


def _called(f: Facts) -> str:
    return f"{template(f.twin)} {f.base_shape}"


def _forced(name: str, said: Overrides, laws: Mapping[str, Law]) -> float | None:
    """The ratio that the user's override gives, by number or by the name of a law."""
    law = said.numbers(name).get("init_law")
    if not isinstance(law, str):
        return None if law is None else float(law)
    if law not in laws:
        raise InputError(
            f"init_law of {name} must be a number or one of {', '.join(map(repr, laws))}: got {law!r}."
        )
    return laws[law].ratio


def _torch_ways(
    f: Facts, partner: Facts | None, measured: Moments | None, largest: float
) -> dict[str, tuple[str, float]]:
    """The ways in which the base's tensor is torch's own draw: {way: (law, the model's fan)}."""
    if measured is None:
        return {}
    return {
        way: (law, fan)
        for way, law, fan, base_fan in _default_fans(f, partner)
        if init_laws.torch_default(measured, largest, base_fan)
    }


def _extent(facts: Mapping[str, Facts], m_N: float) -> int:
    """The base's main width: the fan that most matrices grow from by m_N."""
    counts: dict[int, int] = {}
    for f in facts.values():
        for m, fan in ((f.m_in, f.fans[2]), (f.m_out, f.fans[3])):
            if f.kind == "matrix" and m == m_N:
                counts[fan] = counts.get(fan, 0) + 1
    return max(counts, key=lambda n: counts[n]) if counts else 1


def _may_be_default(f: Facts, partner: Facts | None, found: _Measured) -> bool:
    """All the base's tensors of this name together could be torch's own draw."""
    twins = found.alike.get(_called(f), {})
    parts = [m for t in twins if (m := found.moments(t, offset=False)) is not None]
    if not parts:
        return False
    together, largest = init_laws.pool(parts), max(map(found.largest, twins))
    return any(
        init_laws.torch_default(together, largest, base_fan)
        for _, _, _, base_fan in _default_fans(f, partner)
    )


def _default_fans(f: Facts, partner: Facts | None) -> list[tuple[str, str, float, float]]:
    """(way, law, fan of the model, fan of the base) that torch may have drawn a tensor by: its fan-in, or, in
    a recurrent layer with g gates, the hidden size, which is fan_out / g."""
    by_fan_in = f if f.kind == "matrix" else partner
    fans: list[tuple[str, str, float, float]] = (
        [("fan_in", "fan_in", by_fan_in.fans[0], by_fan_in.fans[2])] if by_fan_in else []
    )
    if by_fan_in and len(by_fan_in.shape) > 2:  # a transposed convolution: torch takes its outputs for inputs
        kernels = math.prod(by_fan_in.shape[2:]), math.prod(by_fan_in.base_shape[2:])
        fans.append(("transposed", "fan_out", by_fan_in.fans[1] * kernels[0], by_fan_in.fans[3] * kernels[1]))
    return fans + [
        (f"{gates} gates", "fan_out", f.fans[1] / gates, f.fans[3] / gates)
        for gates in (1, 3, 4)
        if f.kind == "matrix" or partner is not None
    ]


def _main_depth(facts: Mapping[str, Facts]) -> float:
    """The depth ratio that most parameters in branches share."""
    counts = Counter(f.m_L for f in facts.values() if f.where != "outside")
    return counts.most_common(1)[0][0] if counts else 1.0


def _laws(
    f: Facts,
    partner: Facts | None,
    wanted: float,
    m_N: float,
    known: frozenset[str],
    *,
    default: bool = True,
    depth: float = 1.0,
) -> dict[str, Law]:
    """The laws that may explain a tensor. `depth`: the model's ratio, which a matrix outside all branches may
    be drawn by too (a head that is drawn like the tails)."""
    fan_in, fan_out, base_in, base_out = f.fans
    many = f.kind == "matrix" and math.prod(f.base_shape) >= MANY
    return init_laws.candidates(
        kind=f.kind,
        m_in=fan_in / base_in if f.kind == "matrix" else 1.0,
        m_out=f.m_out if f.kind == "elementwise" else fan_out / base_out,
        xavier=((base_in + base_out) / (fan_in + fan_out)) ** 0.5,
        orthogonal=(max(base_in, base_out) / max(fan_in, fan_out)) ** 0.5,
        m_N=m_N,
        m_L=depth if f.where == "outside" and many else f.m_L,
        tail=f.where == "tail",
        wanted=wanted,
        partner=partner.fans[0] / partner.fans[2] if partner else None,
        known=known,
        default=default,
    )


def _textbook(m: Moments | None, fans: tuple[int, ...], lookup: bool, width: int) -> frozenset[str]:
    if m is None:
        return frozenset()
    return frozenset(
        law
        for law, stds in init_laws.textbook(fans[0], fans[1], lookup, width).items()
        if any(init_laws.within(m, std) for std in stds)
    )
