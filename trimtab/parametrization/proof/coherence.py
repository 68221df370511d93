"""Where a first gradient is smaller than the rules' `s` by design: sums over a growing dimension that start
incoherent.

The rules give the size a gradient has once features and errors are aligned. At the start some of its sums run
over a
growing dimension of two things that know nothing of each other, and give m^1/2 where aligned ones give m
(docs/proof.md):

    backward through y = W x, or y = a * b spread over more numbers:   x gets  min(1, R_x / R_y)^1/2  of what
    it will get
    forward through a product that ends in fewer numbers:              y is    min(1, R_y / R_x)^1/2  of what
    it will be

R: how many times more numbers a value has than its twin in the base, token by token. Of several ways to the
    output the largest counts, so
what feeds a residual stream has 1. Attention probabilities spread over a head dimension that grows, gates and
routers spread over the width, scalars, gains shared by heads and matrices that mix tokens, shared along the
width, are below 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from trimtab.parametrization.comparison.names import template
from trimtab.parametrization.proof.packs import Part, parts
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.tails import is_zero
from trimtab.structure.trace import Node, Trace

ROUNDS = (14, 10, 6, 3, 1)  # how far back two values must look alike to be twins, the most first
SPREADS = frozenset(["expand", "repeat", "repeat_interleave"])
BOUNDED = frozenset(
    ["sigmoid", "exp", "softplus", "hardsigmoid", "cos"]
)  # not small where their input is; softmaxes too
POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a first gradient is, over what the rules give.

    Args:
        ranges: {parameter: (low, high)}, the same where only backward sums matter.
        parts: {parameter: its parts} where it is a pack whose rows go different ways.
    """

    ranges: dict[str, tuple[float, float]]
    parts: dict[str, tuple[Part, ...]]


def expected(model: Graph, base: Graph, twin: Mapping[str, str]) -> Expected:
    """What the first gradient of each parameter is over what the rules give. Shrinking is the inverse of
    growing: for a model narrower than its base, what the base would be to it, upside down."""
    if _numbers(model, twin) >= _numbers(base, twin.values()):
        return _grown(model, base, twin)
    back = {t: n for n, t in reversed(list(twin.items()))}
    alike = {(template(t), base.shape(t)): n for t, n in back.items()}
    for name in base.uses:  # a base with more blocks: like those that the model has
        if (like := alike.get((template(name), base.shape(name)))) is not None:
            back.setdefault(name, like)
    there = _grown(base, model, back)
    found = {n: there.ranges[t] for n, t in twin.items() if t in there.ranges}
    return Expected(
        ranges={n: (1 / high, 1 / low) for n, (low, high) in found.items() if low and high},
        parts={n: tuple(map(Part.back, there.parts[t])) for n, t in twin.items() if t in there.parts},
    )


def _numbers(graph: Graph, names: Iterable[str]) -> int:
    return sum(math.prod(graph.shape(name)) for name in names)


def _grown(model: Graph, base: Graph, twin: Mapping[str, str]) -> Expected:
    spread = Spread(model, base, twin)
    sizes = _forward(model, spread)
    even = [1.0] * len(sizes)
    low, high = (Back(model, spread, s, agree=a) for s, a in ((sizes, False), (even, True)))
    ranges, cut = {}, {}
    for name in model.uses:
        if name in twin:
            ends = [_of_parameter(base, name, twin[name], back) for back in (low, high)]
            ranges[name] = (min(ends), max(ends))
            if found := parts(model, base, name, twin[name], low.through, high.through):
                cut[name] = found
    return Expected(ranges, cut)


