"""A fleet's members are the single runs, and nobody's numbers depend on who else is there."""

import numpy as np
import pytest
import torch

from trimtab.errors import InputError
from trimtab.runs import fleet, fleet_graph
from trimtab.runs.config import RunConfig
from trimtab.runs.fleet_or_single import Choice, choose
from trimtab.runs.training import Interrupted, run

torch.set_num_threads(1)
BASE = RunConfig(width=32, depth=6, base=(32, 3), lr=0.05, steps=100, model_options={"branch_scale": 3**-0.5})
RATES = [0.01, 0.02, 0.05, 0.1]
# Rates at which one run is not chaotic itself: a BatchNorm ResNet at ten times these, moved by one bit at the
# start, is 4e-1 from
# itself after 100 steps in float32, and no reordering of sums can be closer than that.
KINDS = {
    "sgd": dict(),
    "momentum": dict(momentum=0.8, nesterov=True, weight_decay=1e-3, clip=1.0, schedule="cosine", warmup=10),
    "adamw": dict(optimizer="adamw", weight_decay=0.1, schedule="linear", decay_schedule="rate", scale=0.1),
    "adam": dict(optimizer="adam", weight_decay=1e-3, scale=0.05),
    "batchnorm": dict(model="resnet", width=8, base=(8, 3), model_options={"norm": "batch"}, scale=0.1),
    "vit": dict(
        model="vit",
        width=16,
        depth=2,
        base=(16, 2),
        model_options={"patch": 4, "heads": 2},
        optimizer="adamw",
        scale=0.03,
    ),
}


def members(kind, dtype):
    numbers = dict(KINDS[kind])
    scale = numbers.pop("scale", 1.0)
    base = BASE.replace(dtype=dtype, **numbers)
    return [
        base.replace(lr=lr * scale, seed=i % 2, gamma0=2.0 if i == 3 else 1.0) for i, lr in enumerate(RATES)
    ]


def far(a, b):
    return float(np.max(np.abs(a.curves["loss"] - b.curves["loss"]) / np.abs(b.curves["loss"])))


LONG = [k if k not in ("batchnorm", "vit") else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("float64", 1e-9)])
def test_members_are_the_single_runs(kind, dtype, bound):
    configs = members(kind, dtype)
    for one, config in zip(fleet.run(configs), configs, strict=True):
        alone = run(config)
        assert one.state == alone.state == "done" and far(one, alone) < bound
        assert one.accuracy == pytest.approx(alone.accuracy, abs=0.01) and one.flops == alone.flops


@pytest.mark.parametrize("kind", LONG)
def test_numbers_do_not_depend_on_the_others(kind):
    configs = members(kind, "float32")
    wild = [c.replace(lr=c.lr * 1e6) for c in configs]
    full = fleet.run(configs + wild)  # half of them diverge on the way
    for chosen in ([0], [2, 1], [3, 0, 2]):
        for i, one in zip(chosen, fleet.run([configs[i] for i in chosen]), strict=True):
            assert all(np.array_equal(one.curves[k], full[i].curves[k]) for k in one.curves), (chosen, i)


def test_the_diverged_stay_and_are_recorded_as_alone():
    configs = [BASE.replace(lr=lr, steps=60) for lr in (0.05, 1e3, 1e4, 0.5, 8.0, 0.02, 30.0, 2.0)]
    group = fleet.Fleet(configs)
    results = group.go(60.0, None, None)
    for one, config in zip(results, configs, strict=True):
        alone = run(config)
        assert (one.state, one.stopped_at, one.collapsed) == (alone.state, alone.stopped_at, alone.collapsed)
    assert len(group.theta) == fleet.ROWS and {r.state for r in results} == {"done", "diverged"}


@pytest.mark.parametrize("kind", ["momentum", "adamw", pytest.param("batchnorm", marks=pytest.mark.slow)])
def test_resume_is_bitwise(kind, tmp_path):
    configs = [*members(kind, "float32"), members(kind, "float32")[0].replace(lr=1e5)]
    whole, asked = fleet.run(configs), iter(range(1000))
    for _ in range(3):
        with pytest.raises(Interrupted):
            fleet.run(configs, checkpoint=tmp_path / "f", stop=lambda: next(asked) % 6 == 5)
    for a, b in zip(fleet.run(configs, checkpoint=tmp_path / "f"), whole, strict=True):
        assert all(np.array_equal(a.curves[k], b.curves[k], equal_nan=True) for k in b.curves)


