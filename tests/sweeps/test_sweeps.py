"""The grid, its file, the store's reading side and the commands around it."""

import csv
import json
import subprocess
import sys

import pytest
from crashing import SMALL, finish, toml, write

from trimtab import cli, files, sweep, tune
from trimtab.errors import InputError
from trimtab.runs.config import RunConfig
from trimtab.sweeps import grid
from trimtab.sweeps.store import Store
from trimtab.sweeps.worker import Worker

GOOD = {
    "base": [8, 3],
    "widths": [8, 16],
    "depths": [3, 6],
    "schemes": ["mup", "depth-mup"],
    "seeds": 2,
    "axes": {"lr": {"log2": [-5, -3]}},
    "run": dict(SMALL),
}


def test_cells_are_the_product_and_named_by_their_config():
    cells = list(grid.read(GOOD).cells())
    assert len(cells) == 2 * 4 * 3 * 2 == len({c.hash for c in cells})
    assert {(c.width, c.depth) for c in cells} == {(8, 3), (8, 6), (16, 3), (16, 6)} and {
        c.base for c in cells
    } == {(8, 3)}


def test_adding_a_value_adds_exactly_its_cells():
    before = {c.hash for c in grid.read(GOOD).cells()}
    after = {c.hash for c in grid.read(GOOD | {"axes": {"lr": {"log2": [-5, -2]}}}).cells()}
    assert before < after and len(after - before) == 2 * 4 * 2
    assert {c.hash for c in grid.read(GOOD | {"name": "another"}).cells()} == before, (
        "a label is not part of a run"
    )


def test_a_cross_goes_through_its_centre():
    sweep = grid.read(
        GOOD | {"sizes": "cross", "centre": [8, 6], "widths": [8, 16, 32], "depths": [3, 6, 12]}
    )
    assert set(sweep.sizes) == {(8, 3), (8, 6), (8, 12), (16, 6), (32, 6)}


def test_any_field_is_an_axis():
    axes = {
        "lr": [0.1],
        "momentum": [0.0, 0.9],
        "schedule": ["constant", "cosine"],
        "warmup": [0, 5],
        "weight_decay": [0.0, 1e-3],
        "gamma0": {"log2": [-1, 1]},
        "model_options.k": [1, 2],
    }
    cells = list(grid.read(GOOD | {"axes": axes}).cells())
    assert len(cells) == 2 * 4 * 2 * (2**4) * 3 * 2
    assert {c.model_options["k"] for c in cells} == {1, 2} and all(
        c.model_options["branch_scale"] == 0.5 for c in cells
    )
    assert {c.gamma0 for c in cells} == {0.5, 1.0, 2.0}


def without(*keys):
    return {k: v for k, v in GOOD.items() if k not in keys}


BROKEN = [
    (without("base"), "base: is required"),
    (GOOD | {"base": [8]}, "base:"),
    (GOOD | {"base": "8x3"}, "base:"),
    (GOOD | {"base": [8, 0]}, "base:"),
    (GOOD | {"widths": []}, "widths:"),
    (GOOD | {"widths": 8}, "widths:"),
    (GOOD | {"widths": [8, 8]}, "widths:"),
    (GOOD | {"depths": [3, -6]}, "depths:"),
    (GOOD | {"depths": [3.5]}, "depths:"),
    (GOOD | {"depths": ["3"]}, "depths:"),
    (GOOD | {"schemes": []}, "schemes:"),
    (GOOD | {"schemes": ["mupp"]}, "schemes[0]: unknown name 'mupp', nearest 'mup'"),
    (GOOD | {"schemes": "mup"}, "schemes:"),
    (GOOD | {"sizes": "plus"}, "sizes:"),
    (GOOD | {"centre": [8, 3]}, "centre:"),
    (GOOD | {"seeds": 0}, "seeds:"),
    (GOOD | {"seeds": [1, 1]}, "seeds:"),
    (GOOD | {"seeds": -2}, "seeds:"),
    (GOOD | {"axis": {}}, "unknown key 'axis', nearest 'axes'"),
    (GOOD | {"axes": {"lr": []}}, "axes.lr:"),
    (GOOD | {"axes": {"lr": {"log2": [-3, -5]}}}, "axes.lr:"),
    (GOOD | {"axes": {"lr": {"log2": [-5, -3], "step": 0}}}, "axes.lr.step:"),
    (GOOD | {"axes": {"lr": {"log3": [1, 2]}}}, "axes.lr:"),
    (GOOD | {"axes": {"lr": [0.1, -0.1]}}, "axes.lr: must be > 0"),
    (GOOD | {"axes": {"lr": [0.1, 0.1]}}, "axes.lr:"),
    (GOOD | {"axes": {"learning_rate": [0.1]}}, "axes: unknown key 'learning_rate'"),
    (GOOD | {"axes": {"lr": [0.1], "width": [8]}}, "axes.width:"),
    (GOOD | {"axes": {}}, "axes.lr: is required"),
    (GOOD | {"axes": {"lr": [0.1], "steps": [10]}}, "axes.steps: is also set in run"),
    (GOOD | {"run": {"model": "mpl"}}, "run.model: unknown name 'mpl', nearest 'mlp'"),
    (GOOD | {"run": {"stepz": 3}}, "- run: unknown key 'stepz'"),
    (GOOD | {"run": {"width": 3}}, "run.width:"),
    (GOOD | {"run": {"model": "vit", "model_options": {"heads": 3}}}, "widths: must be divisible by heads"),
    (GOOD | {"run": {"batch_size": 10**5}}, "run.batch_size:"),
    (GOOD | {"run": {"model": "resnet"}, "depths": [3, 4]}, "depths: a resnet has three stages"),
    (GOOD | {"budget": {"cell_seconds": -1}}, "budget.cell_seconds:"),
    (GOOD | {"budget": {"cells": 3}}, "budget: unknown key 'cells'"),
    (GOOD | {"seeds": 10_000, "axes": {"lr": {"log2": [-50, 50], "step": 0.01}}}, "axes: the grid has"),
    (
        GOOD | {"base": [8], "widths": [], "run": {"model": "mpl"}, "seeds": 0},
        "run.model: unknown name 'mpl'",
    ),
]


