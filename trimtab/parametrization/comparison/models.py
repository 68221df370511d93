"""The two recorded models, compared: analysed, their stacks and tensors paired, what each parameter is.

    analyse (each model) -> pair -> compare

A scheme that scales over depth is refused where a branch cannot be scaled, or where the stream forgets; one
that leaves depth alone may pair layer by layer instead (`LAYERS`).
"""

from __future__ import annotations

import dataclasses
import math

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.layer_pairing import pair_layers
from trimtab.parametrization.comparison.names import pattern, template
from trimtab.parametrization.comparison.overrides import Overrides
from trimtab.parametrization.comparison.pairing import Pairing, pair
from trimtab.parametrization.comparison.roles import Comparison, compare
from trimtab.parametrization.rules import Scheme
from trimtab.structure.graph import Graph, analyse
from trimtab.structure.residuals import Patterns, Residual
from trimtab.structure.trace import Trace

KEPT = 0.02  # of a stream: what a block may forget of it at the start
LABELS = ("model", "base")  # what messages call the two
LAYERS = (
    "the blocks are not residual branches that follow each other in both models, so layers are paired by "
    "their names and shapes: the width is carried over, depth is left alone and nothing is claimed over it."
)


def compare_branches(
    traces: tuple[Trace, Trace], said: Overrides, scheme: Scheme
) -> tuple[Comparison, list[str]]:
    """Both models compared by their residual branches, and a note on those that cannot be scaled and need not
    be.

    Raises:
        StructureError: with the law, the values and an override where one would do.
    """
    skip = said.patterns("skip")
    compared = _compare(traces, said, skip)
    if scheme.alpha is not None:
        _refuse_forgetting(compared)
    alone = _unfoldable(compared) if scheme.alpha is not None else []
    if not alone:
        return compared, []
    note = (
        f"{', '.join(alone[:3])}: a branch that is there once whatever the depth and ends in nothing that "
        "folds; left as it is."
    )
    return _compare(traces, said, (*skip, *alone)), [note]


def compare_layers(traces: tuple[Trace, Trace], said: Overrides) -> Comparison | None:
    """Both models compared layer by layer, for a scheme that leaves depth alone; None where their depth is
    not what differs, or their layers cannot be paired either."""
    if set(traces[0].params) == set(traces[1].params):
        return None
    patterns = Patterns(branch=said.patterns("branch"), skip=said.patterns("skip"))
    try:
        graph, base = (analyse(t, n, patterns=patterns) for t, n in zip(traces, LABELS, strict=True))
        return compare(graph, base, pair_layers(graph, base), said)
    except StructureError:
        return None


def _refuse_forgetting(c: Comparison) -> None:
    """A stream that is multiplied by a number below 1 in every block forgets its start in a fixed number of
    blocks: a^L, whatever the depth.

    Raises:
        StructureError: the stack grows, its blocks keep as much as the base's, and no norm undoes it.
    """
    seen: dict[str, str] = {}
    for r in c.model.residuals:
        twin = c.pairing.branch_twin[r.index]
        n, b = c.pairing.counts[r.stack]
        theirs = abs(c.base.network.kept(twin))
        kept = abs(c.model.network.kept(r.index)) if c.model.trace.real else theirs
        if n == b or math.isclose(kept, 1.0, abs_tol=KEPT) or not math.isclose(kept, theirs):
            continue
        if c.model.network.normed(r.index):
            continue
        inside = sorted(f.name for f in c.facts.values() if r.index in f.branches)
        seen[pattern(inside[-1]) if inside else "a branch"] = f"{kept:.3g}"
    if seen:
        shown = "; ".join(f"{name}: {kept}" for name, kept in list(seen.items())[:3])
        raise StructureError(
            f"the stream must be kept whole from block to block to be scaled over depth: here a block keeps "
            f"a part of it at both depths ({shown}), so that it forgets its start in a fixed number of "
            "blocks. Keep 1 - (1 - a) / depth of it, relative to the base, or start a learned weight at 1; "
            'or use scheme="mup", which claims nothing over depth.'
        )


def _compare(traces: tuple[Trace, Trace], said: Overrides, skip: tuple[str, ...]) -> Comparison:
    """Both models compared, what matches `skip` taken for no branch."""
    patterns = Patterns(branch=said.patterns("branch"), skip=skip)
    base = analyse(traces[1], "base", patterns=patterns)
    refuted = {frozenset(map(template, names)) for names in base.network.refuted}
    graph = analyse(
        traces[0],
        "model",
        patterns=patterns,
        known_refuted=lambda names: frozenset(map(template, names)) in refuted,
    )
    pairing = pair(graph, base, skip)
    if not graph.trace.real:
        adopted = _with_tails_of_base(graph, base, pairing)
        if adopted != graph.residuals:
            graph = graph.with_residuals(adopted)
            pairing = pair(graph, base, skip)
    return compare(graph, base, pairing, said)


def _with_tails_of_base(graph: Graph, base: Graph, pairing: Pairing) -> tuple[Residual, ...]:
    """A model on meta proves nothing by numbers: its adds with the tails that were proven in the base."""
    adopted: list[Residual] = []
    for r in graph.residuals:
        proven = base.residuals[pairing.branch_twin[r.index]]
        names = {site.name for site in proven.tail}
        like = (t for t in r.candidates if {pairing.twin[s.name] for s in t} == names)
        tail = next(like, None) if names else {}
        if tail is None:
            raise StructureError(
                f"the tail proven in the base, {sorted(names)}, has no counterpart in the model's branch. "
                "Build the model on a real device."
            )
        same = tail == r.tail
        adopted.append(r if same else dataclasses.replace(r, tail=tail, blocked=proven.blocked))
    return tuple(adopted)


def _pattern(name: str) -> str:
    """A pattern for all blocks like the one that holds a parameter.

    >>> _pattern("body.blocks.3.fc.weight")
    'body.blocks.*'
    """
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join([*parts[:number], "*"])


def _unfoldable(c: Comparison) -> list[str]:
    """Parameters of branches that cannot be scaled and need not be: the base has as many.

    Raises:
        StructureError: a branch that comes with every block has no tail.
    """
    problems, alone, left = [], [], {}
    for r in c.model.residuals:
        inside = [f.name for f in c.facts.values() if r.index in f.branches and f.m_L != 1]
        if r.tail or not inside:
            continue
        if r.index in c.pairing.alone:
            alone += inside
            continue
        problems.append(
            f"the branch of {inside[-1]} ends in {r.blocked}: there is no parameter its depth factor could "
            'fold into. End it in a gain or a matrix, or use scheme="mup", which claims nothing over depth.'
        )
        left[_pattern(inside[-1])] = "skip"
    if problems:
        text = "\n".join(
            ["a branch must end in parameters it is homogeneous in:", *(f"  - {p}" for p in problems[:6])]
        )
        raise StructureError(text, [left])
    return alone
