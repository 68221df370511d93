"""The residual adds of a recorded forward: which adds are `skip + branch`, and where each branch starts.

An add is residual when one side is an ancestor of the other with at least one mixing operation in between
(identity), or when one side is a short linear path and the other a long one (projection). Gates, recurrences,
two-tower sums and position adds use the same operation and are told apart here. What ends a branch and which
branches share a stream: `branches`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Container, Iterable

from trimtab.errors import StructureError
from trimtab.structure import operations
from trimtab.structure.tails import Blocked, Tail, ThroughSkip, constant_factor, tails
from trimtab.structure.trace import Node, Ref
from trimtab.structure.uses import Flow


@dataclasses.dataclass(frozen=True)
class Patterns:
    """The user's name patterns that settle what structure cannot: what is a branch, what is left alone."""

    branch: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Residual:
    """A residual add: `skip + branch`, the branch from `source` on. `branches` adds `tail` and `stack`."""

    node: int
    skip: int
    branch: int
    source: int
    kind: str
    index: int = -1
    skip_factor: float = 1.0
    kept: float = 1.0  # what the skip is multiplied by at the start, learned numbers included
    tail: Tail = dataclasses.field(default_factory=dict)
    candidates: tuple[Tail, ...] = ()
    blocked: str = ""  # why there is no tail
    stack: int = -1
    crossed: frozenset[str] = frozenset()  # parameters of a projection shortcut


Adds = dict[int, Residual]  # by node


@dataclasses.dataclass(frozen=True)
class Hop:
    """A value that a skip is a linear function of: how, with what constant, across which parameters."""

    value: int
    how: str = "identity"
    factor: float = 1.0
    crossed: frozenset[str] = frozenset()
    kept: float = 1.0


def residual_adds(flow: Flow, patterns: Patterns, label: str) -> tuple[Flow, tuple[Residual, ...]]:
    """The residual adds in the order of the forward, and the flow with the adds that are joins.

    Raises:
        StructureError: an add could be a block with a projection shortcut or two towers, and nothing tells
            which.
    """
    found: Adds = {}
    joins: dict[int, int] = {}
    adapters: dict[int, frozenset[str]] = {}
    flow = dataclasses.replace(flow, joins=joins, adapters=adapters)
    for node in flow.trace.nodes:
        stream = _joined(flow, node, found)
        if stream is not None:
            joins[node.index] = stream
            continue
        residual = _residual_at(flow, node, found, patterns)
        if residual is not None and residual.kind == "adapter":  # one matrix, not a block
            adapters[node.index] = residual.crossed
        elif residual is not None:
            found[node.index] = residual
    for node in sorted(found, reverse=True):  # what is lent encloses nothing itself
        if _lent(flow, found[node], found):
            del found[node]
    towers = _towers(flow, found, patterns, label)
    return flow, numbered(r for r in found.values() if r.node not in towers)


def _joined(flow: Flow, node: Node, found: Adds) -> int | None:
    """The stream's side of h + b x0 where x0 is an earlier value of the stream and the learned b starts at 0.

    Such an add is no block: it starts as the identity, and what it learns is one number per layer on the
    stream. A residual block cannot look like it, for then its skip would be the side that is 0.
    """
    if node.name != "add" or not flow.trace.real or len(sides := flow.activations_into(node)) != 2:
        return None
    for share, stream in (sides, sides[::-1]):
        weighed = flow.trace.producer(share)
        learned = weighed is not None and weighed.name == "mul" and any(map(flow.weightlike, weighed.inputs))
        if not learned or bool(flow.trace.tensor(share).any()) or not bool(flow.trace.tensor(stream).any()):
            continue
        earlier = {hop.value for hop in _hops(flow, share, found, cross=False)}
        if earlier & {hop.value for hop in _hops(flow, stream, found, cross=False)}:
            return stream
    return None


def _lent(flow: Flow, r: Residual, found: Adds) -> bool:
    """An add inside a branch of what an earlier branch made (value residuals, momentum), or of what the input
    makes beside the stream (value embeddings): its arithmetic.

    A stack that is nested in a branch starts in that branch; what starts in one that has ended is lent, and
    what starts outside while the other side of the add comes from the branch's own start.
    """
    out = flow.trace.nodes[r.node].outputs[0]
    if any(flow.trace.nodes[node].outputs[0] == r.source for node in found):
        return False
    if any(
        q.node > r.node
        and _within(flow, out, q)
        and flow.comes_from(r.branch, q.source)
        and not flow.comes_from(r.source, q.source)
        and _ends_at(flow, out, q.node)
        for q in found.values()
    ):
        return True
    lent = any(
        q.node < r.node
        and q.kind != "projection"
        and flow.mix_depth(q.source, r.source) > 0
        and _within(flow, r.source, q)
        for q in found.values()
    )
    return lent and any(q.node > r.node and _within(flow, out, q) for q in found.values())


