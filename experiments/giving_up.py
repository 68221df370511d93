"""Ending runs that learned nothing by half of their steps: what it saves, and whether a verdict moves.

    python experiments/giving_up.py FOLDER

Sweeps of digits over depth with their loss curves, every run to its end. A run that `give_up` would have
ended is then counted as it would have been counted (diverged, with the steps that it made), and drift and
optima are compared with those of the whole runs. Wide grids of rates, so that a third of the runs is beyond
what trains. Results are kept in FOLDER, and the same command goes on.
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path
from typing import Any

import trimtab
from trimtab.optima.transfers import analyse
from trimtab.runs.results import is_given_up
from trimtab.sweeps.store import Store

SETUPS: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
    "sgd, constant": (dict(optimizer="sgd"), (-7.0, 1.0)),
    "sgd, momentum 0.9, cosine": (dict(optimizer="sgd", momentum=0.9, schedule="cosine"), (-9.0, -1.0)),
    "adamw, linear": (dict(optimizer="adamw", schedule="linear", warmup=10), (-10.0, 0.0)),
    "adamw, tanh, linear": (
        dict(optimizer="adamw", schedule="linear", warmup=10, model_options={"activation": "tanh"}),
        (-10.0, 0.0),
    ),
}
SCHEMES = ("mup", "depth-mup")


def run_sweep(name: str, store: Path) -> None:
    """The whole grid."""
    run, rates = SETUPS[name]
    trimtab.sweep(
        dict(
            schemes=list(SCHEMES),
            base=[32, 3],
            depths=[3, 6, 12],
            seeds=2,
            axes={"lr": {"log2": list(rates), "step": 0.5}},
            run=dict(steps=100, eval_examples=0) | run,
        ),
        store,
        workers=1,
    )


def looked_at(store: Store, give_up: float) -> tuple[Any, Any, dict[str, int]]:
    """(the table, the table with runs ended at `give_up`, counts of those by how they really ended)."""
    table = store.to_pandas()
    short, ends = table.copy(), {"collapsed": 0, "diverged": 0, "stable": 0}
    for i, row in table.iterrows():
        losses, steps = [float(v) for v in store.curves(row["cell"])["loss"]], int(row["steps"])
        at = math.ceil(give_up * steps)
        if len(losses) < at or not is_given_up(losses[:at], steps, give_up):
            continue
        ends["diverged" if row["state"] == "diverged" else "collapsed" if row["collapsed"] else "stable"] += 1
        short.loc[i, ["state", "train_loss", "collapsed"]] = ["diverged", math.nan, False]
        short.loc[i, "flops"] = row["flops"] * at / len(losses)
    return table, short, ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    print("| sweep | give_up | runs | ended | later diverged, collapsed, stable | FLOPs | verdicts |")
    print("|---|---|---|---|---|---|---|")
    for number, name in enumerate(SETUPS):
        path = folder / f"{number}.db"
        run_sweep(name, path)
        for give_up in (0.25, 0.5):
            table, short, ends = looked_at(Store(path), give_up)
            said = []
            for scheme in SCHEMES:
                pair = [analyse(t, ["depth"], [scheme])["depth"][scheme] for t in (table, short)]
                said.append(" then ".join(f"{t.verdict} {t.drift.slope:+.3f}" for t in pair))
            kept = short["flops"].sum() / table["flops"].sum()
            ended = ", ".join(str(ends[key]) for key in ("diverged", "collapsed", "stable"))
            row = (name, give_up, len(table), sum(ends.values()), ended, f"{kept:.0%}", "; ".join(said))
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
