"""The gradient noise scale: a prediction of the critical batch from gradients alone (McCandlish et al.,
arXiv 1812.06162, appendix A.1).

With G the gradient and S the trace of its covariance over examples, a batch of B has E |g_B|^2 = |G|^2 + S/B.
Two batch sizes b < B, here m batches of b and their mean, B = m b, give both without bias,

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b),    S = (|g_b|^2 - |g_B|^2) / (1/b - 1/B),    scale = S / |G|^2

in examples (or sequences). Below it noise dominates and a larger batch allows a larger rate; SGD's best rate
for one step is lr_max / (1 + scale / B). It is the raw gradient's, in the norm of the weights as they are
stored: an adaptive optimizer has another one, and over a run it grows. So it is a prediction, no measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from trimtab.errors import InputError
from trimtab.runs.config import RunConfig
from trimtab.runs.losses import length
from trimtab.runs.training import Run

PARTS = 16  # m: small batches in a large one
PLACES = 8  # of a run, where it is measured
FRESH = 1_000_003  # batches that the run itself does not see: another seed


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale along one run.

    batch: the median over the places, in examples. first, last: over the first and the second half of them.
    places: [(step, squared gradient, trace of the covariance)].
    """

    batch: float
    first: float
    last: float
    places: tuple[tuple[int, float, float], ...]


def squares(gradients: Sequence[Tensor], size: float) -> tuple[float, float]:
    """(|G|^2, S) from the gradients of some batches of `size` examples each.

    >>> g = [torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])]
    >>> squares(g, size=4)
    (0.0, 8.0)
    """
    many = torch.stack([g.double() for g in gradients])
    small, large = float(many.square().sum(1).mean()), float(many.mean(0).square().sum())
    total = size * len(gradients)
    return (total * large - size * small) / (total - size), (small - large) / (1 / size - 1 / total)


def noise_scale(config: RunConfig, *, stop: Callable[[], bool] | None = None) -> NoiseScale:
    """Train a run and measure the noise scale at eight places of it.

    Costs the run and 8 x 16 further gradients of its batch size.

    >>> found = noise_scale(RunConfig(width=16, depth=3, lr=0.05, steps=24, batch_size=8, eval_examples=0))
    >>> found.batch > 1, len(found.places)
    (True, 8)
    """
    run = Run(config.replace(compile=False))
    if run.task.random:
        raise InputError("the noise scale needs a forward without random numbers: this model has dropout.")
    if config.steps < 2:
        raise InputError(f"the noise scale is measured along a run of two steps or more: got {config.steps}.")
    at = {round(i * config.steps / PLACES) for i in range(PLACES)}
    places = []
    for step in range(config.steps):
        if stop is not None and stop():
            raise InputError("the noise scale needs the whole run: it was stopped.")
        if step in at:
            places.append((step, *_here(run, step)))
        run.losses.append(run.step(step))
    half = len(places) // 2
    return NoiseScale(_middle(places), _middle(places[:half]), _middle(places[half:]), tuple(places))


def _here(run: Run, step: int) -> tuple[float, float]:
    parameters = [p for p in run.model.parameters() if p.requires_grad]
    found, size = [], 1.0
    for part in range(PARTS):
        batch = run.task.cast(run.task.batch(run.config.seed + FRESH, step * PARTS + part))
        size = float(length(batch))
        loss, _ = run.task.evaluate(run.model, batch)
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return squares(found, size)


def _middle(places: Sequence[tuple[int, float, float]]) -> float:
    """The median of S / |G|^2; infinite where the gradient is lost in the noise."""
    return median(s / g if g > 0 else float("inf") for _, g, s in places)
