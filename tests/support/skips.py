"""Models whose skips reach beyond the block, or whose paths and experts grow in number.

Each build takes (width, depth) or (width, paths): plain torch code as it is published, written here. The
measurement knows nothing of the plan: five steps of training, and how far the features and the outputs moved.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn

import trimtab

D, C = 6, 5
X = torch.randn(16, 4, D, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, C, (16, 4), generator=torch.Generator().manual_seed(2))


class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, h):
        return self.down(F.gelu(self.up(self.norm(h))))


class Net(nn.Module):
    """stem -> body -> norm -> head; what a case is about is `body`."""

    def __init__(self, n, blocks):
        super().__init__()
        self.stem, self.blocks = nn.Linear(D, n), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(n), nn.Linear(n, C)

    def body(self, h):
        for block in self.blocks:
            h = block(h)
        return h

    def forward(self, x):
        return self.head(self.norm(self.body(self.stem(x))))


# -- numbers of paths --------------------------------------------------------------------------------------


class Paths(nn.Module):
    """x + sum_k f_k(x): like paths in a list."""

    def __init__(self, n, k):
        super().__init__()
        self.paths = nn.ModuleList(MLP(n) for _ in range(k))

    def forward(self, h):
        return h + sum(path(h) for path in self.paths)


class Stacked(nn.Module):
    """The same with the paths' weights in one tensor each."""

    def __init__(self, n, k):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.up = nn.Parameter(torch.randn(k, n, n) * n**-0.5)
        self.down = nn.Parameter(torch.randn(k, n, n) * n**-0.5)

    def forward(self, h):
        a = F.gelu(torch.einsum("btn,knm->kbtm", self.norm(h), self.up))
        return h + torch.einsum("kbtm,kmn->btn", a, self.down)


class StackedBatched(Stacked):
    """By torch.bmm, the paths summed after."""

    def forward(self, h):
        b, t, n = h.shape
        flat = self.norm(h).reshape(1, b * t, n).expand(len(self.up), -1, -1)
        return h + torch.bmm(F.gelu(torch.bmm(flat, self.up)), self.down).sum(0).view(b, t, n)


class Averaged(Paths):
    """x + mean_k f_k(x): the number of paths is in the forward already."""

    def forward(self, h):
        return h + sum(path(h) for path in self.paths) / len(self.paths)


class Dense(nn.Module):
    """A soft mixture: x + sum_e softmax(router x)_e f_e(x)."""

    def __init__(self, n, e):
        super().__init__()
        self.router, self.experts = nn.Linear(n, e), nn.ModuleList(MLP(n) for _ in range(e))

    def forward(self, h):
        p = self.router(h).softmax(-1)
        return h + sum(p[..., i : i + 1] * expert(h) for i, expert in enumerate(self.experts))


class TopK(nn.Module):
    """Top-2 of e experts, weights normalised over the chosen ones."""

    def __init__(self, n, e, k=2):
        super().__init__()
        self.k = k
        self.router, self.experts = nn.Linear(n, e), nn.ModuleList(MLP(n) for _ in range(e))

    def forward(self, h):
        p, which = self.router(h).softmax(-1).topk(self.k, -1)
        p = p / p.sum(-1, keepdim=True)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            weight = (p * (which == i)).sum(-1, keepdim=True)
            out = out + weight * expert(h)
        return h + out


class TopKStacked(nn.Module):
    """Top-2 of e experts, their weights in one tensor."""

    def __init__(self, n, e, k=2):
        super().__init__()
        self.k, self.router = k, nn.Linear(n, e)
        self.norm = nn.LayerNorm(n)
        self.up = nn.Parameter(torch.randn(e, n, n) * n**-0.5)
        self.down = nn.Parameter(torch.randn(e, n, n) * n**-0.5)

    def forward(self, h):
        p, which = self.router(h).softmax(-1).topk(self.k, -1)
        weight = torch.zeros_like(self.router(h)).scatter(-1, which, p / p.sum(-1, keepdim=True))
        a = F.gelu(torch.einsum("btn,enm->betm", self.norm(h), self.up))
        return h + torch.einsum("betm,emn,bte->btn", a, self.down, weight)


