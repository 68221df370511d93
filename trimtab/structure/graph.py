"""What a model computes: where each parameter sits, what reads out, which activations are multiplied.

On top of what flows (`uses`) and the residual branches (`branches`) this file finds each parameter's
**place** (outside, in a branch, its tail, on the stream), the network's **readouts** with their biases, and
the **products** of two activations (attention). No class and no family of models is named anywhere: structure
only.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping

from trimtab.structure import operations
from trimtab.structure.branches import UNPROVEN, Branches, Refuted, branches
from trimtab.structure.paths import Paths, paths_of
from trimtab.structure.proofs import proven
from trimtab.structure.residuals import Patterns, Residual
from trimtab.structure.tails import Blocked, Tail, constant_factor, tails
from trimtab.structure.trace import Node, Ref, Trace
from trimtab.structure.uses import Flow, Use, flow


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """A contraction of two activations over `size` numbers: attention scores and the like.

    Args:
        node: where it is done: a matrix product, or the sum of (a * b).sum(dim).
        operands: the two activations, and the dimension of each that is contracted, from the end.
    """

    node: int
    operands: tuple[tuple[int, int], tuple[int, int]]
    size: int
    left: Tail
    right: Tail
    after: float  # constants between the product and the next nonlinearity
    normalised: int  # how many of the two operands have unit length by themselves


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter sits: the residual adds whose branch it feeds, whether it is on a stream."""

    branches: tuple[int, ...] = ()
    tail_of: tuple[int, ...] = ()
    stream: int | None = None


@dataclasses.dataclass(frozen=True)
class Graph:
    """The analysed model.

    Args:
        network: its residual branches, those the user named included.
        named: the branch of each parameter that the user's patterns put into one.
        readouts: {weight: its biases}.
        label: what messages call it.
    """

    flow: Flow
    network: Branches
    named: Mapping[str, int]
    readouts: Mapping[str, frozenset[str]]
    products: tuple[Product, ...]
    label: str = "model"

    @property
    def trace(self) -> Trace:
        return self.flow.trace

    @property
    def uses(self) -> Mapping[str, tuple[Use, ...]]:
        return self.flow.uses

    @property
    def residuals(self) -> tuple[Residual, ...]:
        return self.network.residuals

    def shape(self, name: str) -> tuple[int, ...]:
        return self.trace.values[self.trace.params[name]].shape

    def first_use(self, name: str) -> int:
        """The node that uses a parameter first; after all others where none does."""
        return min((use.node for use in self.uses[name]), default=len(self.trace.nodes))

    def place(self, name: str) -> Place:
        """Where a parameter sits, from the adds it meets first."""
        if name in self.named:
            index = self.named[name]
            in_tail = any(site.name == name for site in self.residuals[index].tail)
            return Place(branches=(index,), tail_of=(index,) if in_tail else ())
        met = self.network.reach[self.trace.params[name]]
        feeds = sorted({i for i, side in met if side == "branch"})
        skips = sorted(i for i, side in met if side == "skip")
        if skips:
            stream = self._stream_of(name)
            # a stem meets the skips of a block and of those inside it
            outer = min((self.network.enclosing(i) for i in skips), key=len)
            if stream is not None or not outer:
                return Place(stream=stream)
            feeds = [outer[0]]  # before the first add of a stack that lies inside a branch
        tail_of = tuple(i for i in feeds if any(site.name == name for site in self.residuals[i].tail))
        return Place(branches=tuple(feeds), tail_of=tail_of)

    def _stream_of(self, name: str) -> int | None:
        """The stack on whose stream a parameter acts, between two of its adds; None before the first."""
        for use in self.uses[name]:
            for o in self.trace.nodes[use.node].outputs if use.node >= 0 else ():
                joined = any(user in self.flow.joins for user in self.trace.consumers[o])
                for k in {self.residuals[i].stack for i, side in self.network.reach[o] if side == "skip"}:
                    outs = [self.trace.nodes[r.node].outputs[0] for r in self.residuals if r.stack == k]
                    if joined or any(self.flow.comes_from(o, out) for out in outs):
                        return k
        return None

    def paths(self, index: int) -> Paths:
        """The like paths that a branch is the sum of; one that only the user sees is one path."""
        r = self.residuals[index]
        return Paths() if r.skip == r.branch else paths_of(self.flow, r)

    def with_residuals(self, residuals: tuple[Residual, ...]) -> Graph:
        """The same model with other facts about its adds (tails that were proven elsewhere)."""
        return dataclasses.replace(self, network=dataclasses.replace(self.network, residuals=residuals))


