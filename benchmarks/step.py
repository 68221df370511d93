"""What a parametrization costs per step: the ratio to plain fused AdamW on the same model, interleaved in one
run.

    python benchmarks/step.py

The guarantee is at most 3 %. Ratios of medians over interleaved rounds; absolute times depend on the machine.
"""

import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import trimtab

ROUNDS, STEPS = 60, 4


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.attn = nn.MultiheadAttention(n, 4, batch_first=True)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, h):
        z = self.n1(h)
        h = h + self.attn(z, z, z, need_weights=False)[0]
        return h + self.down(F.gelu(self.up(self.n2(h))))


def build(width, depth):
    return nn.Sequential(
        nn.Embedding(256, width),
        *[Block(width) for _ in range(depth)],
        nn.LayerNorm(width),
        nn.Linear(width, 256),
    )


def run(model, optimizer, ids):
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()


def only_steps(optimizer):
    for _ in range(5 * STEPS):
        optimizer.step()


def ratio(plain, ours):
    """Median over rounds of the ratio of two timings taken one after the other, in alternating order."""
    ratios = []
    for k in range(ROUNDS):
        times = {}
        for name, call in (("plain", plain), ("ours", ours)) if k % 2 else (("ours", ours), ("plain", plain)):
            start = time.perf_counter()
            call()
            times[name] = time.perf_counter() - start
        ratios.append(times["ours"] / times["plain"])
    return statistics.median(ratios), statistics.quantiles(ratios, n=10)


def main():
    torch.set_num_threads(1)
    ids = torch.randint(0, 256, (8, 32))
    for width, depth in ((64, 4), (128, 8)):
        models = build(width, depth), build(width, depth)
        p = trimtab.parametrize(models[1], build(32, 2), example=ids)
        plain = torch.optim.AdamW(models[0].parameters(), lr=1e-3, fused=True)
        ours = p.optimizer(torch.optim.AdamW, lr=1e-3, fused=True)
        for model, optimizer in zip(models, (plain, ours), strict=True):
            run(model, optimizer, ids)
        whole = ratio(lambda m=models[0], o=plain: run(m, o, ids), lambda m=models[1], o=ours: run(m, o, ids))
        steps = ratio(lambda o=plain: only_steps(o), lambda o=ours: only_steps(o))
        print(
            f"width {width} depth {depth}, {len(ours.param_groups)} groups: training step {whole[0]:.4f} x "
            f"plain (10-90 %: {whole[1][0]:.3f} to {whole[1][-1]:.3f}), "
            f"optimizer.step alone {steps[0]:.4f} x"
        )


if __name__ == "__main__":
    main()
