"""One run: RunConfig -> RunResult.

    for step in range(steps):   theta <- optimizer(theta, grad loss(model(batch(seed, step))), lr *
    rate(step))

Deterministic: the start is a function of (config, seed), each batch and each dropout mask of (seed, step). A
run resumed from a checkpoint is bitwise the uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from trimtab.errors import TrimtabError
from trimtab.runs.carrying import horizon_of
from trimtab.runs.checkpoints import Keeper, keeper
from trimtab.runs.config import RunConfig, decay, rate
from trimtab.runs.loggers import evaluation, open_logger
from trimtab.runs.losses import count_correct, length
from trimtab.runs.results import RunResult, Tested, conclude, has_diverged
from trimtab.runs.tasks import Task, prepare

__all__ = ["Interrupted", "RunConfig", "RunResult", "run"]


class Interrupted(TrimtabError):
    """The run was asked to stop; its checkpoint is written."""


def run(
    config: RunConfig,
    *,
    checkpoint: Path | str | Keeper | None = None,
    every: float = 30.0,
    progress: Callable[[int, float, float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Train once.

    Args:
        checkpoint: file to resume from and to write to, or another keeper; removed by the caller when the
            result is safe.
        every: seconds between checkpoints.
        progress: called after each step with (step, loss, learning rate of the base).
        stop: asked before each step; when it says yes the run is checkpointed and `Interrupted` is raised.

    >>> result = run(RunConfig(width=32, depth=3, lr=0.1, steps=30))
    >>> result.state, result.train_loss < result.initial_loss
    ('done', True)
    """
    return Run(config, checkpoint).go(every, progress, stop)


