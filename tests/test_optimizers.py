"""Optimizers: torch's own are the truth for how each answers to a scale."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from structures import CASES, IDS, X
from trimtab import OptimizerError
from trimtab.optimizers import family
from trimtab.rules import Scales, factors

A = 0.37
KNOWN = {
    "SGD": dict(lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "SGD nesterov": dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": dict(lr=0.01, weight_decay=0.1, eps=1e-3, amsgrad=True),
    "Adam decoupled": dict(lr=0.01, weight_decay=0.1, eps=1e-3, decoupled_weight_decay=True),
    "AdamW": dict(lr=0.01, weight_decay=0.1, eps=1e-3),
    "NAdam": dict(lr=0.01, weight_decay=0.1, eps=1e-3),
    "NAdam decoupled": dict(lr=0.01, weight_decay=0.1, eps=1e-3, decoupled_weight_decay=True),
    "RMSprop": dict(lr=0.01, weight_decay=0.1, eps=1e-3, momentum=0.5, centered=True),
    "Adamax": dict(lr=0.01, weight_decay=0.1, eps=1e-3),
    "Adagrad": dict(lr=0.05, weight_decay=0.1, eps=1e-3),
    "Adadelta": dict(lr=1.0, weight_decay=0.1, eps=1e-3),
}


def trajectory(cls, a, hyper):
    g = torch.Generator().manual_seed(0)
    stored = nn.Parameter(a * torch.randn(5, 4, generator=g, dtype=torch.float64))
    data = torch.randn(25, 6, 4, generator=g, dtype=torch.float64)
    optimizer = cls([stored], **hyper)
    for x in data:
        optimizer.zero_grad()
        (torch.log1p((x @ (stored / a).T) ** 2) - torch.tanh(x @ (stored / a).T)).mean().backward()
        optimizer.step()
    return stored.detach() / a


@pytest.mark.parametrize("name", KNOWN)
def test_torch_folds_as_the_family_says(name):
    cls = getattr(torch.optim, name.split()[0])
    hyper = KNOWN[name]
    f = factors(family(cls, hyper), Scales().fold(A))
    folded = dict(hyper, lr=hyper["lr"] * f.lr, weight_decay=hyper["weight_decay"] * f.weight_decay)
    if "eps" in hyper:
        folded["eps"] = hyper["eps"] * f.eps
    a, b = trajectory(cls, 1.0, hyper), trajectory(cls, A, folded)
    assert (a - b).abs().max() <= 1e-13 * a.abs().max()


def test_muon_folds_for_powers_of_two():
    f = factors(family(torch.optim.Muon, {}), Scales().fold(0.5))
    hyper = dict(lr=0.02, weight_decay=0.1)
    a = trajectory(torch.optim.Muon, 1.0, hyper)
    b = trajectory(torch.optim.Muon, 0.5, dict(lr=0.02 * f.lr, weight_decay=0.1 * f.weight_decay, eps=1e-7 * f.eps))
    assert (a - b).abs().max() <= 1e-12 * a.abs().max()


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                b1, b2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * (b1 * m + (1 - b1) * p.grad).sign())
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class MyAdamW(torch.optim.AdamW):
    pass


class Clipped(torch.optim.SGD):
    """Follows no law: a hard bound on the step, in absolute units."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_((group["lr"] * p.grad).clamp(-1e-3, 1e-3))


def test_unknown_optimizers_are_told_by_experiment():
    assert family(Lion, {}).rate == "u" and family(Lion, {}).decay == "decoupled"
    assert family(MyAdamW, {}).name == "AdamW"
    with pytest.raises(OptimizerError, match="none of the known laws"):
        family(Clipped, {})
    with pytest.raises(OptimizerError, match="raised"):
        family(lambda: None, {})


def lm(n=32, L=4):
    return CASES["pre-norm-transformer"].build(n, L)


