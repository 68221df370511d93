"""A Vision Transformer on CIFAR-10: the rate of a small one carries a larger one.

    trimtab data get cifar10            # once; or point TRIMTAB_DATA at a folder that has cifar-10-batches-py
    python examples/vit_cifar10.py [--steps N] [--px 16]

The model is plain torch (trimtab/models/vit.py); the data set is read and batched by trimtab, each batch a
function of the seed and the step, so that every run sees the same images in the same order.
"""

import argparse

import torch
from torch import nn

import trimtab
from trimtab.data.opening import open_data
from trimtab.models import vit

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--px", type=int, default=16, help="side of the images")
parser.add_argument("--rates", type=float, nargs="*", default=[2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7])
given = parser.parse_args()
try:
    images = open_data("cifar10", {"px": given.px})
except trimtab.InputError as error:
    raise SystemExit(str(error)) from None


def build(width: int, depth: int) -> nn.Module:
    return vit.build(width, depth, image=given.px, patch=4, heads=4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """The mean training loss of the last twenty steps."""
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1.0, (t + 1) / 20) * (1 - t / given.steps)
    )
    losses = []
    for step in range(given.steps):
        x, y = images.batch("train", seed=0, step=step, size=64)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / len(losses[-20:])


example = images.batch("train", seed=0, step=0, size=8)[0]
losses = {}
for rate in given.rates:
    torch.manual_seed(0)
    model = build(32, 2)
    losses[rate] = train(model, torch.optim.AdamW(model.parameters(), lr=rate))
    print(f"32 wide, 2 blocks, lr {rate:.5f}: loss {losses[rate]:.3f}", flush=True)
best = min(losses, key=losses.get)
for scheme in ("sp", "completep"):
    torch.manual_seed(0)
    model = build(128, 6)
    p = trimtab.parametrize(model, build(32, 2), example=example, scheme=scheme)
    loss = train(model, p.optimizer(torch.optim.AdamW, lr=best))
    print(f"128 wide, 6 blocks, lr {best:.5f}, {scheme:9}: loss {loss:.3f}", flush=True)
