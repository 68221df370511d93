"""Proof by numbers: a value is homogeneous in a set of parameters, or it is not.

Each candidate tail T of a value B (`tails`) is executed again from the recorded numbers with T scaled by c =
1.7. Only one that gives c B, and that the other side of the add does not depend on, is accepted
(docs/theory.md, equation (4)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from trimtab.structure.tails import Site, Tail
from trimtab.structure.trace import Trace

SCALE = 1.7  # not a power of two, so that rounding would show


def scaled(p: Tensor, c: float, offset: bool) -> Tensor:
    """The fold on a stored parameter: c p, or c (1 + p) - 1 for 1 + p (docs/theory.md, equation (5)).

    >>> scaled(torch.tensor([0.0, 1.0]), 0.5, offset=True)
    tensor([-0.5000,  0.0000])
    """
    return c * (1 + p) - 1 if offset else c * p


def replay(
    trace: Trace, changed: dict[Site, Tensor], target: int, ancestors: int, *, liven: bool = False
) -> Tensor:
    """The value `target` with some parameter uses replaced.

    Args:
        ancestors: bit set of the values behind the target.
        liven: replace activations that are all zero (behind a zero-initialised gain) by noise.
    """
    at: dict[int, dict[int, Tensor]] = {}
    for site, tensor in changed.items():
        at.setdefault(site.node, {})[trace.params[site.name]] = tensor
    fresh: dict[int, Tensor] = {}
    last = trace.values[target].node
    assert last is not None
    for node in trace.nodes[min(at) : last + 1]:
        if node.index not in at and not any(i in fresh for i in node.inputs):
            continue
        if not any(ancestors >> o & 1 and not trace.values[o].constant for o in node.outputs):
            continue
        instead = {**fresh, **at.get(node.index, {})}
        if liven:
            instead |= {
                i: _noise_like(trace.tensor(i)) for i in node.inputs if i not in instead and _dead(trace, i)
            }
        outs = trace.run(node, instead)
        fresh.update(zip(node.outputs, outs, strict=False))
    return fresh[target] if target in fresh else trace.tensor(target)


def _dead(trace: Trace, value: int) -> bool:
    v = trace.values[value]
    return v.is_float and not v.constant and not bool(trace.tensor(value).any())


def _noise_like(t: Tensor) -> Tensor:
    noise = torch.randn(
        t.shape, generator=torch.Generator("cpu").manual_seed(t.numel()), dtype=torch.float64, device="cpu"
    )
    return noise.to(t)


def _tolerance(trace: Trace, tail: Tail, target: int) -> float:
    """1e-4, or a few roundings of the coarsest number type on the way."""
    tensors = [trace.tensor(target), *(trace.tensor(trace.params[site.name]) for site in tail)]
    return max(1e-4, 4 * max(torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()))


def _everywhere(trace: Trace, tail: Tail, ancestors: int, others: int) -> list[Site]:
    """Every use of the tail's parameters behind the target, not only the one the walk met: the fold scales
    the tensor.

    Uses that the other side (`others`) depends on belong to earlier rounds of a shared layer.
    """
    return [
        Site(name, user, offset)
        for name, offset in dict.fromkeys((site.name, site.offset) for site in tail)
        for user in trace.consumers[trace.params[name]]
        if any(ancestors >> o & 1 and not others >> o & 1 for o in trace.nodes[user].outputs)
    ]


def proves(trace: Trace, tail: Tail, target: int, ancestors: int, others: int) -> bool:
    """Scale the tail by c and see the target scale by c. Zeros are replaced by noise, or they would prove
    nothing."""
    start: dict[Site, Tensor] = {}
    for site in _everywhere(trace, tail, ancestors, others):
        p = trace.tensor(trace.params[site.name]).detach()
        start[site] = p if site.offset or bool(p.any()) else _noise_like(p)
    more = {site: scaled(p, SCALE, site.offset) for site, p in start.items()}
    for liven in (False, True):
        before = replay(trace, start, target, ancestors, liven=liven).double()
        size = before.abs().max()
        if size > 0:
            break
    after = replay(trace, more, target, ancestors, liven=liven).double()
    tolerance = _tolerance(trace, tail, target)
    return bool(size > 0) and bool((after - SCALE * before).abs().max() <= tolerance * SCALE * size)


def proven(trace: Trace, candidates: list[Tail], target: int, ancestors: int, others: int) -> Iterator[Tail]:
    """The candidates that hold by numbers and that the skip (`others`: its ancestors) does not depend on."""
    for tail in candidates:
        if any(others >> o & 1 for site in tail for o in trace.nodes[site.node].outputs):
            continue
        if not trace.real or proves(trace, tail, target, ancestors, others):
            yield tail


def degree(trace: Trace, tail: Tail, target: int, ancestors: int) -> float:
    """The measured power of c by which `target` grows when the tail is scaled by c; nan where it is no power.

    >>> from trimtab.structure.recording import record
    >>> class Square(torch.nn.Linear):
    ...     def forward(self, x): return super().forward(x) ** 2
    >>> trace = record(Square(3, 3), torch.ones(1, 3))
    >>> both = {Site("weight", 0): 1.0, Site("bias", 2): 1.0}
    >>> round(degree(trace, both, trace.outputs[0], -1), 4)
    2.0
    """
    start = {
        site: trace.tensor(trace.params[site.name]).detach()
        for site in _everywhere(trace, tail, ancestors, 0)
    }
    start = {site: p if site.offset or bool(p.any()) else _noise_like(p) for site, p in start.items()}
    before = replay(trace, start, target, ancestors, liven=True).double()
    after = replay(
        trace,
        {site: scaled(p, SCALE, site.offset) for site, p in start.items()},
        target,
        ancestors,
        liven=True,
    ).double()
    ratio = float(after.norm() / before.norm()) if before.norm() > 0 else math.nan
    tolerance = _tolerance(trace, tail, target)
    if not (after - ratio * before).abs().max() <= tolerance * ratio * before.abs().max():
        return math.nan
    return math.log(ratio) / math.log(SCALE)
