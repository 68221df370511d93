"""What flows through a recorded forward: activations, operations that mix, how parameters are used.

A *mixing* operation takes a parameter of two or more dimensions together with an activation and is neither
elementwise nor a norm. A parameter's *use* says which of its extent is contracted with an activation
(fan-in), which part is produced (fan-out), or that it acts element by element; it is taken from the
operation, never from a module's class, so a weight stored (in, out) or used through einsum is read right.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from trimtab.structure import operations
from trimtab.structure.trace import Node, Ref, Trace


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """One use of a parameter.

    Args:
        kind: "contract" (a matrix product), "lookup" (rows picked by an input) or "elementwise".
        fan_in: how many numbers are summed for one output; the rows of a lookup.
        fan_out: how many outputs there are; for an elementwise use, how many numbers take part.
        copies: independent matrices in one tensor (experts, groups of a batched product).
        node: where in the trace.
        factors: how many activations are multiplied with each other and then summed against it.
    """

    kind: str
    fan_in: int
    fan_out: int
    copies: int
    node: int
    factors: int = 1


@dataclasses.dataclass(frozen=True)
class Flow:
    """What flows through one trace, by value and by node.

    Args:
        act: by value, whether it is an activation.
        mixing: by node, whether it mixes.
        behind: by value, the bit set of values it was computed from, itself included.
        uses: by parameter name, in the order of the forward.
        joins: adds that give a stream a share of an earlier value and start with none of it (`residuals`):
            by node, the stream's side.
        adapters: adds W x + B A x of a matrix and a product of matrices: by node, the parameters of W.
    """

    trace: Trace
    act: tuple[bool, ...]
    mixing: tuple[bool, ...]
    behind: tuple[int, ...]
    uses: Mapping[str, tuple[Use, ...]]
    joins: Mapping[int, int] = dataclasses.field(default_factory=dict)
    adapters: Mapping[int, frozenset[str]] = dataclasses.field(default_factory=dict)

    def weightlike(self, value: int) -> bool:
        return _weightlike(self.trace, self.act, value)

    def comes_from(self, value: int, earlier: int) -> bool:
        """Whether `value` was computed from `earlier` (or is it)."""
        return bool(self.behind[value] >> earlier & 1)

    def activations_into(self, node: Node) -> list[int]:
        return [i for i in node.inputs if self.act[i]]

    def added_to(self, use: Use) -> list[int]:
        """The values an elementwise use is added to: all inputs of its add, or what its convolution makes."""
        if use.kind != "elementwise" or use.node < 0:
            return []
        node = self.trace.nodes[use.node]
        if node.name in operations.CONVOLUTIONS:
            return [node.outputs[0]]
        return list(node.inputs) if node.name == "add" else []

    def params_between(self, source: int, branch: int) -> set[str]:
        """Parameters used on a way from one value to another."""
        nodes = self.trace.nodes
        return {
            name
            for name, uses in self.uses.items()
            for use in uses
            if use.node >= 0
            and any(
                self.comes_from(branch, o) and self.comes_from(o, source) for o in nodes[use.node].outputs
            )
        }

    def mix_depth(self, start: int, end: int) -> int:
        """The most mixing operations on a path from one value to another; -1 without a path."""
        if not self.comes_from(end, start):
            return -1
        depth = {start: 0}
        first = max((self.trace.consumers[start] or [0])[0], 0)
        last = self.trace.values[end].node
        assert last is not None
        for node in self.trace.nodes[first : last + 1]:
            depths = [depth[i] for i in node.inputs if i in depth]
            # any of the outputs: a split makes several, and the way may go on from the second
            if (depths and any(self.comes_from(end, o) for o in node.outputs)) or end in node.outputs:
                best = max(depths, default=0) + self.mixing[node.index]
                depth |= dict.fromkeys(node.outputs, best)
        return depth.get(end, -1)

    def packed(self, name: str) -> int:
        """Of a tensor used slice by slice, each slice once and element by element: how many; else 1."""
        uses = self.uses[name]
        numbers = math.prod(self.trace.values[self.trace.params[name]].shape)
        apart = all(u.kind == "elementwise" and u.fan_out < numbers for u in uses)
        return len(uses) if uses and apart and sum(u.fan_out for u in uses) == numbers else 1

    def pieces(self, use: Use) -> tuple[int, ...]:
        """How a product's outputs are cut up at once, if they are: a projection that makes several things."""
        values = self.trace.values
        value, bias = self.trace.nodes[use.node].outputs[0], 0
        while use.fan_out in (shape := values[value].shape):
            users = [self.trace.nodes[n] for n in self.trace.consumers[value]]
            dim = max(d for d, n in enumerate(shape) if n == use.fan_out)
            if users and all(user.name in operations.CUTS for user in users):
                sizes = [values[o].shape for user in users for o in user.outputs]
                cut = tuple(s[dim] for s in sizes if len(s) == len(shape))
                return cut if len(cut) > 1 and sum(cut) == use.fan_out else ()
            if len(users) != 1:
                return ()
            added = users[0].name == "add" and any(self.weightlike(i) for i in users[0].inputs)
            if not (users[0].name in operations.REARRANGED or (added and not bias)):
                return ()
            value, bias = users[0].outputs[0], bias + added
        return ()


