"""One forward pass, recorded: every value, every operation, nothing of the model changed.

A `TorchDispatchMode` sees the ATen operations below autograd, after torch has taken its own composite
operations apart, so `nn.Linear`, `x @ W`, `einsum` and `nn.MultiheadAttention` all arrive as the same few
primitives. The recording is put into a small normal form, so that the analysis in `graph` has one spelling of
each idea:

    addmm(b, x, W)      -> mm(x, W), add(., b)            x += y              -> a new value, not a mutation
    lerp(x, y, w)       -> (1 - w) x + w y                dropout             -> a product with a constant
    addcmul(x, a, b)    -> x + a b                        add(x, y, alpha=c)  -> x + c y
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# Their result has the shape of an argument but none of its data.
FACTORIES = frozenset(
    [
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty_strided",
        "bernoulli",
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "scalar_tensor",
        "fill",
        "zero",
        "uniform",
        "normal",
        "exponential",
        "random",
        "randn",
        "rand",
        "randint",
        "randperm",
        "eye",
        "linspace",
        "tril_indices",
        "triu_indices",
    ]
)


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
        if node.op in MUTATING_NORMS or getattr(getattr(node.op, "_schema", None), "is_mutable", False):
            args = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
        with torch.no_grad():
            out = node.op(*args, **kwargs)
        return [t for t in _flatten(out) if isinstance(t, Tensor)]


MUTATING_NORMS = frozenset({aten.native_batch_norm.default, aten._native_batch_norm_legit.default})


def _flatten(x: Any) -> Iterator[Any]:
    if isinstance(x, list | tuple):
        for y in x:
            yield from _flatten(y)
    else:
        yield x


class Recorder(TorchDispatchMode):
    """Writes down each operation in normal form while the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.params: dict[str, int] = {}
        self._bound: dict[int, tuple[int, int]] = {}  # id(tensor) -> value, version of its storage then
        self._sharing: dict[int, list[Tensor]] = {}  # by storage; keeps tensors alive, so ids stay unique
        self._version: dict[int, int] = {}
        self._writes: dict[int, list[tuple[int, int, Tensor]]] = {}
        self._owner: dict[int, int] = {}  # storage of a parameter -> its value
        self.buffers: dict[int, str] = {}  # id(tensor) -> name, to speak of constants
        self.numbers: Mapping[str, float] = {}  # of buffers that hold none (on meta), by name

    # -- values ----------------------------------------------------------------------------------------------

    def _new(self, t: Tensor | None, source: str, **more: Any) -> int:
        shape = more.pop("shape", None)
        is_float = more.pop("is_float", None)
        if t is not None:
            shape, is_float = tuple(t.shape), t.is_floating_point() or t.is_complex()
        value = Value(len(self.values), shape, is_float, source, tensor=t, **more)
        self.values.append(value)
        return value.index

    def _bind(self, t: Tensor, value: int) -> None:
        if id(t) not in self._bound:
            self._sharing.setdefault(_storage(t), []).append(t)
        self._bound[id(t)] = (value, self._version.get(_storage(t), 0))

    def add_param(self, name: str, t: Tensor) -> None:
        value = self._new(t, "param", name=name, from_param=True)
        self._bind(t, value)
        self._owner[_storage(t)] = value
        self.params[name] = value

    def add_input(self, t: Tensor) -> None:
        if id(t) not in self._bound:
            self._bind(t, self._new(t, "input", from_input=True))

    def value_of(self, t: Tensor) -> int:
        """The value a tensor holds now, in-place writes through any of its views included."""
        storage = _storage(t)
        if id(t) not in self._bound:
            owner = self._owner.get(storage)
            if owner is None:
                name = self.buffers.get(id(t))
                value = self._new(t, "constant", number=self.numbers.get(name or "", _number(t)), name=name)
            elif self.values[owner].shape == tuple(t.shape):  # p.data
                value = owner
            else:
                value = self._node(
                    aten.as_strided.default,
                    "as_strided",
                    (Ref(owner), list(t.shape), list(t.stride()), t.storage_offset()),
                    {},
                    [t],
                )[0]
            self._bind(t, value)
        value, version = self._bound[id(t)]
        if self._version.get(storage, 0) > version:
            for when, written, view in self._writes[storage]:
                if when > version:
                    value = self._written_over(t, value, written, view)
            self._bind(t, value)
        return value

    def _written_over(self, t: Tensor, old: int, written: int, view: Tensor) -> int:
        same_place = t.storage_offset() == view.storage_offset()
        if same_place and t.shape == view.shape and t.stride() == view.stride():
            return written
        if same_place and t.numel() == view.numel() and t.is_contiguous() and view.is_contiguous():
            return self._node(aten.view.default, "view", (Ref(written), list(t.shape)), {}, [t])[0]
        offset = view.storage_offset() - t.storage_offset()
        place = list(view.shape), list(view.stride()), offset
        return self._node(
            aten.as_strided_scatter.default, "as_strided_scatter", (Ref(old), Ref(written), *place), {}, [t]
        )[0]

    # -- nodes -----------------------------------------------------------------------------------------------

    def _node(
        self,
        op: Any,
        name: str,
        args: Any,
        kwargs: Any,
        outs: Sequence[Tensor | None],
        like: Tensor | None = None,
    ) -> list[int]:
        """Append a node; an output of None is a part of a fused operation, with the shape of `like`."""
        refs = [r.index for r in _flatten([*args, *kwargs.values()]) if isinstance(r, Ref)]
        inputs = tuple(dict.fromkeys(refs))
        node = Node(len(self.nodes), op, name, tuple(args), dict(kwargs), inputs)
        node.pointwise = torch.Tag.pointwise in getattr(op, "tags", ())
        self.nodes.append(node)
        depends = () if name in FACTORIES else inputs
        result = []
        for t in outs:
            more: dict[str, Any] = dict(node=node.index)
            more["from_input"] = any(self.values[i].from_input for i in depends)
            more["from_param"] = any(self.values[i].from_param for i in depends)
            if t is None:
                assert like is not None
                more.update(shape=tuple(like.shape), is_float=True)
            elif not (more["from_input"] or more["from_param"]):
                more["number"] = _number(t)
            result.append(self._new(t, "computed", **more))
        node.outputs = tuple(result)
        return result

    def _scaled(self, x: Any, factor: Any, like: Tensor | None) -> Any:
        if isinstance(factor, int | float) and factor == 1:
            return x
        return Ref(self._node(aten.mul.Tensor, "mul", (x, factor), {}, [None], like)[0])

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, outs: list[Tensor]) -> list[int]:
        out: Any = outs[0] if outs else None
        if name in ("addmm", "baddbmm", "addmv", "addbmm"):
            op, inner = {"addmm": (aten.mm.default, "mm"), "addmv": (aten.mv.default, "mv")}.get(
                name, (aten.bmm.default, "bmm")
            )
            if name != "addbmm":
                beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
                product = Ref(self._node(op, inner, args[1:3], {}, [None], out)[0])
                product = self._scaled(product, alpha, out)
                bias = self._scaled(args[0], beta, out)
                if beta == 0:
                    self.values[product.index].tensor = out
                    return [product.index]
                return self._node(aten.add.Tensor, "add", (product, bias), {}, [out])
        if name in ("add", "sub") and len(args) > 1 and isinstance(args[1], Ref):
            alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
            other = self._scaled(args[1], alpha, self._tensor_shape(args[1]))
            return self._node(getattr(aten, name).Tensor, name, (args[0], other), {}, [out])
        if name == "lerp":
            start, end, weight = args
            if isinstance(weight, Ref):
                keep: Any = Ref(
                    self._node(aten.rsub.Scalar, "rsub", (weight, 1), {}, [None], self._tensor_shape(weight))[
                        0
                    ]
                )
            else:
                keep = 1 - weight
            kept = self._scaled(start, keep, out)
            moved = self._scaled(end, weight, out)
            return self._node(aten.add.Tensor, "add", (kept, moved), {}, [out])
        if name == "addcmul":
            product = Ref(self._node(aten.mul.Tensor, "mul", args[1:3], {}, [None], out)[0])
            product = self._scaled(product, kwargs.get("value", 1), out)
            return self._node(aten.add.Tensor, "add", (args[0], product), {}, [out])
        if name == "native_dropout" and isinstance(args[0], Ref) and len(outs) == 2:
            keep = 1 - args[1] if args[2] is not False else 1
            mask = outs[1].to(out.dtype) / max(keep, 1e-12)
            drop = self._new(mask, "constant")
            first = self._node(aten.mul.Tensor, "mul", (args[0], Ref(drop)), {}, [out])
            return [*first, self._new(outs[1], "constant")]
        if name == "copy" and len(args) > 1 and isinstance(args[1], Ref):
            if self.values[args[1].index].shape == tuple(out.shape):
                return self._node(aten.clone.default, "clone", (args[1],), {}, [out])
            return self._node(aten.expand.default, "expand", (args[1], list(out.shape)), {}, [out])
        return self._node(func, name, args, kwargs, outs)

    def _tensor_shape(self, ref: Ref) -> Any:
        return torch.empty(self.values[ref.index].shape, device="meta")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}

        def to_ref(x: Any) -> Any:
            if isinstance(x, Tensor):
                return Ref(self.value_of(x))
            if isinstance(x, list | tuple):
                return [to_ref(y) for y in x]
            return x

        schema = func._schema
        name = schema.name.split("::")[-1]
        in_place = (
            bool(schema.arguments)
            and schema.arguments[0].alias_info is not None
            and schema.arguments[0].alias_info.is_write
        )
        if in_place and isinstance(args[0], Tensor):
            self._keep_before_write(args[0])
        ref_args = [to_ref(a) for a in args]
        ref_kwargs = {k: to_ref(v) for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        outs = [t for t in _flatten(out) if isinstance(t, Tensor)]
        if in_place and name.endswith("_"):
            name = name[:-1]
            func = getattr(getattr(aten, name, None), schema.overload_name or "default", func)
        values = self._record(func, name, ref_args, ref_kwargs, outs)
        if in_place and outs and outs[0] is args[0]:
            storage = _storage(outs[0])
            self._version[storage] = self._version.get(storage, 0) + 1
            self._writes.setdefault(storage, []).append((self._version[storage], values[0], outs[0]))
        for t, value in zip(outs, values, strict=True):
            self._bind(t, value)
        return out

    def _keep_before_write(self, t: Tensor) -> None:
        """A replay needs the numbers from before the write: every value on this storage gets its own copy."""
        for other in self._sharing.get(_storage(t), ()):
            value = self.values[self._bound[id(other)][0]]
            if value.tensor is other and value.source != "param":
                value.tensor = other.clone()


def _storage(t: Tensor) -> int:
    try:
        return t.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors own no storage
        return -id(t)


def _number(t: Tensor) -> float | None:
    """The value of a constant: of one element, or of many equal ones (a multiplier stored per channel)."""
    if t.numel() == 0 or t.is_meta or t.is_complex() or (t.numel() > 1 and not t.is_floating_point()):
        return None
    first = float(t.reshape(-1)[0])
    return first if t.numel() == 1 or (first != 0 and bool((t == first).all())) else None
