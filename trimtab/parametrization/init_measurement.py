"""Measure, on real weights, the law they were drawn from (docs/theory.md, equations (19), (23)).

The base is measured once, when a parametrization is made, so that a model that had no weights then (meta device)
can be measured when it has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from torch import Tensor, nn

from trimtab.errors import InputError
from trimtab.parametrization import init_laws
from trimtab.parametrization.init_laws import AS_WANTED, Evidence, Law, Moments
from trimtab.parametrization.names import template
from trimtab.parametrization.overrides import Overrides
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.roles import Facts
from trimtab.parametrization.rules import Scheme
from trimtab.structure.trace import adjustable


@dataclasses.dataclass(frozen=True)
class Draw:
    """What is needed to judge one parameter's draw.

    Args:
        twin: its counterpart in the base, and `base`, that tensor's moments (None: all zero).
        laws: the known laws and the ratio to base that each gives.
        pool: parameters with the same key are judged as one; those with the same `kin` (called alike, of one shape), then those
            with the same `sort`, help each other out.
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
    base_params = dict(base.named_parameters(remove_duplicate=False))
    alike: dict[
        str, dict[str, Tensor]
    ] = {}  # twins with one name but for the block: few numbers each, more together
    for f in facts.values():
        if adjustable(base_params[f.twin]):
            alike.setdefault(f"{template(f.twin)} {f.base_shape}", {})[f.twin] = base_params[f.twin].detach()
    width = _extent(facts, m_N)
    draws = {}
    for name, f in facts.items():
        twin = base_params[f.twin]
        measured = moments(twin, rows[name].offset) if adjustable(twin) else None
        partner = facts.get(f.partner) if f.partner is not None else None
        laws = _laws(f, partner, rows[name].init, m_N, frozenset())
        law, forced = said.numbers(name).get("init_law"), None
        if isinstance(law, str):
            if law not in laws:
                raise InputError(
                    f"init_law of {name} must be a number or one of {', '.join(map(repr, laws))}: got {law!r}."
                )
            forced = laws[law].ratio
        elif law is not None:
            forced = float(law)
        default: dict[str, tuple[str, float]] = {}
        if measured is not None:
            largest = float(twin.detach().abs().max())
            default = {
                way: (law, fan)
                for way, law, fan, base_fan in _default_fans(f, partner)
                if init_laws.torch_default(measured, largest, base_fan)
            }
        known = _textbook(measured, f.fans[2:], "lookup" in f.uses, width) & (
            frozenset(laws) if f.kind == "matrix" else {"width"} if partner is None else frozenset()
        )
        laws = _laws(
            f,
            partner,
            rows[name].init,
            m_N,
            known,
            default=bool(default)
            and _may_be_default(
                f, partner, list(alike.get(f"{template(f.twin)} {f.base_shape}", {}).values())
            ),
        )
        pool = f"{template(name)} {f.rank} {f.where} {f.kind} {f.fans} {f.m_L}"
        constant = (
            measured is not None and measured.variance < 1e-12
        )  # gains at 1 say nothing about what is drawn
        sort = f"{f.kind} {'bias' if partner else ''} {'constant' if constant else ''}"
        kin = f"{'.'.join(name.split('.')[-2:])} {f.kind} {f.fans}"
        draws[name] = Draw(f.twin, measured, laws, pool, kin, sort, forced, default)
    return draws


def _extent(facts: Mapping[str, Facts], m_N: float) -> int:
    """The base's main width: the fan that most matrices grow from by m_N."""
    counts: dict[int, int] = {}
    for f in facts.values():
        for m, fan in ((f.m_in, f.fans[2]), (f.m_out, f.fans[3])):
            if f.kind == "matrix" and m == m_N:
                counts[fan] = counts.get(fan, 0) + 1
    return max(counts, key=lambda n: counts[n]) if counts else 1


def _may_be_default(f: Facts, partner: Facts | None, tensors: list[Tensor]) -> bool:
    """All the base's tensors of this name together could be torch's own draw."""
    parts = [m for t in tensors if (m := moments(t, offset=False)) is not None]
    if not parts:
        return False
    together, largest = init_laws.pool(parts), max(float(t.abs().max()) for t in tensors)
    return any(
        init_laws.torch_default(together, largest, base_fan)
        for _, _, _, base_fan in _default_fans(f, partner)
    )


def _default_fans(f: Facts, partner: Facts | None) -> list[tuple[str, str, float, float]]:
    """(way, law, fan of the model, fan of the base) that torch may have drawn a tensor by: its fan-in, or, in a recurrent
    layer with g gates, the hidden size, which is fan_out / g."""
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


