"""How far a base is from its deep limit: the stream it has at the start against the one a deeper target will
have.

A branch adds a part a_l of the stream's variance. At m_L times the depth each such branch is there m_L times,
m_L^-alpha as
large, so the variance of the stream at the end of a stack goes from v_0 (1 + sum a_l) to

    v_0 (1 + m_L^(1 - 2 alpha) sum a_l)          branches that start with a norm: what they add does not know
    the stream
    v_0 prod (1 + m_L^(-2 alpha) a_l)^m_L        branches that answer to the stream's size

Where that differs, the target starts elsewhere than its base, and so moves otherwise, with every number as it
should be: Llama's embeddings at 0.02 under alpha = 1, a ResNet of unnormalised branches as large as its
stream at any alpha.

Where the end is the same the way there may not be (`spans`). A branch that takes the stream from v_- to v_+
in one go sees what was before it and is seen behind it; the m_L branches that take its place go in small
steps over v_-, ..., v_j, ..., v_+. A cotangent falls as v^-1/2 along the stream (each branch with a norm adds
to it what it adds to the stream), and what tokens have of their own as v^-1/2 too, so the first gradient of
such a branch is, over its twin's, between

    low  = mean_j (v_- v_+ / v_(j-1) v_j)^1/2    what answers to differences between tokens (queries, keys)
    high = (mean_j v_+ / v_j)^1/2                what answers to the cotangent alone (values, MLPs)

Gemma-2's embeddings are 0.16 and its branches 1: low = 0.6, high = 1.9. Both are 1 for a base of small
branches.
"""

from __future__ import annotations

import math
from collections import Counter
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


def spans(
    model: Graph, base: Graph, twins: Mapping[int, int], alpha: float | None
) -> dict[int, tuple[float, float]]:
    """{branch of the model: (low, high)}, of its first gradients over what a base near its limit has.

    Args:
        twins: {branch of the model: its twin in the base}, by index.
        alpha: branch exponent; None where the scheme leaves depth alone.
    """
    found: dict[int, tuple[float, float]] = {}
    if alpha is None or not base.trace.real:
        return found
    for members in _stacks(model).values():
        known = [(r.index, base.residuals[twins[r.index]]) for r in members if r.index in twins]
        counts = Counter(twin.index for _, twin in known)
        if not known or max(counts.values()) == 1 or _answers(base, known[0][1]):
            continue
        sizes = {twin.index: _size(base, twin) for _, twin in known}
        v = min(before for before, _ in sizes.values())
        steps: dict[int, list[tuple[float, float]]] = {}
        for _, twin in known:
            before, after = sizes[twin.index]
            grown = v + counts[twin.index] ** (-2 * alpha) * max(0.0, after - before)
            steps.setdefault(twin.index, []).append((v, grown))
            v = grown
        ends = {k: _span(sizes[k], walked) for k, walked in steps.items()}
        found |= {index: ends[twin.index] for index, twin in known}
    return found


def _span(size: tuple[float, float], steps: list[tuple[float, float]]) -> tuple[float, float]:
    """(low, high) of one branch that takes the stream from `size[0]` to `size[1]`, taken in steps."""
    before, after = size
    if before <= 0 or after <= 0 or any(v <= 0 for v, _ in steps):
        return 1.0, 1.0
    low = sum(math.sqrt(before / v * after / w) for v, w in steps) / len(steps)
    high = math.sqrt(sum(after / w for _, w in steps) / len(steps))
    return min(1.0, low), max(1.0, high)


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