def flow(trace: Trace) -> Flow:
    """Activations, mixing operations, ancestors and parameter uses of a trace.

    >>> import torch
    >>> from trimtab.structure.recording import record
    >>> found = flow(record(torch.nn.Linear(3, 5), torch.zeros(2, 3)))
    >>> [(use.kind, use.fan_in, use.fan_out) for use in found.uses["weight"]]
    [('contract', 3, 5)]
    """
    act = _activations(trace)
    mixing = tuple(_mixes(trace, act, node) for node in trace.nodes)
    uses = {name: _uses(trace, act, mixing, index) for name, index in trace.params.items()}
    return Flow(trace=trace, act=act, mixing=mixing, behind=_ancestors(trace), uses=uses)


def _activations(trace: Trace) -> tuple[bool, ...]:
    """Which values are activations: what depends on inputs, learned tokens repeated over the batch, and fixed
    tables that a network of their own reads (positions)."""
    tables = {i for node in trace.nodes for i in _tables(trace, node)}
    act = [v.source == "input" or v.index in tables for v in trace.values]
    for node in trace.nodes:
        if not node.outputs:
            continue
        out = trace.values[node.outputs[0]]
        is_act = any(act[i] for i in node.inputs) and out.from_input
        if not is_act and node.name in ("expand", "repeat") and node.inputs:
            grown = math.prod(out.shape) > math.prod(trace.values[node.inputs[0]].shape)
            is_act = out.from_param and out.is_float and grown and not _only_multiplied(trace, node)
        is_act = is_act or any(act[i] and not trace.values[i].from_input for i in node.inputs)
        for o in node.outputs:
            act[o] = is_act or o in tables
    return tuple(act)


def _tables(trace: Trace, node: Node) -> list[int]:
    """Constants that a weight multiplies, where something nonlinear follows before any input is met: they are
    an input of their own. A basis times coefficients, which is a weight, is followed by nothing. And learned
    tables that a whole layer reads (DeBERTa's positions)."""
    if node.name not in operations.MATMULS or not node.outputs:
        return []
    if _is_layer_of_parameters(trace, node):
        return [node.inputs[0]]
    weights = [i for i in node.inputs if trace.values[i].from_param]
    tables = [i for i in node.inputs if trace.values[i].constant and trace.values[i].is_float]
    if not weights or not tables or trace.values[node.outputs[0]].from_input:
        return []
    todo, seen = list(node.outputs), set(node.outputs)
    while todo:
        for user in (trace.nodes[n] for n in trace.consumers[todo.pop()]):
            bends = user.pointwise and user.name not in operations.LINEAR | {"add", "sub", "mul", "div"}
            if bends or user.name in operations.ACTIVATIONS:
                return tables
            new = [o for o in user.outputs if not trace.values[o].from_input and o not in seen]
            todo += new
            seen.update(new)
    return []


