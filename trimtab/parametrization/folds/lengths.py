"""Sums and lengths over a width: what divides them wants to follow that width (docs/theory.md,
equation (15)).

A sum over N numbers that a model takes without a parameter grows as N, the length of a vector as N^1/2: so
the constant in `x / (x.norm() / sqrt(N))` or in `(x ** 2).sum() / N` makes a mean of it and is wanted,

    wanted = m_N^-e         e = 1 of a sum, 1/p of a p-norm; halved by a root, doubled by a square

A mean that torch takes itself has no constant, and a sum of products with a weight is that weight's use
(`structure.uses`): neither is met here.
"""

from __future__ import annotations

import math

from trimtab.parametrization.comparison.roles import Comparison
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.trace import Node

LENGTHS = ("linalg_vector_norm", "norm")
POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2.0, "reciprocal": -1.0}
LOOKED_THROUGH = operations.REARRANGED | {"clamp", "clamp_min", "mul", "div", "neg"}


def wanted_of_sum(c: Comparison, node: Node, base_node: Node) -> float:
    """What a constant is wanted to be, over the base's, for the sum that it multiplies; 1 for none."""
    here, there = _growth(c.model, node), _growth(c.base, base_node)
    if here is None or there is None or not math.isclose(here[1], there[1]):
        return 1.0
    return float((here[0] / there[0]) ** -here[1])


def _growth(graph: Graph, node: Node) -> tuple[int, float] | None:
    """(N, e): over how many numbers the sum is that a constant multiplies, and the power it grows with."""
    power = 1.0
    while len(acts := graph.flow.activations_into(node)) == 1:
        before = graph.trace.producer(acts[0])
        if before is None or not before.outputs:
            return None
        if (order := _order(graph, before)) is not None:
            count = math.prod(graph.trace.values[before.inputs[0]].shape)
            return count // max(math.prod(graph.trace.values[before.outputs[0]].shape), 1), power / order
        raised = _power(before)
        adds_number = before.name == "add" and len(graph.flow.activations_into(before)) == 1
        if raised is None and not adds_number and before.name not in LOOKED_THROUGH:
            return None
        power *= 1.0 if raised is None else raised
        node = before
    return None


def _order(graph: Graph, node: Node) -> float | None:
    """p of a p-norm, 1 of a sum that is no product with a weight; None of anything else."""
    if node.name in LENGTHS:
        order = node.args[1] if len(node.args) > 1 else node.kwargs.get("ord", 2)
        return float(order) if isinstance(order, int | float) and 0 < order < math.inf else None
    if node.name != "sum":
        return None
    before = graph.trace.producer(node.inputs[0])
    return None if before is not None and graph.flow.mixing[before.index] else 1.0


def _power(node: Node) -> float | None:
    """k where a node raises to a power k."""
    if node.name == "pow":
        exponent = node.args[1] if len(node.args) > 1 else None
        return float(exponent) if isinstance(exponent, int | float) else None
    return POWERS.get(node.name)
