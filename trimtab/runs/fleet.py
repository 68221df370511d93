"""Many runs at once that share model, size and data and differ only in numbers (rate, momentum, decay,
richness, roles, seed).

Small networks spend their time in the interpreter, not in arithmetic. A fleet stacks the parameters of its
members,

    theta (rows, D),    losses = vmap(loss)(theta, batches),    d(sum of losses)/d theta,    one optimizer
    step for all,

with the forward recorded once (`fleet_graph`) and one optimizer over rows (`row_optimizer`). The number of
rows is the same from the first step to the last and on every resume: short fleets are padded, members that
diverge stay where they are with a rate of 0. So every kernel sees the same shapes in any company, row m of
every operation reads row m alone, and a member's numbers are bitwise the same whoever else is there.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trimtab.runs import devices, fleet_graph, training
from trimtab.runs.checkpoints import Keeper, keeper
from trimtab.runs.config import RunConfig
from trimtab.runs.fleet_groups import ROWS, refuse_unlike, rows_of
from trimtab.runs.loggers import replay
from trimtab.runs.results import RunResult, conclude, is_over
from trimtab.runs.row_optimizer import MOMENTS, RowOptimizer
from trimtab.runs.tasks import Task, prepare
from trimtab.runs.training import Interrupted, Run, evaluate_model, settled


def run(
    configs: Sequence[RunConfig],
    *,
    checkpoint: Path | str | Keeper | None = None,
    every: float = 30.0,
    progress: Callable[[int, list[float]], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[RunResult]:
    """Train all configurations together.

    Args:
        configs: runs that differ in numbers only.
        checkpoint: file to resume from and to write to.
        every: seconds between checkpoints.
        progress: called after each step with (step, losses of the members still training).
        stop: asked before each step and between the members of an evaluation; when it says yes the fleet is
            checkpointed and `train.Interrupted` is raised.

    >>> base = RunConfig(width=32, depth=3, lr=0.1, steps=20)
    >>> [r.state for r in run([base.replace(lr=lr) for lr in (0.05, 0.1, 1e4)])]
    ['done', 'done', 'diverged']
    """
    results = None
    try:
        results = Fleet(configs, checkpoint).go(every, progress, stop)
    except Exception as error:
        if not devices.is_out_of_memory(error):
            raise
    if results is None:  # out of the handler, whose traceback holds the tensors: now there is room to try
        raise no_room(list(configs))
    for config, result in zip(configs, results, strict=True):
        replay(config, result)
    return results


def no_room(configs: list[RunConfig]) -> devices.OutOfMemory:
    """What is said where a device cannot hold a fleet: the slots that fit, tried."""
    c = configs[0]
    slots = largest_fit(configs)
    if slots == 0:
        return training.no_room(c)
    rows = len(rows_of(1, c.fleet))
    return devices.OutOfMemory(
        f"a fleet must fit into its device's memory: {rows} rows of {c.model} (width {c.width}, depth "
        f"{c.depth}, batches of {c.batch_size}) do not fit into that of "
        f"{devices.describe_memory(devices.find(c.device))}. fleet = {slots} fits: pass it. (Other slots "
        "round differently and are other cells, so nothing was changed for you.)"
    )


def largest_fit(configs: list[RunConfig]) -> int:
    """The most slots, by halves, of which a step and an evaluation fit; 1: a run alone; 0: not even that."""
    c = settled(configs[0])
    device, slots = devices.find(c.device), len(rows_of(1, c.fleet)) // 2
    while slots >= ROWS:
        slots = slots // ROWS * ROWS
        if _fits(device, lambda n=slots: _try_fleet(c.replace(fleet=n))):
            return slots
        slots //= 2
    return int(_fits(device, lambda: Run(c.replace(fleet=1)).step(0)))


def _try_fleet(config: RunConfig) -> None:
    fleet = Fleet([config])
    fleet.step(0)
    if config.eval_examples != 0:
        asked = iter((False, True))
        evaluate_model(fleet.task, fleet.model(0), lambda: next(asked))  # one batch


def _fits(device: devices.Device, attempt: Callable[[], Any]) -> bool:
    device.forget_unused()
    try:
        attempt()
    except Exception as error:
        if not devices.is_out_of_memory(error):
            raise
        return False
    return True


class Fleet:
    """Runs under way together. Row r of the stacked tensors is member `rows[r]`; rows beyond the members
    repeat the first."""

    def __init__(self, configs: Sequence[RunConfig], checkpoint: Path | str | Keeper | None = None):
        self.configs = [settled(c) for c in configs]
        refuse_unlike(self.configs)
        self.tasks: list[Task] = [prepare(c) for c in self.configs]
        self.task = self.tasks[0]
        self.device = self.task.device
        self.keeper = keeper(checkpoint)
        begun = [s.begin(c.seed) for s, c in zip(self.tasks, self.configs, strict=True)]
        models, self.plans = [model.train() for model, _ in begun], [plan for _, plan in begun]
        # meta: a parameter that were not handed over would be noticed
        self.skeleton = copy.deepcopy(models[0]).to("meta")
        trained = {name: p for name, p in models[0].named_parameters() if p.requires_grad}
        self.names, self.shapes = list(trained), [p.shape for p in trained.values()]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.rows = rows_of(len(models), self.configs[0].fleet)
        named = [dict(m.named_parameters()) for m in models]
        flat = [torch.cat([held[n].detach().flatten() for n in self.names]) for held in named]
        self.theta = torch.stack([flat[m] for m in self.rows])
        rest = [
            {n: v.detach() for n, v in (*m.named_parameters(), *m.named_buffers()) if n not in trained}
            for m in models
        ]
        self.fixed = {n: torch.stack([rest[m][n] for m in self.rows]) for n in rest[0]}
        self.twins, self.sample = fleet_graph.twins(models[0]), models[0]
        self.moments = [torch.zeros_like(self.theta) for _ in range(MOMENTS[self.configs[0].optimizer])]
        self.losses: list[list[float]] = [[] for _ in models]
        self.pending: list[Tensor] = []  # losses of all rows that wait on a device to be looked at
        self.tests: list[list[tuple[int, float, float | None]]] = [[] for _ in models]
        self.step_done, self.seconds, self.said = 0, 0.0, []
        if self.keeper is not None:
            state, self.said = self.keeper.load()
            if state is not None and state["configs"] == [c.hash for c in self.configs]:
                self._restore(state)
        self.optimizer = self._optimizer()
        self.parts = self._parts(self.theta)
        self.graph = self._record(self._batch(0))

    def _optimizer(self) -> RowOptimizer:
        """Every row's numbers; members that diverged before a resume stay where they are."""
        made = RowOptimizer(
            self.theta,
            self.moments,
            configs=[self.configs[m] for m in self.rows],
            plans=[self.plans[m] for m in self.rows],
            sizes=dict(zip(self.names, self.sizes, strict=True)),
            device=self.device,
        )
        for row, member in enumerate(self.rows):
            if self._lost(member):
                made.freeze(row)
        return made

    def _parts(self, theta: Tensor) -> list[Tensor]:
        """Views of the stacked weights as the parameters they are, each with a gradient of its own."""
        split = zip(theta.split(self.sizes, 1), self.shapes, strict=True)
        return [part.detach().view(len(self.rows), *shape).requires_grad_() for part, shape in split]

    # -- training ------------------------------------------------------------------------------------------

    def go(
        self,
        every: float,
        progress: Callable[[int, list[float]], None] | None,
        stop: Callable[[], bool] | None,
    ) -> list[RunResult]:
        steps = self.configs[0].steps
        self._begun = saved = time.perf_counter()
        self._should_stop = stop or (lambda: False)
        self._evaluate(self.step_done)  # what a stop cut short
        for step in range(self.step_done, steps):
            if self._should_stop():
                self._leave()
            losses = self._advance(step)
            self.step_done = step + 1
            if losses is None:
                continue
            if not self.alive:
                break
            if progress is not None:
                progress(step, losses)
            self._evaluate(step + 1)
            if self.keeper is not None and time.perf_counter() - saved > every and step + 1 < steps:
                self.save()
                saved = time.perf_counter()
        self.device.synchronize()
        share = self._elapsed() / len(self.configs)
        one: dict[str, Any] = dict(steps=steps, seconds=share, flops_per_step=self.task.flops)
        every_one = zip(self.losses, self.tests, self.configs, strict=True)
        return [conclude(losses, tests, **one, give_up=c.give_up) for losses, tests, c in every_one]

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._begun

    def _leave(self) -> NoReturn:
        self.save()
        raise Interrupted(f"stopped before step {self.step_done} of {self.configs[0].steps}.")

    def _lost(self, member: int) -> bool:
        c = self.configs[member]
        return is_over(self.losses[member], c.steps, c.give_up)

    @property
    def alive(self) -> list[int]:
        """Members that have neither diverged nor been given up."""
        return [m for m in range(len(self.configs)) if not self._lost(m)]

    def _advance(self, step: int) -> list[float] | None:
        """One update; the losses of the members still training, None on a device that is not looked at
        now."""
        if self.device.look_every == 1:
            return self.step(step)
        self.pending.append(self.step_unseen(step))
        last = step + 1 == self.configs[0].steps
        if len(self.pending) == self.device.look_every or last or self._evaluates(step + 1):
            return self._look()
        return None

    def step(self, step: int) -> list[float]:
        """One update of every row; returns the losses before it of the members still training."""
        losses = self.graph(self.parts, list(self.fixed.values()), *self._batch(step))
        known = self._note(losses.tolist())
        if known:
            self._descend(step, losses)
        return known

    def step_unseen(self, step: int) -> Tensor:
        """One update of every row whose losses stay on the device: nothing waits for them."""
        losses = self.graph(self.parts, list(self.fixed.values()), *self._batch(step))
        self._descend(step, losses)
        return losses.detach()

    def _look(self) -> list[float]:
        """Take the losses that wait on the device; those of the last step of members still training. A row
        reads itself alone, so what a diverged one did since then is nobody's number."""
        known: list[float] = []
        for values in torch.stack(self.pending).tolist() if self.pending else []:
            known = self._note(values)
        self.pending.clear()
        return known

    def _note(self, values: list[float]) -> list[float]:
        """Append a step's losses to those of the members still training, whose new ones are returned."""
        seen = [(m, value) for m, value in enumerate(values[: len(self.configs)]) if not self._lost(m)]
        for member, value in seen:
            self.losses[member].append(value)
            if self._lost(member):
                self.optimizer.freeze(member)  # members come first: row m is member m
        return [value for member, value in seen if not self._lost(member)]

    def _descend(self, step: int, losses: Tensor) -> None:
        gradients = torch.autograd.grad(losses.sum(), self.parts)
        self.optimizer.step(step, torch.cat([g.reshape(len(self.rows), -1) for g in gradients], 1))

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets) with a row for each row; every seed's batch is made once."""
        made: dict[int, Any] = {}
        for member in self.rows:
            seed = self.configs[member].seed
            if seed not in made:
                made[seed] = self.task.cast(self.task.batch(seed, step))
        batches = [made[self.configs[m].seed] for m in self.rows]
        return torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches])

    def _record(self, batch: tuple[Tensor, Tensor]) -> Callable[..., Tensor]:
        """The forward of all rows, as a graph."""
        held = list(self.fixed)

        def one(parts: list[Tensor], fixed: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
            given = {**dict(zip(self.names, parts, strict=True)), **dict(zip(held, fixed, strict=True))}
            tied = {twin: given[name] for twin, name in self.twins.items()}
            output = functional_call(self.skeleton, given | tied, (x,))
            return self.task.loss(output, (x, y))

        equal = self._parts(fleet_graph.equal(self.theta))  # strided like the real ones
        return fleet_graph.record(one, equal, list(self.fixed.values()), batch, self.configs[0])

    # -- results ---------------------------------------------------------------------------------------------

    def _evaluate(self, step: int) -> None:
        """Evaluate the members that have not been at this step, if it is time to."""
        if not self._evaluates(step):
            return
        for member in self.alive:
            if not self.tests[member] or self.tests[member][-1][0] != step:
                found = evaluate_model(self.task, self.model(member), self._should_stop)
                if found is None:
                    self._leave()
                self.tests[member].append((step, *found))

    def _evaluates(self, step: int) -> bool:
        """Whether the members are evaluated after this many steps."""
        c = self.configs[0]
        due = step == c.steps or bool(c.eval_every and step and step % c.eval_every == 0)
        return due and c.eval_examples != 0

    def model(self, member: int) -> nn.Module:
        """One member's model, as it is now; the same module each time."""
        places = dict(self.sample.named_parameters()) | dict(self.sample.named_buffers())
        split = zip(self.names, self.theta[member].split(self.sizes), self.shapes, strict=True)
        held = {name: part.view(shape) for name, part, shape in split}
        with torch.no_grad():
            for name, value in (held | {n: v[member] for n, v in self.fixed.items()}).items():
                places[name].copy_(value)
        return self.sample.train()

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        self._look()  # as many losses as updates
        if self.keeper is not None:
            state = dict(
                configs=[c.hash for c in self.configs],
                theta=self.theta,
                moments=self.moments,
                fixed=self.fixed,
                losses=[torch.tensor(x, dtype=torch.float64) for x in self.losses],
                tests=self.tests,
                step=self.step_done,
                seconds=self._elapsed(),
            )
            self.keeper.save(state)

    def _restore(self, state: dict[str, Any]) -> None:
        move = self.device.move  # a checkpoint is read onto the processor
        self.theta, self.moments = move(state["theta"]), [move(m) for m in state["moments"]]
        self.fixed = {name: move(value) for name, value in state["fixed"].items()}
        self.losses = [x.tolist() for x in state["losses"]]
        self.tests = [[tuple(t) for t in tests] for tests in state["tests"]]
        self.step_done, self.seconds = state["step"], state["seconds"]