def _is_layer_of_parameters(trace: Trace, node: Node) -> bool:
    """A product of two parameters to which a bias is added: a layer that reads a learned table. The product
    of an adapter, which is a weight, has none."""
    if len(node.inputs) != 2 or not all(trace.values[i].from_param for i in node.inputs):
        return False
    if trace.values[node.outputs[0]].from_input:
        return False
    value = node.outputs[0]
    while len(users := trace.consumers[value]) == 1 and trace.nodes[users[0]].name in operations.REARRANGED:
        value = trace.nodes[users[0]].outputs[0]
    if len(users) != 1 or (user := trace.nodes[users[0]]).name != "add":
        return False
    return any(trace.values[i].source == "param" and len(trace.values[i].shape) == 1 for i in user.inputs)


def _only_multiplied(trace: Trace, node: Node) -> bool:
    """An expanded weight goes straight into a batched product; a token goes anywhere else."""
    todo = list(trace.consumers[node.outputs[0]])
    while todo:
        user = trace.nodes[todo.pop()]
        if user.name in operations.MATMULS:
            operands = [trace.values[i] for i in user.inputs]
            if all(v.from_param and not v.from_input for v in operands):
                return False  # by another weight: a query that is learned (attention pooling)
            continue
        if user.name not in operations.LINEAR:
            return False
        todo += [c for o in user.outputs for c in trace.consumers[o]]
    return True


def _weightlike(trace: Trace, act: Sequence[bool], value: int) -> bool:
    v = trace.values[value]
    return v.from_param and not act[value] and v.is_float


def _mixes(trace: Trace, act: Sequence[bool], node: Node) -> bool:
    elementwise = node.pointwise or node.name in operations.JOINT or node.name in operations.ACTIVATIONS
    if elementwise or node.name in operations.NORMS:
        return _sums_products(trace, act, node) is not None
    weights = [i for i in node.inputs if _weightlike(trace, act, i) and len(trace.values[i].shape) >= 2]
    if not weights or not any(act[i] for i in node.inputs):
        return False
    return node.name not in operations.LINEAR or node.name in operations.LOOKUPS


