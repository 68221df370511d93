import functools

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.theory import lazy, linear, simulate, solve, sweep_rates
from trimtab.theory.dmft import solve_rates

RATES = 2.0 ** np.arange(-5, 3)


def test_lazy_edge_and_best_rate_are_known(x, y):
    """gamma_0 -> 0: edge and optimum are those of the frozen kernel on a fine grid, the optimum within the
    coarse spacing, because it lies beside the edge, where no parabola fits."""
    kernels = lazy(x, depth=2, activation="linear")
    top = 2 * 3 / np.linalg.eigvalsh(kernels.ntk)[-1]
    fine = top * 2.0 ** np.linspace(-4, 0.5, 900)
    loss = np.array([np.square(kernels.train(y, lr=rate, steps=30)[-1] - y).sum() for rate in fine])
    edge, best = fine[np.argmax(loss >= np.square(y).sum())], fine[np.argmin(loss)]
    assert top < edge < 1.1 * top
    found = sweep_rates(
        x,
        y,
        rates=top * 2.0 ** (np.arange(-9, 3) / 2 + 0.1),
        depth=2,
        solver=linear,
        steps=30,
        gamma0=1e-3,
        refine=8,
    )
    assert (
        found.edge[0] < 1.005 * edge and found.edge[1] > 0.995 * edge and found.edge[1] / found.edge[0] < 1.01
    )
    assert abs(np.log2(found.best / best)) < 0.5


def test_finite_networks_share_the_optimum(x, y):
    case = {"rates": RATES, "depth": 3, "activation": "tanh", "steps": 8, "refine": 0}
    limit = sweep_rates(x, y, samples=4000, **case)
    nets = sweep_rates(x, y, solver=functools.partial(simulate, width=300, seeds=8), **case)
    assert limit.loss.shape == (8, 9) and limit.final.shape == (8,)
    assert abs(np.log2(limit.best / nets.best)) < 3 * np.hypot(limit.best_stderr, nets.best_stderr) + 0.1


def test_bad_rates(x, y):
    for rates in ([0.1], [0.1, 0.2, -1.0]):
        with pytest.raises(InputError, match="three different positive rates"):
            sweep_rates(x, y, rates=rates, depth=1, activation="tanh", steps=2)
    with pytest.raises(InputError, match="is what is swept"):
        sweep_rates(x, y, rates=RATES, lr=0.1, depth=1, activation="tanh", steps=2)


def test_rates_side_by_side_are_rates_one_by_one(x, y):
    """Within their error bars where noise is spent differently, to rounding in the exact linear network; a
    neighbour that diverges does no harm."""
    case = {"depth": 2, "activation": "tanh", "steps": 6, "samples": 2000}
    rates = [0.1, 0.4, 300.0]
    slow, fast, wild = solve_rates(x, y, rates=rates, **case)
    for rate, found in zip(rates, (slow, fast), strict=False):
        alone = solve(x, y, lr=rate, **case)
        assert found.diverged is None and np.linalg.norm(found.f - alone.f) < 2 * np.linalg.norm(
            np.hypot(found.stderr.f, alone.stderr.f)
        )
    assert not wild.loss[-1] < wild.loss[0]
    exact = solve_rates(x, y, rates=[0.05, 0.1, 50.0], **case | {"activation": "linear"})
    np.testing.assert_allclose(exact[1].f, linear(x, y, lr=0.1, depth=2, steps=6).f, atol=1e-9)
    assert (
        exact[2].diverged is not None
        and exact[2].diverged == linear(x, y, lr=50.0, depth=2, steps=6).diverged
    )


def test_rates_with_decay_and_schedules(x, y):
    """d(t) then differs between trajectories."""
    case = {"depth": 2, "activation": "linear", "steps": 6, "momentum": 0.5, "weight_decay": 0.3}
    rates = [0.02, np.linspace(0.1, 0.0, 6)]
    for rate, found in zip(rates, solve_rates(x, y, rates=rates, **case), strict=True):
        np.testing.assert_allclose(found.f, linear(x, y, lr=rate, **case).f, atol=1e-9)


def test_rtol_is_kept_for_each_rate(x, y):
    found = sweep_rates(
        x, y, rates=[0.1, 0.2, 0.4], rtol=0.02, refine=0, depth=1, activation="tanh", steps=2, samples=400
    )
    assert found.stable.all()