def paths(cls):
    return lambda n, k: Net(n, [cls(n, k) for _ in range(2)])


PATHS = {
    "paths": paths(Paths),
    "stacked by einsum": paths(Stacked),
    "stacked by bmm": paths(StackedBatched),
    "averaged": paths(Averaged),
}
EXPERTS = {"dense": paths(Dense), "top-k": paths(TopK), "top-k stacked": paths(TopKStacked)}


# -- skips beyond the block --------------------------------------------------------------------------------


class Add(MLP):
    def forward(self, h):
        return h + super().forward(h)


class X0Learned(Net):
    """x = a x + b x0 before each block, a and b learned per block (modded-nanogpt)."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        self.lambdas = nn.ParameterList(nn.Parameter(torch.tensor([1.0, 0.0])) for _ in range(L))

    def body(self, h):
        x0 = h
        for block, lam in zip(self.blocks, self.lambdas, strict=True):
            h = block(lam[0] * h + lam[1] * x0)
        return h


class X0Scalars(Net):
    """The same, each a tensor of its own."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        for i in range(L):
            self.blocks[i].a = nn.Parameter(torch.tensor(1.0))
            self.blocks[i].b = nn.Parameter(torch.tensor(0.0))

    def body(self, h):
        x0 = h
        for block in self.blocks:
            h = block(block.a * h + block.b * x0)
        return h


class X0Fixed(Net):
    """x = 0.9 x + 0.1 x0, fixed numbers."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])

    def body(self, h):
        x0 = h
        for block in self.blocks:
            h = block(0.9 * h + 0.1 * x0)
        return h


class X0Added(X0Fixed):
    """x = x + x0 before each block: the first embedding adds up over depth."""

    def body(self, h):
        x0 = h
        for block in self.blocks:
            h = block(h + x0)
        return h


class X0Packed(Net):
    """The scalars of all blocks in one tensor (L, 2)."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        self.lambdas = nn.Parameter(torch.tensor([[1.0, 0.0]]).repeat(L, 1))

    def body(self, h):
        x0 = h
        for i, block in enumerate(self.blocks):
            h = block(self.lambdas[i, 0] * h + self.lambdas[i, 1] * x0)
        return h


class Packed(Net):
    """One scalar per block on its branch, all in one vector."""

    def __init__(self, n, L):
        super().__init__(n, [MLP(n) for _ in range(L)])
        self.lambdas = nn.Parameter(torch.full((L,), 0.5))

    def body(self, h):
        for i, block in enumerate(self.blocks):
            h = h + self.lambdas[i] * block(h)
        return h


class PackedResidual(Packed):
    """One scalar per block on the stream, all in one vector."""

    def __init__(self, n, L):
        super().__init__(n, L)
        self.lambdas = nn.Parameter(torch.ones(L))

    def body(self, h):
        for i, block in enumerate(self.blocks):
            h = self.lambdas[i] * h + block(h)
        return h


