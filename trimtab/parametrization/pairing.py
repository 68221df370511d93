"""Which tensor of the model is which tensor of the base: twins, by structure first and by name second.

Blocks are paired through the residual graph, not through their numbers: in `nn.Sequential(stem, block, head)` the
number 2 is a head in the base and may be a block in the deeper model. Stacks are paired in the order they run,
branches of a stack by their signature (the parameters in the order of use), evenly spread where there are more of
them; everything outside branches must match one to one.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping

from trimtab.errors import StructureError
from trimtab.structure.graph import Graph, Place


def template(name: str) -> str:
    """A parameter's name with the block numbers taken out.

    >>> template("layers.3.fc1.weight")
    'layers.#.fc1.weight'
    """
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def loose_template(name: str) -> str:
    """All digits taken out, for blocks that are attributes: block1, block2.

    >>> loose_template("block12.fc1.weight")
    'block#.fc#.weight'
    """
    return re.sub(r"\d+", "#", name)


def _alike(a: str, b: str) -> tuple[int, int, int]:
    """How alike two paths of one length are: parts that are the same, at the end, at the start."""
    same = [x == y for x, y in zip(a.split("."), b.split("."), strict=True)]
    return sum(same), [*same[::-1], False].index(False), [*same, False].index(False)


def _same_end(a: str, b: str) -> int:
    """How many of the last parts of two paths are the same.

    >>> _same_end("blocks.5.experts.3.2.weight", "blocks.0.experts.1.2.weight")
    2
    """
    same = [x == y for x, y in zip(a.split(".")[::-1], b.split(".")[::-1], strict=False)]
    return [*same, False].index(False)


class Siblings:
    """For a parameter that an example did not use: the used one of its shape that is called most like it but for numbers.

    An expert that was not visited follows a visited one of its block, layer by layer; only where its block has none, another block's.

    >>> siblings = Siblings({"blocks.0.experts.1.0.weight": (8, 8), "blocks.0.experts.1.2.weight": (8, 8), "blocks.1.experts.5.2.weight": (8, 8)})
    >>> siblings.of("blocks.0.experts.5.2.weight", (8, 8)), siblings.of("blocks.2.experts.5.2.weight", (8, 8))
    ('blocks.0.experts.1.2.weight', 'blocks.1.experts.5.2.weight')
    """

    def __init__(self, used: Mapping[str, tuple[int, ...]]):
        self._known: dict[object, list[str]] = {}
        for name, shape in used.items():
            for key in ((template(name), shape), (template(name), shape, _block(name))):
                self._known.setdefault(key, []).append(name)

    @classmethod
    def among(cls, graph: Graph) -> Siblings:
        return cls(
            {
                name: graph.trace.values[graph.trace.params[name]].shape
                for name, uses in graph.uses.items()
                if uses
            }
        )

    def of(self, name: str, shape: tuple[int, ...]) -> str | None:
        near = self._known.get((template(name), shape, _block(name))) or self._known.get(
            (template(name), shape), []
        )
        return max(near, key=lambda other: _alike(name, other), default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Pairing:
    """The result: twins by name, branches by index, stacks by index, and the places both models agree on."""

    twin: dict[str, str]
    branch_twin: dict[int, int]
    counts: list[tuple[int, int]]  # per stack of the model: its branches, those of its twin in the base
    places: dict[str, Place]
    base_places: dict[str, Place]
    alone: frozenset[int] = (
        frozenset()
    )  # branches of which the base has as many: they do not come with the depth


def _signature_of_use(graph: Graph, name: str) -> tuple[int, tuple[str, ...]]:
    rank = len(graph.trace.values[graph.trace.params[name]].shape)
    return rank, tuple(sorted({use.kind for use in graph.uses[name]}))


def _first_use(graph: Graph, name: str) -> int:
    return min((use.node for use in graph.uses[name]), default=1 << 60)


def _places(graph: Graph) -> dict[str, Place]:
    """Each parameter's place; norms that stand on the stream in one block stand there in all (the last one too)."""
    places = {name: graph.place(name) for name in graph.uses}
    streams: dict[tuple[str, object], int] = {}
    for name, place in places.items():
        if place.stream is not None and "#" in template(name):
            streams[template(name), _signature_of_use(graph, name)] = place.stream
    for name, place in places.items():
        stream = streams.get((template(name), _signature_of_use(graph, name)))
        elsewhere = not place.tail_of and all(
            graph.residuals[i].stack != stream for i in place.branches
        )  # the end of an encoder, read by a decoder's branches
        if stream is not None and place.stream is None and elsewhere:
            places[name] = Place(stream=stream)
    return places


