"""Which tensor of the model is which tensor of the base: twins, by structure first and by name second.

Branches are paired through the residual graph (`branch_pairing`). Everything outside branches must match one
to one, by its name without numbers and by its uses; on a stream, and for experts that the example did not
visit, numbers may differ.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.branch_pairing import Side, pair_branches
from trimtab.parametrization.comparison.names import Siblings, block, loose_template, spread, template
from trimtab.parametrization.comparison.places import Places, agreed_places, use_signature
from trimtab.structure.graph import Graph
from trimtab.structure.paths import Paths


@dataclasses.dataclass(frozen=True, slots=True)
class Pairing:
    """The result: twins by name, branches by index, stacks by index, and the places both models agree on.

    Args:
        counts: per stack of the model its branches, and those of its twin in the base.
        alone: branches of which the base has as many: they do not come with the depth.
        paths: by branch, the like paths it is the sum of, here and in its twin; where their number differs.
        layers: how many times more layers most lists of the model have, where no branches could be paired and
            depth is left alone (`layer_pairing`); else None.
    """

    twin: Mapping[str, str]
    branch_twin: Mapping[int, int]
    counts: Sequence[tuple[int, int]]
    places: Places
    base_places: Places
    alone: frozenset[int] = frozenset()
    paths: Mapping[int, tuple[Paths, Paths]] = dataclasses.field(default_factory=dict)
    layers: float | None = None


def pair(model: Graph, base: Graph, unscaled: tuple[str, ...] = ()) -> Pairing:
    """Pair two analysed models of one architecture.

    Args:
        unscaled: patterns of parameters the user said are no branch; their number may differ all the same.

    Raises:
        StructureError: they are not the same architecture at two sizes; all differences are listed.
    """
    refuse_lost_branches(model, base)
    for graph in (model, base):
        refuse_idle_blocks(graph)
    places, base_places = agreed_places(model, base)
    deeper = places if len(model.residuals) >= len(base.residuals) else base_places
    found = pair_branches(Side(model, places), Side(base, base_places), deeper)
    twin, faults = found.twin, found.faults
    if not faults:
        twin, faults = _pair_rest(model, base, places, found.twin, unscaled)
    if faults:
        cure = "Build both from the same code, changing only width and depth."
        if not model.residuals and not base.residuals and len(model.uses) != len(base.uses):
            cure += " Neither has residual branches, and without them no rule carries over depth: keep that."
        head = "model and base must be one architecture at two sizes:"
        text = "\n".join([head, *(f"  - {f}" for f in faults), cure])
        raise StructureError(text, _numbered_blocks(model, base))
    return Pairing(
        twin=twin,
        branch_twin=found.branch_twin,
        counts=found.counts,
        places=places,
        base_places=base_places,
        alone=found.alone,
        paths=found.paths,
    )


def refuse_lost_branches(model: Graph, base: Graph) -> None:
    """Branches in one model and none in the other: one of them hides its skip."""
    n, n_base = len(model.residuals), len(base.residuals)
    if bool(n) != bool(n_base):
        have = [f"has {count} residual branches" if count else "has none" for count in (n, n_base)]
        raise StructureError(
            f"depth ratio needs the same blocks in both models: base {have[1]}, model {have[0]}. "
            "A custom operation may hide the skip.",
            _numbered_blocks(model, base),
        )


def _numbered_blocks(model: Graph, base: Graph) -> list[dict[str, str]]:
    """Patterns for the lists of numbered modules of which one model has more: residual blocks, perhaps."""
    lists: list[set[str]] = []
    for graph in (model, base):
        homes = {home for name in graph.uses if (home := block(name)) is not None}
        lists.append(homes)
    count = [Counter(home.rpartition(".")[0] for home in homes) for homes in lists]
    grown = [path for path in dict.fromkeys([*count[0], *count[1]]) if count[0][path] != count[1][path]]
    return [{f"{path}.*" if path else "*": "branch" for path in grown}] if grown else []


def refuse_idle_blocks(graph: Graph) -> None:
    """A numbered block that did not run, beside blocks that did, makes the depth unknown."""
    ran: dict[str, bool] = {}
    branched: set[str] = set()
    for name, uses in graph.uses.items():
        home = block(name)
        if home is not None:
            ran[home] = ran.get(home, False) or bool(uses)
            branched |= {home.rpartition(".")[0]} if uses and graph.place(name).branches else set()
    idle = [home for home, done in ran.items() if not done and home.rpartition(".")[0] in branched]
    if idle:
        raise StructureError(
            f"every block must run in the example to be counted: of the {graph.label}, "
            f"{', '.join(idle[:4])} did not, while its like did. If layers are dropped at random, switch "
            "that off while parametrizing; if the example takes another path, pass one that takes them all."
        )


# -- outside branches ----------------------------------------------------------------------------------------


def _pair_rest(
    model: Graph, base: Graph, places: Places, paired: Mapping[str, str], unscaled: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """All twins, those outside branches too: one to one, except on streams and for unused siblings."""
    twin = {**paired, **_twins_of_siblings(model, paired)}
    for how in (template, loose_template):
        twin |= _twins_by_name(model, base, places, twin, unscaled, how)
    found, faults = _twins_of_the_rest(model, base, twin)
    twin |= found
    taken = {loose_template(name) for name in twin.values()}
    faults += [
        f"{name} {base.shape(name)} of the base has no counterpart in the model"
        for name in base.uses
        if base.uses[name] and loose_template(name) not in taken
    ]
    return twin, faults[:12]


def _twins_of_siblings(model: Graph, paired: Mapping[str, str]) -> dict[str, str]:
    """An expert that this example did not visit has the twin of its visited sibling."""
    siblings = Siblings.among(model)
    idle = {name: siblings.of(name, model.shape(name)) for name, uses in model.uses.items() if not uses}
    return {name: paired[used] for name, used in idle.items() if used is not None and used in paired}


def _twins_by_name(
    model: Graph,
    base: Graph,
    places: Places,
    paired: Mapping[str, str],
    unscaled: tuple[str, ...],
    how: Callable[[str], str],
) -> dict[str, str]:
    """What is left of both models and is called and used alike, in the order of use."""
    taken = set(paired.values())
    groups = by_name(model, [n for n in model.uses if n not in paired], how)
    base_groups = by_name(base, [n for n in base.uses if n not in taken], how)
    twins: dict[str, str] = {}
    for key, names in groups.items():
        others = base_groups.get(key)
        if others is None:
            continue
        if len(names) == len(others):
            twins |= dict(zip(names, names if set(names) == set(others) else others, strict=True))
        elif all(_may_differ_in_number(model, places, name, unscaled) for name in names):
            twins |= {a: others[spread(i, len(names), len(others))] for i, a in enumerate(names)}
    return twins


def by_name(graph: Graph, names: list[str], how: Callable[[str], str]) -> dict[object, list[str]]:
    """Parameters that are called and used alike, each list in the order of use."""
    groups: dict[object, list[str]] = {}
    for name in sorted(names, key=lambda n: (graph.first_use(n), n)):
        groups.setdefault((how(name), *use_signature(graph, name)), []).append(name)
    return groups


def _may_differ_in_number(model: Graph, places: Places, name: str, unscaled: tuple[str, ...]) -> bool:
    comes_with_depth = places[name].stream is not None or bool(places[name].branches)
    return comes_with_depth or not model.uses[name] or any(fnmatch.fnmatchcase(name, u) for u in unscaled)


def _twins_of_the_rest(
    model: Graph, base: Graph, paired: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """What is still without a twin: the parameter of its very name, or that of an expert that was visited."""
    twin = dict(paired)
    faults: list[str] = []
    taken = set(paired.values())
    for name in (n for n in model.uses if n not in paired):
        rank = len(model.shape(name))
        loose = loose_template(name)
        like = [t for t in twin.values() if loose_template(t) == loose and len(base.shape(t)) == rank]
        exact = name in base.uses and name not in taken
        idle = any(not uses for b, uses in base.uses.items() if template(b) == template(name))
        if exact:
            twin[name] = name
        elif like and (idle or not model.uses[name]):
            twin[name] = like[0]
        else:
            faults.append(f"{name} {model.shape(name)} of the model has no counterpart in the base")
    return twin, faults
