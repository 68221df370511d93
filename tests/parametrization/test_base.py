"""At base size nothing happens; anywhere, nothing happens twice and nothing else is touched."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from structures import CASES, IDS, X

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adamw": (torch.optim.AdamW, dict(lr=1e-2, weight_decay=0.1)),
    "adamw-fused": (torch.optim.AdamW, dict(lr=1e-2, weight_decay=0.1, fused=True)),
    "adam": (torch.optim.Adam, dict(lr=1e-2, weight_decay=0.1)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=1e-3, momentum=0.5)),
    "adagrad": (torch.optim.Adagrad, dict(lr=1e-2, initial_accumulator_value=0.1)),
    "adadelta": (torch.optim.Adadelta, dict(lr=0.5)),
    "nadam": (torch.optim.NAdam, dict(lr=1e-3)),
    "adamax": (torch.optim.Adamax, dict(lr=1e-3)),
}


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("scheme", ["sp", "ntk", "mup", "depth-mup", "completep"])
@pytest.mark.parametrize("name", CASES)
def test_every_factor_is_one_at_base_size(name, scheme):
    case = CASES[name]
    model = case.build(16, 2)
    before = state(model)
    p = trimtab.parametrize(
        model, case.build(16, 2), scheme=scheme, example=case.example, overrides=case.overrides
    )
    assert equal(before, state(model))
    for row in p.rows.values():
        assert (row.init, row.u, row.s, row.rescale, row.fold) == (1.0, 1.0, 1.0, 1.0, 1.0)
    for f in p.factors(torch.optim.AdamW).values():
        assert f == {"lr": 1.0, "weight_decay": 1.0, "eps": 1.0}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("opt", OPTIMIZERS)
def test_twenty_steps_at_base_are_plain_torch_bit_for_bit(opt, clip):
    cls, hyper = OPTIMIZERS[opt]
    build = CASES["pre-norm-transformer"].build
    model = build(16, 2)
    plain = copy.deepcopy(model)
    p = trimtab.parametrize(model, build(16, 2), example=IDS)
    ours, theirs = p.optimizer(cls, **hyper), cls(plain.parameters(), **hyper)
    for _ in range(20):
        for m, optimizer in ((model, ours), (plain, theirs)):
            optimizer.zero_grad()
            out = m(IDS)
            F.cross_entropy(out.flatten(0, 1), IDS.flatten()).backward()
        if clip:
            assert torch.equal(
                p.clip_grad_norm_(0.5), torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            )
        ours.step()
        theirs.step()
    assert equal(state(model), state(plain))


@pytest.mark.parametrize("name", CASES)
def test_random_states_buffers_and_base_are_left_alone(name):
    case = CASES[name]
    model, base = case.build(32, 4), case.build(16, 2)
    base_before = state(base)
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    trimtab.parametrize(model, base, example=case.example, overrides=case.overrides)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    assert equal(base_before, state(base))
    assert all(torch.equal(v, buffers[k]) for k, v in model.named_buffers())
    assert model.training


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scheme", ["depth-mup", "completep"])
def test_never_scales_twice(name, scheme, tmp_path):
    """The model itself, its deepcopy and its reload: refused or unchanged."""
    case = CASES[name]
    model = case.build(32, 4)
    trimtab.parametrize(
        model, case.build(16, 2), scheme=scheme, example=case.example, overrides=case.overrides
    )
    once = state(model)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    reloaded = case.build(32, 4)
    reloaded.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    for again in (model, copy.deepcopy(model), reloaded):
        try:
            trimtab.parametrize(
                again, case.build(16, 2), scheme=scheme, example=case.example, overrides=case.overrides
            )
        except trimtab.StructureError as refused:
            assert "must be known" in str(refused)
        assert equal(once, state(again))


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(6, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_never_scales_twice_whichever_experts_are_visited(seed):
    """The rescaled router sends tokens elsewhere: what an expert is must not depend on whether this draw
    visits it."""
    case = CASES["experts-not-all-visited"]
    torch.manual_seed(seed)
    model, base = case.build(32, 4), case.build(16, 2)
    p = trimtab.parametrize(model, base, example=case.example)
    once = state(model)
    q = trimtab.parametrize(model, base, example=case.example)
    assert equal(once, state(model))
    assert {n: (r.place, r.init, r.u, r.s) for n, r in p.rows.items()} == {
        n: (r.place, r.init, r.u, r.s) for n, r in q.rows.items()
    }


def test_a_half_parametrized_model_is_refused():
    """Parametrized, then one block drawn anew: neither a fresh draw nor done, so nothing is touched."""
    case = CASES["pre-norm-transformer"]
    torch.manual_seed(0)
    model, base = case.build(64, 4), case.build(16, 2)
    trimtab.parametrize(model, base, example=case.example)
    for layer in model.layers:
        layer.up.weight.data.mul_(2.0)
    once = state(model)
    with pytest.raises(trimtab.StructureError, match="parametrized before and changed"):
        trimtab.parametrize(model, base, example=case.example)
    assert equal(once, state(model))


def test_richness_is_not_applied_twice_either():
    build = CASES["residual-mlp"].build
    model = build(64, 2)
    trimtab.parametrize(model, build(64, 2), example=X, gamma0=4.0)
    once = state(model)
    p = trimtab.parametrize(model, build(64, 2), example=X, gamma0=4.0)
    assert equal(once, state(model)) and p["head.weight"].init == 0.25


def test_sp_changes_nothing_at_any_size():
    build = CASES["pre-norm-transformer"].build
    model = build(32, 4)
    before = state(model)
    p = trimtab.parametrize(model, build(16, 2), scheme="sp", example=IDS)
    assert equal(before, state(model))
    assert len(p.groups(torch.optim.AdamW, lr=1e-3)) == 1


class WithAuxiliaryHead(nn.Module):
    """A second head that only training uses, behind a BatchNorm: the forward must be looked at in training
    mode too."""

    def __init__(self, n):
        super().__init__()
        self.stem, self.norm, self.head, self.extra = (
            nn.Linear(6, n),
            nn.BatchNorm1d(n),
            nn.Linear(n, 5),
            nn.Linear(n, 5),
        )

    def forward(self, x):
        h = torch.relu(self.norm(self.stem(x)))
        return (self.head(h), self.extra(h)) if self.training else self.head(h)


def test_what_only_training_uses_is_seen_and_buffers_are_put_back():
    model = WithAuxiliaryHead(32)
    before = {k: v.clone() for k, v in model.named_buffers()}
    p = trimtab.parametrize(model, WithAuxiliaryHead(16), example=X)
    assert p["extra.weight"].role == "readout" and p["extra.weight"].init == 0.5
    assert all(torch.equal(v, before[k]) for k, v in model.named_buffers()) and model.training