class UNet(Net):
    """The second half of the blocks adds what the first half made (modded-nanogpt), weights learned."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(L // 2))

    def body(self, h):
        kept, half = [], len(self.blocks) // 2
        for i, block in enumerate(self.blocks):
            if i >= half:
                h = h + self.weights[i - half] * kept.pop()
            h = block(h)
            if i < half:
                kept.append(h)
        return h


class UNetPacked(UNet):
    """The same with the weights in one vector."""

    def __init__(self, n, L):
        super().__init__(n, L)
        self.weights = nn.Parameter(torch.ones(L // 2))


class UNetPlain(UNet):
    """The same without weights."""

    def __init__(self, n, L):
        super().__init__(n, L)
        del self.weights
        self.weights = [1.0] * (L // 2)


class UNetCat(Net):
    """Joined, then brought back by a linear map (a diffusion transformer's long skips)."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        self.joins = nn.ModuleList(nn.Linear(2 * n, n) for _ in range(L // 2))

    def body(self, h):
        kept, half = [], len(self.blocks) // 2
        for i, block in enumerate(self.blocks):
            if i >= half:
                h = self.joins[i - half](torch.cat([h, kept.pop()], -1))
            h = block(h)
            if i < half:
                kept.append(h)
        return h


class Attention(nn.Module):
    def __init__(self, n, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(n)
        self.q, self.k, self.v, self.o = (nn.Linear(n, n, bias=False) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def values(self, x, extra):
        return self.v(x) if extra is None else 0.5 * self.v(x) + 0.5 * extra

    def forward(self, h, extra=None):
        x = self.norm(h)
        v = self.values(x, extra)
        y = F.scaled_dot_product_attention(*(self.split(t) for t in (self.q(x), self.k(x), v)))
        return self.o(y.transpose(1, 2).flatten(-2)), v


class ValueResidual(Net):
    """Every block's values are mixed with the first block's (value residual learning)."""

    def __init__(self, n, L):
        super().__init__(n, [Attention(n) for _ in range(L)])

    def body(self, h):
        first = None
        for block in self.blocks:
            y, v = block(h, first)
            first = v if first is None else first
            h = h + y
        return h


class ValueResidualLearned(ValueResidual):
    """The same, the mixture learned per block."""

    def __init__(self, n, L):
        super().__init__(n, L)
        for block in self.blocks:
            block.lam = nn.Parameter(torch.tensor([0.5, 0.5]))
            block.values = lambda x, extra, b=block: (
                b.v(x) if extra is None else b.lam[0] * b.v(x) + b.lam[1] * extra
            )


class ValueEmbeddings(Net):
    """Values get a share of an embedding of the input, one table for all blocks."""

    def __init__(self, n, L):
        super().__init__(n, [Attention(n) for _ in range(L)])
        self.value = nn.Linear(D, n)

    def forward(self, x):
        extra = self.value(x)
        h = self.stem(x)
        for block in self.blocks:
            y, _ = block(h, extra)
            h = h + y
        return self.head(self.norm(h))


class Hyper(Net):
    """Hyper-connections, static: s streams, read by `alpha`, mixed by `mix`, written by `beta` per block."""

    def __init__(self, n, L, streams=3):
        super().__init__(n, [MLP(n) for _ in range(L)])
        self.streams = streams
        for i, block in enumerate(self.blocks):
            read = torch.zeros(streams)
            read[i % streams] = 1.0
            block.read = nn.Parameter(read)
            block.mix = nn.Parameter(torch.eye(streams))
            block.write = nn.Parameter(torch.ones(streams))

    def body(self, h):
        hs = h.unsqueeze(0).expand(self.streams, *h.shape)
        for block in self.blocks:
            y = block(torch.einsum("s,sbtn->btn", block.read, hs))
            hs = torch.einsum("su,sbtn->ubtn", block.mix, hs) + block.write[:, None, None, None] * y
        return hs.sum(0)


class DenseFormer(Net):
    """After each block a learned average over all earlier outputs, which starts as the last one."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        self.weights = nn.ParameterList(
            nn.Parameter(torch.cat([torch.zeros(i + 1), torch.ones(1)])) for i in range(L)
        )

    def body(self, h):
        every = [h]
        for block, w in zip(self.blocks, self.weights, strict=True):
            every.append(block(h))
            h = sum(w[j] * every[j] for j in range(len(every)))
        return h


class DenseSums(Net):
    """Each block reads the sum of all before it, and the last sum goes out."""

    def __init__(self, n, L):
        super().__init__(n, [MLP(n) for _ in range(L)])

    def body(self, h):
        every = [h]
        for block in self.blocks:
            every.append(block(sum(every)))
        return sum(every)


class Momentum(Net):
    """v = 0.9 v + 0.1 f(x), x = x + v."""

    def __init__(self, n, L):
        super().__init__(n, [MLP(n) for _ in range(L)])

    def body(self, h):
        v = torch.zeros_like(h)
        for block in self.blocks:
            v = 0.9 * v + 0.1 * block(h)
            h = h + v
        return h


class Gated(nn.Module):
    """x + sigmoid(g(x)) f(x)."""

    def __init__(self, n):
        super().__init__()
        self.f, self.gate = MLP(n), nn.Linear(n, n)

    def forward(self, h):
        return h + torch.sigmoid(self.gate(h)) * self.f(h)


class Highway(Gated):
    """(1 - z) x + z f(x)."""

    def forward(self, h):
        z = torch.sigmoid(self.gate(h))
        return (1 - z) * h + z * self.f(h)


class Halved(Add):
    """(x + f(x)) / sqrt(2), as score networks write it."""

    def forward(self, h):
        return super().forward(h) * 0.5**0.5


class ScalarGate(nn.Module):
    """x + sigmoid(a) f(x), one number per block."""

    def __init__(self, n):
        super().__init__()
        self.f, self.a = MLP(n), nn.Parameter(torch.zeros(()))

    def forward(self, h):
        return h + torch.sigmoid(self.a) * self.f(h)


class Lerp(nn.Module):
    """torch.lerp(x, f(x), a), a number."""

    def __init__(self, n, a=0.3):
        super().__init__()
        self.f, self.a = MLP(n), a

    def forward(self, h):
        return torch.lerp(h, self.f(h), self.a)


class LerpLearned(nn.Module):
    """The same, a vector learned per block (nGPT without the norms)."""

    def __init__(self, n):
        super().__init__()
        self.f, self.a = MLP(n), nn.Parameter(torch.full((n,), 0.3))

    def forward(self, h):
        return torch.lerp(h, self.f(h), self.a)


class Interpolated(LerpLearned):
    """x + a (f(x) - x)."""

    def forward(self, h):
        return h + self.a * (self.f(h) - h)


def of_blocks(cls):
    return lambda n, L: Net(n, [cls(n) for _ in range(L)])


SKIPS = {
    "x0 learned": X0Learned,
    "x0 scalars": X0Scalars,
    "x0 fixed": X0Fixed,
    "x0 added": X0Added,
    "x0 packed": X0Packed,
    "packed on branches": Packed,
    "packed on the stream": PackedResidual,
    "unet": UNet,
    "unet packed": UNetPacked,
    "unet plain": UNetPlain,
    "unet joined": UNetCat,
    "value residual": ValueResidual,
    "value residual learned": ValueResidualLearned,
    "value embeddings": ValueEmbeddings,
    "hyper-connections": Hyper,
    "denseformer": DenseFormer,
    "dense sums": DenseSums,
    "momentum": Momentum,
    "gated": of_blocks(Gated),
    "highway": of_blocks(Highway),
    "scalar gate": of_blocks(ScalarGate),
    "halved": of_blocks(Halved),
    "lerp": of_blocks(Lerp),
    "lerp learned": of_blocks(LerpLearned),
    "interpolated": of_blocks(Interpolated),
}


# -- measurement -------------------------------------------------------------------------------------------


def plan(build, size, base, seed=0, **options):
    """A model of `size` parametrized from `base`, and its parametrization."""
    torch.manual_seed(seed)
    model = build(*size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, trimtab.parametrize(model, build(*base), example=X, **options)


def moved(model, optimizer, steps=5):
    """RMS change of what enters the head and of the outputs after a few steps of training on (X, Y)."""
    seen = {}
    hook = model.head.register_forward_pre_hook(lambda _, args: seen.update(h=args[0].detach().clone()))

    def look():
        with torch.no_grad():
            out = model(X)
        return seen["h"], out

    start = look()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X).flatten(0, 1), Y.flatten()).backward()
        optimizer.step()
    end = look()
    hook.remove()
    return [float((a - b).square().mean().sqrt()) for a, b in zip(end, start, strict=True)]


def flatness(build, size, base, seeds=3, lr=1e-3, **options):
    """How far features and outputs move in five steps, target over base."""
    total = torch.zeros(2, 2)
    for seed in range(seeds):
        for row, at in enumerate((size, base)):
            model, p = plan(build, at, base, seed, **options)
            total[row] += torch.tensor(moved(model, p.optimizer(torch.optim.AdamW, lr=lr)))
    return [float(x) for x in total[0] / total[1]]
