"""Packed tensors: one parameter whose rows go different ways, each judged by the way it goes.

Queries, keys and values made by one matrix are cut apart at once. The rows that make queries and keys get a
first gradient m_d^-1/2 of what the rules say (`coherence`), those that make values all of it, and the pack as
a whole anything in between, as much as each had in the base. So a pack is judged in parts:

    y = W x, cut into y_1, y_2, ...:      part k = the rows of W behind y_k      wanted k_k

Which row goes where is read by sending the rows' numbers through the recorded views and cuts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trimtab.parametrization.comparison.names import template
from trimtab.structure import operations
from trimtab.structure.graph import Graph
from trimtab.structure.trace import Node, Trace
from trimtab.structure.uses import Use

# What a value gets through one of its consumers: (node, value) -> factor.
Ways = Callable[[Node, int], float]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Which numbers of a tensor: those at `index` of its dimension `dim`."""

    dim: int
    index: tuple[int, ...]

    def of(self, t: Tensor) -> Tensor:
        return t.index_select(self.dim, torch.tensor(self.index, device=t.device))


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of a packed parameter that go the same way, in the model and in the base.

    Args:
        low, high: what they want of a first gradient, over what the whole parameter may get (`coherence`).
    """

    model: Rows
    base: Rows
    low: float
    high: float

    def back(self) -> Part:
        """The same part of a model that shrinks to what grew here."""
        return Part(model=self.base, base=self.model, low=1 / self.high, high=1 / self.low)


def label(name: str, part: int, parts: int) -> str:
    """What a part of a parameter is called.

    >>> label("blocks.0.qkv.weight", 0, 2)
    'blocks.0.qkv.weight[1/2]'
    """
    return f"{name}[{part + 1}/{parts}]"


def parts(model: Graph, base: Graph, name: str, twin: str, low: Ways, high: Ways) -> tuple[Part, ...]:
    """The parts of a parameter, empty where all of it goes one way or the two models cut it differently.

    Args:
        low, high: what a value of the model gets through one consumer, at least and at most.
    """
    mine = _ends(model, name)
    wanted = [(low(node, value), high(node, value)) for node, value, _ in mine.ends] if mine else []
    if mine is None or len(set(wanted)) < 2:
        return ()
    theirs = _ends(base, twin)
    if theirs is None or len(mine.ends) != len(theirs.ends):
        return ()
    ways: dict[tuple[float, float], tuple[set[int], set[int]]] = {}
    # A row that goes several ways gets the largest of what they give, so those are filled first.
    taken: tuple[set[int], set[int]] = set(), set()
    for way in sorted(set(wanted), reverse=True):
        both = ways.setdefault(way, (set(), set()))
        for k, found in enumerate((mine, theirs)):
            ends = [rows for at, (_, _, rows) in enumerate(found.ends) if wanted[at] == way]
            rows = {r for end in ends for r in end.unique().tolist()}
            both[k].update(rows - taken[k])
            taken[k].update(rows)
    ways = {way: both for way, both in ways.items() if both[0] and both[1]}
    if len(ways) < 2 or [len(t) for t in taken] != [mine.rows, theirs.rows]:
        return ()
    if len({len(here) / len(there) for here, there in ways.values()}) > 1:
        return ()  # rows that grow beside rows that do not: `u` and `s` are the pack's, not the parts'
    top = max(a for a, _ in ways), max(b for _, b in ways)
    if not all(top):
        return ()
    return tuple(
        Part(
            model=Rows(mine.dim, tuple(sorted(here))),
            base=Rows(theirs.dim, tuple(sorted(there))),
            low=a / top[0],
            high=b / top[1],
        )
        for (a, b), (here, there) in sorted(ways.items(), key=lambda item: min(item[1][0]))
    )


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Where the rows of a parameter go: the first operations that do more than move numbers.

    Args:
        dim: the parameter's dimension that the rows are counted in; `rows`: how many there are.
        ends: (operation, the value it takes, which row each number of that value is from).
    """

    dim: int
    rows: int
    ends: tuple[tuple[Node, int, Tensor], ...]


def _ends(graph: Graph, name: str) -> _Cut | None:
    if len(graph.uses[name]) != 1 or graph.uses[name][0].node < 0:
        return None
    use = graph.uses[name][0]
    node = graph.trace.nodes[use.node]
    shape = graph.shape(name)
    at = _outputs_of_rows(graph, node, use)
    dims = [d for d, n in enumerate(shape) if at is not None and n == _shape(graph.trace, node)[at]]
    if at is None or not dims or (len(dims) > 1 and len(shape) > 2):
        return None
    dim = dims[0] if len(dims) == 1 else _row_dimension(graph, node, name)
    rows = shape[dim]
    out = _shape(graph.trace, node)
    numbers = torch.arange(rows).view([-1 if d == at else 1 for d in range(len(out))]).expand(out)
    return _Cut(dim, rows, tuple(_follow(graph, node.outputs[0], numbers)))


