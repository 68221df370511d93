"""A small character GPT: tokens and learned positions, pre-norm causal blocks, an untied head.

h = E[token] + positions        blocks as in `vit`, causal        logits = W norm(h)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.models.parts import linear
from trimtab.models.vit import Block


class GPT(nn.Module):
    """See the file's equation. Input: (batch, time) integers; output: (batch, time, vocabulary)."""

    def __init__(
        self, width: int, depth: int, vocabulary: int, context: int, heads: int, branch_scale: float
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.blocks = nn.ModuleList(
            Block(width, heads, "layer", branch_scale, causal=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def build(
    width: int,
    depth: int,
    *,
    vocabulary: int = 65,
    context: int = 64,
    heads: int = 4,
    head_dim: int | None = None,
    branch_scale: float = 1.0,
) -> nn.Module:
    """A character model of `depth` blocks.

    >>> build(32, 2)(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 65])
    """
    return GPT(
        width, depth, vocabulary, context, heads if head_dim is None else width // head_dim, branch_scale
    )
