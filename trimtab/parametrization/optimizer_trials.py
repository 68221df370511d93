"""Try an optimizer on a problem whose entries know nothing of each other.

The loss is a sum over entries, c_i(t) theta_i + k_i log cosh(theta_i), so an entry's gradient is its own affair. What an
optimizer then does to one entry may depend on that entry alone (SGD, Adam, Lion), or on the others too: a norm of the
whole tensor (LAMB), of its rows (NovoGrad), a factored second moment (Adafactor), a spectral step (Muon, SOAP), a
distance estimated from all of them (Prodigy). The former moves entries alike at every width; each of the latter by a
power of the width of its own.

Gradients reach over six decades and have a direction that stays, so that bounds and estimates of distance are met, and
after some steps the optimizer's counters are moved on, so that late behaviour is met too. All in float64; the random
states, the user's objects and torch's switches stay as they were.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

STEPS, LATE, JUMP = (
    32,
    16,
    9_960,
)  # steps at first; then LATE more with the counters moved on, past step 10 000
COUNTERS = ("step", "steps", "t", "k", "n_iter", "iteration", "global_step")
SHAPES = ((6,), (5, 4), (3, 2, 2, 2))
Make = Callable[[list[dict[str, Any]]], Any]  # an optimizer of these groups
LARGE = (
    (130, 131),
)  # beyond the sizes at which implementations begin to factor (128) or to quantise (4096 entries)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Starts, slopes c (one row per step) and curvatures k of every entry, flat; `shapes` says how they are stored."""

    shapes: tuple[tuple[int, ...], ...]
    start: Tensor
    slope: Tensor
    curvature: Tensor

    def alone(self, chosen: Tensor) -> Problem:
        """Only these entries, each a parameter of its own."""
        parts = (self.start[chosen], self.slope[:, chosen], self.curvature[chosen])
        return Problem(((1,),) * len(chosen), *parts)

    def changed(self, chosen: Tensor) -> Problem:
        """The same with other starts and gradients at these entries."""
        start, slope = self.start.clone(), self.slope.clone()
        start[chosen] *= -3.0
        slope[:, chosen] = -7.0 * slope[:, chosen].flip(0)
        return dataclasses.replace(self, start=start, slope=slope)


def problem(shapes: Sequence[tuple[int, ...]]) -> Problem:
    g = torch.Generator().manual_seed(0)
    shapes = tuple(shapes)
    n = sum(int(torch.Size(shape).numel()) for shape in shapes)
    size = 10 ** (6 * torch.rand(n, generator=g, dtype=torch.float64) - 5)
    side = torch.randint(0, 2, (n,), generator=g) * 2.0 - 1
    noise = torch.randn(STEPS + LATE, n, generator=g, dtype=torch.float64)
    return Problem(
        shapes, torch.randn(n, generator=g, dtype=torch.float64), size * (side + 0.7 * noise), 0.05 * size
    )


