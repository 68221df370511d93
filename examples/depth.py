"""Train a residual MLP on the digits at depths 3 to 24, with and without depth scaling, and print the loss table.

One learning rate per column, the same at every depth: with depth-mup the best column stays where it is.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import trimtab

WIDTH, BASE_DEPTH, DEPTHS = 32, 3, (3, 6, 12, 24)
RATES = [2.0**k for k in range(-6, 3)]
STEPS, BATCH = 200, 64


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.fc.weight, std=(2 / width) ** 0.5)

    def forward(self, h):
        return h + 3**-0.5 * self.fc(F.relu(h))


def build(width, depth):
    return nn.Sequential(nn.Linear(64, width), *[Block(width) for _ in range(depth)], nn.Linear(width, 10))


def train(scheme, depth, lr, x, y):
    torch.manual_seed(0)
    base, model = build(WIDTH, BASE_DEPTH), build(WIDTH, depth)
    p = trimtab.parametrize(model, base, scheme=scheme, example=x[:2])
    optimizer = p.optimizer(torch.optim.SGD, lr=lr)
    total = 0.0
    for step in range(STEPS):
        rows = torch.randint(0, len(x), (BATCH,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        if not torch.isfinite(loss):
            return float("nan")
        loss.backward()
        optimizer.step()
        total += loss.item() if step >= STEPS - 20 else 0.0
    return total / 20


def digits():
    data = load_digits()
    x = torch.tensor((data.data - data.data.mean()) / data.data.std(), dtype=torch.float32)
    return x, torch.tensor(data.target)


def main():
    torch.set_num_threads(1)
    x, y = digits()
    for scheme in ("mup", "depth-mup"):
        print(f"\n{scheme}: training loss of the last 20 of {STEPS} steps, SGD, digits, width {WIDTH}; * best of its row\n")
        print("depth   " + "".join(f"lr 2^{torch.tensor(r).log2().int().item():<+5d}" for r in RATES))
        for depth in DEPTHS:
            losses = [train(scheme, depth, lr, x, y) for lr in RATES]
            best = min((v for v in losses if v == v), default=None)
            print(f"{depth:5d}   " + "".join(f"{'diverged' if v != v else f'{v:.3f}' + '*' * (v == best):<10s}" for v in losses))
    print("\nWithout depth scaling the best rate moves down as the network gets deeper, until nothing trains.")
    print("With it (branches over sqrt(depth)), one rate serves every depth.")


if __name__ == "__main__":
    main()
