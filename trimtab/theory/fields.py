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


def _deflate(x: torch.Tensor, basis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x = M basis + rest, for basis rows of mean square one; twice, because once leaves rounding in the rest."""
    width = x.shape[1]
    first = x @ basis.T / width
    rest = x - first @ basis
    second = rest @ basis.T / width
    return first + second, rest - second @ basis


class Noise:
    """Standard normal rows (k, H), orthonormal (times sqrt H) to all earlier ones while these fill at most `share` of the space,
    to the same field's own after that."""

    def __init__(self, half: int, generator: torch.Generator, share: float, constant: bool):
        self.half, self.generator = half, generator
        self.limit = int(share * half)
        self.all = Rows(half)
        if constant:
            self.all.append(torch.ones(1, half, dtype=torch.float64))

    def fresh(self, count: int, *bases: torch.Tensor) -> torch.Tensor:
        rows = torch.randn(count, self.half, generator=self.generator, dtype=torch.float64)
        for basis in bases:
            rows = _deflate(rows, basis)[1]
        return torch.linalg.qr(rows.T)[0].T * self.half**0.5 if count else rows

    def draw(self, count: int, own: torch.Tensor) -> torch.Tensor:
        if self.all.count + count <= self.limit:
            rows = self.fresh(count, self.all.value)
            self.all.append(rows)
            return rows
        return self.fresh(count, own) if len(own) + count <= self.limit else self.fresh(count)


class Field:
    """One field's past: whitened basis v (r, S) and the noise (r, H) of its Gaussian partner."""

    def __init__(self, width: int, noise: Noise, tol: float):
        self.basis, self.eps, self.noise, self.tol = Rows(width), Rows(noise.half), noise, tol

    def extend(self, x: torch.Tensor) -> torch.Tensor:
        """Take x (k, S) in and draw its partner's value (k, H), given the partner's past."""
        width = x.shape[1]
        known, rest = _deflate(x, self.basis.value)
        scale = float((x * x).mean())
        covariance = rest @ rest.T / width
        if not torch.isfinite(covariance).all():
            raise Diverged
        lam, vectors = torch.linalg.eigh(covariance)
        keep = lam > max(self.tol * scale, 1e-300)
        lam, vectors = lam[keep], vectors[:, keep]
        eps = self.noise.draw(len(lam), self.eps.value)
        drawn = known @ self.eps.value + (vectors * lam.sqrt()) @ eps
        self.basis.append((vectors / lam.sqrt()).T @ rest)
        self.eps.append(eps)
        return drawn


class GaussianSites:
    """S = 2 H sampled sites of the infinitely wide network, as `dynamics.Sites`."""

    def __init__(self, task: Problem, samples: int, seed: int, *, responses: bool, tol: float, share: float):
        half = samples // 2
        self.half, self.points, self.responses = half, task.points, responses
        generator = torch.Generator().manual_seed(seed)
        self.even = Noise(half, generator, share, constant=True)  # chi, u: equal in both of a pair
        self.odd = Noise(half, generator, share, constant=False)  # w0, r: opposite
        self.fresh = Noise(half, torch.Generator().manual_seed(seed + 2**40), share, constant=True)  # test points only
        depth, width = int(task.depth), 2 * half
        self.phi = [Field(width, self.even, tol) for _ in range(depth)]
        self.g = [Field(width, self.odd, tol) for _ in range(depth)]
        self._used: list[torch.Tensor] = []

        readout = self.odd.draw(task.outputs, self.odd.all.value)
        train = task.gram[: task.points, : task.points]
        lam, vectors = torch.linalg.eigh(train)
        keep = lam > 1e-12 * lam[-1]
        lam, vectors = lam[keep], vectors[:, keep]
        eps = self.even.draw(len(lam), self.even.all.value)
        start = (vectors * lam.sqrt()) @ eps
        if task.tests:
            cross = task.gram[task.points :, : task.points]
            known = (cross @ vectors) / lam.sqrt()
            rest = task.gram[task.points :, task.points :] - known @ known.T
            start = torch.cat([start, known @ eps + self._unseen(rest)])
        self._start_used = list(self._used)
        self.start = torch.cat([start, start], 1)[None]
        self.readout = torch.cat([readout, -readout], 1)[None]

    def _unseen(self, covariance: torch.Tensor) -> torch.Tensor:
        """Noise of test points: new at every step, since no output depends on their joint law over time."""
        lam, vectors = torch.linalg.eigh(covariance)
        keep = lam > 1e-10 * lam[-1].clamp_min(1e-300)
        room = self.half - self.even.all.count - sum(map(len, self._used)) > 2 * int(keep.sum())
        eps = self.fresh.fresh(int(keep.sum()), *([self.even.all.value, *self._used] if room else []))
        self._used.append(eps)
        return (vectors[:, keep] * lam[keep].sqrt()) @ eps

    def forward(self, layer: int, t: int, phi: torch.Tensor) -> torch.Tensor:
        x, half = phi[0], self.half
        if layer == 0:
            self._used = list(self._start_used)
        own = self.phi[layer]
        drawn = own.extend(x[: self.points])
        if len(x) > self.points:
            known, rest = _deflate(x[self.points :], own.basis.value)
            drawn = torch.cat([drawn, known @ own.eps.value + self._unseen(rest @ rest.T / (2 * half))])
        field = torch.cat([drawn, drawn], 1)
        partner = self.g[layer]
        if self.responses and partner.eps.count:
            odd = (x[:, :half] - x[:, half:]) @ partner.eps.value.T / (2 * half)
            field = field + odd @ partner.basis.value
        return field[None]

    def backward(self, layer: int, t: int, g: torch.Tensor) -> torch.Tensor:
        x, half = g[0], self.half
        drawn = self.g[layer].extend(x)
        field = torch.cat([drawn, -drawn], 1)
        if self.responses:
            partner = self.phi[layer]
            even = (x[:, :half] + x[:, half:]) @ partner.eps.value.T / (2 * half)
            field = field + even @ partner.basis.value
        return field[None]
