"""What the commands say of a user's own model, data or loss that is wrong: the fault, and the user's line."""

import pytest

from trimtab import cli

OWN = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, h):
        return h + self.fc(torch.relu(h))

def build(width, depth):
    assert width % 8 == 0
    return nn.Sequential(nn.Linear(4, width), *(Residual(width) for _ in range(depth)), nn.Linear(width, 1))

def shallow(width, depth):
    return build(width, 2)

def narrow(width, depth):
    return build(16, depth)

class Loop(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(4, width), Residual(width), nn.Linear(width, 1)
        self.depth = depth

    def forward(self, x):
        h = self.stem(x)
        for _ in range(self.depth):
            h = self.block(h)
        return self.head(h)

def data(split, seed, step):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    return x, x[:, :1]

def fields(split, seed, step):
    return {"input": data(split, seed, step)[0]}

def short(split, seed):
    return data(split, seed, 0)

def raising(split, seed, step):
    if step == 1:
        raise OSError("the disk is gone")  # the line that must be named
    return data(split, seed, step)

def loss(output, batch):
    if isinstance(batch, dict):
        return (output - batch["input"][:, :1]).square().mean()
    target = batch[1] if isinstance(batch, tuple) else batch
    return (output - target).square().mean()

def endless(output, batch):
    return loss(output, batch) * float("nan")
"""
SWEEP = """
base = [16, 2]
widths = [16, {width}]
depths = [2, 4]
seeds = 1
[axes]
lr = [0.01]
[run]
model = "own.py:{build}"
data = "own.py:{data}"
loss = "own.py:{loss}"
steps = 2
"""
CHECK = ["check", "own.py:build", "--base-width", "16", "--base-depth", "2", "--seeds", "2", "--steps", "2"]


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """Runs a sweep of the file above, some of its parts replaced: exit code, and what was said."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)

    def run(build="build", data="data", loss="loss", width=32):
        (tmp_path / "sweep.toml").write_text(SWEEP.format(build=build, data=data, loss=loss, width=width))
        code = cli.main(["sweep", "sweep.toml", "--workers", "1"])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(OWN.splitlines(), 1) if text in line)


@pytest.mark.parametrize(("build", "axis", "base"), [("shallow", "depth", 2), ("narrow", "width", 16)])
def test_a_model_that_ignores_its_size_is_refused(sweep, build, axis, base):
    """Two sizes with one model have one optimum: the sweep would say "transfers" whatever the scheme."""
    code, said = sweep(build=build)
    assert code == 2
    assert f"own.py:{build} must follow {axis}" in said
    assert f"builds the model of {axis} {base} again" in said


def test_a_loop_over_one_block_is_another_model(sweep):
    """It has as many parameters at every depth, and more branches."""
    assert sweep(build="Loop")[0] == 0


def test_a_loss_that_begins_as_nan_is_refused(sweep):
    """No learning rate mends it, so "try smaller values of lr" would be wrong advice."""
    code, said = sweep(loss="endless")
    assert code == 2
    assert "must be finite before the first step: own.py:endless gives nan" in said


def test_data_that_take_too_little_are_told_what_they_are_given(sweep):
    code, said = sweep(data="short")
    assert code == 2
    assert (
        "own.py:short must be data(split, seed, step), with split 'train' or 'test': it takes (split" in said
    )


def test_the_check_refuses_it_too(sweep, recwarn, capsys):
    assert sweep()[0] == 0  # writes the file
    assert cli.main([*CHECK, "--widths", "16", "32", "--depths", "2", "4", "--loss", "own.py:endless"]) == 2
    assert "finite before the first step: at width 16, depth 2 it is nan" in capsys.readouterr().err
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_a_bare_assert_is_said_with_its_line(sweep):
    code, said = sweep(width=20)
    assert code == 2
    assert f"raised AssertionError: assert width % 8 == 0 (own.py, line {line_of('assert width')})" in said


def test_a_failed_run_names_the_line_of_the_user(sweep, capsys):
    """The last line of a traceback says what; where is what one needs next."""
    wanted = f"OSError: the disk is gone (own.py, line {line_of('the line that must be named')})"
    code, said = sweep(data="raising")
    assert code == 4 and wanted in said
    assert cli.main(["status", "sweep.db"]) == 4
    assert wanted in capsys.readouterr().out


def test_why_no_fleets_names_the_fleet(sweep):
    code, said = sweep(data="fields")
    assert code == 0
    assert "4 cells train one by one: a fleet cannot train this, it needs batches of one input tensor" in said


@pytest.mark.parametrize(("build", "axis"), [("shallow", "depth"), ("narrow", "width")])
def test_explain_notes_a_model_that_ignores_its_size(sweep, capsys, build, axis):
    assert sweep()[0] == 0  # writes the file
    sizes = ["--width", "32", "--depth", "4", "--base-width", "16", "--base-depth", "2"]
    assert cli.main(["explain", f"own.py:{build}", *sizes]) == 0
    assert f"build ignores its {axis}" in capsys.readouterr().out
    assert cli.main(["explain", "own.py:build", *sizes]) == 0
    assert "build ignores" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [["explain", "--width", "32", "--depth", "4"], ["check"]], ids=["explain", "check"]
)
def test_an_optimizer_in_lower_case_is_told_its_name(sweep, capsys, command):
    """It is "adamw" in a sweep and the class AdamW here."""
    assert sweep()[0] == 0
    base = ["--base-width", "16", "--base-depth", "2", "--optimizer", "adamw"]
    assert cli.main([command[0], "own.py:build", *command[1:], *base]) == 2
    assert "got 'adamw', nearest 'AdamW'" in capsys.readouterr().err
