"""Vision Transformer as in the paper's experiments: attention and MLP branches of their own, so L = 2 x
depth.

    h = patches + positions        h = h + c attention(norm(h))        h = h + c mlp(norm(h))        f = w
    mean(norm(h))

With `heads` fixed the head dimension grows with the width; with `head_dim` fixed the number of heads does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.models.parts import linear


class Attention(nn.Module):
    """Multi-head attention with ordinary scaled dot products."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (linear(width, width, bias=True) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        return self.out(
            functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    """One attention and one MLP branch, each on its own norm."""

    def __init__(self, width: int, heads: int, norm: str, branch_scale: float, causal: bool = False):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width) if norm == "layer" else nn.Identity() for _ in range(2))
        self.attention = Attention(width, heads, causal)
        self.up, self.down = linear(width, 4 * width, bias=True), linear(4 * width, width, bias=True)
        self.branch_scale = branch_scale

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.branch_scale * self.attention(self.norm1(h))
        return h + self.branch_scale * self.down(functional.gelu(self.up(self.norm2(h))))


class ViT(nn.Module):
    """See the file's equation."""

    def __init__(
        self,
        width: int,
        depth: int,
        image: int,
        channels: int,
        classes: int,
        patch: int,
        heads: int,
        norm: str,
        branch_scale: float,
    ):
        super().__init__()
        self.patch = patch
        self.embed = linear(channels * patch * patch, width, bias=True)
        self.positions = nn.Parameter(torch.zeros((image // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads, norm, branch_scale) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if norm == "layer" else nn.Identity()
        self.head = linear(width, classes, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        pieces = (
            x.unflatten(3, (-1, self.patch))
            .unflatten(2, (-1, self.patch))
            .permute(0, 2, 4, 1, 3, 5)
            .flatten(3)
            .flatten(1, 2)
        )
        h = self.embed(pieces) + self.positions
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


def build(
    width: int,
    depth: int,
    *,
    image: int = 32,
    channels: int = 3,
    classes: int = 10,
    patch: int = 4,
    heads: int = 8,
    head_dim: int | None = None,
    norm: str = "layer",
    branch_scale: float = 1.0,
) -> nn.Module:
    """A Vision Transformer of `depth` blocks.

    >>> build(64, 2)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    return ViT(
        width,
        depth,
        image,
        channels,
        classes,
        patch,
        heads if head_dim is None else width // head_dim,
        norm,
        branch_scale,
    )
