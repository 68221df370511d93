"""The Ray engine on clusters of this machine: the local engine's numbers bit for bit, whatever is lost."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from crashing import SMALL, finish, results, same, write
from hanging import HANGS

from trimtab import cli
from trimtab.errors import InputError
from trimtab.sweeps import grid
from trimtab.sweeps.driver import sweep
from trimtab.sweeps.engines import cluster_task, parcels
from trimtab.sweeps.engines.choice import choose_engine
from trimtab.sweeps.engines.shipment import pack_files
from trimtab.sweeps.store import Claim, Store

ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'trimtab[ray]'"
)

GRID = {"base": [8, 3], "depths": [3, 6], "seeds": 2, "axes": {"lr": [0.02, 0.1, 100.0]}, "run": SMALL}

# A model and data of a user's own, in two files: the first imports from a third one beside it.
MODEL = """
from helper import classes
from trimtab.models.mlp import build as zoo

def build(width, depth):
    return zoo(width, depth, inputs=64, classes=classes(), branch_scale=0.5)
"""
DATA = """
import torch

def data(split, seed, step):
    g = torch.Generator().manual_seed(seed * 1000 + step)
    x = torch.randn(16, 64, generator=g)
    return x, (x[:, 0] > 0).long()
"""
OWN = {"model": "net.py:build", "data": "batches.py:data", "steps": 30, "eval_examples": 16}


def own_files(folder, data=DATA):
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(MODEL)
    (folder / "helper.py").write_text("def classes():\n    return 2\n")
    (folder / "batches.py").write_text(data)


@pytest.fixture(scope="module")
def address():
    """A cluster with two slots, which all tests here share."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    yield cluster.address
    cluster.shutdown()


def both(folder, table, address, before_local=lambda: None, before_ray=lambda: None):
    """(the cells of the local engine, those of Ray, how Ray's sweep ended)."""
    path = write(folder, table)
    before_local()
    sweep(path, folder / "local.db")
    before_ray()
    outcome = sweep(path, folder / "ray.db", engine="ray", address=address)
    return results(folder / "local.db"), results(folder / "ray.db"), outcome


@pytest.mark.slow
@needs_ray
def test_a_cluster_gives_the_local_engines_bits_in_fleets_and_alone(tmp_path, address):
    table = GRID | {"run": GRID["run"] | {"optimizer": "sgd"}}
    local, ray, outcome = both(tmp_path, table | {"fleet": "auto"}, address)
    assert len(local) == 12 and {v[0] for v in local.values()} == {"done", "diverged"}
    assert all(v[3] == 1 for v in ray.values()) and outcome.exit_code == 0
    same(ray, local)
    assert Store(tmp_path / "ray.db").to_pandas().fleet.unique() == [16]


@needs_ray
@pytest.mark.slow
def test_a_tune_on_a_cluster_gives_the_local_answer(tmp_path, address):
    """Rounds of a search, finalists at a larger size, a user's own model and data, in one connection."""
    import trimtab

    own_files(tmp_path)
    run = OWN | {"steps": 5, "optimizer": "sgd", "eval_examples": 0}
    table = dict(base=[8, 2], target=[32, 2], trials=4, per_round=2, finalists=2, final_seeds=2, run=run)
    path = write(tmp_path, table | {"search": {"lr": {"log2": [-6, -1]}}})
    local = trimtab.tune(path, tmp_path / "local.db")
    assert trimtab.tune(path, tmp_path / "ray.db", engine="ray", address=address).to_json() == local.to_json()
    same(results(tmp_path / "ray.db"), results(tmp_path / "local.db"))
    assert local.best.size == (16, 2) and all(v[3] == 1 for v in results(tmp_path / "ray.db").values())
    with pytest.raises(InputError, match="engine: must be one of local, ray: got 'slurm'"):
        trimtab.tune(path, tmp_path / "other.db", engine="slurm")


@needs_ray
@pytest.mark.slow
def test_an_adaptive_sweep_on_a_cluster_asks_for_the_same(tmp_path, address):
    import trimtab

    axes = {"lr": {"log2": [-6, 0], "step": 1}}
    table = dict(base=[8, 3], depths=[3, 6], seeds=2, axes=axes, run=SMALL | {"steps": 20})
    table |= {"search": {"adaptive": True, "runs": 20}}
    path = write(tmp_path, table)
    trimtab.sweep(path, tmp_path / "local.db")
    trimtab.sweep(path, tmp_path / "ray.db", engine="ray", address=address)
    same(results(tmp_path / "ray.db"), results(tmp_path / "local.db"))


