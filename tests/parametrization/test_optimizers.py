"""Optimizers: torch's own are the truth for how each answers to a scale."""

import copy
import math
import random
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from structures import CASES, IDS, X
from trimtab import InputError, OptimizerError
from trimtab.parametrization.optimizers.families import factors
from trimtab.parametrization.optimizers.lookup import family
from trimtab.parametrization.rules import Scales

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
    b = trajectory(
        torch.optim.Muon, 0.5, dict(lr=0.02 * f.lr, weight_decay=0.1 * f.weight_decay, eps=1e-7 * f.eps)
    )
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
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(
                    group["lr"] * (b1 * m + (1 - b1) * p.grad).sign()
                )
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
    assert (
        id(model.layers[0].up.weight) in trained
        and id(model.embed.weight) not in trained
        and id(model.head.weight) not in trained
    )
    p.check(muon)
    p.check(adam)
    for o in (muon, adam):
        o.zero_grad()
    F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten()).backward()
    muon.step()
    adam.step()


@pytest.mark.parametrize("fn", [None, "original", "match_rms_adamw"])
def test_muon_rate_by_hand(fn):
    """Entries of a step ~ adj / sqrt(m_in m_out), wanted u; docs/theory.md, equation (14)."""
    p = trimtab.parametrize(lm(32, 2), lm(16, 2), example=IDS)
    f = p.factors(torch.optim.Muon, adjust_lr_fn=fn)
    up, down = f["layers.0.up.weight"]["lr"], f["layers.0.down.weight"]["lr"]
    adj = {None: 1.0, "original": 1.0, "match_rms_adamw": 2**-0.5}[
        fn
    ]  # shapes double, so only the second changes
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
    p = trimtab.parametrize(
        lm(),
        lm(16, 2),
        example=IDS,
        overrides={"*.bias": {"weight_decay": 0}, "head.weight": {"lr": 0.3, "init": 0.0}},
    )
    f = p.factors(torch.optim.AdamW)
    assert (
        f["layers.0.up.bias"]["weight_decay"] == 0
        and f["head.weight"]["lr"] == 0.3
        and p["head.weight"].init == 0
    )
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
        lambda: torch.optim.lr_scheduler.LambdaLR(
            o, lambda t: t / 10
        ),  # lr = 0 at first: initial_lr is compared
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
            [
                torch.optim.lr_scheduler.CosineAnnealingLR(o, 4, eta_min=5e-4).step()
                for _ in range(1)
                for _ in range(1)
            ]
            + [g.update(lr=max(g["lr"], 5e-4)) for g in o.param_groups]
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
    assert [g["lr"] for g in q.groups(torch.optim.AdamW, lr=1e-3, model=fresh)] == [
        g["lr"] for g in p.groups(torch.optim.AdamW, lr=1e-3)
    ]
    with pytest.raises(trimtab.InputError, match="pass model="):
        trimtab.Parametrization.from_json(p.to_json()).groups(torch.optim.AdamW, lr=1e-3)
    other = trimtab.parametrize(lm(32, 6), lm(16, 2), example=IDS)
    assert any("depth" in d for d in q.differences(other)) and q != other


def test_clipping_norm_is_the_same_at_every_size():
    """log-log slope of the invariant norm over 8x width and 8x depth, at init, mean of 5 seeds; torch's own
    beside it."""
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
    p = trimtab.parametrize(
        case.build(16, 4), case.build(16, 2), example=X, overrides={"*.norm.weight": {"weight_decay": 0}}
    )
    p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)


def test_coupled_decay_in_a_normalised_optimizer_is_noted_once():
    p = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    for _ in range(2):
        p.groups(torch.optim.Adam, lr=1e-3, weight_decay=0.1)
    assert sum("AdamW keeps" in n for n in p.notes) == 1
    q = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    q.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    assert not any("AdamW keeps" in n for n in q.notes)


