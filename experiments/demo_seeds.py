"""Does the demo's headline hold with other seeds and instruction sets? One line of a CSV per set of seeds.

    python experiments/demo_seeds.py run 20 demo_seeds.csv [--first 0] [--workers 2]
    python experiments/demo_seeds.py table demo_seeds.csv

For another instruction set, set these first, such as ATEN_CPU_CAPABILITY=default (or avx2),
ONEDNN_MAX_CPU_ISA=SSE41 (or AVX2), MKL_CBWR=COMPATIBLE (or AVX2): each choice has its own lines in the CSV.

Set i has the seeds 10 i, 10 i + 1, 10 i + 2; set 0 is the demo itself. A set in the CSV is not run again;
one that was stopped goes on where it was. The stores are kept in a folder beside the CSV and may be deleted.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections import Counter
from pathlib import Path

import torch

import trimtab
from trimtab.commands.demo import NAMES, grid, judge
from trimtab.sweeps.store import Store

AXES = ("width", "depth")
KEYS = ("verdict", "slope", "low", "high", "scatter", "optima", "errors", "statuses")
COLUMNS = ["instructions", "set", "seeds", "runs", "seconds"]
COLUMNS += [f"{over} {scheme} {key}" for over in AXES for scheme in NAMES for key in KEYS]


def instructions() -> str:
    """The instruction sets of torch's own kernels, of oneDNN's and of MKL's, as the environment chooses."""
    chosen = [os.environ.get(name) or "all" for name in ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR")]
    return "/".join([torch.backends.cpu.get_cpu_capability(), *chosen])


def known(path: Path) -> list[dict[str, str]]:
    """The lines that are there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measured(number: int, folder: Path, workers: int) -> dict[str, str | int | float]:
    """Run one set of seeds, or the rest of it, and judge it as the demo does."""
    seeds = [10 * number + i for i in range(3)]
    place = folder / f"{instructions().replace('/', '-')}-{number}.db"
    outcome = trimtab.sweep(grid(seeds), place, workers=workers)
    if outcome.exit_code:
        raise SystemExit(f"set {number} is not finished: {outcome.counts}; the same command goes on.")
    store = Store(place)
    line = dict(instructions=instructions(), set=number, seeds=" ".join(map(str, seeds)))
    line |= dict(runs=sum(outcome.counts.values()), seconds=round(outcome.seconds, 1))
    for over, by in judge(store).items():
        for scheme, t in by.items():
            numbers = {k: f"{getattr(t.drift, k):+.3f}" for k in ("slope", "low", "high", "scatter")}
            columns = (("optima", "log2"), ("errors", "stderr"))
            lists = {k: ";".join(f"{v:.2f}" for v in t.optima[c]) for k, c in columns}
            lists |= {"statuses": ";".join(t.optima["status"])}
            line |= {f"{over} {scheme} {k}": v for k, v in ({"verdict": t.verdict} | numbers | lists).items()}
    store.close()
    return line


def run(sets: int, path: Path, first: int, workers: int) -> None:
    """Append a line for each set that has none yet."""
    folder = path.with_suffix(".stores")
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + sets):
        if any((r["instructions"], r["set"]) == (instructions(), str(number)) for r in known(path)):
            continue
        line = measured(number, folder, workers)
        fresh = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if fresh:
                writer.writeheader()
            writer.writerow(line)
        told = ", ".join(f"{o} {s}: {line[f'{o} {s} verdict']}" for o in AXES for s in NAMES)
        print(f"{instructions()} set {number}, {line['seconds']} s: {told}", flush=True)


def table(path: Path) -> None:
    """The lines as a Markdown table: drift in log2 per doubling with its interval, then the counts."""
    heads = ["instructions", "seeds", "s", *(f"{name}, {over}" for over in AXES for name in NAMES.values())]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    counts: dict[str, Counter[str]] = {head: Counter() for head in heads[3:]}
    both = 0
    for r in sorted(known(path), key=lambda r: (r["instructions"], int(r["set"]))):
        cells = [r["instructions"], r["seeds"].replace(" ", ", "), f"{float(r['seconds']):.0f}"]
        for over in AXES:
            for scheme, name in NAMES.items():
                verdict, *d = (r[f"{over} {scheme} {k}"] for k in ("verdict", "slope", "low", "high"))
                counts[f"{name}, {over}"][verdict] += 1
                slope, low, high = (f"{float(v):+.2f}" for v in d)
                cells.append(f"{verdict} {slope} ({low} to {high})")
        both += all(r[f"{over} depth-mup verdict"] == "transfers" for over in AXES)
        print("| " + " | ".join(cells) + " |")
    print()
    for head, count in counts.items():
        print(f"{head}: " + ", ".join(f"{v} {n}" for v, n in count.most_common()))
    print(f"trimtab transfers over both: {both} of {sum(next(iter(counts.values())).values())}")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("sets", type=int)
    running.add_argument("csv", type=Path)
    running.add_argument("--first", type=int, default=0)
    running.add_argument("--workers", type=int, default=2)
    commands.add_parser("table").add_argument("csv", type=Path)
    given = parser.parse_args()
    if given.command == "table":
        table(given.csv)
    else:
        run(given.sets, given.csv, given.first, given.workers)


if __name__ == "__main__":
    main()