@contextlib.contextmanager
def _unnoticed() -> Iterator[None]:
    """Random states are put back, nothing is printed; gradients are on, whatever the caller switched off."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    quiet = contextlib.redirect_stdout(io.StringIO())
    with (
        quiet,
        warnings.catch_warnings(),
        torch.random.fork_rng(),
        torch.inference_mode(False),
        torch.enable_grad(),
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


WAYS = ("plain", "closure")


def train(
    make: Make, p: Problem, group: dict[str, Any], a: float = 1.0, *, ways: Sequence[str] = WAYS
) -> Tensor:
    """theta along the way, (times, entries), where the optimizer stores a theta in one group with these numbers.

    Args:
        ways: how steps are taken, the first that does not raise: "plain" is `step()`, "closure" is `step(closure)`,
            "graph" the same with gradients that can be differentiated.
    """
    for way in ways:
        try:
            with _unnoticed(), torch.device("cpu"):
                return _train(make, p, copy.deepcopy(group), a, way)
        except Exception:
            if way == ways[-1]:
                raise
    raise AssertionError


def _train(make: Make, p: Problem, group: dict[str, Any], a: float, way: str) -> Tensor:
    sizes = [int(torch.Size(shape).numel()) for shape in p.shapes]
    parts = (a * p.start).split(sizes)
    params = [nn.Parameter(part.reshape(shape).clone()) for part, shape in zip(parts, p.shapes, strict=True)]
    optimizer = make([{"params": params, **group}])
    if way == "plain" and _needs_closure(optimizer):
        raise TypeError("step needs a closure")
    if callable(getattr(optimizer, "train", None)):  # schedule-free ones have two modes
        optimizer.train()
    seen = []
    for t in range(STEPS + LATE):
        if t == STEPS:
            _move_on(optimizer)

        def closure(t: int = t) -> Tensor:
            with torch.enable_grad():
                optimizer.zero_grad()
                theta = torch.cat([q.flatten() for q in params]) / a
                loss = (p.slope[t] * theta + p.curvature * torch.log(torch.cosh(theta))).sum()
                loss.backward(create_graph=way == "graph")
            return loss

        if way == "plain":
            theta = torch.cat([q.detach().flatten() for q in params]) / a
            grads = (p.slope[t] + p.curvature * torch.tanh(theta)).div_(a).split(sizes)
            for q, g in zip(params, grads, strict=True):
                q.grad = g.reshape(q.shape).clone()
            optimizer.step()
        else:
            optimizer.step(closure)
        if t % 4 == 3:
            seen.append(torch.cat([q.detach().flatten().double().clone() for q in params]) / a)
    return torch.stack(seen)


def _needs_closure(optimizer: Any) -> bool:
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is inspect.Parameter.empty


def _move_on(optimizer: Any) -> None:
    """Step counts, wherever they are kept, as after JUMP more steps."""
    for store in (*optimizer.param_groups, *getattr(optimizer, "state", {}).values()):
        for key in COUNTERS if isinstance(store, dict) else ():
            value = store.get(key)
            if isinstance(value, Tensor) and value.numel() == 1:
                value += JUMP
            elif isinstance(value, int | float) and not isinstance(value, bool):
                store[key] = value + JUMP


def apart(p: Problem, one: Tensor, other: Tensor) -> float:
    """The largest difference of two paths, relative to how far the entry went, as long as one of them is finite.

    NaN where neither is from the start.
    """
    finite = max(_finite(one), _finite(other))
    if not finite:
        return float("nan")
    one, other = one[:finite], other[:finite].nan_to_num(nan=float("inf"))
    far = (one - p.start).abs().amax(0)
    off = (other - one).abs().amax(0)
    return float(torch.where(off == 0, off, off / far).max())


def _finite(path: Tensor) -> int:
    """How many of the first times are finite in every entry."""
    return int(torch.isfinite(path).all(1).long().cumprod(0).sum())


@dataclasses.dataclass(frozen=True)
class Company:
    """How much an entry's path depends on what stands beside it, each relative to how far the entry goes."""

    others: float  # the other entries' gradients and starts changed
    alone: float  # as a parameter of its own against as part of a tensor
    large: float  # the same for a large matrix


def company(make: Make, group: dict[str, Any], limit: float, *, large: bool = True) -> Company:
    """Is the step on an entry its own affair? Stops at the first answer beyond `limit`.

    Args:
        large: look at a large matrix too.
    """
    small = problem(SHAPES)
    n = len(small.start)
    path = train(make, small, group)
    touched = torch.arange(n) % 2 == 0
    kept = ~touched
    if not _finite(path):
        return Company(float("nan"), 0.0, 0.0)
    changed = train(make, small.changed(touched), group)
    others = apart(dataclasses.replace(small, start=small.start[kept]), path[:, kept], changed[:, kept])
    if not others <= limit:
        return Company(others, 0.0, 0.0)
    chosen = torch.arange(1, n, 4)
    alone = apart(small.alone(chosen), path[:, chosen], train(make, small.alone(chosen), group))
    if not alone <= limit or not large:
        return Company(others, alone, 0.0)
    big = problem(LARGE)
    chosen = torch.tensor([0, 129, 131 * 64 + 7, 131 * 130 - 1])
    by = apart(big.alone(chosen), train(make, big, group)[:, chosen], train(make, big.alone(chosen), group))
    return Company(others, alone, by)
