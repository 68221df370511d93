import functools

import numpy as np
import pytest

from trimtab.errors import InputError
from trimtab.theory import lazy, linear, simulate, sweep_rates

RATES = 2.0 ** np.arange(-5, 3)


def test_lazy_edge_and_best_rate_are_known(x, y):
    """gamma_0 -> 0: edge and optimum are those of the frozen kernel on a fine grid, the optimum within the coarse spacing,
    because it lies beside the edge, where no parabola fits."""
    kernels = lazy(x, depth=2, activation="linear")
    top = 2 * 3 / np.linalg.eigvalsh(kernels.ntk)[-1]
    fine = top * 2.0 ** np.linspace(-4, 0.5, 900)
    loss = np.array([np.square(kernels.train(y, lr=rate, steps=30)[-1] - y).sum() for rate in fine])
    edge, best = fine[np.argmax(loss >= np.square(y).sum())], fine[np.argmin(loss)]
    assert top < edge < 1.1 * top
    found = sweep_rates(x, y, rates=top * 2.0 ** (np.arange(-9, 3) / 2 + 0.1), depth=2, solver=linear, steps=30, gamma0=1e-3, refine=8)
    assert found.edge[0] < 1.005 * edge and found.edge[1] > 0.995 * edge and found.edge[1] / found.edge[0] < 1.01
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
