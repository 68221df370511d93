"""Sweeps that lose nothing: every test here runs real processes and kills, fills or damages for real."""

import random
import resource
import signal
import sqlite3
import subprocess
import time

import pytest
from crashing import GATED, SMALL, finish, gone, kill, processes, results, same, start, until, write
from hanging import HANGS

from trimtab.errors import TrimtabError
from trimtab.runs import checkpoints
from trimtab.runs.config import RunConfig
from trimtab.runs.training import Interrupted, run
from trimtab.sweeps.repair import open_for_work
from trimtab.sweeps.store import Store

GRID = {
    "base": [8, 3],
    "depths": [3, 6],
    "seeds": 10,
    "axes": {"lr": {"log2": [-7, 2], "step": 1}},
    "run": SMALL | {"steps": 60},
    "budget": {"checkpoint_seconds": 0.05, "fleet": 1},
}


def paced(folder, sweep):
    """The sweep on batches that take their time while PACE asks for it."""
    (folder / "batches.py").write_text(GATED)
    return write(folder, sweep | {"run": sweep["run"] | {"data": "batches.py:rows"}})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same 200 cells, left alone: one by one, and in fleets."""
    out = {}
    root = tmp_path_factory.mktemp("calm")
    for fleet in (1, 10):
        folder = root / str(fleet)
        folder.mkdir()
        sweep = GRID | {"budget": GRID["budget"] | {"fleet": fleet}}
        code, said = finish(paced(folder, sweep))
        assert code == 0, said
        out[fleet] = results(folder / "sweep.db")
        assert len(out[fleet]) == 200 and {"done", "diverged"} >= {v[0] for v in out[fleet].values()}
    return out


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [1, 10])
def test_fifty_killed_workers(tmp_path, undisturbed, fleet):
    folder = tmp_path / "x"
    folder.mkdir()
    path, dice = paced(folder, GRID | {"budget": GRID["budget"] | {"fleet": fleet}}), random.Random(fleet)
    enough, kills, wanted = folder / "enough", 0, 50 if fleet == 1 else 25
    process = start(path, workers=4, gates={"PACE": enough})
    while kills < wanted and process.poll() is None:
        time.sleep(dice.uniform(0.0, 0.12))
        _, workers = processes(path.with_suffix(".db"))
        if workers:
            kills += kill(dice.choice(workers))
    enough.touch()
    said = process.communicate()[0]
    assert process.returncode == 0, said
    found = results(path.with_suffix(".db"))
    assert kills >= wanted and len(found) == 200
    assert all(v[3] == 1 for v in found.values()), "a result was accepted twice, or never"
    same(found, undisturbed[fleet])


@pytest.mark.slow
def test_twenty_killed_drivers(tmp_path, undisturbed):
    folder = tmp_path / "x"
    folder.mkdir()
    path, dice = paced(folder, GRID), random.Random(3)
    store = path.with_suffix(".db")
    finished: dict[str, int] = {}
    for _ in range(20):
        process = start(path)
        time.sleep(dice.uniform(0.2, 3.5))
        process.kill()
        process.communicate()
        assert gone(store), "a worker outlived its driver"
        if store.exists():
            held = Store(store)
            for cell, accepted in held._read(
                "SELECT cell, accepted FROM cells WHERE state IN ('done', 'diverged')"
            ):
                assert finished.setdefault(cell, accepted) == accepted, "a finished cell ran again"
            held.close()
    code, said = finish(path)
    assert code == 0, said
    found = results(store)
    assert all(v[3] == 1 for v in found.values())
    same(found, undisturbed[1])


@pytest.mark.slow
def test_a_killed_nursery_is_replaced(tmp_path):
    path, enough = paced(tmp_path, GRID | {"seeds": 3}), tmp_path / "enough"
    process, killed = start(path, gates={"PACE": enough}), set()
    while process.poll() is None and len(killed) < 3:
        nurseries, workers = processes(path.with_suffix(".db"))
        if workers and not killed.issuperset(nurseries) and kill(nurseries[0]):
            killed.add(nurseries[0])
        time.sleep(0.02)
    enough.touch()
    assert process.communicate(timeout=HANGS) and process.returncode == 0 and len(killed) == 3
    assert all(v[3] == 1 for v in results(path.with_suffix(".db")).values())


@pytest.mark.slow
def test_two_drivers_share_500_cells(tmp_path):
    path = write(tmp_path, GRID | {"seeds": 25, "run": SMALL | {"steps": 8}})
    both = [start(path), start(path)]
    codes = [(p.communicate(timeout=HANGS)[0], p.returncode) for p in both]
    assert [code for _, code in codes] == [0, 0], codes
    found = results(path.with_suffix(".db"))
    assert len(found) == 500 and all(v[3] == 1 for v in found.values())


def test_a_frozen_workers_late_write_is_refused(tmp_path):
    store = Store(tmp_path / "a.db", create=True)
    store.add([("cell", "x", {}, "unit", False, 1.0)])
    frozen = store.claim("frozen", lease=0.05)
    time.sleep(0.1)
    second = store.claim("second")
    assert second is not None and second.tokens[0] > frozen.tokens[0]
    assert not store.finish(frozen, "cell", "done", {"train_loss": 1.0})
    assert store.finish(second, "cell", "done", {"train_loss": 2.0})
    assert not store.finish(second, "cell", "done", {"train_loss": 3.0}), "a second time"
    assert float(store.to_pandas().train_loss[0]) == 2.0


@pytest.mark.slow
def test_disk_full(tmp_path, undisturbed):
    """A file-size limit below what the store needs; then the same command without it."""
    folder = tmp_path / "x"
    folder.mkdir()
    path = paced(folder, GRID)
    store = path.with_suffix(".db")

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    process = start(path, preexec_fn=small)
    said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == 130 and str(store) in said and "Traceback" not in said, said
    assert gone(store)
    held, _ = open_for_work(store)
    assert not held.check()
    held.close()
    assert not list(folder.glob("*.draft*")) and not list((folder / "sweep.db.work").glob("*.draft"))
    for file in (folder / "sweep.db.work").glob("*.checkpoint"):
        assert checkpoints.load(file)[1] == [], "half a checkpoint under its final name"
    code, said = finish(path)
    assert code == 0, said
    same(results(store), undisturbed[1])


def test_damaged_checkpoints_are_never_loaded(tmp_path):
    config = RunConfig(width=8, depth=3, lr=0.05, steps=30, batch_size=16, eval_examples=0)
    whole = run(config).curves["loss"].tolist()
    asked = iter(range(1000))
    for _ in range(2):  # two generations
        with pytest.raises(Interrupted):
            run(config, checkpoint=tmp_path / "c", stop=lambda: next(asked) % 10 == 9)
    good = {name: (tmp_path / name).read_bytes() for name in ("c", "c.before")}
    dice = random.Random(0)
    for i in range(100):
        for name, content in good.items():
            (tmp_path / name).write_bytes(content)
        content = bytearray(good["c"])
        if i % 2:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        else:
            content = content[: dice.randrange(len(content))]
        (tmp_path / "c").write_bytes(content)
        state, said = checkpoints.load(tmp_path / "c")
        assert state is not None and len(said) == 1 and "not whole" in said[0], (
            "fell back to the one before, and said so"
        )
        assert len(state["losses"]) < 20
    assert run(config, checkpoint=tmp_path / "c").curves["loss"].tolist() == whole


@pytest.mark.slow
def test_damaged_stores_are_never_believed(tmp_path, undisturbed):
    """Bytes flipped or cut at 100 places: the numbers read are those written, or there is an error, or the
    row runs again."""
    folder = tmp_path / "x"
    folder.mkdir()
    path = write(folder, GRID | {"seeds": 2})
    assert finish(path)[0] == 0
    store = path.with_suffix(".db")
    truth, content, dice = results(store), store.read_bytes(), random.Random(1)
    copy = store.with_name("sweep.db.copy").read_bytes()
    noticed = mends = 0
    for i in range(100):
        for file in folder.glob("sweep.db*"):
            if file.is_file():
                file.unlink()
        bad = bytearray(content)
        if i % 4 == 3:
            bad = bad[: dice.randrange(len(bad))]
        else:
            for _ in range(1 + i % 3):
                bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
        store.write_bytes(bad)
        store.with_name("sweep.db.copy").write_bytes(copy)
        try:
            held = Store(store)
            frame = held.to_pandas()
            rows = {
                cell: (state, held.curves(cell)) for cell, state in zip(frame.cell, frame.state, strict=True)
            }
            held.close()
            assert len(rows) == len(truth), "cells vanished and nobody said so"
            for cell, (state, curves) in rows.items():
                assert state == truth[cell][0] and all(
                    (curves[k] == truth[cell][2][k]).all() or state == "diverged" for k in curves
                )
        except TrimtabError:
            noticed += 1
            held, said = open_for_work(store)
            mends += bool(said)
            assert said and not held.check()
            held.close()
    assert noticed > 30 and mends == noticed
    assert finish(path)[0] == 0
    same(results(store), truth)


RAISING = """
import torch
def data(split, seed, step):
    if seed % 10 == 3 and step == 2:
        raise ValueError(f"no data for seed {seed}")
    g = torch.Generator().manual_seed(seed * 1000 + step)
    x = torch.randn(16, 64, generator=g)
    return x, (x[:, 0] > 0).long()
