r"""What is asked: data, network and optimizer, checked once, in the units of the limit.

Every solver of this package takes the same arguments; they become one `Problem`, or one error that lists all
faults.

    K^x = x x^T / D        b = beta L^-alpha        rho = L^{2 alpha - 1} (block rate, 1 at alpha = 1/2)
    drive_nu(t,s) = gamma_0 a(t,s) m_nu(s)          Delta enters the fields only through drive * Delta

See docs/theory.md, equations (1) and (28).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from trimtab.errors import faults
from trimtab.theory.activations import Activation, Function
from trimtab.theory.activations import activation as _activation
from trimtab.theory.losses import LOSSES
from trimtab.theory.optimizers import memory


@dataclass(frozen=True)
class Problem:
    """Checked arguments. Train points come first, then test points; `y` is (P, C)."""

    inputs: torch.Tensor  # (P + Q, D)
    y: torch.Tensor  # (P, C)
    depth: float  # L, or math.inf
    activation: Activation
    steps: int
    gamma0: float
    alpha: float
    beta: float
    loss: str
    a: torch.Tensor  # (1, T+1, T), or one per trajectory where they differ in their rates
    d: torch.Tensor  # (1, T+1), likewise
    batch: torch.Tensor  # (T, P), rows sum to 1
    single: bool  # y was (P,): outputs lose their last axis

    @property
    def points(self) -> int:
        return len(self.y)

    @property
    def outputs(self) -> int:
        return self.y.shape[1]

    @property
    def tests(self) -> int:
        return len(self.inputs) - len(self.y)

    @property
    def gram(self) -> torch.Tensor:
        """K^x over train and test points."""
        return self.inputs @ self.inputs.T / self.inputs.shape[1]

    @property
    def branch(self) -> float:
        """b = beta L^-alpha."""
        return self.beta * self.depth**-self.alpha

    @property
    def block_rate(self) -> float:
        """rho = L^{2 alpha - 1}."""
        return self.depth ** (2 * self.alpha - 1)

    def drive(self, t: int) -> torch.Tensor:
        """gamma_0 a(t,s) m_nu(s) for s < t, (1 or n, t, P)."""
        return self.gamma0 * self.a[:, t, :t, None] * self.batch[:t]

    def decay(self, t: int) -> torch.Tensor:
        """d(t) (1 or n,)."""
        return self.d[:, t]

    def at_depth(self, depth: int) -> Problem:
        """The same problem at finite `depth`. Every alpha > 1/2 has the limit of alpha = 1,
        reached fastest there (docs/theory.md, equation (36))."""
        alpha = 1.0 if self.alpha > 0.5 else self.alpha
        return replace(self, depth=depth, alpha=alpha)


def _kind(value) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def _array(name: str, value, problems: list[str]) -> np.ndarray | None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value if value.is_complex() else value.double()).numpy()
    try:
        if value is None or np.iscomplexobj(value):
            raise TypeError
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        problems.append(f"{name}: must be real numbers in a rectangular array, got {_kind(value)}.")
        return None
    if not np.isfinite(array).all():
        problems.append(
            f"{name}: must be finite, {int((~np.isfinite(array)).sum())} of {array.size} entries are not."
        )
        return None
    return array


def _targets(y: np.ndarray, loss: str, problems: list[str]) -> tuple[np.ndarray, bool]:
    """y as (P, C), and whether the user gave (P,)."""
    single = y.ndim == 1
    if loss == "softmax":
        if single:
            labels = y.astype(int)
            if (labels != y).any() or (labels < 0).any() or labels.max(initial=0) < 1:
                problems.append(
                    f"y: softmax labels must be integers 0..C-1 with C >= 2, got {np.unique(y).tolist()}."
                )
                return np.zeros((len(y), 2)), False
            return np.eye(labels.max() + 1)[labels], False
        if (y < 0).any() or not np.allclose(y.sum(1), 1):
            problems.append(
                "y: softmax targets (P, C) must be probabilities, rows >= 0 that sum to 1. "
                "Or pass labels (P,)."
            )
        return y, False
    if loss == "logistic":
        if not (np.isin(y, (-1, 1)).all() or np.isin(y, (0, 1)).all()):
            problems.append(f"y: logistic targets must be -1/+1 or 0/1, got {np.unique(y)[:6].tolist()}.")
        elif (y == 0).any():
            y = 2 * y - 1
    return (y[:, None] if single else y), single


def _batches(batches, steps: int, points: int, problems: list[str]) -> np.ndarray:
    weights = np.full((steps, points), 1.0 / points)
    if batches is None:
        return weights
    if isinstance(batches, (int, float)) or len(batches) != steps:
        got = batches if isinstance(batches, (int, float)) else f"{len(batches)} batches"
        problems.append(f"batches: needs one list of point indices per step, steps = {steps}, got {got}.")
        return weights
    for t, chosen in enumerate(batches):
        index = np.atleast_1d(np.asarray(chosen))
        if index.size == 0 or index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= points:
            problems.append(f"batches: step {t} must hold indices 0..{points - 1}, got {index.tolist()[:8]}.")
            return weights
        weights[t] = np.bincount(index, minlength=points) / index.size
    return weights


def _number(name: str, value, low: float, problems: list[str], *, strict=False, below=math.inf) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    law = f"{'>' if strict else '>='} {low:g}" + (f" and < {below:g}" if below < math.inf else "")
    if not (number > low if strict else number >= low) or not number < below:
        problems.append(f"{name}: must be a number {law}, got {value!r}.")
        return max(low, 0.0) + 0.5
    return number


def _depth(depth, alpha: float, problems: list[str]) -> float:
    if depth == math.inf:
        if alpha < 0.5:
            problems.append(
                f"depth: the infinite-depth limit needs alpha >= 1/2, got alpha = {alpha:g}: "
                f"L branches of variance L^-2alpha add up to L^{{1-2alpha}}. Pass a finite depth."
            )
        return math.inf
    if isinstance(depth, bool) or not isinstance(depth, (int, np.integer)) or depth < 1:
        problems.append(
            f"depth: the number of residual branches L must be an integer >= 1 or math.inf, got {depth!r}."
            " For a network without branches pass beta=0, depth=1: the two-layer mean field network."
        )
        return 1
    return int(depth)


class _Data(NamedTuple):
    x: np.ndarray | None
    y: np.ndarray | None
    test: np.ndarray | None
    single: bool  # y was (P,)


def _data(x: ArrayLike, y: ArrayLike, x_test: ArrayLike | None, loss: str, problems: list[str]) -> _Data:
    """Points and targets as arrays; None where they are at fault."""
    points, targets = _array("x", x, problems), _array("y", y, problems)
    test = None if x_test is None else _array("x_test", x_test, problems)
    if loss not in LOSSES:
        problems.append(f"loss: must be one of {', '.join(LOSSES)}, got {loss!r}.")
    if points is not None and (points.ndim != 2 or 0 in points.shape):
        problems.append(f"x: must be (P, D) with P, D >= 1, got shape {points.shape}.")
        points = None
    single = True
    if targets is not None and points is not None:
        if targets.ndim not in (1, 2) or len(targets) != len(points) or targets.size == 0:
            shapes = f"x is (P, D) = {points.shape}, y is {targets.shape}"
            problems.append(f"y: needs one target per row of x, {shapes}.")
        elif loss in LOSSES:
            targets, single = _targets(targets, loss, problems)
    if test is not None and points is not None and (test.ndim != 2 or test.shape[1] != points.shape[1]):
        problems.append(f"x_test: must be (Q, D) with D = {points.shape[1]} as in x, got shape {test.shape}.")
    return _Data(points, targets, test, single)


def _rates(
    lr: float | ArrayLike, steps: int, momentum: float, weight_decay: float, problems: list[str]
) -> np.ndarray | None:
    """eta_0 of each step."""
    rates = _array("lr", lr, problems)
    if rates is not None and rates.ndim == 0:
        rates = np.full(steps, float(rates))
    if rates is not None and rates.shape != (steps,):
        problems.append(
            f"lr: must be one rate eta_0, or one per step: steps = {steps}, got shape {rates.shape}."
        )
    elif rates is not None and ((rates < 0).any() or not rates.any()):
        problems.append(
            f"lr: rates eta_0 must be >= 0 and not all 0, got {float(rates.min()):g} to "
            f"{float(rates.max()):g}."
        )
    elif rates is not None and rates.max() * weight_decay > 2 * (1 + momentum):
        problems.append(
            f"lr: unstable whatever the data, lr * weight_decay = {rates.max() * weight_decay:g} must stay "
            f"below 2 (1 + momentum) = {2 * (1 + momentum):g}. Lower lr or weight_decay."
        )
    return rates


def problem(
    x: ArrayLike,
    y: ArrayLike,
    *,
    depth: float,
    activation: str | Function | Activation,
    lr: float | ArrayLike,
    steps: int,
    gamma0: float = 1.0,
    alpha: float = 0.5,
    beta: float = 1.0,
    loss: str = "mse",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batches: Sequence[Sequence[int]] | None = None,
    x_test: ArrayLike | None = None,
) -> Problem:
    """Check all arguments at once and put them in the units of the limit.

    >>> problem([[1.0, 0.0]], [1.0, 2.0], depth=1, activation="relu", lr=0.1, steps=0)
    Traceback (most recent call last):
    trimtab.errors.InputError: 2 faults in the arguments
      - y: needs one target per row of x, x is (P, D) = (1, 2), y is (2,).
      - steps: the number of gradient steps T must be an integer >= 1, got 0.
    """
    problems: list[str] = []
    data = _data(x, y, x_test, loss, problems)
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        problems.append(f"steps: the number of gradient steps T must be an integer >= 1, got {steps!r}.")
        steps = 1
    steps = int(steps)
    gamma0 = _number("gamma0", gamma0, 0.0, problems, strict=True)
    alpha = _number("alpha", alpha, 0.0, problems)
    beta = _number("beta", beta, 0.0, problems)
    momentum = _number("momentum", momentum, 0.0, problems, below=1.0)
    weight_decay = _number("weight_decay", weight_decay, 0.0, problems)
    depth = _depth(depth, alpha, problems)

    rates = _rates(lr, steps, momentum, weight_decay, problems)
    try:
        phi = _activation(activation)
    except ValueError as error:
        problems.append(f"activation: {error}")
        phi = _activation("linear")
    weights = _batches(batches, steps, len(data.x), problems) if data.x is not None else None
    if problems:
        raise faults(f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments", problems)
    assert data.x is not None and data.y is not None  # or there is a fault
    assert rates is not None and weights is not None

    a, d = memory(rates, momentum, weight_decay)
    tensor = torch.from_numpy
    return Problem(
        inputs=tensor(data.x if data.test is None else np.concatenate([data.x, data.test])),
        y=tensor(np.ascontiguousarray(data.y)),
        depth=depth,
        activation=phi,
        steps=steps,
        gamma0=gamma0,
        alpha=alpha,
        beta=beta,
        loss=loss,
        a=tensor(a.copy())[None],
        d=tensor(d.copy())[None],
        batch=tensor(weights),
        single=data.single,
    )