@pytest.mark.parametrize(("table", "words"), BROKEN, ids=[w[:30] for _, w in BROKEN])
def test_broken_files_are_refused_by_key(table, words, tmp_path, capsys):
    path = write(tmp_path, table)
    assert cli.main(["sweep", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and str(path) in said
    assert not (tmp_path / "sweep.db").exists(), "nothing was begun"


def test_all_faults_at_once():
    with pytest.raises(InputError) as error:
        grid.read(
            {
                "base": [0],
                "widths": [],
                "seeds": 0,
                "schemes": ["x"],
                "axes": {"lr": []},
                "run": {"model": "mpl", "optimizer": "sgdd"},
                "bugdet": {},
            }
        )
    for word in (
        "base:",
        "widths:",
        "seeds:",
        "schemes[0]",
        "axes.lr:",
        "run.model",
        "run.optimizer",
        "bugdet",
    ):
        assert word in str(error.value)


@pytest.mark.parametrize("content", [b"not toml [", b"\xff\xfe\x00", b"a = 1\na = 2\n", b""])
def test_files_that_are_no_toml(content, tmp_path, capsys):
    (tmp_path / "s.toml").write_bytes(content)
    assert cli.main(["sweep", str(tmp_path / "s.toml")]) == 2
    assert "s.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "label", ["../x", "/etc/x", "<script>alert(1)</script>\0\u202e'; DROP TABLE cells; --" + "x" * 10_000]
)
def test_hostile_labels_never_become_paths(label, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    outcome = sweep(
        GOOD
        | {
            "name": label,
            "widths": [8],
            "depths": [3],
            "schemes": ["mup"],
            "seeds": 1,
            "run": SMALL | {"steps": 3},
        },
        folder / "a.db",
        workers=1,
    )
    assert outcome.exit_code == 0 and outcome.counts["done"] == 3
    assert {p.name for p in folder.iterdir()} == {"a.db", "a.db.copy", "a.db.work"} and [
        p.name for p in tmp_path.iterdir()
    ] == ["in"]
    store = Store(folder / "a.db")
    assert set(store.to_pandas().label) == {label} and store.meta["name"] == label


def test_a_users_own_model_and_data(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    def __init__(self, width, depth):\n        super().__init__()\n        "
        "self.a = nn.Linear(5, width)\n"
        "        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))\n        self.b "
        "= nn.Linear(width, 1)\n"
        "    def forward(self, x):\n        h = self.a(x)\n        for block in self.blocks:\n            h "
        "= h + block(torch.tanh(h))\n        return self.b(h)\n"
        "def build(width, depth):\n    return Net(width, depth)\n"
        "def data(split, seed, step):\n    g = torch.Generator().manual_seed(seed * 7919 + step + (10**6 if "
        "split == 'test' else 0))\n    x = torch.randn(16, 5, generator=g)\n    return x, x.sin().sum(1, "
        "keepdim=True)\n"
        "def loss(output, batch):\n    return (output - batch[1]).square().mean()\n"
    )
    table = {
        "base": [8, 2],
        "depths": [2, 4],
        "seeds": 2,
        "axes": {"lr": [0.01, 0.03]},
        "run": {"model": "mine.py:build", "data": "mine.py:data", "loss": "mine.py:loss", "steps": 15},
    }
    path = write(tmp_path, table)
    code, said = finish(path)
    assert code == 0, said
    frame = Store(tmp_path / "sweep.db").to_pandas()
    assert len(frame) == 8 and (frame.train_loss < frame.initial_loss).all() and frame.test_loss.notna().all()
    assert finish(path)[0] == 0 and Store(tmp_path / "sweep.db").to_pandas().equals(frame)
    path.write_text(toml(table | {"axes": {"lr": [0.01, 0.03, 0.1]}}))
    assert finish(path)[0] == 0
    assert Store(tmp_path / "sweep.db").counts()["done"] == 12


@pytest.mark.slow
def test_a_hugging_face_llama(tmp_path):
    pytest.importorskip("transformers", reason="transformers is absent")
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60)
    options = {
        "vocab_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
    }
    table = {
        "base": [16, 2],
        "depths": [2, 4],
        "seeds": 1,
        "axes": {"lr": [0.003, 0.01]},
        "run": {
            "model": "hf:llama",
            "model_options": options,
            "data": "text",
            "data_options": {"file": str(tmp_path / "text.txt"), "context": 16},
            "optimizer": "adamw",
            "steps": 12,
            "batch_size": 8,
            "eval_examples": 8,
        },
    }
    code, said = finish(write(tmp_path, table))
    assert code == 0, said
    frame = Store(tmp_path / "sweep.db").to_pandas()
    assert len(frame) == 4 and (frame.train_loss < frame.initial_loss).all()


def test_status_retry_and_csv(tmp_path, capsys):
    store = Store(tmp_path / "a.db", create=True)
    config = RunConfig(width=8, depth=3, lr=0.1)
    store.add(
        [
            (
                config.replace(seed=i).hash,
                "x",
                config.replace(seed=i).model_dump(mode="json"),
                f"u{i}",
                False,
                1.0,
            )
            for i in range(3)
        ]
    )
    for state in ("done", "failed"):
        claim = store.claim("me")
        store.finish(
            claim,
            claim.cells[0],
            state,
            {"train_loss": 0.5, "collapsed": False} if state == "done" else None,
            None,
            None if state == "done" else "Traceback\nValueError: no",
        )
    assert cli.main(["status", str(store.path), "--csv", str(tmp_path / "out.csv")]) == 3
    said = capsys.readouterr().out
    assert "2 of 3 cells finished" in said and "ValueError: no" in said and "best so far: loss 0.5" in said
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)].count("done") == 1
    assert cli.main(["retry", str(store.path)]) == 2 and cli.main(["retry", str(store.path), "--failed"]) == 0
    assert store.counts()["waiting"] == 2
    assert cli.main(["status", str(tmp_path / "missing.db")]) == 2
    assert cli.main(["status", str(store.path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["counts"]["done"] == 1


def test_doctor(tmp_path, capsys):
    assert cli.main(["doctor", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("torch", "lock", "fsync", "rename", "all good"))
    assert not list(tmp_path.iterdir())
    assert cli.main(["doctor", str(tmp_path / "none")]) == 2


def test_the_example_is_a_sweep(tmp_path, capsys):
    path = tmp_path / "sweep.toml"
    assert cli.main(["new", str(path)]) == 0
    assert len(grid.read(path)) == 192
    assert cli.main(["new", str(path)]) == 2, "it is not replaced"


def test_bad_calls_are_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match=r"(?s)engine.*workers.*store"):
        sweep(GOOD, workers=0, engine="cloud")
    with pytest.raises(InputError, match="folder must exist"):
        sweep(GOOD, tmp_path / "no" / "a.db")


def test_reading_needs_no_torch(tmp_path):
    Store(tmp_path / "a.db", create=True)
    code = (
        "import sys\nfrom trimtab.sweeps.store import Store\nfrom trimtab.sweeps import grid\n"
        f"Store({str(tmp_path / 'a.db')!r}).to_pandas()\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import sys\nfrom trimtab import cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit:\n    "
        "pass\nassert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_empty_store_reads_as_an_empty_table(tmp_path):
    frame = Store(tmp_path / "a.db", create=True).to_pandas()
    assert len(frame) == 0 and {"cell", "state", "train_loss", "lr"} <= set(frame.columns)


def broken(folder, more=""):
    (folder / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    def __init__(self, width, depth):\n        super().__init__()\n        "
        "self.a = nn.Linear(5, width)\n"
        "        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))\n        self.b "
        "= nn.Linear(width, 2)\n"
        "    def forward(self, x):\n        h = self.a(x)\n        for block in self.blocks:\n            h "
        "= h + block(torch.tanh(h))\n        return self.b(h)\n"
        "def build(width, depth):\n    if depth == 4:\n        raise RuntimeError('no room for four')\n    "
        "return Net(width, depth)\n"
        "def data(split, seed, step):\n    x = torch.randn(16, 5, "
        "generator=torch.Generator().manual_seed(seed * 7919 + step))\n    return x, (x[:, 0] > 0).long()\n"
        "def loss(output, batch):\n    raise RuntimeError('a loss that is broken')\n" + more
    )
    return {
        "base": [32, 2],
        "seeds": 2,
        "axes": {"lr": [0.01, 0.03]},
        "run": {"model": "mine.py:build", "data": "mine.py:data", "loss": "cross-entropy", "steps": 5},
    }


def test_sizes_that_cannot_be_built_are_refused_before_any_work(tmp_path):
    table = broken(tmp_path)
    code, said = finish(write(tmp_path, table | {"depths": [2, 4], "widths": [32, 64]}))
    assert code == 2 and "Traceback" not in said and not (tmp_path / "sweep.db").exists(), said
    assert "2 sizes" in said and said.count("no room for four") == 2 and "width 64, depth 4" in said
    code, said = finish(
        write(tmp_path, table | {"run": table["run"] | {"loss": "mine.py:loss"}})
    )  # nothing runs: said before any work
    assert code == 2 and "a loss that is broken" in said and "Traceback" not in said


def test_a_model_that_does_not_take_the_data_says_the_shapes_and_leaves_nothing(tmp_path):
    """Images of the digits for a model of vectors: torch's own words name neither."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build(width, depth):\n"
        "    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))\n"
    )
    table = {"base": [16, 2], "axes": {"lr": [0.1]}, "run": {"model": "mine.py:build", "data": "digits"}}
    with pytest.raises(InputError, match=r"shape \(8, 1, 8, 8\).* raised RuntimeError.*nn.Flatten"):
        sweep(write(tmp_path, table))
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"mine.py", "sweep.toml"}
    run = {"model": f"{tmp_path}/mine.py:build", "data": "digits"}
    tuning = {"base": [16, 2], "target": [32, 2], "search": {"lr": {"log2": [-8, -2]}}, "run": run}
    with pytest.raises(InputError, match="nn.Flatten"):
        tune(tuning, tmp_path / "tune.db")
    assert not (tmp_path / "tune.db").exists()


@pytest.mark.slow
def test_cells_of_a_file_that_changed_are_not_run_under_its_old_name(tmp_path):
    path = write(tmp_path, broken(tmp_path))
    assert finish(path)[0] == 0
    store = Store(tmp_path / "sweep.db")
    store.retry(["done"])  # as if it had been interrupted
    broken(tmp_path, "OTHER = 1\n")
    code, said = finish(path)
    frame = Store(tmp_path / "sweep.db").to_pandas()
    assert (
        code == 0
        and "earlier version" in said
        and len(frame) == 4
        and frame["sources.mine.py:build"].nunique() == 1
    )
    store.retry(["done"])
    broken(tmp_path, "OTHER = 2\n")
    worker = Worker(
        store.path, "me", None, {"cell_seconds": 60.0, "checkpoint_seconds": 60.0, "retries": 0}
    )  # it met the file after the driver had looked
    with files.looking_in(tmp_path):
        worker._do(store.claim("me"))
    assert "has changed" in store.errors(1)[0][1]


def test_a_file_that_is_no_store_is_not_moved_away(tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("what I thought about\n" * 100)
    with pytest.raises(InputError, match="is not replaced"):
        sweep({"base": [8, 3], "axes": {"lr": [0.1]}}, notes)
    assert notes.read_text().startswith("what I thought")


@pytest.mark.parametrize(
    ("axes", "run", "words"),
    [
        ({"momentum": [0.0, 0.9]}, {"optimizer": "adamw"}, "axes.momentum: not used by adamw"),
        ({"betas": [[0.9, 0.95], [0.9, 0.999]]}, {}, "axes.betas: not used by sgd"),
        ({"rest_lr": [0.1, 0.2], "optimizer": ["adam", "sgd"]}, {}, "axes.rest_lr: not used by adam and sgd"),
        (
            {"batch_size": [16, 32]},
            {"data": "mine.py:data"},
            "axes.batch_size: your own data function makes the batches",
        ),
        ({"momentum": [0.0, 0.9]}, {"optimizer": "muon"}, "axes.momentum: 0 stands for"),
    ],
)
def test_an_axis_that_changes_nothing_is_refused(axes, run, words):
    with pytest.raises(InputError, match=words):
        grid.read({"base": [32, 3], "axes": {"lr": [0.1], **axes}, "run": run})
    assert (
        len(
            grid.read(
                {
                    "base": [32, 3],
                    "axes": {"lr": [0.1], "momentum": [0.0, 0.9], "optimizer": ["sgd", "adam"]},
                    "seeds": 1,
                }
            )
        )
        == 4
    )


def test_schemes_that_are_no_names():
    with pytest.raises(InputError, match=r"schemes\[0\]: unknown name"):
        grid.read({"base": [32, 3], "axes": {"lr": [0.1]}, "schemes": [["mup"]]})


def test_what_cannot_be_set_up_leaves_nothing_behind(tmp_path):
    (tmp_path / "mine.py").write_text("def build(width, depth):\n    raise ValueError('no such size')\n")
    wanted = dict(
        name="x",
        schemes=["mup"],
        base=[8, 2],
        widths=[8],
        depths=[2],
        seeds=[0],
        axes={"lr": [0.1, 0.2]},
        run=dict(model=f"{tmp_path}/mine.py:build", data="digits", steps=2),
    )
    with pytest.raises(InputError, match="no such size"):
        sweep(wanted, tmp_path / "s.db")
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["mine.py"]


HEADS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, n, summed):
        super().__init__()
        self.stem, self.up, self.down = nn.Linear(64, n), nn.Linear(n, n), nn.Linear(n, n)
        self.summed, self.head = summed, nn.Linear(n, 10)
        if summed:
            self.head = nn.ParameterList([torch.randn(10, n)])

    def forward(self, x):
        h = self.stem(x.flatten(1))
        h = h + self.down(torch.relu(self.up(h)))
        return -(h[:, None] - self.head[0]).square().sum(-1) / 64 if self.summed else self.head(h)

def build(width, depth, summed=True):
    return Net(width, summed)
"""


@pytest.mark.parametrize("summed", [True, False])
def test_a_size_whose_proof_fails_is_said_everywhere(tmp_path, capsys, summed):
    """A head that sums over the width is carried wrongly: its size is named once while the sweep runs, and by
    status and report; one that is carried well is named nowhere."""
    (tmp_path / "mine.py").write_text(HEADS)
    run = dict(SMALL) | {
        "model": f"{tmp_path}/mine.py:build",
        "model_options": {"summed": summed},
        "optimizer": "adam",
        "data": "digits",
    }
    table = GOOD | {"base": [64, 1], "widths": [64, 256], "depths": [1], "schemes": ["mup"], "run": run}
    table |= {"seeds": 1, "axes": {"lr": [1e-3, 2e-3]}}
    store = tmp_path / "a.db"
    outcome = sweep(table, store, workers=1)
    where = "mup, width 256, depth 1"
    assert sum(where in line and "does not hold" in line for line in outcome.said) == summed
    opened = Store(store)
    proofs = opened.to_pandas().set_index("width")["proof"]
    assert list(proofs[64].unique()) == ["good"]
    assert all(said.startswith("wrong" if summed else "good") for said in proofs[256])
    assert [size for size, _ in opened.wrong_proofs()] == [where] * summed
    assert "proof" not in RunConfig.model_fields, "what was found is no part of a cell's name"
    again = sweep(table, store, workers=1)
    assert not any("does not hold" in line for line in again.said)
    capsys.readouterr()
    cli.main(["status", str(store)])
    assert (f"WARNING: at {where}" in capsys.readouterr().out) == summed
    cli.main(["report", str(store), "-o", str(tmp_path / "page.html")])
    assert ("does not hold for a first step at " + where in (tmp_path / "page.html").read_text()) == summed


def test_a_store_of_another_sweep_is_said(tmp_path):
    run = dict(steps=2, eval_examples=0)
    first = dict(name="first", base=[8, 1], seeds=1, axes={"lr": [0.1]}, run=run)
    assert not sweep(first, tmp_path / "s.db", workers=1).said
    more = first | dict(axes={"lr": [0.1, 0.2]})
    assert not sweep(more, tmp_path / "s.db", workers=1).said
    other = first | dict(name="other", run=run | dict(steps=3))
    said = sweep(other, tmp_path / "s.db", workers=1).said
    assert "also holds 2 cells, the last of them of 'first'" in said[0]
