"""`trimtab check`: the coordinate check from the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trimtab.coordinates.checks import check
from trimtab.errors import InputError, TrimtabError, faults
from trimtab.loading import beside, load
from trimtab.sweeps.store import Store

if TYPE_CHECKING:
    from trimtab.cli import Check

EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}
TIMES = (1, 2, 4, 8)


def checking(command: Check) -> int:
    """Run the check, print it, return the exit code."""
    problems: list[str] = []

    def found(spec: str) -> Any:
        try:
            return load(spec)
        except InputError as error:
            problems.append(str(error))
            return None

    build: Any = found(command.build)
    data: Any = found(command.data) if command.data else beside(command.build, "data") if build else None
    loss = found(command.loss) if command.loss else beside(command.build, "loss") if build else None
    own = ":" in command.optimizer
    optimizer = found(command.optimizer) if own else getattr(torch.optim, command.optimizer, None)
    if build is not None and data is None and not command.data:
        problems.append(f"data(step) is needed, a dict or (inputs, target): put it beside build in {command.build.rpartition(':')[0]}, or pass --data pkg.mod:function")
    if optimizer is None and not own:
        problems.append(f"optimizer must be a class in torch.optim, or pkg.mod:function for a set-up of your own: got {command.optimizer!r}")
    if command.figure is not None and not Path(command.figure).resolve().parent.is_dir():
        problems.append(f"figure must be in a folder that exists: got {command.figure}")
    store = None
    if command.store is not None:
        try:
            store = Store(command.store)
        except TrimtabError as error:
            problems.append(str(error))
    if problems:
        raise faults("trimtab check:", problems)
    assert build is not None and data is not None
    base = (command.base_width, command.base_depth)
    result = check(
        build,
        list(command.widths) or [base[0] * k for k in TIMES],
        list(command.depths) or [base[1] * k for k in TIMES],
        base=base,
        data=_of_step(data, whole=loss is not None),
        scheme=None if own else command.scheme,
        optimizer=optimizer,
        lr=command.lr,
        steps=command.steps,
        seeds=command.seeds,
        loss=loss,
        expect=(command.expect or "depth-mup") if own else command.expect,
        hyper={} if command.weight_decay is None else {"weight_decay": command.weight_decay},
        device=command.device,
        sharpness=command.sharpness,
    )
    if store is not None:
        store.attach("check", result.section())
    if command.figure is not None:
        result.figure().write_html(command.figure, include_plotlyjs=True)
    print(result.to_json() if command.json else result)
    return EXIT[result.verdict]


def _of_step(data: Callable[..., Any], *, whole: bool) -> Callable[[int], Any]:
    """A function of the step, also from data(split, seed, step).

    The latter is what a sweep takes, and there a loss is called with the whole batch: `whole` puts it in the target's place.
    """
    try:
        needed = [p for p in inspect.signature(data).parameters.values() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        return data
    if len(needed) != 3:
        return data

    def batch(step: int) -> Any:
        made = data("train", 0, step)
        return (made[0], tuple(made)) if whole and isinstance(made, list | tuple) and len(made) == 2 else made

    return batch
