"""What `parametrize` asks of its arguments, checked before any work, all faults at once.

The model is rescaled in place and the base only read, so no number may be in both, nor twice in the model.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from trimtab.errors import faults
from trimtab.structure.trace import adjustable
from trimtab.torch_internals import COMPILED


def check_arguments(model: Any, base: Any, gamma0: Any, example: Any) -> Any:
    """The example to use: the one given, or the model's own dummy inputs.

    Raises:
        InputError: with every fault.
    """
    problems = [
        f"{label} must be an nn.Module: got {type(m).__name__}"
        for label, m in (("model", model), ("base", base))
        if not isinstance(m, nn.Module)
    ]
    if isinstance(gamma0, bool) or not isinstance(gamma0, int | float) or not 0 < gamma0 < math.inf:
        problems.append(f"gamma0 must be a finite number > 0: got {gamma0!r}")
    if example is None and isinstance(model, nn.Module):
        example = getattr(model, "dummy_inputs", None)
        if example is None:
            problems.append(
                "an example of the model's inputs is needed to see what it computes: "
                "pass example= a tensor, a tuple of args or a dict of kwargs"
            )
    if isinstance(model, nn.Module) and isinstance(base, nn.Module):
        problems += _memory_faults(model, base) + _complex_faults(model, base)
    if problems:
        raise faults("parametrize(model, base, example=...):", problems)
    return example


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile or a parallel wrapper: parametrize looks at what was written."""
    children = dict(model.named_children())
    inner = [child for name, child in children.items() if name in (COMPILED, "module")]
    alone = len(children) == 1 and next(model.parameters(recurse=False), None) is None
    return unwrap(inner[0]) if inner and alone else model


def _memory_faults(model: nn.Module, base: nn.Module) -> list[str]:
    """The model is rescaled in place and the base only read, so no number may be in both, nor twice in the
    model."""
    cure = "build the base separately, or pass copy.deepcopy(base) as the base"
    if model is base or unwrap(model) is unwrap(base):
        return [f"model and base are one object, and the base is only read: {cure}"]
    there = {_memory(q): n for n, q in base.named_parameters() if _memory(q)}
    shared = [
        (n, there[_memory(q)]) for n, q in model.named_parameters() if adjustable(q) and _memory(q) in there
    ]
    if shared:
        name, other = shared[0]
        more = f" ({len(shared)} are, also {', '.join(n for n, _ in shared[1:4])})" if len(shared) > 1 else ""
        return [
            f"{name} of the model and {other} of the base are one memory{more}, so rescaling it would "
            f"change the base: {cure}"
        ]
    first: dict[tuple[int, ...], str] = {}
    for name, q in model.named_parameters():
        place = (q.data_ptr(), q.numel()) if adjustable(q) and _memory(q) else ()
        if place and first.setdefault(place, name) != name:
            return [
                f"{first[place]} and {name} are two parameters on one memory, which would be rescaled twice: "
                "tie them as one parameter (a.weight = b.weight, not a.weight.data = b.weight.data), or "
                "give each its own"
            ]
    return []


def _memory(q: nn.Parameter) -> int:
    """Where a parameter's numbers are; 0 where it has none (meta) or where that is not to be told (a sharded
    one)."""
    try:
        return 0 if q.is_meta or not q.numel() else q.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _complex_faults(model: nn.Module, base: nn.Module) -> list[str]:
    names = [
        f"{name} of the {label}"
        for label, m in (("model", model), ("base", base))
        for name, q in m.named_parameters()
        if q.is_complex()
    ]
    if not names:
        return []
    return [
        f"parameters must be real numbers, and {names[0]} is complex ({len(names)} are): store "
        "torch.view_as_real(w) and use torch.view_as_complex of it in the forward; keep what is not "
        "trained in a buffer"
    ]
