"""Plain torch models for the coordinate check, and data to be learned: residual MLPs, a pre-norm transformer,
a ResNet."""

import torch
import torch.nn.functional as F
from torch import nn

D, C, V, T = 16, 5, 32, 16  # input size, classes, vocabulary, positions


def _points(step):
    g = torch.Generator().manual_seed(100 + step)
    x = torch.randn(128, D, generator=g)
    teacher = torch.randn(D, C, generator=torch.Generator().manual_seed(6))
    return x, (x @ teacher).argmax(-1)


def points(step):
    """Gaussian inputs, labels of a linear teacher."""
    return _points(step)


def images(step):
    g = torch.Generator().manual_seed(200 + step)
    x = torch.randn(32, 3, 8, 8, generator=g)
    teacher = torch.randn(3, C, generator=torch.Generator().manual_seed(7))
    return x, (x[:, :, :4, :4].mean((2, 3)) @ teacher).argmax(-1)


def tokens(step):
    """Sequences of a random walk over the vocabulary; the target is the next token."""
    g = torch.Generator().manual_seed(300 + step)
    moves = torch.randint(1, 4, (16, T + 1), generator=g)
    ids = moves.cumsum(1) % V
    return ids[:, :-1], ids[:, 1:]


class Block(nn.Module):
    """h + c * fc(relu(h)), k = 1; or a branch of two matrices, k = 2, with or without a norm before it."""

    def __init__(self, n, k=1, norm=False, c=1.0, bias=True):
        super().__init__()
        self.norm = nn.LayerNorm(n) if norm else nn.Identity()
        self.k, self.c = k, c
        if k == 2:
            self.up = nn.Linear(n, n, bias=bias)
        self.fc = nn.Linear(n, n, bias=bias)

    def forward(self, h):
        z = self.norm(h)
        z = torch.relu(self.up(z)) if self.k == 2 else torch.relu(z)
        return h + self.c * self.fc(z)


class ResidualMLP(nn.Module):
    def __init__(self, n, L, k=1, norm=False, c=1.0, bias=True):
        super().__init__()
        self.stem = nn.Linear(D, n, bias=bias)
        self.blocks = nn.ModuleList([Block(n, k, norm, c, bias) for _ in range(L)])
        self.norm = nn.LayerNorm(n) if norm else nn.Identity()
        self.head = nn.Linear(n, C, bias=bias)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Attention(nn.Module):
    def __init__(self, n, heads=4, power=0.5):
        super().__init__()
        self.heads, self.scale = heads, (n // heads) ** -power
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))

    def forward(self, h):
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).tril()
        scores = (q @ k.transpose(-1, -2) * self.scale).masked_fill(~mask, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, n, power=0.5, c=(1.0, 1.0)):
        super().__init__()
        self.n1, self.attn, self.n2, self.up, self.down = (
            nn.LayerNorm(n),
            Attention(n, power=power),
            nn.LayerNorm(n),
            nn.Linear(n, 2 * n),
            nn.Linear(2 * n, n),
        )
        self.c = c

    def forward(self, h):
        h = h + self.c[0] * self.attn(self.n1(h))
        return h + self.c[1] * self.down(F.gelu(self.up(self.n2(h))))


class Transformer(nn.Module):
    def __init__(self, n, L, tied=False, power=0.5, c=(1.0, 1.0), out=1.0):
        super().__init__()
        self.embed, self.pos = nn.Embedding(V, n), nn.Embedding(T, n)
        self.layers = nn.ModuleList([Layer(n, power, c) for _ in range(L)])
        self.norm, self.head, self.out = nn.LayerNorm(n), nn.Linear(n, V, bias=False), out
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.embed(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h)) * self.out


class ConvBlock(nn.Module):
    def __init__(self, n, norm=True):
        super().__init__()
        self.conv, self.bn = (
            nn.Conv2d(n, n, 3, padding=1, bias=False),
            nn.BatchNorm2d(n) if norm else nn.Identity(),
        )

    def forward(self, h):
        return h + self.bn(self.conv(torch.relu(h)))


class ResNet(nn.Module):
    """Stem, blocks of one convolution, pooling, readout."""

    def __init__(self, n, L, norm=True):
        super().__init__()
        self.stem, self.blocks, self.head = (
            nn.Conv2d(3, n, 3, padding=1),
            nn.Sequential(*[ConvBlock(n, norm) for _ in range(L)]),
            nn.Linear(n, C),
        )

    def forward(self, x):
        return self.head(torch.relu(self.blocks(self.stem(x))).mean((2, 3)))
