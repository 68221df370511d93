"""`trimtab demo` as a newcomer runs it, with seeds other than its own."""

import math

import pytest

import trimtab
from trimtab.cli import main
from trimtab.sweeps.store import Store


def assert_headline(folder, seeds):
    assert main(["demo", "--out", str(folder), "--seeds", *map(str, seeds)]) == 0
    store = Store(folder / "demo.db")
    every = trimtab.transfer(store, over="depth")
    ours, mup = every["depth-mup"], every["mup"]
    # 16 times the depth: the optimum stays within an octave, and the intervals say so.
    moved = ours.optima.log2 - ours.optima.log2.iloc[0]
    assert ours.optima.depth.tolist() == [3, 6, 12, 24, 48] and moved.abs().max() <= 1, moved.tolist()
    assert (ours.optima.high / ours.optima.low).map(math.log2).max() < 2 and ours.verdict == "transfers", ours.drift
    assert 4 * max(-ours.drift.low, ours.drift.high) <= 1, ours.drift
    # Without the branch scaling it falls by three octaves and then nothing trains.
    at = mup.optima.set_index("depth").log2
    assert at[24] <= at[3] - 3 and mup.verdict == "drifts", mup.optima
    runs = store.to_pandas().query("width == 32")
    deep = runs.query("scheme == 'mup' and depth == 48 and state == 'done' and not collapsed")
    assert deep.seed.nunique() <= 1, deep
    # At the base the two are one model.
    rows = [runs.query(f"scheme == '{s}' and depth == 3").sort_values(["lr", "seed"]) for s in ("mup", "depth-mup")]
    for column in ("state", "train_loss", "test_loss", "last_loss", "accuracy"):
        assert [str(v) for v in rows[0][column]] == [str(v) for v in rows[1][column]], column
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "transfers over depth 3 to 48" in page


def test_the_headline(tmp_path, capsys):
    assert_headline(tmp_path / "demo", (10, 11, 12))
    assert "transfers over depth 3 to 48" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("seeds", [(20, 21, 22), (30, 31, 32)])
def test_the_headline_again(tmp_path, seeds):
    assert_headline(tmp_path / "demo", seeds)
