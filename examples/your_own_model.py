"""Your own model, in the order you would ask: what was found, is it right, what does each parameter get?

    python examples/your_own_model.py

Replace `build`: any torch module that takes a width and a depth. Nothing in it knows of trimtab.
"""

import torch
from torch import nn

import trimtab


class Mixer(nn.Module):
    """A block with two residual branches: one mixes tokens, one mixes features."""

    def __init__(self, width: int, tokens: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens = nn.Linear(tokens, tokens)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        h = h + self.over_tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        return h + self.down(nn.functional.gelu(self.up(self.norm2(h))))


class Network(nn.Module):
    def __init__(self, width: int, depth: int):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Mixer(width, tokens=8) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 32)

    def forward(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def build(width: int, depth: int) -> nn.Module:
    return Network(width, depth)


def data(step: int):
    ids = torch.randint(0, 32, (16, 8), generator=torch.Generator().manual_seed(step))
    return ids, ids.roll(1, dims=1)


def loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


if __name__ == "__main__":
    torch.manual_seed(0)
    model, base = build(256, 8), build(64, 2)

    # 1. What was found: residual branches, roles, and what one backward at both sizes says about it.
    p = trimtab.parametrize(model, base, example=data(0)[0], scheme="completep")
    print(p)
    print(f"\n{len(p.branches)} residual branches, {p.depth:g} times as many as the base")
    print(f"tried by one step: {p.proof.verdict}")

    # 2. Is the set-up right? A few steps at several sizes, for trimtab and for the plain model.
    sizes = dict(widths=[64, 128, 256], depths=[2, 4, 8], base=(64, 2), data=data, loss=loss, lr=1e-3)
    print("\nwith trimtab:   ", trimtab.check(build, scheme="completep", **sizes).verdict)
    plain = trimtab.check(build, scheme="sp", **sizes)
    print("as it is:       ", plain.verdict, "|", plain.culprits[0])

    # 3. The optimizer, with the numbers tuned at the base.
    optimizer = p.optimizer(torch.optim.AdamW, lr=3e-3, weight_decay=0.1, no_decay=["*.bias", "*norm*"])
    for step in range(20):
        ids, target = data(step)
        optimizer.zero_grad()
        value = loss(model(ids), target)
        value.backward()
        p.clip_grad_norm_(1.0)
        optimizer.step()
    p.check(optimizer)
    print(f"\nloss after {step + 1} steps at 256 wide, 8 blocks: {value.item():.3f}")