def test_muon_beside_adamw():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    muon = p.optimizer(torch.optim.Muon, lr=0.02, only="matrices")
    adam = p.optimizer(torch.optim.AdamW, lr=1e-3, only="rest")
    ids = [id(q) for o in (muon, adam) for g in o.param_groups for q in g["params"]]
    assert len(ids) == len(set(ids)) == len(list(model.parameters()))
    trained = {id(q) for g in muon.param_groups for q in g["params"]}
    assert id(model.layers[0].up.weight) in trained and id(model.embed.weight) not in trained and id(model.head.weight) not in trained
    p.check(muon)
    p.check(adam)
    for o in (muon, adam):
        o.zero_grad()
    F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten()).backward()
    muon.step()
    adam.step()


@pytest.mark.parametrize("fn", [None, "original", "match_rms_adamw"])
def test_muon_rate_by_hand(fn):
    """Updates are orthogonal x adj: entries ~ adj / sqrt(max), wanted u; THEORY 1.2."""
    p = trimtab.parametrize(lm(32, 2), lm(16, 2), example=IDS)
    f = p.factors(torch.optim.Muon, adjust_lr_fn=fn)
    up, down = f["layers.0.up.weight"]["lr"], f["layers.0.down.weight"]["lr"]
    adj = {None: 1.0, "original": 1.0, "match_rms_adamw": 2**-0.5}[fn]  # shapes double, so only the second changes
    assert up == pytest.approx(0.5 * 2 * adj) and down == pytest.approx(0.5 * 2 * adj)
    assert f["layers.0.up.weight"]["weight_decay"] == pytest.approx(1 / up)


def test_adagrad_initial_accumulator_is_in_units_of_the_gradient():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    o = p.optimizer(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.3)
    w = model.layers[0].up.weight
    assert torch.allclose(o.state[w]["sum"], torch.tensor(0.3 * p["layers.0.up.weight"].s ** 2))


def test_groups_carry_the_factors():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    by_id = {id(q): g for g in p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1) for q in g["params"]}
    for name, q in model.named_parameters():
        row, g = p[name], by_id[id(q)]
        assert g["lr"] == pytest.approx(1e-3 * row.u)
        assert g["weight_decay"] == pytest.approx(0.1 / row.u)
        assert g["eps"] == pytest.approx(1e-8 * row.s)


def test_overrides_of_numbers():
    p = trimtab.parametrize(lm(), lm(16, 2), example=IDS, overrides={"*.bias": {"weight_decay": 0}, "head.weight": {"lr": 0.3, "init": 0.0}})
    f = p.factors(torch.optim.AdamW)
    assert f["layers.0.up.bias"]["weight_decay"] == 0 and f["head.weight"]["lr"] == 0.3 and p["head.weight"].init == 0
    assert f["layers.0.up.weight"]["weight_decay"] > 0
    o = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    p.check(o)


def test_lrs_and_check_with_schedulers():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    o = p.optimizer(torch.optim.AdamW, lr=1e-3)
    assert p.lrs(o, 2e-3) == pytest.approx([2 * g["lr"] for g in o.param_groups])
    for make in (
        lambda: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda: torch.optim.lr_scheduler.LambdaLR(o, lambda t: t / 10),  # lr = 0 at first: initial_lr is compared
        lambda: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=p.lrs(o, 2e-3), total_steps=10),
    ):
        scheduler = make()
        for _ in range(4):
            p.check(o)
            o.step()
            scheduler.step()
        p.check(o)
    for erase in (
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1e-3, total_steps=10),
        lambda o: [g.update(lr=1e-3) for g in o.param_groups],
        lambda o: [g.update(eps=1e-8) for g in o.param_groups],
        lambda o: [g.update(weight_decay=0.1) for g in o.param_groups],
        lambda o: (
            [torch.optim.lr_scheduler.CosineAnnealingLR(o, 4, eta_min=5e-4).step() for _ in range(1) for _ in range(1)] + [g.update(lr=max(g["lr"], 5e-4)) for g in o.param_groups]
        ),
    ):
        o = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
        erase(o)
        with pytest.raises(OptimizerError):
            p.check(o)


