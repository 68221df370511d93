"""Tune a small network, train a big one with the same number: a minute on a laptop.

    python examples/tune_small_train_big.py

A plain residual MLP on the digits (scikit-learn ships them), AdamW. The learning rate is tuned at width 64
and 2 blocks, then used at width 512 and 8 blocks: as it is, and through trimtab.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import trimtab


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(self.norm(h))))


def build(width: int, depth: int) -> nn.Module:
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(64, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    """The loss over all training images after `steps` steps, the rate falling to 0."""
    draw = torch.Generator().manual_seed(0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    for _ in range(steps):
        rows = torch.randint(len(images), (64,), generator=draw)
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return nn.functional.cross_entropy(model(images), labels).item()


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--depth", type=int, default=8)
given = parser.parse_args()
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1
labels = torch.tensor(digits.target)

tuned = {}
for rate in [2.0**k for k in range(-12, -3)]:  # the search, at the small size only
    torch.manual_seed(0)
    small = build(64, 2)
    tuned[rate] = train(small, torch.optim.AdamW(small.parameters(), lr=rate), given.steps)
    print(f"  64 wide,  2 blocks, lr {rate:.5f}: loss {tuned[rate]:.4f}")
best = min(tuned, key=tuned.get)
print(f"best at the small size: lr {best:.5f}\n")

torch.manual_seed(0)
plain = build(given.width, given.depth)
loss = train(plain, torch.optim.AdamW(plain.parameters(), lr=best), given.steps)
print(f"{given.width} wide, {given.depth} blocks, the same lr as it is:       loss {loss:.4f}")

torch.manual_seed(0)
model, base = build(given.width, given.depth), build(64, 2)
p = trimtab.parametrize(model, base, example=images[:8], scheme="completep")
loss = train(model, p.optimizer(torch.optim.AdamW, lr=best), given.steps)
print(f"{given.width} wide, {given.depth} blocks, the same lr through trimtab: loss {loss:.4f}")
