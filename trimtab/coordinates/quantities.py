"""Watch what flows through a model: the residual stream, each branch's contribution, attention scores, the
output.

One traced forward (`survey`) finds the residual adds and where in the sequence of operations each value is
made. Every later look runs the model under a dispatch mode that counts operations and keeps, of the values
wanted, a fixed sample of coordinates: no hooks, so reused modules and functional code are seen like any
other, and memory is bounded.

    contribution of a branch = stream after its add - stream before it
    score of an attention    = the product of queries and keys, with the model's own constants

A look is taken in eval mode, except that normalisations over the batch use the batch: their running
statistics lag behind by design, and what training sees is what is asked about.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import StructureError
from trimtab.parametrization.parameters import branches_of, stack_names
from trimtab.structure.graph import Graph, analyse
from trimtab.structure.recorder import Recorder
from trimtab.structure.recording import as_call, forward, tensors_in, untouched
from trimtab.structure.residuals import Patterns
from trimtab.torch_internals import DispatchMode, RunningNorm

COORDINATES = 16384  # kept of each value: its rms is then known to about 1 %

Spot = tuple[int, int]  # which operation, which of its results
UNCOUNTED = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
)  # torch inserts them when someone keeps a tensor, as a recorder does


@dataclasses.dataclass(frozen=True)
class Stack:
    """A chain of branches on one stream: `stream` holds the value before the first add and after each."""

    name: str
    branches: tuple[str, ...]
    stream: tuple[Spot | None, ...]
    before: tuple[Spot | None, ...]  # the skip operand of each add


@dataclasses.dataclass(frozen=True)
class Score:
    """A product of two activations over `size` numbers; `after`: constants that follow it."""

    name: str
    spot: Spot
    size: int
    after: float


@dataclasses.dataclass(frozen=True)
class Survey:
    """Where to look in one model."""

    stacks: tuple[Stack, ...]
    scores: tuple[Score, ...]
    layers: dict[str, Spot]  # outputs of matrices that end no branch and do not read out, by module
    scored: frozenset[str]  # parameters that make the operands of those products: queries and keys
    inner: frozenset[str]  # matrices with another matrix after them in the same branch
    readout: str
    operations: int  # a fingerprint of the sequence of operations

    @property
    def spots(self) -> set[Spot]:
        found = {s for stack in self.stacks for s in (*stack.stream, *stack.before) if s is not None}
        return found | {score.spot for score in self.scores} | set(self.layers.values())


@contextlib.contextmanager
def looking(model: nn.Module) -> Iterator[None]:
    """Nothing random, nothing kept; statistics over the batch as in training."""
    with untouched(model, training=False):
        for m in model.modules():
            if isinstance(m, RunningNorm) and getattr(m, "track_running_stats", False):
                m.training = True
        yield


class _Numbered(Recorder):
    """A recorder that also knows which operation made each value."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.fingerprint = 0, 0
        self.made: dict[int, Spot] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func in UNCOUNTED:
            return out
        self.calls += 1
        self.fingerprint = hash((self.fingerprint, str(func)))
        for place, t in enumerate(tensors_in(out)):
            value = self.bound(t)
            if value is not None:
                self.made.setdefault(value, (self.calls, place))
        return out