def _shape(trace: Trace, node: Node) -> tuple[int, ...]:
    return trace.values[node.outputs[0]].shape


def _outputs_of_rows(graph: Graph, node: Node, use: Use) -> int | None:
    """The dimension of an operation's output that counts a parameter's rows; None where there is none."""
    rank = len(_shape(graph.trace, node))
    if node.name in operations.CONVOLUTIONS:
        return 1
    if use.kind == "contract":
        return rank - 1 if node.name in ("mm", "linear") and rank else None
    return rank - 1 if node.name == "add" and use.kind == "elementwise" and rank else None


def _row_dimension(graph: Graph, node: Node, name: str) -> int:
    """Of a square matrix in a product x W, the dimension of the result: 0 where it is met transposed."""
    met = next((i for i in node.inputs if graph.flow.comes_from(i, graph.trace.params[name])), None)
    producer = graph.trace.producer(met) if met is not None else None
    return 0 if node.name == "linear" or (producer is not None and producer.name in ("t", "transpose")) else 1


def _follow(graph: Graph, value: int, numbers: Tensor) -> list[tuple[Node, int, Tensor]]:
    """The operations that take some of the rows and do more than move them."""
    trace = graph.trace
    found: list[tuple[Node, int, Tensor]] = []
    todo = [(value, numbers)]
    while todo:
        at, rows = todo.pop(0)
        for node in (trace.nodes[n] for n in trace.consumers[at]):
            moved = _moved(graph, node, at, rows)
            if moved is None:
                found.append((node, at, rows))
            else:
                todo += zip(node.outputs, moved, strict=True)
    return found


def _moved(graph: Graph, node: Node, value: int, rows: Tensor) -> list[Tensor] | None:
    """The rows' numbers behind an operation that only moves, cuts, adds a bias or multiplies by a number."""
    trace = graph.trace
    shapes = [trace.values[o].shape for o in node.outputs]
    acts = graph.flow.activations_into(node)
    if node.pointwise and acts == [value] and node.name in ("add", "mul", "div", "clone", "_to_copy"):
        alone = all(i == value or trace.values[i].constant or node.name == "add" for i in node.inputs)
        return [rows] if alone and shapes == [tuple(rows.shape)] else None
    larger = any(torch.Size(s).numel() > rows.numel() for s in shapes)
    if node.name not in operations.REARRANGED or len(node.inputs) != 1 or larger:
        return None
    try:
        moved = trace.run(node, {value: rows})
    except (RuntimeError, TypeError, NotImplementedError):  # an operation that does not take integers
        return None
    if any(m.dtype != rows.dtype for m in moved):  # a Fourier transform's complex numbers are no rows
        return None
    return moved if [tuple(m.shape) for m in moved] == [tuple(s) for s in shapes] else None


@dataclasses.dataclass(frozen=True)
class Unpacked:
    """The parameters of two models with their packs cut into parts.

    Args:
        names: {parameter or part of the model: the parameter}.
        twins: {the same: its counterpart in the base}.
        expected: {the same: (low, high)}.
        shapes: of the base's parameters and parts.
        model, base: the rows of each part, by parameter.
    """

    names: dict[str, str]
    twins: dict[str, str]
    expected: dict[str, tuple[float, float]]
    shapes: dict[str, tuple[int, ...]]
    model: dict[str, tuple[Rows, ...]]
    base: dict[str, tuple[Rows, ...]]


def unpack(
    twins: Mapping[str, str],
    expected: Mapping[str, tuple[float, float]],
    cuts: Mapping[str, tuple[Part, ...]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Unpacked:
    """Names, counterparts, ranges and shapes with each pack as its parts.

    Args:
        twins: {parameter of the model: its counterpart in the base}.
        shapes: of all of the base's parameters; those that nothing grew from are cut as those called alike.
    """
    whole = {name: name for name in twins if name not in cuts}
    out = Unpacked(
        names=whole,
        twins={name: twins[name] for name in whole},
        expected={name: expected[name] for name in whole if name in expected},
        shapes=dict(shapes),
        model={},
        base={},
    )
    alike: dict[object, tuple[Part, ...]] = {}
    for name, cut in cuts.items():
        twin = twins[name]
        alike[template(twin), shapes[twin]] = cut
        out.model[name] = tuple(part.model for part in cut)
        low, high = expected.get(name, (1.0, 1.0))
        for k, part in enumerate(cut):
            called = label(name, k, len(cut))
            out.names[called], out.twins[called] = name, label(twin, k, len(cut))
            out.expected[called] = (min(low * part.low, high * part.high), high * part.high)
    for twin, shape in shapes.items():
        if cut := alike.get((template(twin), shape)):
            out.base[twin] = tuple(part.base for part in cut)
            del out.shapes[twin]
            for k, rows in enumerate(out.base[twin]):
                out.shapes[label(twin, k, len(cut))] = (
                    *shape[: rows.dim],
                    len(rows.index),
                    *shape[rows.dim + 1 :],
                )
    return out
