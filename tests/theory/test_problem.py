"""Bad input gets the law, the values and the next step, all faults at once."""

import doctest
import importlib
import math
import pkgutil

import numpy as np
import pytest

import trimtab.theory
from trimtab.errors import InputError
from trimtab.theory import lazy, linear, simulate, solve
from trimtab.theory.optimizers import memory
from trimtab.theory.problem import problem

GOOD = {"x": np.ones((2, 3)), "y": [1.0, -1.0], "depth": 2, "activation": "tanh", "lr": 0.1, "steps": 4}
FAULTS = {
    "x is (P, D) = (2, 3), y is (3,)": {"y": [1.0, 2.0, 3.0]},
    "(P, D) with P, D >= 1": {"x": np.ones(3)},
    "D = 3 as in x": {"x_test": np.ones((2, 4))},
    "integer >= 1 or math.inf, got 0": {"depth": 0},
    "got 2.5": {"depth": 2.5},
    "alpha >= 1/2": {"depth": math.inf, "alpha": 0.3},
    "entries are not": {"x": np.full((2, 3), np.nan)},
    "x: must be real numbers in a rectangular array, got NoneType": {"x": None},
    "got an array of complex128": {"x": np.ones((2, 3), complex)},
    "y is (2, 0)": {"y": np.ones((2, 0))},
    "one of relu": {"activation": "silly"},
    "must be >= 0 and not all 0": {"lr": -0.1},
    "one per step: steps = 4": {"lr": [0.1, 0.2]},
    "unstable whatever the data": {"lr": 3.0, "weight_decay": 1.0},
    "< 1, got 1.0": {"momentum": 1.0},
    "steps: the number": {"steps": 0},
    "gamma0: must be a number > 0": {"gamma0": 0.0},
    "one of mse, logistic, softmax": {"loss": "hinge"},
    "-1/+1 or 0/1": {"loss": "logistic", "y": [0.3, 1.0]},
    "integers 0..C-1": {"loss": "softmax"},
    "rows >= 0 that sum to 1": {"loss": "softmax", "y": [[1.0, 1.0], [0.0, 1.0]]},
    "step 1 must hold indices 0..1": {"batches": [[0], [2], [1], [0]]},
    "one list of point indices per step": {"batches": [[0]]},
}


@pytest.mark.parametrize("words", FAULTS)
def test_each_fault_is_named(words):
    case = GOOD | FAULTS[words]
    with pytest.raises(InputError) as error:
        problem(case.pop("x"), case.pop("y"), **case)
    assert words in str(error.value)


def test_all_faults_at_once():
    with pytest.raises(InputError) as error:
        solve(np.ones((2, 3)), [1.0], depth=0, activation="silly", lr=-1.0, steps=0, gamma0=-1.0)
    assert str(error.value).startswith("6 faults")


def test_samples_too_few():
    with pytest.raises(InputError, match="samples/2 >= 19.*samples=38 or call linear"):
        solve(**GOOD | {"x": np.eye(2), "activation": "linear", "depth": 1, "steps": 7, "samples": 20})
    with pytest.raises(InputError, match="need at least"):
        solve(**GOOD, samples=20)
    for rtol in (2.0, 0, math.nan, "a"):
        with pytest.raises(InputError, match="rtol"):
            solve(**GOOD, rtol=rtol)
    for seed in (-1, 1.5, None):
        with pytest.raises(InputError, match="seed: must be an integer >= 0"):
            solve(**GOOD, seed=seed)
    with pytest.raises(InputError, match="2 faults"):
        solve(**GOOD, seed=-1, samples=0)


def test_tensors_of_any_kind_are_read():
    import torch

    found = [
        solve(**GOOD | {"x": torch.ones(2, 3, dtype=kind), "samples": 400}).f
        for kind in (torch.float64, torch.bfloat16, torch.int64)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_memory_of_the_optimizer_is_that_of_torch():
    import torch

    rates = [0.3, 0.1, 0.2, 0.4]
    a, d = memory(np.array(rates), momentum=0.7, weight_decay=0.2)
    weight = torch.nn.Parameter(torch.tensor([1.5], dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.7, weight_decay=0.2)
    pushes = [0.3, -1.0, 0.5, 2.0]
    for t, (rate, push) in enumerate(zip(rates, pushes, strict=True)):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor([-push], dtype=torch.float64)
        optimizer.step()
        assert weight.item() == pytest.approx(1.5 * d[t + 1] + a[t + 1] @ pushes, rel=1e-13)


def test_public_names_are_functions_after_importing_everything():
    for info in pkgutil.iter_modules(trimtab.theory.__path__):
        importlib.import_module(f"trimtab.theory.{info.name}")
    for name in trimtab.theory.__all__:
        assert callable(getattr(trimtab.theory, name)), name
    x = np.ones((1, 2))
    lazy(x, depth=1)
    linear(x, [1.0], depth=1, lr=0.1, steps=1)
    simulate(x, [1.0], width=3, seeds=2, depth=1, activation="relu", lr=0.1, steps=1)


@pytest.mark.parametrize("name", sorted(info.name for info in pkgutil.iter_modules(trimtab.theory.__path__)))
def test_docstrings_run(name):
    module = importlib.import_module(f"trimtab.theory.{name}")
    assert doctest.testmod(module).failed == 0
