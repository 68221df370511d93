"""`trimtab check`: the coordinate check from the command line."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trimtab.commands.options import Number, Positional, Sizes, Text, got_class, whole_numbers
from trimtab.errors import Fault, InputError, TrimtabError, faults
from trimtab.files import write_text

if TYPE_CHECKING:
    from trimtab.commands.made_up import MadeUp
    from trimtab.sweeps.store import Store

EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}
TIMES = (1, 2, 4, 8)


@dataclasses.dataclass
class Check:
    """Coordinate check: do hyperparameters transfer over width and depth? Exit code 0 PASS, 1 FAIL, 3
    INCONCLUSIVE."""

    build: Positional[str]
    """Your `build(width, depth) -> nn.Module`, as pkg.mod:function or file.py:function; its module may have
    `data` and `loss`. Or a model type of transformers: hf:gpt2, hf:llama, ..."""
    base_width: int
    """Width of the model you tuned; depths are measured at it."""
    base_depth: int
    """Its depth; widths are measured at it."""
    widths: Sizes = ()
    """Widths to measure. Default: the base's times 1, 2, 4, 8."""
    depths: Sizes = ()
    """Depths to measure. Default: the base's times 1, 2, 4, 8."""
    data: Text = None
    """Your `data(split, seed, step)`, which returns (inputs, target) or a dict, if not `data` beside build.
    As in a sweep; the Python function's `data(step)` is taken too."""
    loss: Text = None
    """Your `loss(output, batch)`, if not `loss` beside build, nor cross-entropy. As in a sweep; beside
    `data(step)` it is `loss(output, target)`."""
    scheme: str = "depth-mup"
    """sp, ntk, mup, depth-mup or completep."""
    optimizer: str = "AdamW"
    """Class in torch.optim; or your own set-up `(model, width, depth) -> optimizer` as pkg.mod:function,
    measured as it is against --expect."""
    expect: Text = None
    """With an optimizer of your own: the scheme whose predictions it is measured against (default
    depth-mup)."""
    lr: float = 1e-3
    """Base learning rate."""
    weight_decay: Number = None
    """Base weight decay, if not the optimizer's default."""
    steps: int = 5
    """Training steps."""
    seeds: int = 3
    """Initialisations at every size."""
    sharpness: bool = False
    """Also follow the top eigenvalue of the Hessian."""
    device: Text = None
    """Where the models are put: auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["float32", "bf16"] = "float32"
    """Of training: bf16 is autocast over float32 weights."""
    figure: Text = None
    """Write the figure to this HTML file."""
    store: Text = None
    """Also keep it in this sweep's store: `trimtab report` then has a section on it."""
    json: bool = False
    """Print the check as JSON."""

    def run(self) -> int:
        """Run the check, print it, return the exit code."""
        from trimtab.coordinates.checks import check

        asked = validate(self)
        base, own = (self.base_width, self.base_depth), ":" in self.optimizer
        result = check(
            asked.build,
            asked.widths or [base[0] * k for k in TIMES],
            asked.depths or [base[1] * k for k in TIMES],
            base=base,
            data=asked.batches,
            scheme=None if own else self.scheme,
            optimizer=asked.optimizer,
            lr=self.lr,
            steps=self.steps,
            seeds=self.seeds,
            loss=asked.loss,
            expect=(self.expect or "depth-mup") if own else self.expect,
            hyper={} if self.weight_decay is None else {"weight_decay": self.weight_decay},
            device=self.device,
            precision=self.precision,
            sharpness=self.sharpness,
            progress=lambda words: print(words, file=sys.stderr, flush=True),
        )
        if asked.note:
            result = dataclasses.replace(result, notes=[asked.note, *result.notes])
        if asked.store is not None:
            asked.store.attach("check", result.section())
        print(result.to_json() if self.json else result)
        if self.figure is not None:
            write_text(self.figure, result.figure().to_html(include_plotlyjs=True))
        return EXIT[result.verdict]


@dataclasses.dataclass(frozen=True)
class Question:
    """The options of `trimtab check`, loaded and found right; `note` says what was made up for want of
    data."""

    build: Any
    widths: list[int]
    depths: list[int]
    batches: Callable[..., Any]
    loss: Any
    optimizer: Any
    store: Store | None
    note: str


def validate(options: Check) -> Question:
    """Load what the options name; every fault at once."""
    from trimtab.runs.devices import device_fault
    from trimtab.runs.tasks import HF
    from trimtab.runs.user_code import beside
    from trimtab.sweeps.store import Store

    problems: list[Fault | str] = []
    widths = _sizes("widths", options.widths, problems)
    depths = _sizes("depths", options.depths, problems)
    build = _load(options.build, problems)
    own = build is not None and not options.build.startswith(HF)
    data = _load(options.data, problems) if options.data else beside(options.build, "data") if own else None
    loss = _load(options.loss, problems) if options.loss else beside(options.build, "loss") if own else None
    optimizer = _optimizer(options.optimizer, problems)
    made = None
    if build is not None and data is None and not options.data and not (options.loss and loss is None):
        made = _make_up(options, build, loss, max(widths, default=0), problems)
    if options.figure is not None and not Path(options.figure).resolve().parent.is_dir():
        problems.append(f"figure must be in a folder that exists: got {options.figure}")
    elif options.figure is not None and not os.access(Path(options.figure).resolve().parent, os.W_OK):
        problems.append(f"figure must be in a folder that can be written: got {options.figure}")
    if (fault := device_fault(options.device)) is not None:
        problems.append(fault)
    store = None
    if options.store is not None:
        try:
            store = Store(options.store)
        except TrimtabError as error:
            problems.append(str(error))
    if problems:
        raise faults("trimtab check:", problems)
    if made is not None:
        return Question(build, widths, depths, made.data, made.loss, optimizer, store, made.words)
    assert data is not None
    return Question(build, widths, depths, data, loss, optimizer, store, "")


def _sizes(axis: str, values: Sequence[int | str], problems: list[Fault | str]) -> list[int]:
    try:
        return whole_numbers(axis, values)
    except InputError as error:
        problems.append(str(error))
        return []


def _load(spec: str, problems: list[Fault | str]) -> Any:
    from trimtab.runs.tasks import find_builder

    try:
        return find_builder(spec)
    except InputError as error:
        problems.append(str(error))
        return None


def _optimizer(name: str, problems: list[Fault | str]) -> Any:
    """A class in torch.optim, or the user's own function."""
    import torch

    if ":" in name:
        return _load(name, problems)
    found = getattr(torch.optim, name, None)
    if found is None:
        problems.append(
            "optimizer must be a class in torch.optim, or pkg.mod:function for a set-up of your own: "
            f"{got_class(name, dir(torch.optim))}"
        )
    return found


def _make_up(
    options: Check, build: Any, loss: Any, widest: int, problems: list[Fault | str]
) -> MadeUp | None:
    from trimtab.commands.made_up import make_up

    base = (options.base_width, options.base_depth)
    try:
        return make_up(options.build, build, loss, base, widest or base[0] * TIMES[-1])
    except TrimtabError as error:
        problems.append(str(error))
        return None