class Run:
    """A run under way: model, optimizers and curves, which is what a checkpoint holds."""

    def __init__(self, config: RunConfig, checkpoint: Path | str | Keeper | None = None):
        self.config = config
        self.task: Task = prepare(config)
        self.keeper = keeper(checkpoint)
        self.model, self.plan = self.task.begin(config.seed)
        self.model.train()
        self.optimizers = _optimizers(config, self.plan)
        self.rates = [
            [(group, group["lr"], group.get("weight_decay", 0.0)) for group in o.param_groups]
            for o in self.optimizers
        ]
        self.losses: list[float] = []
        self.tests: list[Tested] = []
        self.seconds = 0.0
        self.said: list[str] = []
        if self.keeper is not None:
            state, self.said = self.keeper.load()
            if state is not None and state["config"] == config.hash:
                self._restore(state)
            elif state is not None:
                self.said.append(
                    f"the checkpoint {self.keeper.name} is of another configuration: this run begins anew "
                    "and will replace it."
                )
        self.callable: Any = torch.compile(self.model) if config.compile else self.model

    def go(
        self,
        every: float,
        progress: Callable[[int, float, float], None] | None,
        stop: Callable[[], bool] | None,
    ) -> RunResult:
        config, saved = self.config, time.perf_counter()
        self._begun, self._should_stop = saved, stop or (lambda: False)
        with torch.random.fork_rng(devices=[]), open_logger(config) as log:
            self._evaluate(len(self.losses))  # what a stop cut short
            for step in range(len(self.losses), config.steps):
                if self._should_stop():
                    self._leave()
                loss = self.step(step)
                self.losses.append(loss)
                if has_diverged(loss, self.losses[0]):
                    break
                if progress is not None:
                    progress(step, loss, config.lr * rate(step, config))
                self._evaluate(step + 1)
                if log is not None:
                    metrics = {"loss": loss, "lr": config.lr * rate(step, config)}
                    log(step + 1, metrics | self._evaluation(step + 1))
                due = time.perf_counter() - saved > every and step + 1 < config.steps
                if self.keeper is not None and due:
                    self.save()
                    saved = time.perf_counter()
        if config.device.startswith("cuda"):
            torch.cuda.synchronize()
        return conclude(
            self.losses,
            self.tests,
            steps=config.steps,
            seconds=self._elapsed(),
            flops_per_step=self.task.flops,
        )

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._begun

    def _leave(self) -> NoReturn:
        self.save()
        raise Interrupted(f"stopped before step {len(self.losses)} of {self.config.steps}.")

    def _evaluate(self, step: int) -> None:
        """Evaluate if it is time to and has not been done at this step."""
        c = self.config
        due = step == c.steps or (c.eval_every and step and step % c.eval_every == 0)
        if c.eval_examples == 0 or not due or (self.tests and self.tests[-1][0] == step):
            return
        if self.losses and has_diverged(self.losses[-1], self.losses[0]):
            return
        found = evaluate_model(self.task, self.model, self._should_stop)
        if found is None:
            self._leave()
        self.tests.append((step, *found))

    def _evaluation(self, step: int) -> dict[str, float]:
        """What an evaluation at this step found; {} where there was none."""
        return evaluation(*self.tests[-1][1:3]) if self.tests and self.tests[-1][0] == step else {}

    def step(self, step: int) -> float:
        """One update; the loss is that before it. A loss that is not finite makes no update."""
        config = self.config
        if self.task.random:
            torch.manual_seed((config.seed * 1_000_003 + step) % 2**63)
        if config.schedule != "constant" or config.warmup or config.decay_schedule != "constant":
            r, d = rate(step, config), decay(step, config)
            for groups in self.rates:
                for group, lr, weight_decay in groups:
                    group["lr"] = lr * r
                    if weight_decay:
                        group["weight_decay"] = weight_decay * d
        loss, _ = self.task.evaluate(self.callable, self.task.cast(self.task.batch(config.seed, step)))
        value = loss.item()
        if has_diverged(value, self.losses[0] if self.losses else value):
            return value
        loss.backward()
        if config.clip is not None:
            self.plan.clip_grad_norm_(config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return value

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        if self.keeper is None:
            return
        state = dict(
            config=self.config.hash,
            model=self.model.state_dict(),
            optimizers=[o.state_dict() for o in self.optimizers],
            losses=torch.tensor(self.losses, dtype=torch.float64),
            tests=self.tests,
            seconds=self._elapsed(),
        )
        self.keeper.save(state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, held in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self.rates = [
            [(group, lr, wd) for group, (_, lr, wd) in zip(o.param_groups, known, strict=True)]
            for o, known in zip(self.optimizers, self.rates, strict=True)
        ]
        self.losses, self.seconds = state["losses"].tolist(), state["seconds"]
        self.tests = [(int(step), *rest) for step, *rest in state["tests"]]


def evaluate_model(
    made: Task, model: nn.Module, asked: Callable[[], bool] = lambda: False
) -> tuple[Any, ...] | None:
    """(loss, accuracy, examples looked at) over the test batches; None when `asked` said stop between two of
    them."""
    model.eval()
    total, seen, right, judged = 0.0, 0, 0, 0
    with torch.no_grad():
        for batch in made.tests():
            if asked():
                return None
            batch = made.cast(batch)
            loss, output = made.evaluate(model, batch)
            n = length(batch)
            total, seen = total + loss.item() * n, seen + n
            counts = count_correct(output, batch)
            if counts is not None:
                right, judged = right + counts[0], judged + counts[1]
    model.train()
    return total / max(1, seen), right / judged if judged else None, seen


def _optimizers(config: RunConfig, plan: Any) -> list[torch.optim.Optimizer]:
    """The optimizers of a run on the parametrization's groups: one, or Muon with AdamW beside it."""
    h = horizon_of(config)
    adam: dict[str, Any] = dict(
        betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, horizon=h
    )
    if config.optimizer == "sgd":
        return [
            plan.optimizer(
                torch.optim.SGD,
                lr=config.lr,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                horizon=h,
            )
        ]
    if config.optimizer == "adam":
        return [plan.optimizer(torch.optim.Adam, lr=config.lr, **adam)]
    if config.optimizer == "adamw":
        return [plan.optimizer(torch.optim.AdamW, lr=config.lr, **adam)]
    muon = plan.optimizer(
        torch.optim.Muon,
        lr=config.lr,
        momentum=config.momentum or 0.95,
        weight_decay=config.weight_decay,
        only="matrices",
        horizon=h,
    )
    rest = plan.optimizer(torch.optim.AdamW, lr=config.rest_lr or config.lr / 10, only="rest", **adam)
    return [muon, rest]
