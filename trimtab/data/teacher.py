"""A random two-layer teacher on Gaussian inputs: y = V phi(W x / sqrt(D)) / sqrt(width) + noise.

`draw` is the teacher's own seed; a run's seed only orders the examples.
"""

from __future__ import annotations

import numpy as np
import torch

from trimtab.data.batches import Batch, Tensors
from trimtab.data.catalogue import Shape

PHI = {"relu": lambda h: np.maximum(h, 0.0) * np.sqrt(2.0), "tanh": np.tanh, "linear": lambda h: h}


def read(
    inputs: int = 16,
    outputs: int = 1,
    train: int = 256,
    test: int = 256,
    width: int = 64,
    activation: str = "tanh",
    noise: float = 0.0,
    draw: int = 0,
) -> Tensors:
    """Training and test examples from one teacher; targets are float (n, outputs)."""
    random = np.random.Generator(np.random.Philox(key=draw))
    first, second = random.standard_normal((width, inputs)), random.standard_normal((outputs, width))

    def some(n: int) -> Batch:
        x = random.standard_normal((n, inputs))
        y = PHI[activation](x @ first.T / np.sqrt(inputs)) @ second.T / np.sqrt(
            width
        ) + noise * random.standard_normal((n, outputs))
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()

    return Tensors(Shape((inputs,), outputs, "vector", train), some(train), some(test))
