r"""Training dynamics of the sites of a residual network, finite or infinite, in one causal pass.

A site is one of the N coordinates of the stream; the skip keeps it through all layers. Given what the initial weights send to a
site, U = N^-1/2 W(0) phi forward and Z = N^-1/2 W(0)^T g backward, its training is (arXiv 2309.16620 app. C; THEORY 3)

    h^1(t)     = d(t) chi + sum_{s<t,nu} q_nu(t,s) K^x g^1_nu(s)
    h^{l+1}(t) = h^l(t) + b d(t) U^l(t) + b^2 rho sum_{s<t,nu} q_nu(t,s) Phi^l(t,s) g^{l+1}_nu(s)
    w(t)       = d(t) w0 + sum_{s<t,nu} q_nu(t,s) phi(h^{L+1}_nu(s))                 f = <w phi(h^{L+1})> / gamma_0
    g^l(t)     = g^{l+1}(t) + b phi'(h^l) [ d(t) Z^l(t) + b rho sum_{s<t,nu} q_nu(t,s) G^{l+1}(t,s) phi(h^l_nu(s)) ]

with q = gamma_0 a(t,s) m(s) Delta(s), Phi and G averages over the sites, exactly at every width. Only (U, Z) differ: a finite network
multiplies by its matrices (`finite`), the infinite one draws Gaussian fields with responses (`dmft`). So the test of this file
against autograd and torch.optim.SGD is a test of both. Several outputs give g, w and Delta an index c, kept flat as (nu, c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from trimtab.theory.losses import signal
from trimtab.theory.problem import Problem

_HUGE = 1e8  # outputs beyond this are a divergence; nothing later is worth a digit


class Diverged(Exception):
    """The fields are no longer finite."""


class Sites(Protocol):
    """n ensembles of S sites each, and the initial weights between them."""

    start: torch.Tensor  # chi (n, P, S)
    readout: torch.Tensor  # w0 (n, C, S)
    weights: torch.Tensor | None  # (S,) of mean 1, if averages over sites are weighted

    def settle(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Called once, after step 0, with phi(h^l(0)) (n, P, S) and g^l(0) (n, P C, S) of all layers; may set the weights."""
        ...

    def forward(self, layer: int, phi: torch.Tensor) -> torch.Tensor:
        """U (n, P, S) from phi(h^layer(t)) of the same shape."""
        ...

    def backward(self, layer: int, g: torch.Tensor) -> torch.Tensor:
        """Z (n, P C, S) from g^{layer+1}(t) of the same shape."""
        ...

    def test_start(self) -> torch.Tensor:
        """chi (n, Q, S) of the test points, called once per step after the forward pass of the training points."""
        ...

    def look(self, layer: int, phi: torch.Tensor) -> torch.Tensor:
        """U (n, Q, S) of the test points, which leave no trace: what is trained cannot depend on them."""
        ...


class Run:
    """n trajectories: f (n, T+1, P+Q, C), phi and g (n, L+1, (T+1) P, (T+1) P), diverged (n,), steps at which each ended."""

    def __init__(self, task: Problem, count: int):
        size = (task.steps + 1) * task.points
        nan = float("nan")
        self.f = torch.full((count, task.steps + 1, len(task.inputs), task.outputs), nan, dtype=torch.float64)
        self.phi = torch.full((count, int(task.depth) + 1, size, size), nan, dtype=torch.float64)
        self.g = torch.full_like(self.phi, nan)
        self.diverged = torch.full((count,), task.steps + 1)


def _record(store: torch.Tensor, layer: int, t: int, row: torch.Tensor) -> None:
    """Put the kernel of time t against times <= t, (n, P, (t+1) P), and its mirror image."""
    points = row.shape[1]
    here, past = slice(t * points, (t + 1) * points), slice(0, (t + 1) * points)
    store[:, layer, here, past] = row
    store[:, layer, past, here] = row.transpose(1, 2)


def run(task: Problem, sites: Sites, tick: Callable[[], None] = lambda: None) -> Run:
    """Train for T steps at finite depth; `tick` is called after each step."""
    points, outputs, depth = task.points, task.outputs, int(task.depth)
    count, _, width = sites.start.shape
    result = Run(task, count)
    features = [sites.start.new_zeros(count, (task.steps + 1) * points, width) for _ in range(depth + 1)]
    gradients = [sites.start.new_zeros(count, (task.steps + 1) * points * outputs, width) for _ in range(depth + 1)]
    delta = sites.start.new_zeros(count, task.steps + 1, points, outputs)
    zero = None
    for t in range(task.steps + 1):
        try:
            f = _step(task, sites, t, result, features, gradients, delta, zero)
        except Diverged:
            result.diverged.clamp_(max=t)
            break
        if zero is None:
            zero = f
            _settle(task, sites, result, features, gradients)
        result.f[:, t] = f - zero
        bad = ~torch.isfinite(f).flatten(1).all(1) | (f.abs().flatten(1).amax(1) > _HUGE)
        result.diverged = torch.where(bad, result.diverged.clamp(max=t), result.diverged)
        if (result.diverged <= t).all():
            break
        tick()
    for index, end in enumerate(result.diverged.tolist()):
        if end <= task.steps:
            result.f[index, end:] = float("nan")
            result.phi[index, :, end * points :] = result.phi[index, :, :, end * points :] = float("nan")
            result.g[index, :, end * points :] = result.g[index, :, :, end * points :] = float("nan")
    return result


