"""A teacher whose best rate is known: 1/2 a x^2 with gradient noise of variance sigma^2 / B on every step.

SGD and heavy ball are linear, so that their mean square follows an exact recursion. Sign descent steps +-lr
with probabilities that follow from the noise, so that its law on the lattice x0 + k lr is an exact Markov
chain. Adam is run, torch's own, on many independent copies.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from scipy.special import ndtr


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """Curvatures a, start x0, noise sigma of one example; `tokens` examples are seen in all."""

    a: tuple[float, ...] = (1.0,)
    x0: float = 1.0
    sigma: float = 4.0
    tokens: int = 4096

    def sgd(self, lr, batch=1.0, momentum=0.0, decay=0.0, longer=1.0) -> float:
        """Expected loss after tokens x longer / batch steps of heavy ball, exactly."""
        a = np.array(self.a)
        k, m, noise = a + decay, momentum, self.sigma**2 / batch
        step = np.zeros((len(a), 4, 4))  # on (xx, xv, vv, 1): v' = m v + k x + noise, x' = x - lr v'
        vv = np.stack([k**2, 2 * m * k, m**2 + 0 * k, noise + 0 * k], -1)
        xv = np.stack([k, m + 0 * k, 0 * k, 0 * k], -1)
        step[:, 0] = np.array([1.0, 0, 0, 0]) - 2 * lr * xv + lr**2 * vv
        step[:, 1], step[:, 2], step[:, 3, 3] = xv - lr * vv, vv, 1.0
        with np.errstate(all="ignore"):
            after = np.linalg.matrix_power(step, round(self.tokens * longer / batch))
            loss = float(0.5 * np.sum(a * (after[:, 0] @ np.array([self.x0**2, 0, 0, 1.0]))))
        return loss if math.isfinite(loss) else math.inf

    def sign(self, lr: float, batch: float = 1.0, longer: float = 1.0) -> float:
        """Expected loss of x <- x - lr sign(gradient), exactly (one curvature)."""
        (a,) = self.a
        steps = round(self.tokens * longer / batch)
        reach = min(steps, math.ceil((self.x0 + 40 * math.sqrt(lr * self.sigma)) / lr) + 8)
        x = self.x0 + lr * np.arange(-reach, reach + 1)
        down = ndtr(a * x * math.sqrt(batch) / self.sigma)  # the gradient is positive
        p = np.zeros(2 * reach + 1)
        p[reach] = 1.0
        for _ in range(steps):
            new = np.zeros_like(p)
            new[:-1] += (down * p)[1:]
            new[1:] += ((1 - down) * p)[:-1]
            new[0] += down[0] * p[0]
            new[-1] += (1 - down[-1]) * p[-1]
            p = new
        return float(0.5 * a * np.sum(p * x**2))

    def adam(self, lr: float, batch: float, copies: int, cls=torch.optim.AdamW, **hyper) -> float:
        """Mean loss of torch's optimizer over independent copies, from 0 to a minimum at x0: decay pulls
        back."""
        (a,) = self.a
        generator = torch.Generator().manual_seed(round(batch * 1000))
        x = torch.zeros(copies)
        optimizer = cls([x], lr=lr, **hyper)
        scale = self.sigma / math.sqrt(batch)
        for _ in range(round(self.tokens / batch)):
            x.grad = a * (x - self.x0) + scale * torch.randn(copies, generator=generator)
            optimizer.step()
        return float(0.5 * a * (x - self.x0).double().square().mean())


def best(loss, low: float, high: float, near: float = 1e-3) -> tuple[float, float]:
    """(log2 of the best rate, its loss), by golden section between 2^low and 2^high, to `near` octaves."""
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > near:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(2.0**left) < loss(2.0**right):
            high = right
        else:
            low = left
    middle = (low + high) / 2
    return middle, loss(2.0**middle)
