"""`trimtab.tune` from end to end on small networks: its answer, and that stopping on the way changes
nothing."""

import math
import runpy

import pytest
import torch

import trimtab
from trimtab.runs.config import RunConfig, rate
from trimtab.runs.training import Run
from trimtab.sweeps.store import Store
from trimtab.tuning import snippet as snippets
from trimtab.tuning.config import read
from trimtab.tuning.result import Tuned
from trimtab.tuning.search import Replay, read_results
from trimtab.tuning.snippet import write_snippet
from trimtab.tuning.target import groups_at, horizon_of, orders, plan_target

FILE = dict(
    base=[16, 2],
    target=[64, 4],
    trials=12,
    per_round=4,
    seeds=2,
    finalists=3,
    final_seeds=2,
    run=dict(optimizer="adamw", steps=6, batch_size=16, eval_examples=0, schedule="cosine", clip=1.0),
    search=dict(lr=dict(log2=[-10, -2]), warmup={"from": 0.0, "to": 0.5}),
    confirm=dict(size=[32, 2], seeds=2),
)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A whole tune, and its store."""
    store = tmp_path_factory.mktemp("tune") / "tune.db"
    return trimtab.tune(FILE, store, workers=1), store


def test_a_target_that_cannot_be_built_is_refused_before_any_run(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build(width, depth):\n"
        "    if width == 64:\n        raise ValueError('heads do not divide 64')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))\n"
    )
    run = FILE["run"] | {"model": f"{tmp_path}/mine.py:build"}
    with pytest.raises(trimtab.InputError, match="width 64, depth 4: .*heads do not divide 64"):
        trimtab.tune(FILE | {"run": run}, tmp_path / "tune.db", workers=1)
    assert not (tmp_path / "tune.db").exists()


def test_the_answer(tuned):
    found, _ = tuned
    assert isinstance(found, trimtab.Tuned)
    assert set(found.best.values) == {"lr", "warmup"} and found.best.low < found.best.loss < found.best.high
    assert found.best.seeds == found.best.fresh == 2 and found.best.size == (32, 2) and found.failed == 0
    assert [row.name for row in found.sensitivity] == ["lr", "warmup"]
    assert found.confirmation.seeds == 2 and found.confirmation.size == (32, 2)
    assert found.cost.share == pytest.approx(found.cost.flops / found.cost.at_target)
    assert (
        0 < found.cost.share < 0.2
    )  # four times the width and twice the depth: 1/32 of the hidden layers' work


def test_json_there_and_back(tuned):
    found, _ = tuned
    assert Tuned.from_json(found.to_json()) == found
    with pytest.raises(trimtab.InputError, match="Tuned.to_json"):
        Tuned.from_json("{}")


def test_going_on_does_nothing_new_and_gives_the_same(tuned):
    found, store = tuned
    before = Store(store).counts()
    assert trimtab.tune(FILE, store, workers=1) == found
    assert Store(store).counts() == before


@pytest.mark.slow
def test_half_and_then_all_is_all_at_once(tuned, tmp_path):
    """Stopped after six of twelve trials, in the middle of a round, and gone on with."""
    found, _ = tuned
    store = tmp_path / "tune.db"
    half = trimtab.tune(FILE | {"trials": 6}, store, workers=1)
    assert half.cost.trials == 6
    assert trimtab.tune(FILE, store, workers=1) == found


def slots_of(store):
    """Slots of each size's fleets, as the store has them."""
    table = store.to_pandas()
    held = {(row.width, row.depth): int(row.fleet) for row in table.itertuples()}
    return held.__getitem__


def test_the_runs_of_a_tune(tuned):
    """Two seeds of each trial at the base; one fresh seed of three finalists and another of the better two at
    twice the width; at the same size two seeds that took no part in the choice."""
    found, path = tuned
    table = Store(path).to_pandas()
    larger = table[table.width == 32]
    assert set(table[table.width == 16].seed) == {0, 1} and set(table.width) == {16, 32}
    counts = larger.groupby("seed").size().to_dict()
    # warmups round to whole steps: two finalists may be one run
    assert counts[2] in (2, 3) and counts[3] in (1, 2) and counts[4] == counts[5] == 1 and len(counts) == 4
    counted = table[~table.seed.isin((4, 5))]
    assert found.cost.runs == len(counted) and found.cost.flops == pytest.approx(counted.flops.sum())