class Spread:
    """R_x / R_y of an operation's input and output: how the ratio of their numbers moved from base to model.

    A node of the model is paired with one of the base by what its last operations were, as far back as the
    two agree.
    """

    def __init__(self, model: Graph, base: Graph, twin: Mapping[str, str]):
        self.model, self.base = model, base
        mine = _keys(model.trace, {model.trace.params[n]: t for n, t in twin.items()})
        theirs = _keys(base.trace, {i: n for n, i in base.trace.params.items()})
        tables: list[dict[int, int]] = []
        for keys in theirs:
            table: dict[int, int] = {}
            for v in base.trace.values:
                table.setdefault(keys[v.index], v.index)
            tables.append(table)
        self.twin = [
            next((t[k[v.index]] for t, k in zip(tables, mine, strict=True) if k[v.index] in t), None)
            for v in model.trace.values
        ]

    def ratio(self, node: Node, value: int) -> float:
        """R_x / R_y of one input; 1 where the base has nothing like the node."""
        twin = self.twin[node.outputs[0]]
        other = self.base.trace.producer(twin) if twin is not None else None
        if other is None or len(other.inputs) != len(node.inputs):
            return 1.0
        at = other.inputs[node.inputs.index(value)]
        mine = self._numbers(self.model, value) / max(1, self._numbers(self.model, node.outputs[0]))
        theirs = self._numbers(self.base, at) / max(1, self._numbers(self.base, other.outputs[0]))
        return mine / theirs if mine and theirs else 1.0

    def own(self, node: Node) -> float:
        """R_y: the numbers of an operation's output over its twin's."""
        twin = self.twin[node.outputs[0]]
        return (
            self._numbers(self.model, node.outputs[0]) / self._numbers(self.base, twin)
            if twin is not None
            else 1.0
        )

    def _operands(self, node: Node) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[int]] | None:
        """Shapes of a product's operands and result, here and in the base, and the base's operands."""
        twin = self.twin[node.outputs[0]]
        other = self.base.trace.producer(twin) if twin is not None else None
        if other is None or len(other.inputs) != 2 or len(node.inputs) != 2:
            return None
        here, there = (
            [g.trace.values[i].shape for i in (*n.inputs, n.outputs[0])]
            for g, n in ((self.model, node), (self.base, other))
        )
        return (here, there, list(other.inputs)) if all(len(x) >= 2 for x in (*here, *there)) else None

    def summed(self, node: Node) -> float:
        """How many times more numbers a product of two activations sums over."""
        found = self._operands(node)
        return found[0][0][-1] / found[1][0][-1] if found else 1.0

    def across(self, node: Node, value: int, *, agree: bool) -> float:
        """What one operand of a product of activations gets: its gradient sums over the other's free
        dimension."""
        found = self._operands(node)
        if found is None:
            return 1.0
        here, there, operands = found
        left = value == node.inputs[0]
        other = 1 if left else 0
        if agree and self._never_negative(node.inputs[other], operands[other]):
            return 1.0
        dim = -1 if left else -2
        return min(1.0, there[2][dim] / here[2][dim]) ** 0.5

    def _never_negative(self, here: int, there: int) -> bool:
        """Whether a value has no negative number, read on the side that has numbers: one may be on meta."""
        for graph, value in ((self.base, there), (self.model, here)):
            if not (tensor := graph.trace.tensor(value)).is_meta:
                return bool((tensor >= 0).all())
        return False

    @staticmethod
    def _numbers(graph: Graph, value: int) -> int:
        return math.prod(graph.trace.values[value].shape)


def _keys(trace: Trace, labels: Mapping[int, str]) -> list[list[int]]:
    """For each of ROUNDS, what a value looks like from its last so many operations."""

    def own(index: int) -> int:
        v = trace.values[index]
        node = trace.producer(index)
        op = (node.name, node.outputs.index(index)) if node is not None else None
        return hash((v.source, labels.get(index), op, len(v.shape)))

    first = [own(v.index) for v in trace.values]
    keys, kept = first, {}
    for r in range(1, max(ROUNDS) + 1):
        keys = [
            hash(
                (
                    first[v.index],
                    tuple(keys[i] for i in trace.nodes[v.node].inputs) if v.node is not None else (),
                )
            )
            for v in trace.values
        ]
        kept[r] = keys
    return [kept[r] for r in ROUNDS]


def _forward(graph: Graph, spread: Spread) -> list[float]:
    """Size of each activation at the start over what it will be; 0 of a state that starts at zero."""
    real = graph.trace.real
    size = [
        0.0 if real and v.constant and v.is_float and is_zero(graph.trace, v.index) else 1.0
        for v in graph.trace.values
    ]
    for node in graph.trace.nodes:
        acts = [i for i in node.inputs if graph.flow.act[i]]
        if acts and node.outputs:
            here = _size(graph, node, acts, spread, size)
            for o in node.outputs:
                size[o] = here
    return size


def _size(graph: Graph, node: Node, acts: list[int], spread: Spread, size: list[float]) -> float:
    most = max(size[i] for i in acts)
    if node.name in operations.NORMS or node.name in BOUNDED or "softmax" in node.name:
        return 1.0
    if graph.flow.mixing[node.index]:
        return most * min(1.0, 1 / spread.ratio(node, acts[0])) ** 0.5
    if node.name in operations.MATMULS and len(acts) == 2:
        return size[acts[0]] * size[acts[1]] * min(1.0, 1 / spread.summed(node)) ** 0.5
    if node.name == "mul":
        return math.prod(size[i] for i in node.inputs if graph.flow.act[i] or not size[i])
    if node.name == "div":
        return size[acts[0]] / (size[acts[1]] if len(acts) == 2 and size[acts[1]] else 1.0)
    power = _power(node)
    return most if power is None or not most else most**power


