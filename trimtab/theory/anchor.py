r"""What is known exactly at the start, and site weights that make the samples agree with it.

At t = 0 the kernels are those of the lazy limit, so the fields are drawn with the exact Phi^l(0,0) and
G^l(0,0) instead of sampled ones, and no noise passes from layer to layer. Afterwards the sites get weights p
(mean 1) for which the weighted averages *are* these kernels:

    p_i = exp(lambda . z_i),  lambda such that E_p[z] = exact,
    z = the products phi_mu phi_nu and g_mu g_nu of each layer

(docs/theory.md, equation (35))
the weights of largest entropy with that property, positive whatever the sample (exponential tilting). Later
kernels are correlated with the first ones, and averages with p remove that part of their noise: none is left
as gamma_0 -> 0. One row of z costs about one site in degrees of freedom, so it is used only where rows are
few.
"""

from __future__ import annotations

import math

import torch

from trimtab.theory.gauss import kernel
from trimtab.theory.problem import Problem

_ROWS_PER_SITE = 0.15


class Unreachable(Exception):
    """No positive weights bring the sampled averages to the exact ones: the sample is too small."""


class Anchor:
    """Exact kernels at initialisation: `phi`, `g`, lists of (P, P) over the L + 1 layers."""

    def __init__(self, task: Problem):
        square, h = task.branch**2, task.gram[: task.points, : task.points]
        self.outputs, self.phi, slopes = task.outputs, [], []
        for _ in range(int(task.depth) + 1):
            value, slope = kernel(task.activation, h)
            self.phi.append(value)
            slopes.append(slope)
            h = h + square * value
        self.g = [slopes[-1]]
        for slope in reversed(slopes[:-1]):
            self.g.insert(0, self.g[0] * (1 + square * slope))

    @staticmethod
    def fits(task: Problem, half: int) -> bool:
        """Whether `half` independent sites can carry the constraints. Several outputs would need C^2 times as
        many."""
        rows = (int(task.depth) + 1) * task.points * (task.points + 1)
        return task.outputs == 1 and rows <= _ROWS_PER_SITE * half

    def gradient(self, layer: int) -> torch.Tensor:
        """E[g g^T] over (point, output); outputs are independent at the start."""
        return torch.kron(self.g[layer], torch.eye(self.outputs, dtype=torch.float64))

    def weights(self, features: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        """p (H,) from phi(h^l(0)) (P, H) and g^l(0) (P C, H) of all layers."""
        upper = torch.triu_indices(len(features[0]), len(features[0]))
        rows, targets = [], []
        for phi, g, exact_phi, exact_g in zip(features, gradients, self.phi, self.g, strict=True):
            g = g.reshape(len(phi), self.outputs, -1)
            rows += [phi[upper[0]] * phi[upper[1]], (g[upper[0]] * g[upper[1]]).mean(1)]
            targets += [exact_phi[upper[0], upper[1]], exact_g[upper[0], upper[1]]]
        return _tilt(torch.cat(rows), torch.cat(targets))


def _tilt(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """p = exp(lambda . z) with E_p[z] = target, by Newton's method on the convex dual log E[exp(lambda . (z -
    target))]."""
    z = z - target[:, None]
    z = z / z.square().mean(1, keepdim=True).sqrt().clamp_min(1e-300)
    lam, vectors = torch.linalg.eigh(z @ z.T / z.shape[1])
    keep = lam > 1e-10 * lam[-1]  # products repeat each other where points do
    z = (vectors[:, keep] / lam[keep].sqrt()).T @ z
    tilt, value = torch.zeros(len(z), dtype=torch.float64), 0.0
    for _ in range(40):
        p = torch.softmax(tilt @ z, 0)
        mean = z @ p
        if float(mean.abs().max()) < 1e-12:
            return p * len(p)
        try:
            step = torch.linalg.solve((z * p) @ z.T - torch.outer(mean, mean), mean)
        except torch.linalg.LinAlgError as singular:  # a product that is the same at all sites, and wrong
            raise Unreachable from singular
        size, after = 1.0, math.inf
        while size > 1e-3:
            after = float(torch.logsumexp((tilt - size * step) @ z, 0)) - math.log(z.shape[1])
            if after <= value + 1e-14:
                break
            size /= 2
        tilt, value = tilt - size * step, after
    raise Unreachable
