"""The first steps move the network by the same amount at every size.

RMS change, on a fixed probe batch, of the residual stream before the head and of the logits, after 1 to 5 steps, mean of
three seeds, in train mode. Over 8x width and 8x depth its log-log slope is within 0.15 of 0; under `sp` it is not.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from structures import CASES, IDS, X

import trimtab

RUNS = {"adamw": (torch.optim.AdamW, 1e-3), "sgd": (torch.optim.SGD, 0.1)}
PROBE = torch.randn(64, X.shape[1], generator=torch.Generator().manual_seed(5))
MODELS = {"residual-mlp": ("head", PROBE), "pre-norm-transformer": ("norm", IDS)}
STEPS, SEEDS = 5, 3


def change(name, size, base, scheme, opt, seed):
    """log RMS change of (stream, logits) after each step."""
    before_head, probe = MODELS[name]
    cls, lr = RUNS[opt]
    torch.manual_seed(seed)
    model, small = CASES[name].build(*size), CASES[name].build(*base)
    p = trimtab.parametrize(model, small, scheme=scheme, example=probe)
    optimizer = p.optimizer(cls, lr=lr)
    seen = {}
    handle = getattr(model, before_head).register_forward_pre_hook(lambda _, args: seen.update(stream=args[0]))

    def look():
        with torch.no_grad():
            logits = model(probe)
        return seen["stream"].clone(), logits

    start, out = look(), []
    target = torch.randint(0, 5, (len(PROBE),), generator=torch.Generator().manual_seed(7)) if name == "residual-mlp" else IDS.roll(-1, 1).flatten()
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(probe).flatten(0, -2), target).backward()
        optimizer.step()
        out.append([(a - b).pow(2).mean().sqrt().item() for a, b in zip(look(), start, strict=True)])
    handle.remove()
    return torch.tensor(out)


def slopes(name, sizes, scheme, opt):
    """Slope per step and quantity of log change against log size (four sizes, x 1 2 4 8)."""
    rows = [torch.stack([change(name, size, sizes[0], scheme, opt, seed) for seed in range(SEEDS)]).mean(0).log() for size in sizes]
    x = torch.tensor([math.log(2.0) * i for i in range(len(sizes))])
    x = x - x.mean()
    return (torch.stack(rows) * x[:, None, None]).sum(0) / x.square().sum()


WIDTHS = [(32 * k, 3) for k in (1, 2, 4, 8)]
DEPTHS = [(48, 3 * k) for k in (1, 2, 4, 8)]


@pytest.mark.parametrize("opt", RUNS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("axis", "scheme"), [("width", "depth-mup"), ("depth", "depth-mup"), ("depth", "completep")])
def test_flat(name, axis, scheme, opt):
    found = slopes(name, WIDTHS if axis == "width" else DEPTHS, scheme, opt)
    assert found.abs().max() <= 0.15, found


@pytest.mark.parametrize("opt", RUNS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("axis", ["width", "depth"])
def test_plain_torch_is_not_flat(name, axis, opt):
    found = slopes(name, WIDTHS if axis == "width" else DEPTHS, "sp", opt)
    assert not found.abs().max() <= 0.3, found  # diverged counts too