"""


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [1, 20])
def test_a_tenth_raises_and_the_rest_completes(tmp_path, fleet):
    (tmp_path / "mine.py").write_text(RAISING)
    sweep = {
        "base": [8, 3],
        "seeds": 20,
        "axes": {"lr": [0.01, 0.1]},
        "run": SMALL | {"data": "mine.py:data", "steps": 10, "model_options": {"inputs": 64, "classes": 10}},
        "budget": {"fleet": fleet},
    }
    path = write(tmp_path, sweep)
    code, said = finish(path)
    assert code == 4 and "ValueError: no data for seed" in said, said
    store = Store(path.with_suffix(".db"))
    assert store.counts() == {"waiting": 0, "running": 0, "done": 36, "diverged": 0, "failed": 4}
    assert all("Traceback" in text and "mine.py" in text for _, text in store.errors())
    (tmp_path / "mine.py").write_text(
        RAISING.replace("== 3", "== 99")
    )  # another file is another sweep: its cells are new
    assert finish(path)[0] == 4
    assert Store(path.with_suffix(".db")).counts()["done"] == 36 + 40


STEPS = 200
SLOW = """
import os, pathlib, time, torch
def data(split, seed, step):
    time.sleep(0.02)
    pathlib.Path(os.environ["TRACE"]).open("a").write(f"{split} {seed} {step}\\n")
    g = torch.Generator().manual_seed(seed * 1000 + step)
    x = torch.randn(16, 64, generator=g)
    return x, (x[:, 0] > 0).long()