class Toy(torch.optim.Optimizer):
    """lr times a direction that a subclass makes of the gradient, decay decoupled."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(
                    group["lr"] * self.direction(p, p.grad, state)
                )


def toy(name, direction):
    return type(name, (Toy,), {"direction": staticmethod(direction)})


class Distance(torch.optim.Optimizer):
    """Rate-free as Prodigy is: a sign step times a distance estimated over all parameters, which first must
    grow."""

    def __init__(self, params, lr=1.0, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))
        self.d, self.above = 1e-6, 0.0
        self.first = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}

    @torch.no_grad()
    def step(self):
        below = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                self.above += group["lr"] * self.d * float((p.grad * (self.first[p] - p)).sum())
                s = (
                    self.state[p]
                    .setdefault("s", torch.zeros_like(p))
                    .add_(p.grad, alpha=group["lr"] * self.d)
                )
                below += float(s.abs().sum())
        self.d = max(self.d, self.above / below)
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.d * p.grad.sign())


@pytest.mark.parametrize("lr", [1.0, 1e-3])
def test_a_rate_of_its_own_is_refused_at_any_rate(lr):
    with pytest.raises(OptimizerError, match="must not depend on other tensors"):
        family(Distance, {}, lr)


LATE = {
    "bounded": lambda p, g, state: g.sign() + (0.1 * g if state["step"] > 5000 else 0),
    "warm": lambda p, g, state: g if state["step"] <= 5 else g.sign(),
    "clipped": lambda p, g, state: g.clamp(-1, 1),
}


@pytest.mark.parametrize("name", LATE)
def test_what_shows_late_or_at_some_gradients_only_is_refused(name):
    with pytest.raises(OptimizerError, match="none of the known laws"):
        family(toy(name, LATE[name]), {})


class Ignores(Toy):
    """Takes the rate of its constructor, whatever a group says: the factors would be lost."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(self.defaults["lr"] * p.grad.sign())


def test_an_optimizer_that_ignores_its_groups_is_refused():
    with pytest.raises(OptimizerError, match="none of the known laws"):
        family(Ignores, {})


class Newton(Toy):
    """Divides by second derivatives, so it needs gradients that can be differentiated."""

    def step(self, closure):
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                (h,) = torch.autograd.grad(p.grad.sum(), p, retain_graph=True)
                with torch.no_grad():
                    p.sub_(group["lr"] * (p.grad / (h + 1.0)))


class WithClosure(Toy):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * p.grad.sign())


def test_closures():
    assert family(WithClosure, {}).decay == "decoupled"
    with pytest.raises(OptimizerError, match="second derivatives"):
        family(Newton, {})


@pytest.mark.parametrize("lr", [1e-4, 0.1, 3.0])
def test_the_law_is_tried_at_the_users_rate(lr):
    """A bound on the step, in absolute units, that only a large rate meets."""

    class Bounded(Toy):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_((group["lr"] * p.grad.sign()).clamp(-1, 1))

    if lr == 3.0:
        with pytest.raises(OptimizerError, match="at lr=3 follows none"):
            family(Bounded, {}, lr)
    else:
        assert family(Bounded, {}, lr).rate == "u"


def test_trying_an_optimizer_leaves_no_trace():
    class Noisy(Toy):
        def __init__(self, params, lr=1e-3, weight_decay=0.0, betas=()):
            super().__init__(params, lr, weight_decay)
            betas.append(random.random())
            print("made")
            torch.rand(3)

        def direction(self, p, g, state):
            return g.sign()

    given = [0.9]
    states = torch.get_rng_state(), random.getstate()
    family(Noisy, {"betas": given})
    assert given == [0.9] and torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()


def test_an_unknown_optimizer_from_groups_to_check():
    """What p.optimizer admits p.check accepts, at the numbers it was built with."""
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    o = p.optimizer(Lion, lr=1e-3, weight_decay=0.1, betas=(0.8, 0.9), no_decay="*.bias")
    p.check(o)


# -- decay and no decay
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("no_decay", ["*.bias", ["*.bias", "*norm*"], lambda row: len(row.shape) < 2])
def test_no_decay(no_decay):
    model = lm()
    p = trimtab.parametrize(model, lm(16, 2), example=IDS)
    o = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay=no_decay)
    by_id = {id(q): g for g in o.param_groups for q in g["params"]}
    exempt = 0
    for name, q in model.named_parameters():
        out = (
            no_decay(p[name])
            if callable(no_decay)
            else name.endswith(".bias") or ("norm" in name and len(no_decay) == 2)
        )
        exempt += out
        assert by_id[id(q)]["weight_decay"] == pytest.approx(0.0 if out else 0.1 / p[name].u)
        assert by_id[id(q)]["lr"] == pytest.approx(1e-3 * p[name].u)
    assert 0 < exempt < len(by_id)
    p.check(o)
    for group in o.param_groups:
        if group["weight_decay"] == 0:
            group["weight_decay"] = 0.1
    with pytest.raises(OptimizerError, match="no_decay says so"):
        p.check(o)


def test_no_decay_of_one_optimizer_is_not_that_of_another():
    p = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    first = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay="*.bias")
    second = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    p.check(first)
    p.check(second)
    again = p.optimizer(torch.optim.AdamW, lr=1.0, weight_decay=0.1, no_decay="*.bias")
    again.load_state_dict(first.state_dict())
    p.check(again)