def test_members_must_share_what_a_fleet_shares():
    with pytest.raises(InputError, match="width, optimizer"):
        fleet.run([BASE, BASE.replace(width=64, optimizer="adamw")])
    with pytest.raises(InputError, match="one by one"):
        fleet.run([BASE.replace(optimizer="muon")] * 2)


def test_rows_that_see_each_other_are_refused(monkeypatch):
    real = fleet_graph.plain
    monkeypatch.setattr(
        fleet_graph, "plain", lambda graph: lambda *a: real(graph)(*a) * torch.linspace(1, 1.0001, fleet.ROWS)
    )
    with pytest.raises(InputError, match="equal rows .* fleet = 1"):
        fleet.run([BASE])


def test_the_choice_follows_from_size_and_model_alone(monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("a stopwatch was asked"))
    small = [
        BASE.replace(lr=lr, seed=seed, scheme=scheme)
        for lr in (0.1, 1.0)
        for seed in (0, 5)
        for scheme in ("sp", "mup")
    ]
    assert (
        {choose(c).slots for c in small} == {16}
        and choose(BASE, 8) == Choice(8)
        and choose(BASE, 1) == Choice(1)
    )
    assert choose(BASE.replace(width=512)).slots == 1, "more parameters than pay"
    image = dict(model="resnet", model_options={"norm": "none"}, depth=6, base=(64, 6))
    assert choose(BASE.replace(width=32, **image)).slots == 16
    assert choose(BASE.replace(width=32, batch_size=512, **image)).slots == 1, "more arithmetic than pays"
    assert choose(BASE.replace(optimizer="muon"), 8) == Choice(1, "it steps sgd, adam, adamw only, not muon")


def test_a_members_name_says_how_it_was_trained():
    assert len({BASE.replace(fleet=slots).hash for slots in (1, 8, 16)}) == 3


def test_a_model_vmap_cannot_take_runs_one_by_one(tmp_path):
    file = tmp_path / "asking.py"
    file.write_text(
        "from torch import nn\n"
        "class Asking(nn.Module):\n"
        "    def __init__(self, width):\n        super().__init__()\n        self.a, self.b = nn.Linear(64, "
        "width), nn.Linear(width, 10)\n"
        "    def forward(self, x):\n        h = self.a(x.flatten(1)).relu()\n        return self.b(h / "
        "h.norm().item())\n"
        "def build(width, depth):\n    return Asking(width)\n"
    )
    choice = choose(RunConfig(model=f"{file}:build", width=16, depth=1, lr=0.1, steps=20))
    assert (
        choice.slots == 1
        and "as a fleet it raises RuntimeError" in choice.reason
        and "item()" in choice.reason
    )


OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width, depth, kept, tied):
        super().__init__()
        self.embed = nn.Embedding(11, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.embed.weight.requires_grad_(tied)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        shift = torch.randn(width // width)
        if kept == "attribute":
            self.shift = shift
        else:
            self.register_buffer("shift", shift, persistent=kept == "saved")
    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(torch.relu(h) + self.shift)
        return self.head(self.norm(h))
def build(width, depth, kept="saved", tied=True):
    return Net(width, depth, kept, tied)
def data(split, seed, step):
    x = torch.randint(0, 11, (8, 5), generator=torch.Generator().manual_seed(seed * 999 + step))
    return x, (x + 1) % 11
def pairs(split, seed, step):
    x, y = data(split, seed, step)
    return (x,), y
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return RunConfig(
        model=f"{tmp_path}/own.py:build",
        data=f"{tmp_path}/own.py:data",
        width=16,
        depth=3,
        base=(16, 3),
        lr=0.3,
        steps=12,
        momentum=0.5,
        clip=1.0,
    )


@pytest.mark.parametrize("options", [dict(tied=True), dict(tied=False), dict(kept="rebuilt")], ids=str)
def test_tied_and_frozen_weights_and_every_buffer(own, options):
    configs = [own.replace(model_options=options, seed=seed, lr=lr) for seed in (0, 3) for lr in (0.1, 0.3)]
    for one, config in zip(fleet.run(configs), configs, strict=True):
        alone = run(config)
        assert far(one, alone) < 1e-4 and one.test_loss == pytest.approx(alone.test_loss, rel=1e-4)


def test_what_cannot_be_stacked_is_refused(own, tmp_path):
    assert choose(own).slots == 16
    kept = choose(own.replace(model_options={"kept": "attribute"}))
    assert kept.slots == 1 and "as a fleet it gives a loss of" in kept.reason
    pairs = own.replace(data=f"{tmp_path}/own.py:pairs")
    assert "one input tensor" in choose(pairs).reason
    with pytest.raises(InputError, match="one input tensor"):
        fleet.run([pairs, pairs])
