r"""`solve`: the mean field theory of training, in one causal pass (docs/theory.md, equations (30) to (36)).

Sites are sampled (`fields`) and trained (`dynamics`) in independent blocks. The answer is the mean over
blocks, its standard error their scatter, widened by Student's t because blocks are few. Blocks, not samples,
carry the error bar because rich networks near the edge of stability amplify Monte-Carlo noise through the
kernels all sites share, which no within-run estimate sees.

For phi(h) = h moment-matched noise makes one block exact, if its half holds all noise directions; then there
is nothing to average.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

from trimtab.errors import faults
from trimtab.theory.activations import Function
from trimtab.theory.anchor import Anchor, Unreachable
from trimtab.theory.depths import extrapolate
from trimtab.theory.dynamics import train
from trimtab.theory.fields import GaussianSites
from trimtab.theory.losses import mean_loss
from trimtab.theory.problem import Problem, problem
from trimtab.theory.results import Moments, Stderr, Trajectory, public_fields, responses_of

_BLOCK = (
    2000  # samples per block to start with: the bias of a block is O(rank / samples), here below its scatter
)
_LADDER = (4, 8, 16)  # depths extrapolated to infinity
_TOL, _TOL_LINEAR = 1e-3, 1e-14  # smallest new direction kept, relative to the field's variance
_SIDE_BY_SIDE = 2**28  # bytes: small blocks share the overhead, large ones go one by one
_GROWTH = 64  # rtol may use this many times the samples asked for
_ERRORS = ("f", "loss", "ntk", "f_test")
_log = logging.getLogger("trimtab.theory")


def _exact(task: Problem) -> bool:
    return task.activation.name == "linear"


def _depths(task: Problem) -> tuple[int, ...]:
    return _LADDER if math.isinf(task.depth) else (int(task.depth),)


def _together(
    tasks: list[Problem], samples: int, seeds: list[int], responses: bool, tick, anchor: Anchor | None
) -> list[list[dict]]:
    """Independent solutions at finite depth, side by side: for each task (they differ in their rates) one for
    each seed, the same noise for all."""
    both = replace(
        tasks[0],
        a=torch.cat([task.a for task in tasks for _ in seeds]),
        d=torch.cat([task.d for task in tasks for _ in seeds]),
    )
    tol, share, passes = (_TOL_LINEAR, 1.0, 2) if _exact(both) else (_TOL, 0.5, 1)
    sites = GaussianSites(
        both,
        samples,
        seeds * len(tasks),
        responses=responses,
        tol=tol,
        share=share,
        passes=passes,
        anchor=anchor,
    )
    try:
        result = train(both, sites, tick)
    except Unreachable:
        return _together(tasks, samples, seeds, responses, tick, None)
    a, b = sites.kernels(-1), sites.kernels(+1)
    found = []
    for i, end in enumerate(result.diverged.tolist()):
        fields = public_fields(both, result.f[i], result.phi[i], result.g[i]) | responses_of(
            both, a[i], b[i], end
        )
        found.append(fields | {"diverged": end if end <= both.steps else None})
    return [found[i : i + len(seeds)] for i in range(0, len(found), len(seeds))]


class _Average:
    """Mean and error bars of one task over blocks, taken in one at a time."""

    def __init__(self, task: Problem, size: int):
        self.task, self.size = task, size
        self.moments: dict[str, Moments] = {}
        self.left: dict[str, Moments] = {}
        self.diverged: int | None = None
        self.count = 0

    def add(self, ladder: list[dict]) -> None:
        """One block at each depth."""
        found, left = extrapolate(ladder, order=1) if len(ladder) > 1 else (ladder[0], {})
        end = found.pop("diverged")
        if end is not None:
            self.diverged = end if self.diverged is None else min(end, self.diverged)
        for store, values in ((self.moments, found), (self.left, left)):
            for name, value in values.items():
                if value is not None:
                    store.setdefault(name, Moments(spread=name in _ERRORS)).add(value)
        self.count += 1

    def stderr(self, name: str) -> np.ndarray | None:
        """Scatter of the blocks, scaled so that two of it cover what two of a well known one would."""
        if name not in self.moments:
            return None
        if _exact(self.task):
            return np.zeros_like(self.moments[name].mean)
        widen = stdtrit(self.count - 1, ndtr(2.0)) / 2.0
        return widen * np.sqrt(self.moments[name].variance / self.count)

    def relative_error(self) -> float:
        """|stderr of f| / |f| over the trajectory, as far as it is finite."""
        error, f = self.stderr("f"), self.moments["f"].mean
        assert error is not None  # every block has an f
        good = np.isfinite(error) & np.isfinite(f)
        return float(np.linalg.norm(error[good]) / max(np.linalg.norm(f[good]), 1e-300))

    def trajectory(self) -> Trajectory:
        found: dict[str, Any] = {"f_test": None} | {
            name: moments.mean for name, moments in self.moments.items()
        }
        f = torch.from_numpy(found["f"].reshape(len(found["f"]), self.task.points, self.task.outputs))
        # of the mean output: a mean of losses would add half the variance of the blocks
        found["loss"] = mean_loss(self.task.loss, f, self.task.y).numpy()
        error: dict[str, Any] = {name: self.stderr(name) for name in _ERRORS}
        left: dict[str, Any] = {
            name: None if name not in self.left else np.abs(self.left[name].mean) for name in _ERRORS
        }
        layers = _depths(self.task)[0]
        return Trajectory(
            **found,
            stderr=Stderr(**error),
            tau=np.arange(layers + 1) / layers,
            diverged=self.diverged,
            samples=self.count * self.size,
            depth_error=Stderr(**left) if self.left else None,
        )


class _Blocks:
    """Draws blocks of `size` samples for tasks that differ in their rates only, as many at a time as stay
    within `_SIDE_BY_SIDE` bytes."""

    def __init__(self, tasks: list[Problem], size: int, responses: bool, progress, blocks: int):
        self.size, self.responses, self.progress = size, responses, progress
        self.averages = [_Average(task, size) for task in tasks]
        self.levels = [
            [task.at_depth(depth) if math.isinf(task.depth) else task for task in tasks]
            for depth in _depths(tasks[0])
        ]
        exact = _exact(tasks[0])
        self.anchors = [
            Anchor(level[0]) if not exact and Anchor.fits(level[0], size // 2) else None
            for level in self.levels
        ]
        self.width = max(1, min(blocks, _SIDE_BY_SIDE // (len(tasks) * memory_bytes(tasks[0], size))))
        self.tick = _ticker(
            progress, math.ceil(blocks / self.width) * len(self.levels) * (tasks[0].steps + 1)
        )

    def draw(self, seed: int, blocks: int) -> None:
        """Up to `blocks` blocks in all."""
        while (done := self.averages[0].count) < blocks:
            chosen = range(done, min(done + self.width, blocks))
            ladder = [
                _together(
                    level,
                    self.size,
                    [(seed * 2**12 + block) * 8 + i for block in chosen],
                    self.responses,
                    self.tick,
                    anchor,
                )
                for i, (level, anchor) in enumerate(zip(self.levels, self.anchors, strict=True))
            ]
            for i, average in enumerate(self.averages):
                for block in range(len(chosen)):
                    average.add([level[i][block] for level in ladder])


def _layout(task: Problem, samples, seed) -> tuple[int, int]:
    """(number of blocks, samples per block), or an error."""
    problems = []
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        problems.append(f"seed: must be an integer >= 0, got {seed!r}.")
    if isinstance(samples, bool) or not isinstance(samples, (int, np.integer)) or samples < 2:
        problems.append(f"samples: must be an even integer >= 2, got {samples!r}.")
        raise faults(f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments", problems)
    points, outputs, depth = task.points, task.outputs, max(_depths(task))
    if _exact(task):
        directions = 1 + points + task.tests * (depth + 1) + depth * (task.steps + 1) * points
        directions = max(directions, outputs * (1 + depth * (task.steps + 1) * points))
        if samples // 2 < directions:
            problems.append(
                f"samples: the linear network is exact once samples/2 >= {directions}, "
                "the number of its noise directions"
                f" (depth {depth}, steps {task.steps}, points {points}): got {samples}. "
                f"Pass samples={2 * directions} or call linear."
            )
        blocks, size = 1, 2 * (int(samples) // 2)
    else:
        least = 4 * (2 + points * outputs + points + outputs)
        blocks = next(
            (k for k in (8, 4) if samples // k >= max(least, _BLOCK)), 4 if samples // 4 >= least else 2
        )
        size = 2 * (int(samples) // (2 * blocks))
        if size < least:
            problems.append(
                f"samples: {points} points and {outputs} outputs need at least {2 * least} samples, "
                f"got {samples}."
            )
    if problems:
        raise faults(f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments", problems)
    return blocks, size


def memory_bytes(task: Problem, size: int) -> int:
    """Most that one block of `size` samples can take: histories, noise at full rank, bases in terms of the
    past, kernels."""
    points, gradients, depth, times = (
        task.points,
        task.points * task.outputs,
        max(_depths(task)),
        task.steps + 1,
    )
    histories = (depth + 1) * times * (points + gradients) * size
    noise = depth * min(times * (points + gradients), size) * size  # and again among all that is orthogonal
    bases = depth * times**2 * (points**2 + gradients**2) + _exact(task) * noise
    kernels = (
        4 * (sum(_depths(task)) + len(_depths(task))) * (times * points) ** 2 * 2
    )  # Phi, G, A, B of a block, and their means
    return 8 * (histories + noise + bases + kernels)


def _ticker(progress, total: int) -> Callable[[], None]:
    if not progress:
        return lambda: None
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(done, max(total, done))
        else:
            print(
                f"\rsolve: step {done} of {max(total, done)}",
                end="" if done < total else "\n",
                file=sys.stderr,
                flush=True,
            )

    return tick


def solve(
    x: ArrayLike,
    y: ArrayLike,
    *,
    depth: float,
    activation: str | Function,
    lr: float | ArrayLike,
    steps: int,
    gamma0: float = 1.0,
    alpha: float = 0.5,
    beta: float = 1.0,
    loss: str = "mse",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batches: Sequence[Sequence[int]] | None = None,
    x_test: ArrayLike | None = None,
    samples: int = 8000,
    rtol: float | None = None,
    seed: int = 0,
    responses: bool = True,
    progress: bool | Callable[[int, int], None] = False,
) -> Trajectory:
    r"""Train the infinitely wide residual network by solving its dynamical mean field theory.

    `x` (P, D), `y` (P,) or (P, C): training points; `x_test` (Q, D): points only looked at. `depth` L
    branches beta L^-alpha, or `math.inf` (depths 4, 8, 16 extrapolated, `.depth_error` says how well). `lr`:
    eta_0, independent of width and depth, one or one per step; the finite network's SGD rate is eta_0
    gamma_0^2 N. `gamma0`: richness. `loss`: "mse" (sum_c (f_c - y_c)^2 / 2), "logistic" (y = +-1), "softmax"
    (labels or probabilities), averaged over the points. `momentum`: heavy ball. `weight_decay`: lambda_0 =
    gamma_0^2 N lambda_torch, coupled L2.
    `batches`: one list of point indices per step. `samples` S sites in independent blocks; `rtol`: add
    samples until |stderr| <= rtol |f| over the trajectory. `responses=False` drops A and B (wrong on
    purpose). `progress`: True, or a callable (done, total).

    Returns `.f` (T+1, P[, C]) centred to f(0) = 0, `.loss` (T+1,), `.phi`, `.g` (L+1, T+1, T+1, P, P), `.ntk`
    (T+1, P, P), `.f_test`, `.a`, `.b` responses, `.stderr` (.f .loss .ntk .f_test), `.tau` layer times,
    `.diverged`. The memory needed is logged (`trimtab.theory`) before work starts.

    >>> net = solve([[1.0, 1.0]], [1.0], depth=2, activation="tanh", lr=0.2, steps=3, samples=2000)
    >>> net.f.shape, float(net.f[0, 0]), bool(0 < net.f[1, 0] < net.f[2, 0] < net.f[3, 0] < 1)
    ((4, 1), 0.0, True)
    """
    # Each solver spells its arguments out, alike: they are its public signature, checked once in `problem`.
    task = problem(
        x,
        y,
        depth=depth,
        activation=activation,
        lr=lr,
        steps=steps,
        gamma0=gamma0,
        alpha=alpha,
        beta=beta,
        loss=loss,
        momentum=momentum,
        weight_decay=weight_decay,
        batches=batches,
        x_test=x_test,
    )
    if rtol is not None and not (isinstance(rtol, (int, float, np.number)) and 0 < rtol < 1):
        raise faults("1 fault in the arguments", [f"rtol: must be between 0 and 1, got {rtol!r}."])
    blocks, size = _layout(task, samples, seed)
    _announce(task, blocks, size, progress)
    drawn = _Blocks([task], size, responses, progress, blocks)
    drawn.draw(seed, blocks)
    if rtol is not None and not _exact(task):
        drawn = _refine(drawn, seed, float(rtol), limit=_GROWTH * samples)
    return drawn.averages[0].trajectory()


def solve_rates(
    x: ArrayLike,
    y: ArrayLike,
    *,
    rates: Sequence[float | ArrayLike],
    samples: int = 8000,
    seed: int = 0,
    responses: bool = True,
    progress: bool | Callable[[int, int], None] = False,
    **case: Any,
) -> list[Trajectory]:
    r"""`solve` at each of `rates` (each a float or one per step), side by side and with the same noise.
    `case`: arguments of `solve`.

    >>> case = dict(depth=1, activation="tanh", steps=2, samples=400)
    >>> slow, fast = solve_rates([[1.0, 1.0]], [1.0], rates=[0.1, 0.2], **case)
    >>> bool(slow.f[1, 0] < fast.f[1, 0])
    True
    """
    tasks = [problem(x, y, lr=rate, **case) for rate in rates]
    blocks, size = _layout(tasks[0], samples, seed)
    abreast = max(1, min(len(tasks), _SIDE_BY_SIDE // (blocks * memory_bytes(tasks[0], size))))
    found = []
    for start in range(0, len(tasks), abreast):
        drawn = _Blocks(tasks[start : start + abreast], size, responses, progress, blocks)
        drawn.draw(seed, blocks)
        found += [average.trajectory() for average in drawn.averages]
    return found


def _announce(task: Problem, blocks: int, size: int, progress) -> None:
    side = max(1, min(blocks, _SIDE_BY_SIDE // memory_bytes(task, size)))
    needed = f"{blocks} blocks of {size} samples, at most {side * memory_bytes(task, size) / 2**30:.2g} GiB"
    _log.info(needed)
    if progress is True:
        print(f"solve: {needed}", file=sys.stderr)


def _refine(drawn: _Blocks, seed: int, rtol: float, limit: int) -> _Blocks:
    """More blocks until |stderr| <= rtol |f|; larger ones while they scatter so much that their bias, of
    second order, would matter."""
    while (error := drawn.averages[0].relative_error()) > rtol and drawn.averages[0].diverged is None:
        average, size = drawn.averages[0], drawn.size
        scatter = error * math.sqrt(average.count)
        if scatter**2 > rtol and 4 * 2 * size <= limit:
            drawn, blocks = _Blocks([average.task], 2 * size, drawn.responses, drawn.progress, 4), 4
        else:
            blocks = min(math.ceil(average.count * (error / rtol) ** 2 * 1.1), limit // size)
            if blocks <= average.count:
                warnings.warn(
                    f"rtol = {rtol:g} was not reached: |stderr|/|f| = {error:.2g} at {average.count * size} "
                    f"samples, {_GROWTH} times those asked for."
                    " Pass more samples, or a looser rtol.",
                    stacklevel=3,
                )
                break
        drawn.draw(seed, blocks)
    return drawn
