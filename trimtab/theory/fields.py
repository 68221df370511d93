r"""Gaussian fields drawn as time goes on, with responses by Stein's lemma: what replaces the matrices at infinite width.

Between layers an infinitely wide network sends to each site (THEORY 3, 3.1)

    U(t) = u(t) + sum_{s<t}  A(t,s) g(s)      u ~ GP(0, Phi),  A(t,s) = <d phi(t) / d r(s)>
    Z(t) = r(t) + sum_{s<=t} B(t,s) phi(s)    r ~ GP(0, G),    B(t,s) = <d g(t) / d u(s)>

over S sampled sites. Each field x (phi or g) keeps a whitened basis v of its past and the noise eps of its Gaussian partner:

    M = E[x v^T],   x - M v = V sqrt(lam) v_new,   u = [M, V sqrt(lam)] [eps, eps_new],   A g = E[x eps_r^T] v_g

so no kernel is ever inverted, no phi'' is needed and nothing in the past changes. A direction enters only if lam > tol x mean E[x^2],
and is otherwise dropped from noise *and* responses: the sampled kernel's tail is noise, and feeding it back makes converged runs drift.
Sites come in pairs (w0, r) -> (-w0, -r), and noise rows are orthogonal to each other and to the constant, so the Gaussians' moments are exact.
"""

from __future__ import annotations

import torch

from trimtab.theory.anchor import Anchor
from trimtab.theory.dynamics import Diverged
from trimtab.theory.problem import Problem


class Rows:
    """A growing (r, S) matrix."""

    def __init__(self, width: int):
        self._data = torch.empty(8, width, dtype=torch.float64)
        self.count = 0

    @property
    def value(self) -> torch.Tensor:
        return self._data[: self.count]

    def append(self, rows: torch.Tensor) -> None:
        needed = self.count + len(rows)
        if needed > len(self._data):
            grown = torch.empty(max(needed, 2 * len(self._data)), self._data.shape[1], dtype=torch.float64)
            grown[: self.count] = self.value
            self._data = grown
        self._data[self.count : needed] = rows
        self.count = needed


