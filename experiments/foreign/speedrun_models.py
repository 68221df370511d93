"""The ideas of the GPT speed runs (modded-nanogpt), written here as plain torch, one by one and together.

RMS norms without gains, query and key norms, ReLU squared, a soft cap on the logits, projections that start
at 0, value embeddings, lambdas that mix the first embedding in before each block, U-net skips.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from foreign.batches import IDS, VOCABULARY, Foreign, next_token
from torch import nn


@dataclasses.dataclass(frozen=True)
class Ideas:
    """Which of them a model has."""

    qk_norm: bool = True
    zero_projections: bool = False
    soft_cap: float = 0.0
    value_embeddings: bool = False
    x0_lambdas: bool = False
    unet: bool = False
    packed: bool = False
    heads: int = 0  # a fixed number; 0: heads of 16 numbers, more of them in a wider model


def norm(x):
    return F.rms_norm(x, (x.shape[-1],))


def rotary(x):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** -(torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()], -1)


class Attention(nn.Module):
    def __init__(self, n, ideas):
        super().__init__()
        self.ideas = ideas
        self.q, self.k, self.v, self.o = (nn.Linear(n, n, bias=False) for _ in range(4))
        if ideas.value_embeddings:
            self.lambdas = nn.Parameter(torch.tensor([0.5, 0.5]))
        if ideas.zero_projections:
            nn.init.zeros_(self.o.weight)

    def forward(self, x, extra):
        heads = self.ideas.heads or x.shape[-1] // 16
        q, k, v = (f(x).unflatten(-1, (heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if extra is not None:
            v = self.lambdas[0] * v + self.lambdas[1] * extra.unflatten(-1, (heads, -1)).transpose(1, 2)
        if self.ideas.qk_norm:
            q, k = norm(q), norm(k)
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, n, ideas):
        super().__init__()
        self.up, self.down = nn.Linear(n, 4 * n, bias=False), nn.Linear(4 * n, n, bias=False)
        if ideas.zero_projections:
            nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    def __init__(self, n, ideas):
        super().__init__()
        self.attention, self.mlp = Attention(n, ideas), MLP(n, ideas)
        if ideas.x0_lambdas and not ideas.packed:
            self.lambdas = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, x, extra):
        x = x + self.attention(norm(x), extra)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    def __init__(self, n, depth, ideas):
        super().__init__()
        self.ideas = ideas
        self.embedding = nn.Embedding(VOCABULARY, n)
        self.blocks = nn.ModuleList(Block(n, ideas) for _ in range(depth))
        self.head = nn.Linear(n, VOCABULARY, bias=False)
        if ideas.value_embeddings:
            self.value_embedding = nn.Embedding(VOCABULARY, n)
        if ideas.unet:
            self.skips = nn.Parameter(torch.ones(depth // 2))
        if ideas.x0_lambdas and ideas.packed:
            self.lambdas = nn.Parameter(torch.tensor([[1.0, 0.0]]).repeat(depth, 1))

    def forward(self, ids):
        x = x0 = norm(self.embedding(ids))
        extra = self.value_embedding(ids) if self.ideas.value_embeddings else None
        kept, half = [], len(self.blocks) // 2
        for i, block in enumerate(self.blocks):
            if self.ideas.unet and i >= half:
                x = x + self.skips[i - half] * kept.pop()
            if self.ideas.x0_lambdas:
                a, b = self.lambdas[i] if self.ideas.packed else block.lambdas
                x = a * x + b * x0
            x = block(x, extra)
            if i < half:
                kept.append(x)
        logits = self.head(norm(x))
        cap = self.ideas.soft_cap
        return cap * torch.tanh(logits / cap) if cap else logits


IDEAS = {
    "qk norm, relu squared": Ideas(),
    "wider heads": Ideas(heads=4),
    "zero-init projections": Ideas(zero_projections=True),
    "soft cap": Ideas(soft_cap=15.0),
    "value embeddings": Ideas(value_embeddings=True),
    "x0 lambdas": Ideas(x0_lambdas=True),
    "x0 lambdas packed": Ideas(x0_lambdas=True, packed=True),
    "unet skips": Ideas(unet=True),
    "all": Ideas(
        zero_projections=True, soft_cap=15.0, value_embeddings=True, x0_lambdas=True, unet=True, packed=True
    ),
}


def _build(ideas):
    return lambda n, depth: GPT(n, depth, ideas)


def _told(ideas):
    """More heads in place of wider ones, as the refusal of a norm without a gain says."""
    return _build(dataclasses.replace(ideas, heads=0)) if ideas.heads else None


MODELS = [
    Foreign("modded-nanogpt", name, _build(ideas), (IDS,), next_token, (64, 4), told=_told(ideas))
    for name, ideas in IDEAS.items()
]
