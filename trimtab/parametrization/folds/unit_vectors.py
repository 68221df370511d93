"""Vectors of unit length: what multiplies x / |x| wants sqrt(N).

The entries of a unit vector over N numbers are N^-1/2, so an RMS norm written `F.normalize(x) * g * sqrt(N)`
needs its sqrt(N): the wanted factor behind a unit vector is m_N^1/2, not 1, and

    fold = m_N^1/2 / own          own: the model's constants over the base's

Whether a value has unit length is seen by its numbers in the base. Where no constant grows, the gain behind
the vector takes the whole factor, which is also right for a gain that the model fills with sqrt(N).
"""

from __future__ import annotations

import math

import torch

from trimtab.parametrization.comparison.roles import Comparison
from trimtab.parametrization.folds.folding import Fold, snapped
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.trace import Node

CLOSE = 1e-2  # an eps inside the root keeps a length from 1


class UnitVectors:
    """The unit vectors of a base, and what is left of the factor that each wants.

    Args:
        c: model and base compared.
    """

    def __init__(self, c: Comparison):
        self.c = c
        self.left: dict[tuple[int, int], float] = {}

    def wanted(self, node: Node, base_node: Node, own: float) -> float:
        """What of a constant's ratio to the base's is wanted: 1 where it scales no unit vector, else as much
        as that has not got yet."""
        found = _behind(self.c.base, base_node)
        if found is None:
            return 1.0
        key = found[0], _place(self.c.model, node)
        left = self.left.setdefault(key, self._ratio(node, base_node, found[1]) ** 0.5)
        low, high = sorted((1.0, left))
        part = min(max(own, low), high)
        self.left[key] = left / part
        return part

    def gains(self) -> list[Fold]:
        """Folds into the gains of unit vectors that the constants have left too small."""
        folds: dict[str, Fold] = {}
        for name, f in self.c.facts.items():
            pairs = zip(
                _multiplications(self.c.model, name), _multiplications(self.c.base, f.twin), strict=False
            )
            for node, base_node in pairs:
                found = _behind(self.c.base, base_node)
                if found is None or _is_contracted(self.c.base, base_node):
                    continue  # of a cosine, `attention` knows what it wants
                key = found[0], _place(self.c.model, node)
                left = self.left.setdefault(key, self._ratio(node, base_node, found[1]) ** 0.5)
                if not math.isclose(left, 1.0, rel_tol=1e-6):
                    folds.setdefault(name, Fold(name, times=snapped(left, self.c.facts)))
                self.left[key] = 1.0
        return list(folds.values())

    def _ratio(self, node: Node, base_node: Node, dim: int) -> float:
        """m_N of the dimension that the vector is along."""
        here, there = (
            g.trace.values[n.outputs[0]].shape for g, n in ((self.c.model, node), (self.c.base, base_node))
        )
        return here[dim] / there[dim] if len(here) == len(there) else 1.0


def _place(graph: Graph, node: Node) -> int:
    """The first value of the model on a chain of scales: several blocks share one counterpart."""
    while len(acts := graph.flow.activations_into(node)) == 1:
        before = graph.trace.producer(acts[0])
        if before is None or not _scales(graph, before) or len(graph.flow.activations_into(before)) != 1:
            break
        node = before
    return graph.flow.activations_into(node)[0] if graph.flow.activations_into(node) else node.index


def _scales(graph: Graph, node: Node) -> bool:
    return node.name in ("mul", "div", "clone", "_to_copy") and not graph.flow.mixing[node.index]


def _behind(graph: Graph, node: Node) -> tuple[int, int] | None:
    """The unit vector that a multiplication scales, and the dimension it is along (from the end); constants,
    gains and casts on the way are looked through (a gain of ones leaves the length at 1: the first counts).
    """
    found = None
    while len(acts := graph.flow.activations_into(node)) == 1:
        (value,) = acts
        if (dim := _unit_dimension(graph, value)) is not None:
            found = value, dim
        before = graph.trace.producer(value)
        if before is None or not _scales(graph, before):
            break
        node = before
    return found


def _unit_dimension(graph: Graph, value: int) -> int | None:
    """-1 or the channels' dimension where every vector along it has length 1 and made by a division."""
    v, producer = graph.trace.values[value], graph.trace.producer(value)
    if producer is None or producer.name not in ("div", "mul") or not v.is_float or not v.shape:
        return None
    numbers = graph.trace.tensor(value).double()
    for dim in (-1, 1 - len(v.shape)) if len(v.shape) > 2 else (-1,):
        length = torch.linalg.vector_norm(numbers, dim=dim)
        if v.shape[dim] > 1 and bool(((length - 1).abs() < CLOSE).all()):
            return dim
    return None


def _multiplications(graph: Graph, name: str) -> list[Node]:
    """Where a parameter multiplies an activation entry by entry."""
    nodes = (graph.trace.nodes[u.node] for u in graph.uses[name] if u.node >= 0 and u.kind == "elementwise")
    return [node for node in nodes if node.name == "mul"]


def _is_contracted(graph: Graph, node: Node) -> bool:
    """Its product meets another activation in a matrix product, views and scales looked through."""
    todo = [node]
    while todo:
        for user in (graph.trace.nodes[n] for o in todo.pop().outputs for n in graph.trace.consumers[o]):
            acts = graph.flow.activations_into(user)
            if user.name in operations.MATMULS and len(acts) == 2:
                return True
            if len(acts) == 1 and (user.name in operations.REARRANGED or user.name in ("mul", "div")):
                todo.append(user)
    return False
