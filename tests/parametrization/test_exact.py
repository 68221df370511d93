"""Folded training is the training of the explicit-multiplier network, to rounding.

The reference is written here, by hand: the same architecture with every multiplier literal in its forward
(branch times m_L^-alpha, readout times 1/m, hidden weights times m^-1/2, scores over d instead of sqrt(d)),
weights stored at the base's scale, and the rates of the literature: for SGD one rate eta_0 m for everything
(arXiv 2309.16620: eta = eta_0 gamma_0^2 N), m_L^(2 alpha - 1) more in blocks; for normalised optimizers the
update wanted, divided by the multiplier. Nothing of it is taken from the library.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from trimtab.parametrization.comparison.names import template

STEPS = 50


class SignDescent(torch.optim.Optimizer):
    """theta -= lr (sign(grad) + wd theta): an optimizer the library has never heard of."""

    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * p.grad.sign())


# -- networks: `c` holds the explicit multipliers; at base all of them are 1 ---------------------------------


class Ones(dict):
    def __missing__(self, key):
        return 1.0


class ResidualMLP(nn.Module):
    def __init__(self, n, depth, c=Ones()):
        super().__init__()
        self.c = c
        self.stem = nn.Linear(6, n)
        self.first = nn.ModuleList(nn.Linear(n, n) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(n, n) for _ in range(depth))
        self.head = nn.Linear(n, 3)

    def forward(self, x):
        c = self.c
        h = self.stem(x)
        for first, second in zip(self.first, self.second, strict=True):
            z = torch.tanh(F.linear(h, c["hidden"] * first.weight, first.bias))
            h = h + c["branch"] * F.linear(z, c["hidden"] * second.weight, second.bias)
        return F.linear(h, c["readout"] * self.head.weight, self.head.bias)


class ConvNet(nn.Module):
    def __init__(self, n, depth, c=Ones()):
        super().__init__()
        self.c = c
        self.stem = nn.Conv2d(2, n, 3, padding=1)
        self.conv1 = nn.ModuleList(nn.Conv2d(n, n, 3, padding=1, bias=False) for _ in range(depth))
        self.norm1 = nn.ModuleList(nn.BatchNorm2d(n) for _ in range(depth))
        self.conv2 = nn.ModuleList(nn.Conv2d(n, n, 3, padding=1, bias=False) for _ in range(depth))
        self.norm2 = nn.ModuleList(nn.BatchNorm2d(n) for _ in range(depth))
        self.head = nn.Linear(n, 3)

    def forward(self, x):
        c = self.c
        h = self.stem(x.reshape(-1, 2, 4, 4))
        for c1, n1, c2, n2 in zip(self.conv1, self.norm1, self.conv2, self.norm2, strict=True):
            z = torch.relu(n1(F.conv2d(h, c["hidden"] * c1.weight, padding=1)))
            h = h + c["branch"] * n2(F.conv2d(z, c["hidden"] * c2.weight, padding=1))
        return F.linear(torch.relu(h).mean((2, 3)), c["readout"] * self.head.weight, self.head.bias)


class Transformer(nn.Module):
    """Two heads, so the head dimension grows with width."""

    def __init__(self, n, depth, c=Ones(), tied=False, packed=False):
        super().__init__()
        self.c, self.packed, self.d = c, packed, n // 2
        self.embed = nn.Embedding(11, n)
        self.pos = nn.Parameter(0.5 * torch.randn(1, 5, n))
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            block = nn.ModuleDict(
                dict(
                    n1=nn.LayerNorm(n),
                    n2=nn.LayerNorm(n),
                    out=nn.Linear(n, n),
                    up=nn.Linear(n, 3 * n),
                    down=nn.Linear(3 * n, n),
                )
            )
            block.update(
                dict(qkv=nn.Linear(n, 3 * n))
                if packed
                else dict(q=nn.Linear(n, n), k=nn.Linear(n, n), v=nn.Linear(n, n))
            )
            self.blocks.append(block)
        self.norm = nn.LayerNorm(n)
        self.head = nn.Linear(n, 11, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight
        self.tied = tied

    def forward(self, ids):
        c = self.c

        def lin(layer, x):
            return F.linear(x, c["hidden"] * layer.weight, layer.bias)

        h = self.embed(ids) + self.pos
        for b in self.blocks:
            z = b["n1"](h)
            q, k, v = (
                lin(b["qkv"], z).chunk(3, -1)
                if self.packed
                else (lin(b["q"], z), lin(b["k"], z), lin(b["v"], z))
            )
            q, k, v = (t.unflatten(-1, (2, self.d)).transpose(1, 2) for t in (q, k, v))
            scores = q @ k.transpose(-1, -2) * (self.d**-0.5 * c["scores"])
            z = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            h = h + c["branch"] * lin(b["out"], z)
            h = h + c["branch"] * lin(b["down"], F.gelu(lin(b["up"], b["n2"](h))))
        h = self.norm(h)
        return F.linear(h, c["readout"] * self.head.weight, self.head.bias)


CASES = {
    "mlp": (ResidualMLP, 16, 24, 2, 5, {}),
    "conv-bn": (ConvNet, 8, 12, 2, 3, {}),
    "transformer": (Transformer, 16, 24, 2, 3, {}),
    "tied-packed": (Transformer, 16, 24, 2, 3, dict(tied=True, packed=True)),
}

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.02)),
    "nesterov-l2": (torch.optim.SGD, dict(lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adamw": (torch.optim.AdamW, dict(lr=3e-3, eps=1e-8, weight_decay=0.05)),
    "adam": (torch.optim.Adam, dict(lr=3e-3, eps=1e-6)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=1e-3, eps=1e-6)),
    "adagrad": (torch.optim.Adagrad, dict(lr=1e-2, eps=1e-8)),
    "sign": (SignDescent, dict(lr=1e-3, weight_decay=0.05)),
}


def effective(name, kind, m, m_L, alpha):
    """(forward multiplier, wanted update, gradient scale) of one tensor of the explicit network, from the
    literature."""
    tail = {"mlp": "second", "conv-bn": "norm2"}.get(kind)
    is_tail = (tail in name.split(".")) if tail else any(part in ("out", "down") for part in name.split("."))
    in_block = any(part in name for part in ("first", "second", "conv1", "conv2", "norm1", "norm2", "blocks"))
    a, u, s = 1.0, 1.0, 1 / m
    is_matrix = name.endswith("weight") and not any(
        x in name for x in ("norm", ".n1.", ".n2.", "embed", "stem")
    )
    if is_matrix and in_block:
        a, u, s = m**-0.5, 1 / m, 1 / m
    if name == "head.weight":
        a, u, s = 1 / m, 1 / m, 1.0
    if name == "head.bias":
        s = 1.0
    if in_block:
        a, u, s = (a * m_L**-alpha, u / m_L, s) if is_tail else (a, u * m_L ** (alpha - 1), s * m_L**-alpha)
    return a, u, s


def reference_groups(model, kind, m, m_L, alpha, cls, hyper):
    """One group per parameter of the explicit network; `lr` etc. act on the stored tensor theta = effective /
    a."""
    groups = []
    for name, p in model.named_parameters():
        a, u, s = effective(name, kind, m, m_L, alpha)
        group = dict(params=[p])
        if cls is torch.optim.SGD:
            block = any(x in name for x in ("first", "second", "conv", "norm1", "norm2", "blocks"))
            rate = (
                1 / (s / u) / a**2 if name == "head.bias" else m * (m_L ** (2 * alpha - 1) if block else 1.0)
            )
            group |= dict(lr=hyper["lr"] * rate, weight_decay=hyper.get("weight_decay", 0) / rate)
        else:
            rate = u / a
            group |= dict(lr=hyper["lr"] * rate)
            if "eps" in hyper:
                group |= dict(eps=hyper["eps"] * s * a)
            if "weight_decay" in hyper:
                group |= dict(weight_decay=hyper["weight_decay"] / rate)
        groups.append(group)
    return groups


def batch(kind, step):
    g = torch.Generator().manual_seed(step)
    if kind in ("mlp", "conv-bn"):
        x = torch.randn(16, 6 if kind == "mlp" else 32, generator=g, dtype=torch.float64)
        return x, torch.randint(0, 3, (16,), generator=g)
    return torch.randint(0, 11, (4, 5), generator=g), torch.randint(0, 11, (4, 5), generator=g)


def loss_of(model, kind, step):
    x, y = batch(kind, step)
    out = model(x)
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)), out


RUNS = [("depth-mup", opt, clip) for opt in OPTIMIZERS for clip in (None, 0.3)] + [
    ("completep", opt, None) for opt in ("nesterov-l2", "adamw")
]


@pytest.mark.parametrize(
    ("scheme", "opt", "clip"), RUNS, ids=[f"{s}-{o}{'-clip' * bool(c)}" for s, o, c in RUNS]
)
@pytest.mark.parametrize("kind", CASES)
def test_folded_training_is_the_explicit_network(kind, opt, scheme, clip):
    build, n0, n, L0, L, options = CASES[kind]
    cls, hyper = OPTIMIZERS[opt]
    alpha = 0.5 if scheme == "depth-mup" else 1.0
    m, m_L = n / n0, L / L0
    torch.set_default_dtype(torch.float64)
    try:
        base = build(n0, L0, **options)
        model = build(n, L, **options)
        p = trimtab.parametrize(model, base, scheme=scheme, example=batch(kind, 0)[0])
        scores = m**-0.5 if kind not in ("mlp", "conv-bn") else 1.0
        c = Ones(hidden=m**-0.5, branch=m_L**-alpha, readout=1 / m, scores=scores)
        explicit = build(n, L, c, **options)
        folded_params = dict(model.named_parameters())
        multiplier = {}
        with torch.no_grad():
            for name, theta in explicit.named_parameters():
                a, _, _ = effective(name, kind, m, m_L, alpha)
                if options.get("packed") and ".qkv." in name:
                    a *= m**-0.25
                if options.get("packed") and ".out.weight" in name:
                    a *= m**0.25
                if not options.get("packed") and ".q." in name:
                    a *= m**-0.5
                if options.get("tied") and name.startswith("norm."):
                    a /= m
                multiplier[name] = a
                theta.copy_(folded_params[name] / a)
            for b, bb in zip(explicit.buffers(), model.buffers(), strict=True):
                b.copy_(bb)
        start = {name: q.detach().clone() for name, q in folded_params.items()}
        optimizer = p.optimizer(cls, **hyper)
        reference = cls(reference_groups(explicit, kind, m, m_L, alpha, cls, hyper), **hyper)
        for step in range(STEPS):
            loss, out = loss_of(model, kind, step)
            loss_ref, out_ref = loss_of(explicit, kind, step)
            assert abs(loss.item() - loss_ref.item()) <= 1e-9 * abs(loss_ref.item())
            assert (out - out_ref).abs().max() <= 1e-9 * out_ref.abs().max()
            optimizer.zero_grad()
            reference.zero_grad()
            loss.backward()
            loss_ref.backward()
            if clip:
                p.clip_grad_norm_(clip)
                clip_explicit(explicit, kind, m, m_L, alpha, clip)
            optimizer.step()
            reference.step()
    finally:
        torch.set_default_dtype(torch.float32)
    compare_motion(start, folded_params, dict(explicit.named_parameters()), multiplier)


def clip_explicit(model, kind, m, m_L, alpha, max_norm):
    """Clipping by the norm the rule says is the same at every size: in the explicit network weighted by its
    SGD rate."""
    total = 0.0
    for name, theta in model.named_parameters():
        a, u, s = effective(name, kind, m, m_L, alpha)
        total = total + (u / s) * (theta.grad / a).square().sum()
    scale = min(1.0, max_norm / (math.sqrt(total) + 1e-6))
    for theta in model.parameters():
        theta.grad.mul_(scale)


def compare_motion(start, folded, explicit, multiplier):
    """Each tensor, relative to the largest motion of its kind."""
    kinds = {}
    for name in start:
        kind = template(name)
        if kind.endswith(".k.bias"):
            # a key's bias shifts all scores alike: its gradient is identically zero, outputs compare it
            continue
        moved = (folded[name] - start[name]).detach()
        error = (folded[name] - multiplier[name] * explicit[name]).detach()
        if kind.endswith(".qkv.bias"):
            n = len(moved) // 3
            moved, error = moved[:n], torch.cat([error[:n], error[2 * n :]])
        worst, most = kinds.get(kind, (0.0, 0.0))
        kinds[kind] = (max(worst, error.abs().max().item()), max(most, moved.abs().max().item()))
    for kind, (error, moved) in kinds.items():
        assert error <= 1e-9 * moved, (kind, error, moved)
