"""Attention: scores want 1/d relative to base, whatever constant the model has.

See docs/theory.md, equations (16) and (17):

    fold = m_d^-1 / (c_model / c_base)        d: the numbers that a product of two activations sums over

It goes into the query side. Where queries, keys and values are one packed tensor, sqrt(fold) goes into it and
1/sqrt(fold) into the weight of the out-projection, which undoes what happened to the values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.roles import Comparison
from trimtab.parametrization.folds.folding import Fold, constants_between, into, snapped
from trimtab.structure import operations
from trimtab.structure.graph import Graph, Product, linear_after
from trimtab.structure.proofs import degree
from trimtab.structure.tails import Tail

Names = frozenset[str]


@dataclasses.dataclass(frozen=True)
class Attention:
    """The folds of all scores, and the nodes whose constants they account for: the model's, the base's."""

    folds: tuple[Fold, ...]
    nodes: frozenset[int]
    base_nodes: frozenset[int]


def attention(c: Comparison) -> Attention:
    """What the scores of a model want, relative to those of its base."""
    folds: list[Fold] = []
    nodes: frozenset[int] = frozenset()
    base_nodes: frozenset[int] = frozenset()
    taken: dict[Names, float] = {}
    scored = frozenset(p.node for p, twin in _pairs(c) if p.size != twin.size)
    for p, twin in _pairs(c):
        if p.size == twin.size or _averages(c.base, twin):
            continue  # over tokens, or over heads that stay: its constants are ordinary ones
        nodes |= _constants(c.model, p)
        base_nodes |= _constants(c.base, twin)
        m_d = p.size / twin.size
        own = snapped(_constant(p) / _constant(twin), c.facts) * m_d ** (-0.5 * p.normalised)
        fold = 1 / (m_d * own)
        # What takes the factor takes it once: a shared layer runs many times, one query serves several terms.
        side = _taking(c.model, p, scored)
        taker = frozenset(site.name for site in side)
        if taker in taken and not math.isclose(taken[taker], fold, rel_tol=1e-9):
            raise StructureError(
                f"one projection serves scores that want different factors, {taken[taker]:.4g} and "
                f"{fold:.4g}: {sorted(taker)}. Use separate projections."
            )
        if taker not in taken and not math.isclose(fold, 1.0, rel_tol=1e-9):
            folds += _fold(c, p, twin, side, fold)
        taken[taker] = fold
    return Attention(folds=tuple(folds), nodes=nodes, base_nodes=base_nodes)


def _pairs(c: Comparison) -> Iterator[tuple[Product, Product]]:
    """Each product of two activations beside the base's: by the parameters that make its sides, in order."""
    twins: dict[tuple[Names, Names], list[Product]] = {}
    met: dict[tuple[Names, Names], int] = {}
    sizes = {p.size for p in c.base.products}
    for p in c.base.products:
        twins.setdefault(_sides(p), []).append(p)
    for p in c.model.products:
        key = _sides(p, c.pairing.twin)
        alike, order = twins.get(key, []), met.get(key, 0)
        met[key] = order + 1
        if not alike and c.pairing.layers is not None and not c.grows and p.size in sizes:
            continue  # depth alone differs and is left alone: as many numbers as in the base want nothing
        if not alike:
            raise StructureError(
                f"a product of two activations over {p.size} numbers ({sorted(key[0])} with "
                f"{sorted(key[1])}) has no counterpart in the base: another architecture, or an example "
                "that takes another path."
            )
        yield p, alike[order % len(alike)]  # blocks repeat, so their products do


def _sides(p: Product, twin: Mapping[str, str] | None = None) -> tuple[Names, Names]:
    left, right = (
        frozenset(twin[s.name] if twin is not None else s.name for s in tail) for tail in (p.left, p.right)
    )
    return left, right


def _averages(base: Graph, twin: Product) -> bool:
    """One operand of the base's product is made of weights that sum to 1 (a softmax over what is contracted):
    an average, the same at every size."""
    operands = [(base.trace.tensor(value), dim) for value, dim in twin.operands]
    return any(
        operand.dim() >= -dim
        and bool((operand >= 0).all())
        and bool(((operand.double().sum(dim) - 1).abs() < 1e-2).all())
        for operand, dim in operands
    )


def _constant(p: Product) -> float:
    """The model's own factor on the scores."""
    left = next(iter(p.left.values()), 1.0)
    right = next(iter(p.right.values()), 1.0)
    return left * right * p.after


def _constants(graph: Graph, p: Product) -> frozenset[int]:
    """The nodes whose constants are part of that factor."""
    node = graph.trace.nodes[p.node]
    after = frozenset(n.index for n in linear_after(graph.network, node))
    left, right = (constants_between(graph, side, node.outputs[0]) for side in (p.left, p.right))
    return after | left | right


