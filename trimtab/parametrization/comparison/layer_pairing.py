"""Twins of two models whose blocks are no branches in a chain: for schemes that leave depth alone.

The width rule asks of a parameter what it is and how much it grew, and nothing of its block. So where
branches cannot be paired (there are none, or skips across blocks make more stacks of a deeper model), a
scheme without a depth factor needs no more than a layer of the base that is called, used and shaped alike.

The number of layers may differ only along the depth, where each reads the one before. Layers side by side
(experts, parallel paths) are no depth, and must be as many in both.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.names import block, loose_template, spread, template
from trimtab.parametrization.comparison.pairing import (
    Pairing,
    by_name,
    refuse_idle_blocks,
    refuse_lost_branches,
)
from trimtab.structure.graph import Graph, Place

Shapes = tuple[tuple[int, ...], ...]


def pair_layers(model: Graph, base: Graph) -> Pairing:
    """Pair parameters by name, use and shape, in the order of use; all of them count as outside branches.

    Raises:
        StructureError: a parameter has no counterpart, or layers side by side differ in number.
    """
    refuse_lost_branches(model, base)
    for graph in (model, base):
        refuse_idle_blocks(graph)
    twin: dict[str, str] = {}
    ratios: list[float] = []
    for how in (template, loose_template):
        for names, others in _groups(model, base, twin, how):
            twin |= _twins(model, base, names, others)
            ratios.append(len(names) / len(others))
    faults = [f"{name} {model.shape(name)} of the model" for name in model.uses if name not in twin]
    known = {loose_template(name) for name in twin.values()}
    faults += [f"{n} {base.shape(n)} of the base" for n in base.uses if loose_template(n) not in known]
    if faults:
        raise StructureError(
            "no layer of the other model is called, used and shaped as " + "; ".join(faults[:6])
        )
    return Pairing(
        twin=twin,
        branch_twin={},
        counts=[(1, 1)] * (1 + max((r.stack for r in model.residuals), default=-1)),
        places=dict.fromkeys(model.uses, Place()),
        base_places=dict.fromkeys(base.uses, Place()),
        layers=statistics.mode([r for r in ratios if r != 1] or [1.0]),
    )


def _groups(
    model: Graph, base: Graph, paired: Mapping[str, str], how: Callable[[str], str]
) -> list[tuple[list[str], list[str]]]:
    """What is left of both models and is called and used alike, as lists in the order of use, where layers
    side by side are as many."""
    taken = set(paired.values())
    mine = by_name(model, [n for n in model.uses if n not in paired], how)
    theirs = by_name(base, [n for n in base.uses if n not in taken], how)
    pairs = [(names, theirs[key]) for key, names in mine.items() if key in theirs]
    return [(a, b) for a, b in pairs if len(a) == len(b) or _abreast(model, a) == _abreast(base, b)]


def _abreast(graph: Graph, names: Sequence[str]) -> int:
    """How many of the parameters are in layers side by side, of which none reads another; of experts, which
    an example may pass by, how many one block has."""
    if not all(graph.uses[name] for name in names):
        return max(Counter(block(name) for name in names).values())
    layers = _layers(graph)
    level: dict[int, int] = {}  # bit set of what a layer makes: how many of its like are before it
    for name in names:  # in the order of use; a layer may be where only another of its parameters reads on
        nodes = {graph.first_use(n) for n in layers[_layer(name)] if graph.uses[n]}
        made = [graph.trace.nodes[node].outputs[0] for node in nodes]
        behind = functools.reduce(int.__or__, (graph.flow.behind[o] for o in made))
        own = sum(1 << o for o in made)
        level[own] = max((k + 1 for o, k in level.items() if behind & o and o != own), default=0)
    return max(Counter(level.values()).values())


def _layers(graph: Graph) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for name in graph.uses:
        layers.setdefault(_layer(name), []).append(name)
    return layers


def _twins(model: Graph, base: Graph, names: list[str], others: list[str]) -> dict[str, str]:
    """Like parameters of two models, each shape apart: a first layer reads inputs, a last makes outputs."""
    if len(names) == len(others):
        return dict(zip(names, names if set(names) == set(others) else others, strict=True))
    mine, theirs = _by_shape(model, names), _by_shape(base, others)
    if set(mine) == set(theirs):
        pairs = [(group, theirs[shape]) for shape, group in mine.items()]
    elif len(mine) == len(theirs):
        pairs = list(zip(mine.values(), theirs.values(), strict=True))
    else:  # which layer of the base has its role is not told
        return {}
    return {a: b[spread(i, len(g), len(b))] for g, b in pairs for i, a in enumerate(g)}


def _by_shape(graph: Graph, names: list[str]) -> dict[Shapes, list[str]]:
    """Parameters by the shapes of their layer: a bias is drawn as its weight's fan-in says."""
    layers = _layers(graph)
    found: dict[Shapes, list[str]] = {}
    for name in names:
        found.setdefault(tuple(graph.shape(n) for n in layers[_layer(name)]), []).append(name)
    return found


def _layer(name: str) -> str:
    """The path of a parameter up to its last number.

    >>> _layer("stages.1.blocks.0.conv.weight"), _layer("head.weight")
    ('stages.1.blocks.0', '')
    """
    parts = name.split(".")
    return ".".join(parts[: max((i + 1 for i, part in enumerate(parts) if part.isdigit()), default=0)])
