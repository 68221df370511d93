"""Roles, rules over batch and length, and schedules of decay in runs: against torch by hand, alone and in a
fleet."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import trimtab
from trimtab.errors import InputError
from trimtab.runs import fleet
from trimtab.runs.batch_and_length import carried
from trimtab.runs.config import RunConfig, rate
from trimtab.runs.tasks import prepare
from trimtab.runs.training import Run, run

SMALL = RunConfig(
    width=16, depth=3, base=(16, 3), lr=0.01, steps=25, batch_size=32, optimizer="adamw", weight_decay=0.5,
    betas=(0.8, 0.9), eval_examples=0,
)  # fmt: skip
RULE = {"rule": "sde", "batch": 16, "tokens": 800}


def by_hand(config, change):
    """The losses of a plain torch loop on the run's own model and batches; `change` sets it up and steps."""
    made = prepare(config)
    torch.manual_seed(config.seed)
    model = made.build(config.width, config.depth)
    optimizer, before = change(model)
    losses = []
    for step in range(config.steps):
        x, y = made.batch(config.seed, step)
        loss = cross_entropy(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        before(step)
        optimizer.step()
    return np.array(losses)


@pytest.mark.parametrize("name", ["constant", "rate", "cosine", "linear"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_schedule_of_decay_is_a_loop_that_sets_it(name, optimizer):
    c = SMALL.replace(
        schedule="linear", warmup=5, floor=0.2, decay_schedule=name, optimizer=optimizer, lr=0.05
    )
    fractions = {
        "constant": lambda t: 1.0,
        "rate": lambda t: rate(t, c),
        "cosine": lambda t: 0.5 * (1 + np.cos(np.pi * t / 25)),
        "linear": lambda t: 1 - t / 25,
    }

    def change(model):
        cls = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
        more = {"betas": c.betas} if optimizer == "adamw" else {}
        made = cls(model.parameters(), lr=c.lr, weight_decay=c.weight_decay, **more)

        def before(step):
            made.param_groups[0]["lr"] = c.lr * rate(step, c)
            made.param_groups[0]["weight_decay"] = c.weight_decay * fractions[name](step)

        return made, before

    truth = by_hand(c, change)
    assert run(c).curves["loss"] == pytest.approx(truth, rel=1e-5)
    assert fleet.run([c, c.replace(lr=0.02)])[0].curves["loss"] == pytest.approx(truth, rel=1e-4)


def test_schedules_of_decay_differ():
    ends = [run(SMALL.replace(lr=0.05, decay_schedule=name)).last_loss for name in ("constant", "linear")]
    assert abs(ends[0] - ends[1]) > 1e-3


def test_roles_are_multipliers_by_hand():
    c = SMALL.replace(roles={"input": {"lr": 0.25, "init": 2.0}, "readout": {"weight_decay": 0.0}})
    plan = prepare(c).plan

    def change(model):
        named = dict(model.named_parameters())
        first = [n for n in named if plan[n].role == "input"]
        last = [n for n in named if plan[n].role == "readout"]
        assert len(first) == len(last) == 1
        with torch.no_grad():
            named[first[0]] *= 2.0
        groups = [
            {"params": [named[first[0]]], "lr": c.lr / 4},
            {"params": [named[last[0]]], "weight_decay": 0.0},
            {"params": [p for n, p in named.items() if n not in (*first, *last)]},
        ]
        made = torch.optim.AdamW(groups, lr=c.lr, weight_decay=0.5, betas=c.betas)
        return made, lambda step: None

    assert run(c).curves["loss"] == pytest.approx(by_hand(c, change), rel=1e-5)


def test_roles_are_the_same_at_every_size():
    roles = {"input": {"lr": 0.25, "init": 2.0}}
    wide = SMALL.replace(width=64, depth=6)
    for c in (SMALL, wide):
        plain, mended = prepare(c).plan, prepare(c.replace(roles=roles)).plan
        f, g = plain.factors(torch.optim.AdamW), mended.factors(torch.optim.AdamW)
        for name in f:
            times = (0.25, 2.0) if plain[name].role == "input" else (1.0, 1.0)
            assert g[name]["lr"] == pytest.approx(times[0] * f[name]["lr"])
            assert mended[name].rescale == pytest.approx(times[1] * plain[name].rescale)


def test_a_fleet_holds_roles_and_rules_as_the_runs_alone_do():
    given = [
        {},
        {"input": {"lr": 0.25}},
        {"input": {"init": 0.5, "lr": 4.0}, "hidden": {"weight_decay": 2.0}},
    ]
    configs = [SMALL.replace(roles=r, horizon=h, dtype="float64") for r in given for h in ({}, RULE)]
    for one, c in zip(fleet.run(configs), configs, strict=True):
        assert one.curves["loss"] == pytest.approx(run(c).curves["loss"], rel=1e-9)
    assert len({r.last_loss for r in fleet.run(configs)}) == len(configs)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_a_rule_in_a_run_is_the_optimizer_with_that_horizon(optimizer):
    """`p.optimizer(horizon=...)` is the other way to the same numbers."""
    c = SMALL.replace(optimizer=optimizer, width=32, momentum=0.75, horizon=RULE | {"rule": "sde"})
    h = trimtab.Horizon(batch=2, tokens=1)
    plan = prepare(c.replace(horizon={})).plan
    hyper = {
        "sgd": dict(momentum=0.75, weight_decay=0.5),
        "adamw": dict(betas=c.betas, weight_decay=0.5, eps=c.eps),
        "muon": dict(momentum=0.75, weight_decay=0.5, only="matrices"),
    }[optimizer]
    cls = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "muon": torch.optim.Muon}[optimizer]
    model = prepare(c).draw(32, 3, 0)
    wanted = plan.on(model).optimizer(cls, lr=c.lr, horizon=h, **hyper).param_groups
    found = Run(c).optimizers[0].param_groups
    for a, b in zip(found, wanted, strict=True):
        for key in ("lr", "weight_decay", "eps", "betas", "momentum"):
            assert a.get(key) == (pytest.approx(b[key]) if key in b else None), key


def test_at_the_base_a_rule_changes_nothing():
    there = {"rule": "sde", "batch": 32, "tokens": 800}
    assert run(SMALL.replace(horizon=there)).curves["loss"].tolist() == run(SMALL).curves["loss"].tolist()
    assert carried(SMALL) is SMALL


def test_faults():
    with pytest.raises(InputError, match="no memory at all"):
        SMALL.replace(horizon={"rule": "sde", "batch": 1, "tokens": 800})
    with pytest.raises(InputError, match="must be a table"):
        SMALL.replace(horizon={"rule": "sde"})
    with pytest.raises(InputError, match="coupled|L2"):
        SMALL.replace(optimizer="adam", horizon=RULE)
    with pytest.raises(InputError, match="'inputs' is not one of"):
        SMALL.replace(roles={"inputs": {"lr": 2.0}})
    with pytest.raises(InputError, match="no parameter is 'scalar'"):
        run(SMALL.replace(roles={"scalar": {"lr": 2.0}}))


def test_the_names_of_runs_made_before_stay_valid():
    """This name was made before runs had roles and horizons."""
    c = RunConfig(model="mlp", data="digits", width=64, depth=6, base=(32, 3), lr=0.1, steps=100)
    assert c.hash == "76fc8cd1a9b27aae"
    assert c.replace(roles={}).hash == c.hash != c.replace(roles={"input": {"lr": 2.0}}).hash
    assert c.replace(horizon=RULE | {"tokens": 6400}).hash != c.hash
