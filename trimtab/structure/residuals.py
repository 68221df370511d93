"""The residual adds of a recorded forward: which adds are `skip + branch`, what ends each branch, which share a stream.

An add is residual when one side is an ancestor of the other with at least one mixing operation in between (identity), or
when one side is a short linear path and the other a long one (projection). Gates, recurrences, two-tower sums and position
adds use the same operation and are told apart here. A **stack** is a chain of branches on one stream; a **tail** (`tails`)
is what a branch's multiplier folds into.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterable

from trimtab.errors import StructureError
from trimtab.structure import operations
from trimtab.structure.tails import THE_SKIP, Blocked, Tail, constant_factor, proven, tails
from trimtab.structure.trace import Node, Ref, Trace
from trimtab.structure.uses import Flow

OUT = -1  # stands for the model's output where residual adds are listed


@dataclasses.dataclass(slots=True, eq=False)
class Residual:
    """A residual add: `skip + branch`, the branch starting from `source`."""

    index: int
    node: int
    skip: int
    branch: int
    source: int
    kind: str
    skip_factor: float = 1.0
    tail: Tail = dataclasses.field(default_factory=dict)
    candidates: list[Tail] = dataclasses.field(default_factory=list)
    blocked: str = ""  # why there is no tail
    stack: int = -1
    crossed: frozenset[str] = frozenset()  # parameters of a projection shortcut


class Residuals(Flow):
    """The residual adds of one trace.

    Args:
        branch, skip: the user's name patterns that settle what structure cannot.
        refuted: says of a branch's parameters that numbers elsewhere (those of the base) have refuted its every tail; a
            trace without numbers cannot find that out.
    """

    def __init__(
        self,
        trace: Trace,
        label: str = "model",
        *,
        branch: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
        refuted: Callable[[Iterable[str]], bool] = lambda _: False,
    ):
        super().__init__(trace)
        self.label = label
        self._branch_patterns, self._skip_patterns = branch, skip
        self._known_refuted = refuted
        self.refuted: list[set[str]] = []  # the parameters of branches whose every tail the numbers refuted
        self.residuals = self._residuals()
        self.reach = self._reach()
        self._find_tails()
        self._drop_inner_sums()
        self._assign_stacks()

    def _mix_depth(self, start: int, end: int) -> int:
        """The most mixing operations on a path from one value to another; -1 without a path."""
        if not self.behind[end] >> start & 1:
            return -1
        depth = {start: 0}
        values = self.trace.values
        first = max((self.trace.consumers[start] or [0])[0], 0)
        last = values[end].node
        assert last is not None
        for node in self.trace.nodes[first : last + 1]:
            depths = [depth[i] for i in node.inputs if i in depth]
            if (depths and node.outputs and self.behind[end] >> node.outputs[0] & 1) or any(
                o == end for o in node.outputs
            ):
                best = max(depths, default=0) + self.mixing[node.index]
                for o in node.outputs:
                    depth[o] = best
        return depth.get(end, -1)

    def _skip_chain(self, value: int, *, cross: bool) -> list[tuple[int, str, float, frozenset[str]]]:
        """Values that `value` is a short linear function of: (value, how, constant factor, parameters crossed).

        With `cross`, one mixing operation and norms may lie on the way: a projection shortcut.
        """
        values = self.trace.values
        how, factor, crossed, mixed = "identity", 1.0, frozenset[str](), False
        chain = [(value, how, factor, crossed)]
        while (node := self.trace.producer(value)) is not None:
            acts = [i for i in node.inputs if self.act[i]]
            residual = self._at.get(node.index)
            if residual is not None:
                value, how = residual.skip, "parallel" if how == "identity" else how
            elif (
                node.name in operations.REARRANGED
                and len(acts) == 1
                and math.prod(values[acts[0]].shape) == math.prod(values[value].shape)
            ):
                value = acts[
                    0
                ]  # the whole tensor: a slice of it (one step of a recurrence) is something else
            elif (node.name == "mul" and len(acts) == 1) or (
                node.name == "div" and len(acts) == 1 and constant_factor(self.trace, node) is not None
            ):
                value, how = acts[0], "scaled" if how in ("identity", "parallel") else how
                factor *= constant_factor(self.trace, node) or 1.0
            elif (
                cross
                and len(acts) == 1
                and (
                    node.name in operations.NORMS
                    or node.name in operations.POOLS
                    or node.name == "constant_pad_nd"
                )
            ):
                value, how = acts[0], "projection"
            elif (
                cross
                and len(acts) == 1
                and self.mixing[node.index]
                and not mixed
                and node.name not in operations.LOOKUPS
            ):
                value, how, mixed = acts[0], "projection", True
                crossed |= {n for n, uses in self.uses.items() if any(u.node == node.index for u in uses)}
            elif (
                cross
                and node.name == "add"
                and len(acts) == 1
                and all(self.weightlike(i) for i in node.inputs if i != acts[0])
            ):
                value, how = acts[0], "projection"
            else:
                break
            if not values[value].is_float:
                break
            chain.append((value, how, factor, crossed))
        return chain

    def _residuals(self) -> list[Residual]:
        self._at: dict[int, Residual] = {}
        values = self.trace.values
        found: list[Residual] = []
        asked: list[Residual] = []
        for node in self.trace.nodes:
            if node.name not in ("add", "sub") or len(node.args) < 2:
                continue
            a, b = node.args[0], node.args[1]
            if not (isinstance(a, Ref) and isinstance(b, Ref)):
                continue
            sides = (a.index, b.index)
            shape = values[node.outputs[0]].shape
            if any(values[i].constant or not values[i].is_float for i in sides) or not any(
                self.act[i] for i in sides
            ):
                continue
            residual = self._match(node, sides, shape, cross=False) or self._match(
                node, sides, shape, cross=True
            )
            if residual is None:
                continue
            if residual.kind == "projection":
                asked.append(residual)
            self._at[node.index] = residual
            found.append(residual)
        unproven = self._unproven_projections(found, asked)
        found = [r for r in found if r not in unproven]
        self._at = {r.node: r for r in found}
        for index, r in enumerate(found):
            r.index = index
        return found

    def _match(
        self, node: Node, sides: tuple[int, int], shape: tuple[int, ...], *, cross: bool
    ) -> Residual | None:
        values = self.trace.values
        for skip, branch in (sides, sides[::-1]):
            if skip == branch or any(values[i].shape != shape or not self.act[i] for i in (skip, branch)):
                continue
            for source, how, factor, crossed in self._skip_chain(skip, cross=cross):
                if cross != (how == "projection"):
                    continue
                if how == "parallel" and self.behind[branch] >> skip & 1:
                    break  # it reads the sum itself, so what an earlier branch mixed is not its own
                depth = self._mix_depth(source, branch)
                if depth < (2 if crossed else 1) and not (
                    how == "identity" and depth == 0 and self._stirs(source, branch)
                ):
                    continue
                inside = self._params_between(source, branch)
                if (
                    crossed & inside
                    or self._matches(inside, self._skip_patterns)
                    or self._interpolates(node, branch, source)
                ):
                    break
                kind = self._kind(how, branch, source)
                return Residual(-1, node.index, skip, branch, source, kind, factor, crossed=crossed)
        return None

    def _stirs(self, source: int, branch: int) -> bool:
        """A branch without a matrix that still mixes positions (pooling, Fourier) and ends in a gain it is homogeneous in."""
        between = [
            n
            for n in self.trace.nodes
            if n.name in operations.STIRRING
            and n.outputs
            and self.behind[branch] >> n.outputs[0] & 1
            and self.behind[n.outputs[0]] >> source & 1
        ]
        try:
            return bool(between) and bool(tails(self.trace, branch, stop=source))
        except Blocked:
            return False

    def _interpolates(self, node: Node, branch: int, source: int) -> bool:
        """x + z (f(x) - x) and (x - f(x)) z + f(x) are gates, not residual branches: the branch holds the skip itself."""
        if node.name == "sub" and len(self.trace.consumers[branch]) > 1:
            return True
        try:
            tails(self.trace, branch, stop=source)
        except Blocked as blocked:
            return str(blocked) == THE_SKIP
        return False

    def _kind(self, how: str, branch: int, source: int) -> str:
        if how != "identity":
            return how
        value = branch
        while (node := self.trace.producer(value)) is not None and node.name in operations.LINEAR:
            value = node.inputs[0]
        if node is None or node.name != "add" or node.index in self._at:
            return how
        acts = [i for i in node.inputs if self.act[i]]
        return "parallel" if len(acts) == 2 and all(self._mix_depth(source, i) > 0 for i in acts) else how

    def _params_between(self, source: int, branch: int) -> set[str]:
        inside = set()
        for name, uses in self.uses.items():
            for use in uses:
                if use.node >= 0 and any(
                    self.behind[branch] >> o & 1 and self.behind[o] >> source & 1
                    for o in self.trace.nodes[use.node].outputs
                ):
                    inside.add(name)
        return inside

    @staticmethod
    def _matches(names: set[str], patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)

    def origin(self, value: int) -> int:
        """Back along one stream: through everything that mixes nothing and joins nothing, to where the value was made."""
        while (node := self.trace.producer(value)) is not None:
            if node.index in self._at or self.mixing[node.index]:
                break
            sources = {self.origin(i) for i in node.inputs if self.act[i] and self.trace.values[i].is_float}
            if len(sources) != 1:
                break
            (nxt,) = sources
            if nxt == value:
                break
            value = nxt
        return value

    def _unproven_projections(self, found: list[Residual], asked: list[Residual]) -> list[Residual]:
        """`Linear(x) + MLP(x)` is a projection shortcut inside a residual network, and wide-and-deep outside of one."""
        outs = {self.trace.nodes[r.node].outputs[0]: r for r in found}
        links: dict[int, set[int]] = {r.node: set() for r in found}
        for r in found:
            for start in (r.skip, r.source):
                before = outs.get(self.origin(start))
                if before is not None and before is not r:
                    links[r.node].add(before.node)
                    if self._mixed_later(r):
                        links[before.node].add(r.node)
        unproven = []
        for r in asked:
            inside = self._params_between(r.source, r.branch)
            if self._matches(inside, self._branch_patterns):
                continue
            if self._matches(set(r.crossed), self._skip_patterns) and not self._matches(
                inside, self._branch_patterns
            ):
                if self._matches(inside, self._skip_patterns):
                    unproven.append(r)
                continue
            if not links[r.node] or not self._mixed_later(r):
                short, long = sorted(r.crossed), sorted(inside)
                raise StructureError(
                    f"an add of a short path and a long one is a residual block or two towers, and the {self.label} does not tell which: "
                    f"short path {short[:3]}, long path {long[:3]}{'...' if len(long) > 3 else ''}. "
                    f'Pass overrides={{"{long[0]}": "branch"}} for a residual block with a projection shortcut, or {{"{long[0]}": "skip"}} for two towers.'
                )
        return unproven

    def _mixed_later(self, r: Residual) -> bool:
        out = self.trace.nodes[r.node].outputs[0]
        return any(
            self.mixing[n.index] and self.behind[n.outputs[0]] >> out & 1 for n in self.trace.nodes[r.node :]
        )

    def _assign_stacks(self) -> None:
        """A stack is a chain of branches on one stream; a projection shortcut starts a new one."""
        outs = {self.trace.nodes[r.node].outputs[0]: r for r in self.residuals}
        stacks = 0
        for r in self.residuals:
            before = outs.get(self.origin(r.skip))
            if before is not None and self.enclosing(before.index)[:1] != self.enclosing(r.index)[:1]:
                before = None  # the first add inside a branch starts a stream of its own
            if r.kind == "projection" or before is None or before is r:
                r.stack, stacks = stacks, stacks + 1
                continue
            r.stack = before.stack
            if r.kind == "identity" and self._normed_between(before, r):
                r.kind = before.kind = "post-norm"
        for r in self.residuals:  # the last add of a post-norm stack has no next one to show it
            if r.kind == "identity" and any(
                o.stack == r.stack and o.kind == "post-norm" for o in self.residuals
            ):
                r.kind = "post-norm"

    def _normed_between(self, before: Residual, r: Residual) -> bool:
        out = self.trace.nodes[before.node].outputs[0]
        value = r.skip
        while value != out and (node := self.trace.producer(value)) is not None:
            acts = [i for i in node.inputs if self.act[i]]
            if node.name in operations.NORMS:
                return True
            if node.name == "rsqrt" or not acts:
                return node.name == "rsqrt"
            if len(acts) == 2 and node.name in ("mul", "div"):
                return any(
                    p is not None and p.name in ("rsqrt", "sqrt", "reciprocal", "linalg_vector_norm")
                    for p in map(self.trace.producer, acts)
                )
            value = acts[0]
        return False

    def _find_tails(self) -> None:
        for r in self.residuals:
            try:
                candidates = tails(self.trace, r.branch, stop=r.source)
            except Blocked as blocked:
                r.blocked = str(blocked)
                continue
            # A parameter that also acts on the stream cannot carry the branch's factor.
            candidates = [
                t
                for t in candidates
                if not any(
                    side == "skip" for site in t for _, side in self.reach[self.trace.params[site.name]]
                )
            ]
            r.candidates = candidates
            tail = next(
                proven(self.trace, candidates, r.branch, self.behind[r.branch], self.behind[r.skip]), None
            )
            if tail is None or (
                not self.trace.real and self._known_refuted(self._params_between(r.source, r.branch))
            ):
                r.blocked = "parameters that do not scale it when they are scaled"
                self.refuted.append(self._params_between(r.source, r.branch))
            else:
                r.tail = tail

    def _drop_inner_sums(self) -> None:
        """Inside a branch, an add that nothing folds into is part of that branch's own arithmetic (an SSM's D x + scan)."""
        kept = [r for r in self.residuals if r.tail or not self.enclosing(r.index)]
        if len(kept) == len(self.residuals):
            return
        self.residuals = kept
        self._at = {r.node: r for r in kept}
        for index, r in enumerate(kept):
            r.index = index
        self.reach = self._reach()

    def _reach(self) -> list[frozenset[tuple[int, str]]]:
        """For each value, the residual adds it meets first on its way to the output, and on which side."""
        reach: list[frozenset[tuple[int, str]]] = [frozenset()] * len(self.trace.values)
        for value in reversed(range(len(reach))):
            met: set[tuple[int, str]] = {(OUT, "out")} if value in self.trace.outputs else set()
            for user in self.trace.consumers[value]:
                r = self._at.get(user)
                if r is None:
                    for o in self.trace.nodes[user].outputs:
                        met |= reach[o]
                else:
                    met |= {(r.index, "skip")} if value == r.skip else set()
                    met |= {(r.index, "branch")} if value == r.branch else set()
            reach[value] = frozenset(met)
        return reach

    def enclosing(self, index: int) -> tuple[int, ...]:
        """The branches a residual add itself lies in, innermost first (nested residual networks).

        Its stream must come from that branch's own skip: an encoder whose only reader is one decoder branch lies in none, and
        of two streams that read each other (a reversible network) neither lies in the other.
        """
        chain: list[int] = []
        skip = self.residuals[index].skip
        while True:
            out = self.trace.nodes[self.residuals[index].node].outputs[0]
            met = self.reach[out]
            skips = [i for i, side in met if side == "skip" and i > index]
            branches = [i for i, side in met if side == "branch"]
            if skips:  # on along its own stream
                index = max(skips)
                continue
            if len(branches) != 1 or branches[0] <= index:
                return tuple(chain)
            (index,) = branches
            if not self.behind[skip] >> self.residuals[index].source & 1:
                return tuple(chain)
            chain.append(index)
            skip = self.residuals[index].skip
