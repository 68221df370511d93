"""What each parameter is: its role, its width ratios, its place, its depth ratio. Model against base.

Compares two analysed graphs through their pairing and returns one `Facts` per parameter, from which `rules`
computes numbers (docs/theory.md, equation (9)). Widths are found in `ratios`, depths in `depths`; here the
two are put together with what is particular to a parameter: whether it takes the input, whether it reads out,
whose bias it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from trimtab.errors import StructureError, together
from trimtab.parametrization.comparison.depths import Depths
from trimtab.parametrization.comparison.names import Siblings, template
from trimtab.parametrization.comparison.overrides import Overrides
from trimtab.parametrization.comparison.pairing import Pairing
from trimtab.parametrization.comparison.ratios import Fans, Ratios, Twins, ratios
from trimtab.parametrization.rules import Kind, Where
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.trace import Node, adjustable

Readout = Literal["weight", "bias"] | None


@dataclasses.dataclass(frozen=True)
class Facts:
    """One parameter, model against base."""

    name: str
    twin: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    role: str
    kind: Kind
    m_in: float
    m_out: float
    where: Where = "outside"
    m_L: float = 1.0
    branches: tuple[int, ...] = ()
    stack: int | None = None
    uses: tuple[str, ...] = ()
    reuse: float = 1.0  # how many times more often a shared parameter is used
    zero_tail: bool = False
    outer: tuple[tuple[Where, float], ...] = ()  # (place, m_L) in enclosing branches
    readout: Readout = None  # of the network's readout, or None
    tied: bool = False
    first: bool = False  # takes the model's input
    partner: str | None = None  # the weight whose bias this is
    rank: int = (
        0  # which of the like-named parameters of its block this is (0.weight, 2.weight of a Sequential)
    )
    fans: Fans = (1, 1, 1, 1)
    experts: float = 1.0  # how many times more experts its mixture has
    of_product: bool = False  # it is summed against a product of activations


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A model beside its base: both analysed, their tensors and branches paired, each parameter's facts."""

    model: Graph
    base: Graph
    pairing: Pairing
    facts: Mapping[str, Facts]

    @property
    def grows(self) -> bool:
        """Whether any width differs."""
        return any(f.m_in != 1 or f.m_out != 1 for f in self.facts.values())


@dataclasses.dataclass(frozen=True)
class _Paired:
    """What the facts of a parameter are read from, besides the parameter itself."""

    model: Graph
    base: Graph
    pairing: Pairing
    overrides: Overrides
    siblings: Siblings
    base_siblings: Siblings
    depths: Depths
    ranks: Mapping[str, int]

    def of_readout(self, name: str) -> str | None:
        """The role of the readout whose bias this is: the user may say that its outputs are a width."""
        weight = next((w for w, biases in self.model.readouts.items() if name in biases), None)
        return None if weight is None else self.overrides.role(weight) or "readout"

    def stacked(self, name: str) -> float:
        """How many times more paths a tensor holds that has them all."""
        branches = self.pairing.places[name].branches
        paths = self.pairing.paths.get(branches[0]) if len(branches) == 1 else None
        if paths is None or name not in paths[0].own:
            twin = self.pairing.twin[name]
            slices = self.model.flow.packed(name) / self.base.flow.packed(twin)
            grown = math.prod(self.model.shape(name)) / math.prod(self.base.shape(twin))
            return slices if self.model.flow.packed(name) > 1 and math.isclose(slices, grown) else 1.0
        shape, base_shape = self.model.shape(name), self.base.shape(self.pairing.twin[name])
        holds = shape[:1] == (paths[0].count,) and base_shape[:1] == (paths[1].count,)
        return paths[0].count / paths[1].count if holds else 1.0


def compare(model: Graph, base: Graph, pairing: Pairing, overrides: Overrides) -> Comparison:
    """Facts for every parameter of the model.

    Raises:
        StructureError: something other than width and depth differs, or a use is not known; all such at once.
    """
    paired = _Paired(
        model=model,
        base=base,
        pairing=pairing,
        overrides=overrides,
        siblings=Siblings.among(model),
        base_siblings=Siblings.among(base),
        depths=Depths.of(model, base, pairing),
        ranks=_ranks(model, pairing),
    )
    found: dict[str, Facts] = {}
    problems: list[StructureError] = []
    for name in model.uses:
        try:
            found[name] = _facts(paired, name)
        except StructureError as error:
            if adjustable(model.trace.tensor(model.trace.params[name])):
                problems.append(error)
            else:  # numbers that are left alone, whatever they are for
                found[name] = _shape_only(paired, name)
    if problems:
        head = "what differs between model and base must be width and depth only:"
        text = "\n".join([head, *(f"  - {p}" for p in problems[:12])])
        raise StructureError(text, together([p.proposals for p in problems]))
    return Comparison(model=model, base=base, pairing=pairing, facts=found)


def main_width(facts: Mapping[str, Facts]) -> float:
    """m_N: the width ratio most parameters share; 1.0 where no width changes."""
    counts: dict[float, int] = {}
    for f in facts.values():
        for m in (f.m_in, f.m_out):
            if m != 1:
                counts[m] = counts.get(m, 0) + 1
    return max(counts, key=lambda m: counts[m]) if counts else 1.0


