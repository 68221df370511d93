"""Pieces the reference models share: activations with their gain, and matrices drawn with a given gain.

W ~ N(0, gain^2 / fan_in),    gain = sqrt(2) in front of which a relu stands (He), 1 otherwise
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "linear": lambda x: x,
}
GAIN = {"relu": math.sqrt(2.0), "tanh": 1.0, "gelu": 1.0, "linear": 1.0}


def linear(fan_in: int, fan_out: int, *, gain: float = 1.0, bias: bool = False) -> nn.Linear:
    """A matrix with entries of standard deviation gain / sqrt(fan_in), its bias 0."""
    layer = nn.Linear(fan_in, fan_out, bias=bias)
    nn.init.normal_(layer.weight, std=gain / math.sqrt(fan_in))
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def conv3(channels: int, width: int, *, gain: float = 1.0) -> nn.Conv2d:
    """A 3x3 convolution with entries of standard deviation gain / sqrt(9 channels)."""
    layer = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    nn.init.normal_(layer.weight, std=gain / math.sqrt(9 * channels))
    return layer
