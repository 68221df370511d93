"""What one backward at base and one at target say of a plan: arithmetic over sums, no model in sight.

For each **kind** of parameter (one place in the block, all blocks together), target over base:

    gradient = rms g                      wanted  s x k
    change   = sum u |g|   (Adam-like)    wanted  k       what a first step does to L
    sgd      = sum (u/s) g^2              wanted  k^2

The number of entries grows as m_in m_out m_L, u as m_in^-1 m_L^(alpha-1), s as m_out^-1 m_L^-alpha: the
product is 1 for every kind, place, alpha, fold and gamma_0. `k` is 1 but for sums that start incoherent
(`coherence`). A wrong role, tail, fold, constant or count shows as a power of the size.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from trimtab.parametrization.parameters import Row
from trimtab.parametrization.proof.backward import Sums
from trimtab.parametrization.proof.kinds import Kind, called
from trimtab.parametrization.proof.rows import Proof, ProofRow, Verdict

Draw: TypeAlias = tuple[Mapping[str, Sums], Mapping[str, Sums]]  # {parameter: sums}, of model and base

BOUND = (
    1.6  # a kind may be off by this factor, either way: docs/proof.md has misses and false alarms by bound
)
TOTAL = 1.5  # all kinds together
NARROW = 64  # below this width one kind scatters too much: only the total is judged
FEW = 64  # numbers of the base (times cotangents) below which a sum of |g| is chance
SURE = 1.5  # standard errors of the mean of several draws that must lie between a kind and the bound
LEFT = 0.25  # of the gradient of its weight: what is left of a bias's where its shares cancel, else about 1
FAINT = 1e-6  # of the largest entry's rms: a gradient that is rounding (key biases under softmax)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a proof knows beside the sums.

    Args:
        claimed: whether the scheme claims the axes that change.
        far: why the base is far from its deep limit, empty where it is near.
        narrow: one of the two is too narrow to judge kinds one by one.
        frozen: parameters that are not trained.
        expected: {parameter: (low, high)} of `coherence`.
        spans: {parameter: (low, high)} that a base far from its limit may add (`deep_limit`).
        uses: {parameter: how often a forward uses it}, of the model; `base_uses`: of the base.
        weights: {bias: the weight beside it}, of the model and of the base.
    """

    claimed: bool
    far: str
    narrow: bool
    frozen: frozenset[str]
    expected: Mapping[str, tuple[float, float]]
    spans: Mapping[str, tuple[float, float]]
    uses: Mapping[str, int] = dataclasses.field(default_factory=dict)
    base_uses: Mapping[str, int] = dataclasses.field(default_factory=dict)
    weights: tuple[Mapping[str, str], Mapping[str, str]] = dataclasses.field(default_factory=lambda: ({}, {}))

    def growth(self, kind: Kind) -> float:
        """How many times more often a forward of the model uses a kind; a shared tensor is used by each
        block."""
        theirs = (*kind.grown, *kind.left)
        return sum(self.uses.get(n, 1) for n in kind.names) / sum(self.base_uses.get(b, 1) for b in theirs)

    def range(self, names: Sequence[str]) -> tuple[float, float]:
        """What the structure allows for a first gradient over what the rules give."""
        ends = [self.expected.get(n, (1.0, 1.0)) for n in names]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def span(self, names: Sequence[str]) -> tuple[float, float]:
        """What a base far from its limit allows besides."""
        ends = [self.spans.get(n, (1.0, 1.0)) for n in names]
        return min(low for low, _ in ends), max(high for _, high in ends)


