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
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.runs.batch_and_length import horizon_of
from trimtab.runs.checkpoints import Keeper, keeper
from trimtab.runs.config import RunConfig, decay, rate
from trimtab.runs.devices import OutOfMemory, describe_memory, find, is_out_of_memory, settle
from trimtab.runs.loggers import evaluation, open_logger
from trimtab.runs.losses import count_correct, length
from trimtab.runs.results import RunResult, Tested, conclude, has_diverged, is_over
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
    try:
        return Run(config, checkpoint).go(every, progress, stop)
    except Exception as error:
        if not is_out_of_memory(error) or isinstance(error, OutOfMemory):
            raise
    raise no_room(config)


def settled(config: RunConfig) -> RunConfig:
    """The configuration with the device that "auto" stands for here."""
    return config.replace(device=settle("auto")) if config.device == "auto" else config


def no_room(config: RunConfig) -> OutOfMemory:
    """What is said where a device cannot hold a single run."""
    where = describe_memory(find(config.device))
    return OutOfMemory(
        f"a run must fit into its device's memory: {config.model} of width {config.width} and depth "
        f"{config.depth} with batches of {config.batch_size} does not fit into that of {where}. Pass a "
        "smaller batch_size, precision = 'bf16', another device, or fewer workers for each GPU."
    )


class Run:
    """A run under way: model, optimizers and curves, which is what a checkpoint holds."""

    def __init__(self, config: RunConfig, checkpoint: Path | str | Keeper | None = None):
        self.config = config = settled(config)
        self.task: Task = prepare(config)
        self.device = self.task.device
        self.keeper = keeper(checkpoint)
        self.model, self.plan = self.task.begin(config.seed)
        self.model.train()
        self.optimizers = _optimizers(config, self.plan)
        self.rates = [
            [(group, group["lr"], group.get("weight_decay", 0.0)) for group in o.param_groups]
            for o in self.optimizers
        ]
        self.losses: list[float] = []
        self.pending: list[Tensor] = []  # losses that wait on a device to be looked at
        self.random: dict[str, Tensor] | None = None  # the generators' states, of a checkpoint
        self.tests: list[Tested] = []
        self.seconds = 0.0
        self.said: list[str] = []
        if self.keeper is not None:
            state, self.said = self.keeper.load()
            if state is not None and state["config"] == config.hash:
                self._restore(state)
            elif state is not None:
                self.said.append(
                    f"the checkpoint {self.keeper.name} is of another configuration, or of other code in "
                    "your files: this run begins anew and will replace it."
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
        with self.device.forked(), open_logger(config) as log:
            self._begin_random()
            self._evaluate(len(self.losses))  # what a stop cut short
            for step in range(len(self.losses), config.steps):
                if self._is_lost():
                    break
                if self._should_stop():
                    self._leave()
                for seen, loss in self._advance(step):
                    if progress is not None:
                        progress(seen, loss, config.lr * rate(seen, config))
                    if seen == step:
                        self._evaluate(step + 1)
                    if log is not None:
                        metrics = {"loss": loss, "lr": config.lr * rate(seen, config)}
                        log(seen + 1, metrics | self._evaluation(seen + 1))
                due = time.perf_counter() - saved > every and step + 1 < config.steps
                if self.keeper is not None and due and not self.pending and not self._is_lost():
                    self.save()
                    saved = time.perf_counter()
        self.device.synchronize()
        return conclude(
            self.losses,
            self.tests,
            steps=config.steps,
            seconds=self._elapsed(),
            flops_per_step=self.task.flops,
            give_up=config.give_up,
        )

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._begun

    def _begin_random(self) -> None:
        """Generators as they were at the checkpoint, or seeded: not as whoever came before left them."""
        if self.random is not None:
            self.device.set_random_state(self.random)
        else:
            self.device.seed(self.config.seed)

    def _is_lost(self) -> bool:
        return is_over(self.losses, self.config.steps, self.config.give_up)

    def _advance(self, step: int) -> list[tuple[int, float]]:
        """One update; the (step, loss) of those that became known and are not lost: of this step, or on a
        device that is looked at now and then, of all since the last look."""
        if self.device.look_every == 1:
            self.losses.append(self.step(step))
            return [] if self._is_lost() else [(step, self.losses[-1])]
        self.pending.append(self.step_unseen(step))
        last = step + 1 == self.config.steps
        if len(self.pending) == self.device.look_every or last or self._evaluates(step + 1):
            return self._look()
        return []

    def _look(self) -> list[tuple[int, float]]:
        """Take the losses that wait on the device, up to the one that shows divergence."""
        values = torch.stack(self.pending).tolist() if self.pending else []
        self.pending.clear()
        known = []
        for value in values:
            self.losses.append(value)
            if self._is_lost():  # what was done after it is no part of the run
                break
            known.append((len(self.losses) - 1, value))
        return known

    def _leave(self) -> NoReturn:
        self.save()
        raise Interrupted(f"stopped before step {len(self.losses)} of {self.config.steps}.")

    def _evaluate(self, step: int) -> None:
        """Evaluate if it is time to and has not been done at this step."""
        if not self._evaluates(step) or (self.tests and self.tests[-1][0] == step) or self._is_lost():
            return
        found = evaluate_model(self.task, self.model, self._should_stop)
        if found is None:
            self._leave()
        self.tests.append((step, *found))

    def _evaluates(self, step: int) -> bool:
        """Whether the run is evaluated after this many steps."""
        c = self.config
        due = step == c.steps or bool(c.eval_every and step and step % c.eval_every == 0)
        return due and c.eval_examples != 0

    def _evaluation(self, step: int) -> dict[str, float]:
        """What an evaluation at this step found; {} where there was none."""
        return evaluation(*self.tests[-1][1:3]) if self.tests and self.tests[-1][0] == step else {}

    def step(self, step: int) -> float:
        """One update; the loss is that before it. A loss that is not finite makes no update."""
        loss = self._loss(step)
        value = loss.item()
        if not has_diverged(value, self.losses[0] if self.losses else value):
            self._update(loss)
        return value

    def step_unseen(self, step: int) -> Tensor:
        """One update whose loss stays on the device: nothing waits for it."""
        loss = self._loss(step)
        self._update(loss)
        return loss.detach()

    def _loss(self, step: int) -> Tensor:
        config = self.config
        if self.task.random:
            self.device.seed((config.seed * 1_000_003 + step) % 2**63)
        if config.schedule != "constant" or config.warmup or config.decay_schedule != "constant":
            r, d = rate(step, config), decay(step, config)
            for groups in self.rates:
                for group, lr, weight_decay in groups:
                    group["lr"] = lr * r
                    if weight_decay:
                        group["weight_decay"] = weight_decay * d
        return self.task.evaluate(self.callable, self.task.cast(self.task.batch(config.seed, step)))[0]

    def _update(self, loss: Tensor) -> None:
        loss.backward()
        if self.config.clip is not None:
            self.plan.clip_grad_norm_(self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        self._look()  # as many losses as updates
        if self.keeper is None:
            return
        state = dict(
            config=self.config.hash,
            model=self.model.state_dict(),
            optimizers=[o.state_dict() for o in self.optimizers],
            losses=torch.tensor(self.losses, dtype=torch.float64),
            tests=self.tests,
            seconds=self._elapsed(),
            random=self.device.random_state(),
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
        self.random = state.get("random")  # an older version's checkpoint has none
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
