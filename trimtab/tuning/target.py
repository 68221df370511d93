"""What to set at the target: numbers of each parameter group, from the parametrization itself.

    group = parameters of the target with equal (lr, weight decay, eps, init)

The target is built on the meta device where it is large: rates, decays and eps need no weights. `orders` says
which optimizers a run has; the table, the snippet and a run's own optimizers are three readings of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trimtab.errors import TrimtabError
from trimtab.parametrization.comparison.names import block_templates, shared_name
from trimtab.parametrization.planning import parametrize
from trimtab.parametrization.result import Parametrization
from trimtab.runs.config import RunConfig
from trimtab.runs.tasks import PLAN_SEED, Task, open_task, prepare
from trimtab.tuning.result import Group

LARGE = 2**26  # parameters: beyond, the target is not given weights here


@dataclass(frozen=True)
class Order:
    """One optimizer of a run: its class in torch.optim, and what it is called with."""

    cls: str
    lr: float
    only: str | None
    hyper: Mapping[str, Any]


def orders(config: RunConfig) -> list[Order]:
    """The optimizers of a run, as `runs.training` makes them.

    >>> [o.cls for o in orders(RunConfig(width=8, depth=2, lr=0.1, optimizer="muon"))]
    ['Muon', 'AdamW']
    """
    c = config
    adam = dict(betas=tuple(c.betas), eps=c.eps, weight_decay=c.weight_decay)
    if c.optimizer == "sgd":
        hyper = dict(momentum=c.momentum, nesterov=c.nesterov, weight_decay=c.weight_decay)
        return [Order("SGD", c.lr, None, hyper)]
    if c.optimizer in ("adam", "adamw"):
        return [Order({"adam": "Adam", "adamw": "AdamW"}[c.optimizer], c.lr, None, adam)]
    muon = dict(momentum=c.momentum or 0.95, weight_decay=c.weight_decay)
    rest = c.rest_lr or c.lr / 10
    return [Order("Muon", c.lr, "matrices", muon), Order("AdamW", rest, "rest", adam)]


def plan_target(config: RunConfig) -> tuple[Parametrization, nn.Module, bool]:
    """(the parametrization of the target, its model, whether that is on the meta device)."""
    task = open_task(config)
    with torch.device("meta"):
        try:
            model = task.build(config.width, config.depth)
        except (TrimtabError, NotImplementedError, RuntimeError):  # code that needs numbers to build
            model = None
    if model is None or sum(p.numel() for p in model.parameters()) <= LARGE:
        model = task.draw(config.width, config.depth, PLAN_SEED)
        return prepare(config).plan.on(model), model, False
    return _on_meta(task, config, model), model, True


def _on_meta(task: Task, config: RunConfig, model: nn.Module) -> Parametrization:
    assert config.base is not None
    base = task.draw(*config.base, PLAN_SEED)
    options: dict[str, Any] = dict(
        scheme=config.scheme,
        gamma0=config.gamma0,
        overrides=config.overrides or None,
        roles=config.roles or None,
    )
    return parametrize(model, base, example=task.example(), apply=False, **options)


def horizon_of(batch: float, tokens: float, rule: str) -> Any:
    """`trimtab.Horizon` for these ratios; None where they are 1."""
    if batch == 1 and tokens == 1:
        return None
    module = importlib.import_module("trimtab.parametrization.horizons.horizon")
    return module.Horizon(batch=batch, tokens=tokens, rule=rule)


def groups_at(plan: Parametrization, config: RunConfig, horizon: Any = None) -> list[Group]:
    """The parameter groups of the target with their numbers."""
    names = {id(p): name for name, p in plan.named_parameters().items()}
    out = []
    for order in orders(config):
        cls = getattr(torch.optim, order.cls)
        more = {} if horizon is None else {"horizon": horizon}
        for group in plan.groups(cls, order.lr, only=order.only, **order.hyper, **more):
            by_start: dict[float, list[str]] = {}
            for p in group["params"]:
                name = names[id(p)]
                by_start.setdefault(float(f"{plan[name].init:.12e}"), []).append(name)
            numbers = {**order.hyper, **group}
            out += [_group(order.cls, plan, numbers, init, found) for init, found in by_start.items()]
    return out


def _group(
    cls: str, plan: Parametrization, numbers: Mapping[str, Any], init: float, names: list[str]
) -> Group:
    kinds: dict[str, list[str]] = {}
    for name, called in block_templates(dict.fromkeys(names)).items():
        kinds.setdefault(called, []).append(name)
    shown = [shared_name(own) + (f" x {len(own)}" if len(own) > 1 else "") for own in kinds.values()]
    return Group(
        optimizer=cls,
        pattern=", ".join(shown),
        roles=tuple(dict.fromkeys(plan[name].role for name in names)),
        parameters=tuple(names),
        lr=float(numbers["lr"]),
        weight_decay=numbers.get("weight_decay"),
        eps=numbers.get("eps"),
        init=init,
        betas=numbers.get("betas"),
        momentum=numbers.get("momentum"),
    )


def step_flops(config: RunConfig) -> float | None:
    """Floating point operations of one training step; None where the model is too large to try here."""
    task = open_task(config)
    with torch.device("meta"):
        try:
            size = sum(p.numel() for p in task.build(config.width, config.depth).parameters())
        except (TrimtabError, NotImplementedError, RuntimeError):
            size = 0
    return None if size > LARGE else task.flops