def _ends_at(flow: Flow, value: int, node: int) -> bool:
    """All that is made of a value goes into one later node: it is not a stream of its own (a reversible
    network's halves read each other and both go on)."""
    todo, seen = [value], {value}
    while todo:
        value = todo.pop()
        if value in flow.trace.outputs:
            return False
        for user in flow.trace.consumers[value]:
            new = [] if user == node else [o for o in flow.trace.nodes[user].outputs if o not in seen]
            todo += new
            seen.update(new)
    return True


def _within(flow: Flow, value: int, r: Residual) -> bool:
    return flow.comes_from(r.branch, value) and not flow.comes_from(r.skip, value)


def numbered(residuals: Iterable[Residual]) -> tuple[Residual, ...]:
    """The same adds with their places in the sequence as `index`."""
    return tuple(dataclasses.replace(r, index=index) for index, r in enumerate(residuals))


def origin(flow: Flow, adds: Adds, value: int) -> int:
    """Back along one stream, through everything that mixes and joins nothing, to where it was made."""
    while (node := flow.trace.producer(value)) is not None:
        if node.index in flow.joins:
            value = flow.joins[node.index]
            continue
        if node.index in adds or flow.mixing[node.index]:
            break
        sources = {
            origin(flow, adds, i) for i in flow.activations_into(node) if flow.trace.values[i].is_float
        }
        if len(sources) != 1:
            break
        (earlier,) = sources
        if earlier == value:
            break
        value = earlier
    return value


def _residual_at(flow: Flow, node: Node, found: Adds, patterns: Patterns) -> Residual | None:
    if node.name not in ("add", "sub") or len(node.args) < 2:
        return None
    a, b = node.args[0], node.args[1]
    if not (isinstance(a, Ref) and isinstance(b, Ref)):
        return None
    values = [flow.trace.values[i] for i in (a.index, b.index)]
    if any(v.constant or not v.is_float for v in values):
        return None
    if not (flow.act[a.index] or flow.act[b.index]):
        return None
    straight = _match(flow, node, (a.index, b.index), found, patterns, cross=False)
    return straight or _match(flow, node, (a.index, b.index), found, patterns, cross=True)


def _match(
    flow: Flow, node: Node, sides: tuple[int, int], found: Adds, patterns: Patterns, *, cross: bool
) -> Residual | None:
    """The add as `skip + branch`, either side being the skip; with `cross`, only projection shortcuts."""
    values = flow.trace.values
    shape = values[node.outputs[0]].shape
    for skip, branch in (sides, sides[::-1]):
        if skip == branch or any(values[i].shape != shape or not flow.act[i] for i in (skip, branch)):
            continue
        for hop in _hops(flow, skip, found, cross=cross):
            if cross != (hop.how == "projection"):
                continue
            if hop.how == "parallel" and flow.comes_from(branch, skip):
                break  # it reads the sum itself, so what an earlier branch mixed is not its own
            if not _is_branch(flow, hop, branch):
                continue
            inside = flow.params_between(hop.value, branch)
            if hop.crossed & inside or _matches(inside, patterns.skip):
                break
            if _interpolates(flow, node, branch, hop.value):
                break
            if hop.crossed and _linear(flow, hop.value, branch):
                return Residual(
                    node.index, skip, branch, source=hop.value, kind="adapter", crossed=hop.crossed
                )
            kind = _kind(flow, hop, branch, found)
            return Residual(
                node=node.index,
                skip=skip,
                branch=branch,
                source=hop.value,
                kind=kind,
                skip_factor=hop.factor,
                kept=hop.kept,
                crossed=hop.crossed,
            )
    return None


def _is_branch(flow: Flow, hop: Hop, branch: int) -> bool:
    """Enough is mixed between the skip and the branch's end."""
    depth = flow.mix_depth(hop.value, branch)
    if depth >= (2 if hop.crossed else 1):
        return True
    return hop.how == "identity" and depth == 0 and _stirs(flow, hop.value, branch)


