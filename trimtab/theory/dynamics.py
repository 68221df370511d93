r"""Training dynamics of the sites of a residual network, finite or infinite, in one causal pass.

A site is one of the N coordinates of the stream; the skip keeps it through all layers. Given what the initial
weights send to a site, U = N^-1/2 W(0) phi forward and Z = N^-1/2 W(0)^T g backward, its training is
(docs/theory.md, equation (30))

    h^1(t)     = d(t) chi + sum_{s<t,nu} q_nu(t,s) K^x g^1_nu(s)
    h^{l+1}(t) = h^l(t) + b d(t) U^l(t) + b^2 rho sum_{s<t,nu} q_nu(t,s) Phi^l(t,s) g^{l+1}_nu(s)
    w(t)       = d(t) w0 + sum_{s<t,nu} q_nu(t,s) phi(h^{L+1}_nu(s))          f = <w phi(h^{L+1})> / gamma_0
    g^l(t)     = g^{l+1}(t) + b phi'(h^l) [ d(t) Z^l(t)
                                            + b rho sum_{s<t,nu} q_nu(t,s) G^{l+1}(t,s) phi(h^l_nu(s)) ]

with q = gamma_0 a(t,s) m(s) Delta(s), Phi and G averages over the sites, exactly at every width. Only (U, Z)
differ: a finite network multiplies by its matrices (`finite`), the infinite one draws Gaussian fields with
responses (`dmft`). So the test of this file against autograd and torch.optim.SGD is a test of both. Several
outputs give g, w and Delta an index c, kept flat as (nu, c).
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
    """A field x of this step (n, k, S), the same times the sites' weights, its kernel with the training
    points' past and present, and E[x x^T]."""

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
        """Called before step 0 with what will hold phi(h^l) (n, (T+1) P, S) and g^l (n, (T+1) P C, S) of all
        layers and times."""
        ...

    def settle(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Called once, after step 0, with phi(h^l(0)) (n, P, S) and g^l(0) (n, P C, S) of all layers; may set
        the weights."""
        ...

    def forward(self, layer: int, phi: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        """U (n, P, S) from phi(h^layer(t)) of the same shape; the second, if any, are coefficients of
        g^{layer+1}(s < t) to be added."""
        ...

    def backward(self, layer: int, g: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Z (n, P C, S) from g^{layer+1}(t) of the same shape, and coefficients of phi(h^layer(s <= t))."""
        ...

    def test_start(self) -> torch.Tensor:
        """chi (n, Q, S) of the test points, called once per step after the forward pass of the training
        points."""
        ...

    def look(self, layer: int, phi: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        """U (n, Q, S) of the test points, which leave no trace: what is trained cannot depend on them."""
        ...


class Trajectories:
    """n trajectories: f (n, T+1, P+Q, C), phi and g (n, L+1, (T+1) P, (T+1) P), diverged (n,), steps at which
    each ended."""

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


def train(task: Problem, sites: Sites, tick: Callable[[], None] = lambda: None) -> Trajectories:
    """Train for T steps at finite depth; `tick` is called after each step."""
    points, outputs, depth = task.points, task.outputs, int(task.depth)
    count, _, width = sites.start.shape
    result = Trajectories(task, count)
    features = [sites.start.new_empty(count, (task.steps + 1) * points, width) for _ in range(depth + 1)]
    gradients = [
        sites.start.new_empty(count, (task.steps + 1) * points * outputs, width) for _ in range(depth + 1)
    ]
    delta = sites.start.new_zeros(count, task.steps + 1, points, outputs)
    sites.watch(features, gradients)
    zero = None
    for t in range(task.steps + 1):
        try:
            f = _Step(task, sites, t, result, features, gradients, delta).output(zero)
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


def _weigh(sites: Sites, x: torch.Tensor) -> torch.Tensor:
    return x if sites.weights is None else x * sites.weights


def _times(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """factor x for factors (n,), without a pass over the sites where they are all 1."""
    return x if bool((factor == 1).all()) else x * factor[:, None, None]


def _over_outputs(row: torch.Tensor, points: int, outputs: int) -> torch.Tensor:
    """Mean over outputs of a kernel row (n, P C, k P C): (n, P, k P)."""
    if outputs == 1:
        return row
    blocks = row.reshape(len(row), points, outputs, -1, outputs)
    return blocks.diagonal(dim1=2, dim2=4).mean(-1)


def _settle(
    task: Problem,
    sites: Sites,
    result: Trajectories,
    features: list[torch.Tensor],
    gradients: list[torch.Tensor],
) -> None:
    """Let the sites set their weights from the fields at the start; kernels of time 0 are recorded again with
    them."""
    points, outputs = task.points, task.outputs
    start = [x[:, :points] for x in features], [x[:, : points * outputs] for x in gradients]
    sites.settle(*start)
    if sites.weights is None:
        return
    for layer, (phi, g) in enumerate(zip(*start, strict=True)):
        _record(result.phi, layer, 0, _weigh(sites, phi) @ phi.mT / phi.shape[2])
        _record(result.g, layer, 0, _over_outputs(_weigh(sites, g) @ g.mT / g.shape[2], points, outputs))


class _Step:
    """Time t of the equations above, for all ensembles: forward, the test points, the output, backward."""

    def __init__(
        self,
        task: Problem,
        sites: Sites,
        t: int,
        result: Trajectories,
        features: list[torch.Tensor],
        gradients: list[torch.Tensor],
        delta: torch.Tensor,
    ):
        self.task, self.sites, self.t, self.result = task, sites, t, result
        self.features, self.gradients, self.delta = features, gradients, delta
        self.depth, self.decay = int(task.depth), task.decay(t)
        self.count, _, self.width = sites.start.shape
        self.size = task.points * task.outputs
        self.past, self.past_g = t * task.points, t * self.size
        self.pull = task.drive(t)[..., None] * delta[:, :t]  # q_nu(t,s) of each output, (n, t, P, C)
        self.slopes: list[torch.Tensor] = []

    def output(self, zero: torch.Tensor | None) -> torch.Tensor:
        """f (n, P + Q, C), with features, gradients, kernels and delta of time t recorded."""
        task, points = self.task, self.task.points
        weighted = self._forward().weighted
        w = self._readout()
        if task.tests:
            weighted = torch.cat([weighted, _weigh(self.sites, self._look())], 1)
        f = weighted @ w.mT / (self.width * task.gamma0)
        centred = f - (f if zero is None else zero)
        self.delta[:, self.t] = signal(task.loss, centred[:, :points], task.y)
        self._backward(w)
        return f

    def _kick(self, row: torch.Tensor) -> torch.Tensor:
        """q kernel(mu; s nu) as coefficients of g_{nu c}(s), (n, k, t P C), for a kernel row (n, k, t P)."""
        blocks = row.reshape(len(row), -1, self.t, self.task.points, 1)
        return (blocks * self.pull[:, None]).reshape(self.count, -1, self.past_g)

    def _first(self, start: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
        if not self.t:
            return start
        kick = self._kick(gram.repeat(1, self.t)[None])
        return torch.baddbmm(_times(start, self.decay), kick, self.gradients[0][:, : self.past_g])

    def _next(
        self,
        h: torch.Tensor,
        sent: tuple[torch.Tensor, torch.Tensor | None],
        row: torch.Tensor,
        layer: int,
    ) -> torch.Tensor:
        """h^{layer+1} from h^layer, what the initial weights send, and the kernel row of h^layer."""
        b, (field, response) = self.task.branch, sent
        h = torch.add(h, _times(field, self.decay), alpha=b)
        if not self.t:
            return h
        coefficients = (b * b * self.task.block_rate) * self._kick(row[:, :, : self.past])
        if response is not None:
            coefficients += b * _times(response, self.decay)
        return torch.baddbmm(h, coefficients, self.gradients[layer + 1][:, : self.past_g])

    def _activate(self, h: torch.Tensor, layer: int) -> Seen:
        """phi(h^layer(t)) and its kernel row, both recorded."""
        upto = self.past + self.task.points
        value, slope = self.task.activation.both(h)
        self.slopes.append(slope)
        self.features[layer][:, self.past : upto] = value
        weighted = _weigh(self.sites, value)
        row = weighted @ self.features[layer][:, :upto].mT / self.width
        _record(self.result.phi, layer, self.t, row)
        return Seen(value, weighted, row, row[:, :, self.past :])

    def _forward(self) -> Seen:
        """The training points through all layers; the last layer's features."""
        points = self.task.points
        h = self._first(self.sites.start, self.task.gram[:points, :points])
        phi = self._activate(h, 0)
        for layer in range(self.depth):
            h = self._next(h, self.sites.forward(layer, phi), phi.row, layer)
            phi = self._activate(h, layer + 1)
        return phi

    def _readout(self) -> torch.Tensor:
        w = _times(self.sites.readout, self.decay)
        if not self.t:
            return w
        pull = self.pull.permute(0, 3, 1, 2).reshape(self.count, self.task.outputs, self.past)
        return torch.baddbmm(w, pull, self.features[self.depth][:, : self.past])

    def _look(self) -> torch.Tensor:
        """The test points through all layers, which leave no trace; the last layer's features."""
        points = self.task.points
        h = self._first(self.sites.test_start(), self.task.gram[points:, :points])
        seen = self.task.activation(h)
        for layer in range(self.depth):
            load = _weigh(self.sites, seen)
            row = load @ self.features[layer][:, : self.past + points].mT / self.width
            sent = self.sites.look(layer, Seen(seen, load, row, load @ seen.mT / self.width))
            h = self._next(h, sent, row, layer)
            seen = self.task.activation(h)
        return seen

    def _backward(self, w: torch.Tensor) -> None:
        """Gradients of all layers, from the readout's."""
        outputs, upto = self.task.outputs, self.past_g + self.size
        g = (self.slopes[self.depth][:, :, None] * w[:, None]).reshape(self.count, self.size, self.width)
        for layer in range(self.depth, -1, -1):
            self.gradients[layer][:, self.past_g : upto] = g
            weighted = _weigh(self.sites, g)
            row = weighted @ self.gradients[layer][:, :upto].mT / self.width
            _record(self.result.g, layer, self.t, _over_outputs(row, self.task.points, outputs))
            if layer == 0:
                break
            sent = self.sites.backward(layer - 1, Seen(g, weighted, row, row[:, :, self.past_g :]))
            z = self._sent_back(sent, row, layer)
            slope = self.slopes[layer - 1]
            slope = slope if outputs == 1 else slope.repeat_interleave(outputs, 1)
            g = torch.addcmul(g, slope, z, value=self.task.branch)

    def _sent_back(
        self, sent: tuple[torch.Tensor, torch.Tensor | None], row: torch.Tensor, layer: int
    ) -> torch.Tensor:
        """What layer sends back through its weights: their initial values' part, and what training added."""
        task, (field, response) = self.task, sent
        z = _times(field, self.decay)
        if response is not None:
            response = _times(response, self.decay)
        if self.t:
            blocks = row[:, :, : self.past_g].reshape(
                self.count, self.size, self.t, task.points, task.outputs
            )
            pulled = (blocks * self.pull[:, None]).sum(-1).reshape(self.count, self.size, self.past)
            pulled = pulled * (task.branch * task.block_rate)
            if response is None:
                response = pulled
            else:
                response = response + torch.nn.functional.pad(pulled, (0, response.shape[2] - self.past))
        if response is None:
            return z
        return torch.baddbmm(z, response, self.features[layer - 1][:, : response.shape[2]])
