"""How far a sweep or a check is: steps within running cells, speed, time to go, best so far, a line a minute
where there is no terminal."""

import io

import pytest
from rich.console import Console

from trimtab import cli
from trimtab.commands import display
from trimtab.commands.display import Display
from trimtab.sweeps.store import Store


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def long_sweep(path):
    """Three runs of 200 steps each at one cost, none begun."""
    store = Store(path, create=True)
    run = {"lr": 0.1, "steps": 200, "width": 8, "depth": 3, "scheme": "mup", "seed": 0}
    store.add([(f"cell{i}", "x", run | {"seed": i}, f"unit{i}", False, 1.0) for i in range(3)])
    return store


def test_a_log_file_gets_a_line_a_minute_with_steps_and_time_to_go(tmp_path, clock):
    store, out = long_sweep(tmp_path / "a.db"), io.StringIO()
    shown = Display(Console(file=out, width=200))
    lines = lambda: out.getvalue().splitlines()  # noqa: E731
    claim = store.claim("me")
    shown.update(store, 1)
    assert lines() == ["0/3 cells  1 worker  time to go -"]
    for _ in range(59):  # twice a second is how often the driver calls
        clock[0] += 1.0
        shown.update(store, 1)
    assert len(lines()) == 1, "a line before the minute was over"
    store.heartbeat("me", steps=50)  # a quarter of the first run in a minute: 2.75 runs, 11 minutes to go
    clock[0] += 1.0
    shown.update(store, 1)
    assert lines()[1:] == ["0/3 cells  1 worker at step 50 of 200  time to go 11:00"]
    store.finish(claim, "cell0", "done", {"train_loss": 0.25, "collapsed": False})
    clock[0] += 60.0
    shown.update(store, 1)
    assert lines()[2].startswith("1/3 cells")
    assert "best 0.25 (mup, width 8, depth 3, lr 0.1, seed 0)" in lines()[2]
    # one run in two minutes is half a run a minute, two runs to go take four
    assert "0.5 runs/min  time to go 4:00" in lines()[2], lines()[2]
    for cell in ("cell1", "cell2"):
        store.finish(store.claim("me"), cell, "done", {"train_loss": 0.5, "collapsed": False})
    clock[0] += 1.0
    shown.update(store, 0)
    shown.update(store, 0)
    assert len(lines()) == 4, "the last line is written at once, and once"
    assert lines()[3].startswith("3/3 cells")


def test_a_check_says_what_it_is_at(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("from trimtab.models.mlp import build\n")
    sizes = ["--base-width", "16", "--base-depth", "2", "--widths", "16", "32", "--depths", "2"]
    cli.main(["check", "net.py:build", *sizes, "--seeds", "1", "--steps", "2"])
    said = capsys.readouterr().err
    assert "width 32" in said, said