def _hops(flow: Flow, value: int, found: Adds, *, cross: bool) -> list[Hop]:
    """Back from a skip along what it is a short linear function of.

    With `cross`, one mixing operation and norms may lie on the way: a projection shortcut.
    """
    hop, mixed = Hop(value), False
    chain = [hop]
    while (node := flow.trace.producer(hop.value)) is not None:
        nxt = _straight_hop(flow, node, hop, found)
        if nxt is None and cross:
            nxt = _crossing_hop(flow, node, hop, mixed=mixed)
            mixed = mixed or flow.mixing[node.index]
        if nxt is None or not flow.trace.values[nxt.value].is_float:
            break
        hop = nxt
        chain.append(hop)
    return chain


def _straight_hop(flow: Flow, node: Node, hop: Hop, found: Adds) -> Hop | None:
    """One hop that mixes nothing: along an earlier add's skip, a rearrangement, a product with a number."""
    residual = found.get(node.index)
    if residual is not None:
        how = "parallel" if hop.how == "identity" else hop.how
        return dataclasses.replace(hop, value=residual.skip, how=how)
    if node.index in flow.joins:
        return dataclasses.replace(hop, value=flow.joins[node.index])
    acts = flow.activations_into(node)
    if len(acts) != 1:
        return None
    values = flow.trace.values
    # the whole tensor: a slice of it (one step of a recurrence) is something else
    whole = math.prod(values[acts[0]].shape) == math.prod(values[hop.value].shape)
    if node.name in operations.REARRANGED and whole:
        return dataclasses.replace(hop, value=acts[0])
    factor = constant_factor(flow.trace, node) if node.name in ("mul", "div") else None
    if node.name == "mul" or factor is not None:
        how = "scaled" if hop.how in ("identity", "parallel") else hop.how
        kept = hop.kept * (_start(flow, node) if factor is None else factor)
        return dataclasses.replace(
            hop, value=acts[0], how=how, factor=hop.factor * (factor or 1.0), kept=kept
        )
    return None


def passed_on(flow: Flow, value: int, adds: Container[int]) -> float:
    """What the sum of an earlier add is multiplied by on its way to a value; 1 where none lies behind it."""
    hop = Hop(value)
    while (node := flow.trace.producer(hop.value)) is not None:
        if node.index in adds:
            return hop.kept
        nxt = _straight_hop(flow, node, hop, {})
        if nxt is None:
            break
        hop = nxt
    return 1.0


def _start(flow: Flow, node: Node) -> float:
    """The mean of the learned numbers that a product multiplies by; 1 where they are not known."""
    weights = [i for i in node.inputs if flow.weightlike(i)]
    if len(weights) != 1 or not flow.trace.real:
        return 1.0
    return float(flow.trace.tensor(weights[0]).detach().double().mean())


def _crossing_hop(flow: Flow, node: Node, hop: Hop, *, mixed: bool) -> Hop | None:
    """One hop of a projection shortcut: a norm, a pool, a bias, and once a matrix."""
    acts = flow.activations_into(node)
    if len(acts) != 1:
        return None
    passes = node.name in operations.NORMS or node.name in operations.POOLS or node.name == "constant_pad_nd"
    bias = node.name == "add" and all(flow.weightlike(i) for i in node.inputs if i != acts[0])
    if passes:
        return dataclasses.replace(hop, value=acts[0], how="projection")
    if flow.mixing[node.index] and not mixed and node.name not in operations.LOOKUPS:
        used = {n for n, uses in flow.uses.items() if any(u.node == node.index for u in uses)}
        return dataclasses.replace(hop, value=acts[0], how="projection", crossed=hop.crossed | used)
    return dataclasses.replace(hop, value=acts[0], how="projection") if bias else None


def _stirs(flow: Flow, source: int, branch: int) -> bool:
    """A branch without a matrix that mixes positions (pooling, Fourier) and ends in a gain that scales it."""
    between = [
        n
        for n in flow.trace.nodes
        if n.name in operations.STIRRING
        and n.outputs
        and flow.comes_from(branch, n.outputs[0])
        and flow.comes_from(n.outputs[0], source)
    ]
    try:
        return bool(between) and bool(tails(flow.trace, branch, stop=source))
    except Blocked:
        return False


