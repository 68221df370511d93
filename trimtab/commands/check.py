"""`trimtab check`: the coordinate check from the command line."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.coordinates.checks import check
from trimtab.coordinates.watching import output_of
from trimtab.errors import InputError, TrimtabError, faults
from trimtab.runs.setup import device_fault
from trimtab.runs.user_code import beside, built, by_split, load, of_step
from trimtab.structure.inputs import cure, infer
from trimtab.structure.recording import as_call, untouched
from trimtab.sweeps.store import Store

if TYPE_CHECKING:
    from trimtab.cli import Check

EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}
TIMES = (1, 2, 4, 8)
BATCH = 16  # examples of a batch that is made up; four times as many vectors


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
    data: Any = found(command.data) if command.data else (beside(command.build, "data") if build else None)
    loss = found(command.loss) if command.loss else beside(command.build, "loss") if build else None
    own = ":" in command.optimizer
    optimizer = found(command.optimizer) if own else getattr(torch.optim, command.optimizer, None)
    made: Made | None = None
    if build is not None and data is None and not command.data and not (command.loss and loss is None):
        try:
            made = _made_up(command, build, loss)
        except TrimtabError as error:
            problems.append(str(error))
    if optimizer is None and not own:
        problems.append(
            f"optimizer must be a class in torch.optim, or pkg.mod:function for a set-up of your own: got {command.optimizer!r}"
        )
    if command.figure is not None and not Path(command.figure).resolve().parent.is_dir():
        problems.append(f"figure must be in a folder that exists: got {command.figure}")
    if (fault := device_fault(command.device)) is not None:
        problems.append(fault)
    store = None
    if command.store is not None:
        try:
            store = Store(command.store)
        except TrimtabError as error:
            problems.append(str(error))
    if problems:
        raise faults("trimtab check:", problems)
    assert build is not None
    if made is not None:
        loss, batches = made.loss, made.data
    else:
        assert data is not None
        batches = _of_step(data, whole=loss is not None)
    base = (command.base_width, command.base_depth)
    result = check(
        build,
        list(command.widths) or [base[0] * k for k in TIMES],
        list(command.depths) or [base[1] * k for k in TIMES],
        base=base,
        data=batches,
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
        progress=lambda words: print(words, file=sys.stderr, flush=True),
    )
    if made is not None:
        result = dataclasses.replace(result, notes=[made.words, *result.notes])
    if store is not None:
        store.attach("check", result.section())
    if command.figure is not None:
        result.figure().write_html(command.figure, include_plotlyjs=True)
    print(result.to_json() if command.json else result)
    return EXIT[result.verdict]


class Made(NamedTuple):
    """Data that was made up: one batch at every step, the loss that goes with it, and what they are, in words."""

    data: Callable[[int], Any]
    loss: Any
    words: str


def _made_up(command: Check, build: Any, loss: Any) -> Made:
    """Random inputs and random targets, shaped by the model, for a check without data."""
    base = built(build, command.base_width, command.base_depth)
    wider = built(build, max(command.widths, default=command.base_width * TIMES[-1]), command.base_depth)
    found = infer(base, wider, batch=BATCH)
    if found.example is None:
        raise InputError(
            cure(command.build, found, "--data", "data(step), which returns (inputs, target) or a dict,")
        )
    if found.words.startswith("vectors"):
        found = infer(base, wider, batch=4 * BATCH)
    args, kwargs = as_call(found.example)
    with untouched(base, training=False):
        output = output_of(base(*args, **kwargs))
    target, chosen, words = _target(output, loss)
    said = f"there is no data: inputs were inferred ({found.words}), targets are {words}, one batch at every step; "
    batch = (found.example, target)
    return Made(lambda step: batch, chosen, said + "pass --data file.py:function to choose")


def _target(output: Tensor, loss: Any) -> tuple[Tensor, Any, str]:
    """Random targets that a loss takes with an output of this shape."""
    generator = torch.Generator().manual_seed(1)
    axis = 1 if output.ndim > 3 else output.ndim - 1
    shape = [n for i, n in enumerate(output.shape) if i != axis]
    classes = torch.randint(0, output.shape[axis], shape, generator=generator)
    numbers = torch.randn(output.shape, generator=generator)
    kinds = {"random classes": classes, "random numbers": numbers}
    if loss is None and output.shape[axis] > 1:
        return classes, None, f"{output.shape[axis]} random classes (cross-entropy)"
    if loss is None:
        return numbers, functional.mse_loss, "random numbers (mean squared error)"
    for words, target in kinds.items():
        try:
            if torch.isfinite(loss(output, target)).all():
                return target, loss, words
        except Exception:  # the other kind may do
            continue
    raise InputError(
        f"the loss takes neither random classes of shape {tuple(classes.shape)} nor numbers of shape {tuple(output.shape)}: "
        "write data(step), which returns (inputs, target) or a dict, beside build, or pass --data file.py:function"
    )


def _of_step(data: Callable[..., Any], *, whole: bool) -> Callable[[int], Any]:
    """A function of the step, also from data(split, seed, step).

    The latter is what a sweep takes, and there a loss is called with the whole batch: `whole` puts it in the target's place.
    """
    made = of_step(data)
    if not whole or not by_split(data):
        return made

    def batch(step: int) -> Any:
        one = made(step)
        return (one[0], tuple(one)) if isinstance(one, list | tuple) and len(one) == 2 else one

    return batch