def judged(
    rows: Mapping[str, Row],
    groups: list[Kind],
    draws: Sequence[Draw],
    starts: tuple[Mapping[str, float], Mapping[str, float]],
    claim: Claim,
    *,
    step: float = 0.0,
) -> Proof:
    """The proof of a plan from the sums of two backward passes.

    Args:
        draws: the sums in model and base; where there are several, their mean is judged, and a kind whose
            draws scatter so much that the mean could lie within the bound is "untested".
        step: the sums are those of an optimizer's step, which carries its own factors: how it answers to the
            gradient, 1 (its sum g d grows as |g|, as Adam's) or 2 (as g^2, as SGD's); 0 where u is still to
            be multiplied in.
    """
    target, base = (_added(sums) for sums in zip(*draws, strict=True))
    loudest = max((x.rms for x in base.values()), default=0.0)
    chancy = _chancy(rows, groups, target, base)
    shares = _shares(rows, groups, claim)
    made = []
    total_target = total_base = total_far = 0.0
    for kind, share in zip(groups, shares, strict=True):
        pool = _pooled(rows, kind, target, base, step)
        scatter = _scatter([_pooled(rows, kind, *draw, step) for draw in draws])
        row = _row(rows, kind, pool, scatter, _start(kind, starts), claim, loudest, chancy, share)
        if row.verdict == "wrong" and kind.ends is not kind:
            at_ends = _pooled(rows, kind.ends, target, base, step)
            other = _row(rows, kind, at_ends, scatter, row.start, claim, loudest, chancy, share)
            if other.verdict in ("good", "far from its limit"):
                row = dataclasses.replace(row, verdict="far from its limit", cause=UNLIKE)
        if row.verdict == "wrong" and _cancels(kind, (target, base), claim):
            row = dataclasses.replace(row, verdict="untested", cause=CANCELS)
        made.append(row)
        if row.change is not None and row.verdict != "untested" and not set(kind.names) <= claim.frozen:
            off = row.change / row.wanted
            total_target += pool.weight * off
            total_far += pool.weight * off / _nearest(off, claim.span(kind.names))
            total_base += pool.weight
    if not total_base or not total_target:
        reason = "no kind of parameter has a gradient in both models"
        return Proof(tuple(made), None, reason)
    return Proof(tuple(made), _total(total_target / total_base, total_far / total_base, made, claim))


def _cancels(kind: Kind, sums: tuple[Mapping[str, Sums], Mapping[str, Sums]], claim: Claim) -> bool:
    """Whether the gradient of a kind of biases is a small rest beside that of their weights, in either model.

    Both sum the same terms over positions, for the weights times inputs. The one of biases is small
    where the terms add up to nothing: a shift of all keys under a softmax, but for a norm or a soft cap."""
    names = kind.names, (*kind.grown, *kind.left)
    for here, of, weights in zip(names, sums, claim.weights, strict=True):
        pairs = [(of[n].square, of[w].rms) for n in here if (w := weights.get(n, "")) in of and n in of]
        count = sum(of[n].count for n in here if weights.get(n, "") in of and n in of)
        beside = math.hypot(*(rms for _, rms in pairs)) / max(len(pairs), 1) ** 0.5
        if pairs and math.sqrt(sum(square for square, _ in pairs) / count) < LEFT * beside:
            return True
    return False


def _shares(rows: Mapping[str, Row], groups: list[Kind], claim: Claim) -> list[float]:
    """The part of its stack's change that each kind keeps: its growth over that of the kinds there which grow
    as the stack's branches do, nearest to m_L. A block is one of m_L times more, so what only the last one
    has, or what lies between two stages of one stream, moves the output by 1/m_L of what it did; and what all
    but the first have, by more than it did."""
    first = [rows[kind.names[0]] for kind in groups]
    places = [None if row.stack is None else (row.stack, row.m_L) for row in first]
    growths: dict[tuple[str, float] | None, list[float]] = {}
    for kind, place in zip(groups, places, strict=True):
        growths.setdefault(place, []).append(claim.growth(kind))
    usual = {
        k: 0.0 if k is None else min(found, key=lambda g, m_L=k[1]: abs(math.log(g / m_L)))
        for k, found in growths.items()
    }
    together = zip(groups, places, strict=True)
    return [claim.growth(kind) / usual[k] if usual[k] > 1 else 1.0 for kind, k in together]


def _added(sums: Sequence[Mapping[str, Sums]]) -> Mapping[str, Sums]:
    """The sums of several draws together."""
    if len(sums) == 1:
        return sums[0]
    names = dict.fromkeys(n for one in sums for n in one)
    return {n: functools.reduce(Sums.__add__, (one[n] for one in sums if n in one)) for n in names}


