"""What a sweep costs: 60 runs by trimtab, by a plain loop, by Optuna's runner and by Ray Tune's, in turns.

    python benchmarks/sweep.py            about five minutes on two idle cores
    python benchmarks/sweep.py --long     also the engine's overhead on 30 s cells, `status` on a store of
    100,000 cells and `trimtab --help`, about five more

All train the same residual MLP on the digits with SGD at 20 learning rates and 3 seeds. Everyone's time
begins with nothing but this process and ends with the last of 60 losses; loading torch in workers is counted.
Optuna gets two processes on one study in its journal, its storage for several processes; Ray Tune two
CPUs, one per trial, and its own start is not counted. trimtab runs as it is (small runs train together) and
with `fleet = 1`, where each run is alone as in the other runners. Also: two workers against one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from records import Row, compare, in_turns, main, seconds, version

from trimtab.runs.config import RunConfig
from trimtab.runs.losses import cross_entropy, forward
from trimtab.runs.tasks import prepare
from trimtab.sweeps import grid
from trimtab.sweeps.driver import sweep
from trimtab.sweeps.store import Store

HERE = Path(__file__).resolve().parent
LOOP = (
    "the loop has torch loaded when its time begins and keeps nothing; a sweep starts two workers that load "
    "it, and where no second core is free two workers gain nothing"
)
SIXTY: dict[str, Any] = {
    "base": [32, 3],
    "depths": [12],
    "seeds": 3,
    "axes": {"lr": {"log2": [-9, -4.25], "step": 0.25}},
    "run": {"steps": 200, "model_options": {"branch_scale": 0.5}, "eval_examples": 0},
}
SIX = SIXTY | {"axes": {"lr": [0.01, 0.02]}, "run": SIXTY["run"] | {"steps": 5}}


def train(table: dict[str, Any]) -> float:
    """What a user writes: one run, torch's own optimizer. All runners but ours call exactly this."""
    torch.set_num_threads(1)
    config = RunConfig.model_validate(table)
    made = prepare(config)
    model = made.start(config.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    last = 0.0
    for step in range(config.steps):
        batch = made.batch(config.seed, step)
        loss = cross_entropy(forward(model, batch), batch)
        last = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return last


# -- the runners --------------------------------------------------------------------------------------------


def by_trimtab(table: dict[str, Any], workers: int = 2) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome = sweep(table, Path(folder) / "sweep.db", workers=workers)
        assert outcome.exit_code == 0, outcome


def by_optuna(cells: list[dict[str, Any]]) -> None:
    """Two processes on one study; the grid is its queue of trials."""
    with tempfile.TemporaryDirectory() as folder:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(study_name="s", storage=journal(folder))
        Path(folder, "cells.json").write_text(json.dumps(cells))
        for i in range(len(cells)):
            study.enqueue_trial({"cell": i})
        command = [sys.executable, str(HERE / "sweep.py"), "--optuna-worker", folder]
        processes = [subprocess.Popen(command) for _ in range(2)]
        assert all(process.wait() == 0 for process in processes)
        done = [trial for trial in study.trials if trial.state.is_finished()]
        assert len(done) == len(cells) and all(trial.value is not None for trial in done)


def journal(folder: str) -> Any:
    """Optuna's storage for several processes; with SQLite two of them took the same trial from the queue."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(f"{folder}/optuna.log"))


def optuna_worker(folder: str) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    cells = json.loads(Path(folder, "cells.json").read_text())
    study = optuna.load_study(study_name="s", storage=journal(folder))
    waiting = (optuna.trial.TrialState.WAITING,)

    def objective(trial: optuna.Trial) -> float:
        return train(cells[trial.suggest_int("cell", 0, len(cells) - 1)])

    while study.get_trials(deepcopy=False, states=waiting):
        study.optimize(objective, n_trials=1)


def by_ray_tune(cells: list[dict[str, Any]]) -> float:
    """In a process of its own, so that nothing of it stays behind; its seconds without Ray's own start."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cells.json").write_text(json.dumps(cells))
        quiet = dict(os.environ, RAY_AIR_NEW_OUTPUT="0", RAY_USAGE_STATS_ENABLED="0")
        path = os.pathsep.join(filter(None, [str(HERE), *sys.path, quiet.get("PYTHONPATH")]))
        command = [sys.executable, str(HERE / "sweep.py"), "--ray-tune", folder]
        done = subprocess.run(command, env=quiet | {"PYTHONPATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(Path(folder, "seconds.json").read_text())


def ray_tune(folder: str) -> None:
    import ray
    from ray import tune

    cells = json.loads(Path(folder, "cells.json").read_text())
    quiet = dict(log_to_driver=False, configure_logging=False)

    def one(choice: dict[str, Any]) -> None:
        from sweep import train

        tune.report({"loss": train(cells[choice["cell"]])})

    for attempt in range(5):  # Ray gives its own start 30 s, which a busy machine may not keep
        try:
            ray.init(address="local", num_cpus=2, include_dashboard=False, **quiet)  # never another's cluster
            break
        except Exception:
            ray.shutdown()
            if attempt == 4:
                raise
    begun = time.perf_counter()
    space = {"cell": tune.grid_search(list(range(len(cells))))}
    config = tune.RunConfig(storage_path=folder, verbose=0)
    reuse = tune.TuneConfig(reuse_actors=True)  # a worker keeps its process, as ours and Optuna's do
    trainable = tune.with_resources(one, {"cpu": 1})
    found = tune.Tuner(trainable, param_space=space, run_config=config, tune_config=reuse).fit()
    assert len(found) == len(cells) and not found.errors
    Path(folder, "seconds.json").write_text(json.dumps(time.perf_counter() - begun))
    ray.shutdown()


def why_not_ray_tune(cells: list[dict[str, Any]]) -> str | None:
    """What keeps Ray Tune from one short run here, or None."""
    try:
        from ray import tune  # noqa: F401

        by_ray_tune([cells[0] | {"steps": 2}])
    except (ImportError, AssertionError) as error:
        return str(error).strip().splitlines()[-1]
    return None


def tried(call: Callable[[], float]) -> float:
    """Its seconds, or nan where it failed: the other sides' rounds are not lost with it."""
    try:
        return call()
    except AssertionError as error:
        print(f"failed: {str(error).strip().splitlines()[-1]}", flush=True)
        return float("nan")


def runner_rows(tiny: bool) -> Iterator[Row]:
    table = SIX if tiny else SIXTY
    cells = [cell.model_dump(mode="json") for cell in grid.read(table).cells()]
    alone = f"trimtab, {len(cells)} runs, each alone"
    sides: dict[str, Callable[[], object]] = {"trimtab": lambda: by_trimtab(table)}
    sides[alone] = lambda: by_trimtab(table | {"fleet": 1})
    sides["a plain loop, one process"] = lambda: [train(cell) for cell in cells]
    if version("optuna"):
        sides[f"Optuna {version('optuna')}"] = lambda: by_optuna(cells)
    refused = why_not_ray_tune(cells)
    if not refused:
        sides[f"Ray Tune {version('ray')}"] = lambda: tried(lambda: by_ray_tune(cells))
    taken = in_turns(sides, 1 if tiny else 3, warm=False, clock=time.perf_counter)
    peers = {name: LOOP * ("loop" in name) for name in sides if name not in ("trimtab", alone)}
    what = f"{len(cells)} runs of one residual MLP"
    yield from compare(taken, what, peers, 1, "s")
    single = {"trimtab": taken[alone]} | {name: taken[name] for name in peers}
    yield from compare(single, f"{what}, each alone", peers, 1, "s")
    if refused:
        ours = statistics.median(taken["trimtab"])
        yield Row(
            what=what, peer=f"Ray Tune {version('ray')}", unit="s", ours=ours, why=f"not run: {refused}"
        )


# -- the engine by itself -----------------------------------------------------------------------------------


def worker_rows(tiny: bool) -> Iterator[Row]:
    """Cells of several seconds, so that loading torch does not decide."""
    table = SIXTY | {"seeds": 2, "axes": {"lr": [0.01, 0.02, 0.03, 0.04]}, "fleet": 1}
    table["run"] = SIXTY["run"] | {"steps": 5 if tiny else 1500}
    sides = {"trimtab": lambda: by_trimtab(table, 2), "trimtab, one worker": lambda: by_trimtab(table, 1)}
    why = "two workers against one: 2 would be perfect where two cores are free"
    taken = in_turns(sides, 1 if tiny else 3, warm=False, clock=time.perf_counter)
    yield from compare(taken, "8 longer runs, two workers", {"trimtab, one worker": why}, 1, "s")


def reading() -> None:
    """`status` of a large store and `--help`, beside the time Python needs to load torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.db"
        store = Store(path, create=True)
        config = RunConfig(width=32, depth=3, lr=0.1).model_dump(mode="json")
        store.add((f"cell-{i}", "large", config, f"unit-{i}", False, 1.0) for i in range(100_000))
        done = json.dumps({"train_loss": 0.5, "collapsed": False})
        store._db.execute("UPDATE cells SET state = 'done', result = ?", (done,))
        store.close()
        commands = {"status of 100,000 cells": ["-m", "trimtab.cli", "status", str(path)]}
        commands |= {"--help": ["-m", "trimtab.cli", "--help"], "import torch": ["-c", "import torch"]}
        for name, command in commands.items():
            taken = seconds(
                lambda c=command: subprocess.run([sys.executable, *c], capture_output=True, check=True)
            )
            print(f"{name}: {taken:.2f} s")


def overhead() -> None:
    """Cells of about 30 s in one worker against the same training in this process."""
    from trimtab.runs.training import run

    table = SIXTY | {"seeds": 2, "axes": {"lr": [0.01, 0.02]}, "fleet": 1}
    table["run"] = SIXTY["run"] | {"steps": 30_000}
    cells = list(grid.read(table).cells())
    bare = seconds(lambda: [run(cell) for cell in cells])
    with tempfile.TemporaryDirectory() as folder:
        sweep(table, Path(folder) / "over.db", workers=1)
        spent = float(Store(Path(folder) / "over.db").to_pandas().seconds.sum())
    print(f"4 cells of {bare / 4:.0f} s: in the worker {spent / bare:.3f} x the training alone (wanted 1.02)")


def rows(tiny: bool = False) -> Iterator[Row]:
    torch.set_num_threads(1)
    yield from runner_rows(tiny)
    yield from worker_rows(tiny)


if __name__ == "__main__":
    if "--optuna-worker" in sys.argv:
        optuna_worker(sys.argv[-1])
    elif "--ray-tune" in sys.argv:
        ray_tune(sys.argv[-1])
    else:
        main(rows)
        if "--long" in sys.argv:
            reading()
            overhead()
