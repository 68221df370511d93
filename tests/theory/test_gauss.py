import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad

from trimtab.errors import InputError
from trimtab.theory.activations import activation
from trimtab.theory.gauss import kernel, pair

# plain callables are unknown by name, so these go through quadrature
TWINS = {
    "relu": lambda h: h.clamp_min(0),
    "erf": lambda h: torch.erf(h),
    "gelu": lambda h: torch.nn.functional.gelu(h),
    "linear": lambda h: 1 * h,
}


def tensor(*values):
    return [torch.tensor(float(v), dtype=torch.float64) for v in values]


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=25, deadline=None)
@given(q1=st.floats(0.01, 9), q2=st.floats(0.01, 9), rho=st.floats(-1, 1))
@example(q1=1.0, q2=1.0, rho=0.99999)
@example(q1=1.0, q2=0.3, rho=-0.9999999)
def test_closed_forms_are_the_integrals(name, q1, q2, rho):
    arguments = tensor(q1, q2, rho * math.sqrt(q1 * q2))
    for closed, numeric in zip(pair(name, *arguments), pair(TWINS[name], *arguments), strict=True):
        # 1 - rho^2 loses half the digits near rho = 1: sqrt(eps) of the slope there
        assert abs(float(closed - numeric)) < 3e-8 * (1 + q1 + q2)


def test_quadrature_against_scipy():
    q1, q2, c = 0.8, 1.7, 0.6
    inverse = np.linalg.inv([[q1, c], [c, q2]])
    norm = 1 / (2 * math.pi * math.sqrt(q1 * q2 - c * c))

    def density(b, a):
        v = np.array([a, b])
        return norm * math.exp(-v @ inverse @ v / 2)

    value = dblquad(lambda b, a: math.tanh(a) * math.tanh(b) * density(b, a), -8, 8, -9, 9, epsabs=1e-10)[0]
    slope = dblquad(
        lambda b, a: (1 - math.tanh(a) ** 2) * (1 - math.tanh(b) ** 2) * density(b, a),
        -8,
        8,
        -9,
        9,
        epsabs=1e-10,
    )[0]
    found = pair("tanh", *tensor(q1, q2, c))
    assert [float(v) for v in found] == pytest.approx([value, slope], abs=1e-9)


def test_kinks_off_the_closed_forms():
    """leaky relu = .9 relu + .1 identity, whose cross term is E[relu(a) b] = c/2."""
    q1, q2, c = tensor(1.3, 0.7, -0.4)
    value, slope = pair(lambda h: torch.where(h > 0, h, 0.1 * h), q1, q2, c)
    relu, relu_slope = pair("relu", q1, q2, c)
    assert float(value - (0.81 * relu + 0.09 * c + 0.01 * c)) == pytest.approx(0, abs=1e-13)
    assert float(slope - (0.81 * relu_slope + 0.09 + 0.01)) == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("name", ["relu", "erf", "gelu", "tanh", "linear"])
def test_price_and_differentiability(name):
    """dPhi/dc = Phidot, by autograd through whatever was used; finite also for two equal points."""
    for q1, q2, c in ((1.2, 0.7, 0.3), (0.9, 0.9, 0.9)):
        arguments = [v.requires_grad_() for v in tensor(q1, q2, c)]
        value, slope = pair(name, *arguments)
        gradients = torch.autograd.grad(value, arguments)
        assert all(torch.isfinite(g) for g in gradients)
        if name == "tanh" and q1 == c:
            continue  # quadrature cannot see c beyond sqrt(q1 q2): only one-sided there
        assert float(gradients[2]) == pytest.approx(float(slope.detach()), rel=1e-6)
        step = 1e-6
        up, down = (
            pair(name, *tensor(q1 + s, q2, min(c, math.sqrt((q1 + s) * q2))))[0] for s in (step, -step)
        )
        if q1 != c:
            assert float(gradients[0]) == pytest.approx(float(up - down) / (2 * step), abs=1e-7)


def test_kernel_is_symmetric_positive():
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in ("relu", "erf", "tanh", "gelu"):
        for matrix in kernel(name, x @ x.T / 9):
            assert torch.equal(matrix, matrix.T)
            assert torch.linalg.eigvalsh(matrix)[0] > -1e-12


def test_activations_that_cannot_be_used():
    for bad, words in (
        ("swishy", "one of relu"),
        (3, "callable"),
        (lambda h: h.sum(), "each element"),
        (lambda h: h.numpy(), "torch functions"),
    ):
        with pytest.raises(InputError, match=words):
            activation(bad)
