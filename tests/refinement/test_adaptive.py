"""Adaptive sweeps: the same cells whatever is killed, past the edge, no further than the budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trimtab.errors import InputError
from trimtab.optima.drift import Drift
from trimtab.refinement.policy import decided
from trimtab.refinement.walk import Walk
from trimtab.runs.config import RunConfig
from trimtab.sweeps import grid

OPTIMUM = {3: -1.7, 6: -1.75, 12: -1.7}  # log2 of the rate


def config(**more: Any) -> grid.SweepConfig:
    search = {"adaptive": True} | more.pop("search", {})
    rates = more.pop("rates", [-4, 1])
    table = dict(base=[32, 3], depths=[3, 6, 12], seeds=3, run={"eval_examples": 0}, search=search)
    return grid.read(table | {"axes": {"lr": {"log2": rates, "step": 0.5}}} | more)


class MadeUp:
    """A store whose runs end as a formula says, of which only some are finished."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}

    def finish(self, run: RunConfig) -> None:
        run = run.model_copy(update={"fleet": 16})
        x = math.log2(run.lr)
        noise = np.random.default_rng([run.seed, run.depth, round(100 * x) + 10_000]).standard_normal()
        loss = 0.3 + 0.1 * (x - OPTIMUM[run.depth]) ** 2 + 0.01 * noise
        self.held[run.hash] = dict(
            cell=run.hash, state="diverged" if x > 1.2 else "done", collapsed=False, train_loss=loss
        ) | dict(flops=1e9 * run.depth, seconds=1.0, **run.model_dump(include=set(FIELDS)))

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.held.values()), columns=COLUMNS)


FIELDS = ("scheme", "width", "depth", "seed", "lr", "fleet")
COLUMNS = ["cell", "state", "collapsed", "train_loss", "flops", "seconds", *FIELDS]


def whole(made: grid.SweepConfig) -> tuple[MadeUp, Any]:
    """An undisturbed sweep: (its store, its last step)."""
    store, walk = MadeUp(), Walk(made)
    while True:
        step = walk.advance(store)  # type: ignore[arg-type]
        if not step.runs:
            return store, step
        for run in step.runs:
            store.finish(run)


def test_it_decides_with_fewer_runs_than_the_grid():
    made = config()
    store, step = whole(made)
    assert any("decided (transfers)" in words for words in step.words)
    spent = sum(row["flops"] for row in store.held.values())
    assert spent < 0.4 * sum(1e9 * run.depth for run in made.cells())


@pytest.mark.parametrize("chance", [0, 1])
def test_killed_at_any_moment_it_asks_for_the_same_cells(chance: int):
    made = config(search={"runs": 40})
    undisturbed, last = whole(made)
    draw, store = np.random.default_rng(chance), MadeUp()
    for _ in range(200):
        step = Walk(made).advance(store)  # type: ignore[arg-type]  # a new process each time
        if not step.runs:
            break
        some = draw.permutation(len(step.runs))[: max(1, draw.integers(len(step.runs) + 1))]
        for i in some:  # a kill leaves some of a round, in any order
            store.finish(step.runs[i])
    assert set(store.held) == set(undisturbed.held)
    assert step.words == last.words


def test_it_goes_past_the_edge_of_the_grid():
    store, _ = whole(config(rates=[-6, -3]))  # the optimum lies two octaves above
    assert max(math.log2(row["lr"]) for row in store.held.values()) > -1.7


def test_a_budget_is_kept():
    store, step = whole(config(search={"runs": 17}))
    assert len(store.held) == 17
    assert step.words[-1] == "the budget of 17 runs is spent"
    store, _ = whole(config(search={"flops": 1e11}))
    assert sum(row["flops"] for row in store.held.values()) <= 1e11


def test_a_verdict_needs_room_to_spare():
    assert decided(Drift(0.0, -0.2, 0.2), 0.25)
    assert not decided(Drift(0.0, -0.24, 0.24), 0.25)
    assert not decided(Drift(0.26, 0.02, 0.5), 0.25)


def test_all_faults_of_the_table_at_once():
    with pytest.raises(InputError) as caught:
        config(search={"adaptive": 3, "flops": -1.0, "hours": 0, "metric": "loss", "budget": 3})
    paths = [fault.path for fault in caught.value.faults]
    assert paths == ["search.adaptive", "search.metric", "search.flops", "search.hours", "search"]


def test_a_store_gives_the_sweep_back():
    made = config(search={"hours": 1.5})
    assert grid.from_plain(made.plain()) == made
