r"""Gaussian fields drawn as time goes on, with responses by Stein's lemma: what replaces the matrices at
infinite width.

Between layers an infinitely wide network sends to each site (docs/theory.md, equations (32) to (34))

    U(t) = u(t) + sum_{s<t}  A(t,s) g(s)      u ~ GP(0, Phi),  A(t,s) = <d phi(t) / d r(s)>
    Z(t) = r(t) + sum_{s<=t} B(t,s) phi(s)    r ~ GP(0, G),    B(t,s) = <d g(t) / d u(s)>

over S sampled sites. Each field x (phi or g) keeps a whitened basis v of its past and the noise eps of its
Gaussian partner:

    M = E[x v^T],   x - M v = V sqrt(lam) v_new,   u = [M, V sqrt(lam)] [eps, eps_new],
    A g = (E[x eps_r^T] - M D) v_g

so no kernel is ever inverted, no phi'' is needed and nothing in the past changes. D = E[v eps_r^T] where v is
older than eps_r and truly uncorrelated with it: a control variate, which leaves of the response's noise only
that of what is new in x. A direction enters only if lam > tol x mean E[x^2], and is otherwise dropped from
noise *and* responses: the sampled kernel's tail is noise, and feeding it back makes converged runs drift.
Sites come in pairs (w0, r) -> (-w0, -r), and noise rows are orthogonal to each other and to the constant, so
the Gaussians' moments are exact.

v is a combination of past x, v = N x(0..t), so M is the kernel's row times N^T and A g the past g times N_g
and a row: nothing but the past itself is kept per site (`Field`). The linear network, exact to rounding down
to lam = 1e-14, keeps v too (`ExactField`).

n trajectories (blocks of noise, rates) go side by side in the first axis. Where they keep different
directions the missing ones are rows of zeros, so what one trajectory does never depends on the others'
values.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from trimtab.theory.anchor import Anchor
from trimtab.theory.dynamics import Diverged, Seen
from trimtab.theory.problem import Problem


class Rows:
    """A growing (n, r, S) tensor."""

    def __init__(self, count: int, width: int):
        self._data = torch.empty(count, 8, width, dtype=torch.float64)
        self.count = 0

    @property
    def value(self) -> torch.Tensor:
        return self._data[:, : self.count]

    def append(self, rows: torch.Tensor) -> None:
        needed = self.count + rows.shape[1]
        if needed > self._data.shape[1]:
            count, room, width = self._data.shape
            grown = torch.empty(count, max(needed, 2 * room), width, dtype=torch.float64)
            grown[:, : self.count] = self.value
            self._data = grown
        self._data[:, self.count : needed] = rows
        self.count = needed


def _mean(weighted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """E[x y^T] over sites, from x times their weights."""
    return weighted @ y.mT / y.shape[2]


def _times(x: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return x if weights is None else x * weights


def _deflate(
    x: torch.Tensor, basis: torch.Tensor, weights: torch.Tensor | None, passes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """x = M basis + rest, for an orthonormal basis; a second pass removes what rounding left in the rest."""
    known = _mean(_times(x, weights), basis)
    rest = torch.baddbmm(x, known, basis, alpha=-1)
    for _ in range(passes - 1):
        again = _mean(_times(rest, weights), basis)
        known, rest = known + again, torch.baddbmm(rest, again, basis, alpha=-1)
    return known, rest


def _split(x: torch.Tensor, sign: int) -> torch.Tensor:
    """Twice the part of x (n, k, S) that is even (+1) or odd (-1) in a pair of sites, (n, k, H)."""
    half = x.shape[2] // 2
    return torch.add(x[:, :, :half], x[:, :, half:], alpha=sign)


class Noise:
    """Standard normal rows (n, k, H), orthonormal (E[eps eps^T] = 1) to all earlier ones while these fill at
    most `share` of the space, to the same field's own after that."""

    def __init__(
        self, half: int, generators: list[np.random.Generator], share: float, passes: int, constant: bool
    ):
        self.half, self.generators, self.passes = half, generators, passes
        self.limit = int(share * half)
        self.weights: torch.Tensor | None = None
        self.all = Rows(len(generators), half)
        if constant:
            self.all.append(torch.ones(len(generators), 1, half, dtype=torch.float64))

    def fresh(self, count: int, *bases: torch.Tensor) -> torch.Tensor:
        rows = torch.from_numpy(
            np.stack([draw.standard_normal((count, self.half)) for draw in self.generators])
        )
        for basis in bases:
            rows = _deflate(rows, basis, self.weights, self.passes)[1]
        for _ in range(self.passes):  # Cholesky, not QR: each site's noise stays normal whatever its weight
            rows = torch.linalg.inv(torch.linalg.cholesky(_mean(_times(rows, self.weights), rows))) @ rows
        return rows

    def draw(self, count: int, own: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """`count` rows, those zero that a trajectory does not `keep` (n, count)."""
        room = self.all.count + count <= self.limit
        rows = (
            self.fresh(count, self.all.value)
            if room
            else self.fresh(count, own)
            if own.shape[1] + count <= self.limit
            else self.fresh(count)
        )
        if keep is not None and not keep.all():
            rows = rows * keep[:, :, None]
        if room:
            self.all.append(rows)
        return rows


class Field:
    """One field's past: the noise (n, r, H) of its Gaussian partner, and its whitened basis in terms of
    itself, v = N x(0..t), N (n, r, (T+1) k)."""

    def __init__(self, width: int, noise: Noise, tol: float, entries: int):
        count = len(noise.generators)
        self.eps, self.makeup = Rows(count, noise.half), Rows(count, entries)
        self.noise, self.tol, self.seen = noise, tol, 0

    def extend(
        self, x: Seen, weights: torch.Tensor | None, exact: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take x (n, k, S) in and draw its partner's value (n, k, H), given the partner's past, and M.
        `exact`: E[x x^T] where it is known."""
        size = x.value.shape[1]
        self.seen += size
        known, covariance = self.project(x, weights)
        lam, vectors = _eigh(covariance if exact is None else exact.expand_as(covariance))
        keep = lam > (self.tol * x.gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True)).clamp_min_(1e-300)
        drawn = known @ self.eps.value
        columns = keep.any(0)
        if not columns.any():
            return drawn, known
        lam, vectors, keep = lam[:, columns], vectors[:, :, columns], keep[:, columns]
        root = torch.where(keep, lam, 0.0).sqrt()
        inverse = (vectors * torch.where(keep, 1 / root, 0.0)[:, None]).mT
        own = -known @ self.makeup.value
        own[:, :, self.seen - size : self.seen] += torch.eye(size, dtype=torch.float64)
        eps = self.noise.draw(keep.shape[1], self.eps.value, keep)
        self.append(inverse)
        self.makeup.append(inverse @ own)
        self.eps.append(eps)
        return torch.baddbmm(drawn, vectors * root[:, None], eps), known

    def project(self, x: Seen, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """M and the covariance of x - M v."""
        known = x.row[:, :, : self.seen] @ self.makeup.value[:, :, : x.row.shape[2]].mT
        return known, torch.baddbmm(x.gram, known, known.mT, alpha=-1)

    def append(self, inverse: torch.Tensor) -> None:
        """v_new = inverse (x - M v) of what was projected last has been taken in."""

    def correlate(self, past: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        """v eps^T summed over half of the sites, from x(0..t) there."""
        return self.makeup.value[:, :, : past.shape[1]] @ (past @ eps.mT)

    def combine(self, coefficients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """coefficients v as (a field over sites, coefficients of x(0..t)), one of them None."""
        return None, coefficients @ self.makeup.value[:, :, : self.seen]


class ExactField(Field):
    """The same with v (n, r, S) itself, orthogonal to rounding."""

    def __init__(self, width: int, noise: Noise, tol: float, entries: int):
        super().__init__(width, noise, tol, entries)
        self.basis = Rows(len(noise.generators), width)

    def project(self, x, weights):
        known, self.rest = _deflate(x.value, self.basis.value, weights, 2)
        return known, _mean(_times(self.rest, weights), self.rest)

    def append(self, inverse):
        self.basis.append(inverse @ self.rest)

    def combine(self, coefficients):
        return coefficients @ self.basis.value, None


def _eigh(covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues and vectors (n, k), (n, k, k); zero for a trajectory that is no longer finite."""
    if not math.isfinite(float(covariance.sum())):
        good = torch.isfinite(covariance).flatten(1).all(1)
        if not good.any():
            raise Diverged
        covariance = torch.where(good[:, None, None], covariance, 0.0)
    return torch.linalg.eigh(covariance)


class Crossing:
    """D (n, r, q): sampled correlations of a basis v with the other field's noise eps where v is older, which
    are noise. Others are 0."""

    def __init__(self, count: int):
        self.value = torch.zeros(count, 0, 0, dtype=torch.float64)

    def extend(
        self, older: Field, past: torch.Tensor, eps: torch.Tensor, weights: torch.Tensor | None, sign: int
    ) -> None:
        """Noise has been drawn: `eps` (n, q, H) has new rows. `past`: x(0..t) of v's field."""
        count, rows, columns = self.value.shape
        if eps.shape[1] == columns:
            return
        grown = self.value.new_zeros(count, older.eps.count, eps.shape[1])
        grown[:, :rows, :columns] = self.value
        if older.seen:  # nothing is older than the first noise, whose columns stay 0
            half, new, past = eps.shape[2], _times(eps[:, columns:], weights), past[:, : older.seen]
            grown[:, :, columns:] = (
                older.correlate(past[:, :, :half], new) + sign * older.correlate(past[:, :, half:], new)
            ) / (2 * half)
        self.value = grown


class GaussianSites:
    """S = 2 H sampled sites of the infinitely wide network for each seed, as `dynamics.Sites`."""

    def __init__(
        self,
        task: Problem,
        samples: int,
        seeds: list[int],
        *,
        responses: bool,
        tol: float,
        share: float,
        passes: int,
        anchor: Anchor | None = None,
    ):
        self.half, self.task, self.responses, self.anchor = samples // 2, task, responses, anchor
        self.weights: torch.Tensor | None = None
        draws = [np.random.default_rng(seed) for seed in seeds]
        self.even = Noise(
            self.half, draws, share, passes, constant=True
        )  # chi, u: equal in both sites of a pair
        self.odd = Noise(self.half, draws, share, passes, constant=False)  # w0, r: opposite
        others = [np.random.default_rng(seed + 2**40) for seed in seeds]
        self.passing = Noise(self.half, others, share, passes, constant=False)  # of test points
        depth, features = int(task.depth), (task.steps + 1) * task.points
        kind = ExactField if passes > 1 else Field
        self.phi = [kind(samples, self.even, tol, features) for _ in range(depth)]
        self.g = [kind(samples, self.odd, tol, features * task.outputs) for _ in range(depth)]
        self.cross = {
            -1: [Crossing(len(seeds)) for _ in range(depth)],
            1: [Crossing(len(seeds)) for _ in range(depth)],
        }
        self.found: dict[int, list[list[torch.Tensor]]] = {
            -1: [[] for _ in range(depth)],
            1: [[] for _ in range(depth)],
        }  # responses in terms of v

        readout = self.odd.draw(task.outputs, self.odd.all.value)
        lam, vectors = torch.linalg.eigh(task.gram[: task.points, : task.points])
        keep = lam > 1e-12 * lam[-1]
        self.axes = vectors[:, keep], lam[keep].sqrt()
        self.inputs = self.even.draw(int(keep.sum()), self.even.all.value)
        start = (self.axes[0] * self.axes[1]) @ self.inputs
        self.start = torch.cat([start, start], 2)
        self.readout = torch.cat([readout, -readout], 2)

    def watch(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        self.past = {-1: features, 1: gradients[1:]}  # of x, by the sign of its response

    def settle(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        if self.anchor is None:
            return
        half = self.half
        found = [
            self.anchor.weights([x[i, :, :half] for x in features], [x[i, :, :half] for x in gradients])
            for i in range(len(self.start))
        ]
        weights = torch.stack(found)[:, None]
        self.weights = torch.cat([weights, weights], 2)
        for noise in (self.even, self.odd, self.passing):
            noise.weights = weights
        self.anchor = None

    def forward(self, layer: int, phi: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._send(
            layer, phi, self.phi[layer], self.g[layer], -1, self.anchor and self.anchor.phi[layer]
        )

    def backward(self, layer: int, g: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._send(
            layer, g, self.g[layer], self.phi[layer], +1, self.anchor and self.anchor.gradient(layer + 1)
        )

    def _send(
        self, layer: int, x: Seen, own: Field, partner: Field, sign: int, exact: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x's Gaussian partner, drawn, and the response to the noise in x: the noise of `partner`, odd in a
        pair (sign -1) for phi, even for g."""
        drawn, known = own.extend(x, self.weights, exact)
        self.cross[-sign][layer].extend(
            partner, self.past[-sign][layer], own.eps.value, self.even.weights, -sign
        )
        return self._answer(drawn, self._response(layer, x, known, partner, sign, keep=True), partner, -sign)

    def _answer(self, drawn, response, partner: Field, sign: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        field, coefficients = partner.combine(response)
        both = drawn.new_empty(*drawn.shape[:2], 2 * self.half)
        both[:, :, : self.half] = drawn
        torch.mul(drawn, sign, out=both[:, :, self.half :])
        return both if field is None else both + field, coefficients

    def _response(
        self, layer: int, x: Seen, known: torch.Tensor, partner: Field, sign: int, keep: bool
    ) -> torch.Tensor:
        """E[x eps^T] - M D over the partner's noise, so that A g = response v_g."""
        eps = partner.eps.value
        if self.responses:
            spurious = self.cross[sign][layer].value
            found = _mean(_split(x.weighted, sign), eps) / 2
            found[:, :, : spurious.shape[2]] -= known[:, :, : spurious.shape[1]] @ spurious
        else:
            found = x.value.new_zeros(*x.value.shape[:2], eps.shape[1])
        if keep:
            self.found[sign][layer].append(found)
        return found

    def kernels(self, sign: int) -> torch.Tensor:
        """A (sign -1) or B (+1) over (n, L, times of x, times of the partner)."""
        partners, size = (self.g, self.phi) if sign < 0 else (self.phi, self.g), len(self.start)
        made = [
            torch.cat([response @ partner.makeup.value[:, : response.shape[2]] for response in found], 1)
            for found, partner in zip(self.found[sign], partners[0], strict=True)
        ]
        full = self.start.new_zeros(size, len(made), partners[1][0].makeup.value.shape[2], made[0].shape[2])
        full[:, :, : made[0].shape[1]] = torch.stack(made, 1)
        return full

    # Test points: noise given all that training has drawn, new at every step, since no output depends on its
    # joint law over time.

    def test_start(self) -> torch.Tensor:
        points, (vectors, scale) = self.task.points, self.axes
        self.used: list[torch.Tensor] = []
        known = self.task.gram[points:, :points] @ vectors / scale
        left = (self.task.gram[points:, points:] - known @ known.T).expand(len(self.start), -1, -1)
        drawn = known @ self.inputs + self._unseen(left)
        return torch.cat([drawn, drawn], 2)

    def look(self, layer: int, phi: Seen) -> tuple[torch.Tensor, torch.Tensor | None]:
        own = self.phi[layer]
        known, left = own.project(phi, self.weights)
        drawn = known @ own.eps.value + self._unseen(left)
        return self._answer(
            drawn, self._response(layer, phi, known, self.g[layer], -1, keep=False), self.g[layer], +1
        )

    def _unseen(self, covariance: torch.Tensor) -> torch.Tensor:
        lam, vectors = _eigh(covariance)
        keep = lam > 1e-14 * float(torch.diagonal(self.task.gram).max())
        columns = keep.any(0)
        count = int(columns.sum())
        room = self.half - self.even.all.count - sum(rows.shape[1] for rows in self.used) >= count
        eps = self.passing.fresh(count, *([self.even.all.value, *self.used] if room else []))
        self.used.append(eps)
        root = torch.where(keep, lam, 0.0).sqrt()[:, columns]
        return (vectors[:, :, columns] * root[:, None]) @ eps
