"""Measure, on real weights, the law they were drawn from (docs/theory.md, equations (19), (23)).

Parameters of one kind are pooled (`Pool`), each pool's ratio to the base is compared with the known laws, and
all pools are judged together: a model is parametrized as a whole or not at all.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping

from torch import Tensor

from trimtab.errors import InputError, Proposal
from trimtab.parametrization.comparison.names import pattern
from trimtab.parametrization.initialization import init_laws
from trimtab.parametrization.initialization.base_draws import Draw, moments
from trimtab.parametrization.initialization.init_laws import AS_WANTED, Evidence, Moments
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.rules import Scheme
from trimtab.structure.trace import adjustable


@dataclasses.dataclass(frozen=True)
class Open:
    """What the numbers leave open of some parameters, and overrides that might settle it."""

    text: str
    proposals: tuple[Proposal, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Pool:
    """Parameters judged as one, and what their numbers say.

    Args:
        settled: the law, where it is torch's own draw to the number.
        as_drawn: what torch's own law says: still as drawn, or as a parametrization leaves it. None: it
            cannot say.
    """

    names: list[str]
    evidence: Evidence
    kin: str
    sort: str
    settled: str | None
    as_drawn: bool | None


def measure(
    params: Mapping[str, Tensor], rows: Mapping[str, Row], draws: Mapping[str, Draw], scheme: Scheme
) -> tuple[dict[str, tuple[str, float]], list[Open]]:
    """{name: (law, ratio to base)} for a model's own draw, and what the numbers leave open."""
    laws: dict[str, tuple[str, float]] = {}
    names: dict[str, list[str]] = {}
    for name, row in rows.items():
        if name not in draws:
            raise InputError(
                "a parametrization read from JSON resumes training, it does not initialise: build it with "
                "parametrize to apply it."
            )
        clear = _clear_law(params[name], row, draws[name], scheme)
        if clear is not None:
            laws[name] = clear
        else:
            names.setdefault(draws[name].pool, []).append(name)
    pools: list[Pool] = []
    problems: list[Open] = []
    for members in names.values():
        pool, problem = _pool(members, params, rows, draws)
        problems += problem
        if pool is not None:
            pools.append(pool)
        else:  # nothing to rescale
            laws |= {n: ("zero", rows[n].init) for n in members}
    found, undecided = _judge(pools, list(rows))
    return laws | found, problems + undecided


def _clear_law(p: Tensor, row: Row, draw: Draw, scheme: Scheme) -> tuple[str, float] | None:
    """The law and its ratio where nothing has to be measured."""
    ratios = [law.ratio for law in draw.laws.values()]
    if not row.uses:
        return "unused", row.init  # nothing reads it, so nothing is to be judged
    if not adjustable(p):
        return "not floating point", row.init  # left alone
    if draw.forced is not None:
        return "given", draw.forced
    if scheme.width == "sp":
        return "as drawn", 1.0
    return ("fixed", ratios[0]) if max(ratios) / min(ratios) < 1 + 1e-12 else None


def _pool(
    names: list[str], params: Mapping[str, Tensor], rows: Mapping[str, Row], draws: Mapping[str, Draw]
) -> tuple[Pool | None, list[Open]]:
    """What the numbers of some parameters say together; None where all are zero."""
    first = names[0]
    mine = {n: m for n in names if (m := moments(params[n], rows[n].offset)) is not None}
    theirs = {draws[n].twin: m for n in names if (m := draws[n].base) is not None}
    if not mine or not theirs:
        where = "the base" if mine else "the model"
        fault = f"{first} is all zero in {where} only: the two were not initialised by the same code."
        return None, [Open(fault)] if bool(mine) != bool(theirs) else []
    target, base = (init_laws.pool(list(each.values())) for each in (mine, theirs))
    evidence = Evidence.of(target, base, draws[first].laws)
    settled, says = None, None
    for way, (law, _) in draws[first].default.items():
        factor = rows[first].init / evidence.laws[law].ratio or 1.0
        as_drawn, as_wanted = (_torch_default(way, mine, params, draws, x) for x in (1.0, factor))
        settled = law if as_drawn else settled
        says = as_drawn if as_drawn != as_wanted else says
        if as_drawn or as_wanted:
            break
    pool = Pool(
        names=names,
        evidence=evidence,
        kin=draws[first].kin,
        sort=draws[first].sort,
        settled=settled,
        as_drawn=says,
    )
    return pool, []