def _settle(places: dict[str, Place], deeper: dict[str, Place]) -> dict[str, Place]:
    """A one-layer model cannot show that a tensor feeds many branches; the deeper one can, and wins."""
    settled = dict(places)
    for name, place in places.items():
        other = deeper.get(name)
        if other is None:
            continue
        if place.branches and not place.tail_of and (not other.branches or len(other.branches) > 1):
            settled[name] = dataclasses.replace(other, branches=place.branches if other.branches else ())
        elif place == Place() and other.stream is not None:
            settled[name] = other
    return settled


def _members(graph: Graph, places: dict[str, Place], deeper: dict[str, Place], index: int) -> list[str]:
    """A branch's own parameters in the order of use; shared ones only where it has no others (ALBERT)."""
    members = [n for n, p in places.items() if index in p.branches]
    own = [n for n in members if len(places[n].branches) == 1 and len(deeper.get(n, Place()).branches) <= 1]
    return sorted(own or members, key=lambda n: (_first_use(graph, n), n))


def _keys(names: list[str], how: str) -> list[str]:
    """What a parameter is called: its path without block numbers; where blocks are attributes (block1, block2), its path
    inside the block, or the path without any digit."""
    if how != "inside":
        return [template(n) if how == "strict" else loose_template(n) for n in names]
    paths = [n.split(".")[:-1] for n in names]
    common = 0
    while paths and all(len(p) > common and p[common] == paths[0][common] for p in paths):
        common += 1
    return [template(".".join(n.split(".")[common:])) for n in names]


def _parts(graph: Graph, names: list[str], how: str) -> dict[tuple[object, ...], list[str]]:
    """A branch's parameters by what they are; the keys in order are its signature."""
    parts: dict[tuple[object, ...], list[str]] = {}
    for name, key in zip(names, _keys(names, how), strict=True):
        parts.setdefault((key, *_signature_of_use(graph, name)), []).append(name)
    return parts


def spread(i: int, n: int, n_base: int) -> int:
    """The base's index for the i-th of n: first to first, last to last, evenly in between.

    >>> [spread(i, 6, 2) for i in range(6)]
    [0, 0, 0, 1, 1, 1]
    """
    return 0 if n == 1 else (2 * i * (n_base - 1) + (n - 1)) // (2 * (n - 1))


def pair(model: Graph, base: Graph, unscaled: tuple[str, ...] = ()) -> Pairing:
    """Pair two analysed models of one architecture.

    Args:
        unscaled: patterns of parameters the user said are no branch; their number may differ all the same.

    Raises:
        StructureError: they are not the same architecture at two sizes; all differences are listed.
    """
    n, n_base = len(model.residuals), len(base.residuals)
    if bool(n) != bool(n_base):
        have = {True: "has none", False: ""}
        raise StructureError(
            f"depth ratio needs the same blocks in both models: base {have[not n_base] or f'has {n_base} residual branches'}, "
            f"model {have[not n] or f'has {n} residual branches'}. "
            'If the skip is hidden (a custom op), pass overrides={"blocks.*": "branch"}.'
        )
    for graph in (model, base):
        _refuse_idle_blocks(graph)
    places, base_places = _places(model), _places(base)
    if n > n_base:
        base_places = _settle(base_places, places)
    elif n < n_base:
        places = _settle(places, base_places)
    deeper = places if n >= n_base else base_places
    twin, branch_twin, counts, alone, faults = _pair_branches(model, base, places, base_places, deeper)
    if not faults:
        faults = _pair_rest(model, base, places, twin, unscaled)
    if faults:
        raise StructureError(
            "\n".join(
                [
                    "model and base must be one architecture at two sizes:",
                    *(f"  - {f}" for f in faults),
                    'Build both from the same code, changing only width and depth. If these are residual blocks whose skip is hidden, pass overrides={"blocks.*": "branch"}.',
                ]
            )
        )
    return Pairing(twin, branch_twin, counts, places, base_places, frozenset(alone))


