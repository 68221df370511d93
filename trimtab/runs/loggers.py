"""Where a run's numbers go while it trains: one small protocol, `log(step, metrics)`.

    log = "tensorboard:DIR"      a writer for each run in DIR/<run's name>       (pip install tensorboard)
    log = "wandb"                a Weights & Biases run, also "wandb:PROJECT"    (pip install wandb)
    log = "pkg.mod:function"     your own function(step, metrics); a parameter `run` gets the RunConfig

Metrics are {"loss", "lr"} after each step (loss before it, lr of the base), and {"test_loss", "accuracy"}
where the run is evaluated. Members of a fleet are logged when the fleet has ended, from their curves. Where a
run is logged changes nothing of it, so `log` is no part of its name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import InputError
from trimtab.runs.config import RunConfig, rate
from trimtab.runs.results import RunResult
from trimtab.runs.user_code import load

Logger = Callable[[int, Mapping[str, float]], None]


@contextlib.contextmanager
def open_logger(config: RunConfig) -> Iterator[Logger | None]:
    """The logger that a run's configuration names, closed at the end; None: it names none.

    Raises:
        InputError: its package is not installed, or the function is not found.
    """
    if config.log is None:
        yield None
        return
    kind, _, rest = config.log.partition(":")
    if kind == "tensorboard":
        writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(Path(rest or "runs") / name_of(config))
        )
        try:
            yield functools.partial(_write_scalars, writer)
        finally:
            writer.close()
    elif kind == "wandb":
        run = _package("wandb", "wandb").init(
            project=rest or "trimtab",
            name=name_of(config),
            id=config.hash,
            resume="allow",
            config=config.model_dump(mode="json"),
            reinit="finish_previous",
        )
        try:
            yield lambda step, metrics: run.log(dict(metrics), step=step)
        finally:
            run.finish()
    else:
        yield _own(load(config.log), config)


def name_of(config: RunConfig) -> str:
    """A run's name in a log: what tells it apart at a glance, then its hash.

    >>> name_of(RunConfig(width=32, depth=3, lr=0.1, steps=10))[:-17]
    'mlp-w32-d3-depth-mup-lr0.1-seed0'
    """
    model = "".join(c if c.isalnum() else "_" for c in config.model)
    numbers = f"w{config.width}-d{config.depth}-{config.scheme}-lr{config.lr:g}-seed{config.seed}"
    return f"{model}-{numbers}-{config.hash}"


def replay(config: RunConfig, result: RunResult) -> None:
    """Log a run that has ended, from its curves."""
    with open_logger(config) as log:
        if log is None:
            return
        curves = result.curves
        tests = zip(curves.get("test_loss", ()), curves.get("accuracy", ()), strict=True)
        found = dict(zip(curves.get("test_step", ()), tests, strict=True))
        for step, loss in enumerate(curves["loss"].tolist()):  # in order: wandb drops a step that goes back
            metrics = {"loss": loss, "lr": config.lr * rate(step, config)}
            log(step + 1, metrics | (evaluation(*found[step + 1]) if step + 1 in found else {}))


def evaluation(loss: float, accuracy: float | None) -> dict[str, float]:
    """The metrics of an evaluation; an accuracy that is not known is left out.

    >>> evaluation(1.5, None)
    {'test_loss': 1.5}
    """
    found = {"test_loss": float(loss)}
    known = accuracy is not None and accuracy == accuracy  # a curve has NaN where there is none
    return found | ({"accuracy": float(accuracy)} if known and accuracy is not None else {})


def _write_scalars(writer: Any, step: int, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        writer.add_scalar(name, value, step)


def _own(function: Callable[..., Any], config: RunConfig) -> Logger:
    try:
        takes_run = "run" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        takes_run = False
    return functools.partial(function, run=config) if takes_run else function


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"log = '{package}' needs {package}, which is not installed: pip install {package}."
        ) from error
