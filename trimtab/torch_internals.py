"""What trimtab uses of torch that is not public, each with its reason. No other file uses such parts.

tests/structure/test_torch_internals.py says in a plain sentence what torch has changed when one of them goes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

# Sees every ATen operation below autograd, whatever Python called it: hooks see modules only.
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

# Name of the module inside torch.compile's wrapper; it has no public accessor.
COMPILED = "_orig_mod"
# What torch's wrappers put before the names of parameters: compile, FSDP, activation checkpointing.
WRAPPER_PREFIXES = (f"{COMPILED}.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
# The class of all normalisations that keep running statistics (batch and instance norms); the public ones are
# many.
RunningNorm = nn.modules.batchnorm._NormBase
# A view that vmap records where reshape would do: removed from a fleet's graph.
UNSAFE_VIEW = aten._unsafe_view.default
# Updates its running statistics although its schema does not say so.
UNDECLARED_WRITE = aten.native_batch_norm.default

__all__ = [
    "COMPILED",
    "UNDECLARED_WRITE",
    "UNSAFE_VIEW",
    "WRAPPER_PREFIXES",
    "DispatchMode",
    "RunningNorm",
    "count_flops",
    "functional",
    "is_pointwise",
    "make_fx",
    "mutates",
    "operation_name",
    "storage_id",
    "times_written",
    "without_fast_attention",
    "writes_first",
]


def count_flops(call: Callable[[], Any]) -> int:
    """Floating point operations of the matrix products and convolutions that a call makes, as torch's
    FlopCounterMode counts them. That one loads torch.compile at its first operation, which takes as long as
    torch itself; this one has no part of it unless it is loaded already.

    >>> count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """

    class Counter(DispatchMode):
        total = 0

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules  # only then can a compiled model be among what is called

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func not in flop_registry and isinstance(func, torch._ops.OpOverload):
                with self:
                    parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
            out = func(*args, **kwargs)
            formula = flop_registry.get(getattr(func, "_overloadpacket", None))
            self.total += formula(*args, **kwargs, out_val=out) if formula is not None else 0
            return out

    with Counter() as counter:
        call()
    return counter.total


def operation_name(op: Any) -> str:
    """An operation's name without namespace and overload; only the schema has it.

    >>> operation_name(torch.ops.aten.add_.Tensor)
    'add_'
    """
    return op._schema.name.split("::")[-1]


def writes_first(op: Any) -> bool:
    """Whether an operation writes to its first argument (x += y), which only the schema says.

    >>> writes_first(torch.ops.aten.add_.Tensor), writes_first(torch.ops.aten.add.Tensor)
    (True, False)
    """
    arguments = op._schema.arguments
    return bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write


def functional(op: Any) -> Any:
    """The operation that returns what this one writes: add for add_. Itself where torch has none.

    >>> functional(torch.ops.aten.add_.Tensor)
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    packet = getattr(aten, operation_name(op).removesuffix("_"), None)
    return getattr(packet, op._schema.overload_name or "default", op)


def mutates(op: Any) -> bool:
    """Whether running an operation again would change its arguments."""
    return op is UNDECLARED_WRITE or bool(getattr(getattr(op, "_schema", None), "is_mutable", False))


def is_pointwise(op: Any) -> bool:
    """Whether torch tags an operation as elementwise: there are hundreds, and no list of ours would keep up.

    >>> is_pointwise(torch.ops.aten.add.Tensor), is_pointwise(torch.ops.aten.mm.default)
    (True, False)
    """
    return torch.Tag.pointwise in getattr(op, "tags", ())


def storage_id(t: Tensor) -> int:
    """One number per storage, also on meta, where all addresses are 0; below 0 where a tensor owns none."""
    try:
        return t.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and opaque tensors own no storage
        return -id(t)


def times_written(t: Tensor) -> int:
    """How often a tensor was changed in place; 0 in an inference mode, whose tensors have no count.

    >>> x = torch.zeros(2)
    >>> before = times_written(x)
    >>> times_written(x.add_(1)) > before
    True
    """
    return 0 if t.is_inference() else t._version


@contextlib.contextmanager
def without_fast_attention() -> Iterator[None]:
    """nn.TransformerEncoderLayer's fused kernel in eval mode off: it hides all of the layer's operations."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def make_fx(function: Callable[..., Any]) -> Callable[..., Any]:
    """Record a function as a graph of ATen operations: the public torch.fx does not see through vmap.

    Imported when it is called, because it takes long and only fleets need it.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function)
