"""Trainers that make or remake the optimizer: what they erase is an error at the first step.

    with guard(p): trainer.fit(...)                any trainer: optimizers of p's parameters are checked
    class Mine(HuggingFace, transformers.Trainer)  a Trainer that builds its optimizer and clips by the plan

A trainer that builds a plain AdamW from `model.parameters()`, or merges the groups it was given, trains on
without a word and ends at a worse loss. `guard` uses torch's own hook before every optimizer step, so it
knows no trainer by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from trimtab.errors import OptimizerError
from trimtab.parametrization.result import Parametrization

FIRST = 3  # steps of each optimizer that are all checked; a warmup's first step has rate 0


@contextmanager
def guard(p: Parametrization, model: nn.Module | None = None, *, every: int = 100) -> Iterator[None]:
    """Check every optimizer that steps the plan's parameters, while the block runs.

    Args:
        p: the plan of the model that is trained.
        model: the wrapped model, where a trainer replaces its parameters (FSDP2) and builds the optimizer
            itself.
        every: steps between checks after the first three of each optimizer.

    Raises:
        OptimizerError: the factors are not in an optimizer's groups, before it makes a step; or, at the end
            of the block, optimizers made steps and none of them held a parameter of the plan.

    >>> import torch, trimtab
    >>> build = lambda n: nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 2))
    >>> model = build(64)
    >>> p = trimtab.parametrize(model, build(16), example=torch.randn(2, 4))
    >>> with guard(p):
    ...     torch.optim.AdamW(model.parameters()).step()
    Traceback (most recent call last):
    trimtab.errors.OptimizerError: ...
    """
    steps: dict[int, int] = {}
    strangers: set[str] = set()

    def look(optimizer: Optimizer, *_: Any) -> None:
        known = set(p._names()) | ({id(q) for q in p.named_parameters(model).values()} if model else set())
        if not any(id(q) in known for group in optimizer.param_groups for q in group["params"]):
            strangers.add(type(optimizer).__name__)
            return
        made = steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1
        if made <= FIRST or made % every == 0:
            p.check(optimizer)

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
    if strangers and not steps:
        raise OptimizerError(
            f"an optimizer must step the parameters of the plan: {', '.join(sorted(strangers))} made steps "
            "and held none of them. Where a wrapper replaces parameters, pass guard(p, model=wrapped) and "
            "build with p.optimizer(..., model=wrapped)."
        )


class HuggingFace:
    """Put before `transformers.Trainer`: its optimizer gets the plan's groups, its clipping the plan's norm.

    The learning rate, betas, eps, weight decay and what is exempt from decay are those of the
    `TrainingArguments`, as tuned on the base. A plain AdamW cannot come about: an optimizer that is handed in
    is checked before its first step.

        class Mine(trimtab.trainers.HuggingFace, transformers.Trainer):
            pass

        trainer = Mine(model=model, args=args, train_dataset=data, parametrization=p)
    """

    def __init__(self, *args: Any, parametrization: Parametrization, **more: Any):
        from transformers import TrainerCallback

        super().__init__(*args, **more)
        self.parametrization = p = parametrization
        limit, self.args.max_grad_norm = self.args.max_grad_norm, 0.0  # the plan clips instead

        class Guard(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any):
                p.check(given["optimizer"])

            def on_pre_optimizer_step(
                self,
                args: Any,
                state: Any,
                control: Any,
                model: Any = None,
                optimizer: Any = None,
                **more: Any,
            ):
                if limit:
                    p.clip_grad_norm_(limit, model=model)
                if state.global_step < FIRST:
                    p.check(optimizer)

        self.add_callback(Guard())

    args: Any
    model: Any
    optimizer: Any
    add_callback: Any
    get_decay_parameter_names: Any
    get_optimizer_cls_and_kwargs: Any

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The Trainer's own optimizer class and numbers, on the plan's groups."""
        if self.optimizer is None:
            given = self.model if model is None else model
            decayed = set(self.get_decay_parameter_names(given))
            cls, numbers = self.get_optimizer_cls_and_kwargs(self.args, given)
            self.optimizer = self.parametrization.optimizer(
                cls,
                model=given,
                weight_decay=self.args.weight_decay,
                no_decay=lambda row: row.name not in decayed,
                **numbers,
            )
        return self.optimizer
