"""Vectors of unit length: what multiplies x / |x| wants sqrt(N), or N where |x| is a sum
(docs/theory.md, equation (15)).

The entries of a unit vector over N numbers are N^-1/2, so an RMS norm written `F.normalize(x) * g * sqrt(N)`
needs its sqrt(N): the wanted factor behind a unit vector is m_N^1/2, not 1, and

    fold = m_N^(1/p) / own        own: the model's constants over the base's

A vector whose entries sum to 1 in absolute value (softmax, `F.normalize(x, p=1)`) has entries of 1/N, and
wants N. Whether a value has unit length is seen by its numbers in the base. Where no constant grows, the gain
behind the vector takes the whole factor, which is also right for a gain that the model fills with sqrt(N).
"""

from __future__ import annotations

import math

import torch

from trimtab.parametrization.comparison.roles import Comparison
from trimtab.parametrization.folds.folding import Fold, snapped
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.trace import Node

Unit = tuple[int, int]  # the dimension that a vector is along (from the end), and the p of its p-norm
DIVISIONS = ("div", "mul", "_softmax")
CLOSE = 1e-2  # an eps inside the root keeps a length from 1
NEAR = 0.04  # of a power: N - 1 numbers for N, from 16 to 64


def part_wanted(own: float, wanted: float) -> float:
    """What of a constant's ratio is wanted: no more than all of it, and nothing on the other side of 1.

    N - 1 is taken for N.

    >>> part_wanted(0.5, 0.25), part_wanted(0.1, 0.25), part_wanted(2.0, 0.25), part_wanted(63 / 255, 0.25)
    (0.5, 0.25, 1.0, 0.24705882352941178)
    """
    if wanted != 1 and abs(math.log(abs(own) / wanted)) < NEAR * abs(math.log(wanted)):
        return abs(own)
    low, high = sorted((1.0, wanted))
    return min(max(own, low), high)


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
        left = self.left.setdefault(key, self._entries(node, base_node, found[1]))
        part = part_wanted(own, left)
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
                if _joins_unit_vector(self.c.base, base_node):
                    continue  # an interpolation of two unit vectors: both shrink alike
                key = found[0], _place(self.c.model, node)
                left = self.left.setdefault(key, self._entries(node, base_node, found[1]))
                if not math.isclose(left, 1.0, rel_tol=1e-6):
                    folds.setdefault(name, Fold(name, times=snapped(left, self.c.facts)))
                self.left[key] = 1.0
        return list(folds.values())

    def _entries(self, node: Node, base_node: Node, unit: Unit) -> float:
        """m_N^(1/p): what keeps the entries of a vector of unit p-norm, of the dimension that it is along."""
        dim, order = unit
        here, there = (
            g.trace.values[n.outputs[0]].shape for g, n in ((self.c.model, node), (self.c.base, base_node))
        )
        return (here[dim] / there[dim]) ** (1 / order) if len(here) == len(there) else 1.0


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


def _behind(graph: Graph, node: Node) -> tuple[int, Unit] | None:
    """The unit vector that a multiplication scales; constants, gains and casts on the way are looked through
    (a gain of ones leaves the length at 1: the first counts)."""
    found = None
    while len(acts := graph.flow.activations_into(node)) == 1:
        (value,) = acts
        if (unit := _unit(graph, value)) is not None:
            found = value, unit
        before = graph.trace.producer(value)
        if before is None or not _scales(graph, before):
            break
        node = before
    return found


def _unit(graph: Graph, value: int) -> Unit | None:
    """-1 or the channels' dimension and p, where a division made every vector along it of p-norm 1."""
    v, producer = graph.trace.values[value], graph.trace.producer(value)
    if producer is None or producer.name not in DIVISIONS or not v.is_float or not v.shape:
        return None
    numbers = graph.trace.tensor(value).double()
    for dim in (-1, 1 - len(v.shape)) if len(v.shape) > 2 else (-1,):
        for order in (2, 1):
            length = torch.linalg.vector_norm(numbers, ord=order, dim=dim)
            if v.shape[dim] > 1 and bool(((length - 1).abs() < CLOSE).all()):
                return dim, order
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


def _joins_unit_vector(graph: Graph, node: Node) -> bool:
    """Its product is added to a unit vector, both scaled or not."""
    value = node.outputs[0]
    while len(users := graph.trace.consumers[value]) == 1:
        user = graph.trace.nodes[users[0]]
        acts = graph.flow.activations_into(user)
        if user.name == "add" and len(acts) == 2:
            return any(_is_scaled_unit(graph, i) for i in acts if i != value)
        if len(acts) != 1 or not (user.name in operations.REARRANGED or _scales(graph, user)):
            return False
        value = user.outputs[0]
    return False


def _is_scaled_unit(graph: Graph, value: int) -> bool:
    if _unit(graph, value) is not None:
        return True
    maker = graph.trace.producer(value)
    return maker is not None and _scales(graph, maker) and _behind(graph, maker) is not None
