import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.theory import lazy, linear

ONE = np.ones((1, 4))  # |x|^2 = D


@pytest.mark.parametrize("depth", [1, 2, 7, 64])
def test_closed_forms_at_finite_depth(depth):
    e, half = 1 + 1 / depth, 1 + 0.5 / depth
    assert lazy(ONE, depth=depth, activation="linear").ntk[0, 0] == pytest.approx(
        2 * e**depth + e ** (depth - 1), rel=1e-12
    )
    assert lazy(ONE, depth=depth, activation="relu").ntk[0, 0] == pytest.approx(
        half**depth + half ** (depth - 1) / 4, rel=1e-12
    )


def test_closed_forms_at_infinite_depth():
    assert lazy(ONE, depth=math.inf, activation="linear").ntk[0, 0] == pytest.approx(3 * math.e, rel=1e-8)
    assert lazy(ONE, depth=math.inf, activation="relu").ntk[0, 0] == pytest.approx(
        1.25 * math.exp(0.5), rel=1e-8
    )
    assert lazy(ONE, depth=math.inf, activation="relu").nngp[0, 0] == pytest.approx(
        math.exp(0.5) / 2, rel=1e-8
    )


def test_against_neural_tangents():
    """Kernels computed by neural-tangents 0.6.5 on jax 0.4.30 with experiments/theory_neural_tangents.py."""
    found = np.load(Path(__file__).with_name("neural_tangents.npz"))
    assert found["versions"].tolist() == ["0.6.5", "0.4.30"]
    x = np.random.default_rng(0).standard_normal((5, 7))
    for activation in ("relu", "erf"):
        for depth in (1, 3, 10):
            ours = lazy(x, depth=depth, activation=activation)
            for name in ("nngp", "ntk"):
                np.testing.assert_allclose(
                    getattr(ours, name), found[f"{activation} {depth} {name}"], rtol=1e-12
                )


@pytest.mark.parametrize(("activation", "constant"), [("linear", 0.83), ("relu", 0.225), ("tanh", 0.08)])
def test_depth_error_is_first_order(activation, constant):
    """L x relative error of K tends to a constant: 5/6 for the linear network by expansion of its closed
    form."""
    limit = lazy(ONE, depth=math.inf, activation=activation).ntk[0, 0]
    scaled = [
        depth * (1 - lazy(ONE, depth=depth, activation=activation).ntk[0, 0] / limit)
        for depth in (32, 64, 128)
    ]
    assert scaled[-1] == pytest.approx(constant, rel=0.02)
    first, second = np.diff(scaled)
    assert second / first == pytest.approx(0.5, abs=0.1)  # and what is left halves: the next order is L^-2


def test_layer_time_profile(x):
    """phi and g over tau are those of a deep network."""
    deep, limit = lazy(x, depth=512, activation="erf"), lazy(x, depth=math.inf, activation="erf")
    np.testing.assert_allclose(deep.phi[::8], limit.phi, rtol=5e-3)
    np.testing.assert_allclose(deep.g[::8], limit.g, rtol=5e-3)
    assert limit.tau[0] == 0 and limit.tau[-1] == 1


@pytest.mark.parametrize("alpha", [0.75, 1.0, 1.5])
def test_branches_vanish_beyond_one_half(x, alpha):
    limit = lazy(x, depth=math.inf, activation="relu", alpha=alpha)
    errors = [
        np.abs(lazy(x, depth=d, activation="relu", alpha=alpha).ntk - limit.ntk).max() for d in (64, 256)
    ]
    assert errors[0] / errors[1] == pytest.approx(
        4 ** (2 * alpha - 1), rel=0.1
    )  # what is left is their variance L^{1 - 2 alpha}


def test_training_is_exponential_in_the_kernel(x, y):
    kernels = lazy(x, depth=3, activation="tanh")
    f = kernels.train(y, lr=0.2, steps=20)
    values, vectors = np.linalg.eigh(kernels.ntk)
    exact = [vectors @ ((1 - (1 - 0.2 * values / 3) ** t) * (vectors.T @ y)) for t in range(21)]
    np.testing.assert_allclose(f, exact, atol=1e-13)


def test_the_lazy_limit_is_approached_as_gamma0_squared(x, y):
    f = lazy(x, depth=3, activation="linear").train(y, lr=0.1, steps=10, momentum=0.5)
    errors = [
        np.abs(linear(x, y, depth=3, lr=0.1, steps=10, momentum=0.5, gamma0=g).f - f).max()
        for g in (0.1, 0.05)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
