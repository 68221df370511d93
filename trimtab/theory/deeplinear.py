r"""Deep linear networks solved exactly: a second opinion on `solve` with no samples, no basis, no inverse.

With phi(h) = h every field is a linear combination of independent Gaussian sources

    chi ~ N(0, K^x)      w0 ~ N(0, 1)      u^l ~ GP(0, Phi^l)      r^l ~ GP(0, G^{l+1})

so we carry its coefficients, one row per (time, point) and one column per (source, time, point). Covariances
are sums over sources of C Cov C'^T, and the responses are coefficients (docs/theory.md, equation (43)):
A^l(t,s) is that of h^l(t) on r^l(s), B^l(t,s) that of g^{l+1}(t) on u^l(s). Causal like everything here:
Phi^l(t, .) is known before u^l(t) is first used. Cost O(L^2 (T P)^3), memory O(L^2 (T P)^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from trimtab.errors import InputError
from trimtab.theory.depths import extrapolate
from trimtab.theory.losses import signal
from trimtab.theory.problem import Problem, problem
from trimtab.theory.results import Stderr, Trajectory, public_fields, responses_of

_LADDER = (4, 8, 16, 32)  # depths extrapolated to infinity
_ERRORS = ("f", "loss", "ntk", "f_test")


class _Sources:
    """Columns of the coefficient matrices and their block-diagonal covariance."""

    def __init__(self, task: Problem):
        points, outputs, times, self.depth = len(task.inputs), task.outputs, task.steps + 1, int(task.depth)
        sizes = (
            [points, outputs] + [times * points] * self.depth + [times * task.points * outputs] * self.depth
        )
        ends = np.cumsum(sizes)
        self.blocks = [slice(end - size, end) for end, size in zip(ends.tolist(), sizes, strict=True)]
        self.total = int(ends[-1])
        self.covariances = [task.gram, torch.eye(outputs, dtype=torch.float64)]
        self.covariances += [torch.zeros(size, size, dtype=torch.float64) for size in sizes[2:]]

    def u(self, layer: int) -> int:
        return 2 + layer

    def r(self, layer: int) -> int:
        return 2 + self.depth + layer

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """rows x Cov."""
        return torch.cat(
            [rows[:, block] @ cov for block, cov in zip(self.blocks, self.covariances, strict=True)], 1
        )


def _record(kernel: torch.Tensor, here: slice, past: slice, row: torch.Tensor) -> None:
    kernel[here, past] = row
    kernel[past, here] = row.T


class _Network:
    """The fields of one linear network as coefficients on the sources, filled in step by step.

    h (T+1)(P+Q) rows per layer, g (T+1) P C rows; phi and grad their covariances; f the outputs; delta the
    loss's signal.
    """

    def __init__(self, task: Problem, responses: bool):
        self.task, self.responses, self.sources = task, responses, _Sources(task)
        self.depth, times = int(task.depth), task.steps + 1
        self.total, self.size = len(task.inputs), task.points * task.outputs
        columns, layers = self.sources.total, range(self.depth + 1)
        rows, rows_g = times * self.total, times * self.size
        self.h = [_zeros(rows, columns) for _ in layers]
        self.g = [_zeros(rows_g, columns) for _ in layers]
        self.phi = [_zeros(rows, rows) for _ in layers]
        self.grad = [_zeros(rows_g, rows_g) for _ in layers]
        self.f = torch.full((times, self.total, task.outputs), math.nan, dtype=torch.float64)
        self.delta = _zeros(times, task.points, task.outputs)
        self.readout = _zeros(task.outputs, columns)
        self.readout[:, self.sources.blocks[1]] = _eye(task.outputs)

    def step(self, t: int) -> bool:
        """Fill in time t; False where the output is no longer finite."""
        task = self.task
        decay, pull = float(task.d[0, t]), task.drive(t)[0, :, :, None] * self.delta[:t]  # pull: (t, P, C)
        top = self._forward(t, decay, pull)
        w = decay * self.readout
        if t:
            w = w + pull.permute(2, 0, 1).reshape(task.outputs, -1) @ self._training_rows(self.depth, t)
        self.f[t] = self.sources.spread(top) @ w.T / task.gamma0
        if not torch.isfinite(self.f[t]).all() or float(self.f[t].abs().max()) > 1e8:
            return False
        centred = self.f[t, : task.points] - self.f[0, : task.points]
        self.delta[t] = signal(task.loss, centred, task.y)
        self._backward(t, decay, pull, w.repeat(task.points, 1))  # (P C), point-major
        return True

    def _training_rows(self, layer: int, t: int) -> torch.Tensor:
        """h of the training points at times < t, (t P, columns)."""
        points = self.task.points
        return self.h[layer][: t * self.total].reshape(t, self.total, -1)[:, :points].reshape(t * points, -1)

    def _forward(self, t: int, decay: float, pull: torch.Tensor) -> torch.Tensor:
        """h of all layers at time t; returns the last."""
        task, sources, total, b = self.task, self.sources, self.total, self.task.branch
        here, past, upto = (slice(i * total, j * total) for i, j in ((t, t + 1), (0, t), (0, t + 1)))
        past_g = slice(0, t * self.size)

        def coefficients_on_g(row: torch.Tensor) -> torch.Tensor:
            """A kernel row (k, t (P + Q)) times q, as coefficients on g (k, t P C)."""
            return (row.reshape(-1, t, total, 1)[:, :, : task.points] * pull).reshape(len(row), -1)

        now = _zeros(total, sources.total)
        now[:, sources.blocks[0]] = decay * _eye(total)
        if t:
            now = now + coefficients_on_g(task.gram.repeat(1, t)) @ self.g[0][past_g]
        for layer in range(self.depth + 1):
            self.h[layer][here] = now
            _record(self.phi[layer], here, upto, sources.spread(now) @ self.h[layer][upto].T)
            if layer == self.depth:
                break
            _record(sources.covariances[sources.u(layer)], here, upto, self.phi[layer][here, upto])
            after = now.clone()
            after[:, sources.blocks[sources.u(layer)]][:, here] += b * decay * _eye(total)
            if t:
                kicks = b * b * task.block_rate * coefficients_on_g(self.phi[layer][here, past])
                if self.responses:
                    kicks = kicks + b * decay * now[:, sources.blocks[sources.r(layer)]][:, past_g]
                after += kicks @ self.g[layer + 1][past_g]
            now = after
        return now

    def _backward(self, t: int, decay: float, pull: torch.Tensor, back: torch.Tensor) -> None:
        """g of all layers at time t, from the last layer's."""
        task, sources, size, b = self.task, self.sources, self.size, self.task.branch
        here, past, upto = (slice(i * size, j * size) for i, j in ((t, t + 1), (0, t), (0, t + 1)))
        upto_h = slice(0, (t + 1) * self.total)
        for layer in range(self.depth, -1, -1):
            self.g[layer][here] = back
            _record(self.grad[layer], here, upto, sources.spread(back) @ self.g[layer][upto].T)
            if layer == 0:
                break
            below = layer - 1
            _record(sources.covariances[sources.r(below)], here, upto, self.grad[layer][here, upto])
            field = torch.zeros_like(back)
            field[:, sources.blocks[sources.r(below)]][:, here] = decay * _eye(size)
            if self.responses:
                seen = back[:, sources.blocks[sources.u(below)]][:, upto_h]
                field = field + decay * seen @ self.h[below][upto_h]
            if t:
                row = self.grad[layer][here, past].reshape(size, t, task.points, task.outputs)
                coefficients = (row * pull).sum(-1).reshape(size, -1)
                field = field + b * task.block_rate * coefficients @ self._training_rows(below, t)
            back = back + b * field


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def _eye(size: int) -> torch.Tensor:
    return torch.eye(size, dtype=torch.float64)


