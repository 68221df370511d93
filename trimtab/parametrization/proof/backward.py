"""One backward of a model that leaves no trace of itself: the gradient of L = sum_k mean(c_k y_k) in every
parameter.

`c_k` is a fixed random cotangent of the shape of the output `y_k`. The parameters tried are given by name and
put in the model's place for one call (`torch.func.functional_call`), so the user's own tensors, their `.grad`
and their hooks are not touched, and a model can be tried as it will be after `p.apply`.

Not every output takes part (`last`): the caches and hidden states that a language model returns beside its
logits are on the way to them, and a cotangent there would be another loss.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.parametrization.proof.packs import Rows, label
from trimtab.structure.recording import as_call, tensors_in, untouched
from trimtab.structure.trace import adjustable

SEED = 16
COTANGENTS = 8  # backward passes of one forward: few outputs scatter less


class Untested(Exception):
    """The backward could not be made, with the reason in words."""


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums over the entries of one gradient.

    Args:
        size: sum |g|; of an optimizer's step d, -sum g d.
        square: sum g^2.
        count: how many entries.
    """

    size: float
    square: float
    count: int

    @classmethod
    def of(cls, effect: Tensor, g: Tensor) -> Sums:
        """Sums of what each entry does to L, and of g^2."""
        square = float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2
        return cls(max(0.0, float(effect.sum(dtype=torch.float64))), square, g.numel())

    @property
    def rms(self) -> float:
        return (self.square / self.count) ** 0.5 if self.count else 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.size + other.size, self.square + other.square, self.count + other.count)


NONE = Sums(0.0, 0.0, 0)


@dataclasses.dataclass(frozen=True)
class Backward:
    """What one backward gave.

    Args:
        gradients: {parameter: sums of its gradient}; a parameter that the outputs do not depend on is not
            there.
        starts: {parameter: rms of what the module that owns it put out}, where that module was called and has
            no children.
        outputs: shapes of the outputs that took part.
    """

    gradients: dict[str, Sums]
    starts: dict[str, float]
    outputs: tuple[tuple[int, ...], ...]


# (parameters, gradients) -> {parameter: (what a step of each entry does to L, gradient)}
Measure = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, tuple[Tensor, Tensor]]]


def backward(
    model: nn.Module,
    values: Mapping[str, Tensor],
    example: Any,
    *,
    training: bool = False,
    measure: Measure | None = None,
    cut: Mapping[str, Sequence[Rows]] = types.MappingProxyType({}),
    cotangents: int = COTANGENTS,
) -> Backward:
    """One backward of `model` at `values`, in eval mode unless `training`.

    Args:
        values: parameters by their names in the model; what is not named keeps its own numbers.
        measure: what a step of each entry does; by default |g|, a first step of Adam.
        cut: parameters whose parts are summed one by one (`packs`).
        cotangents: how many backward passes of the one forward are summed.

    >>> net = nn.Linear(3, 2)
    >>> sorted(backward(net, dict(net.named_parameters()), torch.randn(4, 3)).gradients)
    ['bias', 'weight']

    Raises:
        Untested: the model does not run, or has no outputs that depend on floating-point parameters.
    """
    starts: dict[str, float] = {}
    with as_it_was(model), untouched(model, training=training), torch.enable_grad():
        try:
            found, outputs = _run(model, values, example, starts, measure or of_gradients, cut, cotangents)
        except (Untested, TrimtabError):
            raise
        except Exception as error:  # whatever a user's forward may raise
            line = (str(error).strip().splitlines() or [""])[0][:160]
            raise Untested(f"its backward raised {type(error).__name__}: {line}") from error
    if any(not x.square < float("inf") for x in found.values()):
        raise Untested("its gradients are not finite")
    return Backward(found, starts, tuple(tuple(y.shape) for y in outputs))


def _run(
    model: nn.Module,
    values: Mapping[str, Tensor],
    example: Any,
    starts: dict[str, float],
    measure: Measure,
    cut: Mapping[str, Sequence[Rows]],
    count: int,
) -> tuple[dict[str, Sums], list[Tensor]]:
    own = dict(model.named_parameters())
    leaves = {n: _leaf(values.get(n, q)) for n, q in own.items() if adjustable(q)}
    if not leaves:
        raise Untested("it has no floating-point parameters")
    first = next(iter(leaves.values()))
    rest = {n: q.detach() for n, q in own.items() if n not in leaves}
    buffers = {n: _wide(b.detach().clone()) for n, b in model.named_buffers()}
    args, kwargs = as_call(_like(example, first))
    with _watched(model, starts):
        out = torch.func.functional_call(model, {**leaves, **rest, **buffers}, args, kwargs)
    outputs = last(list(tensors_in(out)))
    if not outputs:
        raise Untested("none of its outputs is a float tensor with a gradient")
    generator = torch.Generator().manual_seed(SEED)
    sums: dict[str, Sums] = {}
    for n in range(count):
        cotangents = [torch.randn(y.shape, generator=generator).to(y) / y.numel() for y in outputs]
        gradients = torch.autograd.grad(
            outputs, list(leaves.values()), cotangents, allow_unused=True, retain_graph=n + 1 < count
        )
        given = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
        for name, (effect, g) in measure(leaves, given).items():
            rows = cut.get(name, ())
            for k, part in enumerate(rows):
                called = label(name, k, len(rows))
                sums[called] = sums.get(called, NONE) + Sums.of(part.of(effect), part.of(g))
            if not rows:
                sums[name] = sums.get(name, NONE) + Sums.of(effect, g)
    return sums, outputs


