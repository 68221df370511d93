"""The residual MLP with its depth factors written out, for any branch exponent: nothing for trimtab to add
(scheme "sp").

    h' = h + c W_k phi( ... W_1 phi(h)),      with m = depth / base depth, for SGD at one rate for all
    parameters:
    last matrix of a branch   start m^-alpha,  its step m^-1            (one constant m^-1/2 before a weight
    drawn at m^(1/2 - alpha))
    matrices before it        start 1,         their step m^(2 alpha-1) (m^(alpha - 1/2) before a weight drawn
    at m^(1/2 - alpha))

These are the numbers of docs/theory.md and of trimtab.Scheme(name, alpha); `alpha = 1/2` is depth-mup, 1 is
completep.
"""

import torch
from torch import nn

from trimtab.models.parts import GAIN, linear


class Branch(nn.Module):
    def __init__(self, width, k, alpha, m, scale):
        super().__init__()
        self.layers = nn.ModuleList(
            linear(width, width, gain=GAIN["relu"] * m ** (0.5 - alpha)) for _ in range(k)
        )
        self.before, self.last = m ** (alpha - 0.5), scale * m**-0.5

    def forward(self, h):
        for layer in self.layers[:-1]:
            h = self.before * layer(torch.relu(h))
        return self.last * self.layers[-1](torch.relu(h))


class MLP(nn.Module):
    def __init__(self, width, depth, inputs, classes, k, alpha, base_depth, scale):
        super().__init__()
        self.stem = linear(inputs, width)
        self.branches = nn.ModuleList(
            Branch(width, k, alpha, depth / base_depth, scale) for _ in range(depth)
        )
        self.head = linear(width, classes)

    def forward(self, x):
        h = self.stem(x.flatten(1))
        for branch in self.branches:
            h = h + branch(h)
        return self.head(torch.relu(h))


def build(width, depth, *, alpha=0.5, k=1, inputs=192, classes=10, base_depth=3, scale=3**-0.5):
    return MLP(width, depth, inputs, classes, k, alpha, base_depth, scale)
