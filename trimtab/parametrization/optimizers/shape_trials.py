"""How the entries of an optimizer's step move with the shape of a tensor, on gradients of fixed low rank.

G(t) = P C(t) Q^T, with P (rows, 3), Q (columns, 3) and a 3 x 3 core that changes from step to step: a batch
has few directions, and on noise of full rank a spectral step moves as another power (docs/theory.md, equation
(14)). The entries of a step are written

    rows^-p  columns^-q  max(1, rows/columns)^t

where only the part of a step inside the spaces of P and Q counts: the rest does nothing to the batch it came
from. The square, wide and tall matrices of FIT give p, q and t; CHECK must lie on the same law, in the early
and in the late windows of the steps. The eps at which a step is half as large says what eps is compared with,
at each shape.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab.parametrization.optimizers.trials import (
    WAYS,
    Make,
    Numbers,
    move_on,
    start,
    take_step,
    unnoticed,
)

SMALL, LARGE = (
    36,
    144,
)  # 4 times as large, and beyond the sizes at which implementations begin to factor (128)
FIT = ((SMALL, SMALL), (LARGE, LARGE), (SMALL, LARGE), (LARGE, SMALL))
CHECK = ((SMALL * 2, LARGE), (LARGE, SMALL * 2))
STEPS, RANK = 44, 3
LATE = 32  # here the counters are moved on
WINDOWS = (slice(2, 12), slice(12, 24), slice(LATE, STEPS))  # some only look at the first gradient
GRID = tuple(10.0 ** (k / 2) for k in range(-8, 13))  # of eps, in units of an entry of the gradient
OFF = 0.1  # of a power: 32 % at 16 times the size, inside the 1.5 that is claimed


@dataclasses.dataclass(frozen=True)
class Powers:
    """The powers by which a step's entries move: of rows, columns, rows/columns where tall, and the start.

    Args:
        miss: how far CHECK and the two windows are from one law, as a power over a factor of 4 in size.
        start: power of the parameter's own size that a step follows.
        rate: power of lr that a step follows.
        spread: last over first singular value of the way gone, 0.1 in the gradient.
    """

    rows: float
    columns: float
    tall: float
    miss: float
    start: float
    rate: float
    spread: float


def stored(shape: tuple[int, int], dims: int) -> tuple[int, ...]:
    """(rows, columns) as a tensor of so many dimensions.

    >>> stored((36, 144), 4), stored((36, 144), 1)
    ((36, 36, 2, 2), (36,))
    """
    return {1: shape[:1], 2: shape, 4: (shape[0], shape[1] // 4, 2, 2)}[dims]


@dataclasses.dataclass(frozen=True)
class Slopes:
    """Gradients (steps, *shape) of rank 3 and entries of size 1, and the spaces of their columns and rows."""

    shape: tuple[int, ...]
    left: Tensor
    right: Tensor
    grads: Tensor

    def inside(self, step: Tensor) -> Tensor:
        """What a step does inside the two spaces, (3, 3); a vector is left as it is."""
        if len(self.right) == 1:
            return step.double().reshape(-1, 1)
        return self.left.T @ step.double().reshape(len(self.left), -1) @ self.right


def slopes(shape: tuple[int, ...], steps: int, dtype: torch.dtype) -> Slopes:
    g = torch.Generator().manual_seed(1)
    rows, columns = shape[0], math.prod(shape[1:])
    left = torch.linalg.qr(torch.randn(rows, RANK, generator=g, dtype=torch.float64)).Q
    core = torch.randn(steps, RANK, RANK, generator=g, dtype=torch.float64)
    sizes = torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64)
    core = torch.diag(sizes) + 0.1 * sizes[:, None] * core * sizes
    right = torch.ones(1, 1, dtype=torch.float64)
    if columns >= RANK:
        right = torch.linalg.qr(torch.randn(columns, RANK, generator=g, dtype=torch.float64)).Q
    else:
        core = core.sum(2, keepdim=True)
    core /= core.square().sum((1, 2), keepdim=True).sqrt()
    grads = ((rows * columns) ** 0.5 * left @ core @ right.T).reshape(steps, *shape)
    return Slopes(shape, left, right, grads.to(dtype))


def walk(
    make: Make,
    shapes: Sequence[tuple[int, ...]],
    numbers: Sequence[Numbers],
    starts: Sequence[float],
    dtype: torch.dtype,
    steps: int = STEPS,
) -> tuple[Tensor, list[Tensor]]:
    """The rms of each step's entries, (steps, tensors), and the way each tensor went, both inside the
    gradients' spaces.

    Every tensor has a group of its own.
    """
    for way in WAYS:
        try:
            with unnoticed():
                return _walk(make, shapes, copy.deepcopy(list(numbers)), starts, dtype, steps, way)
        except Exception:
            if way == WAYS[-1]:
                raise
    raise AssertionError


def _walk(
    make: Make,
    shapes: Sequence[tuple[int, ...]],
    numbers: list[Numbers],
    starts: Sequence[float],
    dtype: torch.dtype,
    steps: int,
    way: str,
) -> tuple[Tensor, list[Tensor]]:
    draws = {shape: torch.randn(shape, dtype=torch.float64) for shape in shapes}
    draws = {shape: (x / x.square().mean().sqrt()).to(dtype) for shape, x in draws.items()}
    params = [nn.Parameter(x * draws[shape]) for x, shape in zip(starts, shapes, strict=True)]
    given = {shape: slopes(shape, steps, dtype) for shape in set(shapes)}
    optimizer = start(make, [{"params": [q], **n} for q, n in zip(params, numbers, strict=True)])
    first = before = [q.detach().clone() for q in params]
    sizes = torch.zeros(steps, len(params), dtype=torch.float64)
    for t in range(steps):

        def closure(t: int = t) -> Tensor:
            for q, shape in zip(params, shapes, strict=True):
                q.grad = given[shape].grads[t].clone()
            return torch.tensor(1.0 / (1 + t), dtype=dtype)

        closure()
        if t == LATE:
            move_on(optimizer)
        take_step(optimizer, way, closure)
        now = [q.detach().clone() for q in params]
        for i, (x, y) in enumerate(zip(now, before, strict=True)):
            sizes[t, i] = given[shapes[i]].inside(x - y).norm() / x.numel() ** 0.5
        before = now
    return sizes, [given[s].inside(x - y) for s, x, y in zip(shapes, before, first, strict=True)]


def powers(make: Make, numbers: Numbers, dims: int, dtype: torch.dtype, *, shapes: bool = True) -> Powers:
    """The powers by which the entries of a step on tensors of so many dimensions move.

    Args:
        shapes: False for an elementwise optimizer, of which only the powers of the start and of lr are asked.
    """
    used = [*FIT, *CHECK] if shapes else [FIT[0]]
    tensors = [stored(s, dims) for s in (*used, FIT[0], FIT[0])]
    starts = [*[1.0] * len(used), 4.0, 1.0]
    groups = [*[numbers] * (len(used) + 1), numbers | {"lr": numbers["lr"] / 4}]
    sizes, ways = walk(make, tensors, groups, starts, dtype)
    logs = [sizes[w].clamp_min(1e-300).log().mean(0) / math.log(4) for w in WINDOWS]
    fits = [_fit(x.tolist(), dims) if shapes else (0.0, 0.0, 0.0, 0.0) for x in logs]
    p, q, t, _ = (sum(x) / len(x) for x in zip(*fits, strict=True))
    drift = max(abs(x - y) for fit in fits for x, y in zip(fit[:3], (p, q, t), strict=True))
    far = [math.log(float(way.norm()) + 1e-300) / math.log(4) for way in ways]  # all steps: some begin late
    spectrum = torch.linalg.svdvals(ways[0].nan_to_num())
    spread = float(spectrum[-1] / spectrum[0]) if len(spectrum) > 1 else 0.0
    return Powers(
        rows=p,
        columns=q,
        tall=t,
        miss=max(drift, *(fit[3] for fit in fits)),
        start=far[-2] - far[0],
        rate=far[0] - far[-1],
        spread=spread,
    )


def _fit(x: list[float], dims: int) -> tuple[float, float, float, float]:
    """p, q, t and the distance of CHECK from them, of log_4 sizes."""
    if dims == 1:
        p = x[0] - x[1]
        return p, 0.0, 0.0, abs(x[0] - p / 2 - x[4])
    both, q = x[0] - x[1], x[0] - x[2]
    p = both - q
    t = p - (x[0] - x[3])
    wide, tall = x[0] - p / 2 - q, x[0] - p - q / 2 + t / 2
    return p, q, t, max(abs(wide - x[4]), abs(tall - x[5]))


def eps_powers(make: Make, numbers: Numbers, dims: int, dtype: torch.dtype) -> tuple[float, float]:
    """Powers of rows and columns of the eps that halves a step; (0, 0) where none does."""
    shapes = ((16, 16), (64, 16), (16, 64))
    tensors = [stored(s, dims) for s in shapes for _ in GRID]
    groups = [numbers | {"eps": eps} for _ in shapes for eps in GRID]
    sizes, _ = walk(make, tensors, groups, [1.0] * len(tensors), dtype, steps=4)
    total = sizes.sum(0).reshape(len(shapes), -1)
    share = (total / total[:, :1]).clamp(1e-6, 1 - 1e-6)
    halves = []
    for row in torch.logit(share).tolist():
        k = next((i for i, x in enumerate(row) if x < 0), 0)
        if not k or not math.isfinite(row[k]):
            return 0.0, 0.0
        inside = row[k - 1] / (row[k - 1] - row[k])
        halves.append((math.log(GRID[k - 1]) * (1 - inside) + math.log(GRID[k]) * inside) / math.log(4))
    return halves[1] - halves[0], 0.0 if dims == 1 else halves[2] - halves[0]


def snap(x: float) -> float | None:
    """The multiple of 1/4 that a measured power is, None where it is none.

    >>> snap(0.49), snap(-0.02), snap(0.37)
    (0.5, 0.0, None)
    """
    near = round(4 * x) / 4
    return near + 0.0 if abs(x - near) <= OFF else None
