import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((3, 10))


@pytest.fixture
def y():
    return np.array([1.0, -1.0, 0.5])


@pytest.fixture
def distance():
    return lambda a, b: float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(b))