def analyse(
    trace: Trace,
    label: str = "model",
    *,
    patterns: Patterns = Patterns(),
    known_refuted: Refuted = lambda _: False,
) -> Graph:
    """The whole analysis of one trace: flow, branches, named branches, readouts, products.

    Args:
        patterns: the user's name patterns that settle what structure cannot.
        known_refuted: of a branch's parameters, whether numbers elsewhere have refuted its every tail
            (`branches`).

    >>> import torch
    >>> from trimtab.structure.recording import record
    >>> graph = analyse(record(torch.nn.Linear(3, 5), torch.zeros(2, 3)))
    >>> graph.readouts, graph.place("weight")
    ({'weight': frozenset({'bias'})}, Place(branches=(), tail_of=(), stream=None))
    """
    flowing = flow(trace)
    network, named = _with_named_branches(branches(flowing, patterns, label, known_refuted), patterns.branch)
    return Graph(
        flow=network.flow,
        network=network,
        named=named,
        readouts=_readouts(network),
        products=_products(network),
        label=label,
    )


def _with_named_branches(network: Branches, patterns: tuple[str, ...]) -> tuple[Branches, dict[str, int]]:
    """Branches that only the user sees: what matches a pattern, one per numbered block, folded at its end."""
    flow, residuals = network.flow, list(network.residuals)
    seen = {name for r in residuals for name in flow.params_between(r.source, r.branch)}
    stack = 1 + max((r.stack for r in residuals), default=-1)
    named: dict[str, int] = {}
    for pattern in patterns:
        blocks: dict[str, list[str]] = {}
        for name, uses in flow.uses.items():
            if fnmatch.fnmatchcase(name, pattern) and name not in seen and uses:
                parts = name.split(".")
                number = next((i for i, part in enumerate(parts) if part.isdigit()), -1)
                blocks.setdefault(".".join(parts[: number + 1]), []).append(name)
        for names in blocks.values():
            named |= dict.fromkeys(names, len(residuals))
            residuals.append(_named_branch(flow, names, len(residuals), stack))
        stack += bool(blocks)
    return dataclasses.replace(network, residuals=tuple(residuals)), named


def _named_branch(flow: Flow, names: list[str], index: int, stack: int) -> Residual:
    last = flow.trace.nodes[max(use.node for name in names for use in flow.uses[name])]
    value = last.outputs[0]
    tail: Tail = {}
    blocked = ""
    try:
        tail = next(proven(flow.trace, tails(flow.trace, value), value, flow.behind[value], 0))
    except (Blocked, StopIteration) as why:
        blocked = str(why) or UNPROVEN
    return Residual(
        node=last.index,
        skip=value,
        branch=value,
        source=value,
        kind="identity",
        index=index,
        tail=tail,
        blocked=blocked,
        stack=stack,
    )


def _readouts(network: Branches) -> dict[str, frozenset[str]]:
    """The network's readouts: {weight: its biases}. Nothing mixes after them and they sit in no branch."""
    flow = network.flow
    mixes_below = [False] * len(flow.trace.values)
    for node in reversed(flow.trace.nodes):
        below = flow.mixing[node.index] or any(mixes_below[o] for o in node.outputs)
        for i in node.inputs:
            mixes_below[i] |= below
    last: dict[int, str] = {}
    for name, uses in flow.uses.items():
        outs = [o for u in uses if u.kind == "contract" for o in flow.trace.nodes[u.node].outputs[:1]]
        if outs and all(not mixes_below[o] and _leads_out(network, o) for o in outs):
            last |= dict.fromkeys(outs, name)
    biases: dict[str, set[str]] = {name: set() for name in last.values()}
    for name, uses in flow.uses.items():
        for weight in (last[o] for u in uses for o in _added_to(flow, u) if o in last):
            biases[weight].add(name)
    return {name: frozenset(found) for name, found in biases.items()}


def _added_to(flow: Flow, use: Use) -> list[int]:
    """The values an elementwise parameter is added to, views looked through."""
    values: list[int] = []
    for i in flow.added_to(use):
        values.append(i)
        while (p := flow.trace.producer(i)) is not None and p.name in operations.LINEAR:
            i = p.inputs[0]
            values.append(i)
    return values


