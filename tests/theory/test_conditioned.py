"""Networks without matrices: exactly the network where the matrix is asked, exactly its law where it is
not."""

import math

import numpy as np
import pytest
import torch

from trimtab.theory import simulate
from trimtab.theory.conditioned import Conditioned
from trimtab.theory.dynamics import train
from trimtab.theory.finite import Networks
from trimtab.theory.problem import problem

CASES = {
    "tanh": {},
    "relu, test points": {"activation": "relu", "x_test": np.eye(10)[:2]},
    "equal and zero points": {"x": np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]), "activation": "relu"},
    "two outputs, L2, momentum": {
        "y": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
        "weight_decay": 0.3,
        "momentum": 0.5,
    },
    "more vectors than sites": {"width": 12},
}


@pytest.mark.parametrize("name", CASES)
def test_a_matrix_is_what_it_does_to_the_vectors_it_meets(name, x, y):
    """Fresh noise taken from real matrices: every image that is not fresh comes from the bookkeeping, and the
    network is the network."""
    case = {"x": x, "y": y, "depth": 3, "activation": "tanh", "lr": 0.3, "steps": 8, "width": 60} | CASES[
        name
    ]
    width, data = case.pop("width"), (case.pop("x"), case.pop("y"))
    task = problem(*data, **case)
    real, made = Networks(task, width, [0, 1], torch.float64), Conditioned(task, width, [5, 6])
    made.start, made.readout, made._test_start = real.start, real.readout, real._test_start

    def asked(layer, forward, direction):
        matrix = real.hidden[:, layer]
        return direction @ (matrix.mT if forward else matrix) / math.sqrt(width)

    made.fresh = asked
    expected, found = train(task, real), train(task, made)
    for field in ("f", "phi", "g"):
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), atol=1e-9)


def test_the_law_is_that_of_networks_with_matrices(x, y):
    """N = 24, far from any limit: means and variances over 3000 networks of each kind agree in f, NTK, Phi
    and G."""
    case = {"width": 24, "seeds": 3000, "depth": 2, "activation": "tanh", "lr": 0.4, "steps": 5}
    real, made = simulate(x, y, **case), simulate(x, y, matrices=False, **case | {"seed": 10**6})
    for field in ("f", "ntk"):
        a, b = getattr(real, field)[1:], getattr(made, field)[1:]
        z = (a - b) / np.hypot(real.stderr[field][1:], made.stderr[field][1:])
        assert np.sqrt(np.mean(z**2)) < 2.2 and np.abs(z).max() < 4.5, field
    for field in ("f", "ntk", "phi", "g"):
        a, b = (getattr(run.variance, field) for run in (real, made))
        moving = a > 1e-3 * a.max()
        # a variance of n draws of kurtosis up to 6 or so is known to sqrt(5/n), and all entries of a field
        # move together
        assert abs(np.log(a[moving] / b[moving]).mean()) < 4 * math.sqrt(2 * 5 / 3000), field


def test_a_matrix_forgotten_is_another_law(x, y):
    """The twin of the test above sees it if images do not know what the other side has told: the response is
    then missing."""
    case = {"depth": 2, "activation": "tanh", "lr": 0.4, "steps": 8}
    task = problem(x, y, **case)
    bare = Conditioned(task, 4000, [0, 1, 2, 3])
    send = bare._send
    bare._send = lambda layer, x, own, other, forward: send(
        layer, x, own, type(own)(len(x), x.shape[2]), forward
    )
    without, whole = (
        train(task, bare).f.mean(0).numpy(),
        simulate(x, y, width=4000, seeds=4, matrices=False, **case),
    )
    assert np.linalg.norm(without[..., 0] - whole.f) > 10 * np.linalg.norm(whole.stderr.f)


def test_wide_networks_come_to_the_limit(x, y):
    """N = 40 000, four networks: f within four standard errors of the solver's, .3 % and all."""
    from trimtab.theory import solve

    case = {"depth": 2, "activation": "relu", "lr": 0.4, "steps": 6}
    nets, limit = (
        simulate(x, y, width=40000, seeds=4, matrices=False, **case),
        solve(x, y, samples=32000, **case),
    )
    error = np.linalg.norm(np.hypot(nets.stderr.f, limit.stderr.f))
    assert np.linalg.norm(nets.f - limit.f) < 3 * error < 0.03 * np.linalg.norm(limit.f)


def test_divergence_is_a_result_and_harms_no_neighbour(x, y):
    found = simulate(x, y, width=20, seeds=2, depth=2, activation="linear", lr=50.0, steps=30, matrices=False)
    assert (
        found.diverged is not None
        and np.isinf(found.loss[found.diverged :]).all()
        and np.isfinite(found.loss[: found.diverged]).all()
    )
    assert np.isfinite(
        simulate(x, y, width=1, seeds=3, depth=2, activation="tanh", lr=0.1, steps=3, matrices=False).f
    ).all()
    case = {"width": 20, "depth": 2, "activation": "linear", "lr": 0.8, "steps": 20, "matrices": False}
    each = [simulate(x, y, seeds=[seed], **case) for seed in range(8)]
    ends = [alone.diverged for alone in each]
    assert any(end is None for end in ends) and any(end is not None for end in ends)
    task = problem(x, y, **{name: value for name, value in case.items() if name not in ("width", "matrices")})
    together = train(task, Conditioned(task, 20, list(range(8))))
    for i, alone in enumerate(each):
        if alone.diverged is None:
            np.testing.assert_allclose(together.f[i, :, :, 0], alone.f, atol=1e-8)
