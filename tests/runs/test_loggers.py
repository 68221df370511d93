"""Loggers: every step and evaluation reaches them, and where a run is logged changes nothing of it."""

import importlib.util
import sys
import types

import pytest

import trimtab
from trimtab.errors import InputError
from trimtab.runs import fleet
from trimtab.runs.config import RunConfig
from trimtab.runs.training import run

OWN = "seen = []\ndef log(step, metrics):\n    seen.append((step, dict(metrics)))\n"
WITH_RUN = (
    "def log(step, metrics, run):\n"
    "    with open('log.txt', 'a') as file:\n"
    "        file.write(f'{run.hash} {step} {sorted(metrics)}\\n')\n"
)
SIZE = dict(width=8, depth=1, lr=0.1, steps=6, batch_size=16, eval_every=3, eval_examples=16)


def test_a_function_gets_every_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    config = RunConfig(**SIZE, schedule="linear", log="mine.py:log")
    result = run(config)
    (mine,) = (m for m in sys.modules.values() if getattr(m, "__file__", None) == str(tmp_path / "mine.py"))
    seen = mine.seen
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [m["loss"] for _, m in seen] == result.curves["loss"].tolist()
    assert [m["lr"] for _, m in seen] == pytest.approx([0.1 * (1 - i / 6) for i in range(6)])
    tests = {step: m["test_loss"] for step, m in seen if "test_loss" in m}
    assert tests == dict(zip(result.curves["test_step"].tolist(), result.curves["test_loss"], strict=True))


def test_it_is_no_part_of_a_runs_name():
    plain, logged = RunConfig(**SIZE), RunConfig(**SIZE, log="tensorboard:logs")
    assert plain.hash == logged.hash and "log" not in logged.model_dump() and logged.replace(lr=0.2).log
    with pytest.raises(InputError, match="log: unknown name 'tensorbord', nearest 'tensorboard'"):
        RunConfig(**SIZE, log="tensorbord")


@pytest.mark.parametrize("slots", [1, 4])
def test_a_sweep_logs_each_cell_alone_or_in_a_fleet(tmp_path, monkeypatch, slots):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(WITH_RUN)
    rest = {k: v for k, v in SIZE.items() if k not in ("width", "depth", "lr")}
    config = dict(base=[8, 1], seeds=2, fleet=slots, axes={"lr": [0.05, 0.1]}, run=rest)
    trimtab.sweep(config | {"run": rest | {"log": "mine.py:log"}}, tmp_path / "a.db", workers=1)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    names = {line.split()[0] for line in lines}
    assert len(names) == 4 and len(lines) == 4 * 6
    assert sum("test_loss" in line for line in lines) == 4 * 2
    trimtab.sweep(config, tmp_path / "a.db", workers=1)  # without a log they are the same cells
    assert len((tmp_path / "log.txt").read_text().splitlines()) == len(lines)


def test_wandb_by_its_protocol(monkeypatch):
    """A stand-in for the package: what it is called with."""
    calls = []
    made = types.SimpleNamespace(
        log=lambda metrics, step: calls.append((step, metrics)), finish=lambda: calls.append("finish")
    )
    module = types.ModuleType("wandb")
    module.init = lambda **given: calls.append(given) or made
    monkeypatch.setitem(sys.modules, "wandb", module)
    config = RunConfig(**SIZE, log="wandb:proj")
    fleet.run([config.replace(fleet=2)])
    begun, *logged, end = calls
    assert begun["project"] == "proj" and begun["config"]["width"] == 8 and end == "finish"
    assert [step for step, _ in logged] == [1, 2, 3, 4, 5, 6]


def test_a_missing_package_is_named_before_any_step(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="pip install wandb"):
        run(RunConfig(**SIZE, log="wandb"))


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_reads_it_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(RunConfig(**SIZE, log=f"tensorboard:{tmp_path}"))
    (folder,) = tmp_path.iterdir()
    held = EventAccumulator(str(folder))
    held.Reload()
    assert [e.value for e in held.Scalars("loss")] == pytest.approx(result.curves["loss"].tolist())
