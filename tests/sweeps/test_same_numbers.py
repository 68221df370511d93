"""A number depends on what was asked and on nothing else: not on workers, company, cells added later, kills
or resumption.

Each line of the table in docs/sweeps.md that says "bit for bit" is tried here or in test_fleet and
test_crashes, on an MLP, a BatchNorm ResNet, a ViT and a GPT. Other instruction sets are tried by running this
file under other settings (`.ci/run`).
"""

import json
import os
import subprocess
import sys

import pytest
from crashing import GATED, finish, gone, kill, results, same, start, until, write
from hanging import HANGS

from trimtab.sweeps.row_checksums import name_of, seal
from trimtab.sweeps.store import Store

SMALL = {"batch_size": 16, "steps": 24, "eval_examples": 32}
KINDS = {
    "mlp": dict(
        model="mlp",
        batch_size=13,
        model_options={"activation": "gelu", "branch_scale": 0.5},
        optimizer="adam",
    ),
    "batchnorm": dict(model="resnet", model_options={"norm": "batch"}, optimizer="sgd", momentum=0.9),
    "vit": dict(
        model="vit",
        model_options={"patch": 4, "heads": 2},
        optimizer="adamw",
        weight_decay=0.1,
        schedule="cosine",
    ),
    "gpt": dict(
        model="gpt",
        data="batches.py:letters",
        model_options={"vocabulary": 9, "context": 9, "heads": 2},
        optimizer="adamw",
        clip=1.0,
    ),
}
SIZE = {"mlp": ([12, 3], [3, 6]), "batchnorm": ([8, 3], [3, 6]), "vit": ([16, 2], [2]), "gpt": ([16, 2], [2])}


def grid(folder, kind, **changed):
    """A sweep of this kind: ten rates, one of them far too high, two seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "batches.py").write_text(GATED)
    base, depths = SIZE[kind]
    table = dict(
        base=base,
        depths=depths,
        seeds=2,
        axes={"lr": [*(2.0**k for k in range(-11, -2)), 1e6]},
        run=SMALL | KINDS[kind],
    )
    return write(folder, table | {"budget": {"checkpoint_seconds": 0.05}} | changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "batchnorm", "vit", "gpt"])
def test_the_same_numbers_whatever_happens(tmp_path, kind):
    whole = grid(tmp_path / "whole", kind)
    code, said = finish(whole, workers=2, timeout=HANGS)
    assert code == 0, said
    truth = results(whole.with_suffix(".db"))
    assert {v[0] for v in truth.values()} == {"done", "diverged"} and len(truth) == 20 * len(SIZE[kind][1])
    assert set(Store(whole.with_suffix(".db")).to_pandas().fleet) == {16}
    alone = grid(tmp_path / "alone", kind)
    assert finish(alone, workers=1, timeout=HANGS)[0] == 0
    same(results(alone.with_suffix(".db")), truth)
    later = grid(
        tmp_path / "later", kind, axes={"lr": [2.0**-7, 1e6]}, seeds=[1]
    )  # other company, then the rest
    assert finish(later, timeout=HANGS)[0] == 0
    grid(tmp_path / "later", kind)
    assert finish(later, timeout=HANGS)[0] == 0
    same(results(later.with_suffix(".db")), truth)


OWN_BATCHES = {  # what can be held up in the middle: the models of KINDS on the batches of a file
    "mlp": {"data": "batches.py:rows"},
    "batchnorm": {"data": "batches.py:images", "model_options": {"norm": "batch", "channels": 1}},
    "vit": {
        "data": "batches.py:images",
        "model_options": {"patch": 4, "heads": 2, "image": 8, "channels": 1},
    },
    "gpt": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers_after_kills(tmp_path, kind):
    """Five times `kill -9` of a worker in the middle of a step: 20, 40, 60, 80, 100 of 120."""
    table = SMALL | KINDS[kind] | OWN_BATCHES[kind] | {"steps": 120}
    budget = {"checkpoint_seconds": 1e-3}  # at every step
    calm, torn = (grid(tmp_path / name, kind, run=table, budget=budget) for name in ("calm", "torn"))
    code, said = finish(calm, timeout=HANGS)
    assert code == 0, said
    held = tmp_path / "held"
    held.mkdir()
    process, resumable = start(torn, workers=4, gates={"HOLD": held}), []
    for step in (20, 40, 60, 80, 100):
        until((held / str(step)).exists)
        resumable.append(len(list((tmp_path / "torn" / "sweep.db.work").glob("*.checkpoint"))))
        assert kill(int((held / str(step)).read_text()))
    said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == 0 and all(resumable), said
    assert gone(torn.with_suffix(".db"))
    same(results(torn.with_suffix(".db")), results(calm.with_suffix(".db")))
    attempts = Store(torn.with_suffix(".db"))._read("SELECT DISTINCT unit, attempts FROM cells")
    assert sum(tried - 1 for _, tried in attempts) == 5, "a kill was not noticed"


OTHER = {
    "MKL_CBWR": "COMPATIBLE" if os.environ.get("MKL_CBWR") != "COMPATIBLE" else "AUTO,STRICT"
}  # than this process's own


@pytest.mark.slow
def test_a_resume_on_another_instruction_set_is_said(tmp_path):
    path = grid(tmp_path / "a", "mlp", axes={"lr": [0.01]}, seeds=1)
    assert finish(path)[0] == 0
    grid(tmp_path / "a", "mlp", axes={"lr": [0.01, 0.02]}, seeds=1)
    env = os.environ | OTHER | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trimtab.cli", "sweep", str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0 and "agree with them to rounding, not bit for bit" in done.stderr, done.stderr
    assert len(Store(path.with_suffix(".db")).arithmetics()) == 2
    assert "rounding" not in finish(grid(tmp_path / "b", "mlp", axes={"lr": [0.01]}, seeds=1))[1]


@pytest.mark.slow
def test_a_store_of_another_version_is_read_and_not_run_into(tmp_path):
    """Cells from before their names said how they were trained: their results stay readable, nothing runs
    again beside them."""
    path = grid(tmp_path / "a", "mlp", axes={"lr": [0.01]}, seeds=1, depths=[3])
    assert finish(path)[0] == 0
    store = Store(path.with_suffix(".db"))
    query = "SELECT c.cell, c.config, c.state, c.result, v.data FROM cells c JOIN curves v ON v.cell = c.cell"
    ((cell, config, state, result, data),) = store._read(query)
    old = json.dumps(
        {k: v for k, v in json.loads(config).items() if k not in ("version", "fleet")}, sort_keys=True
    )
    name = name_of(old)
    store._db.execute("UPDATE curves SET cell = ? WHERE cell = ?", (name, cell))
    sha = seal(name, state, result, None, data)
    store._db.execute("UPDATE cells SET cell = ?, config = ?, sha = ? WHERE cell = ?", (name, old, sha, cell))
    assert store.versions() == {1: 1} and not store.check()
    store.close()
    code, said = finish(path)
    assert code == 2 and "version 1" in said and "--store" in said and "Traceback" not in said, said
    held = Store(path.with_suffix(".db"))
    assert held.counts()["waiting"] == 0 and held.to_pandas().train_loss.notna().all(), "it is read as before"
