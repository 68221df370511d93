"""What each parameter is: its kind, its width ratios, its place, its depth ratio. Model against base.

Reads two analysed graphs and their pairing, and returns one `Facts` per parameter, from which `rules` computes
numbers (docs/theory.md, equation (9)).
All that is particular to a use is decided here: tied weights, network readouts, vocabularies and classes
that are no widths, stacks that grow by different ratios, tails that start at zero.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.errors import StructureError, faults
from trimtab.parametrization.pairing import Pairing, Siblings, template
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.residuals import Residual
from trimtab.structure.trace import adjustable
from trimtab.structure.uses import Use

ROLES = ("input", "hidden", "readout", "elementwise", "scalar")
NUMBERS = ("init", "lr", "weight_decay", "eps")
NEARLY_ZERO = 1e-2  # a LayerScale of 1e-6 to 1e-4 counts as a tail that starts at zero


@dataclasses.dataclass(frozen=True)
class Facts:
    """One parameter, model against base."""

    name: str
    twin: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    role: str
    kind: str  # of the rules: "matrix" | "elementwise" | "scalar"
    m_in: float
    m_out: float
    where: str = "outside"
    m_L: float = 1.0
    branches: tuple[int, ...] = ()
    stack: int | None = None
    uses: tuple[str, ...] = ()
    reuse: float = 1.0  # how many times more often a shared parameter is used
    zero_tail: bool = False
    outer: tuple[tuple[str, float], ...] = ()  # (place, m_L) in enclosing branches
    readout: str | None = None  # "weight" | "bias" of the network's readout
    tied: bool = False
    first: bool = False  # takes the model's input
    partner: str | None = None  # the weight whose bias this is
    rank: int = (
        0  # which of the like-named parameters of its block this is (0.weight, 2.weight of a Sequential)
    )
    fans: tuple[int, int, int, int] = (1, 1, 1, 1)  # fan_in, fan_out of the model, of the base


class Overrides:
    """The user's word on patterns of names; the last pattern that matches wins for each thing it says."""

    def __init__(self, overrides: Mapping[str, Any] | None, names: list[str]):
        self.given = dict(overrides or {})
        problems = []
        for pattern, value in self.given.items():
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                problems.append(f"{pattern!r} matches no parameter; names look like {', '.join(names[:3])}")
            if isinstance(value, str):
                if value not in (*ROLES, "branch", "skip"):
                    problems.append(
                        f"{pattern!r}: {value!r} is not one of {', '.join(map(repr, (*ROLES, 'branch', 'skip')))}"
                    )
            elif isinstance(value, Mapping):
                for key, number in value.items():
                    if key == "init_law":
                        if not isinstance(number, str | int | float) or isinstance(number, bool):
                            problems.append(
                                f"{pattern!r}: init_law must be a number (std of the model / std of the base) or the name of a law: got {number!r}"
                            )
                    elif key not in NUMBERS:
                        problems.append(
                            f"{pattern!r}: {key!r} is not one of {', '.join((*NUMBERS, 'init_law'))}"
                        )
                    elif (
                        isinstance(number, bool)
                        or not isinstance(number, int | float)
                        or not 0 <= number < math.inf
                    ):
                        problems.append(f"{pattern!r}: {key} must be a finite number >= 0: got {number!r}")
            else:
                problems.append(
                    f"{pattern!r}: must be a role, 'branch', 'skip' or a dict of numbers: got {value!r}"
                )
        if problems:
            raise faults("overrides must name parameters and say what they are:", problems)

    def patterns(self, word: str) -> tuple[str, ...]:
        return tuple(p for p, v in self.given.items() if v == word)

    def role(self, name: str) -> str | None:
        found = [v for p, v in self.given.items() if v in ROLES and fnmatch.fnmatchcase(name, p)]
        return found[-1] if found else None

    def numbers(self, name: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for pattern, value in self.given.items():
            if isinstance(value, Mapping) and fnmatch.fnmatchcase(name, pattern):
                merged |= value
        return merged


def depth_ratios(pairing: Pairing) -> list[float]:
    """m_L of each stack (docs/theory.md, equation (10)).

    Raises:
        StructureError: one stack grows and another shrinks, so neither model is the deeper one.
    """
    ratios = [n / b for n, b in pairing.counts]
    if any(r > 1 for r in ratios) and any(r < 1 for r in ratios):
        raise StructureError(
            f"a base must be shallower (or deeper) in every stack: the model has {[n for n, _ in pairing.counts]} branches per stack, the base "
            f"{[b for _, b in pairing.counts]}. Choose a base that is the smaller one in each stage."
        )
    return ratios


def read(model: Graph, base: Graph, pairing: Pairing, overrides: Overrides) -> dict[str, Facts]:
    """Facts for every parameter of the model.

    Raises:
        StructureError: something other than width and depth differs, or a use cannot be told; all such at once.
    """
    reader = _Reader(model, base, pairing, overrides)
    found: dict[str, Facts] = {}
    problems: list[str] = []
    for name in model.uses:
        try:
            found[name] = reader.facts(name)
        except StructureError as error:
            if adjustable(model.trace.tensor(model.trace.params[name])):
                problems.append(str(error))
            else:  # numbers that are left alone, whatever they are for
                found[name] = reader.untold(name)
    if problems:
        raise StructureError(
            "\n".join(
                [
                    "what differs between model and base must be width and depth only:",
                    *(f"  - {p}" for p in problems[:12]),
                ]
            )
        )
    return found


class _Reader:
    def __init__(self, model: Graph, base: Graph, pairing: Pairing, overrides: Overrides):
        self.model, self.base, self.pairing, self.overrides = model, base, pairing, overrides
        self.ratios = depth_ratios(pairing)
        self.biases = {b: w for w, bs in model.readouts.items() for b in bs}
        self.siblings, self.base_siblings = Siblings.among(model), Siblings.among(base)
        self.ranks = self._ranks()
        self.zero = {r.index: self._starts_at_zero(r) for r in model.residuals}

    def _ranks(self) -> dict[str, int]:
        peers: dict[object, int] = {}
        ranks: dict[str, int] = {}
        order = sorted(
            self.model.uses, key=lambda n: (min((u.node for u in self.model.uses[n]), default=1 << 60), n)
        )
        for name in order:
            place = self.pairing.places[name]
            key = (
                (template(name), place.branches)
                if place.branches
                else (template(name), "stream" if place.stream is not None else "outside")
            )
            ranks[name] = peers.get(key, 0) if place.stream is None else 0
            peers[key] = peers.get(key, 0) + 1
        return ranks

    # -- uses ----------------------------------------------------------------------------------------------------

    def facts(self, name: str) -> Facts:
        twin = self.pairing.twin[name]
        shape, base_shape = self._shape(self.model, name), self._shape(self.base, twin)
        if 0 in shape or 0 in base_shape:
            raise StructureError(
                f"{name} has no elements (shape {shape}, base {base_shape}): remove it, nothing can be said of it."
            )
        if len(shape) != len(base_shape):
            raise StructureError(
                f"{name} has shape {shape}, its twin {twin} in the base {base_shape}: other ranks, so another architecture."
            )
        sibling = name if self.model.uses[name] else self.siblings.of(name, shape) or name
        uses = self.model.uses[sibling]
        twin_uses = self.base.uses[twin] or self.base.uses[self.pairing.twin[sibling]]
        if (
            uses and not twin_uses
        ):  # an expert of the base that this example did not visit looks like a visited one
            twin_uses = self.base.uses.get(self.base_siblings.of(twin, base_shape) or twin, [])
        role = self.overrides.role(name)
        kind, m_in, m_out, fans, tied = self._ratios(name, shape, base_shape, uses, twin_uses, role)
        first = self._first(sibling)
        readout = self._readout(sibling, tied)
        label = role or self._label(kind, m_in, m_out, first, readout)
        facts = Facts(
            name,
            twin,
            shape,
            base_shape,
            label,
            kind,
            m_in,
            m_out,
            tied=tied,
            first=first,
            readout=readout,
            fans=fans,
        )
        facts = dataclasses.replace(
            facts,
            uses=tuple(dict.fromkeys(u.kind for u in uses)),
            partner=self._partner(sibling),
            rank=self.ranks[sibling],
        )
        return self._placed(facts, sibling, twin)

    def untold(self, name: str) -> Facts:
        """Of a parameter that gets nothing, only its shape."""
        twin = self.pairing.twin[name]
        return Facts(
            name,
            twin,
            self._shape(self.model, name),
            self._shape(self.base, twin),
            "scalar",
            "scalar",
            1.0,
            1.0,
        )

    @staticmethod
    def _shape(graph: Graph, name: str) -> tuple[int, ...]:
        return graph.trace.values[graph.trace.params[name]].shape

    def _ratios(
        self,
        name: str,
        shape: tuple[int, ...],
        base_shape: tuple[int, ...],
        uses: Sequence[Use],
        twin_uses: Sequence[Use],
        role: str | None,
    ) -> tuple[str, float, float, tuple[int, int, int, int], bool]:
        """(kind, m_in, m_out, fans, tied) of a parameter, an override's word first."""
        numel = math.prod(shape) / math.prod(base_shape)
        growing = [a / b for a, b in zip(shape, base_shape, strict=True) if a != b]
        contract = [u for u in uses if u.kind == "contract"]
        lookup = [u for u in uses if u.kind == "lookup"]
        base_of = {k: [u for u in twin_uses if u.kind == k] for k in ("contract", "lookup", "elementwise")}
        if role in ("scalar", "elementwise") or (role is None and not contract and not lookup):
            return self._elementwise(
                name, shape, base_shape, uses, base_of["elementwise"], role, numel, growing
            )
        if lookup and base_of["lookup"]:
            a, b = lookup[0], base_of["lookup"][0]
            rows = a.fan_in / b.fan_in
            if rows != 1 and role is None:
                raise StructureError(
                    f"{name}: its rows are looked up by an input (a vocabulary or positions), {b.fan_in} in the base and {a.fan_in} here, which is no width. Use the same, or overrides={{'{name}': 'input'}}."
                )
            tied = bool(contract)
            return (
                "matrix",
                1.0 if role in (None, "input") else rows,
                a.fan_out / b.fan_out,
                (a.fan_in, a.fan_out, b.fan_in, b.fan_out),
                tied,
            )
        if contract and base_of["contract"]:
            pairs = {
                (a.fan_in / b.fan_in, self._growth(a, b))
                for a, b in zip(contract, base_of["contract"], strict=False)
            }
            a, b = contract[0], base_of["contract"][0]
            if a.copies != b.copies and role is None:
                raise StructureError(
                    f"{name} holds {a.copies} matrices (experts, groups) and {b.copies} in the base: their number is no width. Use the same, or overrides={{'{name}': 'hidden'}}."
                )
            sliced = a.fan_in * a.fan_out * a.copies < math.prod(shape) and len(contract) != len(
                base_of["contract"]
            )
            if sliced and role is None:
                raise StructureError(
                    f"{name} {shape} (base {base_shape}) is used slice by slice, {len(contract)} times here and {len(base_of['contract'])} in the base: the weights of several blocks in one tensor. One rate cannot serve them; keep them in a ParameterList."
                )
            m_in, m_out = a.fan_in / b.fan_in, self._growth(a, b)
            fans = (a.fan_in, a.fan_out, b.fan_in, b.fan_out)
            if role == "input":
                return "matrix", 1.0, m_out, fans, False
            if role == "readout":
                return "matrix", m_in, 1.0, fans, False
            if len(pairs) > 1:
                if name in self.model.readouts or role is not None:
                    return "matrix", m_in, m_out, fans, True
                raise StructureError(
                    f"{name} is used in several ways whose width ratios differ, {sorted(pairs)}: one init cannot serve both. Pass overrides={{'{name}': 'hidden'}} (or another role) for the one that counts."
                )
            if m_out != 1 and name in self.model.readouts and role is None:
                raise StructureError(
                    f"{name} is the network's readout with {b.fan_out} outputs in the base and {a.fan_out} here: outputs (classes, a vocabulary) are no width. Use the same, or overrides={{'{name}': 'readout'}} (or 'hidden' if this is a width)."
                )
            return "matrix", m_in, m_out, fans, False
        if len(shape) >= 2 and role in (
            "input",
            "hidden",
            "readout",
        ):  # no use was seen: torch's (out, in, ...) convention
            fans = (math.prod(shape[1:]), shape[0], math.prod(base_shape[1:]), base_shape[0])
            m_in, m_out = fans[0] / fans[2], fans[1] / fans[3]
            return (
                "matrix",
                1.0 if role == "input" else m_in,
                1.0 if role == "readout" else m_out,
                fans,
                False,
            )
        if role is not None:
            return (
                "matrix",
                numel if role == "readout" else 1.0,
                numel if role == "input" else 1.0,
                (1, 1, 1, 1),
                False,
            )
        raise StructureError(
            f"{name} is used as {sorted({u.kind for u in uses})} here and as {sorted({u.kind for u in twin_uses})} in the base: another architecture, or an example that takes another path."
        )

    def _growth(self, a: Use, b: Use) -> float:
        """m_out. Where a product is cut into parts that grow and parts that do not, that of the ones that grow."""
        m_out = a.fan_out / b.fan_out
        cuts = [
            graph.flow.pieces(use) if m_out != 1 else () for graph, use in ((self.model, a), (self.base, b))
        ]
        if len(cuts[0]) == len(cuts[1]) > 0:
            ratios = {x / y for x, y in zip(*cuts, strict=True)}
            if len(ratios) == 2 and 1.0 in ratios:
                return max(ratios - {1.0})
        return m_out

    def _elementwise(
        self,
        name: str,
        shape: tuple[int, ...],
        base_shape: tuple[int, ...],
        uses: Sequence[Use],
        twin_uses: Sequence[Use],
        role: str | None,
        numel: float,
        growing: list[float],
    ) -> tuple[str, float, float, tuple[int, int, int, int], bool]:
        fans = (1, math.prod(shape), 1, math.prod(base_shape))
        if role == "scalar" or math.prod(shape) == math.prod(base_shape) == 1:
            return "scalar", 1.0, 1.0, fans, False
        if role == "elementwise" or not growing:
            return "elementwise", 1.0, numel, fans, False
        if not uses:
            if len(growing) == 1 and max(shape) == math.prod(shape):
                return "elementwise", 1.0, numel, fans, False
            if len(shape) == 2 and len(growing) == 2 and growing[0] == growing[1]:
                return (
                    "matrix",
                    growing[0],
                    growing[0],
                    (shape[1], shape[0], base_shape[1], base_shape[0]),
                    False,
                )
            raise StructureError(
                f"{name} {shape} (base {base_shape}) is not used in this example's forward, so its role is not known. Pass an example that uses it, or overrides={{'{name}': one of {', '.join(ROLES)}}}."
            )
        if any(u.kind == "unknown" for u in uses):
            op = self.model.trace.nodes[uses[0].node].name
            raise StructureError(
                f"{name} {shape} (base {base_shape}) is used by the operation {op!r}, whose contraction is not known. Pass overrides={{'{name}': one of {', '.join(ROLES)}}}."
            )
        if len(growing) > 1:
            raise StructureError(
                f"{name} {shape} (base {base_shape}) acts element by element but grows in {len(growing)} dimensions: a matrix in disguise, or positions that differ. Pass overrides={{'{name}': one of {', '.join(ROLES)}}}."
            )
        if twin_uses and name not in self.biases:
            seen = uses[0].fan_out / twin_uses[0].fan_out
            if not math.isclose(seen, numel):
                raise StructureError(
                    f"{name} {shape} (base {base_shape}) grows by {numel:g}, but the part of it this example uses grows by {seen:g}: positions or another size that is no width. Use the same, or overrides={{'{name}': 'elementwise'}}."
                )
        return "elementwise", 1.0, 1.0 if name in self.biases else numel, fans, False

    def _label(self, kind: str, m_in: float, m_out: float, first: bool, readout: str | None) -> str:
        """The role's name. Where nothing grows, structure decides; the numbers are the same for all of them."""
        if kind != "matrix":
            return kind
        if m_in != 1 and m_out != 1:
            return "hidden"
        if m_in != 1:
            return "readout"
        if m_out != 1:
            return "input"
        return "input" if first else "readout" if readout == "weight" else "hidden"

    def _first(self, name: str) -> bool:
        """It multiplies the model's input itself: nothing mixed before."""
        graph = self.model
        for use in graph.uses[name]:
            if use.kind == "lookup":
                return True
            if use.kind != "contract":
                continue
            node = graph.trace.nodes[use.node]
            before = [
                n
                for n in graph.trace.nodes[: use.node]
                if graph.flow.mixing[n.index]
                and any(graph.flow.behind[i] >> n.outputs[0] & 1 for i in node.inputs)
            ]
            return not before
        return False

    def _readout(self, name: str, tied: bool) -> str | None:
        if name in self.model.readouts and not tied:
            return "weight"
        return "bias" if name in self.biases else None

    def _partner(self, name: str) -> str | None:
        """The weight that makes what this bias is added to."""
        graph = self.model
        for use in graph.uses[name]:
            if use.kind != "elementwise" or use.node < 0:
                continue
            node = graph.trace.nodes[use.node]
            values = (
                [node.outputs[0]]
                if node.name in operations.CONVOLUTIONS
                else [i for i in node.inputs if graph.flow.act[i]]
            )
            for value in values if node.name == "add" or node.name in operations.CONVOLUTIONS else ():
                while (
                    (p := graph.trace.producer(value)) is not None
                    and p.name in operations.LINEAR
                    and not graph.flow.mixing[p.index]
                ):
                    value = p.inputs[0]
                if p is not None and graph.flow.mixing[p.index]:
                    return next(
                        (
                            n
                            for n, us in graph.uses.items()
                            if n != name and any(u.node == p.index and u.kind == "contract" for u in us)
                        ),
                        None,
                    )
        return None

    # -- places --------------------------------------------------------------------------------------------------

    def _placed(self, facts: Facts, name: str, twin: str) -> Facts:
        place = self.pairing.places.get(name)
        base_place = self.pairing.base_places.get(twin)
        assert place is not None
        if place.stream is not None:
            reuse = max(1, len(self.model.uses[name])) / max(1, len(self.base.uses[twin]))
            return dataclasses.replace(
                facts, where="stream", stack=place.stream, m_L=self.ratios[place.stream], reuse=reuse
            )
        if not place.branches:
            return facts
        stacks = {self.model.residuals[i].stack for i in place.branches}
        ratios = {self.ratios[k] for k in stacks}
        if (
            len(ratios) > 1
        ):  # it feeds stacks of different growth: alpha = 1 and m_U cancel in each, as outside
            return facts
        stack = min(stacks)
        reuse = len(place.branches) / max(1, len(base_place.branches) if base_place else 1)
        tail = bool(place.tail_of) and set(place.tail_of) == set(place.branches)
        outer = tuple(self._outer(place.branches[0], name)) if len(place.branches) == 1 else ()
        return dataclasses.replace(
            facts,
            where="tail" if tail else "branch",
            branches=place.branches,
            stack=stack,
            m_L=self.ratios[stack],
            reuse=reuse if len(place.branches) > 1 or (base_place and len(base_place.branches) > 1) else 1.0,
            zero_tail=all(self.zero[i] for i in place.branches),
            outer=outer,
        )

    def _outer(self, index: int, name: str) -> list[tuple[str, float]]:
        chain = []
        for i in self.model.network.enclosing(index):
            residual = self.model.residuals[i]
            tail = any(site.name == name for site in residual.tail)
            chain.append(("tail" if tail else "branch", self.ratios[residual.stack]))
        return chain

    def _starts_at_zero(self, residual: Residual) -> bool:
        graph = self.model
        tail = residual.tail
        if not graph.trace.real:
            twin = self.pairing.branch_twin.get(residual.index)
            graph, tail = self.base, self.base.residuals[twin].tail if twin is not None else {}
        if not tail or not graph.trace.real:
            return False
        for site in tail:
            p = graph.trace.tensor(graph.trace.params[site.name]).detach()
            p = 1 + p if site.offset else p
            is_matrix = any(u.kind == "contract" for u in graph.uses[site.name])
            rms = float(p.double().pow(2).mean().sqrt())
            if rms > (0.0 if is_matrix else NEARLY_ZERO):
                return False
        return True


def main_width(facts: Mapping[str, Facts]) -> float:
    """m_N: the width ratio most parameters share; 1.0 where no width changes."""
    counts: dict[float, int] = {}
    for f in facts.values():
        for m in (f.m_in, f.m_out):
            if m != 1:
                counts[m] = counts.get(m, 0) + 1
    return max(counts, key=lambda m: counts[m]) if counts else 1.0