def _ranks(model: Graph, pairing: Pairing) -> dict[str, int]:
    """Which of the like-named parameters of its block each one is, in the order of use."""
    peers: dict[object, int] = {}
    ranks: dict[str, int] = {}
    for name in sorted(model.uses, key=lambda n: (model.first_use(n), n)):
        place = pairing.places[name]
        where = place.branches or ("stream" if place.stream is not None else "outside")
        key = template(name), where
        ranks[name] = peers.get(key, 0) if place.stream is None else 0
        peers[key] = peers.get(key, 0) + 1
    return ranks


def _facts(paired: _Paired, name: str) -> Facts:
    model, base, twin = paired.model, paired.base, paired.pairing.twin[name]
    shape, base_shape = model.shape(name), base.shape(twin)
    _refuse_shapes(name, twin, shape, base_shape)
    sibling = name if model.uses[name] else paired.siblings.of(name, shape) or name
    uses = model.uses[sibling]
    base_uses = base.uses[twin] or base.uses[paired.pairing.twin[sibling]]
    if uses and not base_uses:  # an expert of the base that was not visited looks like a visited one
        base_uses = base.uses.get(paired.base_siblings.of(twin, base_shape) or twin, ())
    said = paired.overrides.role(name)
    width = ratios(
        Twins(
            name=name,
            shape=shape,
            base_shape=base_shape,
            uses=uses,
            base_uses=base_uses,
            role=said,
            model=model,
            base=base,
            stacked=paired.stacked(name),
            of_readout=paired.of_readout(name),
        )
    )
    first, readout = _first(model, sibling), _readout(model, sibling, width.tied)
    depth = paired.depths.at(sibling, twin)
    return Facts(
        name=name,
        twin=twin,
        shape=shape,
        base_shape=base_shape,
        role=said or _role(width, first, readout),
        kind=width.kind,
        m_in=width.m_in,
        m_out=width.m_out,
        where=depth.where,
        m_L=depth.m_L,
        branches=depth.branches,
        stack=depth.stack,
        uses=tuple(dict.fromkeys(u.kind for u in uses)),
        reuse=depth.reuse,
        zero_tail=depth.zero_tail,
        outer=depth.outer,
        experts=depth.experts,
        readout=readout,
        tied=width.tied,
        first=first,
        partner=_partner(model, sibling),
        rank=paired.ranks[sibling],
        fans=width.fans,
        of_product=any(u.factors > 1 for u in uses),
    )


def _refuse_shapes(name: str, twin: str, shape: tuple[int, ...], base_shape: tuple[int, ...]) -> None:
    if 0 in shape or 0 in base_shape:
        raise StructureError(
            f"{name} has no elements (shape {shape}, base {base_shape}): remove it, nothing can be said of "
            "it."
        )
    if len(shape) != len(base_shape):
        raise StructureError(
            f"{name} has shape {shape}, its twin {twin} in the base {base_shape}: other ranks, so another "
            "architecture."
        )


def _shape_only(paired: _Paired, name: str) -> Facts:
    """Of a parameter that gets nothing, only its shape."""
    twin = paired.pairing.twin[name]
    return Facts(
        name=name,
        twin=twin,
        shape=paired.model.shape(name),
        base_shape=paired.base.shape(twin),
        role="scalar",
        kind="scalar",
        m_in=1.0,
        m_out=1.0,
    )


def _role(width: Ratios, first: bool, readout: str | None) -> str:
    """The role's name. Where nothing grows, structure decides; the numbers are the same for all of them."""
    if width.kind != "matrix":
        return width.kind
    if width.m_in != 1 and width.m_out != 1:
        return "hidden"
    if width.m_in != 1:
        return "readout"
    if width.m_out != 1:
        return "input"
    return "input" if first else "readout" if readout == "weight" else "hidden"


def _first(graph: Graph, name: str) -> bool:
    """It multiplies the model's input itself: nothing mixed before."""
    use = next((u for u in graph.uses[name] if u.kind in ("lookup", "contract")), None)
    if use is None or use.kind == "lookup":
        return use is not None
    node = graph.trace.nodes[use.node]
    return not any(
        graph.flow.mixing[n.index] and any(graph.flow.comes_from(i, n.outputs[0]) for i in node.inputs)
        for n in graph.trace.nodes[: use.node]
    )


def _readout(graph: Graph, name: str, tied: bool) -> Readout:
    if name in graph.readouts and not tied:
        return "weight"
    return "bias" if any(name in biases for biases in graph.readouts.values()) else None


def _partner(graph: Graph, name: str) -> str | None:
    """The weight that makes what this bias is added to."""
    for use in graph.uses[name]:
        for value in (i for i in graph.flow.added_to(use) if graph.flow.act[i]):
            maker = _maker(graph, value)
            if maker is not None:
                return next((n for n in graph.uses if n != name and _multiplies(graph, n, maker)), None)
    return None


def _maker(graph: Graph, value: int) -> Node | None:
    """The mixing operation that made a value, views looked through."""
    node = graph.trace.producer(value)
    while node is not None and not graph.flow.mixing[node.index]:
        if node.name not in operations.LINEAR:
            return None
        node = graph.trace.producer(node.inputs[0])
    return node


def _multiplies(graph: Graph, name: str, node: Node) -> bool:
    return any(u.node == node.index and u.kind == "contract" for u in graph.uses[name])