def _power(node: Node) -> float | None:
    if node.name == "pow" and len(node.args) > 1 and isinstance(node.args[1], int | float):
        return float(node.args[1])
    return POWERS.get(node.name)


def _spreads(graph: Graph, node: Node) -> bool:
    return (
        graph.flow.mixing[node.index]
        or node.pointwise
        or node.name in operations.MATMULS
        or node.name in SPREADS
    )


class Back:
    """What reaches each value of a first gradient, over what the rules give: the largest over its ways to the
    output.

    Args:
        size: of each activation at the start over what it will be (`_forward`).
        agree: sums weighted by numbers that are all positive (softmax) are taken to add up, which they may or
            may not.
    """

    def __init__(self, graph: Graph, spread: Spread, size: list[float], *, agree: bool):
        self.graph, self.spread, self.size, self.agree = graph, spread, size, agree
        ends = last_outputs(graph)
        self.reach = [1.0 if v.index in ends else 0.0 for v in graph.trace.values]
        for node in reversed(graph.trace.nodes):
            for i in graph.flow.activations_into(node) if node.outputs else ():
                if graph.trace.values[i].is_float:  # which expert was chosen (topk, sort) has no gradient
                    self.reach[i] = max(self.reach[i], self.through(node, i))

    def through(self, node: Node, value: int) -> float:
        """What one input of an operation gets through it."""
        graph, spread, size = self.graph, self.spread, self.size
        product = node.name in operations.MATMULS and len(graph.flow.activations_into(node)) == 2
        if product:
            factor = spread.across(node, value, agree=self.agree)
        else:
            factor = min(1.0, spread.ratio(node, value)) ** 0.5 if _spreads(graph, node) else 1.0
        if node.name == "mul" or product:
            others = (j for j in node.inputs if j != value and (graph.flow.act[j] or not size[j]))
            factor *= math.prod(size[j] for j in others)
        power = _power(node)
        if power is not None and power > 1:  # d x^p is as large as x^(p-1)
            factor *= size[value] ** (power - 1)
        if node.name in operations.NORMS and size[value]:  # a norm makes up for a small input
            factor /= size[value]
        return factor * max((self.reach[o] for o in node.outputs), default=0.0)  # an assertion has none


def last_outputs(graph: Graph) -> set[int]:
    """The outputs that a loss is taken of (`backward.last`): no other is computed from them, and each has a
    parameter of its own."""
    outs = graph.trace.outputs
    last = [o for o in outs if not any(p != o and graph.flow.behind[p] >> o & 1 for p in outs)]
    known = sum(1 << i for i in graph.trace.params.values())
    found, covered = set[int](), 0
    for o in sorted(last, key=lambda o: -(graph.flow.behind[o] & known).bit_count()):
        if graph.flow.behind[o] & known & ~covered:
            found.add(o)
            covered |= graph.flow.behind[o] & known
    return found


def _of_parameter(base: Graph, name: str, twin: str, back: Back) -> float:
    graph, spread, reach, size = back.graph, back.spread, back.reach, back.size
    trace = graph.trace
    own = math.prod(trace.values[trace.params[name]].shape) / math.prod(
        base.trace.values[base.trace.params[twin]].shape
    )
    found = []
    for use in graph.uses[name]:
        if use.node < 0:
            found.append(1.0)
            continue
        node = trace.nodes[use.node]
        acts = [i for i in node.inputs if graph.flow.act[i]]
        factor = max(reach[o] for o in node.outputs)
        if use.kind == "elementwise" and node.name not in operations.CONVOLUTIONS:
            factor *= min(1.0, own / spread.own(node)) ** 0.5
        if use.kind == "contract" or node.name == "mul":
            factor *= min((size[i] for i in acts), default=1.0)
        if use.kind == "contract" and own == 1.0 and acts:  # shared along a width: a matrix over tokens
            shared = spread.own(node) * spread.ratio(node, acts[0]) ** 0.5
            factor *= min(1.0, 1 / shared) ** 0.5
        found.append(factor)
    return max(found, default=1.0)