def test_no_decay_that_says_nothing_is_an_error():
    p = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    with pytest.raises(InputError, match="'nothing' matches no parameter(.|\n)*3 is no pattern"):
        p.groups(torch.optim.AdamW, lr=1e-3, no_decay=["*.bias", "nothing", 3])


def test_no_decay_by_the_second_name_of_a_tied_weight():
    def tied(n):
        model = lm(n, 2)
        model.head.weight = model.embed.weight
        return model

    p = trimtab.parametrize(tied(32), tied(16), example=IDS)
    o = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay="head.weight")
    assert [len(g["params"]) for g in o.param_groups if not g["weight_decay"]] == [1]


def test_a_gain_stored_as_one_plus_w_is_exempt_by_no_decay():
    case = CASES["gain-stored-as-one-plus-w"]
    p = trimtab.parametrize(case.build(16, 4), case.build(16, 2), example=X)
    with pytest.raises(OptimizerError, match=r"1 \+ w") as refused:
        p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    advised = re.search(r"no_decay='([^']*)'", str(refused.value))
    assert advised and advised[1] in p.rows
    p.check(p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, no_decay="*.norm.weight"))


# -- schedules
# -------------------------------------------------------------------------------------------------------

schedules = torch.optim.lr_scheduler
ABSOLUTE = {
    "cosine": lambda o, x: schedules.CosineAnnealingLR(o, 20, eta_min=x),
    "restarts": lambda o, x: schedules.CosineAnnealingWarmRestarts(o, 20, eta_min=x),
    "one cycle": lambda o, x: schedules.OneCycleLR(o, max_lr=x, total_steps=20),
    "cyclic": lambda o, x: schedules.CyclicLR(
        o, base_lr=x, max_lr=3 * x if isinstance(x, float) else [3 * y for y in x], cycle_momentum=False
    ),
    "plateau": lambda o, x: schedules.ReduceLROnPlateau(o, patience=0, factor=0.5, min_lr=x),
}


def rates(p, o, scheduler, steps=12):
    for t in range(steps):
        o.step()
        scheduler.step(float(t)) if isinstance(scheduler, schedules.ReduceLROnPlateau) else scheduler.step()
        p.check(o)
    return [g["lr"] for g in o.param_groups]


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_rates_are_noticed_and_the_advice_works(name):
    p = trimtab.parametrize(lm(), lm(16, 2), example=IDS)
    with pytest.raises(OptimizerError, match="must be one number") as raised:
        rates(p, (o := p.optimizer(torch.optim.AdamW, lr=1e-3)), ABSOLUTE[name](o, 2e-4))
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3)
    if name in ("cosine", "restarts"):  # the line of the message, run as it stands
        line = re.search(r"use (torch\.optim\.lr_scheduler\.LambdaLR\(.*\)) in its place", str(raised.value))
        assert line and "0.2 + 0.8" in line[1]
        scheduler = eval(line[1], {"torch": torch, "math": math, "optimizer": optimizer, "T_max": 20})
        wanted = 1e-3 * (0.2 + 0.8 * (1 + math.cos(math.pi * 12 / 20)) / 2)
        assert rates(p, optimizer, scheduler) == pytest.approx(p.lrs(optimizer, wanted))
    else:
        assert "pass p.lrs(optimizer, x) in place of x" in str(raised.value)
        rates(p, optimizer, ABSOLUTE[name](optimizer, p.lrs(optimizer, 2e-4)))


def test_a_fresh_model_in_the_place_of_the_rescaled_one_is_noticed():
    build = CASES["pre-norm-mlp"].build
    torch.manual_seed(0)
    model = build(256, 8)
    p = trimtab.parametrize(model, build(64, 2), example=X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = p.optimizer(torch.optim.AdamW, lr=1e-3)
    p.check(good)
    with pytest.warns(UserWarning, match="own draw.*p.on"):
        fresh = p.optimizer(torch.optim.AdamW, lr=1e-3, model=build(256, 8))
    with pytest.raises(OptimizerError, match="fresh instance"):
        p.check(fresh)
    for _ in range(3):  # a step or two later neither is what it was, and nobody is accused
        model(X).square().sum().backward()
        good.step()
        p.check(good)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    with pytest.raises(OptimizerError, match="reset_parameters"):
        p.check(good)
    p = p.on(model)
    p.check(p.optimizer(torch.optim.AdamW, lr=1e-3))


def test_a_checkpoint_in_a_fresh_model_is_no_fresh_draw():
    build = CASES["pre-norm-mlp"].build
    torch.manual_seed(0)
    model = build(256, 8)
    p = trimtab.parametrize(model, build(64, 2), example=X)
    saved, other = model.state_dict(), build(256, 8)
    other.load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.check(p.optimizer(torch.optim.AdamW, lr=1e-3, model=other))
