"""`give_up`: a run that has learned nothing by then ends, and is never taken for a value."""

import math

import pytest

from trimtab.commands.train import summary
from trimtab.errors import InputError
from trimtab.optima.tables import choose_line
from trimtab.runs import fleet
from trimtab.runs.config import RunConfig
from trimtab.runs.results import conclude, is_given_up
from trimtab.runs.training import Interrupted, run
from trimtab.sweeps.driver import sweep
from trimtab.sweeps.store import Store

SHARED = dict(
    optimizer="adam", steps=20, batch_size=32, eval_examples=0, model_options={"activation": "tanh"}
)
GOOD = RunConfig(width=16, depth=2, lr=0.01, **SHARED)
HOPELESS = GOOD.replace(lr=0.8)  # finite to the end, far above its start


def test_it_ends_where_it_was_looked_at():
    whole, ended = run(HOPELESS), run(HOPELESS.replace(give_up=0.5))
    assert whole.state == "done" and whole.collapsed and whole.steps == 20
    assert (ended.state, ended.steps, ended.stopped_at) == ("diverged", 10, 9)
    assert ended.train_loss is None and not ended.collapsed
    assert ended.last_loss == whole.curves["loss"][9] > ended.initial_loss
    assert ended.flops == whole.flops / 2
    assert summary(ended).startswith("given up after 10 steps")


def test_a_run_that_learns_is_not_touched_and_the_names_of_before_stay():
    plain, looked = run(GOOD), run(GOOD.replace(give_up=0.5))
    assert plain.curves["loss"].tolist() == looked.curves["loss"].tolist()
    assert (looked.state, looked.train_loss) == ("done", plain.train_loss)
    assert "give_up" not in GOOD.model_dump() and GOOD.replace(give_up=0.0).hash == GOOD.hash
    assert GOOD.replace(give_up=0.5).hash != GOOD.hash


def test_the_same_in_a_fleet_and_after_a_stop(tmp_path):
    """A function of the run's own losses, so that neither company nor a resume changes it."""
    members = [c.replace(give_up=0.5, fleet=4) for c in (HOPELESS, GOOD, GOOD.replace(seed=1))]
    together = fleet.run(members)
    assert [(r.state, r.steps) for r in together] == [("diverged", 10), ("done", 20), ("done", 20)]
    for stop_at in (7, 10, 13):
        asked = iter(range(100))
        with pytest.raises(Interrupted):
            fleet.run(members, checkpoint=tmp_path / f"{stop_at}", stop=lambda: next(asked) == stop_at)  # noqa: B023
        again = fleet.run(members, checkpoint=tmp_path / f"{stop_at}")
        assert [r.curves["loss"].tolist() for r in again] == [r.curves["loss"].tolist() for r in together]
        assert [r.row() | {"seconds": 0} for r in again] == [r.row() | {"seconds": 0} for r in together]


def test_only_at_its_step_and_by_the_mean_of_a_tenth():
    rising = [2.0] + [3.0] * 19
    assert [n for n in range(1, 21) if is_given_up(rising[:n], 20, 0.5)] == [10]
    assert not any(is_given_up(rising[:n], 20, 0.0) for n in range(1, 21))
    one_bad_step = [2.0] + [1.0] * 8 + [2.5]
    assert not is_given_up(one_bad_step, 20, 0.5)
    blown = conclude([2.0, math.nan], [], steps=20, seconds=0, flops_per_step=1, give_up=0.5)
    assert summary(blown).startswith("diverged at step 1")


def test_a_sweep_counts_it_with_what_does_not_train(tmp_path):
    grid = dict(base=[16, 2], depths=[2], seeds=1, axes={"lr": [0.01, 0.8]})
    sweep(grid | {"run": SHARED | {"give_up": 0.5}}, tmp_path / "a.db", workers=1)
    cells = choose_line(Store(tmp_path / "a.db").to_pandas(), "depth", "lr", "depth-mup").cells
    assert cells.set_index("lr")["unstable"].to_dict() == {0.01: False, 0.8: True}
    assert cells.set_index("lr")["stopped_at"].to_dict()[0.8] == 9


def test_too_early_is_refused():
    with pytest.raises(InputError, match="give_up: must be 0 .never. or at least 0.25: got 0.1"):
        GOOD.replace(give_up=0.1)