def _scatter(pools: Sequence[_Pool]) -> float:
    """Standard error of the mean log ratio over draws; 0 of a single one, about which nothing is known."""
    found = 0.0
    for ratios in ([p.change for p in pools], [p.gradient for p in pools]):
        logs = [math.log(x) for x in ratios if x > 0]
        if len(logs) > 1:
            found = max(found, statistics.stdev(logs) / math.sqrt(len(logs)))
    return found


def _chancy(
    rows: Mapping[str, Row], groups: list[Kind], target: Mapping[str, Sums], base: Mapping[str, Sums]
) -> set[str | None]:
    """Branches of which the example uses a part (experts): how many tokens each part gets is chance."""
    unused = set[str]()
    for kind in groups:
        if any(n in target for n in kind.names):  # else nothing of the kind takes part
            for b, names in kind.grown.items():
                unused |= {n for n in names if n not in target or target[n].square == 0 or b not in base}
    used = {rows[n].branch for kind in groups for n in kind.names if n not in unused}
    return {rows[n].branch for n in unused if rows[n].branch} & used


@dataclasses.dataclass(frozen=True)
class _Pool:
    """Ratios of a kind, tensor by tensor against its twin, weighted by the twin's part of the base; `weight`:
    sum |g| there."""

    change: float
    sgd: float
    gradient: float
    entries: int
    weight: float
    rms: float  # in the base


def _pooled(
    rows: Mapping[str, Row], kind: Kind, target: Mapping[str, Sums], base: Mapping[str, Sums], step: float
) -> _Pool:
    change = sgd = square = size = twin_square = 0.0
    entries = 0
    for b, names in kind.grown.items():
        x, mine = base.get(b), [(rows[n], target[n]) for n in names if n in target]
        if x is None or not mine:
            continue
        change += sum((1.0 if step else r.u) * t.size for r, t in mine) / len(mine)
        sgd += sum(r.u / r.s * t.square for r, t in mine) / len(mine)
        square += x.count * sum(t.square / t.count for _, t in mine) / len(mine)
        size, twin_square = size + x.size, twin_square + x.square
        entries += x.count
    if not size or not twin_square:
        return _Pool(0.0, 0.0, 0.0, 0, 0.0, 0.0)
    return _Pool(
        change=(kind.growth * change / size) ** (1 / step if step else 1.0),
        sgd=kind.growth * sgd / twin_square,
        gradient=math.sqrt(square / twin_square),
        entries=entries,
        weight=size,
        rms=math.sqrt(twin_square / entries),
    )


