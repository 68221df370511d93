"""`trimtab tune` and `trimtab new --tune`: what is printed, and the exit codes."""

import json

import pytest

from trimtab.cli import main
from trimtab.commands.tune import describe
from trimtab.tuning.config import read
from trimtab.tuning.result import Best, Confirmation, Cost, Group, Tuned
from trimtab.tuning.sensitivity import Sensitivity

FILE = """
base = [16, 2]
target = [32, 2]
trials = 4
per_round = 4
seeds = 1
finalists = 1
final_seeds = 1
[run]
steps = 4
batch_size = 16
eval_examples = 0
[search]
lr = { log2 = [-6, -1] }
"""


def made(verdict="as good", failed=0):
    """An answer as a tune would give it."""
    row = Sensitivity(
        name="lr",
        value=0.0625,
        unit="octave",
        below=0.5,
        above=0.25,
        reaches_low=False,
        reaches_high=True,
        lost_below=0.1,
        lost_above=None,
        edge="high",
    )
    group = Group(
        optimizer="AdamW",
        pattern="blocks.#.weight x 4",
        roles=("hidden",),
        parameters=("blocks.0.weight",),
        lr=0.03125,
        weight_decay=None,
        eps=1e-9,
        init=0.5,
    )
    best = Best(
        values={"lr": 0.0625},
        metric="train_loss",
        size=(32, 2),
        loss=0.5,
        low=0.4,
        high=0.6,
        seeds=6,
        fresh=4,
        diverged=0,
    )
    trial = Confirmation(size=(32, 2), loss=0.7, low=0.65, high=0.75, seeds=2, diverged=0, verdict=verdict)
    return Tuned(
        name="tune",
        base=(16, 2),
        size=(64, 2),
        scheme="depth-mup",
        best=best,
        sensitivity=(row,),
        target=(group,),
        snippet="import torch\n",
        expected=0.6,
        cost=Cost(trials=8, runs=20, flops=1e6, at_target=1e8),
        confirmation=trial,
        why="trials are used up",
        notes=("lr is best at the high end",),
        failed=failed,
    )


def test_the_command_and_its_json(tmp_path, capsys):
    path = tmp_path / "tune.toml"
    path.write_text(FILE)
    assert main(["tune", str(path), "--json", "--workers", "1", "--snippet", str(tmp_path / "mine.py")]) == 0
    out = capsys.readouterr()
    found = Tuned.from_json(out.out)
    assert json.loads(out.out)["best"]["values"]["lr"] == found.best.values["lr"]
    assert (tmp_path / "tune.db").is_file() and (tmp_path / "mine.py").read_text() == found.snippet
    assert main(["tune", str(path), "--workers", "1"]) == 0  # all is there: nothing is run again
    text = capsys.readouterr().out
    assert "Best with base width 16, depth 2" in text and "Set at width 32" in text
    assert "p.optimizer(torch.optim.SGD" in text
    assert main(["tune", str(path), "--snippet", str(tmp_path / "mine.py")]) == 2


def test_what_is_printed():
    text = "\n".join(describe(made()))
    assert "train_loss 0.5 (0.4 to 0.6) at width 32, depth 2, 6 seeds, 4 of them fresh" in text
    assert "lr = 0.0625 (2^-4)" in text
    assert "-0.5 to +0.25+" in text and "10 %" in text and "beyond the range" in text
    assert "blocks.#.weight x 4" in text and "0.03125" in text and "1 % of what the same runs take" in text
    assert "0.7 (0.65 to 0.75), 2 seeds, against 0.5 at width 32, depth 2: as good." in text


@pytest.mark.parametrize(
    ("verdict", "failed", "code"),
    [("as good", 0, 0), ("worse", 0, 1), ("cannot tell", 0, 3), ("as good", 2, 4)],
)
def test_exit_codes(verdict, failed, code):
    assert made(verdict, failed).exit_code == code


def test_bad_input_is_two(tmp_path, capsys):
    path = tmp_path / "tune.toml"
    path.write_text(FILE.replace("lr =", "rate ="))
    assert main(["tune", str(path)]) == 2
    err = capsys.readouterr().err
    assert (
        "unknown key 'rate'" in err
        and "search.lr: is required" in err
        and not (tmp_path / "tune.db").exists()
    )
    path.write_text(FILE.replace("[run]", "[run]\nstepz = 3", 1))
    assert main(["tune", str(path)]) == 2
    assert "- run: unknown key 'stepz'" in capsys.readouterr().err
    assert main(["tune", str(tmp_path / "nowhere.toml")]) == 2
    assert "could not be read" in capsys.readouterr().err


def test_the_example_is_a_tune(tmp_path, capsys):
    path = tmp_path / "tune.toml"
    assert main(["new", "--tune", str(path)]) == 0
    assert f"trimtab tune {path}" in capsys.readouterr().out
    config = read(path)
    assert config.base == (64, 3) and (config.target.width, config.run["data"]) == (512, "digits")
    assert main(["new", "--tune", str(path)]) == 2
