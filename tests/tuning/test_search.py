"""The whole search on losses that are made up, without training: what the second size is for and costs."""

import collections
import math

import numpy as np
import pytest

from trimtab.tuning.config import read
from trimtab.tuning.search import Replay, best_of

FILE = dict(
    base=[64, 3],
    target=[512, 3],
    run=dict(optimizer="adamw"),
    search={"lr": {"log2": [-12, -3]}, "gamma0": {"log2": [-4, 2]}},
    trials=48,
)


def made_up(run, lean, scatter=0.2):
    """At the base rate x gamma0 is all that matters. A larger network also leans to one end of that valley.

    Args:
        lean: log loss per octave of gamma0 and doubling of width.
    """
    off = math.log2(run.lr) + math.log2(run.gamma0) + 7
    place = [run.seed, run.width, *(int(1000 * (20 + math.log2(x))) for x in (run.lr, run.gamma0))]
    noise = scatter * np.random.default_rng(place).standard_normal()
    return math.exp(-3 + 0.3 * off**2 + lean * math.log2(run.gamma0) * math.log2(run.width / 64) + noise)


def searched(lean, **changes):
    """(the best point's numbers, {(width, seed): runs}, the finished search)."""
    scatter = changes.pop("scatter", 0.2)
    config, known = read(FILE | changes), {}
    while (now := Replay(config, known).walk()).wanted:
        for run in now.wanted:
            named = run.model_copy(update={"fleet": 1})
            known[named.hash] = dict(
                state="done", loss=made_up(run, lean, scatter), flops=run.width**2, run=run
            )
    runs = collections.Counter((row["run"].width, row["run"].seed) for row in known.values())
    return config.space.values(best_of(now.finals).point), runs, now


@pytest.mark.parametrize("lean", [0.4, -0.4])
def test_what_ties_at_the_base_is_decided_at_the_larger_size(lean):
    """The valley's better end, though at the base it is no better: less than half of what the middle of the
    valley loses is lost."""
    values, _, _ = searched(lean)
    end = -4 if lean > 0 else 2
    assert abs(lean * (math.log2(values["gamma0"]) - end)) < 0.5 * abs(lean) * 3
    assert abs(math.log2(values["lr"]) + math.log2(values["gamma0"]) + 7) < 1.5


def test_runs_of_the_second_size():
    """Where seeds scatter: two fresh seeds for the finalists, two more for the better six; all of
    it is counted."""
    _, runs, found = searched(0.0)
    at_base = sum(n for (width, _), n in runs.items() if width == 64)
    assert at_larger(runs) == {1: 12, 2: 12, 3: 6, 4: 6}
    assert at_base == len(found.trials) and {seed for width, seed in runs if width == 64} == {0}
    assert found.runs == at_base + 36 and found.flops == 64**2 * at_base + 128**2 * 36
    assert len(found.finals) == 6 and all(len(trial.losses) == 4 for trial in found.finals)


def test_where_little_is_to_be_gained_a_quarter_goes_on():
    """Finalists that differ by less than a percent at the larger size: any of them will do."""
    _, runs, found = searched(0.0, scatter=0.002)
    seeds = at_larger(runs)
    assert seeds[1] == 12 and seeds[2] <= 3 and seeds[3] == seeds[4] == 1
    assert [len(trial.losses) for trial in found.finals] == [4]


def at_larger(runs):
    """{seed: runs} at the second size."""
    return {seed: n for (width, seed), n in runs.items() if width == 128}


def test_finalists_at_the_base():
    """As many runs, all at the base; the seed of the search counts too."""
    _, runs, found = searched(0.4, final_size="base")
    assert {width for width, _ in runs} == {64} and runs[64, 1] == 12 and runs[64, 4] == 6
    assert all(len(trial.losses) == 5 for trial in found.finals)


def test_without_fresh_seeds_the_search_decides():
    _, runs, found = searched(0.4, final_seeds=0)
    assert set(runs) == {(64, 0)} and all(len(trial.losses) == 1 for trial in found.finals)
