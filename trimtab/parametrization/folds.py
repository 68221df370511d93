"""Multipliers that belong to no single rule: attention, constants of the model's own, tied readouts.

Each is a number a wanted multiplier is short of, `fold = wanted / own`, put into the parameters in which the value is
homogeneous (`tails`), where it acts as `(init, u, s) -> (a init, a u, s/a)`
(docs/theory.md, equations (15) to (18)):

- **branch constants**: the model's own scale_depth / sqrt(L), or DeepNorm's weight on the skip;
- **attention**: scores want 1/d relative to base, `fold = m_d^-1 / (c_target / c_base)`, into the query side. Where
  queries, keys and values are one packed tensor: sqrt(fold) into it and 1/sqrt(fold) into the out-projection's weight;
- **other constants** that depend on size (an embedding times sqrt(N)) are undone where they act;
- **tied readouts**: the readout multiplier 1/m goes into the gain and bias of the final norm.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from trimtab.errors import StructureError
from trimtab.parametrization.pairing import Pairing
from trimtab.parametrization.roles import Facts
from trimtab.structure import operations
from trimtab.structure.graph import Graph, Product, linear_after
from trimtab.structure.tails import Blocked, Tail, constant_factor, degree, proven, tails
from trimtab.structure.trace import Node, Ref


@dataclasses.dataclass
class Folds:
    """The collected factors, which stored gains have an offset (1 + w), and what to tell the user."""

    factor: dict[str, float]
    offset: set[str]
    notes: list[str]
    readout_ratio: float = 1.0  # fan-in ratio of the network's readout, for the ntk scheme

    def multiply(self, tail: Tail, a: float) -> None:
        for name in {site.name for site in tail}:
            self.factor[name] = self.factor.get(name, 1.0) * a
        self.offset |= {site.name for site in tail if site.offset}


def collect(model: Graph, base: Graph, pairing: Pairing, facts: Mapping[str, Facts], gamma: float) -> Folds:
    """All folds of a model against its base. `gamma`: the richness that a tied readout must carry too."""
    folds = Folds({}, set(), [])
    collector = _Collector(model, base, pairing, facts, folds)
    collector.branches()
    collector.attention()
    collector.mark_tied()
    collector.constants()
    collector.tied(gamma)
    return folds


class _Collector:
    def __init__(self, model: Graph, base: Graph, pairing: Pairing, facts: Mapping[str, Facts], folds: Folds):
        self.model, self.base, self.pairing, self.facts, self.folds = model, base, pairing, facts, folds
        self.seen: tuple[set[int], set[int]] = (
            set(),
            set(),
        )  # constant nodes already accounted for: model, base
        self.folded: dict[frozenset[str], float] = {}
        self.undone: set[tuple[frozenset[str], int]] = set()

    def _snapped(self, ratio: float) -> float:
        """A constant kept in float32, made exact: the power (in quarters) of a size ratio that it is."""
        sizes = {m for f in self.facts.values() for m in (f.m_in, f.m_out, f.m_L)} - {1.0}
        for m in sorted(sizes):
            power = round(4 * math.log(abs(ratio)) / math.log(m)) / 4 if ratio else 0.0
            if abs(power) <= 2 and math.isclose(m**power, abs(ratio), rel_tol=1e-5):
                return math.copysign(m**power, ratio)
        return ratio

    def _consume(self, which: int, tail: Tail, value: int) -> None:
        """Constants between the tail's sites and the value are part of that tail's own factor."""
        graph = (self.model, self.base)[which]
        starts = [o for site in tail for o in graph.trace.nodes[site.node].outputs]
        for node in graph.trace.nodes:
            if (
                node.name in ("mul", "div")
                and node.outputs
                and graph.flow.behind[value] >> node.outputs[0] & 1
                and any(graph.flow.behind[node.outputs[0]] >> s & 1 for s in starts)
            ):
                self.seen[which].add(node.index)

    # -- the model's own branch multipliers -------------------------------------------------------------------------

    def branches(self) -> None:
        done: set[str] = set()
        for which, graph in enumerate((self.model, self.base)):
            for r in graph.residuals:
                self._consume(which, r.tail, r.branch)
                value = r.skip
                while value != r.source and (node := graph.trace.producer(value)) is not None:
                    self.seen[which].add(node.index)
                    acts = [i for i in node.inputs if graph.flow.act[i]]
                    if not acts:
                        break
                    value = acts[0]
        for r in self.model.residuals:
            for site in r.tail:
                self.folds.offset |= {site.name} if site.offset else set()
            rb = self.base.residuals[self.pairing.branch_twin[r.index]]
            of_base = {site.name: c for site, c in rb.tail.items()}
            for site, c in r.tail.items():
                twin = self.pairing.twin[site.name]
                if twin not in of_base or site.name in done:
                    continue
                done.add(site.name)
                own = self._snapped((c / r.skip_factor) / (of_base[twin] / rb.skip_factor))
                if not math.isclose(own, 1.0, rel_tol=1e-9):
                    self.folds.factor[site.name] = self.folds.factor.get(site.name, 1.0) / own

    # -- attention ---------------------------------------------------------------------------------------------------

    def attention(self) -> None:
        twins: dict[tuple[frozenset[str], frozenset[str]], list[Product]] = {}
        met: dict[tuple[frozenset[str], frozenset[str]], int] = {}
        for p in self.base.products:
            twins.setdefault(_sides(p, None), []).append(p)
        for p in self.model.products:
            key = _sides(p, self.pairing.twin)
            alike, order = twins.get(key, []), met.get(key, 0)
            met[key] = order + 1
            if not alike:
                raise StructureError(
                    f"a product of two activations over {p.size} numbers ({sorted(key[0])} with {sorted(key[1])}) has no counterpart in the base: another architecture, or an example that takes another path."
                )
            twin = alike[order % len(alike)]  # blocks repeat, so their products do
            if p.size == twin.size or self._averages(
                twin
            ):  # over tokens, or over heads that stay: its constants are ordinary ones
                continue
            for which, product in enumerate((p, twin)):
                for side in (product.left, product.right):
                    self._consume(
                        which, side, (self.model, self.base)[which].trace.nodes[product.node].outputs[0]
                    )
                graph = (self.model, self.base)[which]
                self.seen[which].update(
                    n.index for n in linear_after(graph.network, graph.trace.nodes[product.node])
                )
            m_d = p.size / twin.size
            own = self._snapped(_constant(p) / _constant(twin)) * m_d ** (-0.5 * p.normalised)
            fold = 1 / (m_d * own)
            # What takes the factor takes it once: a shared layer runs many times, one query serves several terms.
            taker = frozenset(site.name for site in (p.left or p.right))
            if taker in self.folded and not math.isclose(self.folded[taker], fold, rel_tol=1e-9):
                raise StructureError(
                    f"one projection serves scores that want different factors, {self.folded[taker]:.4g} and {fold:.4g}: {sorted(taker)}. Use separate projections."
                )
            if taker not in self.folded and not math.isclose(fold, 1.0, rel_tol=1e-9):
                self._fold_product(p, twin, fold)
            self.folded[taker] = fold

    def _averages(self, twin: Product) -> bool:
        """One operand of the base's product is made of weights that sum to 1 (a softmax over what is contracted): an average, the same at every size."""
        trace = self.base.trace
        left, right = (trace.tensor(a.index) for a in trace.nodes[twin.node].args[:2] if isinstance(a, Ref))
        for operand, dim in ((left, -1), (right, -2)):
            if (
                operand.dim() >= -dim
                and bool((operand >= 0).all())
                and bool(((operand.double().sum(dim) - 1).abs() < 1e-2).all())
            ):
                return True
        return False

    def _fold_product(self, p: Product, twin: Product, fold: float) -> None:
        side = p.left or p.right
        if not side:
            raise StructureError(
                f"scores over {p.size} numbers ({twin.size} in the base) want a factor {fold:.4g}, and neither operand has parameters it would fold into. Keep the head dimension of the base, or give the query norm a gain."
            )
        shared = {s.name for s in p.left} & {s.name for s in p.right}
        if not shared:
            self._prove(p, twin, side, 1.0)
            self.folds.multiply(side, fold)
            return
        both = {**p.left, **p.right}
        self._prove(p, twin, both, 2.0)
        root = math.sqrt(fold)
        values, outs = self._values(p, shared)
        self.folds.multiply({**both, **values}, root)
        for name in outs:
            self.folds.factor[name] = self.folds.factor.get(name, 1.0) / root

    def _prove(self, p: Product, twin: Product, sites: Tail, power: float) -> None:
        """By numbers, on the base where the model has none: the scores scale by c^power when the sites scale by c."""
        graph = self.model
        if not graph.trace.real:
            names = {self.pairing.twin[s.name] for s in sites}
            sites = {s: c for s, c in {**twin.left, **twin.right}.items() if s.name in names}
            graph, p = self.base, twin
        out = graph.trace.nodes[p.node].outputs[0]
        seen = degree(graph.trace, sites, out, graph.flow.behind[out])
        if not math.isclose(seen, power, abs_tol=0.05):
            names = {s.name for s in sites}
            raise StructureError(
                f"a product of two activations over {p.size} numbers wants a factor, and scaling {sorted(names)} should scale it by the power {power:g}; measured {seen:.3g}. Pass overrides with explicit factors for these parameters, or keep the head dimension of the base."
            )

    def _values(self, p: Product, packed: set[str]) -> tuple[Tail, set[str]]:
        """What shares a packed tensor with queries and keys: the values' own parameters, and the weights behind them
        that undo what the fold did to the values."""
        graph = self.model
        scores = graph.trace.nodes[p.node].outputs[0]
        names: set[str] = set()
        for q in graph.products:
            out = graph.trace.nodes[q.node].outputs[0]
            side = next((t for t in (q.right, q.left) if {s.name for s in t} & packed), {})
            if q is p or not graph.flow.behind[out] >> scores & 1 or not side:
                continue
            todo = list(graph.trace.consumers[out])
            while todo:
                node = graph.trace.nodes[todo.pop()]
                if graph.flow.mixing[node.index]:
                    names |= {
                        n
                        for n, uses in graph.uses.items()
                        if any(u.node == node.index and u.kind == "contract" for u in uses)
                    }
                elif node.name in operations.LINEAR or node.name in operations.POSITIVE:
                    todo += [c for o in node.outputs for c in graph.trace.consumers[o]]
                elif node.name not in operations.NORMS:
                    raise StructureError(
                        f"queries, keys and values are packed into {sorted(packed)} and the values reach {node.name!r} before any projection, so the attention factor cannot be kept from them. Use separate projections, or keep the head dimension of the base."
                    )
            return side, names
        return {}, names

    # -- other constants -----------------------------------------------------------------------------------------------

    def constants(self) -> None:
        lists: list[dict[object, list[tuple[int, float]]]] = [{}, {}]
        for which, graph in enumerate((self.model, self.base)):
            for node in graph.trace.nodes:
                number = constant_factor(graph.trace, node)
                if number is None:
                    self._refuse_unknown(graph, node)
                if (
                    number is None
                    or node.index in self.seen[which]
                    or not (graph.flow.act[node.outputs[0]] or graph.flow.weightlike(node.outputs[0]))
                ):
                    continue
                sides = {(i, side) for i, side in graph.network.reach[node.outputs[0]] if side != "out"}
                key: object = "outside"
                if len(sides) == 1 and next(iter(sides))[1] == "branch":
                    key = next(iter(sides))[0]
                lists[which].setdefault(key, []).append((node.index, number))
        for key, mine in lists[0].items():
            theirs = lists[1].get(self.pairing.branch_twin[key] if isinstance(key, int) else key, [])
            if len(mine) != len(theirs):
                if {round(c, 12) for _, c in mine} != {round(c, 12) for _, c in theirs}:
                    self.folds.notes.append(
                        f"constants in the forward differ in number between model ({len(mine)}) and base ({len(theirs)}) and could not be compared one by one."
                    )
                continue
            for j, ((at, c), (_, cb)) in enumerate(zip(mine, theirs, strict=True)):
                if cb != 0 and not math.isclose(c / cb, 1.0, rel_tol=1e-6):
                    self._undo(at, self._snapped(c / cb), j)

    def _refuse_unknown(self, graph: Graph, node: Node) -> None:
        """On meta a one-element tensor has no value, so a multiplier that depends on size could hide in it."""
        values = graph.trace.values
        if (
            graph.trace.real
            or node.name not in ("mul", "div")
            or not any(graph.flow.act[i] for i in node.inputs)
        ):
            return
        for i in node.inputs:
            if (
                values[i].constant
                and values[i].number is None
                and math.prod(values[i].shape) == 1
                and values[i].is_float
            ):
                name = values[i].name or "a one-element tensor made in the forward"
                raise StructureError(
                    f"a constant the forward multiplies by must be known: {name} is on the meta device and has no value. Give it one (module.register_buffer(..., torch.tensor(value))), or build the model on a real device."
                )

    def _undo(self, at: int, ratio: float, order: int) -> None:
        graph = self.model
        node = graph.trace.nodes[at]
        value = node.inputs[0]
        try:
            candidates = tails(
                graph.trace, node.outputs[0], closed=frozenset(r.node for r in graph.residuals)
            )
            # A tied weight may take up a constant of the embedding, not one of the readout: the other use would feel it.
            candidates = [
                t
                for t in candidates
                if not any(
                    self.facts[s.name].tied and graph.trace.nodes[s.node].name not in operations.LOOKUPS
                    for s in t
                )
            ]
            tail = next(
                proven(graph.trace, candidates, node.outputs[0], graph.flow.behind[node.outputs[0]], 0)
            )
        except (Blocked, StopIteration):
            raise StructureError(
                f"a constant in the forward is {ratio:.4g} times the base's ({node.name} on a tensor of shape {graph.trace.values[value].shape}) and there is no parameter behind it that could take it up. "
                "Make it the same at every size."
            ) from None
        names = sorted({site.name for site in tail})
        if (frozenset(names), order) in self.undone:  # the same constant of a shared layer, met again
            return
        self.undone.add((frozenset(names), order))
        self.folds.multiply(tail, 1 / ratio)
        self.folds.notes.append(
            f"the forward multiplies by a constant that is {ratio:.4g} times the base's; undone in {', '.join(names)}."
        )

    # -- tied readouts -------------------------------------------------------------------------------------------------

    def mark_tied(self) -> None:
        """Constants between the final norm and a tied readout are part of that readout's own factor."""
        for name in self.model.readouts:
            if not self.facts[name].tied:
                continue
            for which, (graph, own) in enumerate(((self.model, name), (self.base, self.facts[name].twin))):
                use = [u for u in graph.uses[own] if u.kind == "contract"][-1]
                (value,) = [i for i in graph.trace.nodes[use.node].inputs if graph.flow.act[i]][:1]
                try:
                    self._consume(
                        which,
                        tails(graph.trace, value, closed=frozenset(r.node for r in graph.residuals))[0],
                        value,
                    )
                except Blocked:
                    continue

    def tied(self, gamma: float) -> None:
        graph = self.model
        ratios = {}
        for name in graph.readouts:
            f = self.facts[name]
            uses = [u for u in graph.uses[name] if u.kind == "contract"]
            base_uses = [u for u in self.base.uses[f.twin] if u.kind == "contract"]
            ratios[name] = uses[-1].fan_in / base_uses[-1].fan_in if uses and base_uses else 1.0
            if not f.tied or (ratios[name] == 1 and gamma == 1):
                continue
            tail = self._input_tail(graph, name, uses[-1].node)
            base_tail = self._input_tail(self.base, f.twin, base_uses[-1].node)
            wanted = 1 / ratios[name] / self.folds.factor.get(name, 1.0)
            consts = {site.name: c for site, c in base_tail.items()}
            for site, c in tail.items():
                own = self._snapped(c / consts.get(self.pairing.twin[site.name], c))
                self.folds.multiply({site: c}, wanted / own / gamma)
            self.folds.notes.append(
                f"{name} is both embedding and readout: the readout multiplier is in {', '.join(sorted(s.name for s in tail))}."
            )
        if ratios:
            self.folds.readout_ratio = max(ratios.values(), key=lambda r: abs(math.log(r)))

    def _input_tail(self, graph: Graph, name: str, node: int) -> Tail:
        (value,) = [i for i in graph.trace.nodes[node].inputs if graph.flow.act[i]][:1]
        closed = frozenset(r.node for r in graph.residuals)
        try:
            candidates = tails(graph.trace, value, closed=closed)
            tail = next(proven(graph.trace, candidates, value, graph.flow.behind[value], 0))
            if name in {site.name for site in tail}:
                raise Blocked("the tied weight itself")
        except (Blocked, StopIteration) as why:
            raise StructureError(
                f"a tied readout needs a final norm with gain to carry its multiplier: {name} is also the embedding, and behind the readout there is {why or 'nothing that scales'}. Untie it, or give the final norm a gain."
            ) from None
        return tail


def _sides(p: Product, twin: Mapping[str, str] | None) -> tuple[frozenset[str], frozenset[str]]:
    def names(tail: Tail) -> frozenset[str]:
        return frozenset(twin[s.name] if twin else s.name for s in tail)

    return names(p.left), names(p.right)


def _constant(p: Product) -> float:
    left = next(iter(p.left.values()), 1.0)
    right = next(iter(p.right.values()), 1.0)
    return left * right * p.after
