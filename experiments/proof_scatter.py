"""How far correct plans scatter in the proof by one step, and which bound tells them from faults:
docs/proof.md.

python experiments/proof_scatter.py measure rows.csv [--first 0 --draws 3] [--only structures|families]
                                                     [--names gpt2 ...] [--sizes "width x 4" ...]
python experiments/proof_scatter.py faults faults.csv [--first 0 --draws 3]    the planted faults of the tests
python experiments/proof_scatter.py table rows.csv faults.csv  alarms and misses by bound, for docs/proof.md

A plan is read once for each model and size; each further draw is rescaled by the laws found (`p.on`) and
tried again. What is in the file already is not measured again, so a run that was stopped goes on, and more
draws are added with --first. Everything is measured at the lowest bound of the table, LOWEST: other draws of
the weights are tried from there on, so at a higher bound the table counts a few alarms that a first draw
would not have raised.
"""

import argparse
import csv
import math
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "parametrization"))

import trimtab
from structures import CASES
from trimtab.errors import TrimtabError
from trimtab.parametrization.proof import trial as proof
from trimtab.parametrization.proof import verdicts

SIZES = {"width x 4": (256, 2), "width x 16": (1024, 2), "depth x 4": (64, 8), "depth x 16": (64, 32)}
# A skip with a weight of its own, (1 - w) in every block, falls with depth whatever the branches do: no
# depth transfers.
NOT_RIGHT = {("lerp", "depth x 4"), ("lerp", "depth x 16")}
COLUMNS = (
    "model",
    "size",
    "draw",
    "kind",
    "entries",
    "change",
    "gradient",
    "low",
    "high",
    "scatter",
    "verdict",
)
LOWEST = 1.4
BOUNDS = (LOWEST, 1.5, 1.6, 1.7, 1.8, 2.0, 2.5)


def total_of(bound):
    """The bound of the total that goes with one of a kind."""
    return 1.5 if bound == 1.6 else 1 + 0.75 * (bound - 1)


def models(only):
    if only != "families":
        for name, case in CASES.items():
            yield name, case.build, case.example, case.overrides
    if only != "structures":
        from families import FAMILIES

        for name, (build, example, _, _) in FAMILIES.items():
            yield f"hf:{name}", build, example, None


def drawn(build, size, base, seed):
    torch.manual_seed(seed)
    return build(*size), build(*base)


def tried(build, example, overrides, size, base, draws, scheme="depth-mup", first=0):
    """Proofs of one model at one size: the first draw's plan, then other draws of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = proof_of = None
        for seed in range(first, first + draws):
            model, small = drawn(build, size, base, seed)
            if p is None:
                p = trimtab.parametrize(model, small, example=example, overrides=overrides, scheme=scheme)
                yield seed, p.proof
                continue
            proof_of = p.on(model)
            yield seed, proof.prove(proof_of, p._trial, model, small, rescaled=True)


def lines(name, size, seed, found):
    def off(value, wanted):
        return "" if value is None else f"{math.log(value / wanted):.4f}"

    for row in (*found.rows, *([found.total] if found.total else [])):
        gradient = off(row.gradient, row.wanted_gradient)
        more = [f"{math.log(x):.4f}" for x in row.span] + [f"{row.scatter:.4f}", row.verdict]
        yield name, size, seed, row.kind, row.entries, off(row.change, row.wanted), gradient, *more
    if found.total is None:
        yield name, size, seed, "total", 0, "", "", 0, 0, 0, f"untested: {found.reason}"


def measure(path, args):
    done = set()
    if Path(path).exists():
        done = {(r["model"], r["size"], int(r["draw"])) for r in rows(path)}
    with open(path, "a", newline="") as f:
        out = csv.writer(f)
        for size in args.sizes:
            for name, build, example, overrides in models(args.only):
                missing = [
                    k for k in range(args.first, args.first + args.draws) if (name, size, k) not in done
                ]
                if (args.names and name not in args.names) or not missing or (name, size) in NOT_RIGHT:
                    continue
                more = {"first": missing[0], "draws": len(missing)}
                try:
                    for seed, found in tried(build, example, overrides, SIZES[size], (64, 2), **more):
                        out.writerows(lines(name, size, seed, found))
                        f.flush()
                except TrimtabError as error:
                    said = str(error).splitlines()[0][:120]
                    out.writerow((name, size, missing[0], "refused", 0, "", "", 0, 0, 0, said))


def faults(path, args):
    """The planted faults of tests/parametrization/test_proof.py; one that is refused has no rows."""
    import pytest
    import test_proof

    planted = {} if args.only == "families" else dict(test_proof.PLANTED)
    if args.only != "structures":
        planted |= test_proof.PLANTED_IN_FAMILIES | test_proof.MISSED
    with open(path, "a", newline="") as f:
        for name, (plant, model, size) in planted.items():
            for seed in range(args.first, args.first + args.draws):
                with pytest.MonkeyPatch.context() as patch:
                    plant(patch)
                    try:
                        p = test_proof.planted(model, size, seed)
                    except TrimtabError:
                        continue
                csv.writer(f).writerows(lines(name, f"{model} {size}", seed, p.proof))
                f.flush()


def rows(path):
    with open(path) as f:
        return [dict(zip(COLUMNS, r, strict=True)) for r in csv.reader(f)]


def alarms(found, bound, total, few=64):
    """(model, size, draw) -> whether any kind of it is beyond the bound, or its total beyond its own."""
    said = {}
    for r in found:
        key = (r["model"], r["size"], r["draw"])
        said.setdefault(key, False)
        if r["verdict"].startswith(("untested", "not claimed", "far")) or not r["change"]:
            continue
        if r["kind"] != "total" and int(r["entries"]) < few:  # the verdict's own FEW
            continue
        low, high = float(r["low"]), float(r["high"])
        offs = [float(x) for x in (r["change"], r["gradient"]) if x]
        off = max(abs(x - min(max(x, low), high)) for x in offs) - verdicts.SURE * float(r["scatter"])
        said[key] |= off > math.log(total if r["kind"] == "total" else bound)
    return said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["measure", "faults", "table"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", choices=["structures", "families"])
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--sizes", nargs="*", default=["width x 4", "depth x 4"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    verdicts.BOUND, verdicts.TOTAL = LOWEST, total_of(LOWEST)
    if args.command == "measure":
        measure(args.paths[0], args)
    elif args.command == "faults":
        faults(args.paths[0], args)
    else:
        print(table(*args.paths))


def table(right, *faults):
    found = rows(right)
    missed = [r for path in faults for r in rows(path)]
    out = ['| bound | wrongly "wrong" | of | faults missed | of |', "|---|---|---|---|---|"]
    for bound in BOUNDS:
        total = total_of(bound)
        said, caught = alarms(found, bound, total), alarms(missed, bound, total)
        out.append(
            f"| {bound} (total {total:.3g}) | {sum(said.values())} | {len(said)} | "
            f"{sum(not v for v in caught.values())} | {len(caught)} |"
        )
    return "\n".join(out)


if __name__ == "__main__":
    main()
