"""Run an optimizer on a small problem, alone with its rates, its precision and its own protocol.

The loss is a sum over entries, c_i(t) theta_i + k_i log cosh(theta_i), so an entry's gradient is its own
affair. What an optimizer then does to one entry may depend on that entry alone (SGD, Adam, Lion), on its
tensor (a norm, a factored moment, a spectral step) or on all tensors (Prodigy's distance). Every tensor has a
group of its own, with its own numbers, so that groups which are not respected show. Every second tensor
starts at zero, as biases and closing layers do.

Gradients reach over several decades and have a direction that stays, so that bounds and estimates of distance
are met; after many steps the optimizer's counters are moved on, so that late behaviour is met too. The random
states, the user's objects and torch's switches stay as they were; nothing is compiled.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.parametrization.optimizers.families import FAMILIES

QUICK, SHORT, LONG = 12, 32, 400  # steps before the counters are moved on
LATE, JUMP = 16, 9_960  # steps after it, and by how many; a quick trial has none
COUNTERS = ("step", "steps", "t", "k", "n_iter", "iteration", "global_step")  # in a group or a state
OWN_COUNTERS = COUNTERS[:2] + COUNTERS[4:]  # of the optimizer itself, where k and t may be anything
TENSORS = ((6,), (5,), (5, 4), (4, 6), (3, 2, 2, 2), (2, 3, 2, 2))  # two of each number of dimensions
MATRICES = ((5, 4), (4, 6), (6, 5), (5, 5))
Make = Callable[[list[dict[str, Any]]], Any]  # an optimizer of these groups
Numbers = dict[str, float]  # what a group says: lr, weight_decay, eps
WAYS = ("plain", "closure")
ROUNDED = 1e-6  # of the way an entry goes: rounding over many steps, or where sums are taken in another order
SINGLE = 1e-3  # the same in float32
INSTEAD = f"Use one of {', '.join(FAMILIES)}."


class SeveralGradients(Exception):
    """A step asked for the gradient more than once, at weights it moved by itself."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Starts, slopes c (one row per step) and curvatures k of every entry, flat, stored as `shapes`."""

    shapes: tuple[tuple[int, ...], ...]
    start: Tensor
    slope: Tensor
    curvature: Tensor
    late: int = LATE

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def alone(self, chosen: Tensor) -> Problem:
        """Only these entries, each a parameter of its own."""
        parts = (self.start[chosen], self.slope[:, chosen], self.curvature[chosen])
        return Problem(((1,),) * len(chosen), *parts, late=self.late)

    def changed(self, chosen: Tensor) -> Problem:
        """The same with other starts and gradients at these entries."""
        start, slope = self.start.clone(), self.slope.clone()
        start[chosen] = 0.5 - 3.0 * start[chosen]
        slope[:, chosen] = -7.0 * slope[:, chosen].flip(0)
        return dataclasses.replace(self, start=start, slope=slope)

    def tensor(self, i: int) -> slice:
        """Where the entries of tensor i are."""
        first = sum(self.sizes[:i])
        return slice(first, first + self.sizes[i])


