"""Weights that are normalised before they are used: weight_norm, weight standardisation, spectral norm
(docs/theory.md, equation (15)).

What such a layer multiplies by, W = g v / |v|, does not follow the size of v, so the start that the rules ask
for cannot be given to v. It is given to what multiplies the normalised weight, its gain:

    fold of g = wanted start of W / own start of W          own: of W with g = 1, model over base

Updates need nothing: v starts as the rules say, so a step of it turns W by as much as it would turn an
ordinary weight. Constants on the way (fan-in^-1/2 of a standardised weight) are part of the own start, and
nothing undoes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.roles import Comparison, Facts
from trimtab.parametrization.folds.folding import Fold, snapped
from trimtab.parametrization.rules import kind_scales
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.proofs import SCALE, proves, replay
from trimtab.structure.tails import Site

CLOSE = 1e-3  # an eps beside a variance is not scaled with it
STEP = 0.25  # of a power of the width: what a start may be off by chance (a spectral norm is estimated)


@dataclasses.dataclass(frozen=True)
class Normalised:
    """Folds into the gains of normalised weights, and the nodes that make these weights, of both models."""

    folds: list[Fold]
    nodes: frozenset[int]
    base_nodes: frozenset[int]


@dataclasses.dataclass(frozen=True)
class _Weight:
    """A normalised weight: how large it is where its gains are 1 (one for the whole weight is left as drawn,
    for one number shows no law), its gains, and the nodes that make it."""

    size: float
    gains: tuple[str, ...]
    nodes: frozenset[int]


def normalised_weights(c: Comparison, gamma: float) -> Normalised:
    """The folds of all weights that do not follow the size of what they are made of.

    Args:
        gamma: richness, which the readout's start carries.

    Raises:
        StructureError: one starts otherwise than it should, and has no gain.
    """
    folds: dict[str, Fold] = {}
    nodes: set[int] = set()
    base_nodes: set[int] = set()
    matrices = [f for f in c.facts.values() if f.kind == "matrix"] if c.model.trace.real else []
    for f in matrices:
        here, there = _normalised(c.model, f.name), _normalised(c.base, f.twin)
        if here is None or there is None or not here.size or not there.size:
            continue
        nodes |= here.nodes
        base_nodes |= there.nodes
        fold = _wanted(f, gamma) / (here.size / there.size)
        grown = max(abs(math.log(m)) for m in (f.m_in, f.m_out, gamma))
        if not grown or abs(math.log(fold)) <= STEP * grown:  # chance: over depth a start has no law here
            continue
        if not here.gains:
            raise StructureError(_without_gain(f, here.size / there.size, gamma))
        folds.update({g: Fold(g, times=snapped(fold, c.facts)) for g in here.gains[:1]})
    return Normalised(list(folds.values()), frozenset(nodes), frozenset(base_nodes))


def _wanted(f: Facts, gamma: float) -> float:
    return kind_scales("matrix", f.m_in, f.m_out).init / (gamma if f.readout == "weight" else 1.0)


def _without_gain(f: Facts, own: float, gamma: float) -> str:
    return (
        f"a weight that is normalised needs a gain to carry its start: what {f.name} makes starts {own:.4g} "
        f"times as large as in the base, {_wanted(f, gamma):.4g} times is wanted (fan-in x {f.m_in:.4g}, "
        f"fan-out x {f.m_out:.4g}), and its own size does not count. Multiply the normalised weight by a "
        "parameter of ones, one number for each output."
    )


def _normalised(graph: Graph, name: str) -> _Weight | None:
    """A weight that a product takes, if it does not follow the size of the parameter it is made of."""
    trace, flow = graph.trace, graph.flow
    start = trace.params[name]
    products = (trace.nodes[u.node] for u in graph.uses[name] if u.kind == "contract" and u.node >= 0)
    product = next((node for node in products if flow.activations_into(node)), None)
    if product is None:
        return None
    made = [i for i in product.inputs if flow.weightlike(i) and flow.comes_from(i, start)]
    if len(made) != 1 or made[0] == start:
        return None
    value = made[0]
    nodes = frozenset(
        node.index
        for node in trace.nodes[: product.index]
        if any(flow.comes_from(value, o) and trace.values[o].from_param for o in node.outputs)
    )
    if all(trace.nodes[n].name in operations.REARRANGED for n in nodes):
        return None
    if not _scale_free(graph, name, value):
        return None
    gains = tuple(n for n in _others(graph, value, name) if _is_gain(graph, n, value))
    held = {site: t for n in gains for site, t in _sites(graph, n, value).items() if t.numel() > 1}
    ones = {site: torch.ones_like(t) for site, t in held.items()}
    numbers = replay(trace, ones, value, flow.behind[value]) if ones else trace.tensor(value)
    return _Weight(float(numbers.double().square().mean().sqrt()), gains, nodes)


def _sites(graph: Graph, name: str, value: int) -> Mapping[Site, torch.Tensor]:
    """Where a parameter enters what makes a value, and its numbers."""
    trace, flow = graph.trace, graph.flow
    users = (
        n
        for n in trace.consumers[trace.params[name]]
        if any(flow.comes_from(value, o) for o in trace.nodes[n].outputs)
    )
    return {Site(name, n): trace.tensor(trace.params[name]).detach() for n in users}


def _scale_free(graph: Graph, name: str, value: int) -> bool:
    more = {site: SCALE * t for site, t in _sites(graph, name, value).items()}
    before = graph.trace.tensor(value).double()
    after = replay(graph.trace, more, value, graph.flow.behind[value]).double()
    size = before.abs().max()
    return bool(size > 0) and bool((after - before).abs().max() <= CLOSE * size)


def _others(graph: Graph, value: int, name: str) -> list[str]:
    return [n for n, i in graph.trace.params.items() if n != name and graph.flow.comes_from(value, i)]


def _is_gain(graph: Graph, name: str, value: int) -> bool:
    tail = dict.fromkeys(_sites(graph, name, value), 1.0)
    return proves(graph.trace, tail, value, graph.flow.behind[value], 0)