def _pair_branches(
    model: Graph,
    base: Graph,
    places: dict[str, Place],
    base_places: dict[str, Place],
    deeper: dict[str, Place],
) -> tuple[dict[str, str], dict[int, int], list[tuple[int, int]], set[int], list[str]]:
    twin: dict[str, str] = {}
    branch_twin: dict[int, int] = {}
    alone: set[int] = set()
    faults: list[str] = []
    stacks, homes = zip(*(_stacks(g) for g in (model, base)), strict=True)
    counts = [(1, 1)] * len(stacks[0])
    top = [[k for k, home in enumerate(h) if home is None] for h in homes]
    if len(top[0]) != len(top[1]):
        sizes = [[len(stacks[i][k]) for k in top[i]] for i in (0, 1)]
        return (
            twin,
            branch_twin,
            counts,
            alone,
            [
                f"the base has {len(top[1])} stacks of residual branches {sizes[1]}, the model {len(top[0])} {sizes[0]}"
            ],
        )
    todo = list(zip(*top, strict=True))
    while todo:
        k, k_base = todo.pop(0)
        mine, theirs = stacks[0][k], stacks[1][k_base]
        counts[k] = (len(mine), len(theirs))
        for how in ("strict", "inside", "loose"):
            problems: list[str] = []
            parts = [
                {i: _parts(g, _members(g, where, deeper, i), how) for i in indices}
                for g, where, indices in ((model, places, mine), (base, base_places, theirs))
            ]
            kinds: list[dict[object, list[int]]] = [{}, {}]
            for found, kind in zip(parts, kinds, strict=True):
                for i, part in found.items():
                    kind.setdefault(tuple(part), []).append(i)
            for signature, indices in kinds[0].items():
                if signature not in kinds[1]:
                    names = [n for part in parts[0][indices[0]].values() for n in part]
                    problems.append(
                        f"stack {k}: the base has no branch like that of {names[:3]}; it needs one block of every kind the model has"
                    )
            for signature, indices in kinds[1].items():
                if signature not in kinds[0]:
                    names = [n for part in parts[1][indices[0]].values() for n in part]
                    problems.append(f"stack {k}: the model has no branch like that of the base's {names[:3]}")
            if not problems:
                break
        faults += problems
        for signature, indices in kinds[0].items():
            others = kinds[1].get(signature, [])
            shapes = [
                {i: _shapes(g, found[i]) for i in group}
                for g, found, group in ((model, parts[0], indices), (base, parts[1], others))
            ]
            branch_twin |= _by_shape(*shapes) if others else {}
            for i in indices if others else ():
                alike = [
                    [shapes[which][o] for o in group].count(shapes[which][j])
                    for which, group, j in ((0, indices, i), (1, others, branch_twin[i]))
                ]
                alone |= {i} if alike[0] == alike[1] else set()
                if (
                    _widens(base, branch_twin[i])
                    and not _widens(model, i)
                    and shapes[0][i] not in [shapes[0][o] for o in indices if _widens(model, o)]
                ):
                    faults.append(
                        f"stack {k}: {next(iter(parts[0][i].values()))[0]} is in a block that keeps its width, and the base's only such block changes it: give the base two blocks there"
                    )
                for key, names in parts[0][i].items():
                    partners = parts[1][branch_twin[i]][key]
                    here, there = _like_named(model, names[0]), _like_named(base, partners[0])
                    if len(names) != len(partners) and here != there:
                        faults.append(
                            f"{names[0]} is one of {here} such layers or experts in its branch, {partners[0]} in the base one of {there}: neither width nor depth"
                        )
                    if len(names) == len(partners):
                        found = dict(zip(names, partners, strict=True))
                    else:  # experts, of which one example visits more than another: the layer of each that is called alike to the end
                        found = {a: max(partners, key=lambda b: _same_end(a, b)) for a in names}
                    twin |= {a: b for a, b in found.items() if a not in twin}
                inner = [
                    [s for s, home in enumerate(h) if home == r]
                    for h, r in zip(homes, (i, branch_twin[i]), strict=True)
                ]
                if len(inner[0]) != len(inner[1]):
                    faults.append(
                        f"stack {k}: a branch holds {len(inner[0])} residual stacks of its own, its twin in the base {len(inner[1])}"
                    )
                    continue
                todo += zip(*inner, strict=True)
    return twin, branch_twin, counts, alone, faults


def _shapes(graph: Graph, parts: Mapping[tuple[object, ...], list[str]]) -> object:
    """The shapes of a branch's parameters; of experts, each shape once."""
    return tuple(
        frozenset(graph.trace.values[graph.trace.params[n]].shape for n in names) for names in parts.values()
    )


def _by_shape(mine: Mapping[int, object], theirs: Mapping[int, object]) -> dict[int, int]:
    """Branches spread evenly over the base's, sizes apart: the first block of a stage, which widens, is not the others' twin.

    >>> _by_shape({0: "16 to 32", 1: "32", 2: "32", 3: "32"}, {0: "8 to 16", 1: "16"})
    {0: 0, 1: 1, 2: 1, 3: 1}
    """
    sizes = [list(dict.fromkeys(shapes.values())) for shapes in (mine, theirs)]
    apart = len(sizes[0]) == len(sizes[1])
    found: dict[int, int] = {}
    for here, there in zip(*sizes, strict=True) if apart else [(None, None)]:
        a, b = (
            [i for i in mine if not apart or mine[i] == here],
            [i for i in theirs if not apart or theirs[i] == there],
        )
        found |= {i: b[spread(j, len(a), len(b))] for j, i in enumerate(a)}
    return found


def _widens(graph: Graph, index: int) -> bool:
    return graph.residuals[index].kind == "projection"