# Seed 6 raises. Seed 7 kills its own task, once, when a checkpoint of it has reached the driver.
UNKIND = """
import os, pathlib, signal, time
ONCE, TRACE, WORK = (pathlib.Path(p) for p in PLACES)

def data(split, seed, step):
    if split == "train" and seed == 7 and "RAY_JOB_ID" in os.environ:
        TRACE.open("a").write(f"{step}\\n")
    if split == "train" and seed == 6 and step == 2:
        raise ValueError("no data for seed 6")
    if split == "train" and seed == 7 and step >= 5 and not ONCE.exists():
        time.sleep(0.02)
        if step == 15:
            deadline = time.monotonic() + 60
            while not list(WORK.glob("*.checkpoint")) and time.monotonic() < deadline:
                time.sleep(0.05)
            ONCE.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return drawn(split, seed, step)
"""


@needs_ray
@pytest.mark.slow
def test_users_files_reach_tasks_of_which_one_raises_and_one_is_killed_and_resumed(tmp_path, address):
    folder, once, trace = tmp_path / "x", tmp_path / "killed", tmp_path / "trace"
    places = repr([str(once), str(trace), str(folder / "ray.db.work")])
    own_files(folder, DATA.replace("def data(", "def drawn(") + UNKIND.replace("PLACES", places))
    table = {"base": [8, 3], "seeds": [5, 6, 7], "axes": {"lr": [0.1]}, "run": OWN, "fleet": 1}
    table["budget"] = {"checkpoint_seconds": 0.05}
    local, ray, outcome = both(folder, table, address, before_local=once.touch, before_ray=once.unlink)
    assert once.exists(), "no task was killed"
    same(ray, local)
    assert outcome.exit_code == 4 and outcome.counts["failed"] == 1 and outcome.counts["done"] == 2
    held = Store(folder / "ray.db")
    ((_, error),) = held.errors()
    assert "Traceback" in error and "batches.py" in error and "ValueError: no data for seed 6" in error
    query = "SELECT json_extract(config, '$.seed'), attempts, accepted FROM cells ORDER BY 1"
    assert [tuple(row) for row in held._read(query)] == [(5, 1, 1), (6, 1, 1), (7, 2, 1)]
    steps = [int(line) for line in trace.read_text().splitlines()]
    resumed = steps[steps.index(15) + 1 :]
    assert resumed == list(range(resumed[0], 30)), steps
    assert 0 < resumed[0] <= 15, f"the run began anew: {steps}"


@pytest.mark.slow
@needs_ray
def test_a_connection_that_is_there_is_used_and_kept(tmp_path, address):
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        (tmp_path / "mine.py").write_text("def log(step, metrics):\n    pass\n")
        logged = SMALL | {"log": "mine.py:log"}
        table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": logged, "fleet": 1}
        local, found, outcome = both(tmp_path, table, "auto")
        same(found, local)
        assert any("not logged" in line for line in outcome.said)
        assert ray.is_initialized(), "a connection of somebody else's was closed"
        with pytest.raises(InputError, match=f"connected to the Ray cluster at {re.escape(address)}"):
            sweep(table, tmp_path / "other.db", engine="ray", address="127.0.0.1:1")
        assert not (tmp_path / "other.db").exists()
    finally:
        ray.shutdown()


