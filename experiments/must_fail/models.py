"""A post-norm residual MLP, as BERT stacks its blocks: h = norm(h + W2 gelu(W1 h)). Plain torch, torch's own
init."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.LayerNorm(width),
        )

    def forward(self, h):
        return self.norm(h + self.down(nn.functional.gelu(self.up(h))))


class PostNorm(nn.Module):
    def __init__(self, width, depth, inputs, classes):
        super().__init__()
        self.stem, self.head = nn.Linear(inputs, width), nn.Linear(width, classes)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def build(width, depth, *, inputs=192, classes=10):
    return PostNorm(width, depth, inputs, classes)


def example():
    return torch.randn(8, 192)
