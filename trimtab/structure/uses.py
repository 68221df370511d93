"""What flows through a recorded forward: which values are activations, which operations mix, how parameters are used.

A *mixing* operation takes a parameter of two or more dimensions together with an activation and is neither elementwise
nor a norm. A parameter's *use* says which of its extent is contracted with an activation (fan-in), which part is
produced (fan-out), or that it acts element by element; it is taken from the operation, never from a module's class, so
a weight stored (in, out) or used through einsum is read right.
"""

from __future__ import annotations

import dataclasses
import math

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
    """

    kind: str
    fan_in: int
    fan_out: int
    copies: int
    node: int


class Flow:
    """Activations, mixing operations, ancestors and parameter uses of one trace."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.act = self._activations()
        self.mixing = [self._mixes(node) for node in trace.nodes]
        self.behind = self._ancestors()
        self.uses = {name: self._uses(index) for name, index in trace.params.items()}

    # -- what flows ----------------------------------------------------------------------------------------------

    def _activations(self) -> list[bool]:
        """Which values are activations: what depends on the inputs, and learned tokens repeated over the batch."""
        act = [v.source == "input" for v in self.trace.values]
        for node in self.trace.nodes:
            is_act = (
                any(act[i] for i in node.inputs) and self.trace.values[node.outputs[0]].from_input
                if node.outputs
                else False
            )
            if not is_act and node.name in ("expand", "repeat") and node.outputs:
                v = self.trace.values[node.outputs[0]]
                grown = (
                    math.prod(v.shape) > math.prod(self.trace.values[node.inputs[0]].shape)
                    if node.inputs
                    else False
                )
                is_act = v.from_param and v.is_float and grown and not self._only_multiplied(node)
            is_act = is_act or any(act[i] and not self.trace.values[i].from_input for i in node.inputs)
            for o in node.outputs:
                act[o] = is_act
        return act

    def _only_multiplied(self, node: Node) -> bool:
        """An expanded weight goes straight into a batched product; a token goes anywhere else."""
        todo = list(self.trace.consumers[node.outputs[0]])
        while todo:
            user = self.trace.nodes[todo.pop()]
            if user.name in operations.MATMULS:
                if all(
                    self.trace.values[i].from_param and not self.trace.values[i].from_input
                    for i in user.inputs
                ):
                    return False  # by another weight: a query that is learned (attention pooling)
                continue
            if user.name not in operations.LINEAR:
                return False
            todo += [c for o in user.outputs for c in self.trace.consumers[o]]
        return True

    def weightlike(self, value: int) -> bool:
        v = self.trace.values[value]
        return v.from_param and not self.act[value] and v.is_float

    def _mixes(self, node: Node) -> bool:
        values = self.trace.values
        if (
            node.pointwise
            or node.name in operations.NORMS
            or node.name in operations.JOINT
            or node.name in operations.ACTIVATIONS
        ):
            return self._sums_products(node) is not None
        weights = [i for i in node.inputs if self.weightlike(i) and len(values[i].shape) >= 2]
        if not weights or not any(self.act[i] for i in node.inputs):
            return False
        return node.name not in operations.LINEAR or node.name in operations.LOOKUPS

    def _sums_products(self, node: Node) -> tuple[int, int] | None:
        """(x * w).sum(dim): a matrix product written by hand. Its (fan-in, fan-out)."""
        if node.name != "mul" or not node.outputs:
            return None
        weights = [i for i in node.inputs if self.weightlike(i)]
        users = self.trace.consumers[node.outputs[0]]
        if len(weights) != 1 or len(users) != 1 or not any(self.act[i] for i in node.inputs):
            return None
        user = self.trace.nodes[users[0]]
        if user.name != "sum" or len(user.args) < 2 or not isinstance(user.args[1], list | tuple):
            return None
        rank = len(self.trace.values[node.outputs[0]].shape)
        shape = self.trace.values[weights[0]].shape
        shape = (1,) * (rank - len(shape)) + shape
        summed = {d % rank for d in user.args[1]}
        fan_in = math.prod(n for d, n in enumerate(shape) if d in summed)
        return (fan_in, math.prod(shape) // max(fan_in, 1)) if fan_in > 1 else None

    def _ancestors(self) -> list[int]:
        """For each value the bit set of values it was computed from, itself included."""
        behind = [1 << v.index for v in self.trace.values]
        for node in self.trace.nodes:
            together = 0
            for i in node.inputs:
                together |= behind[i]
            for o in node.outputs:
                behind[o] |= together
        return behind

    # -- parameter uses ------------------------------------------------------------------------------------------

    def _uses(self, param: int) -> list[Use]:
        """Follow a parameter through views, casts and other parameters until it meets an activation."""
        numel = math.prod(self.trace.values[param].shape)
        found: list[Use] = []
        todo, seen = [(param, False)], {param}
        while todo:
            value, factor = todo.pop()
            for user in (self.trace.nodes[n] for n in self.trace.consumers[value]):
                if any(self.act[o] for o in user.outputs):
                    found.append(self._use(user, value, numel, factor))
                    continue
                if user.name in operations.MATMULS or user.name in operations.CONVOLUTIONS:
                    if all(
                        self.trace.values[i].constant for i in user.inputs if i != value
                    ):  # of a fixed table (sinusoids)
                        found.append(self._use(user, value, numel, factor))
                    else:  # a product of parameters: which extent meets the input is not followed
                        found.append(
                            Use("unknown", 1, math.prod(self.trace.values[value].shape), 1, user.index)
                        )
                    continue
                for o in user.outputs:
                    if o not in seen and self.trace.values[o].is_float:
                        seen.add(o)
                        # A factor of a weight (the g of weight_norm) has fewer numbers than the weight it makes.
                        grown = (user.pointwise or user.name.startswith("_weight_norm")) and math.prod(
                            self.trace.values[o].shape
                        ) > math.prod(self.trace.values[value].shape)
                        todo.append((o, factor or grown))
            if value in self.trace.outputs:
                found.append(Use("elementwise", 1, math.prod(self.trace.values[value].shape), 1, -1))
        return sorted(found, key=lambda use: use.node)

    def pieces(self, use: Use) -> tuple[int, ...]:
        """How a product's outputs are cut up at once, if they are: a projection that makes several things."""
        value, bias = self.trace.nodes[use.node].outputs[0], 0
        while True:
            shape = self.trace.values[value].shape
            users = [self.trace.nodes[n] for n in self.trace.consumers[value]]
            if use.fan_out not in shape:
                return ()
            dim = max(d for d, n in enumerate(shape) if n == use.fan_out)
            if users and all(user.name in operations.CUTS for user in users):
                sizes = [self.trace.values[o].shape for user in users for o in user.outputs]
                cut = tuple(s[dim] for s in sizes if len(s) == len(shape))
                return cut if len(cut) > 1 and sum(cut) == use.fan_out else ()
            added = (
                len(users) == 1
                and users[0].name == "add"
                and any(self.weightlike(i) for i in users[0].inputs)
            )
            if len(users) != 1 or not (users[0].name in operations.REARRANGED or (added and not bias)):
                return ()
            value, bias = users[0].outputs[0], bias + added

    def _use(self, node: Node, value: int, numel: int, factor: bool) -> Use:
        shape = self.trace.values[value].shape
        size = math.prod(shape)
        refs = [a.index for a in node.args if isinstance(a, Ref)]
        elementwise = Use("elementwise", 1, min(size, numel), 1, node.index)
        by_hand = self._sums_products(node)
        if by_hand is not None:
            return Use("contract", by_hand[0], by_hand[1], 1, node.index)
        if factor or (not self.mixing[node.index] and node.name not in operations.MATMULS):
            return elementwise
        if node.name in operations.MATMULS:
            left = refs[0] == value
            if len(shape) == 1:
                return Use("contract", size, 1, 1, node.index)
            fan_in, fan_out = (shape[-1], shape[-2]) if left else (shape[-2], shape[-1])
            copies = max(1, min(math.prod(shape[:-2]), numel // max(1, fan_in * fan_out)))
            return Use("contract", fan_in, fan_out, copies, node.index)
        if node.name in operations.CONVOLUTIONS:
            if refs[1] != value:
                return elementwise
            transposed, groups = bool(node.args[6]), int(node.args[8])
            kernel = math.prod(shape[2:])
            channels, out = (shape[0] // groups, shape[1] * groups) if transposed else (shape[1], shape[0])
            if groups > 1 and channels == 1:
                return elementwise
            return Use("contract", channels * kernel, out, 1, node.index)
        if node.name in operations.LOOKUPS:
            rows = (
                shape[0]
                if node.name in operations.TABLES or node.name == "index"
                else shape[int(node.args[1])]
            )
            return Use("lookup", rows, size // max(rows, 1), 1, node.index)
        if node.name == "linear" and len(shape) == 2:
            return Use("contract", shape[1], shape[0], 1, node.index)
        return Use("unknown", 1, size, 1, node.index)
