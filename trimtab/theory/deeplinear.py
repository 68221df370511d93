r"""Deep linear networks solved exactly: a second opinion on `solve` with no samples, no basis, no inverse.

With phi(h) = h every field is a linear combination of independent Gaussian sources

    chi ~ N(0, K^x)      w0 ~ N(0, 1)      u^l ~ GP(0, Phi^l)      r^l ~ GP(0, G^{l+1})

so we carry its coefficients, one row per (time, point) and one column per (source, time, point). Covariances are sums over sources of
C Cov C'^T, and the responses are coefficients (docs/theory.md, equation (43)):
A^l(t,s) is that of h^l(t) on r^l(s), B^l(t,s) that of g^{l+1}(t) on u^l(s).
Causal like everything here: Phi^l(t, .) is known before u^l(t) is first used. Cost O(L^2 (T P)^3), memory O(L^2 (T P)^2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

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


def _solve(task: Problem, responses: bool) -> dict[str, Any]:
    points, total, outputs, depth, times = (
        task.points,
        len(task.inputs),
        task.outputs,
        int(task.depth),
        task.steps + 1,
    )
    b, rate = task.branch, task.block_rate
    sources = _Sources(task)
    h = [torch.zeros(times * total, sources.total, dtype=torch.float64) for _ in range(depth + 1)]
    g = [torch.zeros(times * points * outputs, sources.total, dtype=torch.float64) for _ in range(depth + 1)]
    phi = [torch.zeros(times * total, times * total, dtype=torch.float64) for _ in range(depth + 1)]
    grad = [
        torch.zeros(times * points * outputs, times * points * outputs, dtype=torch.float64)
        for _ in range(depth + 1)
    ]
    f = torch.full((times, total, outputs), math.nan, dtype=torch.float64)
    delta = torch.zeros(times, points, outputs, dtype=torch.float64)
    w0 = torch.zeros(outputs, sources.total, dtype=torch.float64)
    w0[:, sources.blocks[1]] = torch.eye(outputs, dtype=torch.float64)
    end = times
    for t in range(times):
        decay = float(task.d[0, t])
        pull = task.drive(t)[0, :, :, None] * delta[:t]  # (t, P, C)
        here, past = slice(t * total, (t + 1) * total), slice(0, t * total)
        upto = slice(0, (t + 1) * total)
        size = points * outputs
        here_g, past_g, upto_g = slice(t * size, (t + 1) * size), slice(0, t * size), slice(0, (t + 1) * size)

        def weighted(row, t=t, pull=pull):
            """A kernel row (k, t (P + Q)) times q, as coefficients on g (k, t P C)."""
            return (row.reshape(-1, t, total, 1)[:, :, :points] * pull).reshape(len(row), -1)

        now = torch.zeros(total, sources.total, dtype=torch.float64)
        now[:, sources.blocks[0]] = decay * torch.eye(total, dtype=torch.float64)
        if t:
            now = now + weighted(task.gram.repeat(1, t)) @ g[0][past_g]
        for layer in range(depth + 1):
            h[layer][here] = now
            _record(phi[layer], here, upto, sources.spread(now) @ h[layer][upto].T)
            if layer == depth:
                break
            _record(sources.covariances[sources.u(layer)], here, upto, phi[layer][here, upto])
            after = now.clone()
            after[:, sources.blocks[sources.u(layer)]][:, here] += (
                b * decay * torch.eye(total, dtype=torch.float64)
            )
            if t:
                kicks = b * b * rate * weighted(phi[layer][here, past])
                if responses:
                    kicks = kicks + b * decay * now[:, sources.blocks[sources.r(layer)]][:, past_g]
                after += kicks @ g[layer + 1][past_g]
            now = after
        w = decay * w0
        if t:
            train = h[depth][past].reshape(t, total, -1)[:, :points].reshape(t * points, -1)
            w = w + pull.permute(2, 0, 1).reshape(outputs, -1) @ train
        f[t] = sources.spread(now) @ w.T / task.gamma0
        if not torch.isfinite(f[t]).all() or float(f[t].abs().max()) > 1e8:
            end = t
            break
        delta[t] = signal(task.loss, f[t, :points] - f[0, :points], task.y)
        back = w.repeat(points, 1)  # (P C), point-major
        for layer in range(depth, -1, -1):
            g[layer][here_g] = back
            _record(grad[layer], here_g, upto_g, sources.spread(back) @ g[layer][upto_g].T)
            if layer == 0:
                break
            below = layer - 1
            _record(sources.covariances[sources.r(below)], here_g, upto_g, grad[layer][here_g, upto_g])
            field = torch.zeros_like(back)
            field[:, sources.blocks[sources.r(below)]][:, here_g] = decay * torch.eye(
                size, dtype=torch.float64
            )
            if responses:
                field = field + decay * back[:, sources.blocks[sources.u(below)]][:, upto] @ h[below][upto]
            if t:
                train = h[below][past].reshape(t, total, -1)[:, :points].reshape(t * points, -1)
                coefficients = (grad[layer][here_g, past_g].reshape(size, t, points, outputs) * pull).sum(-1)
                field = field + b * rate * coefficients.reshape(size, -1) @ train
            back = back + b * field
    trained = torch.arange(times * total).reshape(times, total)[:, :points].reshape(-1)
    a = torch.stack([h[layer][trained][:, sources.blocks[sources.r(layer)]] for layer in range(depth)])
    b = torch.stack([g[layer + 1][:, sources.blocks[sources.u(layer)]][:, trained] for layer in range(depth)])
    return _fields(task, f - f[0], phi, grad, end) | responses_of(task, responses * a, responses * b, end)


def _fields(task: Problem, f, phi, grad, end: int) -> dict[str, Any]:
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
    x, y, *, depth, lr, steps, activation="linear", gamma0=1.0, alpha=0.5, beta=1.0, loss="mse", momentum=0.0, weight_decay=0.0,
    batches=None, x_test=None, samples=None, rtol=None, seed=0, responses=True,
) -> Trajectory:  # fmt: skip
    r"""Train the infinitely wide deep *linear* network exactly; arguments and fields as in `solve`.

    Nothing is sampled: `samples`, `rtol` and `seed` are accepted for symmetry and have no effect, `.stderr` is zero. `depth=math.inf`
    extrapolates depths 4, 8, 16, 32 to second order in 1/L; `.depth_error` is what the next order would change.

    >>> net = linear([[1.0]], [1.0], depth=4, lr=0.05, steps=2)
    >>> net.ntk[0, 0, 0].item()          # 2 (1 + 1/L)^L + (1 + 1/L)^{L-1}: docs/theory.md, equation (41)
    6.8359375
    """
    if activation != "linear":
        raise InputError(
            f"linear solves activation='linear' only, got {activation!r}. Call solve for other activations."
        )
    task = problem(
        x, y, depth=depth, activation="linear", lr=lr, steps=steps, gamma0=gamma0, alpha=alpha, beta=beta, loss=loss, momentum=momentum,
        weight_decay=weight_decay, batches=batches, x_test=x_test,
    )  # fmt: skip
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
