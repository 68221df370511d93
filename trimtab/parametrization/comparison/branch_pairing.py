"""Which branch of the model is which branch of the base, and so which of their parameters are twins.

Blocks are paired through the residual graph, not through their numbers. Stacks are paired in the order they
run; branches of a stack by their signature (the parameters in the order of use); where the model has more of
a kind, they are spread evenly over the base's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from trimtab.parametrization.comparison.names import block, loose_template, same_end, spread, template
from trimtab.parametrization.comparison.places import Places, use_signature
from trimtab.structure.graph import Graph, Place
from trimtab.structure.paths import Paths

# A branch's parameters by what they are; the keys in order are its signature.
Parts = Mapping[tuple[object, ...], Sequence[str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One of the two models: its graph, and where its parameters sit."""

    graph: Graph
    places: Places


@dataclasses.dataclass(frozen=True)
class BranchPairs:
    """What the branches of two models pair.

    Args:
        twin: parameters, the model's to the base's.
        branch_twin: branches, by index.
        counts: per stack of the model its branches, and those of its twin in the base.
        alone: branches of which the base has as many: they do not come with the depth.
        faults: what differs.
        paths: by branch, the like paths it is the sum of, here and in its twin; where their number differs.
    """

    twin: Mapping[str, str]
    branch_twin: Mapping[int, int]
    counts: Sequence[tuple[int, int]]
    alone: frozenset[int]
    faults: Sequence[str]
    paths: Mapping[int, tuple[Paths, Paths]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """The branches of one stack that are alike, by index: the model's and the base's."""

    stack: int
    mine: Mapping[int, Parts]
    theirs: Mapping[int, Parts]


@dataclasses.dataclass(frozen=True, slots=True)
class _Match:
    """One branch of the model and its twin in the base."""

    index: int
    other: int
    alone: bool
    faults: tuple[str, ...]
    twins: Mapping[str, str]
    paths: tuple[Paths, Paths]


def pair_branches(model: Side, base: Side, deeper: Places) -> BranchPairs:
    """Pair all branches, those of the main stream first, then those of stacks inside them.

    Args:
        deeper: the places of the deeper model, which shows what is shared.
    """
    (stacks, homes), (base_stacks, base_homes) = _stacks(model.graph), _stacks(base.graph)
    top, base_top = _lying_in(homes, None), _lying_in(base_homes, None)
    counts = [(1, 1)] * len(stacks)
    if len(top) != len(base_top):
        sizes, base_sizes = [len(stacks[k]) for k in top], [len(base_stacks[k]) for k in base_top]
        fault = (
            f"the base has {len(base_top)} stacks of residual branches {base_sizes}, "
            f"the model {len(top)} {sizes}"
        )
        return BranchPairs(twin={}, branch_twin={}, counts=counts, alone=frozenset(), faults=[fault])
    twin: dict[str, str] = {}
    branch_twin: dict[int, int] = {}
    alone: set[int] = set()
    faults: list[str] = []
    paths: dict[int, tuple[Paths, Paths]] = {}
    todo = list(zip(top, base_top, strict=True))
    while todo:
        k, k_base = todo.pop(0)
        counts[k] = len(stacks[k]), len(base_stacks[k_base])
        kinds, differences = _kinds(k, (model, stacks[k]), (base, base_stacks[k_base]), deeper)
        faults += differences
        for match in (m for kind in kinds for m in _matches(kind, model.graph, base.graph)):
            branch_twin[match.index] = match.other
            if match.paths[0].count != match.paths[1].count:
                paths[match.index] = match.paths
            alone |= {match.index} if match.alone else set()
            twin |= {a: b for a, b in match.twins.items() if a not in twin}
            inner, base_inner = _lying_in(homes, match.index), _lying_in(base_homes, match.other)
            faults += match.faults
            if len(inner) == len(base_inner):
                todo += zip(inner, base_inner, strict=True)
            else:
                faults.append(
                    f"stack {k}: a branch holds {len(inner)} residual stacks of its own, "
                    f"its twin in the base {len(base_inner)}"
                )
    return BranchPairs(
        twin=twin,
        branch_twin=branch_twin,
        counts=counts,
        alone=frozenset(alone),
        faults=faults,
        paths=paths,
    )


def _stacks(graph: Graph) -> tuple[list[list[int]], list[int | None]]:
    """The branches of each stack, and the branch a nested stack lies in (None: on the main stream)."""
    stacks: list[list[int]] = [[] for _ in range(1 + max((r.stack for r in graph.residuals), default=-1))]
    homes: list[int | None] = [None] * len(stacks)
    for r in graph.residuals:
        stacks[r.stack].append(r.index)
        homes[r.stack] = next(iter(graph.network.enclosing(r.index)), None)
    return stacks, homes


def _lying_in(homes: Sequence[int | None], branch: int | None) -> list[int]:
    return [k for k, home in enumerate(homes) if home == branch]


# -- branches that are alike ---------------------------------------------------------------------------------


def _kinds(
    k: int, mine: tuple[Side, list[int]], theirs: tuple[Side, list[int]], deeper: Places
) -> tuple[list[_Kind], list[str]]:
    """The kinds of branches that both stacks have, by the strictest names that leave none without a like.

    What is shared is shown by the deeper model; where a block is another one there (the last block of a
    two-stream model, which reads its context and writes none), each model speaks for itself.
    """
    kinds: list[_Kind] = []
    faults: list[str] = []
    for how, shown in itertools.product(("strict", "inside", "loose"), (deeper, {})):
        groups, base_groups = (
            _by_signature({i: _parts(side.graph, _members(side, shown, i), how) for i in indices})
            for side, indices in (mine, theirs)
        )
        kinds = [
            _Kind(stack=k, mine=group, theirs=base_groups[signature])
            for signature, group in groups.items()
            if signature in base_groups
        ]
        faults = [
            f"stack {k}: the base has no branch like that of {_first_names(group)}; "
            "it needs one block of every kind the model has"
            for signature, group in groups.items()
            if signature not in base_groups
        ] + [
            f"stack {k}: the model has no branch like that of the base's {_first_names(group)}"
            for signature, group in base_groups.items()
            if signature not in groups
        ]
        if not faults:
            break
    return kinds, faults


def _by_signature(branches: Mapping[int, Parts]) -> dict[object, dict[int, Parts]]:
    groups: dict[object, dict[int, Parts]] = {}
    for i, parts in branches.items():
        groups.setdefault(tuple(parts), {})[i] = parts
    return groups


def _first_names(group: Mapping[int, Parts]) -> list[str]:
    parts = next(iter(group.values()))
    return [name for names in parts.values() for name in names][:3]


def _members(side: Side, deeper: Places, index: int) -> list[str]:
    """A branch's own parameters in the order of use; shared ones only where it has no others (ALBERT)."""
    places = side.places
    members = [n for n, p in places.items() if index in p.branches]
    own = [n for n in members if len(places[n].branches) == 1 and len(deeper.get(n, Place()).branches) <= 1]
    return sorted(own or members, key=lambda n: (side.graph.first_use(n), n))


def _parts(graph: Graph, names: list[str], how: str) -> Parts:
    parts: dict[tuple[object, ...], list[str]] = {}
    for name, key in zip(names, _keys(names, how), strict=True):
        parts.setdefault((key, *use_signature(graph, name)), []).append(name)
    return parts


def _keys(names: list[str], how: str) -> list[str]:
    """What a parameter is called: its path without block numbers; where blocks are attributes (block1,
    block2), its path inside the block, or the path without any digit."""
    if how != "inside":
        return [template(n) if how == "strict" else loose_template(n) for n in names]
    paths = [n.split(".")[:-1] for n in names]
    common = 0
    while paths and all(len(p) > common and p[common] == paths[0][common] for p in paths):
        common += 1
    return [template(".".join(n.split(".")[common:])) for n in names]


# -- twins ---------------------------------------------------------------------------------------------------


def _matches(kind: _Kind, model: Graph, base: Graph) -> Iterator[_Match]:
    """Each branch of a kind with its twin, their parameters paired."""
    shapes = {i: _shapes(model, parts) for i, parts in kind.mine.items()}
    base_shapes = {i: _shapes(base, parts) for i, parts in kind.theirs.items()}
    widening = [shapes[i] for i in kind.mine if _widens(model, i)]
    for i, other in _by_shape(shapes, base_shapes).items():
        faults: list[str] = []
        if _widens(base, other) and not _widens(model, i) and shapes[i] not in widening:
            name = next(iter(kind.mine[i].values()))[0]
            faults.append(
                f"stack {kind.stack}: {name} is in a block that keeps its width, and the base's only such "
                "block changes it: give the base two blocks there"
            )
        here, there = (list(s.values()) for s in (shapes, base_shapes))
        paths = model.paths(i), base.paths(other)
        yield _Match(
            index=i,
            other=other,
            alone=here.count(shapes[i]) == there.count(base_shapes[other]),
            faults=(*faults, *_count_faults(kind.mine[i], kind.theirs[other], model, base, paths)),
            twins=_twins(kind.mine[i], kind.theirs[other]),
            paths=paths,
        )


def _count_faults(
    mine: Parts, theirs: Parts, model: Graph, base: Graph, paths: tuple[Paths, Paths]
) -> Iterator[str]:
    """Layers or experts of a branch of which there are not as many in the base and that are no like paths."""
    mine = {key: names for key, names in mine.items() if not paths[0].own.issuperset(names)}
    for key, names in mine.items():
        partners = theirs[key]
        if len(names) == len(partners):
            continue
        here, there = _like_named(model, names[0]), _like_named(base, partners[0])
        if here != there:
            yield (
                f"{names[0]} is one of {here} such layers or experts in its branch, {partners[0]} in the "
                f"base one of {there}: neither width nor depth"
            )


def _twins(mine: Parts, theirs: Parts) -> dict[str, str]:
    """The parameters of two branches that are alike, one to one."""
    twins: dict[str, str] = {}
    for key, names in mine.items():
        partners = theirs[key]
        if len(names) == len(partners):
            found = dict(zip(names, partners, strict=True))
        # of experts one example visits more than another: the layer of each that is called alike to the end
        else:
            found = {a: max(partners, key=lambda b, a=a: same_end(a, b)) for a in names}
        twins |= {a: b for a, b in found.items() if a not in twins}
    return twins


def _shapes(graph: Graph, parts: Parts) -> object:
    """The shapes of a branch's parameters; of experts, each shape once."""
    return tuple(frozenset(graph.shape(n) for n in names) for names in parts.values())


def _by_shape(mine: Mapping[int, object], theirs: Mapping[int, object]) -> dict[int, int]:
    """Branches spread evenly over the base's, by size: a stage's first block, which widens, is apart.

    >>> _by_shape({0: "16 to 32", 1: "32", 2: "32", 3: "32"}, {0: "8 to 16", 1: "16"})
    {0: 0, 1: 1, 2: 1, 3: 1}
    """
    sizes, base_sizes = (list(dict.fromkeys(shapes.values())) for shapes in (mine, theirs))
    groups: list[tuple[list[int], list[int]]] = [(list(mine), list(theirs))]
    if len(sizes) == len(base_sizes):
        groups = [
            ([i for i in mine if mine[i] == here], [i for i in theirs if theirs[i] == there])
            for here, there in zip(sizes, base_sizes, strict=True)
        ]
    found = {i: b[spread(j, len(a), len(b))] for a, b in groups for j, i in enumerate(a)}
    return {i: found[i] for i in mine}


def _widens(graph: Graph, index: int) -> bool:
    return graph.residuals[index].kind == "projection"


def _like_named(graph: Graph, name: str) -> int:
    """How many parameters of its block are called the same but for a number, used in this example or not."""
    home = block(name)
    return sum(template(n) == template(name) and (home is None or block(n) == home) for n in graph.uses)
