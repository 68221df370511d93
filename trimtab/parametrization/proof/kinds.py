"""Which parameters are judged as one: one place in the block, all blocks together, model beside base.

kind = {a tensor of the base: all of the model that grew from it}
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from trimtab.parametrization.comparison.names import block_templates, loose_template, template
from trimtab.parametrization.parameters import Row


@dataclasses.dataclass(frozen=True)
class Kind:
    """Parameters that are judged as one: {parameter of the base: all of the model that grew from it}.

    `left`: parameters of the base that nothing grew from (a target with fewer blocks); they count.
    """

    grown: dict[str, list[str]]
    left: list[str]

    @property
    def names(self) -> list[str]:
        return [n for names in self.grown.values() for n in names]

    @property
    def growth(self) -> float:
        """How many times more tensors the model has of this kind."""
        return len(self.names) / (len(self.grown) + len(self.left))

    @functools.cached_property
    def ends(self) -> Kind:
        """The same with first and last block against first and last alone, as many times as before; itself
        where nothing is there more often."""
        if len(self.grown) < 2 or len(self.names) == len(self.grown):
            return self
        first, *_, last = self.grown
        return Kind(
            {
                b: names[:1] * len(names) if b == first else names[-1:] * len(names) if b == last else names
                for b, names in self.grown.items()
            },
            self.left,
        )


def kinds(
    rows: Mapping[str, Row], twins: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> list[Kind]:
    """The kinds of a plan's parameters. A base tensor and all that grew from it stay together.

    Args:
        twins: {name in the model: its counterpart in the base}.
        shapes: of the base's parameters, those without a counterpart too.
    """
    grown: dict[str, list[str]] = {}
    for name in rows:
        grown.setdefault(twins[name], []).append(name)
    like = {b: template(b) for b in grown} | block_templates(shapes)
    # Layers that are attributes of the model itself (fc0, fc1): alike where branches of one stack hold them.
    flat = {loose_template(b) for b, names in grown.items() if rows[names[0]].stack is not None}
    like |= {b: loose_template(b) for b, x in like.items() if "#" not in x and loose_template(b) in flat}

    def signature(b: str) -> object:
        laws = {
            (rows[n].role, rows[n].place, *(f"{x:.6g}" for x in (rows[n].init, rows[n].u, rows[n].s)))
            for n in grown[b]
        }
        row = rows[grown[b][0]]
        # What counts is a stack's branches together: its first block may be called otherwise (a widening
        # one).
        where = (like[b], shapes.get(b)) if row.stack is None else (row.stack, _suffix(like[b]))
        return where, frozenset(laws)

    found: dict[object, Kind] = {}
    called: dict[object, dict[object, Kind]] = {}
    for b, names in grown.items():
        kind = found.setdefault(signature(b), Kind({}, []))
        kind.grown[b] = names
        called.setdefault((like[b], shapes.get(b)), {})[signature(b)] = kind
    for b, shape in shapes.items():
        alike = called.get((like[b], shape))
        if b in grown or not alike:
            continue
        first, *others = alike.items()
        for key, other in others:  # stacks inside blocks: which of them lost this one, nothing tells
            first[1].grown.update(other.grown)
            first[1].left.extend(other.left)
            del found[key], alike[key]
        first[1].left.append(b)
    return list(found.values())


def called(names: Sequence[str]) -> str:
    """What the tensors of a kind are called together.

    >>> called(["h.0.fc1.weight", "h.1.fc1.weight"]), called(["h.b0.fc1.weight", "h.b1.fc1.weight"])
    ('h.#.fc1.weight', 'h.b#.fc1.weight')
    """
    if len(names) == 1:
        return names[0]
    pairs = zip(names[0].split("."), names[1].split("."), strict=False)
    return template(".".join(a if a == b else loose_template(a) for a, b in pairs))


def _suffix(like: str) -> str:
    """A parameter's name inside its block, from its template.

    >>> _suffix("stages.#.blocks.#.conv1.weight"), _suffix("blocks.b#.conv1.weight")
    ('conv1.weight', 'conv1.weight')
    """
    return like.rpartition("#.")[2]