def _like_named(graph: Graph, name: str) -> int:
    """How many parameters of the same block are called the same but for a number, used in this example or not."""
    block = _block(name)
    return sum(template(n) == template(name) and (block is None or _block(n) == block) for n in graph.uses)


def _block(name: str) -> str | None:
    """The numbered block a parameter is in: its path up to the first number."""
    parts = name.split(".")
    return next((".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.isdigit()), None)


def _refuse_idle_blocks(graph: Graph) -> None:
    """A numbered block none of which ran, beside blocks that did: skipped at random or by a condition, so not countable."""
    ran: dict[str, bool] = {}
    branched: set[str] = set()
    for name, uses in graph.uses.items():
        block = _block(name)
        if block is not None:
            ran[block] = ran.get(block, False) or bool(uses)
            branched |= {block.rpartition(".")[0]} if uses and graph.place(name).branches else set()
    idle = [block for block, done in ran.items() if not done and block.rpartition(".")[0] in branched]
    if idle:
        raise StructureError(
            f"every block must run in the example to be counted: of the {graph.label}, {', '.join(idle[:4])} did not, while its like did. "
            "If layers are dropped at random, switch that off while parametrizing; if the example takes another path, pass one that takes them all."
        )


def _stacks(graph: Graph) -> tuple[list[list[int]], list[int | None]]:
    """The branches of each stack, and the branch a nested stack lies in (None: on the main stream)."""
    stacks: list[list[int]] = [[] for _ in range(1 + max((r.stack for r in graph.residuals), default=-1))]
    homes: list[int | None] = [None] * len(stacks)
    for r in graph.residuals:
        stacks[r.stack].append(r.index)
        homes[r.stack] = next(iter(graph.network.enclosing(r.index)), None)
    return stacks, homes


def _pair_rest(
    model: Graph, base: Graph, places: dict[str, Place], twin: dict[str, str], unscaled: tuple[str, ...]
) -> list[str]:
    """Everything that is in no branch of its own: one to one, except on streams and in unused siblings of used blocks."""
    faults: list[str] = []
    siblings = Siblings.among(model)
    for name in (
        n for n, uses in model.uses.items() if not uses
    ):  # an expert that this example did not visit looks like its visited sibling
        used = siblings.of(name, model.trace.values[model.trace.params[name]].shape)
        if used in twin:
            twin[name] = twin[used]
    paired_base = set(twin.values())
    mine = [n for n in model.uses if n not in twin]
    theirs = [n for n in base.uses if n not in paired_base]
    for how in (template, loose_template):
        groups: list[dict[object, list[str]]] = [{}, {}]
        for graph, names, out in ((model, mine, groups[0]), (base, theirs, groups[1])):
            for name in sorted(names, key=lambda n, g=graph: (_first_use(g, n), n)):
                kinds = _signature_of_use(graph, name)
                out.setdefault((how(name), kinds[0], kinds[1]), []).append(name)
        for key, names in groups[0].items():
            others = groups[1].get(key)
            if others is None:
                continue
            same = set(names) & set(others)
            if len(names) == len(others):
                twin |= (
                    {a: a for a in same} if len(same) == len(names) else dict(zip(names, others, strict=True))
                )
            elif all(
                places[a].stream is not None
                or places[a].branches
                or not model.uses[a]
                or any(fnmatch.fnmatchcase(a, u) for u in unscaled)
                for a in names
            ):
                twin |= {a: others[spread(i, len(names), len(others))] for i, a in enumerate(names)}
        mine = [n for n in mine if n not in twin]
        theirs = [n for n in theirs if n not in set(twin.values())]
    for name in list(mine):  # an expert that this example did not visit looks like its visited twin
        same_kind = [
            t
            for t in twin.values()
            if loose_template(t) == loose_template(name)
            and len(base.trace.values[base.trace.params[t]].shape)
            == len(model.trace.values[model.trace.params[name]].shape)
        ]
        exact = [b for b in theirs if b == name]
        if not model.uses[name] and (exact or same_kind):
            twin[name] = (exact or same_kind)[0]
        elif exact:
            twin[name] = name
        elif same_kind and any(not base.uses[b] for b in base.uses if template(b) == template(name)):
            twin[name] = same_kind[0]
        else:
            shape = model.trace.values[model.trace.params[name]].shape
            faults.append(f"{name} {shape} of the model has no counterpart in the base")
    taken = set(twin.values())
    for name in theirs:
        if (
            name not in taken
            and base.uses[name]
            and not any(loose_template(name) == loose_template(t) for t in taken)
        ):
            faults.append(
                f"{name} {base.trace.values[base.trace.params[name]].shape} of the base has no counterpart in the model"
            )
    return faults[:12]