def problem(
    shapes: Sequence[tuple[int, ...]],
    steps: int = SHORT,
    *,
    decades: float = 6.0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """`decades`: over how many powers of ten the gradients of a tensor's entries reach."""
    g = torch.Generator().manual_seed(0)
    n = sum(math.prod(shape) for shape in shapes)
    size = 10 ** (decades * (torch.rand(n, generator=g, dtype=torch.float64) - 5 / 6))
    side = torch.randint(0, 2, (n,), generator=g) * 2.0 - 1
    start = torch.randn(n, generator=g, dtype=torch.float64)
    late = 0 if steps == QUICK else LATE
    noise = torch.randn(steps + late, n, generator=g, dtype=torch.float64)
    parts = start, size * (side + 0.7 * noise), 0.05 * size
    p = Problem(tuple(shapes), *(part.to(dtype) for part in parts), late=late)
    for i in range(1, len(shapes), 2):
        p.start[p.tensor(i)] = 0.0
    return p


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Random states are put back, nothing is printed or compiled, gradients are on."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    with (
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
        torch.random.fork_rng(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.device("cpu"),
        torch.compiler.set_stance("force_eager"),
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def train(
    make: Make,
    p: Problem,
    numbers: Sequence[Numbers],
    a: Sequence[float] | None = None,
    *,
    ways: Sequence[str] = WAYS,
) -> Tensor:
    """theta along the way, (times, entries), where the optimizer stores a theta, a group for each tensor.

    Args:
        numbers: what each tensor's group says.
        a: one number for each tensor; 1 where None.
        ways: how steps are taken, the first that does not raise: "plain" is `step()`, "closure" is
            `step(closure)`, "graph" the same with gradients that can be differentiated.
    """
    a = a or [1.0] * len(p.shapes)
    for way in ways:
        try:
            with unnoticed():
                return _train(make, p, copy.deepcopy(list(numbers)), a, way)
        except Exception:
            if way == ways[-1]:
                raise
    raise AssertionError


def _train(make: Make, p: Problem, numbers: list[Numbers], a: Sequence[float], way: str) -> Tensor:
    scale = torch.cat([p.start.new_full((n,), x) for n, x in zip(p.sizes, a, strict=True)])
    parts = (scale * p.start).split(p.sizes)
    params = [nn.Parameter(part.reshape(shape).clone()) for part, shape in zip(parts, p.shapes, strict=True)]
    optimizer = start(make, [{"params": [q], **n} for q, n in zip(params, numbers, strict=True)])
    seen, times = [], len(p.slope)
    for t in range(times):
        if t == times - p.late:
            move_on(optimizer)

        def closure(t: int = t) -> Tensor:
            with torch.enable_grad():
                optimizer.zero_grad()
                theta = torch.cat([q.flatten() for q in params]) / scale
                loss = (p.slope[t] * theta + p.curvature * torch.log(torch.cosh(theta))).sum()
                loss.backward(create_graph=way == "graph")
            return loss

        if way == "plain":
            theta = torch.cat([q.detach().flatten() for q in params]) / scale
            grads = (p.slope[t] + p.curvature * torch.tanh(theta)).div_(scale).split(p.sizes)
            for q, g in zip(params, grads, strict=True):
                q.grad = g.reshape(q.shape).clone()
        take_step(optimizer, way, closure)
        if t % 4 == 3:
            seen.append((torch.cat([q.detach().flatten() for q in params]) / scale).double())
    return torch.stack(seen)


def start(make: Make, groups: list[dict[str, Any]]) -> Any:
    """The optimizer, in training mode where it has two (schedule-free ones do)."""
    optimizer = make(groups)
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()
    return optimizer


def take_step(optimizer: Any, way: str, closure: Callable[[], Tensor]) -> None:
    """One step: plainly, or with a closure that it may ask once.

    Raises:
        TypeError: it needs a closure and the way is plain, or it takes one and never asks it.
        SeveralGradients: it asks for the gradient more than once.
    """
    if way == "plain":
        if _needs_closure(optimizer):
            raise TypeError("step needs a closure")
        optimizer.step()
        return
    asked = 0

    def counted() -> Tensor:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise SeveralGradients
        return closure()

    optimizer.step(counted)
    if not asked:  # `closure=None` in the signature and nowhere else: it gets its gradients beforehand
        raise TypeError("step does not ask its closure")


def _needs_closure(optimizer: Any) -> bool:
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is inspect.Parameter.empty


def move_on(optimizer: Any) -> None:
    """Step counts, wherever they are kept, as after JUMP more steps."""
    stores = [(vars(optimizer), OWN_COUNTERS)]
    stores += [
        (store, COUNTERS) for store in (*optimizer.param_groups, *getattr(optimizer, "state", {}).values())
    ]
    for store, counters in stores:
        for key in counters if isinstance(store, dict) else ():
            value = store.get(key)
            if isinstance(value, Tensor) and value.numel() == 1:
                value += JUMP
            elif isinstance(value, int | float) and not isinstance(value, bool):
                store[key] = value + JUMP


def apart(p: Problem, one: Tensor, other: Tensor, *, by_tensor: bool = False) -> list[float]:
    """For each tensor the largest difference of two paths, relative to how far it (or its tensor) went.

    As long as one of the paths is finite; NaN where neither is from the start.
    """
    found = []
    for i in range(len(p.shapes)):
        x, y, origin = one[:, p.tensor(i)], other[:, p.tensor(i)], p.start[p.tensor(i)]
        finite = max(finite_times(x), finite_times(y))
        if not finite:
            found.append(math.nan)
            continue
        x, y = x[:finite], y[:finite].nan_to_num(nan=math.inf)
        far, off = (x - origin).abs().amax(0), (y - x).abs().amax(0)
        if by_tensor:
            far = far.max()
        found.append(float(torch.where(off == 0, off, off / far).max()))
    return found


def finite_times(path: Tensor) -> int:
    """How many of the first times are finite in every entry."""
    return int(torch.isfinite(path).all(1).long().cumprod(0).sum())


@dataclasses.dataclass(frozen=True)
class Trial:
    """An optimizer ready to be tried, as `Parametrization.optimizer` builds it, in this precision."""

    name: str
    make: Make
    numbers: Numbers
    tensors: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    def train(self, p: Problem, numbers: Sequence[Numbers] | None = None, **more: Any) -> Tensor:
        return train(self.make, p, numbers or [self.numbers] * len(p.shapes), **more)

    def problem(self, steps: int = SHORT, decades: float = 6.0) -> Problem:
        return problem(self.tensors, steps, decades=decades, dtype=self.dtype)

    @property
    def limit(self) -> float:
        """What rounding alone may do to an entry that stands beside others."""
        return ROUNDED if self.dtype == torch.float64 else SINGLE

    @property
    def dims(self) -> list[int]:
        return sorted({len(shape) for shape in self.tensors})

    def of(self, dims: int) -> list[int]:
        return [i for i, shape in enumerate(self.tensors) if len(shape) == dims]
