"""Multipliers that belong to no single rule: attention, constants of the model's own, tied readouts.

Each is a number a wanted multiplier is short of, `fold = wanted / own`, put into the parameters in which the
value is homogeneous (docs/theory.md, equations (15) to (18)):

- **branch constants** and **other constants** that depend on size are undone where they act (`constants`);
- **attention**: scores want 1/d relative to base (`attention`);
- **normalised weights** take the start that the rules ask for in their gains (`normalised_weights`);
- **tied readouts**: the readout multiplier 1/m goes into the gain and bias of the final norm (here).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.roles import Comparison
from trimtab.parametrization.folds import constants
from trimtab.parametrization.folds.attention import attention
from trimtab.parametrization.folds.folding import Fold, constants_between, into, product, snapped
from trimtab.parametrization.folds.normalised_weights import normalised_weights
from trimtab.structure.graph import Graph
from trimtab.structure.proofs import proven
from trimtab.structure.tails import Blocked, Tail, tails
from trimtab.structure.uses import Use


@dataclasses.dataclass(frozen=True)
class Folds:
    """The factor of each parameter, which stored gains have an offset (1 + w), and what to tell the user."""

    factor: Mapping[str, float]
    offset: frozenset[str]
    notes: tuple[str, ...]


def collect(c: Comparison, gamma: float) -> Folds:
    """All folds of a model against its base. `gamma`: the richness that a tied readout must carry too."""
    folds = constants.on_branches(c)
    scores = attention(c)
    folds += scores.folds
    known, base_known = (_nodes_before_tied(c, graph) for graph in (c.model, c.base))
    if c.pairing.layers is None:
        known |= constants.nodes_on_branches(c.model)
        base_known |= constants.nodes_on_branches(c.base)
    weights = normalised_weights(c, gamma)
    folds += weights.folds
    known |= scores.nodes | weights.nodes
    base_known |= scores.base_nodes | weights.base_nodes
    found, notes = [], []
    if c.pairing.layers is None or c.grows:  # constants of depth are left alone with it
        found, notes = constants.elsewhere(c, known, base_known)
    folds += found
    tied, tied_notes = _tied(c, folds, gamma)
    folds += tied
    return Folds(
        factor=product(folds),
        offset=frozenset(fold.name for fold in folds if fold.offset),
        notes=(*notes, *tied_notes),
    )


def readout_ratio(c: Comparison) -> float:
    """Fan-in ratio of the network's readout, for the ntk scheme; of several, the one farthest from 1."""
    ratios = [_readout_ratio(c, name) for name in c.model.readouts]
    return max(ratios, key=lambda r: abs(math.log(r)), default=1.0)


def _readout_ratio(c: Comparison, name: str) -> float:
    uses, base_uses = _products(c.model, name), _products(c.base, c.facts[name].twin)
    return uses[-1].fan_in / base_uses[-1].fan_in if uses and base_uses else 1.0


def _products(graph: Graph, name: str) -> list[Use]:
    return [u for u in graph.uses[name] if u.kind == "contract"]


# -- tied readouts -------------------------------------------------------------------------------------------


def _tied(c: Comparison, before: Sequence[Fold], gamma: float) -> tuple[list[Fold], list[str]]:
    """The readout multipliers of weights that are the embedding too, put into what comes before them."""
    folds: list[Fold] = []
    notes: list[str] = []
    for name in c.model.readouts:
        ratio = _readout_ratio(c, name)
        if not c.facts[name].tied or (ratio == 1 and gamma == 1):
            continue
        tail = _input_tail(c.model, name)
        base_factors = {site.name: x for site, x in _input_tail(c.base, c.facts[name].twin).items()}
        wanted = 1 / ratio / product([*before, *folds]).get(name, 1.0)
        for site, x in tail.items():
            own = snapped(x / base_factors.get(c.pairing.twin[site.name], x), c.facts)
            folds += into({site: x}, wanted / own / gamma)
        names = ", ".join(sorted(s.name for s in tail))
        notes.append(f"{name} is both embedding and readout: the readout multiplier is in {names}.")
    return folds, notes


def _nodes_before_tied(c: Comparison, graph: Graph) -> frozenset[int]:
    """Constants between the final norm and a tied readout are part of that readout's own factor."""
    found: frozenset[int] = frozenset()
    closed = frozenset(r.node for r in graph.residuals)
    for f in (c.facts[name] for name in c.model.readouts if c.facts[name].tied):
        value = _input(graph, f.name if graph is c.model else f.twin)
        try:
            found |= constants_between(graph, tails(graph.trace, value, closed=closed)[0], value)
        except Blocked:
            continue
    return found


def _input(graph: Graph, name: str) -> int:
    """The activation that a readout multiplies."""
    return graph.flow.activations_into(graph.trace.nodes[_products(graph, name)[-1].node])[0]


def _input_tail(graph: Graph, name: str) -> Tail:
    """The parameters that scale what a tied readout multiplies.

    Raises:
        StructureError: there are none but the tied weight itself.
    """
    value = _input(graph, name)
    closed = frozenset(r.node for r in graph.residuals)
    try:
        candidates = tails(graph.trace, value, closed=closed)
        tail = next(proven(graph.trace, candidates, value, graph.flow.behind[value], 0))
        if name in {site.name for site in tail}:
            raise Blocked("the tied weight itself")
    except (Blocked, StopIteration) as why:
        raise StructureError(
            f"a tied readout needs a final norm with gain to carry its multiplier: {name} is also the "
            f"embedding, and behind the readout there is {why or 'nothing that scales'}. Untie it, or give "
            "the final norm a gain."
        ) from None
    return tail
