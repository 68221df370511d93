"""What a model computes, put together: where each parameter sits, what reads out, which activations are multiplied.

On top of what flows (`flow`) and the residual adds (`residuals`) this file finds each parameter's **place** (outside, in a
branch, its tail, on the stream), the network's **readouts** with their biases, and the **products** of two activations
(attention). No class and no family of models is named anywhere: structure only.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from typing import Any

from trimtab.structure import operations
from trimtab.structure.residuals import Residual, Residuals
from trimtab.structure.tails import Blocked, Tail, constant_factor, proven, tails
from trimtab.structure.trace import Node, Ref, Trace


@dataclasses.dataclass(slots=True, eq=False)
class Product:
    """A contraction of two activations over `size` numbers: attention scores and the like."""

    node: int
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


class Graph(Residuals):
    """The analysed model. `known`: what is known beside the trace, as `Residuals` takes it."""

    def __init__(self, trace: Trace, label: str = "model", **known: Any):
        super().__init__(trace, label, **known)
        self._said: dict[str, int] = {}
        self._add_said_branches()
        self.readouts = self._readouts()
        self.products = self._products()

    def _add_said_branches(self) -> None:
        """Branches that only the user sees: what matches a pattern, one branch per numbered block, folded at its end."""
        seen = (
            set().union(*(self._params_between(r.source, r.branch) for r in self.residuals))
            if self.residuals
            else set[str]()
        )
        stack = 1 + max((r.stack for r in self.residuals), default=-1)
        for pattern in self._branch_patterns:
            blocks: dict[str, list[str]] = {}
            for name in self.uses:
                if fnmatch.fnmatchcase(name, pattern) and name not in seen and self.uses[name]:
                    number = next((i for i, part in enumerate(name.split(".")) if part.isdigit()), -1)
                    blocks.setdefault(".".join(name.split(".")[: number + 1]), []).append(name)
            for names in blocks.values():
                last = self.trace.nodes[max(use.node for name in names for use in self.uses[name])]
                value = last.outputs[0]
                r = Residual(len(self.residuals), last.index, value, value, value, "identity", stack=stack)
                try:
                    r.tail = next(proven(self.trace, tails(self.trace, value), value, self.behind[value], 0))
                except (Blocked, StopIteration) as why:
                    r.blocked = str(why) or "parameters that do not scale it when they are scaled"
                self.residuals.append(r)
                self._said |= dict.fromkeys(names, r.index)
            stack += bool(blocks)

    def place(self, name: str) -> Place:
        """Where a parameter sits, from the adds it meets first."""
        if name in self._said:
            said = (self._said[name],)
            return Place(
                branches=said,
                tail_of=said if any(s.name == name for s in self.residuals[said[0]].tail) else (),
            )
        met = self.reach[self.trace.params[name]]
        branches = sorted({i for i, side in met if side == "branch"})
        skips = [i for i, side in met if side == "skip"]
        if skips:
            stream, outer = (
                self._stream_of(name),
                min((self.enclosing(i) for i in sorted(skips)), key=len),
            )  # a stem meets the skips of a block and of those inside it
            if stream is not None or not outer:
                return Place(stream=stream)
            branches = [outer[0]]  # before the first add of a stack that lies inside a branch
        tail_of = tuple(i for i in branches if any(site.name == name for site in self.residuals[i].tail))
        return Place(branches=tuple(branches), tail_of=tail_of)

    def _stream_of(self, name: str) -> int | None:
        """The stack on whose stream a parameter acts: between two of its adds. None before the first of them."""
        for use in self.uses[name]:
            for o in self.trace.nodes[use.node].outputs if use.node >= 0 else ():
                for k in {self.residuals[i].stack for i, side in self.reach[o] if side == "skip"}:
                    if any(
                        r.stack == k and self.behind[o] >> self.trace.nodes[r.node].outputs[0] & 1
                        for r in self.residuals
                    ):
                        return k
        return None

    def _readouts(self) -> dict[str, set[str]]:
        """The network's readouts: {weight: its biases}. Nothing mixes after them and they sit in no branch."""
        mixes_below = [False] * len(self.trace.values)
        for node in reversed(self.trace.nodes):
            below = self.mixing[node.index] or any(mixes_below[o] for o in node.outputs)
            for i in node.inputs:
                mixes_below[i] |= below
        last: dict[int, str] = {}
        for name, uses in self.uses.items():
            mixed = [u for u in uses if u.kind == "contract"]
            outs = [o for u in mixed for o in self.trace.nodes[u.node].outputs[:1]]
            if outs and all(not mixes_below[o] and self._leads_out(o) for o in outs):
                last |= dict.fromkeys(outs, name)
        readouts: dict[str, set[str]] = {name: set() for name in last.values()}
        for name, uses in self.uses.items():
            for u in uses:
                if u.kind != "elementwise" or u.node < 0:
                    continue
                node = self.trace.nodes[u.node]
                if node.name in operations.CONVOLUTIONS and node.outputs[0] in last:
                    readouts[last[node.outputs[0]]].add(name)
                elif node.name == "add":
                    for i in node.inputs:
                        while (
                            (p := self.trace.producer(i)) is not None
                            and p.name in operations.LINEAR
                            and i not in last
                        ):
                            i = p.inputs[0]
                        if i in last:
                            readouts[last[i]].add(name)
        return readouts

    def _leads_out(self, value: int) -> bool:
        """To the output and nowhere else; a skip from the input itself around the whole network (a denoiser) is looked through."""
        met = self.reach[value]
        while len(met) == 1 and next(iter(met))[1] == "branch":
            r = self.residuals[next(iter(met))[0]]
            if self.trace.values[r.source].source != "input":
                return False
            met = self.reach[self.trace.nodes[r.node].outputs[0]]
        return {side for _, side in met} == {"out"}

    def _products(self) -> list[Product]:
        found = []
        for node in self.trace.nodes:
            refs = [a.index for a in node.args if isinstance(a, Ref)]
            if node.name not in operations.MATMULS or len(refs) < 2 or not all(self.act[i] for i in refs[:2]):
                continue
            sides, normalised = [], sum(self._unit_length(i) for i in refs[:2])
            for i in refs[:2]:
                try:
                    sides.append(tails(self.trace, i, closed=frozenset(self._at))[0])
                except Blocked:
                    sides.append({})
            size = self.trace.values[refs[0]].shape[-1]
            found.append(
                Product(
                    node.index,
                    size,
                    sides[0],
                    sides[1],
                    math.prod(constant_factor(self.trace, n) or 1.0 for n in self.after(node)),
                    normalised,
                )
            )
        return found

    def _unit_length(self, value: int) -> bool:
        """x / |x|: divided by its own vector norm on the way here."""
        for _ in range(12):
            node = self.trace.producer(value)
            if node is None:
                return False
            if node.name == "div" and len(node.inputs) == 2:
                value = node.inputs[1]
                while (p := self.trace.producer(value)) is not None and p.name in (
                    "clamp_min",
                    "expand",
                    "clamp",
                    "add",
                    "maximum",
                    "sqrt",
                    "sum",
                ):
                    value = p.inputs[0]
                return p is not None and p.name in ("linalg_vector_norm", "norm", "pow", "mul")
            acts = [i for i in node.inputs if self.act[i]]
            if not acts:
                return False
            value = acts[0]
        return False

    def after(self, node: Node) -> list[Node]:
        """What happens to a product before anything nonlinear sees it: views, constants, masks, sums with other scores."""
        chain: list[Node] = []
        while len(users := self.trace.consumers[node.outputs[0]]) == 1:
            node = self.trace.nodes[users[0]]
            plain = node.name in operations.LINEAR or (
                node.name in ("add", "sub", "masked_fill", "where") and node.index not in self._at
            )
            if constant_factor(self.trace, node) is None and (not plain or self.mixing[node.index]):
                break
            chain.append(node)
        return chain
