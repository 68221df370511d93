"""Batch, length, decay and roles on real models: the groups, the check, the notes, the JSON, the weights."""

import copy
import json
import math

import pytest
import torch

import trimtab
from structures import CASES, X
from trimtab import Decay, Horizon, InputError, OptimizerError, Parametrization

build = CASES["residual-mlp"].build
H = Horizon(batch=4, tokens=16)
HYPER = dict(lr=1e-2, weight_decay=0.1, eps=1e-6, betas=(0.9, 0.99))


def plan(width=64, depth=8, base=(16, 2), **options):
    return trimtab.parametrize(build(width, depth), build(*base), example=X, **options)


def by_name(p, optimizer):
    """{name: its group}."""
    named = {id(q): n for n, q in p.named_parameters().items()}
    return {named[id(q)]: g for g in optimizer.param_groups for q in g["params"]}


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_the_horizon_multiplies_what_size_gives(cls):
    hyper = dict(HYPER) if cls is torch.optim.AdamW else dict(lr=1e-2, weight_decay=0.1, momentum=0.9)
    p, q = plan(), plan()
    size, both = by_name(p, p.optimizer(cls, **hyper)), by_name(q, q.optimizer(cls, horizon=H, **hyper))
    f = H.factors(cls)
    for name in size:
        for key, factor in (("lr", f.lr), ("weight_decay", f.weight_decay), ("eps", f.eps)):
            if key in size[name]:
                assert math.isclose(both[name][key], size[name][key] * factor), (name, key)
        if cls is torch.optim.AdamW:
            assert both[name]["betas"] == pytest.approx(H.betas((0.9, 0.99)))
        else:
            assert both[name]["momentum"] == 0.9
    factors = q.factors(cls)
    assert all(math.isclose(both[n]["lr"], 1e-2 * factors[n]["lr"]) for n in both)


def test_the_defaults_of_an_optimizer_are_moved_too():
    p = plan()
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-2, horizon=Horizon(batch=4))
    assert all(g["betas"] == pytest.approx((0.6, 0.996)) for g in optimizer.param_groups)
    p.check(optimizer)


def test_at_ratio_1_the_groups_are_as_without():
    p, q = plan(), plan()
    a, b = p.groups(torch.optim.AdamW, **HYPER), q.groups(torch.optim.AdamW, horizon=Horizon(), **HYPER)
    assert [{k: v for k, v in g.items() if k != "params"} for g in a] == [
        {k: v for k, v in g.items() if k != "params"} for g in b
    ]


def test_check_knows_the_horizon():
    p = plan()
    optimizer = p.optimizer(torch.optim.AdamW, horizon=H, **HYPER)
    p.check(optimizer)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=p.lrs(optimizer, 1e-2), total_steps=10)
    p.check(optimizer)  # it cycles beta1
    optimizer.param_groups[1]["betas"] = (0.9, 0.99)
    with pytest.raises(OptimizerError, match="betas must be those of Horizon"):
        p.check(optimizer)
    optimizer = p.optimizer(torch.optim.AdamW, horizon=H, **HYPER)
    optimizer.param_groups[0]["weight_decay"] *= 2
    with pytest.raises(OptimizerError, match="weight_decay divided"):
        p.check(optimizer)


def test_a_whole_run_has_one_horizon_and_json_keeps_it():
    p = plan()
    p.optimizer(torch.optim.Muon, lr=0.02, only="matrices", horizon=H, decay="tokens")
    rest = p.optimizer(torch.optim.AdamW, only="rest", **HYPER)  # the one given before
    assert rest.param_groups[0]["betas"] == pytest.approx(H.betas((0.9, 0.99)))
    again = Parametrization.from_json(p.to_json())
    assert again.horizon == H and again.decay == p.decay and again == p
    model = build(64, 8)
    resumed = again.optimizer(torch.optim.AdamW, model=model, only="rest", **HYPER)
    assert [g["lr"] for g in resumed.param_groups] == [g["lr"] for g in rest.param_groups]
    assert resumed.param_groups[0]["betas"] == rest.param_groups[0]["betas"]
    other = plan()
    assert any(line.startswith("horizon") for line in other.differences(p))
    old = json.loads(other.to_json())
    del old["horizon"], old["decay"]
    for row in old["rows"]:
        del row["multipliers"]
    assert Parametrization.from_json(json.dumps(old)) == other  # what an earlier version wrote