def _solve(task: Problem, responses: bool) -> dict[str, Any]:
    net, times = _Network(task, responses), task.steps + 1
    end = next((t for t in range(times) if not net.step(t)), times)
    trained = torch.arange(times * net.total).reshape(times, net.total)[:, : task.points].reshape(-1)
    blocks, sources, layers = net.sources.blocks, net.sources, range(net.depth)
    a = torch.stack([net.h[layer][trained][:, blocks[sources.r(layer)]] for layer in layers])
    b = torch.stack([net.g[layer + 1][:, blocks[sources.u(layer)]][:, trained] for layer in layers])
    fields = _fields(task, net.f - net.f[0], net.phi, net.grad, end)
    return fields | responses_of(task, responses * a, responses * b, end)


def _fields(
    task: Problem, f: torch.Tensor, phi: list[torch.Tensor], grad: list[torch.Tensor], end: int
) -> dict[str, Any]:
    times, points, outputs = task.steps + 1, task.points, task.outputs
    train = torch.stack(
        [
            k.reshape(times, -1, times, len(task.inputs))[:, :points, :, :points].reshape(times * points, -1)
            for k in phi
        ]
    )
    mean = torch.stack(
        [
            torch.einsum("acbc->ab", k.reshape(times * points, outputs, times * points, outputs)) / outputs
            for k in grad
        ]
    )
    f[end:] = math.nan
    for kernel in (train, mean):
        kernel[:, end * points :] = kernel[:, :, end * points :] = math.nan
    return public_fields(task, f, train, mean) | {"diverged": end if end < times else None}


def linear(
    x: ArrayLike,
    y: ArrayLike,
    *,
    depth: float,
    lr: float | ArrayLike,
    steps: int,
    activation: str = "linear",
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
) -> Trajectory:
    r"""Train the infinitely wide deep *linear* network exactly; arguments and fields as in `solve`.

    Nothing is sampled: `samples`, `rtol` and `seed` are accepted for symmetry and have no effect, `.stderr`
    is zero. `depth=math.inf` extrapolates depths 4, 8, 16, 32 to second order in 1/L; `.depth_error` is what
    the next order would change.

    >>> net = linear([[1.0]], [1.0], depth=4, lr=0.05, steps=2)
    >>> net.ntk[0, 0, 0].item()          # 2 (1 + 1/L)^L + (1 + 1/L)^{L-1}: docs/theory.md, equation (41)
    6.8359375
    """
    if activation != "linear":
        raise InputError(
            f"linear solves activation='linear' only, got {activation!r}. Call solve for other activations."
        )
    # Each solver spells its arguments out, alike: they are its public signature, checked once in `problem`.
    task = problem(
        x,
        y,
        depth=depth,
        activation="linear",
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
    if math.isinf(task.depth):
        found, left = extrapolate([_solve(task.at_depth(level), responses) for level in _LADDER], order=2)
        sizes: dict[str, Any] = {name: None if left[name] is None else np.abs(left[name]) for name in _ERRORS}
        error, layers = Stderr(**sizes), _LADDER[0]
    else:
        found, error, layers = _solve(task, responses), None, int(task.depth)
    zero: dict[str, Any] = {
        name: None if found[name] is None else np.zeros_like(found[name]) for name in _ERRORS
    }
    return Trajectory(**found, stderr=Stderr(**zero), tau=np.arange(layers + 1) / layers, depth_error=error)
