"""Models of other packages at 2x and 4x of their width and depth: right, or refused with advice that works.

    python experiments/foreign_models.py measure experiments/foreign.csv [--group NAME] [--model NAME]
    python experiments/foreign_models.py table experiments/foreign.csv docs/families.md

`measure` needs x-transformers, diffusers, torch_geometric and transformers on the path, and resumes. Each
cell plans one size, says what the proof by one step said, and trains five steps of AdamW on a fixed batch
beside the base: how far features (what the last layer with a matrix reads) and outputs moved, and how much
the loss fell, over the base's. That measurement knows nothing of the plan. Where there is a refusal, what
it suggests is passed as it stands, and measured in the same way.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import importlib
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from foreign.batches import Foreign, call, without_chance

import trimtab
from trimtab.errors import TrimtabError

GROUPS = {
    "x-transformers": "x_transformers_models",
    "diffusers": "diffusers_models",
    "torch_geometric": "geometric_models",
    "modded-nanogpt": "speedrun_models",
    "transformers": "transformers_models",
}
STEPS, LR, SEEDS = 5, 3e-4, 2
CELL = ["group", "model", "scheme", "axis", "factor"]
FOUND = ["seeds", "outcome", "verdict", "features", "outputs", "loss", "wrong"]
COLUMNS = [*CELL, *FOUND, "refusal", "suggestion", "passed", "seconds"]


def built(f: Foreign, size: tuple[int, int], seed: int) -> nn.Module:
    """A draw without dropout, in training mode."""
    torch.manual_seed(seed)
    return without_chance(f.build(*size)).train()


def moved(model: nn.Module, optimizer: torch.optim.Optimizer, f: Foreign) -> Tensor:
    """RMS change of features (over their size) and outputs, and the fall of the loss, after a few steps."""
    read: dict[str, Any] = {}

    def last(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            read["features"] = args[0].detach().clone()

    hooks = [
        m.register_forward_pre_hook(last)
        for m in model.modules()
        if any(p.ndim > 1 for p in m.parameters(recurse=False))
    ]

    def look() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            out = call(model, f.batch)
        return read.get("features", out), out, f.loss(out)

    start = look()
    for _ in range(STEPS):
        optimizer.zero_grad()
        f.loss(call(model, f.batch)).backward()
        optimizer.step()
    end = look()
    for hook in hooks:
        hook.remove()
    rms = [x.double().square().mean().sqrt() for x in (end[0] - start[0], start[0], end[1] - start[1])]
    return torch.tensor([rms[0] / rms[1], rms[2], start[2] - end[2]])  # tied heads scale their features


@functools.cache
def moved_base(f: Foreign, seed: int) -> Tensor:
    """`moved` of the base under plain torch, which the plan must leave as it is."""
    base = built(f, f.base, seed)
    return moved(base, torch.optim.AdamW(base.parameters(), lr=LR, weight_decay=0.0), f)


def tried(f: Foreign, size: tuple[int, int], options: dict[str, Any], seeds: int) -> dict[str, Any]:
    """One size planned and trained: what the proof says, and the change over the base's."""
    change, row = torch.zeros(2, 3), dict[str, Any]()
    verdicts, wrong = [], ""
    for seed in range(seeds):
        model, base = built(f, size, seed), built(f, f.base, seed + 100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p = trimtab.parametrize(model, base, example=f.batch, **options)
        verdicts.append(p.proof.verdict)
        wrong = wrong or "; ".join(str(w) for w in p.proof.wrong[:2])
        change[0] += moved(model, p.optimizer(torch.optim.AdamW, lr=LR, weight_decay=0.0), f)
        change[1] += moved_base(f, seed + 100)
    ratios = (change[0] / change[1]).tolist()
    row.update(zip(("features", "outputs", "loss"), (f"{r:.3f}" for r in ratios), strict=True))
    row.update(verdict="wrong" if "wrong" in verdicts else verdicts[0], wrong=wrong)
    return row


def cell(f: Foreign, scheme: str, axis: str, factor: int, seeds: int) -> dict[str, Any]:
    """One line of the table of results."""
    n, depth = f.base
    size = (n * factor, depth) if axis == "width" else (n, depth * factor)
    row: dict[str, Any] = dict(
        group=f.group, model=f.name, scheme=scheme, axis=axis, factor=factor, seeds=seeds
    )
    start = time.perf_counter()
    try:
        row.update(tried(f, size, dict(scheme=scheme), seeds), outcome="planned")
    except TrimtabError as error:
        row.update(outcome="refused", refusal=str(error), **followed(f, size, scheme, seeds, error))
    except Exception as error:  # a fault of ours or of theirs: the line says which
        row.update(outcome="crashed", refusal=f"{type(error).__name__}: {error}")
    return row | dict(seconds=f"{time.perf_counter() - start:.1f}")


def followed(
    f: Foreign, size: tuple[int, int], scheme: str, seeds: int, error: TrimtabError
) -> dict[str, Any]:
    """What a refusal's advice gives: overrides or a scheme as they stand in the error, or the model as the
    refusal says to build it."""
    suggestion, other = getattr(error, "suggestion", None), getattr(error, "scheme", None)
    options: dict[str, Any] = dict(scheme=scheme)
    if suggestion:
        options, passed = options | dict(overrides=suggestion), "overrides"
    elif other:
        options, passed = dict(scheme=other), other
    elif f.told is not None:
        f, passed = dataclasses.replace(f, build=f.told, told=None), "model"
    else:
        return {}
    try:
        return tried(f, size, options, seeds) | dict(passed=passed, suggestion=suggestion or "")
    except TrimtabError as further:
        return dict(passed=f"refused again: {further}")


def models(group: str | None, name: str | None) -> Iterator[Foreign]:
    """Those asked for."""
    for key, module in GROUPS.items():
        if group in (None, key):
            for f in importlib.import_module(f"foreign.{module}").MODELS:
                if name in (None, f.name):
                    yield f


def measure(
    path: Path, group: str | None, name: str | None, scheme: str, seeds: int, factors: list[int]
) -> None:
    """Fill the file with the cells that it does not have yet."""
    torch.set_num_threads(1)
    done = set()
    if path.exists():
        with path.open() as file:
            done = {tuple(r[k] for k in CELL) for r in csv.DictReader(file)}
    for f in models(group, name):
        for factor in factors:
            for axis in ("width", "depth"):
                key = (f.group, f.name, scheme, axis, str(factor))
                if key in done or axis in f.skip:
                    continue
                row = cell(f, scheme, axis, factor, seeds)
                new = not path.exists()
                with path.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
                    if new:
                        writer.writeheader()
                    writer.writerow(row)
                print(
                    *(row.get(k, "") for k in ("group", "model", "axis", "factor", "outcome", "verdict")),
                    *(row.get(k, "") for k in ("features", "outputs", "loss", "passed", "seconds")),
                    flush=True,
                )


# -- the table -----------------------------------------------------------------------------------------------

START, END = "<!-- foreign: start -->", "<!-- foreign: end -->"
FLAT = 1.5  # a change beyond this factor of the base's, either way, is not flat: 4^0.3, as slopes within 0.3
HEAD = """## Other packages, and further families

Models of x-transformers, diffusers and torch_geometric, the ideas of modded-nanogpt written as plain torch,
and families of `transformers` that the tests do not hold: bases 64 wide (32 channels for image models), 2 or
4 blocks, {factors} wider and deeper, {schemes}. Generated by `experiments/foreign_models.py` from
`experiments/foreign.csv`.

A cell is one model at one size. *Flat*: five steps of AdamW change the outputs by {flat:.2f} to {flat_:.2f}
of what they change in the base, measured without knowing the plan. One draw, or two (`seeds` in the file);
a cell that was not flat in them was measured with three, and only such cells were. *Proof*: what
the plan says of itself (`p.proof`). *Silently wrong* would be a cell whose proof is good and that is not
flat. *Refused*: what the refusal suggests (overrides, a scheme) was passed as it stands, or the model built
as it says, and measured in the same way; scheme="mup" leaves depth alone, so over depth nothing is flat by
it. *Refused* alone: nothing to pass.

"""


def kind_of(row: dict[str, str]) -> str:
    """What a cell counts as."""
    if row["outcome"] == "crashed":
        return "crashed"
    if row["outcome"] == "refused":
        ways = {
            "overrides": "refused, override works",
            "mup": 'refused, scheme="mup" works',
            "model": "refused, the model it asks for works",
        }
        return ways.get(row["passed"], "refused" if not row["passed"] else "refused, advice fails")
    flat = 1 / FLAT <= float(row["outputs"]) <= FLAT
    if row["verdict"] == "wrong":
        return "flat, proof doubts it" if flat else "not flat, proof says so"
    return "right" if flat else "silently wrong"


ORDER = [
    "right",
    "flat, proof doubts it",
    "not flat, proof says so",
    "refused, override works",
    'refused, scheme="mup" works',
    "refused, the model it asks for works",
    "refused",
    "refused, advice fails",
    "crashed",
    "silently wrong",
]


def table(path: Path, page: Path) -> None:
    """Write counts and rows between the markers of a page, at its end where it has none."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    factors = " and ".join(f"{k}x" for k in sorted({row["factor"] for row in rows}))
    schemes = " and ".join(sorted({row["scheme"] for row in rows}))
    lines = [START, HEAD.format(factors=factors, schemes=schemes, flat=1 / FLAT, flat_=FLAT)]
    lines += ["| package | models | cells | " + " | ".join(ORDER) + " |", "|---" * (3 + len(ORDER)) + "|"]
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        counts = [sum(kind_of(row) == kind for row in own) for kind in ORDER]
        lines.append(
            f"| {group} | {len({r['model'] for r in own})} | {len(own)} | "
            + " | ".join(map(str, counts))
            + " |"
        )
    lines += [
        "",
        "| package | model | axis | factor | verdict | outputs | loss | of the proof or the refusal |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    lines += [_line(row) for row in rows]
    text = "\n".join([*lines, END])
    old = page.read_text()
    before, _, rest = old.partition(START)
    after = rest.partition(END)[2]
    page.write_text(before.rstrip("\n") + "\n\n" + text + (after or "\n"))


def _line(row: dict[str, str]) -> str:
    why = row["refusal"].split("\n")
    said = " ".join(why[:2]) if row["outcome"] != "planned" else row["wrong"].split(": its ")[0]
    said = said.replace("|", "/").replace("  - ", "")
    scheme = "" if row["scheme"] == "depth-mup" else f" ({row['scheme']})"
    cells = [row["group"], row["model"] + scheme, row["axis"], row["factor"], kind_of(row)]
    return "| " + " | ".join([*cells, row["outputs"], row["loss"], said[:160]]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=["measure", "table"])
    parser.add_argument("path", type=Path)
    parser.add_argument("page", type=Path, nargs="?", default=Path("docs/families.md"))
    parser.add_argument("--group")
    parser.add_argument("--model")
    parser.add_argument("--scheme", default="depth-mup")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--factors", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    if options.job == "table":
        table(options.path, options.page)
        return
    measure(options.path, options.group, options.model, options.scheme, options.seeds, options.factors)


if __name__ == "__main__":
    main()
