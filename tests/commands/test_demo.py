"""`trimtab demo`: what it says of made-up runs, and what it finds with seeds other than its own."""

import math

import pandas as pd
import pytest

from trimtab.cli import main
from trimtab.commands.demo import DEPTHS, WIDTHS, conclusion, grid, judge
from trimtab.optima.tables import TableSource
from trimtab.sweeps.grid import read
from trimtab.sweeps.store import Store


def share(size, sizes):
    return math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])


def made(octaves, edge=None):
    """Runs of a demo whose optimum moves by octaves[scheme] = (over all widths, over all depths)."""
    rows = []
    for scheme, (over_width, over_depth) in octaves.items():
        for width, depth in read(grid([0])).sizes:
            best = -6 + over_width * share(width, WIDTHS) + over_depth * share(depth, DEPTHS)
            for x in (-9 + 0.5 * i for i in range(12)):
                for seed in range(3):
                    loss = 1 + 0.1 * (x - best) ** 2 + 0.002 * math.sin(7 * x + 3 * seed + width + depth)
                    state = "diverged" if edge is not None and depth == DEPTHS[-1] and x > edge else "done"
                    run = dict(state=state, scheme=scheme, width=width, depth=depth, seed=seed, lr=2.0**x)
                    rows.append(run | dict(train_loss=loss if state == "done" else None, collapsed=False))
    return TableSource(pd.DataFrame(rows), {"base": (WIDTHS[0], DEPTHS[0])})


def test_the_conclusion_says_which_way_and_how_far():
    plain, ours = conclusion(judge(made({"sp": (-1.5, -2), "depth-mup": (0, 0)})))
    start = "Plain (sp): the best learning rate falls "
    assert plain.startswith(start) and plain.endswith("over depth 2 to 16: it drifts over both."), plain
    by_width, by_depth = (float(part.split()[-1]) for part in plain.split("-fold")[:2])
    assert by_width == pytest.approx(2**1.5, abs=0.2) and by_depth == pytest.approx(4, abs=0.2), plain
    stays = "stays over width 64 to 512 and stays over depth 2 to 16: it transfers over both."
    assert ours == f"trimtab (depth-mup): the best learning rate {stays}"


def test_the_conclusion_is_no_better_than_the_runs():
    """The words follow the verdicts: trimtab's lines are not written in advance."""
    plain, ours = conclusion(judge(made({"sp": (0, 0), "depth-mup": (0, 1.8)})))
    assert plain.endswith("it transfers over both."), plain
    assert "rises 3.5-fold over depth 2 to 16" in ours, ours
    assert ours.endswith("it transfers over width, drifts over depth."), ours
    # Nothing trains at the largest depth: there is no best rate to speak of.
    plain, _ = conclusion(judge(made({"sp": (0, 0), "depth-mup": (0, 0)}, edge=-99)))
    assert "cannot be followed over depth 2 to 16" in plain and "stays over width" in plain, plain


def assert_headline(folder, seeds):
    assert main(["demo", "--out", str(folder), "--seeds", *map(str, seeds)]) == 0
    store = Store(folder / "demo.db")
    for over, by in judge(store).items():
        plain, ours = by["sp"], by["depth-mup"]
        sizes = {"width": WIDTHS, "depth": DEPTHS}[over]
        assert plain.optima[over].tolist() == ours.optima[over].tolist() == sizes
        # All optima are inside the grid, so that none is a guess about what was not tried.
        assert {*plain.optima.status, *ours.optima.status} == {"inside"}, (plain.optima, ours.optima)
        # The plain network's optimum falls by more than an octave, trimtab's stays within one.
        assert plain.verdict == "drifts" and plain.drift.high < 0, plain.drift
        assert plain.optima.log2.iloc[-1] < plain.optima.log2.iloc[0] - 1, plain.optima
        assert ours.verdict == "transfers", ours.drift
        assert (ours.optima.log2 - ours.optima.log2.iloc[0]).abs().max() < 1, ours.optima
    # At the base the two are one model.
    runs = store.to_pandas().query(f"width == {WIDTHS[0]} and depth == {DEPTHS[0]}")
    rows = [runs.query(f"scheme == '{s}'").sort_values(["lr", "seed"]) for s in ("sp", "depth-mup")]
    for column in ("state", "train_loss", "last_loss"):
        assert [str(v) for v in rows[0][column]] == [str(v) for v in rows[1][column]], column
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_headline(tmp_path, capsys):
    page = assert_headline(tmp_path / "demo", (10, 11, 12))
    said = capsys.readouterr().out.splitlines()
    words = [("Plain (sp): the best learning rate falls ", "it drifts over both.")]
    words += [("trimtab (depth-mup): the best learning rate ", "it transfers over both.")]
    for line, (start, end) in zip(said[:2], words, strict=True):
        assert line.startswith(start) and line.endswith(end), line
    assert "<h1>depth-mup: learning rate transfers over depth and width" in page


@pytest.mark.full
@pytest.mark.parametrize("seeds", [(20, 21, 22), (30, 31, 32)])
def test_the_headline_again(tmp_path, seeds):
    assert_headline(tmp_path / "demo", seeds)