def _taking(graph: Graph, p: Product, scored: frozenset[int]) -> Tail:
    """The operand that takes the factor: the first, unless it is the second of other scores, whose first has
    taken theirs (keys that positions look at too, in DeBERTa), or something else reads it (a convolution
    over queries, in ConvBert).

    Args:
        scored: the nodes of all products that want a factor.
    """
    seconds = {s.name for q in graph.products if q is not p and q.left for s in q.right}
    left, right = ({s.name for s in side} for side in (p.left, p.right))
    if not left or not right or left & right:
        return p.left or p.right
    if left & seconds:
        return p.left if right & seconds else p.right
    return (
        p.right
        if _read_elsewhere(graph, p.left, scored) > _read_elsewhere(graph, p.right, scored)
        else p.left
    )


def _read_elsewhere(graph: Graph, side: Tail, scored: frozenset[int]) -> bool:
    """Whether what a side's parameters make reaches the output other than through scores."""
    todo = [o for site in side for o in graph.trace.nodes[site.node].outputs]
    seen = set(todo)
    while todo:
        value = todo.pop()
        if value in graph.trace.outputs:
            return True
        users = (graph.trace.nodes[n] for n in graph.trace.consumers[value] if n not in scored)
        new = {o for user in users for o in user.outputs} - seen
        todo += new
        seen |= new
    return False


def _fold(c: Comparison, p: Product, twin: Product, side: Tail, fold: float) -> list[Fold]:
    if not side:
        raise StructureError(
            f"scores over {p.size} numbers ({twin.size} in the base) want a factor {fold:.4g}, and neither "
            "operand has parameters it would fold into. Keep the head dimension of the base, or give the "
            "query norm a gain."
        )
    packed = {s.name for s in p.left} & {s.name for s in p.right}
    if not packed:
        _prove(c, p, twin, side, 1.0)
        return into(side, fold)
    both = {**p.left, **p.right}
    _prove(c, p, twin, both, 2.0)
    root = math.sqrt(fold)
    values, outs = _values(c.model, p, packed)
    return [*into({**both, **values}, root), *(Fold(name, over=root) for name in sorted(outs))]


def _prove(c: Comparison, p: Product, twin: Product, sites: Tail, power: float) -> None:
    """By numbers, on the base where the model has none: the scores scale by a^power when the
    sites scale by a."""
    graph = c.model
    if not graph.trace.real:
        names = {c.pairing.twin[s.name] for s in sites}
        sites = {s: a for s, a in {**twin.left, **twin.right}.items() if s.name in names}
        graph, p = c.base, twin
    out = graph.trace.nodes[p.node].outputs[0]
    seen = degree(graph.trace, sites, out, graph.flow.behind[out])
    if math.isclose(seen, 0.0, abs_tol=0.05):
        raise StructureError(
            "scores over a head dimension that is not the base's want another factor, and a norm without a "
            f"gain undoes what {sorted({s.name for s in sites})} could give them. Keep the head dimension of "
            "the base (more heads instead), or give the query norm a gain."
        )
    if not math.isclose(seen, power, abs_tol=0.05):
        raise StructureError(
            f"a product of two activations over {p.size} numbers wants a factor, and scaling "
            f"{sorted({s.name for s in sites})} should scale it by the power {power:g}; measured "
            f"{seen:.3g}. Pass overrides with explicit factors for these parameters, or keep the head "
            "dimension of the base."
        )


def _values(graph: Graph, p: Product, packed: set[str]) -> tuple[Tail, set[str]]:
    """What shares a packed tensor with queries and keys: the values' own parameters, and the weights behind
    them that undo what the fold did to the values."""
    scores = graph.trace.nodes[p.node].outputs[0]
    for q in graph.products:
        out = graph.trace.nodes[q.node].outputs[0]
        side = next((t for t in (q.right, q.left) if {s.name for s in t} & packed), {})
        if q is not p and graph.flow.comes_from(out, scores) and side:
            return side, _weights_after(graph, out, packed)
    return {}, set()


def _weights_after(graph: Graph, value: int, packed: set[str]) -> set[str]:
    """The weights that multiply a value next, views and positive functions looked through."""
    names: set[str] = set()
    todo = list(graph.trace.consumers[value])
    while todo:
        node = graph.trace.nodes[todo.pop()]
        if graph.flow.mixing[node.index]:
            names |= {
                name
                for name, uses in graph.uses.items()
                if any(u.node == node.index and u.kind == "contract" for u in uses)
            }
        elif node.name in operations.LINEAR or node.name in operations.POSITIVE:
            todo += [c for o in node.outputs for c in graph.trace.consumers[o]]
        elif node.name not in operations.NORMS:
            raise StructureError(
                f"queries, keys and values are packed into {sorted(packed)} and the values reach "
                f"{node.name!r} before any projection, so the attention factor cannot be kept from them. "
                "Use separate projections, or keep the head dimension of the base."
            )
    return names