def _leads_out(network: Branches, value: int) -> bool:
    """To the output and nowhere else; a skip around the whole network (a denoiser) is looked through."""
    trace, met = network.flow.trace, network.reach[value]
    while len(met) == 1 and next(iter(met))[1] == "branch":
        r = network.residuals[next(iter(met))[0]]
        if trace.values[r.source].source != "input":
            return False
        met = network.reach[trace.nodes[r.node].outputs[0]]
    return {side for _, side in met} == {"out"}


def _products(network: Branches) -> tuple[Product, ...]:
    flow, found = network.flow, []
    for node in flow.trace.nodes:
        operands = _contracted(flow, node)
        if operands is None:
            continue
        (left, dim), (right, _) = operands
        sides = _sides(network, left, right)
        factors = (constant_factor(flow.trace, n) or 1.0 for n in linear_after(network, node))
        found.append(
            Product(
                node=node.index,
                operands=operands,
                size=flow.trace.values[left].shape[dim],
                left=sides[0],
                right=sides[1],
                after=math.prod(factors),
                normalised=sum(_unit_length(flow, i) for i in (left, right)),
            )
        )
    return tuple(found)


def _sides(network: Branches, left: int, right: int) -> tuple[Tail, Tail]:
    """What scales each operand of a product. A frozen table in both (rotary angles kept as an embedding)
    scales neither: what is behind it does."""
    trace = network.flow.trace

    def found(value: int) -> list[Tail]:
        try:
            return tails(trace, value, closed=network.nodes)
        except Blocked:
            return [{}]

    def table(name: str) -> bool:
        tensor = trace.values[trace.params[name]].tensor
        multiplies = any(use.kind == "contract" for use in network.flow.uses[name])
        return not multiplies and tensor is not None and not tensor.requires_grad

    mine, theirs = found(left), found(right)
    both = {s.name for s in mine[0]} & {s.name for s in theirs[0]}
    if both and all(map(table, both)):
        mine, theirs = (
            [t for t in own if both.isdisjoint(s.name for s in t)] or own for own in (mine, theirs)
        )
    return mine[0], theirs[0]


def _contracted(flow: Flow, node: Node) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The two activations that an operation contracts, each with the dimension it sums over."""
    refs = [a.index for a in node.args if isinstance(a, Ref)][:2]
    if node.name in operations.MATMULS:
        both = len(refs) == 2 and all(flow.act[i] for i in refs)
        return ((refs[0], -1), (refs[1], -2)) if both else None
    if node.name != "sum" or len(node.args) < 2 or not isinstance(node.args[1], list | tuple) or not refs:
        return None
    product, rank = flow.trace.producer(refs[0]), len(flow.trace.values[refs[0]].shape)
    if product is None or product.name != "mul" or len(node.args[1]) != 1:
        return None
    dim = node.args[1][0] % rank - rank
    acts = flow.activations_into(product)
    shapes = [flow.trace.values[i].shape for i in acts]
    whole = all(len(shape) >= -dim and shape[dim] > 1 for shape in shapes)
    return ((acts[0], dim), (acts[1], dim)) if len(set(acts)) == 2 and whole else None


def _unit_length(flow: Flow, value: int) -> bool:
    """x / |x|: divided by its own vector norm on the way here."""
    guards = ("clamp_min", "expand", "clamp", "add", "maximum", "sqrt", "sum")
    for _ in range(12):
        node = flow.trace.producer(value)
        if node is None:
            return False
        if node.name == "div" and len(node.inputs) == 2 and flow.act[node.inputs[1]]:
            value = node.inputs[1]
            while (p := flow.trace.producer(value)) is not None and p.name in guards:
                value = p.inputs[0]
            return p is not None and p.name in ("linalg_vector_norm", "norm", "pow", "mul")
        acts = flow.activations_into(node)
        if not acts or flow.mixing[node.index]:  # a norm before the projection says nothing of its outputs
            return False
        value = acts[0]
    return False


def linear_after(network: Branches, node: Node) -> list[Node]:
    """What happens to a product before anything nonlinear: views, constants, masks, sums with scores."""
    flow, chain = network.flow, []
    while len(users := flow.trace.consumers[node.outputs[0]]) == 1:
        node = flow.trace.nodes[users[0]]
        joins = node.name in ("add", "sub", "masked_fill", "where") and node.index not in network.nodes
        plain = node.name in operations.LINEAR or joins
        if constant_factor(flow.trace, node) is None and (not plain or flow.mixing[node.index]):
            break
        chain.append(node)
    return chain
