"""How far correct plans scatter in the proof by one step, and which bound tells them from faults:
docs/proof.md.

python experiments/proof_scatter.py measure rows.csv [--draws 3] [--only structures|families] [--names gpt2
...]
python experiments/proof_scatter.py faults faults.csv         the planted faults of the tests, one draw each
python experiments/proof_scatter.py table rows.csv faults.csv  alarms and misses by bound, for docs/proof.md

A plan is read once for each model and size; each further draw is rescaled by the laws found (`p.on`) and
tried again.
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

SIZES = {"width x 4": (256, 2), "width x 16": (1024, 2), "depth x 4": (64, 8), "depth x 16": (64, 32)}
# A skip with a weight of its own, (1 - w) in every block, falls with depth whatever the branches do: no
# depth transfers.
NOT_RIGHT = {("lerp", "depth x 4"), ("lerp", "depth x 16")}
COLUMNS = ("model", "size", "draw", "kind", "entries", "change", "gradient", "verdict")
BOUNDS = (1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 2.0, 2.5)


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


def tried(build, example, overrides, size, base, draws, scheme="depth-mup"):
    """Proofs of one model at one size: the first draw's plan, then other draws of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = proof_of = None
        for seed in range(draws):
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
        yield name, size, seed, row.kind, row.entries, off(row.change, row.wanted), gradient, row.verdict
    if found.total is None:
        yield name, size, seed, "total", 0, "", "", f"untested: {found.reason}"


def measure(path, draws, only, names, sizes):
    done = set()
    if Path(path).exists():
        with open(path) as f:
            done = {(r[0], r[1]) for r in csv.reader(f)}
    with open(path, "a", newline="") as f:
        out = csv.writer(f)
        for size in sizes:
            for name, build, example, overrides in models(only):
                if (names and name not in names) or (name, size) in done or (name, size) in NOT_RIGHT:
                    continue
                try:
                    for seed, found in tried(build, example, overrides, SIZES[size], (64, 2), draws):
                        out.writerows(lines(name, size, seed, found))
                except TrimtabError as error:
                    out.writerow((name, size, 0, "refused", 0, "", "", str(error).splitlines()[0][:120]))
                f.flush()


def faults(path):
    """The planted faults of tests/parametrization/test_proof.py; one that is refused has no rows."""
    import pytest
    import test_proof

    with open(path, "w", newline="") as f:
        for name, (plant, model, size) in test_proof.PLANTED.items():
            case = CASES[model]
            with pytest.MonkeyPatch.context() as patch:
                plant(patch)
                try:
                    more = {"example": case.example, "overrides": case.overrides}
                    p = test_proof.proven(case.build, size, **more)
                except TrimtabError:
                    continue
            csv.writer(f).writerows(lines(name, str(size), 0, p.proof))


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
        off = max(abs(float(r["change"])), abs(float(r["gradient"] or 0)))
        said[key] |= off > math.log(total if r["kind"] == "total" else bound)
    return said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["measure", "faults", "table"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", choices=["structures", "families"])
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--sizes", nargs="*", default=["width x 4", "depth x 4"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "measure":
        measure(args.paths[0], args.draws, args.only, args.names, args.sizes)
    elif args.command == "faults":
        faults(args.paths[0])
    else:
        print(table(*args.paths))


def table(right, *faults):
    found = rows(right)
    missed = [r for path in faults for r in rows(path)]
    out = ['| bound | wrongly "wrong" | of | faults missed | of |', "|---|---|---|---|---|"]
    for bound in BOUNDS:
        total = 1 + 0.75 * (bound - 1)
        said, caught = alarms(found, bound, total), alarms(missed, bound, total)
        out.append(
            f"| {bound} (total {total:.3g}) | {sum(said.values())} | {len(said)} | "
            f"{sum(not v for v in caught.values())} | {len(caught)} |"
        )
    return "\n".join(out)


if __name__ == "__main__":
    main()
