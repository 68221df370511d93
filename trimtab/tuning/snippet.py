"""What was found, as Python that runs: build base and target, parametrize, make the optimizer, train.

The lines are made from the same `orders` as the table of groups, so that the two say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.errors import InputError
from trimtab.models.catalogue import fitting
from trimtab.runs.catalogue import is_own
from trimtab.runs.config import RunConfig
from trimtab.runs.published_models import fit_fields
from trimtab.runs.tasks import HF, open_task
from trimtab.runs.user_code import beside, source_file
from trimtab.tuning.target import orders

RATES = {
    "constant": ["    return 1.0"],
    "cosine": ["    return {floor} + {rest} * 0.5 * (1 + math.cos(math.pi * done))"],
    "linear": ["    return {floor} + {rest} * (1 - done)"],
    "step": ["    return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01"],
}


def write_snippet(config: RunConfig, horizon: Any = None, *, meta: bool = False) -> str:
    """The Python text.

    Args:
        config: the run at the target with the base's numbers.
        meta: the target is too large to be built here; the text builds it where it is run.
    """
    build, imports = _build(config)
    example, more = _example(config)
    assert config.base is not None
    options: dict[str, Any] = dict(scheme=config.scheme, gamma0=config.gamma0)
    if config.overrides:
        options["overrides"] = config.overrides
    if config.roles:
        options["roles"] = config.roles
    said = "".join(f", {key}={value!r}" for key, value in options.items())
    head = ["import math"] if config.schedule == "cosine" else []
    return "\n".join(
        [
            *head,
            *_sorted([*imports, *more, "import torch", "import trimtab"]),
            "",
            *build,
            *example,
            "torch.manual_seed(0)",
            f"base = build({config.base[0]}, {config.base[1]}, **options)",
            f"model = build({config.width}, {config.depth}, **options)",
            f"p = trimtab.parametrize(model, base, example=example{said})",
            *_optimizers(config, horizon),
            *_schedule(config, 1.0 if horizon is None else horizon.steps),
            *_update(config),
            "",
        ]
    )


def _sorted(lines: list[str]) -> list[str]:
    """Plain imports first, then those from somewhere, each once."""
    once = list(dict.fromkeys(lines))
    others = [line for line in once if not line.startswith(("import ", "from "))]
    plain = sorted(line for line in once if line.startswith("import "))
    return [*plain, *others, *sorted(line for line in once if line.startswith("from "))]


def _build(config: RunConfig) -> tuple[list[str], list[str]]:
    """(lines that define `build` and `options`, imports)."""
    c, options = config, dict(config.model_options)
    if c.model.startswith(HF):
        family = c.model.removeprefix(HF)
        source = open_task(c).source
        fields = options if source is None else fit_fields(family, source.shape, options)[0]
        imports = ["from trimtab.runs.published_models import load_published"]
        return [f"build, _ = load_published({family!r})", f"options = {fields!r}"], imports
    if is_own(c.model):
        imports, name = _import(c.model)
        lines = [f"build = {name}"] if name != "build" else []
        return [*lines, f"options = {options!r}"], imports
    source = open_task(c).source
    if source is not None:
        options = {**fitting(c.model, source.shape), **options}
    return [f"options = {options!r}"], [f"from trimtab.models.{c.model} import build"]


def _import(spec: str) -> tuple[list[str], str]:
    """Lines that import a user's function, and what it is called then."""
    place, _, name = spec.rpartition(":")
    top = name.split(".")[0]
    if not place.endswith(".py"):
        return [f"from {place} import {top}"], name
    found = source_file(place)
    if found is None:
        raise InputError(f"{place} must be there for the snippet: it was looked for and not found.")
    folder = str(found.resolve().parent)
    return ["import sys", f"sys.path.insert(0, {folder!r})", f"from {found.stem} import {top}"], name


def _example(config: RunConfig) -> tuple[list[str], list[str]]:
    """(lines that define `example`, the inputs of one forward; imports)."""
    c = config
    if is_own(c.model) and not c.model.startswith(HF) and beside(c.model, "example") is not None:
        imports, name = _import(c.model.rpartition(":")[0] + ":example")
        return [f"example = {name}()"], imports
    if is_own(c.data):
        imports, name = _import(c.data)
        given = "".join(f", {key}={value!r}" for key, value in c.data_options.items())
        lines = [f"batch = {name}('train', 0, 0{given})"]
        return [*lines, "example = batch if isinstance(batch, dict) else batch[0]"], imports
    opened = f"open_data({c.data!r}, {c.data_options!r})" if c.data_options else f"open_data({c.data!r})"
    line = f"example, _ = {opened}.batch('train', seed=0, step=0, size=8)"
    return [line], ["from trimtab.data.opening import open_data"]


def _optimizers(config: RunConfig, horizon: Any) -> list[str]:
    lines = []
    if horizon is not None:
        lines.append(f"horizon = trimtab.{horizon!r}")
    for order in orders(config):
        given: dict[str, Any] = {"lr": order.lr, **order.hyper}
        if order.only is not None:
            given["only"] = order.only
        said = "".join(f", {key}={value!r}" for key, value in given.items())
        more = ", horizon=horizon" if horizon is not None else ""
        lines.append(f"p.optimizer(torch.optim.{order.cls}{said}{more})")
    start = 1 if horizon is not None else 0
    made = [f"    {line}," for line in lines[start:]]
    return [*lines[:start], "optimizers = [", *made, "]"]


def _schedule(config: RunConfig, longer: float) -> list[str]:
    """The rate's schedule by fractions of the run, so that a longer run has the same shape."""
    c = config
    lines = [f"steps = {max(1, round(c.steps * longer))}"]
    if c.decay_schedule != "constant":
        lines.append(f"# the search had decay_schedule = {c.decay_schedule!r}: do it here, too")
    if c.schedule == "constant" and not c.warmup:
        return lines
    numbers: Mapping[str, float] = dict(floor=c.floor, rest=1 - c.floor)
    warm = [f"warmup = round({c.warmup / c.steps!r} * steps)"] if c.warmup else ["warmup = 0"]
    rise = ["    if step < warmup:", "        return (step + 1) / warmup"] if c.warmup else []
    body = ["    done = (step - warmup) / max(1, steps - warmup)"] if c.schedule != "constant" else []
    law = [line.format(**numbers) for line in RATES[c.schedule]]
    made = "schedules = [torch.optim.lr_scheduler.LambdaLR(o, rate) for o in optimizers]"
    return [*lines, *warm, "", "", "def rate(step):", *rise, *body, *law, "", "", made]


def _update(config: RunConfig) -> list[str]:
    """One update from a loss, to be called in the user's own loop."""
    clip = [f"    p.clip_grad_norm_({config.clip!r})"] if config.clip is not None else []
    scheduled = config.schedule != "constant" or bool(config.warmup)
    after = ["    for schedule in schedules:", "        schedule.step()"] if scheduled else []
    return [
        "",
        "",
        "def update(loss):  # call it with the loss of each batch",
        "    loss.backward()",
        *clip,
        "    for optimizer in optimizers:",
        "        optimizer.step()",
        "        optimizer.zero_grad()",
        *after,
    ]
