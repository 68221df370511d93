"""`trimtab explain`: what was found in a model and why, in words, and the table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from trimtab.errors import InputError, faults
from trimtab.parametrization.planning import parametrize
from trimtab.parametrization.result import Parametrization
from trimtab.runs.published import published
from trimtab.runs.user_code import beside, built, load, of_step
from trimtab.structure.inputs import cure, infer

if TYPE_CHECKING:
    from trimtab.cli import Explain

WHY = {
    "input": "its fan-in does not grow: it takes data, tokens or positions in",
    "hidden": "it maps one growing dimension to another: update over fan-in",
    "readout": "its fan-out does not grow: start and update both over fan-in",
    "elementwise": "it acts number by number: nothing is summed, so nothing is divided",
    "scalar": "a single number",
}


def explain(command: Explain) -> int:
    """Print roles, branches and factors of the user's model; returns the exit code."""
    problems = [
        f"{key} must be >= 1: got {value}"
        for key, value in (
            ("width", command.width),
            ("depth", command.depth),
            ("base-width", command.base_width),
            ("base-depth", command.base_depth),
        )
        if value < 1
    ]
    cls = getattr(torch.optim, command.optimizer, None)
    if cls is None:
        problems.append(f"optimizer must be a class in torch.optim: got {command.optimizer!r}")
    if (command.build is None) == (command.hf is None):
        problems.append("name one model: file.py:build (or pkg.mod:build), or --hf with a model type")
    if problems:
        raise InputError("\n".join(["trimtab explain:", *(f"  - {p}" for p in problems)]))
    said = ""
    if command.hf is not None:
        build, make = published(command.hf)
        with torch.device("meta"):
            model = built(build, command.width, command.depth)
        base = built(build, command.base_width, command.base_depth)
        example = make()
    else:
        build = load(command.build or "")
        make = load(command.example) if command.example else beside(command.build or "", "example")
        data = load(command.data) if command.data else beside(command.build or "", "data")
        if data is not None and (command.data or make is None):
            make = _inputs_of(data)
        model = built(build, command.width, command.depth)
        base = built(build, command.base_width, command.base_depth)
        example = _given(make)
        if make is None:
            example, said = _inferred(command.build or "", model, base)
    p = parametrize(model, base, scheme=command.scheme, example=example, apply=False)
    if said:
        print(said, file=sys.stderr if command.json else sys.stdout)
    print(p.to_json() if command.json else "\n".join(_lines(p, cls)))
    return 0


def _inputs_of(data: Callable[..., Any]) -> Callable[[], Any]:
    """The inputs of the first training batch: the data that check, train and sweep take serves here too."""

    def make() -> Any:
        batch = of_step(data)(0)
        return batch if isinstance(batch, dict) else batch[0]

    return make


def _given(make: Any) -> Any:
    try:
        return make() if make is not None else None
    except Exception as error:
        raise InputError(f"example() raised {type(error).__name__}: {error}.") from error


def _inferred(name: str, *models: torch.nn.Module) -> tuple[Any, str]:
    found = infer(*models)
    if found.example is None:
        raise faults("trimtab explain:", [cure(name, found, "--example", "example(), which returns them,")])
    return found.example, f"inputs were inferred: {found.words}; pass --example file.py:function to choose"


def _lines(p: Parametrization, cls: Any) -> list[str]:
    lines = ["found:"]
    for stack in dict.fromkeys(b.stack for b in p.branches):
        branches = [b for b in p.branches if b.stack == stack]
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(b.kind for b in branches).items())
        lines.append(
            f"  {stack}: {len(branches)} residual branches ({kinds}); the first ends in {', '.join(branches[0].tail) or 'nothing that folds'}: scaling that scales the branch"
        )
    if not p.branches:
        lines.append(
            "  no residual branches: no add of a value and something computed from it through a matrix"
        )
    for role, n in Counter(row.role for row in p.rows.values()).items():
        lines.append(f"  {n} {role}: {WHY[role]}")
    laws = Counter(row.law for row in p.rows.values() if row.law)
    lines.append(
        "  init laws measured against the base: "
        + (", ".join(f"{law} ({n})" for law, n in laws.items()) or "when the model has weights (p.apply)")
    )
    lines += ["", str(p), "", f"{cls.__name__} multiplies the base's hyperparameters by:"]
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, f in p.factors(cls).items():
        groups.setdefault((f["lr"], f["weight_decay"], f["eps"]), []).append(name)
    for (lr, decay, eps), names in sorted(groups.items(), reverse=True):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"  lr x {lr:<9.4g} decay x {decay:<9.4g} eps x {eps:<9.4g} {names[0]}{more}")
    return lines
