"""How much the hidden matrices of a residual network move its output, and how that moves with the width.

L = mean(c y) for a fixed random c: what one optimizer does to L, hidden matrices alone, a few steps. It is
the aligned change; a change by chance falls with the width and would hide the law.
"""

import inspect

import torch
from torch import nn

import trimtab

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(5))
C = torch.randn(16, 5, generator=torch.Generator().manual_seed(6))


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.up, self.down = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)

    def forward(self, h):
        return h + self.down(torch.tanh(self.up(h)))


class Net(nn.Module):
    def __init__(self, n, blocks=2):
        super().__init__()
        self.stem = nn.Linear(6, n)
        self.blocks = nn.ModuleList(Block(n) for _ in range(blocks))
        self.head = nn.Linear(n, 5)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def _wants(optimizer):
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def change(cls, lr, width, base=32, steps=4, seeds=2, groups=None, **hyper):
    """Fall of L by the hidden matrices of a net this wide, mean over draws. `groups`: others than p's own."""
    total = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = Net(width)
        p = trimtab.parametrize(model, Net(base), example=X)
        hidden = "blocks.*"
        given = groups(p, model) if groups else p.groups(cls, lr, only=hidden, weight_decay=0.0, **hyper)
        optimizer = cls(given, lr=lr, **hyper)
        if hasattr(optimizer, "train"):
            optimizer.train()
        losses = []

        def closure(model=model, optimizer=optimizer, losses=losses):
            with torch.enable_grad():
                optimizer.zero_grad()
                loss = (C * model(X)).mean()
                loss.backward()
            losses.append(loss.item())
            return loss

        with torch.compiler.set_stance("force_eager"):
            for _ in range(steps):
                closure()
                optimizer.step(*([closure] if _wants(optimizer) else []))
        closure()
        total += losses[0] - losses[-1]
    return total / seeds


def ratio(cls, lr, widths=(32, 512), **more):
    """The change at the second width over that at the first, the base."""
    small, large = (change(cls, lr, width, base=widths[0], **more) for width in widths)
    return large / small