@pytest.mark.slow
def test_any_part_of_the_results_goes_on_to_the_same_runs(tuned):
    """As if killed at any moment: whatever is known, what is asked for is part of the whole, and it ends
    alike."""
    found, path = tuned
    store = Store(path)
    made, known = read(FILE), read_results(store, "train_loss")
    slots = slots_of(store)
    end = Replay(made, known, slots).walk()
    assert not end.wanted and len(end.trials) == found.cost.trials
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        keep = torch.rand(len(known), generator=generator) < torch.rand((), generator=generator)
        held = {cell: row for (cell, row), kept in zip(known.items(), keep, strict=True) if kept}
        while (now := Replay(made, held, slots).walk()).wanted:
            sizes = [(run.width, run.depth) for run in now.wanted]
            asked = [
                run.model_copy(update={"fleet": slots(size)}).hash
                for run, size in zip(now.wanted, sizes, strict=True)
            ]
            assert set(asked) <= set(known) and not set(asked) & set(held)
            held |= {cell: known[cell] for cell in asked}
        assert (now.trials, now.finals, now.why) == (end.trials, end.finals, end.why)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "muon"])
def test_the_table_is_what_a_run_has(optimizer):
    """Every number of the target's table against the optimizers that a run of that size is trained with."""
    config = RunConfig(
        width=48,
        depth=4,
        base=(16, 2),
        lr=0.01,
        momentum=0.5,
        weight_decay=0.1,
        optimizer=optimizer,
        gamma0=2.0,
    )
    plan, _, meta = plan_target(config)
    assert not meta
    run = Run(config)
    wanted = {}
    names = {id(p): name for name, p in run.model.named_parameters()}
    for made in run.optimizers:
        for group in made.param_groups:
            for p in group["params"]:
                wanted[names[id(p)]] = (group["lr"], group["weight_decay"], group.get("eps"))
    rows = groups_at(plan, config)
    assert sorted(name for row in rows for name in row.parameters) == sorted(wanted)
    for row in rows:
        for name in row.parameters:
            lr, decay, eps = wanted[name]
            assert math.isclose(row.lr, lr) and math.isclose(row.weight_decay, decay)
            assert row.eps is None or math.isclose(row.eps, eps)
            assert math.isclose(row.init, plan[name].init)
    assert [o.cls for o in orders(config)] == [type(o).__name__ for o in run.optimizers]


def test_a_large_target_is_planned_without_weights(monkeypatch):
    """On the meta device the same numbers."""
    config = RunConfig(width=48, depth=4, base=(16, 2), lr=0.01, optimizer="adamw", weight_decay=0.1)
    with_weights = groups_at(plan_target(config)[0], config)
    monkeypatch.setattr("trimtab.tuning.target.LARGE", 100)
    plan, _, meta = plan_target(config)
    assert meta and groups_at(plan, config) == with_weights


def ran(snippet, tmp_path):
    path = tmp_path / "snippet.py"
    path.write_text(snippet)
    return runpy.run_path(str(path))


def test_the_snippet_trains_as_a_run_does(tuned, tmp_path):
    """It runs as it is; its optimizer has the table's numbers, its schedule the run's."""
    found, _ = tuned
    names = ran(found.snippet, tmp_path)
    model, (optimizer,) = names["model"], names["optimizers"]
    assert isinstance(optimizer, torch.optim.AdamW)
    factor = names["rate"](0)
    rates = {id(p): group["lr"] / factor for group in optimizer.param_groups for p in group["params"]}
    by_name = dict(model.named_parameters())
    for row in found.target:
        for name in row.parameters:
            assert math.isclose(rates[id(by_name[name])], row.lr)
    config = read(FILE).at(found.best.values, found.size, 0)
    for step in range(config.steps):
        assert math.isclose(names["rate"](step), rate(step, config), abs_tol=1e-12)
    before = model.head.weight.detach().clone()
    names["update"](model(names["example"]).square().mean())
    assert not torch.equal(before, model.head.weight)
    assert "clip_grad_norm_(1.0)" in found.snippet


MINE = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)
    def forward(self, h): return h + self.fc(torch.relu(h))
def build(width, depth):
    return nn.Sequential(nn.Linear(6, width), *[Block(width) for _ in range(depth)], nn.Linear(width, 3))
