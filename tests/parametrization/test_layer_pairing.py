"""Deeper models without a chain of residual branches: refused over depth, carried over width by "mup"."""

import pickle
import warnings

import pytest
import torch
from skips import SKIPS, X, plan
from torch import nn

import trimtab
from trimtab.errors import StructureError


class Plain(nn.Module):
    """Layers in a row; the first reads inputs, the last makes outputs, all in one list."""

    def __init__(self, n, depth, beside=1, constants=()):
        super().__init__()
        sizes = [6, *[n] * (depth - 1), 5]
        self.layers = nn.ModuleList(map(nn.Linear, sizes[:-1], sizes[1:]))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(n, n) for _ in range(beside)) for _ in range(depth - 1)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(depth - 1))
        self.constants = constants

    def forward(self, x):
        *layers, last = self.layers
        for layer, norm, experts in zip(layers, self.norms, self.experts, strict=True):
            x = torch.tanh(norm(layer(x)))
            x = sum(torch.tanh(expert(x)) for expert in experts)
        for constant in self.constants:
            x = x * constant
        return last(x)


def planned(model, base, scheme="mup"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.parametrize(model, base, example=X, scheme=scheme)


def test_a_deeper_plain_model_is_refused_over_depth_with_the_scheme_that_works():
    with pytest.raises(StructureError, match="without them no rule carries over depth") as caught:
        planned(Plain(64, 8), Plain(64, 4), "depth-mup")
    assert caught.value.scheme == "mup" and 'scheme="mup": tried' in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).scheme == "mup"
    model = Plain(64, 8)
    before = {name: q.detach().clone() for name, q in model.named_parameters()}
    p = planned(model, Plain(64, 4), caught.value.scheme)
    assert p.depth > 1 and p.proof.verdict == "not claimed"
    assert any("nothing is claimed over it" in note for note in p.notes)
    assert all(torch.equal(q, before[name]) for name, q in model.named_parameters())  # depth is left alone


def test_a_plain_model_that_is_wider_and_deeper_gets_the_factors_of_its_width():
    torch.manual_seed(0)
    p, wide = planned(Plain(256, 8), Plain(64, 4)), planned(Plain(256, 4), Plain(64, 4))
    for name, twin in {"0": "0", "1": "1", "6": "2", "7": "3"}.items():
        for part in ("weight", "bias"):
            mine, theirs = p[f"layers.{name}.{part}"], wide[f"layers.{twin}.{part}"]
            assert (mine.role, mine.init, mine.u, mine.s) == (theirs.role, theirs.init, theirs.u, theirs.s)
            assert mine.rescale == pytest.approx(theirs.rescale)


def test_layers_side_by_side_are_no_depth():
    assert planned(Plain(64, 8, beside=2), Plain(64, 4, beside=2)).depth > 1
    with pytest.raises(StructureError, match="no counterpart") as caught:
        planned(Plain(64, 8, beside=4), Plain(64, 4, beside=2))
    assert caught.value.scheme is None


def test_constants_that_cannot_be_compared_are_refused_where_the_width_differs():
    with pytest.raises(StructureError, match="Change one of width and depth"):
        planned(Plain(256, 8, constants=(2.0, 0.5)), Plain(64, 4, constants=(3.0,)))
    planned(Plain(64, 8, constants=(2.0, 0.5)), Plain(64, 4, constants=(3.0,)))  # the depth's own


def test_a_model_with_skips_of_which_the_base_has_none_is_another_one():
    class Skipping(Plain):
        def forward(self, x):
            first, *layers, last = self.layers
            x = first(x)
            for layer in layers:
                x = x + torch.tanh(layer(x))
            return last(x)

    with pytest.raises(StructureError, match="base has none"):
        planned(Skipping(64, 8), Plain(64, 4))


@pytest.mark.parametrize("name", ["unet joined", "hyper-connections", "dense sums", "highway"])
def test_skips_beyond_the_block_have_a_scheme_that_works(name):
    with pytest.raises(StructureError) as caught:
        plan(SKIPS[name], (64, 8), (64, 2))
    error = caught.value
    assert error.suggestion or error.scheme == "mup"
    if error.scheme:
        _, p = plan(SKIPS[name], (64, 8), (64, 2), scheme=error.scheme)
        assert p.proof.verdict == "not claimed"


class Halving(nn.Module):
    """Outside training, each block halves its weights in place the first time it runs (RWKV's rescaling)."""

    def __init__(self, n, depth):
        super().__init__()
        self.stem, self.head = nn.Linear(6, n), nn.Linear(n, 5)
        self.blocks = nn.ModuleList(nn.Linear(n, n, bias=False) for _ in range(depth))
        self.halved = False

    def forward(self, x):
        if not self.training and not self.halved and len(self.blocks) > 2:
            with torch.no_grad():
                for block in list(self.blocks)[2:]:
                    block.weight.mul_(0.5)
            self.halved = True
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_a_forward_that_writes_to_its_parameters_is_named():
    with pytest.raises(StructureError, match=r"writes to its own parameters.*blocks\.2\.weight"):
        planned(Halving(64, 8), Halving(64, 2), "depth-mup")
