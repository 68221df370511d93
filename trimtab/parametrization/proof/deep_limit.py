"""How far a base is from its deep limit: the stream it has at the start against the one a deeper target will
have.

A branch adds a part a_l of the stream's variance. At m_L times the depth each such branch is there m_L times,
m_L^-alpha as
large, so the variance of the stream at the end of a stack goes from v_0 (1 + sum a_l) to

    v_0 (1 + m_L^(1 - 2 alpha) sum a_l)          branches that start with a norm: what they add does not know
    the stream
    v_0 prod (1 + m_L^(-2 alpha) a_l)^m_L        branches that answer to the stream's size

Where that differs, the target starts elsewhere than its base, and so moves otherwise, with every number as it
should be:
Llama's embeddings at 0.02 under alpha = 1, a ResNet of unnormalised branches as large as its stream at any
alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from trimtab.structure.graph import Graph
from trimtab.structure.residuals import Residual

FAR = 1.15  # the stream's rms at the start, target over base, beyond which the base is far from its limit


def distance(base: Graph, ratios: Mapping[int, float], alpha: float | None) -> str:
    """Why the base is far from its limit, in words; empty where it is near.

    Args:
        ratios: m_L of each stack of the base, by its index.
        alpha: branch exponent; None where the scheme leaves depth alone.
    """
    if alpha is None:
        return ""
    worst, said = 0.0, ""
    for stack, members in _stacks(base).items():
        m_L = ratios.get(stack, 1.0)
        sizes = [_size(base, r) for r in members]
        if m_L == 1 or not sizes or min(before for before, _ in sizes) <= 0:
            continue
        parts = [max(0.0, after / before - 1) for before, after in sizes]
        start, added = sizes[0][0], max(0.0, sizes[-1][1] - sizes[0][0])
        if _answers(base, members[0]):
            moved = sum(m_L * math.log1p(m_L ** (-2 * alpha) * a) - math.log1p(a) for a in parts) / 2
        else:
            moved = math.log((start + m_L ** (1 - 2 * alpha) * added) / (start + added)) / 2
        if abs(moved) > max(worst, math.log(FAR)):
            worst, share = abs(moved), added / (start + added)
            said = (
                f"{share:.0%} of the base's stream is made by its branches at the start, and the stream of "
                f"a model {m_L:.4g} times "
                f"as deep starts at {math.exp(moved):.2g} of the base's"
            )
    return said


def _stacks(graph: Graph) -> dict[int, list[Residual]]:
    stacks: dict[int, list[Residual]] = {}
    for r in graph.residuals:
        if r.kind != "post-norm" and not graph.network.enclosing(r.index) and r.skip != r.branch:
            stacks.setdefault(r.stack, []).append(r)
    return stacks


def _size(graph: Graph, r: Residual) -> tuple[float, float]:
    """Variance of the stream before and after an add."""
    before, after = graph.trace.tensor(r.skip), graph.trace.tensor(graph.trace.nodes[r.node].outputs[0])
    return float(before.double().square().mean()), float(after.double().square().mean())


def _answers(graph: Graph, r: Residual) -> bool:
    """Whether a branch grows when its stream does: by numbers, at twice the stream."""
    trace = graph.trace
    fresh: dict[int, Tensor] = {r.source: 2 * trace.tensor(r.source)}
    last = trace.values[r.branch].node
    for node in trace.nodes[: (last if last is not None else -1) + 1]:
        if any(i in fresh for i in node.inputs) and any(
            graph.flow.behind[r.branch] >> o & 1 for o in node.outputs
        ):
            fresh.update(zip(node.outputs, trace.run(node, fresh), strict=False))
    if r.branch not in fresh:
        return False
    before = float(trace.tensor(r.branch).double().norm())
    return before > 0 and float(fresh[r.branch].double().norm()) / before > 1.5
