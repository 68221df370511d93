"""The branches of a residual network: what ends each, which lie inside which, which share a stream.

The **tail** of a branch (`tails`) is what its multiplier folds into. A **stack** is a chain of branches on
one stream; its number of branches is what depth counts. Each pass here takes the adds of the pass before and
returns new ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from trimtab.structure import operations
from trimtab.structure.proofs import proven
from trimtab.structure.residuals import Patterns, Residual, numbered, origin, passed_on, residual_adds
from trimtab.structure.tails import Blocked, tails
from trimtab.structure.uses import Flow

OUT = -1  # stands for the model's output where residual adds are listed
UNPROVEN = "parameters that do not scale it when they are scaled"

# A residual add and the side ("skip" or "branch") a value meets it on, or (OUT, "out").
Meeting = tuple[int, str]
Reach = tuple[frozenset[Meeting], ...]
Refuted = Callable[[set[str]], bool]


@dataclasses.dataclass(frozen=True)
class Branches:
    """The residual branches of one trace, and for each value the adds it meets first on its way out.

    Args:
        refuted: the parameters of branches whose every tail the numbers refuted.
    """

    flow: Flow
    residuals: tuple[Residual, ...]
    reach: Reach
    refuted: tuple[frozenset[str], ...] = ()

    @property
    def nodes(self) -> frozenset[int]:
        """Where in the trace the residual adds are (a branch that only the user sees ends in no add)."""
        return frozenset(r.node for r in self.residuals if r.skip != r.branch)

    def normed(self, index: int) -> bool:
        """A norm stands on the stream after an add, before the next one of its stack."""
        r = self.residuals[index]
        following = [q for q in self.residuals if q.stack == r.stack and q.index > index]
        before = [q for q in self.residuals if q.stack == r.stack and q.index < index]
        if following:
            return _normed_between(self.flow, r, following[0])
        return bool(before) and _normed_between(self.flow, before[-1], r)

    def kept(self, index: int) -> float:
        """What a block keeps of its stream at the start: the number on its skip, and that on the sum of the
        block before."""
        r = self.residuals[index]
        adds = {q.node for q in self.residuals if q.stack == r.stack}
        return r.kept * passed_on(self.flow, r.source, adds)

    def enclosing(self, index: int) -> tuple[int, ...]:
        """The branches a residual add itself lies in, innermost first (nested residual networks).

        Its stream must come from that branch's own skip: an encoder whose only reader is one decoder branch
        lies in none, and of two streams that read each other (a reversible network) neither lies in the
        other.
        """
        chain: list[int] = []
        skip = self.residuals[index].skip
        while True:
            met = self.reach[self.flow.trace.nodes[self.residuals[index].node].outputs[0]]
            skips = [i for i, side in met if side == "skip" and i > index]
            branches = [i for i, side in met if side == "branch"]
            if skips:  # on along its own stream
                index = max(skips)
                continue
            if len(branches) != 1 or branches[0] <= index:
                return tuple(chain)
            (index,) = branches
            if not self.flow.comes_from(skip, self.residuals[index].source):
                return tuple(chain)
            chain.append(index)
            skip = self.residuals[index].skip


def branches(flow: Flow, patterns: Patterns, label: str, known_refuted: Refuted) -> Branches:
    """The residual branches with their tails and stacks.

    Args:
        known_refuted: says of a branch's parameters that numbers elsewhere (those of the base) have refuted
            its every tail; a trace without numbers cannot find that out.
    """
    found = _with_reach(*residual_adds(flow, patterns, label))
    found = _with_tails(found, known_refuted)
    found = _without_inner_sums(found)
    return dataclasses.replace(found, residuals=_with_stacks(found))


def _with_reach(flow: Flow, residuals: tuple[Residual, ...]) -> Branches:
    at = {r.node: r for r in residuals}
    reach: list[frozenset[Meeting]] = [frozenset()] * len(flow.trace.values)
    for value in reversed(range(len(reach))):
        met: set[Meeting] = {(OUT, "out")} if value in flow.trace.outputs else set()
        for user in flow.trace.consumers[value]:
            r = at.get(user)
            if r is None:
                for o in flow.trace.nodes[user].outputs:
                    met |= reach[o]
            else:
                met |= {(r.index, "skip")} if value == r.skip else set()
                met |= {(r.index, "branch")} if value == r.branch else set()
        reach[value] = frozenset(met)
    return Branches(flow=flow, residuals=residuals, reach=tuple(reach))


def _with_tails(found: Branches, known_refuted: Refuted) -> Branches:
    """Each add with the tail that numbers prove, or with the reason why there is none."""
    flow, refuted = found.flow, []
    # A parameter that also acts on the stream cannot carry a branch's factor.
    on_stream = {n for n, p in flow.trace.params.items() if any(side == "skip" for _, side in found.reach[p])}
    residuals: list[Residual] = []
    for r in found.residuals:
        try:
            candidates = tails(flow.trace, r.branch, stop=r.source)
        except Blocked as blocked:
            residuals.append(dataclasses.replace(r, blocked=str(blocked)))
            continue
        candidates = [t for t in candidates if not any(site.name in on_stream for site in t)]
        inside = flow.params_between(r.source, r.branch)
        tail = next(
            proven(flow.trace, candidates, r.branch, flow.behind[r.branch], flow.behind[r.skip]), None
        )
        if tail is None or (not flow.trace.real and known_refuted(inside)):
            refuted.append(frozenset(inside))
            tail, blocked = {}, UNPROVEN
        else:
            blocked = ""
        residuals.append(dataclasses.replace(r, tail=tail, candidates=tuple(candidates), blocked=blocked))
    return dataclasses.replace(found, residuals=tuple(residuals), refuted=tuple(refuted))


def _without_inner_sums(found: Branches) -> Branches:
    """Inside a branch, an add that nothing folds into is the branch's arithmetic (an SSM's D x + scan)."""
    kept = [r for r in found.residuals if r.tail or not found.enclosing(r.index)]
    if len(kept) == len(found.residuals):
        return found
    return dataclasses.replace(_with_reach(found.flow, numbered(kept)), refuted=found.refuted)


def _with_stacks(found: Branches) -> tuple[Residual, ...]:
    """A stack is a chain of branches on one stream; a projection shortcut starts a new one."""
    flow, adds = found.flow, {r.node: r for r in found.residuals}
    outs = {flow.trace.nodes[r.node].outputs[0]: r.index for r in found.residuals}
    stack, kind, stacks = [-1] * len(adds), [r.kind for r in found.residuals], 0
    for r in found.residuals:
        before = outs.get(origin(flow, adds, r.skip))
        if before is not None and found.enclosing(before)[:1] != found.enclosing(r.index)[:1]:
            before = None  # the first add inside a branch starts a stream of its own
        if kind[r.index] == "projection" or before is None or before == r.index:
            stack[r.index], stacks = stacks, stacks + 1
            continue
        stack[r.index] = stack[before]
        if kind[r.index] == "identity" and _normed_between(flow, found.residuals[before], r):
            kind[r.index] = kind[before] = "post-norm"
    return _post_norm_ends(found.residuals, stack, kind)


def _post_norm_ends(
    residuals: Sequence[Residual], stack: Sequence[int], kind: Sequence[str]
) -> tuple[Residual, ...]:
    """The last add of a post-norm stack has no next one to show it: it is of its stack's kind."""
    normed = {k for k, how in zip(stack, kind, strict=True) if how == "post-norm"}
    return tuple(
        dataclasses.replace(r, stack=k, kind="post-norm" if how == "identity" and k in normed else how)
        for r, k, how in zip(residuals, stack, kind, strict=True)
    )


def _normed_between(flow: Flow, before: Residual, r: Residual) -> bool:
    """A norm on the stream between two adds."""
    out = flow.trace.nodes[before.node].outputs[0]
    value = r.skip
    while value != out and (node := flow.trace.producer(value)) is not None:
        acts = flow.activations_into(node)
        if node.name in operations.NORMS:
            return True
        if node.name == "rsqrt" or not acts:
            return node.name == "rsqrt"
        if len(acts) == 2 and node.name in ("mul", "div"):
            by = [p.name for p in map(flow.trace.producer, acts) if p is not None]
            return any(name in ("rsqrt", "sqrt", "reciprocal", "linalg_vector_norm") for name in by)
        value = acts[0]
    return False