"""


def slow(tmp_path, monkeypatch, **budget):
    """A sweep of one run at a time whose every batch is noted in a file: (path, the notes so far)."""
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    (tmp_path / "mine.py").write_text(SLOW)
    run = SMALL | {"data": "mine.py:data", "steps": STEPS, "model_options": {"inputs": 64, "classes": 10}}
    path = write(
        tmp_path,
        {"base": [8, 3], "seeds": [7], "axes": {"lr": [0.1]}, "run": run, "fleet": 1, "budget": budget},
    )

    def steps():
        trace = tmp_path / "trace"
        lines = trace.read_text().splitlines() if trace.exists() else []
        return [int(line.split()[2]) for line in lines if line.startswith("train 7 ")]

    return path, steps


def test_ctrl_c_saves_the_run_under_way(tmp_path, monkeypatch):
    """No checkpoint but the one Ctrl-C asks for: the next command continues at the very step that was
    next."""
    path, steps = slow(tmp_path, monkeypatch, checkpoint_seconds=3600)
    process, store = start(path), path.with_suffix(".db")
    until(lambda: len(steps()) >= 30)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == 130 and "same command" in said and "Traceback" not in said, said
    assert gone(store)
    held = Store(store)
    assert held.counts() == {"waiting": 1, "running": 0, "done": 0, "diverged": 0, "failed": 0}
    held.close()
    made = max(steps()) + 1
    (checkpoint,) = (tmp_path / "sweep.db.work").glob("*.checkpoint")
    state, wrong = checkpoints.load(checkpoint)
    assert state is not None and not wrong and len(state["losses"]) == made
    code, said = finish(path)
    assert code == 0, said
    seen = steps()
    assert seen.count(made - 1) == 1 and sorted(set(seen)) == list(range(STEPS)), "a step was made twice"
    (found,) = results(store).values()
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "mine.py").write_text(SLOW)
    undisturbed = alone / "sweep.toml"
    undisturbed.write_text(path.read_text())
    assert finish(undisturbed)[0] == 0
    same({"cell": found}, {"cell": next(iter(results(undisturbed.with_suffix(".db")).values()))})


def test_ctrl_c_before_any_run_leaves_nothing_behind(tmp_path):
    """Interrupted while the cells are being made: the user's model takes its time to be imported."""
    (tmp_path / "mine.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(86400)\ndef "
        "build(width, depth): ...\n"
    )
    path = write(
        tmp_path,
        {
            "base": [8, 3],
            "seeds": 1,
            "axes": {"lr": [0.1]},
            "run": SMALL | {"model": "mine.py:build", "model_options": {}},
        },
    )
    process = start(path)
    until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == 130 and "Traceback" not in said and "before any run" in said, said
    assert gone(path.with_suffix(".db")) and not path.with_suffix(".db").exists()


