"""Run a model once, leave nothing of it changed, and keep the recording.

`forward` is the one place where a forward is recorded: for `parametrize` through `record`, and for a check
(`coordinates`) with a recorder of its own.
`record` runs the model as it is. Where that cannot work (meta tensors on which the model asks for a number)
`torch.export` makes a straight-line program first, and the same recorder runs that.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import torch_internals
from trimtab.errors import ExampleError, InputError, StructureError, raised
from trimtab.structure.recorder import Recorder
from trimtab.structure.trace import Trace, adjustable


def tensors_in(x: Any, depth: int = 6) -> Iterator[Tensor]:
    """The tensors inside an output of any kind: tuples, dicts, dataclasses, objects.

    >>> [t.item() for t in tensors_in({"a": torch.tensor(1.0), "b": [torch.tensor(2.0), None]})]
    [1.0, 2.0]
    """
    if isinstance(x, Tensor):
        yield x
    elif depth == 0 or isinstance(x, nn.Module | str | bytes | type):
        return
    elif isinstance(x, Mapping):
        for y in x.values():
            yield from tensors_in(y, depth - 1)
    elif isinstance(x, list | tuple | set):
        for y in x:
            yield from tensors_in(y, depth - 1)
    elif hasattr(x, "__dict__"):
        for y in vars(x).values():
            yield from tensors_in(y, depth - 1)


def as_call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example as the arguments of one forward: a tensor, a tuple of args or a dict of kwargs."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def _like_model(example: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Floats take the model's type, tensors its device; numbers, masks and indices stay what they are."""
    if isinstance(example, Tensor):
        if example.is_meta and device.type != "meta":
            raise InputError(
                "the example must hold numbers: it is on the meta device, and the base is verified on it. "
                "Pass a real tensor; it is moved where it is needed."
            )
        floats = dtype is not None and example.is_floating_point()
        return example.to(device=device, dtype=dtype if floats else example.dtype)
    if isinstance(example, Mapping):
        return {k: _like_model(v, device, dtype) for k, v in example.items()}
    if isinstance(example, list | tuple):
        return type(example)(_like_model(v, device, dtype) for v in example)
    return example