class _Watch(DispatchMode):
    """Counts operations and keeps a sample of the wanted results."""

    def __init__(self, wanted: set[Spot], sampler: Sampler):
        super().__init__()
        self.places: dict[int, list[int]] = {}
        for call, place in wanted:
            self.places.setdefault(call, []).append(place)
        self.sampler, self.calls, self.fingerprint = sampler, 0, 0
        self.seen: dict[Spot, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in UNCOUNTED:
            return out
        self.calls += 1
        self.fingerprint = hash((self.fingerprint, str(func)))
        if self.calls in self.places:
            outs = list(tensors_in(out))
            for place in self.places[self.calls]:
                if place < len(outs):
                    self.seen[self.calls, place] = self.sampler(outs[place])
        return out


class Sampler:
    """The same coordinates of a tensor at every look, drawn once per number of elements."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, torch.device], Tensor] = {}

    def __call__(self, t: Tensor) -> Tensor:
        t = t.detach().reshape(-1)
        if t.numel() > COORDINATES:
            key = t.numel(), t.device
            if key not in self._places:
                self._places[key] = torch.randint(
                    0, t.numel(), (COORDINATES,), generator=torch.Generator().manual_seed(0)
                ).to(t.device)
            t = t[self._places[key]]
        t = t.abs() if t.is_complex() else t
        return t.to(torch.float64, copy=True)


def survey(
    model: nn.Module,
    example: Any,
    *,
    branch: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    label: str = "model",
) -> Survey:
    """Find the residual stacks, the attention products and the readout of a model."""
    call = as_call(example)
    recorder = _Numbered()
    with looking(model):
        trace = forward(model, call, recorder, params=dict(model.named_parameters()))
    graph = analyse(trace, label, patterns=Patterns(branch=branch, skip=skip))
    made = recorder.made
    named = branches_of(graph)
    names = stack_names(named)
    stacks = []
    for k, name in names.items():
        members = [
            (r, b.name)
            for r, (b, stack) in zip(graph.residuals, named, strict=True)
            if stack == k and r.skip != r.branch
        ]
        if members:
            ends = [made.get(graph.trace.nodes[r.node].outputs[0]) for r, _ in members]
            before = [made.get(r.skip) for r, _ in members]
            stacks.append(Stack(name, tuple(n for _, n in members), (before[0], *ends), tuple(before)))
    scores, scored = [], set[str]()
    for product in graph.products:
        spot = made.get(graph.trace.nodes[product.node].outputs[0])
        sides = [
            next(iter(dict.fromkeys(site.name for site in side)), None)
            for side in (product.left, product.right)
        ]
        if spot is not None and sides[0] and sides[1] and not product.normalised:
            scored |= {site.name for side in (product.left, product.right) for site in side}
            scores.append(Score(_module(sides[0]), spot, product.size, product.after))
    readout = next(iter(graph.readouts), "output")
    also = [
        name
        for name, p in model.named_parameters(remove_duplicate=False)
        if name != readout and p is dict(model.named_parameters()).get(readout)
    ]
    readout = " = ".join(map(_module, [readout, *also]))  # a tied head goes by both its names
    return Survey(
        tuple(stacks),
        tuple(scores),
        _layers(graph, made),
        frozenset(scored),
        _inner(graph),
        readout,
        recorder.fingerprint,
    )


def _inner(graph: Graph) -> frozenset[str]:
    """Matrices whose output meets another matrix before their branch ends."""
    found = set()
    nodes = graph.trace.nodes
    for r in graph.residuals:
        inside = [
            n
            for n in nodes[: r.node]
            if graph.flow.mixing[n.index]
            and n.outputs
            and graph.flow.behind[r.branch] >> n.outputs[0] & 1
            and graph.flow.behind[n.outputs[0]] >> r.source & 1
        ]
        later = {
            n.index: any(
                m.index > n.index and graph.flow.behind[m.outputs[0]] >> n.outputs[0] & 1 for m in inside
            )
            for n in inside
        }
        found |= {
            name
            for name, uses in graph.uses.items()
            if any(later.get(u.node, False) and u.kind == "contract" for u in uses)
        }
    return frozenset(found)


def _layers(graph: Graph, made: dict[int, Spot]) -> dict[str, Spot]:
    """Where each matrix's output is made, the bias added; the first use where there are several."""
    tails = {site.name for r in graph.residuals for site in r.tail}
    found: dict[str, Spot] = {}
    for name, uses in graph.uses.items():
        use = next((u for u in uses if u.kind in ("contract", "lookup") and u.node >= 0), None)
        if use is None or name in tails or name in graph.readouts:
            continue
        out = graph.trace.nodes[use.node].outputs[0]
        if out not in made:  # part of a fused operation, such as a linear layer with its bias
            out = next(
                (o for n in graph.trace.consumers[out] for o in graph.trace.nodes[n].outputs if o in made), -1
            )
        if out in made:
            found.setdefault(_module(name), made[out])
    return found


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def look(
    model: nn.Module, example: Any, where: Survey, sampler: Sampler
) -> tuple[dict[tuple[str, int, int], Tensor], bool]:
    """Samples of {(quantity, which stack, product or layer, place in it)} on one batch, and whether the
    operations were those surveyed."""
    call = as_call(example)
    watch = _Watch(where.spots, sampler)
    with looking(model), watch:
        out = model(*call[0], **call[1])
    seen = watch.seen
    found: dict[tuple[str, int, int], Tensor] = {}
    for k, stack in enumerate(where.stacks):
        for i, spot in enumerate(stack.stream):
            if spot in seen:
                found["stream", k, i] = seen[spot]
        for i, spot in enumerate(stack.before):
            after = stack.stream[i + 1]
            if spot in seen and after in seen and seen[spot].shape == seen[after].shape:
                found["branch", k, i] = seen[after] - seen[spot]
    for k, score in enumerate(where.scores):
        if score.spot in seen:
            found["scores", k, 0] = seen[score.spot] * score.after
    for k, spot in enumerate(where.layers.values()):
        if spot in seen:
            found["layer", k, 0] = seen[spot]
    found["logits", 0, 0] = sampler(output_of(out))
    return found, watch.fingerprint == where.operations


def output_of(out: Any) -> Tensor:
    """The tensor a loss looks at: `.logits` or ["logits"] where there is one, else the first float tensor
    that is no scalar."""
    logits = out.get("logits") if isinstance(out, dict) else getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    floats = [t for t in tensors_in(out) if t.is_floating_point() or t.is_complex()]
    if not floats:
        raise StructureError(
            f"a model must return at least one float tensor: got {type(out).__name__} with none."
        )
    return next((t for t in floats if t.ndim), floats[0])