@pytest.mark.slow
def test_ctrl_c_while_a_run_is_set_up_leaves_at_once(tmp_path, monkeypatch):
    """A worker that builds its model for ten minutes has nothing to save: it gives its cell back and goes."""
    monkeypatch.setenv("WAIT", "")
    (tmp_path / "mine.py").write_text(
        "import os, pathlib, sys, time, torch\n"
        "from trimtab.models.mlp import build as real\n"
        "def build(width, depth):\n"
        "    if 'trimtab.sweeps.worker_server' in ' '.join(sys.orig_argv):\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n        time.sleep(86400)\n"
        "    return real(width, depth)\n"
    )
    path = write(
        tmp_path,
        {
            "base": [8, 3],
            "seeds": 1,
            "axes": {"lr": [0.1]},
            "run": SMALL | {"model": "mine.py:build", "model_options": {}},
            "fleet": 1,
        },
    )
    process = start(path)
    until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == 130 and "same command" in said, said
    assert gone(path.with_suffix(".db"))
    assert Store(path.with_suffix(".db")).counts()["waiting"] == 1


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once_and_loses_nothing_finished(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pathlib, time, torch\n"
        "def data(split, seed, step):\n"
        f"    if seed == 1 and step == 5:\n        pathlib.Path({str(tmp_path / 'stuck')!r}).touch()\n       "
        " time.sleep(86400)\n"
        "    return torch.ones(4, 64), torch.zeros(4, dtype=torch.long)\n"
    )
    run = SMALL | {"data": "mine.py:data", "steps": 10, "model_options": {"inputs": 64, "classes": 10}}
    path = write(tmp_path, {"base": [8, 3], "seeds": [0, 1], "axes": {"lr": [0.01]}, "run": run, "fleet": 1})
    process, store = start(path, workers=1), path.with_suffix(".db")
    until(lambda: (tmp_path / "stuck").exists() and Store(store).counts()["done"] == 1)
    process.send_signal(signal.SIGINT)
    with pytest.raises(
        subprocess.TimeoutExpired
    ):  # the step it is in has a day to go: the first asks politely
        process.wait(3.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS) == 130 and gone(store)
    held = Store(store)
    assert held.counts()["done"] == 1 and sum(held.counts().values()) == 2