def test_what_has_no_rule_is_refused_before_anything_is_made():
    p = plan()
    for cls, hyper, law in (
        (torch.optim.Adam, dict(weight_decay=0.1), "AdamW"),
        (torch.optim.Adagrad, {}, "no rule"),
    ):
        with pytest.raises(OptimizerError, match=law):
            p.optimizer(cls, lr=1e-3, horizon=H, **hyper)
    with pytest.raises(InputError, match=r"trimtab\.Horizon"):
        p.optimizer(torch.optim.AdamW, lr=1e-3, horizon=4.0)
    with pytest.raises(InputError, match="beta1"):
        p.optimizer(torch.optim.AdamW, lr=1e-3, horizon=Horizon(batch=64))
    with pytest.raises(OptimizerError, match="decoupled"):
        p.optimizer(torch.optim.Adam, lr=1e-3, decay="tokens")
    with pytest.raises(InputError, match="'product'"):
        p.optimizer(torch.optim.AdamW, lr=1e-3, decay="prodcut")
    assert p.horizon is None and p.decay.name == "product"


def test_decay_is_a_choice_over_width():
    p = plan()
    for decay, power in (("product", 0.0), ("root", 0.5), ("value", 1.0), (Decay("mine", width=0.25), 0.75)):
        for name, group in by_name(p, p.optimizer(torch.optim.AdamW, decay=decay, **HYPER)).items():
            f = group["lr"] / HYPER["lr"]
            assert math.isclose(group["lr"] * group["weight_decay"], 1e-3 * f**power), name
        p.check(p.optimizer(torch.optim.AdamW, decay=decay, **HYPER))


def test_notes_say_which_decay_and_what_of_the_schedule():
    p = plan()
    p.optimizer(torch.optim.AdamW, **HYPER)
    assert sum("decay='product'" in note and "1000 steps" in note for note in p.notes) == 1
    p.optimizer(torch.optim.AdamW, horizon=H, decay="epochs", **HYPER)
    text = "\n".join(p.notes)
    for words in ("decay='epochs'", "2405.13698", "fractions", "x 4 steps here", "contested over tokens"):
        assert words in text
    before = len(p.notes)
    p.optimizer(torch.optim.AdamW, horizon=H, decay="epochs", **HYPER)
    assert len(p.notes) == before and "Horizon(batch=" in text


def test_notes_of_an_optimizer_go_with_it():
    p = plan()
    plain = list(p.notes)
    for lr in (1e-3, 1e-4):
        p.optimizer(torch.optim.AdamW, **HYPER | {"lr": lr})
        assert len(p.notes) == len(plain) + 1
    saved = trimtab.Parametrization.from_json(p.to_json())
    assert saved.notes == plain


# -- roles ----------------------------------------------------------------------------------------------

ROLES = {"input": {"lr": 0.25, "init": 2.0}, "readout": {"weight_decay": 3.0, "eps": 0.5}}


@pytest.mark.parametrize("scheme", ["sp", "mup", "depth-mup", "completep", "ntk"])
@pytest.mark.parametrize("size", [(16, 2), (64, 8)])
def test_multipliers_are_the_same_at_base_and_target(scheme, size):
    torch.manual_seed(1)
    base, one = build(16, 2), build(*size)
    two = copy.deepcopy(one)
    plain = trimtab.parametrize(one, base, example=X, scheme=scheme)
    roles = trimtab.parametrize(two, base, example=X, scheme=scheme, roles=ROLES)
    before, after = plain.factors(torch.optim.AdamW), roles.factors(torch.optim.AdamW)
    seen = set()
    for name, row in roles.rows.items():
        m = ROLES.get(row.role, {})
        seen |= {row.role} & set(ROLES)
        for key in ("lr", "weight_decay", "eps"):
            assert math.isclose(after[name][key], before[name][key] * m.get(key, 1.0))
        a, b = plain.named_parameters()[name], roles.named_parameters()[name]
        assert torch.allclose(a * m.get("init", 1.0), b, rtol=1e-6)
        assert (row.init, row.u, row.s) == (plain[name].init, plain[name].u, plain[name].s)
    assert seen == set(ROLES)
    optimizer = roles.optimizer(torch.optim.AdamW, horizon=H, **HYPER)
    roles.check(optimizer)
    assert Parametrization.from_json(roles.to_json()) == roles and roles != plain


def test_an_override_stands_in_place_of_a_role():
    p = plan(roles=ROLES, overrides={"stem.weight": {"lr": 7.0}, "head.weight": {"weight_decay": 0.0}})
    factors = p.factors(torch.optim.AdamW)
    name = next(n for n, r in p.rows.items() if r.role == "input")
    assert factors[name]["lr"] == 7.0
    head = next(n for n, r in p.rows.items() if r.role == "readout")
    assert factors[head]["weight_decay"] == 0
    p.check(p.optimizer(torch.optim.AdamW, horizon=H, **HYPER))


def test_faults_of_roles():
    with pytest.raises(InputError) as error:
        plan(roles={"inputs": {"lr": 1.0}, "readout": {"rate": 2, "lr": -1}})
    assert all(word in str(error.value) for word in ("'inputs'", "'rate'", "lr must"))
    with pytest.raises(InputError, match="no parameter is 'scalar'"):
        plan(roles={"scalar": {"lr": 2.0}})
