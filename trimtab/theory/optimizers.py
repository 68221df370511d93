r"""Linear optimizers as two scalar tables: W(t) = d(t) W(0) + sum_{s<t} a(t,s) (-grad(s)).

SGD with heavy ball and coupled L2, as `torch.optim.SGD` does it,

    v(t+1) = momentum v(t) + grad(t) + lambda W(t),      W(t+1) = W(t) - lr(t) v(t+1),      v(0) = 0,

is linear in (W(0), grad), so its whole effect on the mean field equations is d(t), the memory of the start,
and a(t,s), what a gradient at step s has done by step t (docs/theory.md, equation (28)). Both come from
running the recursion once on scalars. Adam is not linear, and is not here.
"""

from __future__ import annotations

import numpy as np


def memory(lr: np.ndarray, momentum: float = 0.0, weight_decay: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """a (T+1, T) and d (T+1,) for rates `lr` (T,) in units of eta_0; `weight_decay` is lambda_0 = gamma^2
    lambda_torch.

    >>> a, d = memory(np.array([0.1, 0.2]))
    >>> a.tolist(), d.tolist()
    ([[0.0, 0.0], [0.1, 0.0], [0.1, 0.2]], [1.0, 1.0, 1.0])
    """
    steps = len(lr)
    weight = np.zeros(steps + 1)  # response to W(0), then to -grad(s) for each s
    weight[0] = 1.0
    velocity = np.zeros_like(weight)
    rows = [weight.copy()]
    for t in range(steps):
        velocity = momentum * velocity + weight_decay * weight
        velocity[t + 1] -= 1.0
        weight = weight - lr[t] * velocity
        rows.append(weight.copy())
    table = np.stack(rows)
    return table[:, 1:], table[:, 0]
