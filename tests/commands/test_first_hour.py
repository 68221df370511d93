"""A newcomer's first hour: what someone meets who has only the README, each met once and mended."""

import json
import math
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import torch
from hanging import HANGS
from sweeps_made import Made, made

import trimtab
from trimtab import cli, files
from trimtab.commands import transfer_tables
from trimtab.commands.new import EXAMPLE
from trimtab.commands.status import count
from trimtab.data.opening import open_data
from trimtab.errors import InputError
from trimtab.optima import tables
from trimtab.optima.tables import default_scheme
from trimtab.reporting.content import page_content
from trimtab.runs import fleet, training, user_code
from trimtab.runs.config import RunConfig
from trimtab.sweeps import grid
from trimtab.sweeps.search import AdaptiveSearch
from trimtab.sweeps.store import Store
from trimtab.sweeps.toml_keys import RAY

BUILD = """
from torch import nn

def build(width, depth):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.{act}(), nn.Linear(width, 10))
"""
SWEEP = 'base = [8, 1]\n[axes]\nlr = [0.1]\n[run]\nmodel = "mine.py:build"\nsteps = 2\n'


@pytest.fixture
def two_folders(tmp_path, monkeypatch):
    """The configuration's folder and another one, which is the working folder, each with a model of
    one name."""
    for name, act in (("here", "ReLU"), ("there", "Tanh")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(BUILD.format(act=act))
    (tmp_path / "there" / "sweep.toml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here", tmp_path / "there"


def test_two_models_of_one_name_are_refused_with_both_paths(two_folders):
    here, there = two_folders
    with pytest.raises(InputError, match=r"run\.model: mine\.py is ambiguous") as error:
        grid.read(there / "sweep.toml")
    assert str(here / "mine.py") in str(error.value) and str(there / "mine.py") in str(error.value)


def test_run_toml_refuses_them_too(two_folders, capsys):
    (two_folders[1] / "run.toml").write_text(
        'model = "mine.py:build"\nwidth = 8\ndepth = 1\nlr = 0.1\nsteps = 2\n'
    )
    assert cli.main(["train", str(two_folders[1] / "run.toml")]) == 2
    assert "mine.py is ambiguous" in capsys.readouterr().err


def test_a_file_beside_the_configuration_comes_first(two_folders):
    """The two models are the same file, what they import is not: the configuration's folder decides."""
    here, there = two_folders
    for folder in two_folders:
        (folder / "mine.py").write_text(
            "from pathlib import Path\n\ndef where():\n    return Path(__file__).parent\n"
        )
    (there / "sweep.toml").write_text(SWEEP.replace("build", "where"))
    made = grid.read(there / "sweep.toml")
    with files.looking_in(made.folder):
        assert user_code.load("mine.py:where")() == there
    assert user_code.load("mine.py:where")() == here  # the scope is over


def test_a_sweep_that_was_read_keeps_its_folder(two_folders):
    """Another configuration read in between does not change which model a sweep is about."""
    here, there = two_folders
    (here / "mine.py").unlink()
    other = here.parent / "other"
    other.mkdir()
    (other / "sweep.toml").write_text(SWEEP)
    (other / "mine.py").write_text(BUILD.format(act="GELU"))
    first = grid.read(there / "sweep.toml")
    wanted = next(iter(first.cells())).sources
    second = grid.read(other / "sweep.toml")
    assert next(iter(second.cells())).sources != wanted
    assert next(iter(grid.read(first).cells())).sources == wanted


def test_a_data_file_is_looked_for_beside_the_configuration(two_folders):
    here, there = two_folders
    (there / "corpus.txt").write_text("abcdefgh" * 200)
    with pytest.raises(InputError, match=r"looked for .*corpus\.txt"):
        open_data("text", {"file": "corpus.txt", "context": 4})
    with files.looking_in(there):
        assert open_data("text", {"file": "corpus.txt", "context": 4}).shape.classes == 8
    for folder, words in ((here, "abcdefghijkl"), (there, "abcd")):
        (folder / "words.txt").write_text(words * 200)
    with files.looking_in(there), pytest.raises(InputError, match="words.txt is ambiguous"):
        open_data("text", {"file": "words.txt", "context": 4})


@pytest.mark.parametrize(("steps", "every"), [(1, 0), (3, 0), (10, 0), (10, 3), (40, 10), (200, 0)])
def test_evaluation_costs_at_most_a_tenth_of_the_training(steps, every):
    """Counted in forwards of one example: three for a training step's, one for an evaluation's. Never less
    than a batch."""
    config = RunConfig(width=8, depth=1, lr=0.1, steps=steps, batch_size=16, eval_every=every)
    result = training.run(config)
    evaluations = len(result.curves["test_step"])
    assert evaluations == 1 + ((steps - 1) // every if every else 0)
    assert result.test_examples == min(360, max(16, config.test_limit))  # digits have 360
    assert result.test_examples == 16 or evaluations * result.test_examples <= 0.1 * 3 * steps * 16


def test_how_many_test_examples_depends_on_the_configuration_alone():
    """Runs that share a set-up but not their steps, alone or in a fleet, before or after each other."""
    short, long = (RunConfig(width=8, depth=1, lr=0.1, steps=n, batch_size=16) for n in (10, 60))
    alone = [training.run(c) for c in (long, short, long)]
    assert [r.test_examples for r in alone] == [288, 48, 288]
    assert alone[0].test_loss == alone[2].test_loss
    together = fleet.run([short, short.replace(seed=1)])
    assert [r.test_examples for r in together] == [48, 48]
    asked = training.run(short.replace(eval_examples=100))
    assert asked.test_examples == 100 and training.run(short.replace(eval_examples=0)).test_examples is None


def test_train_says_how_many_test_examples_it_looked_at(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("width = 8\ndepth = 1\nlr = 0.1\nsteps = 10\nbatch_size = 16\n")
    assert cli.main(["train", str(tmp_path / "run.toml")]) == 0
    assert "(48 test examples)" in capsys.readouterr().out


# -- the verdict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["sp", "mup", "depth-mup", "completep"], "depth-mup"),
        (["sp", "completep"], "completep"),
        (["sp", "mine", "mup"], "mine"),
        (["sp", "ntk", "mup"], "mup"),
        (["sp", "ntk"], "ntk"),
        (["sp"], "sp"),
    ],
)
def test_the_verdict_is_about_the_scheme_one_would_use(names, chosen):
    assert default_scheme(names) == default_scheme(names[::-1]) == chosen


def test_command_page_and_function_agree_on_the_scheme(monkeypatch, capsys):
    source = made(schemes=("sp", "depth-mup"))
    source.table["scheme"] = source.table["scheme"].replace("depth-mup", "completep")
    assert trimtab.transfer(source).verdict == "transfers"  # sp drifts
    page = page_content(source)
    assert page["lead"] == "completep" and page["verdict"] == "transfers"
    monkeypatch.setattr(tables, "open_source", lambda path: source)
    assert cli.main(["transfer", "x.db", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["scheme"] == "completep" and set(said["transfers"]["depth"]) == {
        "sp",
        "completep",
    }  # the baseline beside it


def at_the_edge(best):
    """Whole octaves from 2^-6 to 2^0 at three depths, the best at 2^best at each of them."""
    return [
        dict(state="done", scheme="mup", width=8, depth=d, seed=s, lr=2.0**x)
        | dict(train_loss=1 + 0.1 * (x - best) ** 2 + 0.1 * math.sin(17 * d + 7 * x * x + 3 * s))
        for d in (2, 4, 8)
        for x in range(-6, 1)
        for s in range(3)
    ]


@pytest.mark.parametrize(("best", "add"), [(-8, [2.0**-9, 2.0**-8, 2.0**-7]), (2, [2.0, 4.0, 8.0])])
def test_an_optimum_at_the_edge_asks_for_rates_not_for_runs(best, add):
    t = trimtab.transfer(pd.DataFrame(at_the_edge(best)))
    assert t.verdict == "cannot tell" and t.more is None and not re.search(r"\d+ (more )?runs", t.advice)
    assert t.remedy.values == {2: add, 4: add, 8: add} and t.remedy.seeds == 0 and not t.remedy.sizes
    assert (
        f"at depth 2, 4, 8 lies at the edge of the grid: add lr {', '.join(f'{v:.4g}' for v in add)} there"
        in t.advice
    )


def test_more_runs_than_anyone_has_are_not_advised():
    """A drift next to its limit would take hundreds of thousands of runs: sizes and seeds that can be had are
    named."""
    for noise, rng in ((0.1, 0), (0.5, 4), (1.0, 1)):
        t = trimtab.transfer(made(schemes=("depth-mup",), seeds=2, noise=noise, rng=rng))
        if t.verdict == "cannot tell":
            assert t.more is None or t.more <= 4 * t.optima.n.sum()
            assert t.remedy.values or t.remedy.seeds or t.remedy.sizes
            assert t.advice and not re.search(r"\d{4,} (more )?runs", t.advice)


TINY = """name = "tiny"
schemes = ["depth-mup"]
base = [8, 2]
depths = [2, 4]
seeds = 2
[axes]
lr = { log2 = [-12, -9], step = 1 }
[run]
model = "mine.py:build"
steps = 3
batch_size = 8
loss = "mse"
"""
STACK = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return x + self.linear(x.relu())

def build(width, depth):
    blocks = (Block(width) for _ in range(depth))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *blocks, nn.Linear(width, 10))
"""


def test_the_suggested_sweep_runs_and_runs_nothing_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(STACK)
    (tmp_path / "sweep.toml").write_text(TINY)
    assert cli.main(["sweep", "sweep.toml", "--workers", "1"]) == 0
    before = Store("sweep.db").to_pandas()
    assert cli.main(["transfer", "sweep.db", "--suggest", "more.toml"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    old, new = grid.read("sweep.toml"), grid.read("more.toml")
    assert {c.hash for c in old.cells()} < {c.hash for c in new.cells()} and set(new.axes["lr"]) > set(
        old.axes["lr"]
    )
    count = len(new) - len(old)
    assert (
        f"{count} of its {len(new)} runs are new" in said
        and "trimtab sweep more.toml --store sweep.db" in said
    )
    assert cli.main(["transfer", "sweep.db", "--suggest", "more.toml"]) == 2  # not replaced
    assert cli.main(["sweep", "more.toml", "--store", "sweep.db", "--workers", "1"]) == 0
    after = Store("sweep.db").to_pandas()
    assert len(after) == len(new)
    same = before.merge(after, on="cell", suffixes=("", "_after"))
    # those of the first sweep were left alone
    assert len(same) == len(before) and (same.seconds == same.seconds_after).all()
    capsys.readouterr()
    (tmp_path / "mine.py").write_text(STACK + "# another\n")
    assert cli.main(["transfer", "sweep.db", "--suggest", "third.toml"]) == 2
    assert "would run every cell anew" in capsys.readouterr().err and not (tmp_path / "third.toml").exists()


# -- the command --------------------------------------------------------------------------------------------


def trimtab_command(*argv, block=(), **options):
    """The command in a process of its own, as if the packages in `block` were not installed."""
    code = f"""
import importlib.machinery, sys
find, blocked = importlib.machinery.PathFinder.find_spec, {tuple(block)!r}
class Without:
    find_spec = staticmethod(lambda n, p=None, t=None: None if n.split(".")[0] in blocked else find(n, p, t))
sys.meta_path[:] = [Without if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
from trimtab.cli import main
sys.exit(main())
"""
    return subprocess.Popen([sys.executable, "-c", code, *argv], stdout=-1, stderr=-1, text=True, **options)


@pytest.mark.parametrize("command", [["transfer"], ["status"], ["transfer", "--json"]])
def test_a_reader_that_goes_ends_the_command_quietly(tmp_path, command):
    (tmp_path / "sweep.toml").write_text(TINY.replace('model = "mine.py:build"\n', ""))
    assert cli.main(["sweep", str(tmp_path / "sweep.toml"), "--workers", "1"]) == 0
    process = trimtab_command(*command, str(tmp_path / "sweep.db"))
    process.stdout.close()  # as `| head -0` does
    assert process.stderr.read() == "" and process.wait(60) == 141


def half_done(path, owner, lease=60.0):
    store = Store(path, create=True)
    store.add([(f"cell{i}", "x", {"lr": 0.1}, f"unit{i}", False, 1.0) for i in range(4)])
    store.finish(store.claim("me"), "cell0", "done", {"train_loss": 3.0, "collapsed": True})
    store.claim(owner, lease)
    return store


def test_status_calls_cells_of_the_dead_interrupted(tmp_path, capsys):
    host = socket.gethostname()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    me = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    cases = {
        f"{host}/{gone.pid}/1/x/1": (0, 1),
        f"{host}/{os.getpid()}/1/x/1": (0, 1),  # the number was given out again
        f"{host}/{os.getpid()}/{me}/x/1": (1, 0),
        "elsewhere/1/1/x/1": (1, 0),
    }
    for i, (owner, wanted) in enumerate(cases.items()):
        counts = count(half_done(tmp_path / f"{i}.db", owner))
        assert (counts["running"], counts["interrupted"]) == wanted, owner
    late = half_done(tmp_path / "late.db", "elsewhere/1/1/x/1", lease=-1.0)
    assert count(late)["interrupted"] == 1
    assert cli.main(["status", str(tmp_path / "0.db")]) == 3
    said = capsys.readouterr().out
    assert "0 running, 1 interrupted, 2 waiting" in said and "goes on with them" in said


def test_status_counts_what_transfer_says_does_not_train(tmp_path, capsys):
    half_done(tmp_path / "a.db", "elsewhere/1/1/x")
    cli.main(["status", str(tmp_path / "a.db")])
    said = capsys.readouterr().out
    assert "1 done (1 of them collapsed), 0 diverged" in said and "counts these with the diverged" in said
    rows = [
        dict(state="done", scheme="sp", width=8, depth=d, seed=s, lr=2.0**x, collapsed=d == 4 and x > -5)
        | dict(train_loss=1 + 0.1 * (x + 3) ** 2 + 0.01 * s)
        for d in (2, 4)
        for x in range(-7, 1)
        for s in (0, 1)
    ]
    t = trimtab.transfer(pd.DataFrame(rows))
    assert (
        trimtab.optima.wording.regret(t.regret.iloc[1])
        == transfer_tables._regret(t.regret.iloc[1])
        == "does not train"
    )


MODEL = """
import torch
from torch import nn

def build(width, depth):
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))

def data(split, seed=0, step=0, size=8):
    assert split in ("train", "test"), split
    g = torch.Generator().manual_seed(step)
    return torch.randn(size, 5, generator=g), torch.randint(0, 3, (size,), generator=g)

def steps(step):
    return data("train", 0, step)
"""


def test_one_data_function_serves_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(MODEL)
    run = 'model = "own.py:build"\ndata = "own.py:data"\n'
    (tmp_path / "run.toml").write_text(run + "width = 8\ndepth = 1\nlr = 0.1\nsteps = 3\n")
    (tmp_path / "sweep.toml").write_text(
        f"base = [8, 1]\nseeds = 1\n[axes]\nlr = [0.1]\n[run]\nsteps = 3\n{run}"
    )
    base = ["--base-width", "8", "--base-depth", "1"]
    assert cli.main(["explain", "own.py:build", "--width", "16", "--depth", "1", *base]) == 0
    check = [
        "check",
        "own.py:build",
        *base,
        "--widths",
        "8",
        "16",
        "--depths",
        "1",
        "--seeds",
        "2",
        "--steps",
        "2",
    ]
    assert cli.main([*check, "--data", "own.py:data"]) in (0, 1, 3)
    assert cli.main([*check, "--data", "own.py:steps"]) in (0, 1, 3)
    assert cli.main(["train", "run.toml"]) in (0, 1)
    assert cli.main(["sweep", "sweep.toml", "--workers", "1"]) == 0
    capsys.readouterr()
    (tmp_path / "run.toml").write_text(
        (tmp_path / "run.toml").read_text().replace("own.py:data", "own.py:steps")
    )
    assert cli.main(["train", "run.toml"]) == 2
    assert "must be data(split, seed, step)" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(MODEL)
    (tmp_path / "run.toml").write_text('width = 8\ndepth = 1\nlr = 0.1\ndevice = "cuda"\n')
    (tmp_path / "sweep.toml").write_text(
        'base = [8, 1]\nseeds = 1\n[axes]\nlr = [0.1]\n[run]\ndevice = "cuda:1"\n'
    )
    base = ["--base-width", "8", "--base-depth", "1"]
    for command in (
        ["check", "own.py:build", *base, "--device", "cuda"],
        ["train", "run.toml"],
        ["sweep", "sweep.toml"],
    ):
        assert cli.main(command) == 2
        said = capsys.readouterr().err
        assert "sees no cuda devices here" in said and "device = 'cpu'" in said and "Traceback" not in said
    assert not (tmp_path / "sweep.db").exists()


BUILDERS = {"nothing": "returned None", "shallow": "must take (width, depth)"}


@pytest.mark.parametrize("name, said", BUILDERS.items())
def test_a_builder_that_cannot_be_meant_is_named(tmp_path, monkeypatch, capsys, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef nothing(width, depth): nn.Linear(width, width)\n"
        "def shallow(width): return nn.Linear(width, width)\n"
    )
    (tmp_path / "sweep.toml").write_text(
        f'base = [8, 2]\nseeds = 1\n[axes]\nlr = [0.1]\n[run]\nmodel = "own.py:{name}"\nsteps = 2\n'
    )
    sizes = ["--width", "8", "--depth", "2", "--base-width", "8", "--base-depth", "2"]
    for command in (["explain", f"own.py:{name}", *sizes], ["sweep", "sweep.toml"]):
        assert cli.main(command) == 2
        text = capsys.readouterr().err
        assert said in text and f"own.py:{name}" in text and "Traceback" not in text, text
    assert not (tmp_path / "sweep.db").exists()


def test_a_disk_without_room_for_a_new_store_is_said(tmp_path):
    (tmp_path / "sweep.toml").write_text(TINY.replace('model = "mine.py:build"\n', ""))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))  # noqa: E731
    process = trimtab_command("sweep", "sweep.toml", cwd=tmp_path, preexec_fn=limit)
    said = process.communicate(timeout=HANGS)[1]
    assert process.returncode == 130 and "sweep.db" in said and "same command again" in said, said
    assert "Traceback" not in said and [p.name for p in tmp_path.iterdir()] == ["sweep.toml"]


def test_a_changed_model_says_how_many_cells_run_again(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("from trimtab.models.mlp import build\n")
    (tmp_path / "sweep.toml").write_text(TINY)
    command = ["sweep", str(tmp_path / "sweep.toml"), "--workers", "1"]
    assert cli.main(command) == 0
    cells = Store(tmp_path / "sweep.db").counts()["done"]
    assert "has changed" not in capsys.readouterr().err
    (tmp_path / "mine.py").write_text("from trimtab.models.mlp import build  # changed\n")
    assert cli.main(command) == 0
    said = capsys.readouterr().err
    assert f"a file of yours has changed: {cells} cell" in said and "run again" in said, said


@pytest.mark.parametrize("kind", cli.COMMANDS)
def test_help_shows_what_to_write(kind, capsys):
    with pytest.raises(SystemExit):
        cli.main([kind.__name__.lower(), "--help"])
    assert "None" not in capsys.readouterr().out


OURS = ("tyro", "rich", "pydantic", "pandas", "scipy", "plotly", "jinja2", "sklearn", "platformdirs")


@pytest.mark.parametrize("kind", cli.COMMANDS)
def test_with_torch_alone_every_command_says_what_to_install(kind, tmp_path):
    name = kind.__name__.lower()
    process = trimtab_command(name, block=OURS, cwd=tmp_path)
    said = process.communicate(timeout=HANGS)[1]
    assert process.returncode == 2 and said.startswith("trimtab: this command needs tyro")
    assert (
        "pip install tyro rich pydantic pandas scipy plotly jinja2 scikit-learn platformdirs" in said
        and "Traceback" not in said
    )


def test_help_needs_no_package(tmp_path):
    """With torch alone `trimtab --help` still lists every command, and says what to install for them."""
    process = trimtab_command("--help", block=OURS, cwd=tmp_path)
    out, said = process.communicate(timeout=HANGS)
    named = {kind.__name__.lower() for kind in cli.COMMANDS} - {"version", "retry"}
    assert process.returncode == 0 and all(f"trimtab {name}" in out for name in named)
    assert "pip install tyro rich pydantic pandas scipy plotly jinja2 scikit-learn" in said


@pytest.mark.parametrize("extra", ["optuna", "ray"])
def test_an_extra_is_named_by_its_brackets(extra):
    assert f"needs {extra}, which is not installed: pip install 'trimtab[{extra}]'" in cli.missing(extra)


NEEDS = {
    "rich": ["transfer", "a.db"],
    "pandas": ["transfer", "a.db"],
    "scipy": ["check", "own.py:build", "--base-width", "8", "--base-depth", "1"],
    "pydantic": ["train", "run.toml"],
    "sklearn": ["train", "run.toml"],
    "platformdirs": ["data", "list"],
    "jinja2": ["report", "a.db"],
    "transformers": [
        "explain",
        "--hf",
        "gpt2",
        "--width",
        "8",
        "--depth",
        "1",
        "--base-width",
        "8",
        "--base-depth",
        "1",
    ],
}


@pytest.mark.parametrize("package", NEEDS)
def test_one_missing_package_is_named(package, tmp_path):
    (tmp_path / "own.py").write_text(MODEL)
    (tmp_path / "run.toml").write_text("width = 8\ndepth = 1\nlr = 0.1\nsteps = 2\n")
    half_done(tmp_path / "a.db", "elsewhere/1/1/x").close()
    process = trimtab_command(*NEEDS[package], block=[package], cwd=tmp_path)
    said = process.communicate(timeout=HANGS)[1]
    wanted = {"sklearn": "scikit-learn", "transformers": "trimtab[hf]"}.get(package, package)
    assert (
        process.returncode == 2
        and re.search(f"install {re.escape(wanted)}", said)
        and "Traceback" not in said
    ), said


# -- the example --------------------------------------------------------------------------------------------


def keys(text):
    return tomllib.loads(text.format(name="sweep.toml"))


def test_the_example_shows_every_key_at_its_default():
    """What stands behind a "#" is taken as it is written: it must parse, and be the default unless it says
    "an example"."""
    shown = {"": keys(EXAMPLE)}
    table, defaults = (
        "",
        {
            **grid.BUDGET,
            **{k: f.default for k, f in AdaptiveSearch.model_fields.items()},
            **{k: f.default for k, f in RunConfig.model_fields.items()},
            "centre": [32, 3],
            "num_cpus": 1,
            "num_gpus": 0,
            "memory": None,
            "files": None,
            "batches": None,
            "tokens": None,
        },
    )
    named = {
        "": set(grid.KEYS),
        "run": set(RunConfig.model_fields) - set(grid.TAKEN) - {"lr"},
        "budget": set(grid.BUDGET),
        "search": set(AdaptiveSearch.model_fields),
        "ray": set(RAY),
    }
    seen = {name: set(shown[""] if not name else shown[""][name]) for name in named}
    for line in EXAMPLE.format(name="sweep.toml").splitlines():
        if line.startswith("["):
            table = line[1 : line.index("]")]
        written = re.match(r"# ([\w\".]+ = .*)", line)
        if written and table in named:
            (key, value), words = next(iter(tomllib.loads(written[1]).items())), line.partition("  # ")[2]
            seen[table].add(key)
            default = list(defaults[key]) if isinstance(defaults[key], tuple) else defaults[key]
            default = "cross-entropy" if key == "loss" else default
            assert "an example" in words or value == default, line
    assert seen == named


@pytest.mark.slow
def test_the_example_runs_as_it_is_written(tmp_path, capsys):
    path = tmp_path / "sweep.toml"
    assert cli.main(["new", str(path)]) == 0
    assert cli.main(["sweep", str(path)]) == 0
    said = capsys.readouterr().out
    assert "all 192 cells finished" in said and ", 0 failed" in said
    assert cli.main(["transfer", str(tmp_path / "sweep.db")]) == 0


# -- the page -----------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LAID_OUT = """() => {
    const h = document.querySelector("h1"), scroll = document.querySelector(".matrix").closest(".scroll")
    const seen = [...document.querySelectorAll(".matrix .badge")].map(e => e.getBoundingClientRect().right)
    return [h.offsetHeight / parseFloat(getComputedStyle(h).lineHeight), Math.max(...seen),
            scroll.scrollWidth - scroll.clientWidth]
}"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")
@pytest.mark.slow
def test_headline_and_verdicts_fit_a_phone(tmp_path):
    from playwright.sync_api import sync_playwright

    good = made()
    unsure = Made(good.table[(good.table.scheme != "depth-mup") | (good.table.lr > 0.24)], dict(good.meta))
    half = Made(
        unsure.table[(unsure.table.width == 32) | (unsure.table.scheme != "depth-mup")], dict(good.meta)
    )
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        for name, source in (("good", good), ("unsure", unsure), ("half", half)):
            path = trimtab.report(source, tmp_path / f"{name}.html")
            for width in (390, 1400):
                page = browser.new_page(viewport={"width": width, "height": 900})
                page.goto(path.as_uri())
                lines, right, hidden = page.evaluate(LAID_OUT)
                assert lines < 2.5 and right <= width and hidden <= 0, (name, width, lines, right, hidden)
        browser.close()


LOSSES = {
    "each": ("nn.functional.cross_entropy(output, batch[1], reduction='none')", "one number"),
    "number": ("float(nn.functional.cross_entropy(output, batch[1]))", "gave a float"),
    "broken": ("output.no_such_thing", "AttributeError"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_cannot_be_is_one_sentence_before_any_work(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    text, said = LOSSES[name]
    (tmp_path / "own.py").write_text(f"from torch import nn\ndef loss(output, batch): return {text}\n")
    keys = 'loss = "own.py:loss"\nsteps = 2\n'
    (tmp_path / "run.toml").write_text(f"width = 8\ndepth = 3\nlr = 0.1\n{keys}")
    (tmp_path / "sweep.toml").write_text(f"base = [8, 3]\nseeds = 1\n[axes]\nlr = [0.1]\n[run]\n{keys}")
    for command in (["train", "run.toml"], ["sweep", "sweep.toml"]):
        assert cli.main(command) == 2
        found = capsys.readouterr().err
        assert said in found and "Traceback" not in found, found
    assert not list(tmp_path.glob("*.checkpoint"))


def test_a_run_that_fails_in_the_users_code_names_the_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\ndef data(split, seed, step):\n    if step == 3:\n        raise KeyError('shard 7')\n"
        "    return torch.ones(4, 64), torch.zeros(4, dtype=torch.long)\n"
    )
    (tmp_path / "run.toml").write_text('width = 8\ndepth = 3\nlr = 0.1\nsteps = 9\ndata = "own.py:data"\n')
    assert cli.main(["train", "run.toml"]) == 2
    said = capsys.readouterr().err
    assert "after 3 of 9 steps" in said and "KeyError: 'shard 7' (own.py, line 4)" in said, said


HEADS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, width), nn.Linear(width, 3)
    def forward(self, x):
        h = self.inner(x)
        return self.outer(h.view(len(x), 2, h.shape[1] // 2).flatten(1))
def build(width, depth): return Net(width)
def raising(model, width, depth): raise KeyError("no such rate")
def short(model): return torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_a_size_that_cannot_run_says_what_the_model_raised(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(HEADS)
    sizes = ["--width", "9", "--depth", "1", "--base-width", "8", "--base-depth", "1"]
    assert cli.main(["explain", "own.py:build", *sizes]) == 2
    said = capsys.readouterr().err
    assert "must run at both sizes" in said and "RuntimeError: shape" in said, said


@pytest.mark.parametrize("name, said", {"raising": "KeyError", "short": "TypeError"}.items())
def test_a_set_up_that_raises_is_wrong_input_and_no_verdict(tmp_path, monkeypatch, capsys, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(HEADS)
    sizes = ["--base-width", "8", "--base-depth", "1", "--widths", "8", "16", "--depths", "1"]
    assert cli.main(["check", "own.py:build", *sizes, "--optimizer", f"own.py:{name}"]) == 2
    found = capsys.readouterr().err
    assert said in found and "(model, width, depth)" in found and "Traceback" not in found, found


def test_a_published_model_is_named_alike_everywhere(capsys):
    pytest.importorskip("transformers")
    sizes = ["--width", "64", "--depth", "2", "--base-width", "64", "--base-depth", "1"]
    assert cli.main(["explain", "hf:gpt2", *sizes]) == 0
    assert "proof by one step: good" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    assert "hf:gpt2" in capsys.readouterr().out


def test_the_file_of_another_command_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text("base = [8, 1]\nseeds = 1\n[axes]\nlr = [0.1]\n")
    Path("t.toml").write_text("base = [8, 1]\ntarget = [16, 1]\n[search]\nlr = { log2 = [-4, 0] }\n")
    Path("r.toml").write_text("width = 8\ndepth = 1\nlr = 0.1\nsteps = 2\n")
    right = {"s.toml": "sweep", "t.toml": "tune", "r.toml": "train"}
    for command in right.values():
        for file in (file for file, its in right.items() if its != command):
            assert cli.main([command, file]) == 2
            said = capsys.readouterr().err
            assert f"`trimtab {right[file]} {file}` takes it" in said and len(said) < 300, said


def test_a_list_of_what_is_known_is_read_once(tmp_path, capsys):
    file = tmp_path / "s.toml"
    file.write_text(
        "base = [8, 1]\nwidht = [8]\ndepht = [1]\n[axes]\nlr = [0.1]\n[run]\nstep = 2\nmodle = 1\n"
    )
    assert cli.main(["sweep", str(file)]) == 2
    said = capsys.readouterr().err
    assert "'widths'" in said and "'depths'" in said and said.count("known: name, schemes") == 1
    assert said.count("known: model, ") == 1 and "sources" not in said


WIDE = """
from torch import nn
def build(width, depth):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
"""


def test_sizes_are_written_with_spaces_or_commas(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(WIDE)
    base = ["check", "own.py:build", "--base-width", "8", "--base-depth", "2", "--steps", "1", "--json"]
    for widths in (["8,16"], ["8", "16"]):
        assert cli.main([*base, "--widths", *widths, "--depths", "2"]) in (0, 1, 3)
        assert json.loads(capsys.readouterr().out)["about"]["widths"] == [8, 16]
    assert cli.main([*base, "--widths", "8,x"]) == 2
    assert "widths must be whole numbers such as 32 64 128: got 8, x" in capsys.readouterr().err


def test_folders_that_cannot_be_written_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(WIDE)
    check = ["check", "own.py:build", "--base-width", "8", "--base-depth", "2", "--figure", "f.html"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cli.main(check) == 2
    assert "figure must be in a folder that can be written" in capsys.readouterr().err

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    assert cli.main(["demo"]) == 2
    assert "trimtab-demo could not be made: Permission denied" in capsys.readouterr().err


def test_data_in_a_folder_of_somebody_else_is_not_there(tmp_path, monkeypatch):
    from trimtab.commands.data import describe

    def denied(self, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    assert all("trimtab data get" in line for line in describe(tmp_path))


def test_columns_are_explained_where_they_are_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = dict(steps=4, eval_examples=0)
    config = dict(base=[8, 1], depths=[1, 2], seeds=1, axes={"lr": [0.1, 0.2]}, run=run)
    trimtab.sweep(config, "s.db", workers=1)
    cli.main(["transfer", "s.db"])
    said = " ".join(capsys.readouterr().out.split())
    assert "stable: the largest value" in said and "regret: what keeping" in said
    assert cli.main(["retry", "s.db", "--failed"]) == 0
    assert "nothing to run again: no cell of s.db is failed." in capsys.readouterr().out
    cli.main([*("limit", "--width", "8,16", "--depth", "1,2", "--samples", "200", "--networks", "16")])
    seen = capsys.readouterr()
    said = " ".join(seen.out.split())
    assert "limit and networks: 1 of " in seen.err  # no terminal, and yet a sign of life
    assert "scatter: one network about their mean" in said and "open: the interval" in said


def test_the_drift_that_is_explained_is_named(monkeypatch):
    rows = [(2, 2.0), (4, 4.0), (8, 1.0)]
    optima = pd.DataFrame([dict(status="inside", depth=d, optimum=o) for d, o in rows])

    class Seen:
        axis, over, drift = "log2", "depth", type("Drift", (), {"slope": 0.6})

    Seen.optima = optima
    said = transfer_tables._apart(Seen)
    assert said.startswith("the drift (+0.60) is fitted")