def _start(kind: Kind, starts: tuple[Mapping[str, float], Mapping[str, float]]) -> float | None:
    ratios = [
        starts[0][n] / starts[1][b]
        for b, names in kind.grown.items()
        for n in names
        if n in starts[0] and starts[1].get(b)
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios and min(ratios) > 0 else None


def _row(
    rows: Mapping[str, Row],
    kind: Kind,
    pool: _Pool,
    scatter: float,
    start: float | None,
    claim: Claim,
    loudest: float,
    chancy: set[str | None],
    share: float,
) -> ProofRow:
    names = kind.names
    first = rows[names[0]]
    s = math.sqrt(sum(rows[n].s ** 2 for n in names) / len(names))
    low, high = claim.range(names)
    row = ProofRow(
        kind=called(names),
        role=first.role,
        place=first.place,
        count=len(names),
        start=start,
        gradient=None,
        change=None,
        sgd=None,
        wanted=share * high,
        wanted_gradient=s * high,
        verdict="untested",
    )
    if not pool.entries or not pool.change:
        return dataclasses.replace(row, cause="this example's output does not depend on it")
    if pool.rms <= FAINT * loudest:
        return dataclasses.replace(row, cause="it has no gradient at the start")
    row = dataclasses.replace(
        row,
        change=pool.change,
        gradient=pool.gradient,
        sgd=pool.sgd,
        entries=pool.entries,
        span=claim.span(names),
        scatter=scatter,
        wanted=_nearest(pool.change, (share * low, share * high)),
        wanted_gradient=s * _nearest(pool.gradient / s, (low, high)),
    )
    if chancy & {rows[n].branch for n in names}:
        return dataclasses.replace(
            row, cause="this example uses a part of its branch (experts): a chance count"
        )
    ratios = (pool.change, row.wanted), (pool.gradient, row.wanted_gradient)
    if any(not (x > 0 and y > 0) for x, y in ratios):
        return dataclasses.replace(row, cause="a gradient that is 0 in one of the two models")
    off = max(abs(math.log(x / y)) for x, y in ratios)
    beyond = max(abs(math.log(x / y / _nearest(x / y, row.span))) for x, y in ratios)
    verdict, cause = _verdict(off, beyond, pool.entries, set(names) <= claim.frozen, claim)
    if verdict == "wrong" and off - SURE * scatter <= math.log(BOUND):
        verdict, cause = "untested", f"draws of its weights scatter too much (standard error {scatter:.0%})"
    if verdict == "wrong":
        cause = likely(row)
    return dataclasses.replace(row, verdict=verdict, cause=cause)


def _nearest(x: float, ends: tuple[float, float]) -> float:
    """The number of a range that is nearest to x.

    >>> [_nearest(x, (0.5, 1.0)) for x in (0.1, 0.7, 3.0)]
    [0.5, 0.7, 1.0]
    """
    return min(max(x, ends[0]), ends[1])


STEEP = (
    "single branches of the base make most of its stream at the start; the many that take the place of one "
    "in a deeper model go over the same way in small steps, and start otherwise"
)


CANCELS = (
    "what it does to one position and to another all but cancels at the start (a shift of all keys), and the "
    "rest has a law of its own"
)


UNLIKE = (
    "the first or the last of the base's few blocks is unlike the others (a stream that is small before its "
    "first norm); a deeper model has it once too, among more"
)


def _verdict(off: float, beyond: float, entries: int, frozen: bool, claim: Claim) -> tuple[Verdict, str]:
    """The verdict of a kind that is off by exp(off); by exp(beyond), were the base far from its limit."""
    if frozen:
        return "not claimed", "it is frozen"
    if not claim.claimed:
        return "not claimed", "the scheme leaves an axis that differs alone"
    if off <= math.log(BOUND):
        return "good", ""
    if entries < FEW:
        return "untested", f"{entries} numbers in the base are too few: their gradient is chance"
    if claim.narrow:
        return "untested", f"narrower than {NARROW}: only the total is judged"
    if claim.far:
        return "far from its limit", claim.far
    if beyond <= math.log(BOUND):
        return "far from its limit", STEEP
    return "wrong", ""


def _total(change: float, beyond: float, made: list[ProofRow], claim: Claim) -> ProofRow:
    off = abs(math.log(change))
    verdict: Verdict = "good"
    cause = ""
    if not claim.claimed:
        verdict, cause = "not claimed", "the scheme leaves an axis that differs alone"
    elif off > math.log(TOTAL):
        verdict, cause = (
            "wrong",
            "all kinds together: a constant or a sum over the width is not what the plan takes it for",
        )
        if claim.far or abs(math.log(beyond)) <= math.log(TOTAL):
            verdict, cause = "far from its limit", claim.far or STEEP
    return ProofRow(
        kind="total",
        role="",
        place="",
        count=sum(row.count for row in made),
        start=None,
        gradient=None,
        change=change,
        sgd=None,
        wanted=1.0,
        wanted_gradient=1.0,
        verdict=verdict,
        cause=cause,
        span=(min(1.0, change / beyond), max(1.0, change / beyond)),
    )


def likely(row: ProofRow) -> str:
    """What a kind's ratios point at, in words."""
    assert row.change is not None and row.gradient is not None
    change, gradient = row.change / row.wanted, row.gradient / row.wanted_gradient
    if abs(math.log(gradient)) <= math.log(BOUND):
        return (
            "its gradient is as planned and its step is not: its role (fan-in) or its place may be taken for "
            "another"
        )
    if abs(math.log(change)) <= math.log(BOUND):
        return "its step is as planned and its gradient is not: eps, SGD's rate and clipping would be off"
    way = "smaller" if gradient < 1 else "larger"
    return (
        f"its gradient is {way} than planned: a constant, a norm, a sum over the width or a number of "
        "parallel paths that "
        "grows with the size, or a tail or fold in the wrong place"
    )
