r"""Training dynamics of the sites of a residual network, finite or infinite, in one causal pass.

A site is one of the N coordinates of the stream; the skip keeps it through all layers. Given what the initial weights send to a
site, U = N^-1/2 W(0) phi forward and Z = N^-1/2 W(0)^T g backward, its training is
(docs/theory.md, equation (30))

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
from typing import NamedTuple, Protocol

import torch

from trimtab.theory.losses import signal
from trimtab.theory.problem import Problem

_HUGE = 1e8  # outputs beyond this are a divergence; nothing later is worth a digit


class Diverged(Exception):
    """The fields are no longer finite."""


class Seen(NamedTuple):
    """A field x of this step (n, k, S), the same times the sites' weights, its kernel with the training points' past and present, and E[x x^T]."""

    value: torch.Tensor
    weighted: torch.Tensor
    row: torch.Tensor  # (n, k, (t+1) k)
    gram: torch.Tensor  # (n, k, k)


class Sites(Protocol):
    """n ensembles of S sites each, and the initial weights between them."""

    start: torch.Tensor  # chi (n, P, S)
    readout: torch.Tensor  # w0 (n, C, S)
    weights: torch.Tensor | None  # (n, 1, S) of mean 1, if averages over sites are weighted

    def watch(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Called before step 0 with what will hold phi(h^l) (n, (T+1) P, S) and g^l (n, (T+1) P C, S) of all layers and times."""
        ...

    def settle(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Called once, after step 0, with phi(h^l(0)) (n, P, S) and g^l(0) (n, P C, S) of all layers; may set the weights."""
        ...

    def forward(self, layer: int, phi: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        """U (n, P, S) from phi(h^layer(t)) of the same shape; the second, if any, are coefficients of g^{layer+1}(s < t) to be added."""
        ...

    def backward(self, layer: int, g: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Z (n, P C, S) from g^{layer+1}(t) of the same shape, and coefficients of phi(h^layer(s <= t))."""
        ...

    def test_start(self) -> torch.Tensor:
        """chi (n, Q, S) of the test points, called once per step after the forward pass of the training points."""
        ...

    def look(self, layer: int, phi: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
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
    """Put the kernel of time t against times <= t, (n, P, (t+1) P)."""
    points = row.shape[1]
    store[:, layer, t * points : (t + 1) * points, : (t + 1) * points] = row


def _mirror(store: torch.Tensor, points: int) -> None:
    """Fill in times s > t."""
    for start in range(0, store.shape[2], points):
        here = slice(start, start + points)
        store[:, :, :start, here] = store[:, :, here, :start].mT


def run(task: Problem, sites: Sites, tick: Callable[[], None] = lambda: None) -> Run:
    """Train for T steps at finite depth; `tick` is called after each step."""
    points, outputs, depth = task.points, task.outputs, int(task.depth)
    count, _, width = sites.start.shape
    result = Run(task, count)
    features = [sites.start.new_empty(count, (task.steps + 1) * points, width) for _ in range(depth + 1)]
    gradients = [
        sites.start.new_empty(count, (task.steps + 1) * points * outputs, width) for _ in range(depth + 1)
    ]
    delta = sites.start.new_zeros(count, task.steps + 1, points, outputs)
    sites.watch(features, gradients)
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
    for kernel in (result.phi, result.g):
        _mirror(kernel, points)
    for index, end in enumerate(result.diverged.tolist()):
        if end <= task.steps:
            result.f[index, end:] = float("nan")
            result.phi[index, :, end * points :] = result.phi[index, :, :, end * points :] = float("nan")
            result.g[index, :, end * points :] = result.g[index, :, :, end * points :] = float("nan")
    return result


def _weighted(sites: Sites, x: torch.Tensor) -> torch.Tensor:
    return x if sites.weights is None else x * sites.weights


def _scaled(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """factor x for factors (n,), without a pass over the sites where they are all 1."""
    return x if bool((factor == 1).all()) else x * factor[:, None, None]


def _over_outputs(row: torch.Tensor, points: int, outputs: int) -> torch.Tensor:
    """Mean over outputs of a kernel row (n, P C, k P C): (n, P, k P)."""
    if outputs == 1:
        return row
    blocks = row.reshape(len(row), points, outputs, -1, outputs)
    return blocks.diagonal(dim1=2, dim2=4).mean(-1)


def _settle(task, sites, result, features, gradients) -> None:
    points, outputs = task.points, task.outputs
    start = [x[:, :points] for x in features], [x[:, : points * outputs] for x in gradients]
    sites.settle(*start)
    if sites.weights is None:
        return
    for layer, (phi, g) in enumerate(zip(*start, strict=True)):
        _record(result.phi, layer, 0, _weighted(sites, phi) @ phi.mT / phi.shape[2])
        _record(result.g, layer, 0, _over_outputs(_weighted(sites, g) @ g.mT / g.shape[2], points, outputs))


def _step(task, sites, t, result, features, gradients, delta, zero) -> torch.Tensor:
    points, outputs, depth = task.points, task.outputs, int(task.depth)
    count, _, width = sites.start.shape
    b, rate, decay = task.branch, task.block_rate, task.decay(t)
    past, past_g, size = t * points, t * points * outputs, points * outputs
    pull = task.drive(t)[..., None] * delta[:, :t]  # q_nu(t,s) of each output, (n, t, P, C)

    def kick(row: torch.Tensor) -> torch.Tensor:
        """q kernel(mu; s nu) as coefficients of g_{nu c}(s), (n, k, t P C), for a kernel row (n, k, t P)."""
        return (row.reshape(len(row), -1, t, points, 1) * pull[:, None]).reshape(count, -1, past_g)

    def first(start: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
        return (
            torch.baddbmm(_scaled(start, decay), kick(gram.repeat(1, t)[None]), gradients[0][:, :past_g])
            if t
            else start
        )

    def next_layer(
        h: torch.Tensor, sent: tuple[torch.Tensor, torch.Tensor | None], row: torch.Tensor, layer: int
    ) -> torch.Tensor:
        field, response = sent
        h = torch.add(h, _scaled(field, decay), alpha=b)
        if not t:
            return h
        coefficients = (b * b * rate) * kick(row[:, :, :past])
        if response is not None:
            coefficients += b * _scaled(response, decay)
        return torch.baddbmm(h, coefficients, gradients[layer + 1][:, :past_g])

    slopes: list[torch.Tensor] = []

    def activate(h: torch.Tensor, layer: int) -> Seen:
        """phi(h^layer(t)) and its kernel row, both recorded."""
        value, slope = task.activation.both(h)
        slopes.append(slope)
        features[layer][:, past : past + points] = value
        weighted = _weighted(sites, value)
        row = weighted @ features[layer][:, : past + points].mT / width
        _record(result.phi, layer, t, row)
        return Seen(value, weighted, row, row[:, :, past:])

    h = first(sites.start, task.gram[:points, :points])
    phi = activate(h, 0)
    for layer in range(depth):
        h = next_layer(h, sites.forward(layer, phi), phi.row, layer)
        phi = activate(h, layer + 1)
    w = _scaled(sites.readout, decay)
    if t:
        w = torch.baddbmm(
            w, pull.permute(0, 3, 1, 2).reshape(count, outputs, past), features[depth][:, :past]
        )
    weighted = phi.weighted

    if task.tests:
        h = first(sites.test_start(), task.gram[points:, :points])
        seen = task.activation(h)
        for layer in range(depth):
            load = _weighted(sites, seen)
            row = load @ features[layer][:, : past + points].mT / width
            h = next_layer(h, sites.look(layer, Seen(seen, load, row, load @ seen.mT / width)), row, layer)
            seen = task.activation(h)
        weighted = torch.cat([weighted, _weighted(sites, seen)], 1)
    f = weighted @ w.mT / (width * task.gamma0)
    centred = f - (f if zero is None else zero)
    delta[:, t] = signal(task.loss, centred[:, :points], task.y)

    g = (slopes[depth][:, :, None] * w[:, None]).reshape(count, size, width)
    for layer in range(depth, -1, -1):
        gradients[layer][:, past_g : past_g + size] = g
        weighted = _weighted(sites, g)
        row = weighted @ gradients[layer][:, : past_g + size].mT / width
        _record(result.g, layer, t, _over_outputs(row, points, outputs))
        if layer == 0:
            break
        field, response = sites.backward(layer - 1, Seen(g, weighted, row, row[:, :, past_g:]))
        z = _scaled(field, decay)
        if response is not None:
            response = _scaled(response, decay)
        if t:
            pulled = (row[:, :, :past_g].reshape(count, size, t, points, outputs) * pull[:, None]).sum(
                -1
            ).reshape(count, size, past) * (b * rate)
            response = (
                pulled
                if response is None
                else response + torch.nn.functional.pad(pulled, (0, response.shape[2] - past))
            )
        if response is not None:
            z = torch.baddbmm(z, response, features[layer - 1][:, : response.shape[2]])
        slope = slopes[layer - 1] if outputs == 1 else slopes[layer - 1].repeat_interleave(outputs, 1)
        g = torch.addcmul(g, slope, z, value=b)
    return f
