"""Batch and tokens as axes of a sweep: its runs, its faults, and one sweep from file to verdict."""

import json

import pandas as pd
import pytest

import trimtab
from trimtab.commands.transfer import Transfer as TransferCommand
from trimtab.errors import InputError
from trimtab.runs.batch_and_length import carried
from trimtab.sweeps.extension import extend
from trimtab.sweeps.grid import from_plain, read

BASE = {"width": 32, "depth": 3, "batch": 16, "tokens": 1600}
RATES = {"lr": [0.1, 0.2]}


def faults(config):
    with pytest.raises(InputError) as error:
        read({"axes": RATES} | config)
    return str(error.value)


def test_a_product_of_all_four():
    sweep = read(
        {
            "base": BASE,
            "widths": [16, 32],
            "batches": [16, 32, 64],
            "tokens": [1600, 6400],
            "axes": RATES,
            "seeds": 2,
        }
    )
    cells = list(sweep.cells())
    assert len(sweep) == len(cells) == 2 * 3 * 2 * 2 * 2 == len({c.hash for c in cells})
    assert {(c.batch_size, c.batch_size * c.steps) for c in cells} == {
        (b, t) for b in (16, 32, 64) for t in (1600, 6400)
    }
    assert {c.base for c in cells} == {(32, 3)}


def test_a_cross_through_the_base():
    sweep = read(
        {"base": BASE, "widths": [32, 64], "depths": [3, 6], "batches": [16, 64], "tokens": [1600, 3200],
         "sizes": "cross", "axes": RATES, "seeds": 1}
    )  # fmt: skip
    points = {tuple(p) for p in sweep.places}
    assert points == {
        (32, 3, 16, 1600), (64, 3, 16, 1600), (32, 6, 16, 1600), (32, 3, 64, 1600), (32, 3, 16, 3200)
    }  # fmt: skip


def test_the_base_may_stand_in_run_and_warmup_is_a_fraction():
    run = {"batch_size": 16, "steps": 100, "warmup": 10}
    sweep = read({"base": [32, 3], "batches": [8, 16, 32], "axes": RATES, "run": run, "seeds": 1})
    assert {(c.batch_size, c.steps, c.warmup) for c in sweep.cells()} == {
        (8, 200, 20),
        (16, 100, 10),
        (32, 50, 5),
    }


def test_without_them_a_sweep_is_what_it_was():
    sweep = read({"base": [32, 3], "axes": RATES, "seeds": 1})
    assert sweep.lengths is None and "points" not in sweep.plain()
    assert {(c.batch_size, c.steps) for c in sweep.cells()} == {(64, 200)}


def test_faults_all_at_once():
    text = faults({"base": {"width": 32, "deep": 3}, "batches": [0], "tokens": [10, 10]})
    assert all(word in text for word in ("base", "batches", "tokens"))
    assert "with batch 48" in faults({"base": [32, 3], "batches": [48]})
    text = faults({"base": BASE, "axes": RATES | {"steps": [1, 2]}, "run": {"batch_size": 16, "steps": 3}})
    assert all(word in text for word in ("axes.steps", "run.batch_size", "run.steps"))
    own = {"model": "mlp", "data": "mine.py:data"}
    assert "your own data function" in faults({"base": [32, 3], "batches": [8, 16], "run": own})


def test_extended_by_hand():
    plain = read({"base": BASE, "batches": [16, 32], "axes": RATES, "seeds": 1}).plain()
    with pytest.raises(InputError, match="by hand"):
        extend(plain, seeds=1)