def _laws(
    f: Facts, partner: Facts | None, wanted: float, m_N: float, known: frozenset[str], *, default: bool = True
) -> dict[str, Law]:
    fan_in, fan_out, base_in, base_out = f.fans
    return init_laws.candidates(
        kind=f.kind,
        m_in=fan_in / base_in if f.kind == "matrix" else 1.0,
        m_out=f.m_out if f.kind == "elementwise" else fan_out / base_out,
        xavier=((base_in + base_out) / (fan_in + fan_out)) ** 0.5,
        orthogonal=(max(base_in, base_out) / max(fan_in, fan_out)) ** 0.5,
        m_N=m_N,
        m_L=f.m_L,
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


def measure(
    params: Mapping[str, Tensor], rows: Mapping[str, Row], draws: Mapping[str, Draw], scheme: Scheme
) -> tuple[dict[str, tuple[str, float]], list[str]]:
    """{name: (law, ratio to base)} for a model's own draw, and what could not be told."""
    laws: dict[str, tuple[str, float]] = {}
    problems: list[str] = []
    pools: dict[str, list[str]] = {}
    for name in rows:
        draw = draws.get(name)
        if draw is None:
            raise InputError(
                "a parametrization read from JSON resumes training, it does not initialise: build it with parametrize to apply it."
            )
        if not rows[name].uses:
            laws[name] = ("unused", rows[name].init)  # nothing reads it, so nothing is to be judged
            continue
        ratios = [law.ratio for law in draw.laws.values()]
        if not adjustable(params[name]):
            laws[name] = ("not floating point", rows[name].init)  # left alone
        elif draw.forced is not None:
            laws[name] = ("given", draw.forced)
        elif scheme.width == "sp":
            laws[name] = ("as drawn", 1.0)
        elif max(ratios) / min(ratios) < 1 + 1e-12:
            laws[name] = ("fixed", ratios[0])
        else:
            pools.setdefault(draw.pool, []).append(name)
    evidence: dict[str, Evidence] = {}
    settled: dict[str, str] = {}
    defaults: dict[str, bool] = {}  # what torch's own law says: as drawn, or as a parametrization leaves it
    for key, names in pools.items():
        mine = {n: m for n in names if (m := moments(params[n], rows[n].offset)) is not None}
        theirs = {draws[n].twin: m for n in names if (m := draws[n].base) is not None}
        if not mine or not theirs:
            if bool(mine) != bool(theirs):
                problems.append(
                    f"{names[0]} is all zero in {'the base' if mine else 'the model'} only: the two were not initialised by the same code."
                )
            laws |= {n: ("zero", rows[n].init) for n in names}  # nothing to rescale
            continue
        evidence[key] = Evidence.of(
            init_laws.pool(list(mine.values())), init_laws.pool(list(theirs.values())), draws[names[0]].laws
        )
        e = evidence[key]
        for way, (law, _) in draws[names[0]].default.items():
            factor = rows[names[0]].init / e.laws[law].ratio or 1.0
            as_drawn, as_wanted = (_torch_default(way, mine, params, draws, x) for x in (1.0, factor))
            if as_drawn:
                settled[key] = law
            if as_drawn != as_wanted:
                defaults[key] = as_drawn
            if as_drawn or as_wanted:
                break
    before = init_laws.already(
        [e for key, e in evidence.items() if key not in settled], list(defaults.values())
    )
    if before is False:
        evidence = {key: e.without(AS_WANTED) for key, e in evidence.items()}
    for key, e in evidence.items():
        names = pools[key]
        law = AS_WANTED if before and AS_WANTED in e.laws else settled.get(key) or e.snap()
        # Ten biases cannot tell alone, but all the biases together can. A few kin can only where the draw is known to be fresh.
        for company in (("kin", "sort") if before is False else ("sort",)) if law is None else ():
            own = getattr(draws[names[0]], company)
            law = law or init_laws.in_company(
                e, [other for k, other in evidence.items() if getattr(draws[pools[k][0]], company) == own]
            )
        if law is None:
            problems.append(_undecided(names, e))
        else:
            laws |= dict.fromkeys(names, (law, e.laws[law].ratio))
    if before is None:
        problems += _half_done(
            {
                pools[key][0]: (laws[pools[key][0]][0], e, defaults.get(key))
                for key, e in evidence.items()
                if pools[key][0] in laws
            }
        )
    return laws, problems


def _half_done(found: Mapping[str, tuple[str, Evidence, bool | None]]) -> list[str]:
    """A model is parametrized as a whole or not at all: weights that only a parametrization explains beside others still to be rescaled.

    Args:
        found: {name: (law, evidence, whether torch's own law says that it is as drawn)}.
    """
    done, fresh = [], []
    for name, (law, e, as_drawn) in found.items():
        if AS_WANTED not in e.laws:
            continue
        off = {
            k: abs(math.log(other.ratio / e.laws[AS_WANTED].ratio)) > init_laws.SAME
            for k, other in e.laws.items()
        }
        if off[law]:
            fresh.append(name)
        elif as_drawn is False or all(off[k] for k in off if k != AS_WANTED):
            done.append(name)
    if not done or not fresh:
        return []
    return [
        f"{done[0]} is as a parametrization leaves it ({len(done)} such), {fresh[0]} is not ({len(fresh)} such): a model parametrized before and changed since? "
        f"Start from a fresh draw of all; if this is one, say how {done[0]} was drawn: overrides={{'{done[0]}': {{'init_law': its std over the base's}}}}."
    ]


def _torch_default(
    way: str,
    mine: Mapping[str, Moments],
    params: Mapping[str, Tensor],
    draws: Mapping[str, Draw],
    factor: float,
) -> bool:
    """All of these are `factor` times what torch draws by itself in this way, in a base that torch drew."""
    for n, m in mine.items():
        fan = draws[n].default.get(way, ("", None))[1]
        undone = Moments(m.count, m.square / factor**2, m.fourth / factor**4)
        if fan is None or not init_laws.torch_default(
            undone, float(params[n].detach().abs().max()) / factor, fan
        ):
            return False
    return True


def _undecided(names: list[str], e: Evidence) -> str:
    shown: dict[str, str] = {}
    for law in sorted(e.laws, key=e.chi2):
        shown.setdefault(f"{e.laws[law].ratio:.4g}", law)
    nearest = ", ".join(f"{law} ({value})" for value, law in list(shown.items())[:3])
    like = f" and {len(names) - 1} like it" if len(names) > 1 else ""
    return (
        f"{names[0]}{like}: measured {e.ratio:.4g} +- {e.ratio * e.sigma:.2g} times the base's, nearest laws {nearest}. "
        f"Pass overrides={{'{names[0]}': {{'init_law': '{next(iter(shown.values()))}'}}}}, or the ratio as a number."
    )
