"""A multiplier put into parameters: what is multiplied by how much, and how several of them meet.

A number a wanted multiplier is short of, `fold = wanted / own`, goes into the parameters in which the value
is homogeneous (`structure.tails`), where it acts as `(init, u, s) -> (a init, a u, s/a)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from trimtab.parametrization.comparison.roles import Facts
from trimtab.structure.graph import Graph
from trimtab.structure.tails import Tail


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """One parameter is multiplied by `times / over`. `offset`: what is stored is w of a gain 1 + w.

    Numerator and denominator are kept apart, so that a fold by 1 / x divides by x and rounds once.
    """

    name: str
    times: float = 1.0
    over: float = 1.0
    offset: bool = False


def into(tail: Tail, times: float) -> list[Fold]:
    """A fold into every parameter of a tail, once each."""
    offset = {site.name for site in tail if site.offset}
    names = dict.fromkeys(site.name for site in tail)
    return [Fold(name, times=times, offset=name in offset) for name in names]


def product(folds: Iterable[Fold]) -> dict[str, float]:
    """The factor of each parameter.

    >>> product([Fold("w", times=2.0), Fold("w", over=4.0), Fold("b", times=3.0)])
    {'w': 0.5, 'b': 3.0}
    """
    factor: dict[str, float] = {}
    for fold in folds:
        factor[fold.name] = factor.get(fold.name, 1.0) * fold.times / fold.over
    return factor


def snapped(ratio: float, facts: Mapping[str, Facts]) -> float:
    """A constant kept in float32, made exact: the power (in quarters) of a size ratio that it is."""
    sizes = {m for f in facts.values() for m in (f.m_in, f.m_out, f.m_L)} - {1.0}
    for m in sorted(sizes):
        power = round(4 * math.log(abs(ratio)) / math.log(m)) / 4 if ratio else 0.0
        if abs(power) <= 2 and math.isclose(m**power, abs(ratio), rel_tol=1e-5):
            return math.copysign(m**power, ratio)
    return ratio


def constants_between(graph: Graph, tail: Tail, value: int) -> frozenset[int]:
    """Nodes between a tail's sites and the value that may multiply by a constant of the tail's own."""
    starts = [o for site in tail for o in graph.trace.nodes[site.node].outputs]
    return frozenset(
        node.index
        for node in graph.trace.nodes
        if node.name in ("mul", "div")
        and node.outputs
        and graph.flow.comes_from(value, node.outputs[0])
        and any(graph.flow.comes_from(node.outputs[0], start) for start in starts)
    )