def _mean(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """E[x y^T] over sites."""
    return (x if weights is None else x * weights) @ y.T / x.shape[1]


def _deflate(x: torch.Tensor, basis: torch.Tensor, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x = M basis + rest, for an orthonormal basis; twice, because once leaves rounding in the rest."""
    first = _mean(x, basis, weights)
    rest = x - first @ basis
    second = _mean(rest, basis, weights)
    return first + second, rest - second @ basis


class Noise:
    """Standard normal rows (k, H), orthonormal (E[eps eps^T] = 1) to all earlier ones while these fill at most `share` of the space,
    to the same field's own after that."""

    def __init__(self, half: int, generator: torch.Generator, share: float, constant: bool):
        self.half, self.generator = half, generator
        self.limit = int(share * half)
        self.weights: torch.Tensor | None = None
        self.all = Rows(half)
        if constant:
            self.all.append(torch.ones(1, half, dtype=torch.float64))

    def fresh(self, count: int, *bases: torch.Tensor) -> torch.Tensor:
        rows = torch.randn(count, self.half, generator=self.generator, dtype=torch.float64)
        for basis in bases:
            rows = _deflate(rows, basis, self.weights)[1]
        for _ in range(2):  # Cholesky, not QR: each site's noise stays normal whatever its weight
            rows = torch.linalg.solve_triangular(torch.linalg.cholesky(_mean(rows, rows, self.weights)), rows, upper=False)
        return rows

    def draw(self, count: int, own: torch.Tensor) -> torch.Tensor:
        if self.all.count + count <= self.limit:
            rows = self.fresh(count, self.all.value)
            self.all.append(rows)
            return rows
        return self.fresh(count, own) if len(own) + count <= self.limit else self.fresh(count)


class Field:
    """One field's past: whitened basis v (r, S), the noise (r, H) of its Gaussian partner, and v in terms of x, v = N x(0..t)."""

    def __init__(self, width: int, noise: Noise, tol: float, entries: int):
        self.basis, self.eps, self.makeup = Rows(width), Rows(noise.half), Rows(entries)
        self.noise, self.tol, self.seen = noise, tol, 0

    def extend(self, x: torch.Tensor, weights: torch.Tensor | None, exact: torch.Tensor | None = None) -> torch.Tensor:
        """Take x (k, S) in and draw its partner's value (k, H), given the partner's past. `exact`: E[x x^T] where it is known."""
        known, rest = _deflate(x, self.basis.value, weights)
        covariance = _mean(rest, rest, weights) if exact is None else exact
        if not torch.isfinite(covariance).all():
            raise Diverged
        scale = float(_mean(x, x, weights).diagonal().mean())
        lam, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        keep = lam > max(self.tol * scale, 1e-300)
        drawn = known @ self.eps.value
        own = -known @ self.makeup.value
        own[:, self.seen : self.seen + len(x)] += torch.eye(len(x), dtype=torch.float64)
        self.seen += len(x)
        if not keep.any():
            return drawn
        lam, vectors = lam[keep], vectors[:, keep]
        eps = self.noise.draw(len(lam), self.eps.value)
        drawn = drawn + (vectors * lam.sqrt()) @ eps
        self.basis.append((vectors / lam.sqrt()).T @ rest)
        self.makeup.append((vectors / lam.sqrt()).T @ own)
        self.eps.append(eps)
        return drawn


class GaussianSites:
    """S = 2 H sampled sites of the infinitely wide network, as `dynamics.Sites`."""

    def __init__(self, task: Problem, samples: int, seed: int, *, responses: bool, tol: float, share: float, anchor: Anchor | None = None):
        self.half, self.task, self.responses, self.anchor = samples // 2, task, responses, anchor
        self.weights: torch.Tensor | None = None
        generator = torch.Generator().manual_seed(seed)
        self.even = Noise(self.half, generator, share, constant=True)  # chi, u: equal in both sites of a pair
        self.odd = Noise(self.half, generator, share, constant=False)  # w0, r: opposite
        self.passing = Noise(self.half, torch.Generator().manual_seed(seed + 2**40), share, constant=False)  # of test points
        depth, features = int(task.depth), (task.steps + 1) * task.points
        self.phi = [Field(samples, self.even, tol, features) for _ in range(depth)]
        self.g = [Field(samples, self.odd, tol, features * task.outputs) for _ in range(depth)]
        self.a = torch.zeros(depth, features, features * task.outputs, dtype=torch.float64)  # A^l(t,s), rows (t, mu), columns (s, nu, c)
        self.b = torch.zeros(depth, features * task.outputs, features, dtype=torch.float64)

        readout = self.odd.draw(task.outputs, self.odd.all.value)
        lam, vectors = torch.linalg.eigh(task.gram[: task.points, : task.points])
        keep = lam > 1e-12 * lam[-1]
        self.axes = vectors[:, keep], lam[keep].sqrt()
        self.inputs = self.even.draw(int(keep.sum()), self.even.all.value)
        start = (self.axes[0] * self.axes[1]) @ self.inputs
        self.start = torch.cat([start, start], 1)[None]
        self.readout = torch.cat([readout, -readout], 1)[None]

    def settle(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        if self.anchor is None:
            return
        half = self.anchor.weights([x[0, :, : self.half] for x in features], [x[0, :, : self.half] for x in gradients])
        self.weights = torch.cat([half, half])
        for noise in (self.even, self.odd, self.passing):
            noise.weights = half
        self.anchor = None

    def forward(self, layer: int, phi: torch.Tensor) -> torch.Tensor:
        own = self.phi[layer]
        here = slice(own.seen, own.seen + len(phi[0]))
        drawn = own.extend(phi[0], self.weights, self.anchor and self.anchor.phi[layer])
        odd = self._odd(layer, phi[0])
        self.a[layer, here] = odd @ self.g[layer].makeup.value
        return (torch.cat([drawn, drawn], 1) + odd @ self.g[layer].basis.value)[None]

    def _odd(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """E[x eps_r^T], so that A g = E[x eps_r^T] v_g; x is correlated with the opposite noise r through its odd part."""
        half = self.half
        return self.responses * _mean((x[:, :half] - x[:, half:]) / 2, self.g[layer].eps.value, self.odd.weights)

    def backward(self, layer: int, g: torch.Tensor) -> torch.Tensor:
        x, half, own, partner = g[0], self.half, self.g[layer], self.phi[layer]
        here = slice(own.seen, own.seen + len(x))
        drawn = own.extend(x, self.weights, self.anchor and self.anchor.gradient(layer + 1))
        even = self.responses * _mean((x[:, :half] + x[:, half:]) / 2, partner.eps.value, self.even.weights)
        self.b[layer, here] = even @ partner.makeup.value
        return (torch.cat([drawn, -drawn], 1) + even @ partner.basis.value)[None]

    # Test points: noise given all that training has drawn, new at every step, since no output depends on its joint law over time.

    def test_start(self) -> torch.Tensor:
        points, (vectors, scale) = self.task.points, self.axes
        self.used: list[torch.Tensor] = []
        known = self.task.gram[points:, :points] @ vectors / scale
        drawn = known @ self.inputs + self._unseen(self.task.gram[points:, points:] - known @ known.T)
        return torch.cat([drawn, drawn], 1)[None]

    def look(self, layer: int, phi: torch.Tensor) -> torch.Tensor:
        x, own = phi[0], self.phi[layer]
        known, rest = _deflate(x, own.basis.value, self.weights)
        drawn = known @ own.eps.value + self._unseen(_mean(rest, rest, self.weights))
        return (torch.cat([drawn, drawn], 1) + self._odd(layer, x) @ self.g[layer].basis.value)[None]

    def _unseen(self, covariance: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(covariance).all():
            raise Diverged
        lam, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        keep = lam > 1e-14 * float(torch.diagonal(self.task.gram).max())
        count = int(keep.sum())
        room = self.half - self.even.all.count - sum(map(len, self.used)) >= count
        eps = self.passing.fresh(count, *([self.even.all.value, *self.used] if room else []))
        self.used.append(eps)
        return (vectors[:, keep] * lam[keep].sqrt()) @ eps