def _weighted(sites: Sites, x: torch.Tensor) -> torch.Tensor:
    return x if sites.weights is None else x * sites.weights


def _settle(task, sites, result, features, gradients) -> None:
    points, outputs = task.points, task.outputs
    start = [x[:, :points] for x in features], [x[:, : points * outputs] for x in gradients]
    sites.settle(*start)
    if sites.weights is None:
        return
    for layer, (phi, g) in enumerate(zip(*start, strict=True)):
        _record(result.phi, layer, 0, _weighted(sites, phi) @ phi.transpose(1, 2) / phi.shape[2])
        row = _weighted(sites, g) @ g.transpose(1, 2) / g.shape[2]
        row = row.reshape(-1, points, outputs, points, outputs)
        _record(result.g, layer, 0, torch.einsum("nmcvc->nmv", row) / outputs)


def _step(task, sites, t, result, features, gradients, delta, zero) -> torch.Tensor:
    points, outputs, depth = task.points, task.outputs, int(task.depth)
    count, _, width = sites.start.shape
    b, rate, decay = task.branch, task.block_rate, float(task.d[t])
    past, past_g, size = t * points, t * points * outputs, points * outputs
    pull = task.drive(t)[None, :, :, None] * delta[:, :t]  # q_nu(t,s) of each output, (n, t, P, C)

    def along_gradients(row: torch.Tensor, layer: int) -> torch.Tensor:
        """sum_{s,nu,c} q kernel(mu; s nu) g_{nu c}(s) for a kernel row (n, k, t P)."""
        coefficients = row.reshape(count, -1, t, points, 1) * pull[:, None]
        return coefficients.reshape(count, -1, past_g) @ gradients[layer][:, :past_g]

    def first(start: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
        h = decay * start
        return h + along_gradients(gram.repeat(1, t).expand(count, len(gram), past), 0) if t else h

    def next_layer(h, field, row, layer: int) -> torch.Tensor:
        h = h + (b * decay) * field
        return h + (b * b * rate) * along_gradients(row[:, :, :past], layer + 1) if t else h

    slopes: list[torch.Tensor] = []

    def activate(h: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """phi(h^layer(t)) and its kernel row, both recorded."""
        value, slope = task.activation.both(h)
        slopes.append(slope)
        features[layer][:, past : past + points] = value
        row = _weighted(sites, value) @ features[layer][:, : past + points].transpose(1, 2) / width
        _record(result.phi, layer, t, row)
        return value, row

    h = first(sites.start, task.gram[:points, :points])
    value, row = activate(h, 0)
    for layer in range(depth):
        h = next_layer(h, sites.forward(layer, value), row, layer)
        value, row = activate(h, layer + 1)
    w = decay * sites.readout
    if t:
        w = w + pull.permute(0, 3, 1, 2).reshape(count, outputs, past) @ features[depth][:, :past]

    if task.tests:
        h = first(sites.test_start(), task.gram[points:, :points])
        seen = task.activation(h)
        for layer in range(depth):
            h = next_layer(h, sites.look(layer, seen), _weighted(sites, seen) @ features[layer][:, :past].transpose(1, 2) / width, layer)
            seen = task.activation(h)
        value = torch.cat([value, seen], 1)
    f = _weighted(sites, value) @ w.transpose(1, 2) / (width * task.gamma0)
    centred = f - (f if zero is None else zero)
    delta[:, t] = signal(task.loss, centred[:, :points], task.y)

    g = (slopes[depth][:, :, None] * w[:, None]).reshape(count, size, width)
    for layer in range(depth, -1, -1):
        gradients[layer][:, past_g : past_g + size] = g
        row = _weighted(sites, g) @ gradients[layer][:, : past_g + size].transpose(1, 2) / width
        blocks = row.reshape(count, points, outputs, t + 1, points, outputs)
        _record(result.g, layer, t, torch.einsum("nmcsvc->nmsv", blocks).reshape(count, points, past + points) / outputs)
        if layer == 0:
            break
        z = decay * sites.backward(layer - 1, g)
        if t:
            weights = torch.einsum("nmcsvd,nsvd->nmcsv", blocks[:, :, :, :t], pull).reshape(count, size, past)
            z = z + (b * rate) * (weights @ features[layer - 1][:, :past])
        g = g + b * (slopes[layer - 1][:, :, None] * z.reshape(count, points, outputs, width)).reshape_as(g)
    return f
