"""How a parameter's place grows with depth: m_L of its stack, how often it is reused, tails at zero.

    m_L = branches of the stack in the model / in the base          (docs/theory.md, equation (10))

A parameter that feeds stacks of different growth counts as outside: alpha = 1 and m_U cancel in each. One
that feeds as many branches in the base comes with its block (two streams, one of which ends a block earlier):
it gets the geometric mean of their growth.
"""

from __future__ import annotations

import dataclasses
import math

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.pairing import Pairing
from trimtab.parametrization.rules import Where
from trimtab.structure.graph import Graph
from trimtab.structure.residuals import Residual

NEARLY_ZERO = 1e-2  # a LayerScale of 1e-6 to 1e-4 counts as a tail that starts at zero


@dataclasses.dataclass(frozen=True, slots=True)
class Depth:
    """The place of one parameter and what depth does to it.

    Args:
        where: "outside" | "branch" | "tail" | "stream".
        m_L: depth ratio of its stack.
        branches: the residual adds it feeds.
        reuse: how many times more often a shared parameter is used.
        zero_tail: every tail of its branches starts at zero.
        outer: (place, m_L) in the branches around its own.
        experts: how many times more experts a mixture has, of a parameter of one of them.
    """

    where: Where = "outside"
    m_L: float = 1.0
    branches: tuple[int, ...] = ()
    stack: int | None = None
    reuse: float = 1.0
    zero_tail: bool = False
    outer: tuple[tuple[Where, float], ...] = ()
    experts: float = 1.0


@dataclasses.dataclass(frozen=True)
class Depths:
    """Both models, paired, with the depth ratio of each stack and the branches that start at zero."""

    model: Graph
    base: Graph
    pairing: Pairing
    ratios: tuple[float, ...]
    at_zero: frozenset[int]

    @classmethod
    def of(cls, model: Graph, base: Graph, pairing: Pairing) -> Depths:
        ratios = tuple(depth_ratios(pairing))
        at_zero = frozenset(r.index for r in model.residuals if _starts_at_zero(model, base, pairing, r))
        return cls(model=model, base=base, pairing=pairing, ratios=ratios, at_zero=at_zero)

    def at(self, name: str, twin: str) -> Depth:
        """The depth of a parameter, `twin` being its counterpart in the base."""
        place, base_place = self.pairing.places[name], self.pairing.base_places.get(twin)
        if place.stream is not None:
            uses = [max(1, len(g.uses[n])) / g.flow.packed(n) for g, n in self._both(name, twin)]
            reuse = uses[0] / uses[1]
            m_L = self.ratios[place.stream]
            return Depth(where="stream", stack=place.stream, m_L=m_L, reuse=reuse)
        stacks = {self.model.residuals[i].stack for i in place.branches}
        with_block = base_place is not None and len(place.branches) == len(base_place.branches)
        if not stacks or (len({self.ratios[k] for k in stacks}) > 1 and not with_block):
            return Depth()
        stack = min(stacks)
        growth = math.prod(self.ratios[k] for k in stacks) ** (1 / len(stacks))
        m_L, uses, experts = self._paths(place.branches, name)
        slices = [g.flow.packed(n) for g, n in self._both(name, twin)]
        fed, base_fed = (
            len(place.branches) / slices[0],
            (len(base_place.branches) / slices[1] if base_place else 0),
        )
        tail = bool(place.tail_of) and set(place.tail_of) == set(place.branches)
        return Depth(
            where="tail" if tail else "branch",
            branches=place.branches,
            stack=stack,
            m_L=(self.ratios[stack] if len(stacks) == 1 else growth) * m_L,
            reuse=uses * (fed / max(1, base_fed) if fed > 1 or base_fed > 1 else 1.0),
            experts=experts,
            zero_tail=self.at_zero.issuperset(place.branches),
            outer=self._outer(place.branches[0], name) if fed == 1 else (),
        )

    def _both(self, name: str, twin: str) -> tuple[tuple[Graph, str], tuple[Graph, str]]:
        return (self.model, name), (self.base, twin)

    def _paths(self, branches: tuple[int, ...], name: str) -> tuple[float, float, float]:
        """What a growing number of paths adds: to m_L, to the uses of what they share, in experts."""
        if len(branches) != 1 or branches[0] not in self.pairing.paths:
            return 1.0, 1.0, 1.0
        here, there = self.pairing.paths[branches[0]]
        ratio, own = here.count / there.count, name in here.own
        if here.mixed:
            return 1.0, 1.0, ratio if own else 1.0
        return ratio, 1.0 if own else ratio, 1.0

    def _outer(self, index: int, name: str) -> tuple[tuple[Where, float], ...]:
        around = [self.model.residuals[i] for i in self.model.network.enclosing(index)]
        return tuple(
            ("tail" if any(site.name == name for site in r.tail) else "branch", self.ratios[r.stack])
            for r in around
        )


def depth_ratios(pairing: Pairing) -> list[float]:
    """m_L of each stack (docs/theory.md, equation (10)).

    Raises:
        StructureError: one stack grows and another shrinks, so neither model is the deeper one.
    """
    ratios = [n / b for n, b in pairing.counts]
    if any(r > 1 for r in ratios) and any(r < 1 for r in ratios):
        counts, base_counts = (list(each) for each in zip(*pairing.counts, strict=True))
        raise StructureError(
            f"a base must be shallower (or deeper) in every stack: the model has {counts} branches per "
            f"stack, the base {base_counts}. Choose a base that is the smaller one in each stage."
        )
    return ratios


def _starts_at_zero(model: Graph, base: Graph, pairing: Pairing, residual: Residual) -> bool:
    """By the numbers of the tail; by those of its twin in the base where the model is on meta."""
    graph, tail = model, residual.tail
    if not graph.trace.real:
        twin = pairing.branch_twin.get(residual.index)
        graph, tail = base, base.residuals[twin].tail if twin is not None else {}
    if not tail or not graph.trace.real:
        return False
    for site in tail:
        p = graph.trace.tensor(graph.trace.params[site.name]).detach()
        p = 1 + p if site.offset else p
        is_matrix = any(u.kind == "contract" for u in graph.uses[site.name])
        rms = float(p.double().pow(2).mean().sqrt())
        if rms > (0.0 if is_matrix else NEARLY_ZERO):
            return False
    return True
