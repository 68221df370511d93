"""Where a multiplier folds: the last parameters in which a value is homogeneous, proven by numbers.

A value B is homogeneous of degree one in a set of parameters T when scaling all of T by c scales B by c.
Walking back from B through operations that commute with a scale finds candidates for T (docs/theory.md,
equation (4)):

    B = W h + b           T = {W, b}                B = norm(h) * g + b      T = {g, b}
    B = f(x) * gate(x)    T = tail of f             B = sum_e p_e f_e(x)     T = all the tails of f_e
    B = h * (1 + w)       T = {w}, stored with an offset: w -> c (1 + w) - 1

What is found here are candidates; numbers accept or refute them (`proofs`).
"""

from __future__ import annotations

import dataclasses

from trimtab.structure import operations
from trimtab.structure.operations import CONVOLUTIONS, JOINT, LINEAR, MATMULS, NORMS, POSITIVE
from trimtab.structure.trace import Node, Ref, Trace, adjustable

LIMIT = 8  # alternatives worth trying: products of activations offer two each


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One use of a parameter: its name and the node that takes it. `offset`: the stored gain is 1 + w."""

    name: str
    node: int
    offset: bool = False


# A tail: each site with the product of the constants between it and the value.
Tail = dict[Site, float]


class Blocked(Exception):
    """The walk met an operation that does not commute with a scale; the message names it."""


class ThroughSkip(Blocked):
    """The walk met the skip that the branch starts from: the branch holds the skip itself."""


def tails(
    trace: Trace, value: int, *, stop: int | None = None, closed: frozenset[int] = frozenset()
) -> list[Tail]:
    """Candidate tails of a value, the last parameters first.

    Args:
        stop: a value the walk may not reach (the skip the branch starts from).
        closed: nodes the walk may not cross (residual adds, when the value is the stream itself).

    Raises:
        Blocked: there is none; the message names the operation that ends the walk.
    """
    found = _Walk(trace, stop, closed).of(value, None)
    unique: list[Tail] = []
    for tail in found:
        if tail and tail not in unique:
            unique.append(tail)
    if not unique:
        raise Blocked("no parameter behind it")
    return unique


class _Walk:
    def __init__(self, trace: Trace, stop: int | None, closed: frozenset[int]):
        self.trace, self.stop, self.closed = trace, stop, closed
        self.memo: dict[int, list[Tail]] = {}

    def of(self, value: int, consumer: Node | None) -> list[Tail]:
        v = self.trace.values[value]
        if v.source == "param":
            assert v.name is not None and consumer is not None
            if v.tensor is not None and not adjustable(v.tensor):
                raise Blocked(f"{v.name}, whose numbers are not floating point")
            return [{Site(v.name, consumer.index): 1.0}]
        if v.constant:
            if is_zero(self.trace, value):
                return [{}]
            raise Blocked("a constant that is added")
        if value == self.stop:
            raise ThroughSkip("the skip itself")
        node = self.trace.producer(value)
        if node is None:
            raise Blocked("the model's input")
        if node.index in self.closed:
            raise Blocked("the residual stream")
        if value not in self.memo:
            self.memo[value] = self.through(node)[:LIMIT]
        return self.memo[value]

    def first(self, *options: tuple[int, Node]) -> list[Tail]:
        """Alternatives: any one of these, scaled alone, scales the product."""
        found: list[Tail] = []
        reasons: list[Blocked] = []
        for value, node in options:
            try:
                found += self.of(value, node)
            except Blocked as blocked:
                reasons.append(blocked)
        if not found:
            reasons.append(Blocked(""))  # of no options at all
            raise next((r for r in reasons if isinstance(r, ThroughSkip)), reasons[0])
        return found

    def all(self, values: list[int], node: Node) -> list[Tail]:
        """A sum: every part must be scaled."""
        combined: list[Tail] = [{}]
        for value in values:
            parts = self.of(value, node)
            combined = [{**rest, **part} for rest in combined for part in parts][:LIMIT]
        return combined

    def through(self, node: Node) -> list[Tail]:
        values = self.trace.values
        refs = [a.index for a in node.args if isinstance(a, Ref)]
        moving = [i for i in refs if not values[i].constant]
        name = node.name
        if name in NORMS:
            gain, bias = (_arg(node, k) for k in NORMS[name])
            if gain is None:
                raise Blocked("a norm without gain")
            return self.all([i for i in dict.fromkeys((gain, bias)) if i is not None], node)
        if name in CONVOLUTIONS:
            return self.all([i for i in (_arg(node, 1), _arg(node, 2)) if i is not None], node)
        if name == "linear":
            return self.all(refs[1:], node)
        if name in ("mul", "div", operations.TRILINEAR) or name in MATMULS:
            return self.product(node, refs, moving)
        if name in operations.TABLES:
            return self.of(refs[0], node)
        if name in ("_weight_norm_interface", "_weight_norm"):
            return self.of(refs[1], node)
        if name in ("add", "sub"):
            return self.sum(node, refs)
        if name in JOINT:
            parts = list(node.inputs) if name != "where" else refs[1:]
            return self.all([i for i in parts if values[i].is_float], node)
        if name in ("masked_fill",):
            if not (
                node.args[2] == 0
                or (isinstance(node.args[2], Ref) and is_zero(self.trace, node.args[2].index))
            ):
                raise Blocked(name)
            return self.of(refs[0], node)
        if name in operations.ACTIVATIONS:
            return self.of(refs[0], node)
        if name in LINEAR or name in POSITIVE:
            if name == "constant_pad_nd" and len(node.args) > 2 and node.args[2] != 0:
                raise Blocked(name)
            return self.of(refs[0], node)
        raise Blocked(name)

    def product(self, node: Node, refs: list[int], moving: list[int]) -> list[Tail]:
        values = self.trace.values
        number = constant_factor(self.trace, node)
        if number is not None or len(moving) == 1:
            (kept,) = moving
            if node.name == "div" and refs[0] != kept:
                raise Blocked("a reciprocal")
            factor = 1.0 if number is None else number
            return [{site: c * factor for site, c in tail.items()} for tail in self.of(kept, node)]
        if node.name == "div":
            return self.of(refs[0], node)
        weights = [i for i in reversed(refs) if not values[i].from_input]
        others = [i for i in reversed(refs) if values[i].from_input]
        return self.first(*((i, node) for i in weights + others))

    def sum(self, node: Node, refs: list[int]) -> list[Tail]:
        values = self.trace.values
        if len(refs) == 1 or any(values[i].constant for i in refs):
            moving = [i for i in refs if not values[i].constant]
            fixed = [a for a in node.args[:2] if not (isinstance(a, Ref) and a.index in moving)]
            number = (
                fixed[0]
                if isinstance(fixed[0], int | float)
                else values[fixed[0].index].number
                if isinstance(fixed[0], Ref)
                else None
            )
            if (isinstance(fixed[0], Ref) and is_zero(self.trace, fixed[0].index)) or number == 0:
                return self.of(moving[0], node)
            leaf = _leaf(self.trace, moving[0], node)
            if number == 1 and node.name == "add" and leaf is not None:
                return [{dataclasses.replace(leaf, offset=True): 1.0}]
            raise Blocked("a constant that is added")
        return self.all(refs, node)


def _arg(node: Node, position: int) -> int | None:
    a = node.args[position] if position < len(node.args) else None
    return a.index if isinstance(a, Ref) else None


def _leaf(trace: Trace, value: int, consumer: Node) -> Site | None:
    """The site of a parameter that is seen through casts and views only."""
    while trace.values[value].source != "param":
        node = trace.producer(value)
        if node is None or node.name not in LINEAR or len(node.inputs) != 1:
            return None
        consumer, value = node, node.inputs[0]
    name = trace.values[value].name
    stored = trace.values[value].tensor
    assert name is not None
    return Site(name, consumer.index) if stored is None or adjustable(stored) else None


def is_zero(trace: Trace, value: int) -> bool:
    """A constant that is all zeros, so that adding it changes nothing."""
    v = trace.values[value]
    if v.number is not None or 0 in v.shape:
        return v.number == 0 or 0 in v.shape
    node = trace.producer(value)
    if node is not None and node.name in (
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
    ):
        return True  # what was there before a buffer is filled is nothing
    if not trace.real:
        return node is not None and node.name in ("zeros", "zeros_like", "new_zeros", "zero")
    return not bool(trace.tensor(value).any())


def constant_factor(trace: Trace, node: Node) -> float | None:
    """c where the node computes c * x or x / (1/c) with a number c, else None.

    >>> import torch
    >>> from trimtab.structure.recording import record
    >>> class Halve(torch.nn.Linear):
    ...     def forward(self, x): return super().forward(x) / 2
    >>> trace = record(Halve(3, 3), torch.ones(1, 3))
    >>> constant_factor(trace, trace.nodes[-1])
    0.5
    """
    if node.name not in ("mul", "div") or len(node.args) < 2:
        return None
    for i in (1, 0):
        a, other = node.args[i], node.args[1 - i]
        if not isinstance(other, Ref) or trace.values[other.index].constant:
            continue
        number = (
            a
            if isinstance(a, int | float)
            else trace.values[a.index].number
            if isinstance(a, Ref) and trace.values[a.index].constant
            else None
        )
        if number is None:
            continue
        if node.name == "mul":
            return float(number)
        if i == 1 and number != 0:
            return 1.0 / float(number)
    return None