def _sums_products(trace: Trace, act: Sequence[bool], node: Node) -> tuple[int, int] | None:
    """(x * w).sum(dim): a matrix product written by hand. Its (fan-in, fan-out)."""
    if node.name != "mul" or not node.outputs:
        return None
    weights = [i for i in node.inputs if _weightlike(trace, act, i)]
    users = trace.consumers[node.outputs[0]]
    if len(weights) != 1 or len(users) != 1 or not any(act[i] for i in node.inputs):
        return None
    user = trace.nodes[users[0]]
    if user.name != "sum" or len(user.args) < 2 or not isinstance(user.args[1], list | tuple):
        return None
    rank = len(trace.values[node.outputs[0]].shape)
    shape = trace.values[weights[0]].shape
    shape = (1,) * (rank - len(shape)) + shape
    summed = {d % rank for d in user.args[1]}
    fan_in = math.prod(n for d, n in enumerate(shape) if d in summed)
    return (fan_in, math.prod(shape) // max(fan_in, 1)) if fan_in > 1 else None


def _ancestors(trace: Trace) -> tuple[int, ...]:
    behind = [1 << v.index for v in trace.values]
    for node in trace.nodes:
        together = 0
        for i in node.inputs:
            together |= behind[i]
        for o in node.outputs:
            behind[o] |= together
    return tuple(behind)


def _uses(trace: Trace, act: Sequence[bool], mixing: Sequence[bool], param: int) -> tuple[Use, ...]:
    """Follow a parameter through views, casts and other parameters until it meets an activation."""
    size = lambda value: math.prod(trace.values[value].shape)  # noqa: E731
    found: list[Use] = []
    todo, seen = [(param, False)], {param}
    while todo:
        # what a value is made of comes before what scales or shifts it (the mean that a weight is rid of)
        value, factor = todo.pop(next((i for i, (_, f) in enumerate(todo) if not f), 0))
        for user in (trace.nodes[n] for n in trace.consumers[value]):
            if any(act[o] for o in user.outputs):
                found.append(_use(trace, act, mixing, user, value, size(param), factor))
                continue
            if user.name in operations.MATMULS or user.name in operations.CONVOLUTIONS:
                if all(trace.values[i].constant for i in user.inputs if i != value):
                    # of a fixed table (sinusoids)
                    found.append(_use(trace, act, mixing, user, value, size(param), factor))
                else:  # a product of parameters: which extent meets the input is not followed
                    found.append(Use("unknown", 1, size(value), 1, user.index))
                continue
            for o in user.outputs:
                if o in seen or not trace.values[o].is_float:
                    continue
                seen.add(o)
                # A factor of a weight (the g of weight_norm) has fewer numbers than the weight it makes.
                spread = user.pointwise or user.name.startswith("_weight_norm")
                todo.append((o, factor or (spread and size(o) > size(value))))
        if value in trace.outputs:
            found.append(Use("elementwise", 1, size(value), 1, -1))
    return tuple(sorted(found, key=lambda use: use.node))


def _use(
    trace: Trace,
    act: Sequence[bool],
    mixing: Sequence[bool],
    node: Node,
    value: int,
    numel: int,
    factor: bool,
) -> Use:
    """The use that one operation makes of a parameter of `numel` numbers, met as `value`."""
    shape = trace.values[value].shape
    size = math.prod(shape)
    by_hand = _sums_products(trace, act, node)
    if by_hand is not None:
        return Use("contract", by_hand[0], by_hand[1], 1, node.index)
    elementwise = Use("elementwise", 1, min(size, numel), 1, node.index)
    if factor or (not mixing[node.index] and node.name not in operations.MATMULS):
        return elementwise
    refs = [a.index for a in node.args if isinstance(a, Ref)]
    if node.name in operations.MATMULS:
        if len(shape) == 1:
            return Use("contract", size, 1, 1, node.index)
        fan_in, fan_out = (shape[-1], shape[-2]) if refs[0] == value else (shape[-2], shape[-1])
        copies = max(1, min(math.prod(shape[:-2]), numel // max(1, fan_in * fan_out)))
        return Use("contract", fan_in, fan_out, copies, node.index)
    if node.name in operations.CONVOLUTIONS:
        if refs[1] != value:
            return elementwise
        transposed, groups = bool(node.args[6]), int(node.args[8])
        channels, out = (shape[0] // groups, shape[1] * groups) if transposed else (shape[1], shape[0])
        if groups > 1 and channels == 1:
            return elementwise
        return Use("contract", channels * math.prod(shape[2:]), out, 1, node.index)
    if node.name == operations.TRILINEAR:
        fan_in = _summed(node, refs.index(value), shape)
        return Use("contract", fan_in, size // fan_in, 1, node.index, factors=2)
    if node.name in operations.LOOKUPS:
        by_row = node.name in operations.TABLES or node.name == "index"
        rows = shape[0] if by_row else shape[int(node.args[1])]
        return Use("lookup", rows, size // max(rows, 1), 1, node.index)
    if node.name == "linear" and len(shape) == 2:
        return Use("contract", shape[1], shape[0], 1, node.index)
    return Use("unknown", 1, size, 1, node.index)


def _summed(node: Node, factor: int, shape: tuple[int, ...]) -> int:
    """How many numbers of one factor of a product of three are summed for one output."""
    expanded, summed = node.args[3 + factor], node.args[6]
    own = iter(shape)
    full = [1 if d in expanded else next(own) for d in range(len(shape) + len(expanded))]
    return math.prod(full[d] for d in summed)