@contextlib.contextmanager
def untouched(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run a forward and change nothing: modes, buffers, random states and torch's switches are put back.

    With `training` False the modules are put into eval mode, without calling the model's own train().
    """
    modes = [(m, m.training) for m in model.modules()]
    for m, mode in modes:
        m.training = mode and training
    buffers = [(b, b.clone()) for b in model.buffers() if not b.is_meta]
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            with (
                torch_internals.without_fast_attention(),
                torch.backends.mkldnn.flags(enabled=False),
                torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
                torch.inference_mode(False),
                torch.no_grad(),
            ):
                yield
        finally:
            for m, mode in modes:
                m.training = mode
            for b, before in buffers:
                with torch.no_grad():
                    b.copy_(before)
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def record(
    model: nn.Module, example: Any, label: str = "model", numbers: Mapping[str, float] | None = None
) -> Trace:
    """Record one forward of `model` on `example`; model, buffers and random states stay as they were.

    Args:
        numbers: values of one-element buffers that are on meta, by name.

    >>> trace = record(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.zeros(2, 3))
    >>> [node.name for node in trace.nodes]
    ['t', 'mm', 'add', 'relu']
    """
    params = dict(model.named_parameters())
    if not params:
        raise InputError(
            f"{label} has no parameters: there is nothing to parametrize. Pass the nn.Module that is trained."
        )
    meta = any(p.is_meta for p in params.values())
    first = next((p for p in params.values() if adjustable(p)), next(iter(params.values())))
    call = as_call(
        _like_model(
            example,
            torch.device("meta") if meta else first.device,
            first.dtype if adjustable(first) else None,
        )
    )
    empty = [tuple(t.shape) for t in tensors_in(call) if t.numel() == 0]
    if empty:
        raise InputError(
            f"example has a tensor without elements, shape {empty[0]}: nothing flows, so nothing can be "
            "verified. Pass a batch of two or more."
        )
    nans = [t for t in tensors_in(call) if t.is_floating_point() and not t.is_meta and bool(t.isnan().any())]
    if nans:
        raise InputError(
            f"example must hold numbers: a tensor of shape {tuple(nans[0].shape)} has "
            f"{int(nans[0].isnan().sum())} that are NaN, so nothing can be verified. Pass a batch without."
        )
    try:
        # Eval mode has no dropout, no dropped paths and no skipped layers. What only training uses (auxiliary
        # heads) is looked for in training mode.
        trace = _run(model, call, params, real=not meta, training=False, numbers=numbers)
        if model.training and _unused(trace):
            trained = _run(model, call, params, real=not meta, training=True, numbers=numbers)
            trace = trained if _unused(trained) < _unused(trace) else trace
        return trace
    except (InputError, StructureError):
        raise
    except Exception as error:
        if not meta:
            raise ExampleError(
                f"the example must run through the model: {label} ({type(model).__name__}) raised "
                f"{raised(error, short=True)}. {_advice(model, call, params)}"
            ) from error
    return _export(model, call, label, numbers)


def _advice(model: nn.Module, call: Any, params: Mapping[str, Tensor]) -> str:
    """How to pass an example that did not run; a batch (inputs, target) is a frequent one."""
    args, kwargs = call
    if not kwargs and not any(True for _ in tensors_in(args)):
        held = ", ".join(sorted({type(value).__name__ for value in args}))
        return f"It holds no tensor ({held}): pass example= a torch.Tensor, or a tuple or dict of them."
    if len(args) > 1:
        with contextlib.suppress(Exception):
            _run(model, ((args[0],), {}), params, real=True, training=False)
            return (
                "Its first entry alone runs: of a batch (inputs, target) pass the inputs, example=batch[0]."
            )
    return "Pass example= as a tensor, a tuple of args or a dict of kwargs that model(...) takes."


def _unused(trace: Trace) -> int:
    return sum(not trace.consumers[value] for value in trace.params.values())


def forward(
    model: nn.Module, call: Any, recorder: Recorder, *, params: Mapping[str, Tensor], real: bool = True
) -> Trace:
    """Run one forward under a recorder and return its trace; the caller puts back what it changed.

    Args:
        call: (args, kwargs) of the forward.
        recorder: a fresh one.
        params: what the parameters are called.
        real: the values hold numbers; False on meta.

    Raises:
        StructureError: no output depends on the inputs or the parameters.
    """
    for name, p in params.items():
        recorder.add_param(name, p)
    recorder.buffers = {id(b): name.removeprefix("inner.") for name, b in model.named_buffers()}
    for t in tensors_in(call):
        recorder.add_input(t)
    with recorder:
        out = model(*call[0], **call[1])
    found = list(tensors_in(out))
    leaves = [recorder.value_of(t) for t in found]
    outputs = tuple(
        dict.fromkeys(i for i in leaves if recorder.values[i].is_float and not recorder.values[i].constant)
    )
    if not outputs:
        raise StructureError(
            "a model must return at least one float tensor that depends on its parameters: "
            f"{type(model).__name__} returned {type(out).__name__} with {len(found)} tensors. Return the "
            "tensor, or a tuple, dict or dataclass that holds it."
        )
    return Trace(
        values=recorder.values, nodes=recorder.nodes, params=recorder.params, outputs=outputs, real=real
    )


def _run(
    model: nn.Module,
    call: Any,
    params: Mapping[str, Tensor],
    *,
    real: bool,
    training: bool,
    numbers: Mapping[str, float] | None = None,
) -> Trace:
    recorder = Recorder()
    recorder.numbers = numbers or {}
    with untouched(model, training=training):
        return forward(model, call, recorder, params=params, real=real)


def _export(model: nn.Module, call: Any, label: str, numbers: Mapping[str, float] | None = None) -> Trace:
    """The second front end: a straight-line program from `torch.export`, run through the same recorder."""
    try:
        with untouched(model, training=False):
            program = torch.export.export(_Tensors(model), call[0], call[1], strict=False).module()
    except Exception as error:
        raise StructureError(
            f"the model could be neither run nor exported on this example: {label} ({type(model).__name__}) "
            f"raised {raised(error, short=True)}. "
            "Build it on a real device, or pass an example that model(...) takes."
        ) from error
    meta = any(p.is_meta for p in model.parameters())
    return _run(
        program,
        call,
        {name.removeprefix("inner."): p for name, p in program.named_parameters()},
        real=not meta,
        training=True,
        numbers=numbers,
    )


class _Tensors(nn.Module):
    """Returns the tensors of a model's output, whatever holds them: export does not know a user's classes."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        return list(tensors_in(self.inner(*args, **kwargs)))


def record_export(model: nn.Module, example: Any, label: str = "model") -> Trace:
    """`record` through `torch.export` whatever the device, for models whose Python must not run."""
    first = next(model.parameters())
    return _export(model, as_call(_like_model(example, first.device, first.dtype)), label)
