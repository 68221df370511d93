"""How fast features move, by layer and depth, under branches over depth^alpha: the mechanism behind the
exponents.

    TRIMTAB_DATA=... python experiments/exponent/features.py        a minute on one core; writes features.csv

After 50 steps at one rate on CIFAR-10 (8 px), on 256 test images: rms of what the update of a branch's first
matrix does to its
output (`inner`), over the rms of that output; the rms change of the residual stream at the end of the network
(`stream`) over
its rms; and both at the start (`start`: rms of the stream at the end over that at the beginning, before
training).
"""

import sys
from pathlib import Path

import pandas as pd
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from model import build  # noqa: E402

from trimtab.data.opening import open_data  # noqa: E402

ALPHAS, DEPTHS, STEPS, LR = (0.25, 0.5, 0.75, 1.0), (3, 6, 12, 24, 48), 50, 2.0**-4


def rms(x):
    return float(x.pow(2).mean().sqrt())


def streams(model, x):
    """The residual stream before every branch and at the end."""
    h = [model.stem(x.flatten(1))]
    for branch in model.branches:
        h.append(h[-1] + branch(h[-1]))
    return h


@torch.no_grad()
def measured(model, old, x):
    after, before = streams(model, x), streams(old, x)
    inner = []
    for branch, twin, h in zip(model.branches, old.branches, after, strict=False):
        new, was = branch.layers[0](torch.relu(h)), twin.layers[0](torch.relu(h))
        inner.append(rms(new - was) / rms(was))
    return dict(
        inner=sum(inner) / len(inner),
        stream=rms(after[-1] - before[-1]) / rms(before[-1]),
        start=rms(before[-1]) / rms(before[0]),
    )


def main():
    torch.set_num_threads(1)
    data = open_data("cifar10", {"px": 8})
    test, _ = data.batch("test", 0, 0, 256)
    rows = []
    for k in (1, 2):
        for alpha in ALPHAS:
            for depth in DEPTHS:
                for seed in range(3):
                    torch.manual_seed(seed)
                    model = build(32, depth, alpha=alpha, k=k)
                    old = build(32, depth, alpha=alpha, k=k)
                    old.load_state_dict(model.state_dict())
                    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
                    for step in range(STEPS):
                        x, y = data.batch("train", seed, step, 64)
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                    found = measured(model, old, test)
                    rows.append(
                        dict(
                            k=k,
                            alpha=alpha,
                            depth=depth,
                            seed=seed,
                            **{key: float(f"{v:.5g}") for key, v in found.items()},
                        )
                    )
    pd.DataFrame(rows).to_csv(HERE / "features.csv", index=False)


if __name__ == "__main__":
    main()