@needs_ray
@pytest.mark.slow
def test_the_command_on_a_ray_of_its_own(tmp_path):
    """`--ray local` from another folder than the sweep's, whose files it must find."""
    folder = tmp_path / "x"
    own_files(folder)
    table = {"base": [8, 3], "seeds": 2, "axes": {"lr": [0.1]}, "run": OWN}
    path = write(folder, table)
    code, said = finish(path)
    assert code == 0, said
    command = [sys.executable, "-m", "trimtab.cli", "sweep", str(path), "--ray", "local"]
    ran = subprocess.run(
        [*command, "--store", str(folder / "ray.db")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=HANGS,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    same(results(folder / "ray.db"), results(path.with_suffix(".db")))


@needs_ray
def test_no_cluster_is_said_and_nothing_is_left_behind(tmp_path):
    path = write(tmp_path, {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": SMALL})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match=f"no Ray cluster at {nobody}.*ray start --head"):
        sweep(path, engine="ray", address=nobody)
    assert [p.name for p in tmp_path.iterdir()] == ["sweep.toml"]
    assert cli.main(["sweep", str(path), "--ray", nobody]) == 2


@needs_ray
def test_what_answers_at_the_address_must_be_ray(tmp_path, monkeypatch):
    from trimtab.sweeps.engines import cluster

    path = write(tmp_path, {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": SMALL})
    monkeypatch.setattr(cluster, "HEALTH", 3.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(InputError, match="no Ray cluster at 127.0.0.1:.*no answer in 3 s"):
            sweep(path, engine="ray", address=f"127.0.0.1:{silent.getsockname()[1]}")


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    path = write(tmp_path, {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": SMALL})
    assert cli.main(["sweep", str(path), "--ray", "local"]) == 2
    assert "pip install 'trimtab[ray]'" in capsys.readouterr().err


@needs_ray
def test_addresses_that_cannot_be_meant_are_refused():
    for address, law in {
        "head": "HOST:PORT",
        "host:99999": "HOST:PORT",
        "ray://h:10001": "Ray Client",
    }.items():
        problems: list[str] = []
        assert choose_engine("ray", address, problems) is None and law in problems[0], address


# -- what travels --------------------------------------------------------------------------------------------


def test_a_parcel_that_was_changed_on_the_way_is_refused():
    content = parcels.pack({"kind": "ended", "loss": 0.1}, {"curve": bytes(range(256))})
    for place in range(0, len(content), 7):
        bad = bytearray(content)
        bad[place] ^= 4
        with pytest.raises(parcels.Damaged):
            parcels.unpack(bytes(bad))
    with pytest.raises(parcels.Damaged):
        parcels.unpack(content[:-1])


def test_a_task_that_is_asked_to_leave_sends_its_checkpoint_and_the_next_goes_on(tmp_path):
    """The task's side alone: no Ray, no store."""
    from trimtab.runs.config import RunConfig
    from trimtab.runs.training import run

    config = RunConfig(width=8, depth=3, lr=0.05, **SMALL | {"steps": 2000, "eval_examples": 0})
    claim = Claim("u", False, ("c",), (config.model_dump(mode="json"),), (1,), 1)
    budget = {"cell_seconds": 600.0, "retries": 0, "checkpoint_seconds": 3600.0}
    order = cluster_task.Order(claim, budget, 1, None, None)
    sent = [parcels.unpack(p) for p in cluster_task.train_unit(order.pack(None), lambda: True)]
    kinds = [header["kind"] for header, _ in sent]
    assert kinds[0] == "begun" and kinds[-2:] == ["checkpoint", "ended"] and sent[-1][0]["left"], kinds
    checkpoint = sent[-2][1]["checkpoint"]
    *_, last = cluster_task.train_unit(order.pack(checkpoint), lambda: False)
    ((_, state, row, curves, error),) = cluster_task.read_outcomes(*parcels.unpack(last))
    alone = run(config)
    assert (state, error) == (alone.state, None) and row["train_loss"] == alone.train_loss
    assert curves["loss"].tolist() == alone.curves["loss"].tolist()


def test_what_is_named_is_shipped_and_what_lies_outside_is_refused(tmp_path, monkeypatch):
    own_files(tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x" / "note.txt").write_text("for the nodes")
    table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": OWN, "ray": {"files": ["*.txt"]}}
    shipment = pack_files(grid.read(table))
    try:
        found = sorted(p.name for p in shipment.folder.iterdir())
        assert found == ["batches.py", "helper.py", "net.py", "note.txt"]
        modules = shipment.environment["py_modules"]
        assert [Path(m).name for m in modules] == ["trimtab"]
    finally:
        shipment.remove()
    assert not shipment.folder.exists()
    (tmp_path / "batches.py").write_text(DATA)
    with pytest.raises(InputError, match="in or below the sweep's folder"):
        pack_files(grid.read(table | {"run": OWN | {"data": "../batches.py:data"}}))


def test_every_fault_of_the_table_is_said():
    table = {"base": [8, 3], "seeds": 1, "axes": {"lr": [0.1]}, "run": SMALL}
    with pytest.raises(InputError) as error:
        grid.read(table | {"ray": {"num_cpus": 0, "num_gpus": -1, "cpus": 2, "files": "a"}})
    for place in ("ray.num_cpus", "ray.num_gpus", "ray.files", "cpus"):
        assert place in str(error.value), place


# -- what is lost --------------------------------------------------------------------------------------------


@needs_ray
@pytest.mark.slow
def test_two_nodes_lose_tasks_and_one_of_them_and_no_cell_is_lost_or_twice(tmp_path):
    """A small member of experiments/ray_losses.py, in a process of its own: it starts its own cluster."""
    command = [sys.executable, str(ROOT / "experiments" / "ray_losses.py"), "--cells", "60", "--kills", "6"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, env=os.environ)
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen = json.loads(ran.stdout[ran.stdout.index("{\n") :])
    assert seen["killed"] == 6 and seen["node_removed_after"] is not None, seen
    assert seen["cells"] == seen["accepted_once"] == seen["same_bits"] == 60, seen
    assert seen["counts"]["failed"] == 0 and seen["retried"] >= 1, seen