@pytest.mark.slow
def test_a_hung_cell_is_cut_off(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import time, torch\ndef data(split, seed, step):\n    if seed == 1 and step == 3:\n        "
        "time.sleep(86400)\n    return torch.ones(4, 64), torch.zeros(4, dtype=torch.long)\n"
    )
    sweep = {
        "base": [8, 3],
        "seeds": 3,
        "axes": {"lr": [0.01]},
        "run": SMALL | {"data": "mine.py:data", "steps": 10},
        "budget": {"fleet": 1, "cell_seconds": 6.0},
    }
    code, said = finish(
        write(tmp_path, sweep | {"run": sweep["run"] | {"model_options": {"inputs": 64, "classes": 10}}}),
        timeout=HANGS,
    )
    assert code == 4, said
    store = Store(tmp_path / "sweep.db")
    assert store.counts()["done"] == 2 and "wall clock" in store.errors()[0][1]


@pytest.mark.slow
def test_a_cell_that_kills_its_worker_is_given_up(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, torch\ndef data(split, seed, step):\n    if seed == 1 and step == 3:\n        "
        "os._exit(139)\n    return torch.ones(4, 64), torch.zeros(4, dtype=torch.long)\n"
    )
    sweep = {
        "base": [8, 3],
        "seeds": 3,
        "axes": {"lr": [0.01]},
        "run": SMALL | {"data": "mine.py:data", "steps": 10, "model_options": {"inputs": 64, "classes": 10}},
        "budget": {"fleet": 1},
    }
    code, said = finish(write(tmp_path, sweep), timeout=HANGS)
    assert code == 4, said
    store = Store(tmp_path / "sweep.db")
    assert store.counts()["done"] == 2 and "died" in store.errors()[0][1]


def test_an_older_schema_is_migrated_and_a_newer_refused(tmp_path):
    from trimtab.sweeps import database as module

    path = tmp_path / "old.db"
    db = sqlite3.connect(path)
    db.executescript(module.MIGRATIONS[0])
    db.execute("PRAGMA user_version = 1")
    db.execute(f"PRAGMA application_id = {module.APPLICATION}")
    db.execute(
        "INSERT INTO cells (cell, label, config, unit, fleet, cost, state) VALUES ('a', '', '{}', 'u', 0, "
        "1.0, 'waiting')"
    )
    db.commit()
    db.close()
    store = Store(path)
    store.attach("check", {"title": "x"})
    assert store.attached("check") == [{"title": "x"}] and store.counts()["waiting"] == 1
    store._db.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(TrimtabError, match="newer"):
        Store(path)
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.commit()
    with pytest.raises(TrimtabError, match="not a sweep"):
        Store(other)


def test_a_store_that_cannot_be_opened_is_not_called_damaged(tmp_path, monkeypatch):
    with pytest.raises(TrimtabError, match="could not be opened"):
        open_for_work(tmp_path / "nosuch" / "sweep.db")
    Store(tmp_path / "sweep.db", create=True).close()
    held = (tmp_path / "sweep.db").read_bytes()

    def refuse(self):
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorname = "SQLITE_READONLY_DIRECTORY"
        raise error

    monkeypatch.setattr(Store, "_open", refuse)
    with pytest.raises(TrimtabError, match="readonly"):
        open_for_work(tmp_path / "sweep.db")
    assert (tmp_path / "sweep.db").read_bytes() == held and not list(tmp_path.glob("*damaged*"))


def test_a_store_in_a_read_only_folder_can_be_read(tmp_path, monkeypatch):
    path = tmp_path / "sweep.db"
    store = Store(path, create=True)
    store.add([("cell", "first", {"lr": 0.1}, "unit", False, 1.0)])
    store.close()
    monkeypatch.setattr("trimtab.sweeps.database.os.access", lambda *_: False)
    store = Store(path)  # as a superuser may write anywhere, the mode is asked of SQLite: nothing beside it
    assert store.counts()["waiting"] == 1 and [place.name for place in tmp_path.iterdir()] == ["sweep.db"]
    with pytest.raises(TrimtabError, match="Copy the store to a folder of your own"):
        store.add([("other", "first", {"lr": 0.2}, "unit", False, 1.0)])
