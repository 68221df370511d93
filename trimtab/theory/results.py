r"""What every solver returns: the trajectory in function space and the kernels behind it.

    f(t) (T+1, P[, C])   Phi^l(t,s), G^l(t,s) (L+1, T+1, T+1, P, P)
    K(t) = Phi^{L+1} + b^2 rho sum_l G^{l+1} Phi^l + G^1 K^x

(docs/theory.md, equation (27)). K carries the block rate rho = L^{2 alpha - 1}, so that to first
order f(t+1) - f(t) = (eta_0 / P) K(t) Delta(t) at every alpha.
With several outputs G and K are averaged over them (the mean of the C diagonal blocks), so shapes never
change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch

from trimtab.theory.losses import mean_loss
from trimtab.theory.problem import Problem


@dataclass(frozen=True)
class Stderr:
    """Standard errors, shaped like the fields they belong to. `np.asarray` of it is that of f."""

    f: np.ndarray
    loss: np.ndarray
    ntk: np.ndarray
    f_test: np.ndarray | None = None

    def __getitem__(self, name: str) -> np.ndarray | None:
        return getattr(self, name)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self.f, dtype=dtype)


@dataclass(frozen=True)
class Trajectory:
    """One training run of the limit, or of an ensemble of finite networks.

    `tau` = (l - 1)/L is the layer time of `phi[l - 1]` and `g[l - 1]`. `diverged` is the first step whose
    output is not a number any more (None: never); from there on all fields are nan and `loss` is inf.
    `depth_error` estimates what the extrapolation to infinite depth leaves (None at finite depth). `variance`
    (ensembles only) holds N x variance over seeds. `a`, `b` (L, T+1, T+1, P, P) are the responses A^l(t,s), s
    < t, and B^l(t,s), s <= t, of the limit with one output; times L^1/2, which is what has a limit, at
    infinite depth. Where fields of different times coincide only their sum over s means anything.
    """

    f: np.ndarray
    loss: np.ndarray
    phi: np.ndarray
    g: np.ndarray
    ntk: np.ndarray
    f_test: np.ndarray | None
    stderr: Stderr
    tau: np.ndarray
    diverged: int | None = None
    samples: int = 0
    depth_error: Stderr | None = None
    variance: Trajectory | None = None
    a: np.ndarray | None = None
    b: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.diverged is not None:
            self.loss[self.diverged :] = math.inf

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{field.name} {getattr(self, field.name).shape}"
            for field in fields(self)
            if isinstance(getattr(self, field.name), np.ndarray)
        )
        return f"Trajectory({shapes})"


def tangent_kernel(phi: torch.Tensor, g: torch.Tensor, problem: Problem) -> torch.Tensor:
    """K(t) (T+1, P, P) from the kernels (L+1, T+1, T+1, P, P)."""
    phi, g = (torch.einsum("lttmn->ltmn", k) for k in (phi, g))
    gram = problem.gram[: problem.points, : problem.points]
    blocks = problem.branch**2 * problem.block_rate * (g[1:] * phi[:-1]).sum(0)
    return phi[-1] + blocks + g[0] * gram


def unflatten(kernel: torch.Tensor, points: int) -> torch.Tensor:
    """(..., (T+1) P, (T+1) P) -> (..., T+1, T+1, P, P)."""
    times = kernel.shape[-1] // points
    return kernel.reshape(*kernel.shape[:-2], times, points, times, points).transpose(-3, -2)


def public_fields(task: Problem, f, phi, g) -> dict[str, np.ndarray | None]:
    """The public fields of one trajectory of the dynamics."""
    phi, g = unflatten(phi, task.points), unflatten(g, task.points)
    train, test = f[:, : task.points], f[:, task.points :]
    loss = mean_loss(task.loss, train, task.y)
    if task.single:
        train, test = train[..., 0], test[..., 0]
    found = {
        "f": train,
        "loss": loss,
        "phi": phi,
        "g": g,
        "ntk": tangent_kernel(phi, g, task),
        "f_test": test if task.tests else None,
    }
    return {name: None if value is None else value.numpy() for name, value in found.items()}


class Moments:
    """Mean and (if `spread`) variance over runs, one at a time (Welford), so that no ensemble of kernels is
    ever held."""

    def __init__(self, *, spread: bool = True):
        self.count = 0
        self._mean: np.ndarray | None = None
        self._spread: np.ndarray | None = np.zeros(()) if spread else None

    def add(self, value: np.ndarray) -> None:
        self.count += 1
        if self._mean is None:
            self._mean, self._spread = value.copy(), None if self._spread is None else np.zeros_like(value)
            return
        step = value - self._mean
        self._mean += step / self.count
        if self._spread is not None:
            self._spread += step * (value - self._mean)

    @property
    def mean(self) -> np.ndarray:
        assert self._mean is not None  # of at least one run
        return self._mean

    @property
    def variance(self) -> np.ndarray:
        assert self._spread is not None  # asked for at the start
        return self._spread / (self.count - 1) if self.count > 1 else np.full_like(self._spread, np.nan)


def responses_of(task: Problem, a: torch.Tensor, b: torch.Tensor, end: int) -> dict[str, np.ndarray | None]:
    """A, B from (L, (T+1) P, (T+1) P); undefined for several outputs, whose responses have no average."""
    if task.outputs > 1:
        return {"a": None, "b": None}
    found = {}
    for name, kernel in (("a", a), ("b", b)):
        kernel = kernel.clone()
        kernel[:, end * task.points :] = kernel[:, :, end * task.points :] = math.nan
        found[name] = unflatten(kernel, task.points).numpy()
    return found
