"""Tuning at the base and carrying, against tuning at the target with Optuna: FLOPs, time, loss reached.

    TRIMTAB_DATA=... python experiments/cost/direct.py        some minutes on one core; writes direct.csv

The conv ResNet of the question. Both ways have Optuna's TPE sampler, the same number of trials of the rate,
one seed a trial; one runs them at the base and carries the rate with depth-mup, the other runs the standard
parametrization at the target. The loss is the mean at the target over seeds that no trial has seen. A
repetition is the whole search with other seeds.
"""

import math
import time
from pathlib import Path

import optuna
import pandas as pd

from trimtab.runs.config import RunConfig
from trimtab.runs.training import run

HERE = Path(__file__).resolve().parent
BASE, TARGET = (16, 3), (32, 12)
RUN = dict(
    model="resnet",
    model_options={"branch_scale": 0.5773502691896258},
    data="cifar10",
    data_options={"px": 8},
    optimizer="sgd",
    batch_size=64,
    steps=250,
    eval_examples=0,
)
RATES, TRIALS, ROUNDS, FRESH = (2.0**-6, 1.0), 10, 3, range(200, 204)


def config(task: dict, size: tuple[int, int], scheme: str, lr: float, seed: int) -> RunConfig:
    width, depth = size
    return RunConfig(**task, width=width, depth=depth, base=BASE, scheme=scheme, lr=lr, seed=seed)


def loss_of(found) -> float:
    """The loss of a run, a large one where it does not train."""
    return found.train_loss if found.train_loss is not None and not found.collapsed else 10.0


def search(task: dict, size: tuple[int, int], scheme: str, trials: int, seed: int) -> dict:
    """One search of the rate at a size: what it found and what it cost."""
    flops, begun = [], time.process_time()

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", *RATES, log=True)
        found = run(config(task, size, scheme, lr, seed))
        flops.append(found.flops)
        return loss_of(found)

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=trials)
    spent = dict(flops=sum(flops), seconds=time.process_time() - begun)
    return dict(lr=study.best_params["lr"], **spent)


def main(task=None, trials=TRIALS, rounds=ROUNDS, fresh=FRESH, out: Path = HERE / "direct.csv") -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task, rows = task or RUN, []
    for seed in range(100, 100 + rounds):
        for way, size, scheme in (("base, carried", BASE, "depth-mup"), ("target", TARGET, "sp")):
            found = search(task, size, scheme, trials, seed)
            reached = [loss_of(run(config(task, TARGET, scheme, found["lr"], s))) for s in fresh]
            rows.append(dict(way=way, round=seed - 100, trials=trials, lr=found["lr"]))
            rows[-1] |= dict(log2=math.log2(found["lr"]), gflops=found["flops"] / 1e9)
            rows[-1] |= dict(seconds=found["seconds"], loss=sum(reached) / len(reached))
            print(rows[-1], flush=True)
            pd.DataFrame(rows).round(6).to_csv(out, index=False)


if __name__ == "__main__":
    main()
