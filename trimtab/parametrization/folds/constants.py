"""Constants of the model's own that depend on its size (docs/theory.md, equation (15)).

- On branches: the model's scale_depth / sqrt(L), or DeepNorm's weight on the skip. What counts is the branch
  relative to its skip, compared with the base's; the tail takes up the difference.
- Anywhere else (an embedding times sqrt(N)) they are undone in the parameters behind them, unless what they
  multiply wants them: a vector of unit length wants sqrt(N) (`unit_vectors`), a sum over N wants 1/N
  (`lengths`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.roles import Comparison, Facts
from trimtab.parametrization.folds.folding import Fold, constants_between, into, snapped
from trimtab.parametrization.folds.lengths import wanted_of_sum
from trimtab.parametrization.folds.unit_vectors import UnitVectors, part_wanted
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.proofs import proven
from trimtab.structure.residuals import Residual
from trimtab.structure.tails import Blocked, Tail, constant_factor, tails
from trimtab.structure.trace import Node

Constants = dict[int | None, list[tuple[Node, float]]]  # by branch

# -- on branches ---------------------------------------------------------------------------------------------


def on_branches(c: Comparison) -> list[Fold]:
    """Folds that give each branch the base's factor, relative to its skip, and all tails' gains 1 + w."""
    folds: list[Fold] = []
    done: set[str] = set()
    for r in c.model.residuals:
        if r.index not in c.pairing.branch_twin:  # depth is left alone: `elsewhere` has its constants
            folds += [Fold(site.name, offset=True) for site in r.tail if site.offset]
            continue
        rb = c.base.residuals[c.pairing.branch_twin[r.index]]
        of_base = {site.name: factor for site, factor in rb.tail.items()}
        folds += [Fold(site.name, offset=True) for site in r.tail if site.offset]
        for site, factor in r.tail.items():
            twin = c.pairing.twin[site.name]
            if twin not in of_base or site.name in done:
                continue
            done.add(site.name)
            own = snapped((factor / r.skip_factor) / (of_base[twin] / rb.skip_factor), c.facts)
            if not math.isclose(own, 1.0, rel_tol=1e-9):
                folds.append(Fold(site.name, over=own))
    return folds


def nodes_on_branches(graph: Graph) -> frozenset[int]:
    """The nodes whose constants are part of a branch's factor or of its skip's."""
    found: set[int] = set()
    for r in graph.residuals:
        found |= constants_between(graph, r.tail, r.branch)
        found |= set(_on_skip(graph, r))
    return frozenset(found)


def _on_skip(graph: Graph, r: Residual) -> Iterator[int]:
    value = r.skip
    while value != r.source and (node := graph.trace.producer(value)) is not None:
        yield node.index
        acts = graph.flow.activations_into(node)
        if not acts:
            return
        value = acts[0]


# -- anywhere else -------------------------------------------------------------------------------------------


def elsewhere(
    c: Comparison, known: frozenset[int], base_known: frozenset[int]
) -> tuple[list[Fold], list[str]]:
    """Folds that undo constants which differ from the base's, and notes on them.

    Args:
        known, base_known: nodes whose constants are accounted for, of the model and of the base.
    """
    folds: list[Fold] = []
    notes: list[str] = []
    undone: set[tuple[frozenset[str], int]] = set()
    units = UnitVectors(c)
    by_branch, base_by_branch = _by_branch(c.model, known), _by_branch(c.base, base_known)
    if c.pairing.layers is not None:
        by_branch, base_by_branch = _together(by_branch), _together(base_by_branch)
    for key, mine in by_branch.items():
        theirs = base_by_branch.get(None if key is None else c.pairing.branch_twin[key], [])
        if len(mine) != len(theirs):
            if {round(x, 12) for _, x in mine} != {round(x, 12) for _, x in theirs}:
                said = (
                    f"constants in the forward differ in number between model ({len(mine)}) and base "
                    f"({len(theirs)}) and could not be compared one by one."
                )
                if c.pairing.layers is not None:
                    raise StructureError(f"{said} Change one of width and depth at a time.")
                notes.append(said)
            continue
        for order, ((node, x), (twin, y)) in enumerate(zip(mine, theirs, strict=True)):
            if y == 0 or math.isclose(x / y, 1.0, rel_tol=1e-6):
                continue
            wanted = units.wanted(node, twin, x / y) * part_wanted(x / y, wanted_of_sum(c, node, twin))
            ratio = snapped(x / y / wanted, c.facts)
            if math.isclose(ratio, 1.0, rel_tol=1e-6):
                continue
            tail = _takers(c.model, c.facts, node, ratio)
            names = sorted({site.name for site in tail})
            if (frozenset(names), order) in undone:  # the same constant of a shared layer, met again
                continue
            undone.add((frozenset(names), order))
            folds += into(tail, 1 / ratio)
            notes.append(
                f"the forward multiplies by a constant that is {ratio:.4g} times the base's; "
                f"undone in {', '.join(names)}."
            )
    return [*folds, *units.gains()], notes


def _by_branch(graph: Graph, known: frozenset[int]) -> Constants:
    """The constants not yet accounted for, by the branch they act in (None: in none, or in several)."""
    found: Constants = {}
    for node in graph.trace.nodes:
        number = constant_factor(graph.trace, node)
        if number is None:
            _refuse_unknown(graph, node)
            continue
        out = node.outputs[0]
        if node.index in known or not (graph.flow.act[out] or graph.flow.weightlike(out)):
            continue
        sides = [met for met in graph.network.reach[out] if met[1] != "out"]
        key = sides[0][0] if len(sides) == 1 and sides[0][1] == "branch" else None
        found.setdefault(key, []).append((node, number))
    return found


def _together(found: Constants) -> Constants:
    """Those of every branch and of none as one list, in the order of the forward."""
    return {None: sorted((pair for own in found.values() for pair in own), key=lambda pair: pair[0].index)}


def _refuse_unknown(graph: Graph, node: Node) -> None:
    """On meta a one-element tensor has no value, so a multiplier that depends on size could hide in it."""
    if graph.trace.real or node.name not in ("mul", "div") or not graph.flow.activations_into(node):
        return
    for value in (graph.trace.values[i] for i in node.inputs):
        unknown = value.constant and value.number is None
        if unknown and math.prod(value.shape) == 1 and value.is_float:
            name = value.name or "a one-element tensor made in the forward"
            raise StructureError(
                f"a constant the forward multiplies by must be known: {name} is on the meta device and has "
                "no value. Give it one (module.register_buffer(..., torch.tensor(value))), or build the "
                "model on a real device."
            )


def _takers(graph: Graph, facts: Mapping[str, Facts], node: Node, ratio: float) -> Tail:
    """The parameters behind a constant that can take it up.

    Raises:
        StructureError: there are none.
    """
    out = node.outputs[0]
    closed = frozenset(r.node for r in graph.residuals)
    try:
        candidates = [t for t in tails(graph.trace, out, closed=closed) if not _reads_out(graph, facts, t)]
        return next(proven(graph.trace, candidates, out, graph.flow.behind[out], 0))
    except (Blocked, StopIteration):
        shape = graph.trace.values[node.inputs[0]].shape
        raise StructureError(
            f"a constant in the forward is {ratio:.4g} times the base's ({node.name} on a tensor of shape "
            f"{shape}) and there is no parameter behind it that could take it up. Make it the same at every "
            "size; or, where it undoes what grows by itself (a sum or a transform over the width), let torch "
            'take the mean or the norm, or pass norm="ortho".'
        ) from None


def _reads_out(graph: Graph, facts: Mapping[str, Facts], tail: Tail) -> bool:
    """A tied weight may take up a constant of the embedding, but not one of the readout."""
    return any(facts[s.name].tied and graph.trace.nodes[s.node].name not in operations.LOOKUPS for s in tail)