def data(split, seed, step):
    g = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(16, 6, generator=g), torch.randint(0, 3, (16,), generator=g)
"""


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_the_snippet_of_a_users_own_build(optimizer, tmp_path, monkeypatch):
    (tmp_path / "mine_tuned.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    given = dict(model="mine_tuned.py:build", data="mine_tuned.py:data")
    config = RunConfig(width=64, depth=4, base=(32, 2), lr=0.01, optimizer=optimizer, **given)
    names = ran(write_snippet(config), tmp_path)
    assert names["p"].depth == 2.0 and len(names["optimizers"]) == len(orders(config))
    names["update"](names["model"](names["example"]).square().mean())


def test_a_tune_needs_a_place_for_its_runs():
    with pytest.raises(trimtab.InputError, match="store"):
        trimtab.tune(FILE)


def test_another_batch_and_length(tmp_path):
    """Four times the batch, eight times the tokens: the rule's factors on top of the size's, here and in the
    snippet."""
    numbers = dict(lr=0.01, optimizer="adamw", weight_decay=0.1, steps=10)
    config = RunConfig(width=48, depth=4, base=(16, 2), **numbers)
    horizon = horizon_of(4.0, 8.0, "sde")
    assert horizon_of(1.0, 1.0, "sde") is None
    plain = {row.parameters: row for row in groups_at(plan_target(config)[0], config)}
    rule = horizon.factors("AdamW")
    for row in groups_at(plan_target(config)[0], config, horizon):
        assert math.isclose(row.lr, plain[row.parameters].lr * rule.lr)
        assert row.betas == pytest.approx(horizon.betas((0.9, 0.999)))
    names = ran(write_snippet(config, horizon), tmp_path)
    assert names["steps"] == 20
    rates = sorted(group["lr"] for group in names["optimizers"][0].param_groups)
    assert rates[0] == pytest.approx(min(row.lr for row in plain.values()) * rule.lr)


def test_the_device_of_a_tune_is_settled_before_any_run_is_named(tuned, tmp_path):
    """`auto` where there is no GPU is the processor: the same runs, so that nothing is left to do."""
    found, store = tuned
    with pytest.raises(trimtab.InputError, match="run.device.*there is cpu"):
        trimtab.tune(FILE | {"run": FILE["run"] | {"device": "cuda:97"}}, tmp_path / "other.db")
    assert not list(tmp_path.iterdir())
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU here: auto is another class of device")
    named = FILE | {"run": FILE["run"] | {"device": "auto", "precision": "float32"}}
    before = len(Store(store).to_pandas())
    assert trimtab.tune(named, store, workers=1).best == found.best
    assert len(Store(store).to_pandas()) == before


def test_multipliers_by_role_reach_the_target_unchanged(tmp_path):
    """lr and the input's own rate are searched; the target's input has the same multiplier, and so has the
    snippet."""
    search = {"lr": dict(log2=[-10, -2]), "roles.input.lr": dict(log2=[-3, 3])}
    file = {key: value for key, value in FILE.items() if key != "confirm"} | dict(search=search, trials=8)
    found = trimtab.tune(file, tmp_path / "tune.db", workers=1)
    times = found.best.values["roles.input.lr"]
    config = RunConfig(**file["run"], width=64, depth=4, base=(16, 2), lr=found.best.values["lr"])
    plan = plan_target(config)[0].factors(torch.optim.AdamW)
    for group in found.target:
        for name in group.parameters:
            mine = times if group.roles == ("input",) else 1.0
            assert group.lr == pytest.approx(found.best.values["lr"] * plan[name]["lr"] * mine)
    assert "roles={'input': {'lr': " in found.snippet


def test_the_snippet_builds_a_published_model(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.py").write_text(
        "import torch\ndef data(split, seed, step):\n    x = torch.randint(0, 50, (2, 9))\n"
        "    return {'input_ids': x, 'labels': x}\n"
    )
    config = RunConfig(model="hf:gpt2", data="ids.py:data", width=64, depth=1, lr=0.1, steps=2)
    lines, imports = snippets._build(config)
    space: dict = {}
    exec("\n".join([*imports, *lines, "model = build(64, 1, **options)"]), space)
    assert space["model"].config.n_embd == 64
