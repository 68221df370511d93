"""Every test runs on one thread, from a known seed."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "MKL_CBWR", "AUTO,STRICT"
)  # products that do not depend on memory addresses, as in a sweep's workers

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
