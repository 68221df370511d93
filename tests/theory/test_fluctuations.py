"""Sigma_L at the start against closed forms, networks of finite width, and its own limit in depth."""

import math

import numpy as np
import pytest
import torch

from trimtab.errors import InputError
from trimtab.theory import fluctuate, lazy, simulate
from trimtab.theory.finite import init_fluctuation


@pytest.mark.parametrize("depth", [1, 4, 16, 64, math.inf])
def test_linear_networks_have_their_closed_form(depth):
    """And forward and backward are each other's mirror image: G^1 fluctuates as H^{L+1}."""
    found = fluctuate(depth=depth, activation="linear", size=1.7)
    for variance, mean in (
        (found.stream[-1], found.mean_stream[-1]),
        (found.phi[-1], found.mean_phi[-1]),
        (found.g[0], found.mean_g[0]),
    ):
        assert variance / mean**2 == pytest.approx(
            init_fluctuation(depth), rel=1e-9 if depth < math.inf else 1e-5
        )


def test_one_branch_by_hand():
    """ReLU, L = 1: Phi^1 has N var = E[relu^4] - 1/4 = 5/4; h^2 gets its Phi^1, N Var H^2 = 2 q^2 + Var Phi^1
    + 2 Cov(h^2, Phi^1) with q = 3/2."""
    found = fluctuate(depth=1, activation="relu")
    assert found.phi[0] == pytest.approx(1.5 - 0.25, rel=1e-9)
    own = 2 * 1.5**2  # Var of h^2 over sites
    cross = (
        1.5 + 0.5 * 0.5
    ) - 1.5 * 0.5  # E[(h^2)^2 relu^2(h^1)] = E[h1^2 relu^2] + Phi E[relu^2], less the means
    assert found.stream[1] == pytest.approx(own + 2 * cross + 1.25, rel=1e-9)


def test_relu_saturates_in_depth():
    """docs/theory.md, "Numbers to reproduce": near 4.7, and bounded at any depth."""
    ratio = [
        found.stream[-1] / found.mean_stream[-1] ** 2
        for found in (fluctuate(depth=depth, activation="relu") for depth in (1, 4, 16, 64, math.inf))
    ]
    assert ratio == sorted(ratio) and ratio[-1] == pytest.approx(4.675, abs=0.001)
    assert 64 * (ratio[-1] - ratio[-2]) == pytest.approx(
        16 * (ratio[-1] - ratio[-3]), rel=0.1
    )  # Sigma_L -> Sigma_inf as 1/L


@pytest.mark.parametrize("activation", ["relu", "erf", torch.sin])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_means_are_the_lazy_kernels(activation, alpha):
    case = {"depth": 3, "activation": activation, "alpha": alpha, "beta": 1.3}
    found, kernels = fluctuate(size=0.7, **case), lazy([[math.sqrt(0.7)]], **case)
    np.testing.assert_allclose(found.mean_phi, kernels.phi[:, 0, 0], rtol=1e-8)
    np.testing.assert_allclose(found.mean_g, kernels.g[:, 0, 0], rtol=1e-8)
    assert found.mean_ntk == pytest.approx(kernels.ntk[0, 0], rel=1e-8)


@pytest.mark.parametrize(
    ("activation", "alpha"),
    [
        ("relu", 0.5),
        pytest.param("tanh", 0.5, marks=pytest.mark.slow),
        pytest.param("erf", 1.0, marks=pytest.mark.slow),
        pytest.param(torch.sin, 0.5, marks=pytest.mark.slow),
    ],
)
def test_networks_scatter_as_said(activation, alpha):
    """Phi, G of every layer, the NTK, and f while training lazily. A variance of n draws is known to
    sqrt(2/n), a little more for their skew; N = 500."""
    networks, case = 2000, {"depth": 3, "activation": activation, "alpha": alpha}
    found = fluctuate(**case)
    rate = 0.5 / found.mean_ntk
    nets = simulate(
        [[1.0]], [1.0], width=500, seeds=networks, lr=rate, steps=4, gamma0=1e-3, matrices=False, **case
    )
    room = 4 * math.sqrt(2.5 / networks)
    assert nets.variance.phi[:, 0, 0, 0, 0] == pytest.approx(found.phi, rel=room)
    assert nets.variance.g[:, 0, 0, 0, 0] == pytest.approx(found.g, rel=room)
    assert nets.variance.ntk[0, 0, 0] == pytest.approx(found.ntk, rel=room)
    assert nets.variance.f[1:, 0] == pytest.approx(found.train(1.0, lr=rate, steps=4)[1:], rel=room)


def test_bad_input():
    for size in (0, -1.0, math.nan, "a"):
        with pytest.raises(InputError, match="size"):
            fluctuate(depth=1, activation="relu", size=size)


def test_one_branch_by_brute_force():
    """tanh, L = 1: sites on a product grid of all four of their Gaussians, kappa from the grid, J by
    differences of its averages."""
    size, b = 0.6, 1.4
    fine, few = (np.polynomial.hermite_e.hermegauss(nodes) for nodes in (80, 5))
    a, z, w, r = (axis.reshape(-1) for axis in np.meshgrid(fine[0], fine[0], few[0], few[0], indexing="ij"))
    weight = np.einsum("i,j,k,l->ijkl", fine[1], fine[1], few[1], few[1]).reshape(-1) / (2 * math.pi) ** 2

    def site(phi1: float, g2: float) -> np.ndarray:
        """phi^2 of both layers, g^2 of the second and of the first."""
        h1 = math.sqrt(size) * a
        h2 = h1 + b * math.sqrt(phi1) * z
        top = w / np.cosh(h2) ** 2
        return np.stack(
            [
                np.tanh(h1) ** 2,
                np.tanh(h2) ** 2,
                top**2,
                (top + b * math.sqrt(g2) * r / np.cosh(h1) ** 2) ** 2,
            ]
        )

    phi1 = site(1.0, 1.0)[0] @ weight
    g2 = site(phi1, 1.0)[2] @ weight
    values = site(phi1, g2)
    mean = values @ weight
    kappa = (values * weight) @ values.T - np.outer(mean, mean)
    step, move = np.zeros((4, 4)), 1e-4
    step[:, 0] = (site(phi1 + move, g2) - site(phi1 - move, g2)) @ weight / (2 * move)
    step[:, 2] = (site(phi1, g2 + move) - site(phi1, g2 - move)) @ weight / (2 * move)
    solved = np.linalg.inv(np.eye(4) - step)
    covariance = solved @ kappa @ solved.T
    ntk = np.array([b**2 * g2, 1.0, b**2 * phi1, size])
    found = fluctuate(depth=1, activation="tanh", size=size, beta=b)
    assert [*found.phi, *found.g[::-1]] == pytest.approx(np.diag(covariance), rel=1e-6)
    assert found.ntk == pytest.approx(ntk @ covariance @ ntk, rel=1e-6)
