"""Projects that write multipliers into their forward and move in: trajectories before and after are one.

Their sources are read as facts: nanoGPT-mup's flags on its `completep` branch (model.py, `Block.forward`, the
output logits and `configure_optimizers`), and unit-scaling 0.3.5, which runs itself where it is installed.
In double precision with a small eps, since Adam's eps follows the gradient here and one number there.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab

WORDS, HEAD = 17, 8


class Attention(nn.Module):
    """Heads of a fixed size, so that 1/d and 1/sqrt(d) differ by one constant at every width."""

    def __init__(self, n):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))

    def forward(self, h):
        b, t, n = h.shape
        q, k, v = (f(h).view(b, t, n // HEAD, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / HEAD, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, n))


class Block(nn.Module):
    def __init__(self, n, branch):
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(n), nn.LayerNorm(n), Attention(n)
        self.up, self.down, self.branch = nn.Linear(n, 4 * n), nn.Linear(4 * n, n), branch

    def forward(self, h):
        h = h + self.branch * self.attn(self.ln_1(h))
        return h + self.branch * self.down(F.gelu(self.up(self.ln_2(h))))


class GPT(nn.Module):
    """With branch = output = 1 a plain model; else nanoGPT-mup's forward."""

    def __init__(self, n, depth, branch=1.0, output=1.0, tied=True):
        super().__init__()
        self.wte, self.ln_f, self.head = (
            nn.Embedding(WORDS, n),
            nn.LayerNorm(n),
            nn.Linear(n, WORDS, bias=False),
        )
        self.blocks = nn.ModuleList(Block(n, branch) for _ in range(depth))
        self.output = output
        for name, w in self.named_parameters():  # nanoGPT's init; the flags divide hidden ones by sqrt(m)
            if w.ndim == 2:
                nn.init.normal_(w, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(w)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, ids):
        h = self.wte(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln_f(h)) * self.output


def train(model, optimizer, steps=8):
    losses = []
    for step in range(steps):
        ids = torch.randint(0, WORDS, (4, 6), generator=torch.Generator().manual_seed(step))
        loss = F.cross_entropy(model(ids).flatten(0, 1), ((ids + 1) % WORDS).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def flags_optimizer(model, m_n, m_l, alpha, lr, decay, eps):
    """The groups of the `completep` branch: rate, decay and eps of embedding, hidden and final norm."""
    depth = m_l ** (alpha - 1)
    groups = {"embedding": [], "matrices": [], "vectors": [], "final": []}
    for name, w in model.named_parameters():
        hidden = "vectors" if w.ndim == 1 else "matrices"
        kind = hidden if "blocks" in name else "final" if "ln_f" in name else "embedding"
        groups[kind].append(w)
    rates = {"embedding": 1.0, "matrices": depth / m_n, "vectors": depth, "final": 1.0}
    decays = {"embedding": decay, "matrices": decay * m_n, "vectors": 0.0, "final": 0.0}
    made = [{"params": groups[k], "lr": lr * rates[k], "weight_decay": decays[k]} for k in groups]
    return torch.optim.AdamW(made, eps=eps / m_n / m_l**alpha)


@pytest.mark.parametrize(("alpha", "decay"), [(1.0, 0.1), (0.5, 0.0)])
@pytest.mark.parametrize("tied", [True, False])
def test_completep_flags(alpha, decay, tied):
    """With decay at alpha = 1 alone: below it the flags let lr x decay fall with depth; trimtab keeps it."""
    m_n, m_l, lr = 4, 3, 1e-2
    torch.manual_seed(0)
    theirs = GPT(32 * m_n, 2 * m_l, branch=m_l**-alpha, output=1 / m_n, tied=tied).double()
    with torch.no_grad():
        for name, w in theirs.named_parameters():
            if "blocks" in name and w.ndim == 2:
                w /= m_n**0.5
    ours = GPT(32 * m_n, 2 * m_l, tied=tied).double()
    ours.load_state_dict(theirs.state_dict())
    base = GPT(32, 2, tied=tied).double()
    scheme = trimtab.Scheme("flags", alpha=alpha, width="mup")
    ids = torch.zeros(2, 5, dtype=torch.long)
    p = trimtab.parametrize(ours, base, example=ids, scheme=scheme)
    before = train(theirs, flags_optimizer(theirs, m_n, m_l, alpha, lr, decay, 1e-20))
    vectors = ["*.bias", "*ln_*"]
    after = train(
        ours, p.optimizer(torch.optim.AdamW, lr=lr, weight_decay=decay, eps=1e-20, no_decay=vectors)
    )
    assert after == pytest.approx(before, rel=1e-6)
    assert before[-1] < 0.95 * before[0]


# -- unit-scaling -------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """The network without any multiplier: what moves in. The residual sum's constants stay in its forward."""

    def __init__(self, n):
        super().__init__()
        self.stem, self.up, self.down, self.head = (
            nn.Linear(*sizes, bias=False) for sizes in ((WORDS, n), (n, 2 * n), (2 * n, n), (n, WORDS))
        )

    def forward(self, ids):
        h = self.stem(F.one_hot(ids, WORDS).to(self.stem.weight.dtype))
        return self.head((h + self.down(torch.tanh(self.up(h)))) / 2**0.5)


def unit_scaled(uu, n):
    import unit_scaling.functional as U

    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.up, self.down = uu.Linear(WORDS, n), uu.Linear(n, 2 * n), uu.Linear(2 * n, n)
            self.head = uu.LinearReadout(n, WORDS)

        def forward(self, ids):
            h = self.stem(F.one_hot(ids, WORDS).to(self.stem.weight.dtype))
            return self.head(U.residual_apply(lambda z: self.down(torch.tanh(self.up(z))), h))

    return Unit()


def test_unit_scaling():
    """A rate of unit-scaling over the fan-in is the rate of the plain weights, for every layer and width."""
    uu = pytest.importorskip("unit_scaling", reason="unit-scaling is not installed")
    base_width, width, lr = 16, 64, 0.5
    torch.manual_seed(0)
    theirs, ours = unit_scaled(uu, width).double(), Plain(width).double()
    powers = {"head": 1.0}  # the readout divides by its fan-in, the others by its root
    with torch.no_grad():
        for (name, w), v in zip(theirs.named_parameters(), ours.parameters(), strict=True):
            v.copy_(w / w.shape[1] ** powers.get(name.split(".")[0], 0.5))
    base, example = Plain(base_width).double(), torch.zeros(2, 5, dtype=torch.long)
    fan_in = {name: w.shape[1] for name, w in ours.named_parameters()}
    same = {name: {"lr": base_width / n} for name, n in fan_in.items()}
    p = trimtab.parametrize(ours, base, example=example, overrides=same, apply=False)
    before = train(theirs, uu.optim.Adam(theirs.parameters(), lr=lr, eps=1e-30))
    after = train(ours, p.optimizer(torch.optim.Adam, lr=lr / base_width, eps=1e-30))
    assert after == pytest.approx(before, rel=1e-6)
    assert before[-1] < 0.95 * before[0]
    grown = trimtab.parametrize(ours, base, example=example, scheme="mup", apply=False).factors(
        torch.optim.Adam
    )
    for name, w in base.named_parameters():
        assert grown[name]["lr"] == w.shape[1] / fan_in[name], "over width the two rules are one"
