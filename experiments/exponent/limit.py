"""What the infinitely wide network says of the exponent, k = 1: the best rate by depth under branches over
depth^alpha.

    python experiments/exponent/limit.py        a few minutes on one core; writes limit.csv

The theory's own units: four digits, relu, mean squared error, plain gradient descent. beta makes every alpha
the same at depth 3.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from trimtab import theory

ALPHAS, DEPTHS, POINTS, STEPS = (0.0, 0.25, 0.5, 0.75, 1.0), (3, 6, 12, 24), 4, 12
RATES = 2.0 ** np.arange(-4, 2.1, 0.5)


def main():
    images, labels = load_digits(return_X_y=True)
    x = images[:POINTS] - images[:POINTS].mean()
    x = x / np.linalg.norm(x, axis=1, keepdims=True) * 8
    y = np.where(labels[:POINTS] % 2 == 0, 1.0, -1.0)
    rows = []
    for alpha in ALPHAS:
        for depth in DEPTHS:
            for lr in RATES:
                case = dict(
                    activation="relu",
                    steps=STEPS,
                    samples=2000,
                    alpha=alpha,
                    beta=3 ** (alpha - 0.5),
                    depth=depth,
                )
                try:
                    loss = float(theory.solve(x, y, lr=float(lr), **case).loss[-1])
                except Exception as error:  # a rate beyond the edge is a result
                    loss, _ = math.inf, error
                rows.append(dict(alpha=alpha, depth=depth, lr=float(lr), loss=float(f"{loss:.6g}")))
            print(alpha, depth, [r["loss"] for r in rows[-len(RATES) :]], flush=True)
    pd.DataFrame(rows).to_csv(Path(__file__).parent / "limit.csv", index=False)


if __name__ == "__main__":
    main()