def test_check_sees_other_groupings():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    with pytest.raises(OptimizerError, match="mixes parameters"):
        p.check(torch.optim.AdamW(model.parameters(), lr=1e-3))
    with pytest.raises(OptimizerError, match="not of the parametrized model"):
        p.check(torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=1e-3))


def test_state_dict_round_trip_keeps_the_factors():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    o = p.optimizer(torch.optim.AdamW, lr=1e-3)
    again = p.optimizer(torch.optim.AdamW, lr=9.0)
    again.load_state_dict(copy.deepcopy(o.state_dict()))
    p.check(again)
    assert [g["lr"] for g in again.param_groups] == [g["lr"] for g in o.param_groups]


def test_wrapped_models_are_looked_through():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    ema = torch.optim.swa_utils.AveragedModel(model)
    compiled = torch.compile(model)
    for wrapped in (nn.DataParallel(model), ema, compiled, copy.deepcopy(model)):
        groups = p.groups(torch.optim.AdamW, lr=1e-3, model=wrapped)
        mine = {id(q) for q in wrapped.parameters()}
        assert {id(q) for g in groups for q in g["params"]} == mine
        o = p.optimizer(torch.optim.AdamW, lr=1e-3, model=wrapped)
        p.check(o)


def test_resume_from_json():
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    q = trimtab.Parametrization.from_json(p.to_json())
    assert q == p and q.differences(p) == [] and q.depth == 2.0 and q.branches == p.branches
    fresh = lm()
    fresh.load_state_dict(model.state_dict())
    assert [g["lr"] for g in q.groups(torch.optim.AdamW, lr=1e-3, model=fresh)] == [g["lr"] for g in p.groups(torch.optim.AdamW, lr=1e-3)]
    with pytest.raises(trimtab.InputError, match="pass model="):
        trimtab.Parametrization.from_json(p.to_json()).groups(torch.optim.AdamW, lr=1e-3)
    other = trimtab.parametrize(lm(32, 6), lm(16, 2), example=IDS)
    assert any("depth" in d for d in q.differences(other)) and q != other


def test_clipping_norm_is_the_same_at_every_size():
    """log-log slope of the invariant norm over 8x width and 8x depth, at init, mean of 5 seeds; torch's own beside it."""
    build = CASES["residual-mlp"].build
    x = torch.randn(64, 6)
    y = (x @ torch.randn(6, 5)).argmax(-1)

    def norms(sizes, base):
        ours, plain = [], []
        for size in sizes:
            totals = [0.0, 0.0]
            for seed in range(5):
                torch.manual_seed(seed)
                model = build(*size)
                p = trimtab.parametrize(model, build(*base), example=X)
                F.cross_entropy(model(x), y).backward()
                totals[1] += torch.nn.utils.get_total_norm([q.grad for q in model.parameters()]).item()
                totals[0] += p.clip_grad_norm_(1e9).item()
            ours.append(totals[0])
            plain.append(totals[1])
        return (math.log(v[-1] / v[0]) / math.log(8) for v in (ours, plain))

    width, width_plain = norms([(64, 4), (512, 4)], (64, 4))
    depth, _ = norms([(64, 8), (64, 64)], (64, 8))
    assert abs(width) < 0.05 and abs(depth) < 0.05
    assert abs(width_plain) > 0.2


def test_a_gain_stored_as_one_plus_w_refuses_decay():
    case = CASES["gain-stored-as-one-plus-w"]
    p = trimtab.parametrize(case.build(16, 4), case.build(16, 2), example=X)
    with pytest.raises(OptimizerError, match=r"1 \+ w"):
        p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.0)
    p = trimtab.parametrize(case.build(16, 4), case.build(16, 2), example=X, overrides={"*.norm.weight": {"weight_decay": 0}})
    p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)


def test_coupled_decay_in_a_normalised_optimizer_is_noted_once():
    p = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    for _ in range(2):
        p.groups(torch.optim.Adam, lr=1e-3, weight_decay=0.1)
    assert sum("AdamW keeps" in n for n in p.notes) == 1
    q = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    q.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    assert not any("AdamW keeps" in n for n in q.notes)