def _judge(pools: list[Pool], every: list[str]) -> tuple[dict[str, tuple[str, float]], list[Open]]:
    """The law of each pool, all of them seen together, and what stays open. `every`: all parameters."""
    before = init_laws.already(
        [pool.evidence for pool in pools if pool.settled is None],
        [pool.as_drawn for pool in pools if pool.as_drawn is not None],
    )
    if before is False:
        pools = [dataclasses.replace(p, evidence=p.evidence.without(AS_WANTED)) for p in pools]
    laws: dict[str, tuple[str, float]] = {}
    problems: list[Open] = []
    for pool in pools:
        law = _law(pool, pools, before)
        if law is None:
            problems.append(_undecided(pool.names, pool.evidence, every))
        else:
            laws |= dict.fromkeys(pool.names, (law, pool.evidence.laws[law].ratio))
    if before is None:
        heads = {pool.names[0]: pool for pool in pools if pool.names[0] in laws}
        problems += _half_done({n: (laws[n][0], pool.evidence, pool.as_drawn) for n, pool in heads.items()})
    return laws, problems


def _law(pool: Pool, pools: list[Pool], before: bool | None) -> str | None:
    """The law of one pool; where its numbers are too few, in the company of others.

    Ten biases cannot tell alone, but all the biases together can. A few kin can only where the draw is known
    to be fresh.
    """
    evidence = pool.evidence
    if before and AS_WANTED in evidence.laws:
        return AS_WANTED
    law = pool.settled or evidence.snap()
    if law is None and before is False:
        law = init_laws.in_company(evidence, [p.evidence for p in pools if p.kin == pool.kin])
    return law or init_laws.in_company(evidence, [p.evidence for p in pools if p.sort == pool.sort])


def _half_done(found: Mapping[str, tuple[str, Evidence, bool | None]]) -> list[Open]:
    """A model is parametrized as a whole or not at all: weights that only a parametrization explains beside
    others still to be rescaled.

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
        Open(
            f"{done[0]} is as a parametrization leaves it ({len(done)} such), {fresh[0]} is not "
            f"({len(fresh)} such): a model parametrized before and changed since? "
            f"Start from a fresh draw of all; if this is one, say how {done[0]} was drawn: "
            f"overrides={{'{done[0]}': {{'init_law': its std over the base's}}}}."
        )
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


def _undecided(names: list[str], e: Evidence, every: list[str]) -> Open:
    shown: dict[str, str] = {}
    for law in sorted(e.laws, key=e.chi2):
        shown.setdefault(f"{e.laws[law].ratio:.4g}", law)
    nearest = ", ".join(f"{law} ({value})" for value, law in list(shown.items())[:3])
    like = f" and {len(names) - 1} like it" if len(names) > 1 else ""
    # set, not drawn: the ratio is exact, whatever the law
    exact = [float(f"{e.ratio:.6g}")] if e.sigma < 2 * init_laws.FLOOR else []
    laws = [*exact, *list(shown.values())[:3]]
    proposals = [_for_all(names, every, law) for law in laws]
    text = (
        f"{names[0]}{like}: measured {e.ratio:.4g} +- {e.ratio * e.sigma:.2g} times the base's, nearest "
        f"laws {nearest}. Say the 'init_law' of {', '.join(map(repr, proposals[0]))}, by name or as a number."
    )
    return Open(text, tuple(proposals))


def _for_all(names: list[str], every: list[str], law: str | float) -> dict[str, dict[str, str | float]]:
    """An override that says the law of all of these and of nothing else."""
    by_pattern = pattern(names[0])
    exact = {name for name in every if fnmatch.fnmatchcase(name, by_pattern)} == set(names)
    return {name: {"init_law": law} for name in ([by_pattern] if exact else names)}