def test_one_sweep_from_file_to_verdict(tmp_path, capsys):
    config = {
        "base": {"width": 8, "depth": 1, "batch": 16, "tokens": 640},
        "schemes": ["mup"],
        "batches": [16, 32, 64],
        "tokens": [640, 1280],
        "sizes": "cross",
        "axes": {"lr": {"log2": [-6, 0], "step": 1.5}},
        "seeds": 2,
        "run": {"eval_examples": 0},
    }
    store = tmp_path / "sweep.db"
    trimtab.sweep(config, store, workers=1)
    t = trimtab.transfer(store, over="batch")
    assert t.optima["batch"].tolist() == [16, 32, 64] and set(t.optima["tokens"]) == {640} and t.base == 16
    assert {r.rule for r in t.rules} == {"sde", "constant"} and t.fixed["width"] == 8
    assert trimtab.transfer(store, over="tokens").optima["tokens"].tolist() == [640, 1280]
    command = TransferCommand(store=str(store))
    assert command.run() in (0, 1, 3)
    text = capsys.readouterr().out
    assert "against each rule" in text and "over batch" in text and "over tokens" in text
    command = TransferCommand(store=str(store), fit=str(tmp_path / "mine.json"), json=True)
    assert command.run() in (0, 1, 3)
    out = capsys.readouterr()
    assert json.loads(out.out)["transfers"]["batch"]["mup"]["rules"][0]["rule"] == "sde"
    assert "Horizon" in out.err and trimtab.Horizon(rule=tmp_path / "mine.json").record.name == "mine"
    trimtab.report(store, tmp_path / "report.html")
    assert "tokens" in (tmp_path / "report.html").read_text()


def test_a_table_needs_its_columns():
    table = pd.DataFrame([dict(state="done", scheme="mup", width=8, depth=1, seed=0, lr=0.1, train_loss=1.0)])
    with pytest.raises(InputError, match="batch_size and steps"):
        trimtab.transfer(table, over="batch")
    with pytest.raises(InputError, match="one of width, depth, batch, tokens"):
        trimtab.transfer(table, over="length")


def test_a_rule_in_the_sweep_reaches_every_run_and_its_name(tmp_path):
    plain = {"base": BASE, "batches": [16, 64], "axes": RATES, "seeds": 1, "run": {"optimizer": "adamw"}}
    before, after = read(plain), read(plain | {"horizon": {"rule": "sde"}})
    names = {c.hash for c in before.cells()}
    assert not names & {c.hash for c in after.cells()} and "rule" not in before.plain()["lengths"]
    assert {c.batch_size: carried(c).lr / c.lr for c in after.cells()} == {16: 1.0, 64: 2.0}
    assert from_plain(after.plain()) == after and from_plain(before.plain()) == before
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "sde"\n[adam]\nlr = {batch = 0.25, tokens = 0.0}\n')
    file = tmp_path / "sweep.toml"
    file.write_text(
        "base = {width = 32, depth = 3, batch = 16, tokens = 4096}\nbatches = [16, 256]\n"
        'horizon = "mine.toml"\n'
        'axes = {lr = [0.1]}\nrun = {optimizer = "adamw", betas = [0.99, 0.999]}\nseeds = 1\n'
    )
    held = list(read(file).cells())
    assert {c.batch_size: carried(c).lr / c.lr for c in held} == {16: 1.0, 256: 2.0}
    mine.write_text('extends = "sde"\n')  # another file is another run
    assert not {c.hash for c in held} & {c.hash for c in read(file).cells()}


def test_faults_of_a_rule():
    run = {"run": {"optimizer": "adamw"}}
    assert "needs batches or tokens" in faults({"base": [32, 3], "horizon": "sde"} | run)
    assert "horizon: rule must be one of" in faults({"base": BASE, "batches": [16], "horizon": "sdE"} | run)
    assert "horizon" in faults({"base": BASE, "batches": [16], "horizon": 3} | run)
    assert "no memory at all" in faults({"base": BASE, "batches": [16, 160], "horizon": "sde"} | run)
    assert "run.horizon" in faults({"base": BASE, "run": {"horizon": {"rule": "sde"}}})


def test_runs_that_follow_a_rule_are_not_held_against_rules(tmp_path):
    config = {
        "base": {"width": 8, "depth": 1, "batch": 16, "tokens": 640},
        "schemes": ["mup"],
        "batches": [16, 64],
        "horizon": "sde",
        "axes": {"lr": {"log2": [-6, 0], "step": 1.5}, "roles.input.lr": [0.5, 1.0]},
        "seeds": 2,
        "run": {"eval_examples": 0},
    }
    store = tmp_path / "sweep.db"
    trimtab.sweep(config, store, workers=1)
    t = trimtab.transfer(store, over="batch", where={"roles.input.lr": 0.5})
    assert t.rules == () and t.critical is None and any("follow the rule sde" in note for note in t.notes)
