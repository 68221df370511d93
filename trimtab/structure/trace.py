"""One forward pass as records: every value that was seen, every operation that made one.

`Recorder` (`recorder`) writes them; the passes of the analysis only read. A node can be executed again with
some of its inputs replaced, which is what proofs by numbers are made of (`proofs`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab import torch_internals


def adjustable(t: Tensor) -> bool:
    """A tensor whose numbers can be multiplied: floating point, and not so coarse (float8) that they are
    codes.

    >>> [adjustable(torch.zeros(2, dtype=d)) for d in (torch.bfloat16, torch.int8, torch.complex64)]
    [True, False, False]
    """
    return t.is_floating_point() and t.element_size() > 1


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a recorded value inside an operation's arguments."""

    index: int


@dataclasses.dataclass(slots=True, eq=False)
class Value:
    """A tensor that was seen: a parameter, an input, a constant, or the result of a node."""

    index: int
    shape: tuple[int, ...]
    is_float: bool
    source: str  # "param" | "input" | "constant" | "computed"
    name: str | None = None  # of a parameter or buffer
    node: int | None = None  # that computed it
    number: float | None = None  # of a constant whose elements are all equal
    tensor: Tensor | None = None
    from_input: bool = False  # depends on the model's inputs
    from_param: bool = False  # depends on a parameter

    @property
    def constant(self) -> bool:
        return not (self.from_input or self.from_param)


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """An operation: `op(*args, **kwargs)` with `Ref`s where tensors were."""

    index: int
    op: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    pointwise: bool = False


@dataclasses.dataclass(slots=True)
class Trace:
    """What one forward did. `real` says whether the values hold numbers."""

    values: list[Value]
    nodes: list[Node]
    params: dict[str, int]
    outputs: tuple[int, ...]
    real: bool
    consumers: list[list[int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.consumers = [[] for _ in self.values]
        for node in self.nodes:
            for i in set(node.inputs):
                self.consumers[i].append(node.index)

    def producer(self, value: int) -> Node | None:
        node = self.values[value].node
        return None if node is None else self.nodes[node]

    def tensor(self, value: int) -> Tensor:
        """The recorded numbers; parts of a fused operation are computed when asked for."""
        v = self.values[value]
        if v.tensor is None:
            assert v.node is not None
            v.tensor = self.run(self.nodes[v.node], {})[self.nodes[v.node].outputs.index(value)]
        return v.tensor

    def run(self, node: Node, instead: Mapping[int, Tensor]) -> list[Tensor]:
        """Execute one node again, with some values replaced."""

        def fill(x: Any) -> Any:
            if isinstance(x, Ref):
                t = instead[x.index] if x.index in instead else self.tensor(x.index)
                return t.detach()
            if isinstance(x, list | tuple):
                return type(x)(fill(y) for y in x)
            return x

        args = fill(node.args)
        kwargs = {k: fill(v) for k, v in node.kwargs.items()}
        if torch_internals.mutates(node.op):
            args = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
        with torch.no_grad():
            out = node.op(*args, **kwargs)
        return [t for t in flatten(out) if isinstance(t, Tensor)]


def flatten(x: Any) -> Iterator[Any]:
    """The leaves of nested lists and tuples."""
    if isinstance(x, list | tuple):
        for y in x:
            yield from flatten(y)
    else:
        yield x
