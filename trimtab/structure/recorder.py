"""Write down each operation of a forward in a small normal form, while the model runs.

A dispatch mode sees the ATen operations below autograd, after torch has taken its own composite operations
apart, so `nn.Linear`, `x @ W`, `einsum` and `nn.MultiheadAttention` all arrive as the same few primitives.
The analysis then has one spelling of each idea:

    addmm(b, x, W)      -> mm(x, W), add(., b)            x += y              -> a new value, not a mutation
    lerp(x, y, w)       -> (1 - w) x + w y                dropout             -> a product with a constant
    addcmul(x, a, b)    -> x + a b                        add(x, y, alpha=c)  -> x + c y
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab import torch_internals
from trimtab.structure import operations
from trimtab.structure.trace import Node, Ref, Value, flatten
from trimtab.torch_internals import storage_id

aten = torch.ops.aten


class Recorder(torch_internals.DispatchMode):
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
            self._sharing.setdefault(storage_id(t), []).append(t)
        self._bound[id(t)] = (value, self._version.get(storage_id(t), 0))

    def add_param(self, name: str, t: Tensor) -> None:
        value = self._new(t, "param", name=name, from_param=True)
        self._bind(t, value)
        self._owner[storage_id(t)] = value
        self.params[name] = value

    def add_input(self, t: Tensor) -> None:
        if id(t) not in self._bound:
            self._bind(t, self._new(t, "input", from_input=True))

    def value_of(self, t: Tensor) -> int:
        """The value a tensor holds now, in-place writes through any of its views included."""
        storage = storage_id(t)
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

    def bound(self, t: Tensor) -> int | None:
        """The value last given to a tensor; None of one that was not seen."""
        return self._bound[id(t)][0] if id(t) in self._bound else None

    def _written_over(self, t: Tensor, old: int, written: int, view: Tensor) -> int:
        same_place = t.storage_offset() == view.storage_offset()
        if same_place and t.shape == view.shape and t.stride() == view.stride():
            return written
        if same_place and t.numel() == view.numel() and t.is_contiguous() and view.is_contiguous():
            return self._node(aten.view.default, "view", (Ref(written), list(t.shape)), {}, [t])[0]
        if not _overlap(t, view):
            return old
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
        refs = [r.index for r in flatten([*args, *kwargs.values()]) if isinstance(r, Ref)]
        inputs = tuple(dict.fromkeys(refs))
        node = Node(len(self.nodes), op, name, tuple(args), dict(kwargs), inputs)
        node.pointwise = torch_internals.is_pointwise(op)
        self.nodes.append(node)
        depends = () if name in operations.FACTORIES else inputs
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
        return self._ref(aten.mul.Tensor, "mul", (x, factor), like)

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, outs: list[Tensor]) -> list[int]:
        """The nodes of one operation in normal form; the values of its outputs."""
        out: Any = outs[0] if outs else None
        if name in ("addmm", "baddbmm", "addmv"):
            return self._fused_product(name, args, kwargs, out)
        if name in ("add", "sub") and len(args) > 1 and isinstance(args[1], Ref):
            alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
            other = self._scaled(args[1], alpha, self._like(args[1]))
            return self._node(getattr(aten, name).Tensor, name, (args[0], other), {}, [out])
        if name == "lerp":
            return self._lerp(args, out)
        if name == "addcmul":
            product = self._ref(aten.mul.Tensor, "mul", args[1:3], out)
            product = self._scaled(product, kwargs.get("value", 1), out)
            return self._node(aten.add.Tensor, "add", (args[0], product), {}, [out])
        if name == "native_dropout" and isinstance(args[0], Ref) and len(outs) == 2:
            return self._dropout(args, outs)
        if name == "copy" and len(args) > 1 and isinstance(args[1], Ref):
            if self.values[args[1].index].shape == tuple(out.shape):
                return self._node(aten.clone.default, "clone", (args[1],), {}, [out])
            return self._node(aten.expand.default, "expand", (args[1], list(out.shape)), {}, [out])
        return self._node(func, name, args, kwargs, outs)

    def _fused_product(self, name: str, args: Any, kwargs: Any, out: Tensor) -> list[int]:
        """beta b + alpha (x @ W)."""
        op, inner = {"addmm": (aten.mm.default, "mm"), "addmv": (aten.mv.default, "mv")}.get(
            name, (aten.bmm.default, "bmm")
        )
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        product = self._scaled(self._ref(op, inner, args[1:3], out), alpha, out)
        bias = self._scaled(args[0], beta, out)
        if beta == 0:
            self.values[product.index].tensor = out
            return [product.index]
        return self._node(aten.add.Tensor, "add", (product, bias), {}, [out])

    def _lerp(self, args: Any, out: Tensor) -> list[int]:
        """(1 - w) x + w y."""
        start, end, weight = args
        if isinstance(weight, Ref):
            keep: Any = self._ref(aten.rsub.Scalar, "rsub", (weight, 1), self._like(weight))
        else:
            keep = 1 - weight
        kept, moved = self._scaled(start, keep, out), self._scaled(end, weight, out)
        return self._node(aten.add.Tensor, "add", (kept, moved), {}, [out])

    def _dropout(self, args: Any, outs: list[Tensor]) -> list[int]:
        """A product with a constant: the mask over what is kept."""
        keep = 1 - args[1] if args[2] is not False else 1
        mask = outs[1].to(outs[0].dtype) / max(keep, 1e-12)
        drop = self._new(mask, "constant")
        first = self._node(aten.mul.Tensor, "mul", (args[0], Ref(drop)), {}, [outs[0]])
        return [*first, self._new(outs[1], "constant")]

    def _ref(self, op: Any, name: str, args: Any, like: Tensor | None) -> Ref:
        """A part of a fused operation, with the shape of `like`."""
        return Ref(self._node(op, name, args, {}, [None], like)[0])

    def _like(self, ref: Ref) -> Any:
        return torch.empty(self.values[ref.index].shape, device="meta")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}

        def to_ref(x: Any) -> Any:
            if isinstance(x, Tensor):
                return Ref(self.value_of(x))
            if isinstance(x, list | tuple):
                return [to_ref(y) for y in x]
            return x

        name, in_place = torch_internals.operation_name(func), torch_internals.writes_first(func)
        if in_place and isinstance(args[0], Tensor):
            self._keep_before_write(args[0])
        ref_args = [to_ref(a) for a in args]
        ref_kwargs = {k: to_ref(v) for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        outs = [t for t in flatten(out) if isinstance(t, Tensor)]
        if in_place and name.endswith("_"):
            name, func = name[:-1], torch_internals.functional(func)
        values = self._record(func, name, ref_args, ref_kwargs, outs)
        if in_place and outs and outs[0] is args[0]:
            storage = storage_id(outs[0])
            self._version[storage] = self._version.get(storage, 0) + 1
            self._writes.setdefault(storage, []).append((self._version[storage], values[0], outs[0]))
        for t, value in zip(outs, values, strict=True):
            self._bind(t, value)
        return out

    def _keep_before_write(self, t: Tensor) -> None:
        """A replay needs the numbers from before the write: every value on this storage gets its own copy."""
        for other in self._sharing.get(storage_id(t), ()):
            value = self.values[self._bound[id(other)][0]]
            if value.tensor is other and value.source != "param":
                value.tensor = other.clone()


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two views of one storage have a number in common. The gates of a recurrent layer are written
    one after the other, chunks of one tensor that lie between each other in memory."""
    return bool(torch.isin(_places(a), _places(b)).any())


def _places(t: Tensor) -> Tensor:
    """Where in its storage each number of a view is."""
    if not t.numel():
        return torch.empty(0, dtype=torch.long)
    last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    start = int(t.storage_offset())
    return torch.arange(start, start + last + 1).as_strided(t.shape, t.stride(), 0)


def _number(t: Tensor) -> float | None:
    """The value of a constant: of one element, or of many equal ones (a multiplier stored per channel)."""
    if t.numel() == 0 or t.is_meta or t.is_complex() or (t.numel() > 1 and not t.is_floating_point()):
        return None
    first = float(t.reshape(-1)[0])
    return first if t.numel() == 1 or (first != 0 and bool((t == first).all())) else None
