r"""The finite twin: an ensemble of residual networks of width N, trained exactly, with the fields of the
limit.

Raw N(0,1) weights, every scale a multiplier (docs/theory.md, equations (1) and (30)),
SGD at eta = eta_0 gamma_0^2 N:

    h^1 = D^-1/2 W^0 x     h^{l+1} = h^l + beta L^-alpha N^-1/2 W^l phi(h^l)
    f = (gamma_0 N)^-1 w . phi(h^{L+1}) - f(0)

The matrices are never rewritten: gradient descent adds outer products of features and gradients, so W(t)
stays d(t) W(0) plus a term of rank T P, kept as such (`dynamics`). A step then reads each W(0) twice and
writes none; `dtype=torch.float32` halves that for the matrices alone.

Kernels scatter around the limit as N^-1/2 with covariance Sigma_L / N (docs/theory.md, equation (44)):
`.variance` is N x the variance over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from trimtab.errors import faults
from trimtab.theory.activations import Function
from trimtab.theory.conditioned import Conditioned
from trimtab.theory.dynamics import train
from trimtab.theory.problem import Problem, problem
from trimtab.theory.results import Moments, Stderr, Trajectory, public_fields

_BATCH_BYTES = (
    2**25
)  # matrices trained side by side: small networks share the overhead, large ones stay in cache


class Networks:
    """The initial weights of one network per seed."""

    weights: torch.Tensor | None = None

    def __init__(self, task: Problem, width: int, seeds: list[int], dtype: torch.dtype):
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        inputs = task.inputs.shape[1]

        def normal(*shape, kind=torch.float64):
            return torch.stack([torch.randn(*shape, generator=draw, dtype=kind) for draw in draws])

        self.first = normal(width, inputs)
        self.readout = normal(task.outputs, width)
        self.hidden = normal(int(task.depth), width, width, kind=dtype)
        start = task.inputs @ self.first.transpose(1, 2) / math.sqrt(inputs)
        self.start, self._test_start = start[:, : task.points], start[:, task.points :]

    def forward(self, layer, phi):
        return self._times(phi.value, self.hidden[:, layer].mT), None

    look = forward

    def backward(self, layer, g):
        return self._times(g.value, self.hidden[:, layer]), None

    def test_start(self):
        return self._test_start

    def watch(self, features, gradients):
        pass

    settle = watch

    def _times(self, field, matrix):
        return (field.to(matrix.dtype) @ matrix).to(field.dtype) / math.sqrt(matrix.shape[-1])


def init_fluctuation(depth: float) -> float:
    """N Var(H^{L+1}) / E[H]^2 of a *linear* residual network at the start, alpha = 1/2, beta = 1
    (docs/theory.md, equation (45)): bounded in depth.

    >>> [round(init_fluctuation(L), 2) for L in (1, 4, 16, 64, math.inf)]
    [3.5, 4.88, 5.65, 5.91, 6.0]
    """
    return 2 + (4 + 2 / depth) / (1 + 1 / depth) ** 2


def _seeds(width: int, seeds: int | Sequence[int], seed: int, depth: float, responses: bool) -> list[int]:
    """The networks' seeds, or an error with all faults of what a finite network needs."""
    problems = []
    if isinstance(width, bool) or not isinstance(width, (int, np.integer)) or width < 1:
        problems.append(f"width: must be an integer >= 1, got {width!r}.")
    chosen = list(range(seed, seed + seeds)) if isinstance(seeds, (int, np.integer)) else list(seeds)
    if not chosen:
        problems.append(f"seeds: must be a count >= 1 or a list of seeds, got {seeds!r}.")
    if depth == math.inf:
        problems.append(
            "depth: a finite network needs a finite depth, got inf. Pass an integer, or call solve."
        )
    if not responses:
        problems.append(
            "responses: a finite network cannot do without its responses. Call solve(responses=False)."
        )
    if problems:
        raise faults(f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments", problems)
    return chosen


def simulate(
    x: ArrayLike,
    y: ArrayLike,
    *,
    width: int,
    seeds: int | Sequence[int],
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
    samples: int | None = None,
    rtol: float | None = None,
    seed: int = 0,
    responses: bool = True,
    dtype: torch.dtype = torch.float64,
    matrices: bool = True,
) -> Trajectory:
    r"""Train an ensemble of finite networks, exactly as `solve` trains the infinite one.

    `width` N; `seeds`: how many networks, drawn from `seed`, `seed` + 1, ..., or a list of seeds. All other
    arguments as in `solve`; `depth` is finite; `samples` and `rtol` are accepted for symmetry and have no
    effect. `dtype` is that of the N x N matrices. `matrices=False` draws only what the matrices do to the
    vectors they meet (`conditioned`): other networks of exactly the same law, for O(N (T P)^2) per layer, so
    N may be 100 000. Fields are means over the ensemble (`.loss` is the mean of the networks' losses),
    `.stderr` their standard errors, `.variance` N x variance over seeds of every field: Sigma_L for the
    kernels.

    >>> net = simulate([[1.0, 1.0]], [1.0], width=32, seeds=4, depth=2, activation="tanh", lr=0.1, steps=3)
    >>> net.f.shape, net.phi.shape, float(net.f[0, 0])
    ((4, 1), (3, 4, 4, 1, 1), 0.0)
    """
    chosen = _seeds(width, seeds, seed, depth, responses)
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
    members = _members(task, width, matrices)
    several = [chosen[i : i + members] for i in range(0, len(chosen), members)]

    def draw(part: list[int]) -> Any:
        return Networks(task, int(width), part, dtype) if matrices else Conditioned(task, int(width), part)

    return _ensemble(task, int(width), several, draw)


def _members(task: Problem, width: int, matrices: bool) -> int:
    """How many networks are trained side by side."""
    met = (task.steps + 1) * (len(task.inputs) + task.points * task.outputs)  # vectors a matrix meets
    return max(1, _BATCH_BYTES // (8 * int(task.depth) * width * (width if matrices else 3 * met)))


def _ensemble(
    task: Problem, width: int, several: list[list[int]], draw: Callable[[list[int]], Any]
) -> Trajectory:
    """Networks trained, a few at a time: the mean of every field, its standard error, N x its variance."""
    seeds = sum(map(len, several))
    moments = {name: Moments() for name in ("f", "loss", "phi", "g", "ntk", "f_test")}
    ends: list[int] = []
    for part in several:
        result = train(task, draw(part))
        ends += result.diverged.tolist()
        for f, phi, g in zip(result.f, result.phi, result.g, strict=True):
            for name, value in public_fields(task, f, phi, g).items():
                if value is not None:
                    moments[name].add(value)
    known = {name: m for name, m in moments.items() if m.count}
    nothing: dict[str, Any] = dict.fromkeys(moments)
    mean = nothing | {name: m.mean for name, m in known.items()}
    variance = nothing | {name: width * m.variance for name, m in known.items()}
    error: dict[str, Any] = {
        n: None if variance[n] is None else np.sqrt(variance[n] / (width * seeds))
        for n in (f.name for f in fields(Stderr))
    }
    layers = np.arange(int(task.depth) + 1) / int(task.depth)
    common = {"stderr": Stderr(**error), "tau": layers, "samples": seeds}
    ended = min(ends)
    diverged = ended if ended <= task.steps else None
    return Trajectory(**mean, **common, diverged=diverged, variance=Trajectory(**variance, **common))
