"""Verdicts on a real sweep drawn again and again: the residual MLP on the digits, 24 seeds, of which a few are drawn each time.

    python experiments/resampled.py [draws, 200]

All runs of a size are trained at once, as one batched matrix product per layer (about three minutes on one core).
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import trimtab

WIDTH, SEEDS, STEPS, DEPTHS = 32, 24, 200, (3, 6, 12, 24)
LOG2 = np.arange(-5, 2, 0.5)


def sweep(scheme: str, depth: int, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Mean loss of the last 20 steps by (rate, seed); NaN where it diverged or ended above its start."""
    n = len(LOG2)
    starts = []
    for seed in range(SEEDS):
        g = torch.Generator().manual_seed(1000 + seed)
        inner = [torch.randn(WIDTH, WIDTH, generator=g) * (2 / WIDTH) ** 0.5 for _ in range(depth)]
        starts.append([torch.randn(64, WIDTH, generator=g) * (1 / 192) ** 0.5, *inner, torch.randn(WIDTH, 10, generator=g) * (1 / WIDTH / 3) ** 0.5])
    params = [torch.stack([s[i] for s in starts]).repeat(n, 1, 1).requires_grad_() for i in range(depth + 2)]
    lr = torch.tensor(2.0**LOG2, dtype=torch.float32).repeat_interleave(SEEDS)[:, None, None]
    branch = 3**-0.5 * ((3 / depth) ** 0.5 if scheme == "depth-mup" else 1.0)  # at base width the rest of the schemes is alike
    tail, bad, first = torch.zeros(n * SEEDS), torch.zeros(n * SEEDS, dtype=torch.bool), None
    for step in range(STEPS):
        rows = torch.stack([torch.randint(0, len(x), (64,), generator=torch.Generator().manual_seed(s * 100003 + step)) for s in range(SEEDS)]).repeat(n, 1)
        h = torch.bmm(x[rows], params[0])
        for w in params[1:-1]:
            h = h + branch * torch.bmm(F.relu(h), w)
        out = torch.bmm(h, params[-1])
        loss = F.cross_entropy(out.reshape(-1, 10), y[rows].reshape(-1), reduction="none").view(-1, 64).mean(1)
        bad |= ~torch.isfinite(loss.detach())
        first = loss.detach().clone() if first is None else first
        grads = torch.autograd.grad(torch.where(bad, torch.zeros_like(loss), loss).sum(), params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.sub_(lr * torch.nan_to_num(g, 0, 0, 0).clamp(-1e6, 1e6))
                p.nan_to_num_(0, 0, 0).clamp_(-1e6, 1e6)
        tail += loss.detach() / 20 if step >= STEPS - 20 else 0.0
    return torch.where(bad | (tail >= first), torch.nan, tail).view(n, SEEDS).numpy()


def drawn(losses: dict[int, np.ndarray], seeds: int, draws: int, scheme: str) -> str:
    rng, told, held = np.random.default_rng(0), Counter(), 0
    for _ in range(draws):
        pick = rng.choice(SEEDS, seeds, replace=False)
        rows = [
            dict(state="done" if np.isfinite(m[i, j]) else "diverged", scheme=scheme, width=WIDTH, depth=depth, seed=j, lr=2.0**at, train_loss=m[i, j])
            for depth, m in losses.items()
            for i, at in enumerate(LOG2)
            for j in pick
        ]
        t = trimtab.transfer(pd.DataFrame(rows), over="depth", scheme=scheme)
        told[t.verdict] += 1
        held += t.drift.low <= 0 <= t.drift.high
    share = [f"{told[v] / draws:.1%}" for v in ("transfers", "cannot tell", "drifts")]
    return f"| {scheme} | {seeds} | {draws} | {' | '.join(share)} | {held / draws:.1%} |"


def main() -> None:
    torch.set_num_threads(1)
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    data, target = load_digits(return_X_y=True)
    x, y = torch.tensor((data - data.mean()) / data.std(), dtype=torch.float32), torch.tensor(target)
    for scheme in ("depth-mup", "mup"):
        losses = {depth: sweep(scheme, depth, x, y) for depth in DEPTHS}
        for seeds in (3, 5):
            print(drawn(losses, seeds, draws, scheme), flush=True)


if __name__ == "__main__":
    main()