def of_gradients(
    _parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """|g|: what a first step of Adam does, entry by entry."""
    wide = {n: g.detach().to(torch.promote_types(g.dtype, torch.float32)) for n, g in gradients.items()}
    return {n: (g.abs(), g) for n, g in wide.items()}


def _wide(t: Tensor) -> Tensor:
    """Half precisions are tried in float32: rounding is no part of a law."""
    return t.float() if adjustable(t) and t.element_size() < 4 else t


def _leaf(t: Tensor) -> Tensor:
    if t.is_meta:
        raise Untested("it is on the meta device and has no numbers")
    if hasattr(t, "full_tensor"):
        raise Untested("its parameters are sharded")
    return _wide(t.detach().clone()).requires_grad_()


def _like(example: Any, first: Tensor) -> Any:
    """The example where and as the parameters are; a fresh copy, so that a forward in place does not change
    the user's."""
    if isinstance(example, Tensor):
        t = example.detach().to(first.device)
        return (t.to(first.dtype) if t.is_floating_point() else t).clone()
    if isinstance(example, Mapping):
        return {k: _like(v, first) for k, v in example.items()}
    if isinstance(example, list | tuple):
        return type(example)(_like(v, first) for v in example)
    return example


def last(tensors: list[Tensor]) -> list[Tensor]:
    """The differentiable float tensors that a loss is taken of: no other is computed from them, and each, the
    farthest first, depends on a leaf that those before it do not. A state kept for the next call (a cache) is
    left out.

    >>> x = torch.ones(2, requires_grad=True)
    >>> hidden = 2 * x
    >>> [t.shape for t in last([hidden, hidden.sum(), torch.arange(3)])]
    [torch.Size([])]
    """
    able = {
        (id(t.grad_fn), t.output_nr): t
        for t in tensors
        if t.is_floating_point() and t.grad_fn is not None and t.numel()
    }
    reached = set[Any]().union(*(_behind(t.grad_fn) for t in able.values()))
    ends = {
        t: {f for f in _behind(t.grad_fn) if hasattr(f, "variable")}
        for t in able.values()
        if t.grad_fn not in reached
    }
    found, covered = list[Tensor](), set[Any]()
    for t, leaves in sorted(ends.items(), key=lambda item: -len(item[1])):
        if leaves - covered:
            found.append(t)
            covered |= leaves
    return found


def _behind(f: Any) -> set[Any]:
    """The steps of the backward pass behind one, itself left out."""
    todo, reached = [f], set[Any]()
    while todo:
        for g, _ in todo.pop().next_functions:
            if g is not None and g not in reached:
                reached.add(g)
                todo.append(g)
    return reached


@contextlib.contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Attributes that a forward sets (caches, computed weights) are put back; backward hooks of modules do
    not run."""
    before = [(m, dict(vars(m))) for m in model.modules()]
    for m, _ in before:
        vars(m)["_backward_hooks"] = collections.OrderedDict()
        vars(m)["_backward_pre_hooks"] = collections.OrderedDict()
    try:
        yield
    finally:
        for m, attributes in before:
            vars(m).clear()
            vars(m).update(attributes)


@contextlib.contextmanager
def _watched(model: nn.Module, starts: dict[str, float]) -> Iterator[None]:
    """The rms of what each childless module with parameters puts out, by parameter; the last call's, where
    there are several."""

    def hook(names: list[str]) -> Any:
        def look(_module: nn.Module, _args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and out.is_floating_point() and out.numel():
                rms = float(out.detach().float().square().mean().sqrt())
                starts.update(dict.fromkeys(names, rms))

        return look

    handles = []
    try:
        for path, m in model.named_modules():
            own = [f"{path}.{n}" if path else n for n, _ in m.named_parameters(recurse=False)]
            if own and not any(True for _ in m.children()):
                handles.append(m.register_forward_hook(hook(own)))
        yield
    finally:
        for handle in handles:
            handle.remove()
