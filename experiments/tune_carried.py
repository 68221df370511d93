"""Tune at width 64, train at width 512: carried numbers against tuning at 512 itself.

    python experiments/tune_carried.py FOLDER [--task digits] [--seed 0] [--options '{"finalists": 8}']

A residual MLP of depth 3 (TASKS), AdamW at a constant rate. Four ways to numbers for 512:

    carried     `trimtab.tune` as it is without [search]: lr, gamma0 and the input's rate, base 64
    by base     the same trials, the finalists compared at 64 too (final_size = "base")
    direct      the same search with all its runs at 512, under the same parametrization (base 64)
    sp          the standard parametrization, its rate alone over half octaves at 512, two seeds each; a best
                rate at the end of the grid extends the grid

Each is then trained at 512 on the same fresh seeds, which no choice has seen. A seed shifts all of them
alike, so ratios are of pairs. FLOPs are those of the search alone. Results are kept in FOLDER, and the same
command goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trimtab
from trimtab.runs.config import RunConfig
from trimtab.sweeps.store import Store
from trimtab.tuning import tuner
from trimtab.tuning.config import TuneConfig, read
from trimtab.tuning.result import Tuned, interval
from trimtab.tuning.space import settings

BASE, TARGET = (64, 3), (512, 3)
COMMON = dict(model="mlp", optimizer="adamw", schedule="constant", eval_examples=0)
TASKS: dict[str, dict[str, Any]] = {
    "digits": COMMON | dict(data="digits", batch_size=64, steps=100),
    "cifar10": COMMON | dict(data="cifar10", data_options={"px": 8}, batch_size=64, steps=100),
}
RATES = (-13.0, -4.0)  # of sp, in octaves


class AtTarget(TuneConfig):
    """A tune whose runs of the base are runs of the target."""

    def at(self, values: Mapping[str, float], size: tuple[int, int], seed: int) -> RunConfig:
        return super().at(values, TARGET, seed)


def searched(task: str, seed: int, store: Path, workers: int, options: Mapping[str, Any]) -> Tuned:
    """A tune with all defaults but these options."""
    file = dict(base=list(BASE), target=list(TARGET), seed=seed, run=TASKS[task], **options)
    return trimtab.tune(file, store, workers=workers)


def direct(task: str, seed: int, store: Path, workers: int, options: Mapping[str, Any]) -> Tuned:
    """The same search at the target."""
    file = dict(base=list(BASE), target=list(TARGET), seed=seed, run=TASKS[task], **options)
    plain = read(file | {"final_size": "base"})
    there = AtTarget(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    return tuner.tune(there, store, workers=workers)


def rates_of_sp(task: str, store: Path, workers: int) -> tuple[float, float, int]:
    """(best rate, FLOPs, runs): half octaves, with more beyond the end at which the best is."""
    low, high = RATES
    while True:
        rates = {"lr": {"log2": [low, high], "step": 0.5}}
        grid = dict(schemes=["sp"], base=list(BASE), widths=[TARGET[0]], run=TASKS[task], axes=rates, seeds=2)
        trimtab.sweep(grid | {"name": "sp"}, store, workers=workers)
        table = Store(store).to_pandas()
        good = table["state"].eq("done") & ~table["collapsed"].astype(bool)
        logs = table["train_loss"].where(good, math.inf).map(math.log).groupby(table["lr"]).mean()
        best = float(logs.idxmin())
        if low < math.log2(best) < high:
            return best, float(table["flops"].sum()), len(table)
        low, high = (low - 2, high) if math.log2(best) <= low else (low, high + 2)


def trained(
    task: str, scheme: str, values: Mapping[str, float], store: Path, seeds: int, workers: int
) -> list[float]:
    """Losses at the target on fresh seeds; a run that diverged has an infinite one."""
    numbers = settings(values, TASKS[task])
    rate = numbers.pop("lr")
    grid = dict(schemes=[scheme], base=list(BASE), widths=[TARGET[0]], run=numbers, axes={"lr": [rate]})
    fresh = list(range(1000, 1000 + seeds))
    trimtab.sweep(grid | {"seeds": fresh, "name": "fresh"}, store, workers=workers)
    table = Store(store).to_pandas().sort_values("seed")
    good = table["state"].eq("done") & ~table["collapsed"].astype(bool)
    return [float(x) for x in table["train_loss"].where(good, math.inf)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--seed", type=int, default=0, help="of the proposals")
    parser.add_argument("--options", type=json.loads, default={}, help="more keys of the tune, as JSON")
    parser.add_argument("--name", default="carried", help="of the tune with these options")
    parser.add_argument("--fresh", type=int, default=16, help="seeds of the final losses")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=["carried", "by base", "direct", "sp"])
    given = parser.parse_args()
    folder, task, n = given.folder, given.task, given.workers
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    ways = {"carried": given.options, "by base": given.options | {"final_size": "base"}}
    for way in given.only:
        name = f"{task}-{given.name if way == 'carried' else way.replace(' ', '-')}-{given.seed}"
        if way == "sp":
            rate, flops, runs = rates_of_sp(task, folder / f"{task}-sp.db", n)
            scheme, values, name = "sp", {"lr": rate}, f"{task}-sp"
        else:
            search = direct if way == "direct" else searched
            found = search(task, given.seed, folder / f"{name}.db", n, ways.get(way, given.options))
            (folder / f"{name}.json").write_text(found.to_json())
            scheme, values, flops, runs = found.scheme, found.best.values, found.cost.flops, found.cost.runs
        losses = trained(task, scheme, values, folder / f"{name}-fresh.db", given.fresh, n)
        rows[way] = dict(values=values, runs=runs, flops=flops, losses=losses)
        print(f"{way}: {shown(values)}; {runs} runs, {flops:.3g} FLOPs; loss {said(losses)}", flush=True)
    for other in ("by base", "direct", "sp"):
        if "carried" in rows and other in rows:
            ratios = [a / b for a, b in zip(rows["carried"]["losses"], rows[other]["losses"], strict=True)]
            share = 100 * rows["carried"]["flops"] / rows[other]["flops"]
            print(f"carried over {other}: loss x {said(ratios)} at {share:.3g} % of its FLOPs", flush=True)
    (folder / f"{task}-{given.name}-{given.seed}-rows.json").write_text(json.dumps(rows, indent=2))


def shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} 2^{math.log2(value):g}" for name, value in values.items())


def said(numbers: Sequence[float]) -> str:
    """Geometric mean and its 95 % interval."""
    mean, low, high = interval(numbers)
    return f"{mean:.4g}" if low is None else f"{mean:.4g} ({low:.4g} to {high:.4g})"


if __name__ == "__main__":
    main()
