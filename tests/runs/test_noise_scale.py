"""The gradient noise scale against closed forms and per-example gradients."""

import math

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from trimtab.runs.config import RunConfig
from trimtab.runs.noise_scale import FRESH, PARTS, noise_scale, squares
from trimtab.runs.tasks import prepare


def test_linear_regression_in_closed_form():
    """y = x.w + e, x normal in d dimensions, at weights off by v: G = v, and the trace of the covariance of
    x (x.v - e) is (d + 1) |v|^2 + d s^2."""
    d, s, b, batches = 20, 0.7, 8, 4000
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(d, generator=generator)
    x = torch.randn(batches, b, d, generator=generator)
    e = s * torch.randn(batches, b, generator=generator)
    gradients = (x * ((x @ v) - e)[..., None]).mean(1)
    few = torch.tensor([squares(part, b) for part in gradients.split(4)]).mean(0)
    square, trace = few.tolist()  # without bias, however few batches there are
    truth = float(v @ v), (d + 1) * float(v @ v) + d * s**2
    # |G + noise|^2 is off by 2 |G| times the noise along G, whose variance is below trace / examples
    assert square == pytest.approx(truth[0], abs=3 * 2 * math.sqrt(truth[0] * truth[1] / (b * batches)))
    assert trace == pytest.approx(truth[1], rel=0.05)


def test_at_the_start_it_is_that_of_the_examples():
    """All 1437 digits one by one: |G|^2 and the trace as they are, at the weights the run begins with."""
    c = RunConfig(width=32, depth=3, lr=0.05, steps=8, batch_size=8, eval_examples=0)
    task = prepare(c)
    model = task.start(c.seed)
    held = {n: p.detach() for n, p in model.named_parameters()}
    x, y = task.source.batch("train", 0, 0, 1437)

    def one(weights, x, y):
        return cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    each = vmap(grad(one), (None, 0, 0))(held, x, y)
    g = torch.cat([v.flatten(1) for v in each.values()], 1).double()
    truth = float(g.var(0, unbiased=False).sum() / g.mean(0).square().sum())
    square, trace = squares([part.mean(0) for part in g[: 179 * 8].split(8)], 8)
    # all examples in the large batch: its gradient has no noise left, so that S / B = 1.7 % of |G|^2 is taken
    # off; S from 179 batches is off by sqrt(2 / 179) where one direction holds all the noise
    assert trace / square == pytest.approx(truth, rel=0.017 + math.sqrt(2 / 179))
    fresh = [task.batch(c.seed + FRESH, part) for part in range(PARTS)]
    parts = [vmap(grad(one), (None, 0, 0))(held, *batch) for batch in fresh]
    few = [torch.cat([v.mean(0).flatten() for v in part.values()]) for part in parts]
    assert noise_scale(c).places[0] == (0, *(pytest.approx(v, rel=1e-4) for v in squares(few, 8)))


def test_it_grows_over_a_run():
    found = noise_scale(RunConfig(width=32, depth=3, lr=0.05, steps=200, batch_size=16, eval_examples=0))
    assert found.first < found.last and min(found.first, found.last) <= found.batch
