"""How many like paths a branch is the sum of: x + sum_k f_k(x).

A sum of K like paths is K branches: its multiplier follows their number as it follows the depth. Paths are in
a list (a chain of adds) or in one tensor (a batched product, summed over its copies). Where each path is
weighed by a gate of its own per position, it is a mixture: its paths are experts, and the weights carry 1/K.
"""

from __future__ import annotations

import dataclasses
import math
import re

from trimtab.structure import operations
from trimtab.structure.residuals import Residual
from trimtab.structure.tails import constant_factor, is_zero
from trimtab.structure.trace import Node, Ref
from trimtab.structure.uses import Flow


@dataclasses.dataclass(frozen=True, slots=True)
class Paths:
    """The like paths of one branch.

    Args:
        count: how many there are; 1 of an ordinary branch.
        own: parameters that one path alone uses; what all of them share is not among them.
        mixed: each is weighed by a gate.
    """

    count: int = 1
    own: frozenset[str] = frozenset()
    mixed: bool = False


def paths_of(flow: Flow, r: Residual) -> Paths:
    """The paths that a branch is the sum of."""
    summands = _summands(flow, r.branch, r.source)
    if len(summands) > 1:
        return _listed(flow, r, summands)
    return _stacked(flow, r)


def _listed(flow: Flow, r: Residual, summands: list[int]) -> Paths:
    inside = [flow.params_between(r.source, value) for value in summands]
    used = [name for names in inside for name in names]
    own = [{name for name in names if used.count(name) == 1} for names in inside]
    called = {tuple(sorted(re.sub(r"\d+", "#", name) for name in names)) for names in own}
    if len(called) != 1 or not own[0]:
        return Paths()
    mixed = all(_gated(flow, value) for value in summands)
    return Paths(len(summands), frozenset().union(*own), mixed)


def _summands(flow: Flow, value: int, source: int) -> list[int]:
    """What a value is the sum of, constants and views looked through."""
    node = flow.trace.producer(value)
    if node is None or not flow.comes_from(value, source) or flow.mixing[node.index]:
        return [value]
    acts = flow.activations_into(node)
    if node.name == "add" and len(acts) == 2 and all(flow.comes_from(i, source) for i in acts):
        return [s for i in acts for s in _summands(flow, i, source)]
    alone = len(acts) == 1 and (
        node.name in operations.REARRANGED
        or constant_factor(flow.trace, node) is not None
        or (node.name == "add" and _adds_nothing(flow, node))
    )
    if alone:
        found = _summands(flow, acts[0], source)
        return found if len(found) > 1 or node.name == "add" else [value]
    if node.name == "sum" and len(acts) == 1:  # torch.stack(...).sum(0)
        maker = flow.trace.producer(acts[0])
        parts = flow.activations_into(maker) if maker is not None and maker.name in ("stack", "cat") else []
        whole = math.prod(flow.trace.values[value].shape)
        if parts and all(math.prod(flow.trace.values[i].shape) == whole for i in parts):
            return parts
    return [value]


def _adds_nothing(flow: Flow, node: Node) -> bool:
    others = [a for a in node.args[:2] if not (isinstance(a, Ref) and flow.act[a.index])]
    return all(is_zero(flow.trace, a.index) if isinstance(a, Ref) else a == 0 for a in others)


def _gated(flow: Flow, value: int) -> bool:
    """A product of two activations, one of them a number per position."""
    node = flow.trace.producer(value)
    if node is None or node.name != "mul":
        return False
    sizes = [math.prod(flow.trace.values[i].shape) for i in flow.activations_into(node)]
    return len(sizes) == 2 and min(sizes) < max(sizes)


def _stacked(flow: Flow, r: Residual) -> Paths:
    """A batched product with a weight per path, summed over the paths."""
    value, trace = r.branch, flow.trace
    while (node := trace.producer(value)) is not None and node.name in operations.REARRANGED:
        value = node.inputs[0]
    if node is None or node.name != "sum" or len(node.args) < 2 or not isinstance(node.args[1], list | tuple):
        return Paths()
    shape = trace.values[node.inputs[0]].shape
    count = math.prod(shape[d] for d in node.args[1])
    inside = flow.params_between(r.source, r.branch)
    own = {n for n in inside if trace.values[trace.params[n]].shape[:1] == (count,)}
    products = {n for n in own if any(u.kind == "contract" and u.copies == count for u in flow.uses[n])}
    return Paths(count, frozenset(own)) if products and count > 1 else Paths()
