"""Tune at width 64, train at width 512: carried numbers against tuning the rate at 512 itself.

    python experiments/tune_digits.py FOLDER [--depth 3] [--search lr,gamma0,beta2]

A residual MLP on the digits, AdamW, 100 steps at a constant rate. The rates at 512 are tried on seeds 0 and
1;
all final losses are on eight fresh seeds that no choice has seen.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import trimtab
from trimtab.sweeps.store import Store
from trimtab.tuning.result import interval

BASE, TARGET, FRESH = 64, 512, list(range(100, 108))
RANGES = {
    "lr": {"log2": [-12, -3]},
    "gamma0": {"log2": [-4, 2]},
    "beta2": {"log2": [-10, -2]},
    "beta1": {"log2": [-5, -1]},
    "weight_decay": {"log2": [-8, 1]},
    "warmup": {"from": 0.0, "to": 0.4},
    "roles.input.lr": {"log2": [-4, 3]},
    "roles.readout.lr": {"log2": [-4, 3]},
}
RUN = dict(model="mlp", data="digits", optimizer="adamw", batch_size=64, eval_examples=0)


def losses(store: Path, **where: object) -> dict[float, list[float]]:
    """{rate: final losses, infinite where a run diverged or collapsed}."""
    table = Store(store).to_pandas()
    out: dict[float, list[float]] = {}
    for row in table.to_dict("records"):
        if all(row[key] == value for key, value in where.items()):
            good = row["state"] == "done" and not row["collapsed"]
            out.setdefault(row["lr"], []).append(row["train_loss"] if good else math.inf)
    return out


def direct(folder: Path, scheme: str, depth: int, run: dict[str, object], workers: int) -> dict[str, object]:
    """The rate tuned at the target itself, then tried on fresh seeds."""
    common = dict(schemes=[scheme], base=[BASE, depth], widths=[TARGET], run=run)
    grid = folder / f"direct-{scheme}.db"
    rates = {"lr": {"log2": [-13, -4], "step": 0.5}}
    trimtab.sweep(dict(**common, axes=rates, seeds=2, name=scheme), grid, workers=workers)
    best = min(losses(grid).items(), key=lambda item: sum(map(math.log, item[1])))[0]
    return {"lr": best} | final(folder / f"final-{scheme}.db", common, best, workers)


def final(store: Path, common: dict[str, object], lr: float, workers: int) -> dict[str, object]:
    trimtab.sweep(dict(**common, axes={"lr": [lr]}, seeds=FRESH, name="final"), store, workers=workers)
    found = losses(store, lr=lr)[lr]
    loss, low, high = interval(found)
    flops = float(Store(store).to_pandas()["flops"].iloc[0])
    return dict(loss=loss, low=low, high=high, mean=sum(found) / len(found), flops_of_a_run=flops)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--schedule", default="constant")
    parser.add_argument("--search", default="lr,gamma0")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--carried-only", action="store_true", help="do not tune at 512 itself")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    run = RUN | {"steps": given.steps, "schedule": given.schedule}
    file = dict(
        base=[BASE, given.depth], target=[TARGET, given.depth], trials=given.trials, seeds=given.seeds
    )
    search = {name: RANGES[name] for name in given.search.split(",")}
    name = given.search.replace(",", "-")
    found = trimtab.tune(
        file | {"run": run, "search": search}, given.folder / f"tune-{name}.db", workers=given.workers
    )
    (given.folder / f"tuned-{name}.json").write_text(found.to_json())
    from trimtab.tuning.space import settings

    numbers = settings(found.best.values, run)
    lr = numbers.pop("lr")
    common = dict(schemes=["depth-mup"], base=[BASE, given.depth], widths=[TARGET], run=numbers)
    answer = {
        "best at base": dict(
            found.best.values, loss=found.best.loss, low=found.best.low, high=found.best.high
        ),
        "carried": final(given.folder / f"carried-{name}.db", common, lr, given.workers),
        "cost": dict(runs=found.cost.runs, flops=found.cost.flops, share=found.cost.share, why=found.why),
    }
    for scheme in () if given.carried_only else ("depth-mup", "sp"):
        answer[f"rate at 512, {scheme}"] = direct(given.folder, scheme, given.depth, run, given.workers)
    (given.folder / f"answer-{name}.json").write_text(json.dumps(answer, indent=2))
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
