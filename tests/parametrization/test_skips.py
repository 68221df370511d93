"""Numbers of paths and experts, skips beyond the block, and advice that was tried: right, or refused."""

import pytest
import torch
from skips import EXPERTS, PATHS, SKIPS, X, flatness, plan
from torch import nn

import trimtab
from trimtab.errors import StructureError


@pytest.mark.parametrize("name", ["paths", "stacked by bmm", "averaged"])
def test_like_paths_are_counted_as_branches(name):
    _, p = plan(PATHS[name], (64, 8), (64, 2))
    assert p.depth == 4.0 and p.proof.verdict == "good"
    tail = next(t for t in p.branches[0].tail if t.endswith(("down.weight", "down")))
    own = 4.0 if name == "averaged" else 1.0  # 1/K is in the forward already
    assert p[tail].init == pytest.approx(own * 4**-0.5) and p[tail].u == pytest.approx(own / 4)
    assert any("counts as a branch" in note for note in p.notes)


@pytest.mark.parametrize("name", PATHS)
def test_like_paths_move_alike(name):
    features, outputs = flatness(PATHS[name], (64, 8), (64, 2), seeds=2)
    assert 0.7 < features < 1.4 and 0.7 < outputs < 1.4


def test_paths_beside_an_ordinary_branch_leave_it_alone():
    class Both(nn.Module):
        def __init__(self, n, k):
            super().__init__()
            self.one = PATHS["paths"](n, 1).blocks[0]
            self.many = PATHS["paths"](n, k).blocks[0]

        def forward(self, h):
            return self.many(self.one(h))

    class Model(nn.Module):
        def __init__(self, n, k):
            super().__init__()
            self.stem, self.block, self.head = nn.Linear(6, n), Both(n, k), nn.Linear(n, 5)

        def forward(self, x):
            return self.head(self.block(self.stem(x)))

    _, p = plan(Model, (64, 8), (64, 2))
    assert p["block.one.paths.0.down.weight"].m_L == 1.0
    assert p["block.many.paths.0.down.weight"].m_L == 4.0 and p.proof.verdict == "good"


@pytest.mark.parametrize("name", ["dense", "top-k"])
def test_experts_follow_the_mean_field_rule(name):
    _, p = plan(EXPERTS[name], (64, 16), (64, 4))
    row = p["blocks.0.experts.3.down.weight"]
    assert (row.init, row.u, row.s) == pytest.approx((1.0, 1.0, 0.25))
    assert any("2601.20205" in note for note in p.notes) and p.proof.verdict == "good"


def named_otherwise(n, k):
    """Blocks whose skip is hidden from the record, under names of their own."""
    body = nn.ModuleList(nn.Linear(n, n) for _ in range(k))
    model = nn.Module()
    model.stem, model.steps, model.head = nn.Linear(6, n), body, nn.Linear(n, 5)

    def forward(x):
        h = model.stem(x)
        for step in model.steps:
            h = torch.tanh(step(h))
        return model.head(h)

    model.forward = forward
    return model


def test_advice_names_what_the_model_has_or_says_that_nothing_holds():
    with pytest.raises(StructureError) as caught:
        trimtab.parametrize(named_otherwise(64, 8), named_otherwise(64, 2), example=X)
    assert "blocks" not in str(caught.value)
    suggestion = caught.value.suggestion
    if suggestion is None:
        assert "No override was found" in str(caught.value)
    else:
        p = trimtab.parametrize(
            named_otherwise(64, 8), named_otherwise(64, 2), example=X, overrides=suggestion
        )
        assert p.proof.verdict != "wrong"


RIGHT = [
    "packed on branches",
    "packed on the stream",
    "scalar gate",
    "value residual learned",
    "value embeddings",
    "x0 learned",
]


@pytest.mark.parametrize("name", RIGHT)
def test_skips_that_are_right_over_depth(name):
    _, p = plan(SKIPS[name], (64, 8), (64, 2))
    assert p.depth == 4.0 and len(p.branches) == 8 and p.proof.verdict == "good"
    features, outputs = flatness(SKIPS[name], (64, 8), (64, 2), seeds=2)
    assert 0.75 < features < 1.33 and 0.75 < outputs < 1.33


def test_packed_numbers_get_what_they_get_one_by_one():
    _, p = plan(SKIPS["packed on branches"], (64, 8), (64, 2))
    row = p["lambdas"]
    assert row.place == "tail" and (row.init, row.u, row.s) == pytest.approx((0.5, 0.25, 1.0))


@pytest.mark.parametrize("name", ["lerp", "lerp learned", "halved"])
def test_a_stream_that_forgets_is_refused_over_depth_and_right_over_width(name):
    with pytest.raises(StructureError, match="kept whole"):
        plan(SKIPS[name], (64, 8), (64, 2))
    _, p = plan(SKIPS[name], (256, 2), (64, 2))
    assert p.proof.verdict == "good"


BEYOND = ["x0 fixed", "x0 added", "unet joined", "hyper-connections", "denseformer"]


@pytest.mark.parametrize("name", [*BEYOND, "momentum", "highway", "dense sums"])
def test_other_skips_are_refused_over_depth_and_what_is_suggested_works(name):
    with pytest.raises(StructureError) as caught:
        plan(SKIPS[name], (64, 8), (64, 2))
    suggestion = caught.value.suggestion
    if suggestion is None:
        assert "No override was found" in str(caught.value) or not caught.value.proposals
        assert "overrides=" not in str(caught.value)
        return
    assert f"overrides={suggestion}" in str(caught.value)
    _, p = plan(SKIPS[name], (64, 8), (64, 2), overrides=suggestion)
    assert p.proof.verdict in ("good", "far from its limit")
