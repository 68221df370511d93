"""What a user should know about a parametrization: one sentence each, only where it applies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from trimtab.parametrization.parameters import Row
from trimtab.parametrization.rules import Scheme
from trimtab.structure.graph import Graph
from trimtab.structure.residuals import Residual

MOST = 1 / 3  # of the stream's variance: beyond it the random part shows in the slope over depth


def advice(
    graph: Graph,
    base: Graph,
    *,
    scheme: Scheme,
    depth: float | Mapping[str, float],
    width: float,
    rows: Mapping[str, Row],
) -> list[str]:
    """The notes that follow from structure, scheme and sizes."""
    if scheme.identity:
        return ["sp is the identity: the model is left as it is, and nothing is said to transfer."]
    ratios = list(depth.values()) if isinstance(depth, Mapping) else [depth]
    deeper = any(r != 1 for r in ratios)
    notes: list[str] = []
    if min([width, *ratios]) < 1 >= max([width, *ratios]):
        notes.append(
            "the model is smaller than its base: numbers tuned on the larger one are carried down to it. If "
            "the small one is what you tuned, it is the base: parametrize(large, small)."
        )
    if not graph.residuals and not deeper:
        notes.append("no residual branches were found, so there is no depth to carry over: width only.")
    if scheme.alpha is not None:
        notes += _on_alpha(graph, base, scheme.alpha, deeper)
    elif deeper and any(row.m_L != 1 for row in rows.values()):
        notes.append(
            f"{scheme.name} scales width only: the best rate will move with depth. Use depth-mup or "
            "completep to carry it over depth too."
        )
    notes += [*_on_branches(graph, scheme), *_on_parameters(graph, rows)]
    if not graph.readouts:
        notes.append(
            "no readout was found (nothing maps the features to outputs that do not grow): the output is a "
            "hidden state, and a head added later needs its own factors."
        )
    if deeper or width != 1:
        notes.append(
            "choose a base that is wide and deep enough to behave like the target (width 64 or more, a few "
            "blocks): what transfers is lr, schedule, momentum, decay as lr x wd, and init. Batch size "
            "and training length go by p.optimizer(horizon=trimtab.Horizon(batch=..., tokens=...)); dropout "
            "and augmentation do not transfer."
        )
    return notes


def _on_alpha(graph: Graph, base: Graph, alpha: float, deeper: bool) -> Iterator[str]:
    """What the branch exponent does to this model."""
    if not 0.5 <= alpha <= 1 and graph.residuals:
        yield (
            f"alpha = {alpha:g} lies outside [1/2, 1], the range where deep networks stay stable and keep "
            "learning: expect failure with depth."
        )
    if alpha < 1 and deeper and _inner_matrices(graph) >= 2:
        yield (
            f"branches here have two or more matrices in a row: at alpha = {alpha:g} their inner layers "
            f"learn more slowly with depth (as depth^{alpha - 1:g}), and the best rate can drift. completep "
            "(alpha = 1) does not have this: use it with Adam-like optimizers (an untouched Llama from 2 to "
            "16 blocks drifted under depth-mup and kept its rate under completep: docs/evidence.md, "
            "question 10)."
        )
    share = random_share(base)
    if alpha > 0.5 and deeper and share > MOST:
        yield (
            f"{share:.0%} of the base's stream is made by its branches at the start: at alpha = {alpha:g} "
            f"that random part falls with depth (as m_L^{0.5 - alpha:g}), so the stream of a deeper model "
            "starts and moves smaller. Choose a base with larger embeddings, or branches that start "
            "smaller; depth-mup keeps it."
        )


def _on_branches(graph: Graph, scheme: Scheme) -> Iterator[str]:
    """Kinds of branches that behave in a way of their own."""
    kinds = {r.kind for r in graph.residuals}
    if scheme.alpha is not None and "post-norm" in kinds:
        yield (
            "post-norm: branch scaling is exact, but every norm rescales the stream, so the change with "
            "depth cannot be flat; norms on the stream get rate 1/m_L."
        )
    if "scaled" in kinds:
        yield (
            "some skips carry their own weight: what counts is the branch relative to its skip, and that "
            "ratio is what is compared with the base."
        )
    ends = [r.blocked for r in graph.residuals if r.blocked]
    if ends:
        yield (
            f"{len(ends)} branches end in {', '.join(sorted(set(ends)))} and have no parameters a depth "
            "factor could fold into: left unscaled."
        )


def _on_parameters(graph: Graph, rows: Mapping[str, Row]) -> Iterator[str]:
    """Parameters that the example does not use, and matrices that grow in part."""
    unused = [name for name, uses in graph.uses.items() if not uses]
    if unused:
        yield (
            f"{len(unused)} parameters are not used in this example's forward ({_first_three(unused)}): they "
            "follow their used siblings, or their shape."
        )
    mixed = [
        name
        for name, row in rows.items()
        if row.role == "hidden"
        and not math.isclose(math.prod(row.shape) / math.prod(row.base_shape), row.m_in * row.m_out)
    ]
    if mixed:
        yield (
            f"{len(mixed)} matrices make things that grow beside things that do not "
            f"({_first_three(mixed)}): they start as the former want; Adam's rate serves both, but SGD's is "
            "m_out times too large for the latter. Use an Adam, or keep them in two tensors."
        )


def _first_three(names: list[str]) -> str:
    return ", ".join(names[:3]) + ("..." if len(names) > 3 else "")


def random_share(graph: Graph) -> float:
    """The part of the stream's variance that its branches add at the start, in the stack with the most."""
    stacks: dict[int, list[Residual]] = {}
    for r in graph.residuals:
        if r.kind != "post-norm" and not graph.network.enclosing(r.index):
            stacks.setdefault(r.stack, []).append(r)
    shares = [0.0]
    for members in stacks.values():
        before, after = (
            float(graph.trace.tensor(v).double().square().mean())
            for v in (members[0].skip, graph.trace.nodes[members[-1].node].outputs[0])
        )
        shares.append(1 - before / after if after > 0 else 0.0)
    return max(shares)


def _inner_matrices(graph: Graph) -> int:
    return max((graph.flow.mix_depth(r.source, r.branch) for r in graph.residuals), default=0)
