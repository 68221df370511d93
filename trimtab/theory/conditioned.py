r"""A finite network without its matrices: only what they do to the vectors they meet is ever drawn. The same
law, at any width.

Training multiplies a Gaussian matrix W (N x N) by few vectors, forward by phi(h(t)) and backward by g(t), and
each product tells something about W. Given all it has told, what is left is Gaussian again (Bolthausen 2014;
docs/theory.md, equation (31)). With orthonormal bases v of the phi and c of the g seen (v v^T = c c^T = N)
and their images U = N^-1/2 W v, Z = N^-1/2 W^T c, a new direction v' orthogonal to v has the image

    N^-1/2 W v' = c^T (Z v' / N) + (1 - c^T c / N) eps,         eps ~ N(0, 1) at each of the N sites

the first because c W v' is already known from the other side, and the same with the roles exchanged. No
approximation is made: kernels, outputs and their fluctuations have the law of `finite.Networks` at every N,
for O(N (T P)^2) instead of O(N^2 T P) per layer. As N -> inf the first term becomes the response A g, and eps
the field u of the limit (`fields`): this is the mean field theory before its limit.
"""

from __future__ import annotations

import math

import torch

from trimtab.theory.dynamics import Seen
from trimtab.theory.fields import Rows
from trimtab.theory.problem import Problem

# smallest new direction, relative to the largest of its step and to 1e-10 of the field: less is rounding
_TINY = 1e-13


class Side:
    """What one side of a matrix has met: an orthonormal basis (n, r, N) and its images under N^-1/2 W or its
    transpose."""

    def __init__(self, count: int, width: int):
        self.basis, self.image = Rows(count, width), Rows(count, width)


class Conditioned:
    """One network per seed, as `dynamics.Sites`."""

    weights: torch.Tensor | None = None

    def __init__(self, task: Problem, width: int, seeds: list[int]):
        self.draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        inputs, depth, count = task.inputs.shape[1], int(task.depth), len(seeds)
        first, self.readout = self._normal(width, inputs), self._normal(task.outputs, width)
        start = task.inputs @ first.transpose(1, 2) / math.sqrt(inputs)
        self.start, self._test_start = start[:, : task.points], start[:, task.points :]
        self.phi = [Side(count, width) for _ in range(depth)]
        self.g = [Side(count, width) for _ in range(depth)]

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.stack([torch.randn(*shape, generator=draw, dtype=torch.float64) for draw in self.draws])

    def fresh(self, layer: int, forward: bool, direction: torch.Tensor) -> torch.Tensor:
        """What an unseen matrix of this layer would make of a direction (n, k, N) of length N^1/2."""
        return self._normal(*direction.shape[1:])

    def forward(self, layer: int, phi: Seen) -> tuple[torch.Tensor, None]:
        return self._send(layer, phi.value, self.phi[layer], self.g[layer], True), None

    look = forward  # a test point tells something about W too, and changes nothing in law

    def backward(self, layer: int, g: Seen) -> tuple[torch.Tensor, None]:
        return self._send(layer, g.value, self.g[layer], self.phi[layer], False), None

    def test_start(self) -> torch.Tensor:
        return self._test_start

    def watch(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        pass

    settle = watch

    def _send(self, layer: int, x: torch.Tensor, own: Side, other: Side, forward: bool) -> torch.Tensor:
        width = x.shape[2]
        known, rest = self._split(x, own.basis.value)
        scale = x.square().sum((1, 2), keepdim=True).clamp_min(1e-300)
        lam, vectors = torch.linalg.eigh(torch.nan_to_num(rest @ rest.mT / width, 0.0, 0.0, 0.0))
        keep = lam > _TINY * torch.maximum(lam[:, -1:], 1e-10 * scale[:, :, 0] / width)
        root = torch.where(keep, lam, 0.0).clamp_min(0.0).sqrt()
        new = (vectors * torch.where(keep, 1 / root, 0.0)[:, None]).mT @ rest
        new = self._split(new, own.basis.value)[1]  # rounding, magnified
        along = new @ other.image.value.mT / width
        eps = self.fresh(layer, forward, new) * keep[:, :, None]
        image = along @ other.basis.value + self._split(eps, other.basis.value)[1]
        sent = known @ own.image.value + (vectors * root[:, None]) @ image
        own.basis.append(new)
        own.image.append(image)
        return sent

    @staticmethod
    def _split(x: torch.Tensor, basis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x = M basis + rest, in two passes."""
        known = x @ basis.mT / x.shape[2]
        rest = torch.baddbmm(x, known, basis, alpha=-1)
        again = rest @ basis.mT / x.shape[2]
        return known + again, torch.baddbmm(rest, again, basis, alpha=-1)