def _interpolates(flow: Flow, node: Node, branch: int, source: int) -> bool:
    """x + z (f(x) - x) and (x - f(x)) z + f(x) are gates: the branch holds the skip itself."""
    if node.name == "sub" and len(flow.trace.consumers[branch]) > 1:
        return True
    try:
        tails(flow.trace, branch, stop=source)
    except ThroughSkip:
        return True
    except Blocked:
        return False
    return False


def _linear(flow: Flow, source: int, end: int) -> bool:
    """Nothing but matrices, biases, constants and views between two values."""
    for node in flow.trace.nodes:
        between = any(flow.comes_from(end, o) and flow.comes_from(o, source) for o in node.outputs)
        if source in node.outputs or not between:
            continue
        alone = len(flow.activations_into(node)) == 1
        plain = flow.mixing[node.index] or node.name in operations.LINEAR or node.name == "add"
        if not alone or not (plain or constant_factor(flow.trace, node) is not None):
            return False
    return True


def _kind(flow: Flow, hop: Hop, branch: int, found: Adds) -> str:
    if hop.how != "identity":
        return hop.how
    value = branch
    while (node := flow.trace.producer(value)) is not None and node.name in operations.LINEAR:
        value = node.inputs[0]
    if node is None or node.name != "add" or node.index in found:
        return hop.how
    acts = flow.activations_into(node)
    both = len(acts) == 2 and all(flow.mix_depth(hop.value, i) > 0 for i in acts)
    return "parallel" if both else hop.how


def _matches(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _towers(flow: Flow, found: Adds, patterns: Patterns, label: str) -> set[int]:
    """Adds of two towers: `Linear(x) + MLP(x)` is a projection shortcut only inside a residual network."""
    links = _links(flow, found)
    towers: set[int] = set()
    for r in found.values():
        inside = flow.params_between(r.source, r.branch) if r.kind == "projection" else set[str]()
        if r.kind != "projection" or _matches(inside, patterns.branch):
            continue
        if _matches(r.crossed, patterns.skip):
            towers |= {r.node} if _matches(inside, patterns.skip) else set()
            continue
        if not links[r.node] and _joins_from_outside(flow, r, found):
            towers.add(r.node)
            continue
        if not links[r.node] or not _mixed_later(flow, r):
            short, long = sorted(r.crossed), sorted(inside)
            raise StructureError(
                "an add of a short path and a long one is a residual block or two towers, and the "
                f"{label} does not tell which: short path {short[:3]}, long path {long[:3]}"
                f"{'...' if len(long) > 3 else ''}. Say 'branch' of the long path for a residual block with "
                "a projection shortcut, 'skip' for two towers.",
                [{_any_number(long[0]): word} for word in ("branch", "skip")],
            )
    return towers


def _joins_from_outside(flow: Flow, r: Residual, found: Adds) -> bool:
    """Inside a branch, a sum with what the model's input makes directly (value embeddings): arithmetic."""
    out = flow.trace.nodes[r.node].outputs[0]
    return any(
        q is not r and _within(flow, out, q) and not flow.comes_from(r.source, q.source)
        for q in found.values()
    )


def _any_number(name: str) -> str:
    """A pattern for what is called so in every block."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _links(flow: Flow, found: Adds) -> dict[int, set[int]]:
    """For each add the adds next to it on its stream."""
    outs = {flow.trace.nodes[r.node].outputs[0]: r for r in found.values()}
    links: dict[int, set[int]] = {node: set() for node in found}
    for r in found.values():
        origins = {o for start in (r.skip, r.source) for o in _origins(flow, found, start)}
        for before in (outs[o] for o in origins if o in outs):
            if before is not r:
                links[r.node].add(before.node)
                if _mixed_later(flow, r):
                    links[before.node].add(r.node)
    return links


def _origins(flow: Flow, found: Adds, value: int) -> set[int]:
    """The same where streams are joined side by side (the long skips of a U-net): of each of them."""
    value = origin(flow, found, value)
    node = flow.trace.producer(value)
    if node is None or node.name != "cat":
        return {value}
    return {o for i in flow.activations_into(node) for o in _origins(flow, found, i)}


def _mixed_later(flow: Flow, r: Residual) -> bool:
    out = flow.trace.nodes[r.node].outputs[0]
    return any(
        flow.mixing[n.index] and flow.comes_from(n.outputs[0], out) for n in flow.trace.nodes[r.node :]
    )
