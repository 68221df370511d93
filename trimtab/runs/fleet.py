"""Many runs at once that share model, size and data and differ only in numbers (rate, momentum, decay,
richness, roles, seed).

Small networks spend their time in the interpreter, not in arithmetic. A fleet stacks the parameters of its
members,

    theta (rows, D),    losses = vmap(loss)(theta, batches),    d(sum of losses)/d theta,    one optimizer
    step for all,

with the vmapped forward recorded once as a plain graph of tensor operations. The number of rows is the same
from the first
step to the last and on every resume: short fleets are padded, members that diverge stay where they are with a
rate of 0. So every kernel sees the same shapes in any company, row m of every operation reads row m alone,
and a member's numbers are bitwise the same whoever else is there. Before the first step this is tried: equal
rows must give equal bits.
"""

from __future__ import annotations

import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from trimtab.errors import InputError
from trimtab.runs import devices, training
from trimtab.runs.carrying import carried
from trimtab.runs.checkpoints import Keeper, keeper
from trimtab.runs.config import RunConfig, decay, rate
from trimtab.runs.loggers import replay
from trimtab.runs.results import RunResult, conclude, has_diverged
from trimtab.runs.tasks import SHARED, Task, open_task, prepare
from trimtab.runs.training import Interrupted, Run, evaluate_model, settled
from trimtab.torch_internals import UNSAFE_VIEW, make_fx

# rows come in multiples: vectorised loops then have no remainder, which scalar code would round differently
ROWS = 16
SLOTS = 16  # members of a fleet where nothing else is said
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}
TOGETHER = (SHARED - {"gamma0", "roles"}) | {
    "optimizer",
    "steps",
    "eval_every",
    "compile",
    "fleet",
}  # what all members have alike


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
    rows = len(_rows(1, c.fleet))
    return devices.OutOfMemory(
        f"a fleet must fit into its device's memory: {rows} rows of {c.model} (width {c.width}, depth "
        f"{c.depth}, batches of {c.batch_size}) do not fit into that of "
        f"{devices.describe_memory(devices.find(c.device))}. fleet = {slots} fits: pass it. (Other slots "
        "round differently and are other cells, so nothing was changed for you.)"
    )


def largest_fit(configs: list[RunConfig]) -> int:
    """The most slots, by halves, of which a step and an evaluation fit; 1: a run alone; 0: not even that."""
    c = settled(configs[0])
    device, slots = devices.find(c.device), len(_rows(1, c.fleet)) // 2
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
        _alike(self.configs)
        self.tasks: list[Task] = [prepare(c) for c in self.configs]
        self.task = self.tasks[0]
        self.device = self.task.device
        self.keeper = keeper(checkpoint)
        begun = [s.begin(c.seed) for s, c in zip(self.tasks, self.configs, strict=True)]
        models, self.plans = [model.train() for model, _ in begun], [plan for _, plan in begun]
        self.skeleton = copy.deepcopy(models[0]).to(
            "meta"
        )  # meta: a parameter that were not handed over would be noticed
        trained = {name: p for name, p in models[0].named_parameters() if p.requires_grad}
        self.names, self.shapes = list(trained), [p.shape for p in trained.values()]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.rows = _rows(len(models), self.configs[0].fleet)
        named = [dict(m.named_parameters()) for m in models]
        flat = [torch.cat([held[n].detach().flatten() for n in self.names]) for held in named]
        self.theta = torch.stack([flat[m] for m in self.rows])
        rest = [
            {n: v.detach() for n, v in (*m.named_parameters(), *m.named_buffers()) if n not in trained}
            for m in models
        ]
        self.fixed = {n: torch.stack([rest[m][n] for m in self.rows]) for n in rest[0]}
        self.twins, self.sample = _twins(models[0]), models[0]
        self.moments = [torch.zeros_like(self.theta) for _ in range(MOMENTS[self.configs[0].optimizer])]
        self.losses: list[list[float]] = [[] for _ in models]
        self.pending: list[Tensor] = []  # losses of all rows that wait on a device to be looked at
        self.tests: list[list[tuple[int, float, float | None]]] = [[] for _ in models]
        self.step_done, self.seconds, self.said = 0, 0.0, []
        if self.keeper is not None:
            state, self.said = self.keeper.load()
            if state is not None and state["configs"] == [c.hash for c in self.configs]:
                self._restore(state)
        self._numbers()
        self.graph = self._record(self._batch(0))

    def _numbers(self) -> None:
        """Rates, decays and the rest as columns over rows."""
        moved = [carried(c) for c in self.configs]
        members = [moved[m] for m in self.rows]
        cls, factors = OPTIMIZERS[members[0].optimizer], {}
        kinds = [_kind(c) for c in members]  # members of a kind have the same factors
        for c, m, kind in zip(members, self.rows, kinds, strict=True):
            if kind not in factors:
                plan = self.plans[m]
                found = plan.factors(
                    cls, momentum=c.momentum, nesterov=c.nesterov, weight_decay=c.weight_decay
                )
                clip = [1.0 if plan.scheme.identity else plan[n].u / plan[n].s for n in self.names]
                factors[kind] = {
                    key: self._spread([found[n][key] for n in self.names])
                    for key in ("lr", "weight_decay", "eps")
                }
                factors[kind]["clip"] = self._spread(clip)

        def over(key: str) -> Tensor:
            return torch.stack([factors[kind][key] for kind in kinds])

        def column(values: Iterable[float], dtype: torch.dtype = self.theta.dtype) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=self.theta.device)[:, None]

        self.lr = over("lr") * column(c.lr for c in members)
        self.decay = over("weight_decay") * column(c.weight_decay for c in members)
        self.eps = over("eps") * column(c.eps for c in members)
        self.momentum, self.heavy = column(c.momentum for c in members), any(c.momentum for c in members)
        self.betas = [
            column((c.betas[i] for c in members), torch.float64) for i in (0, 1)
        ]  # 1 - b2 in float32 would be off by 3e-5
        self.nesterov = column((c.nesterov for c in members), torch.bool)
        self.clip_weight = over("clip") if any(c.clip is not None for c in members) else None
        self.clip = column(math.inf if c.clip is None else c.clip for c in members)
        self.scheduled = any(
            c.schedule != "constant" or c.warmup or c.decay_schedule != "constant" for c in members
        )
        self.decayed = any(c.weight_decay for c in members)
        for row, member in enumerate(self.rows):
            if self._lost(member):
                self.lr[row] = 0.0
        self.parts = self._parts(self.theta)

    def _parts(self, theta: Tensor) -> list[Tensor]:
        """Views of the stacked weights as the parameters they are, each with a gradient of its own."""
        split = zip(theta.split(self.sizes, 1), self.shapes, strict=True)
        return [part.detach().view(len(self.rows), *shape).requires_grad_() for part, shape in split]

    def _spread(self, values: list[float]) -> Tensor:
        numbers = torch.tensor(values, dtype=self.theta.dtype, device=self.theta.device)
        sizes = torch.tensor(self.sizes, device=self.theta.device)
        return numbers.repeat_interleave(sizes, output_size=sum(self.sizes))

    # -- training
    # --------------------------------------------------------------------------------------------------------

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
        every_one = zip(self.losses, self.tests, strict=True)
        return [
            conclude(lost, tests, steps=steps, seconds=share, flops_per_step=self.task.flops)
            for lost, tests in every_one
        ]

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._begun

    def _leave(self) -> NoReturn:
        self.save()
        raise Interrupted(f"stopped before step {self.step_done} of {self.configs[0].steps}.")

    def _lost(self, member: int) -> bool:
        losses = self.losses[member]
        return bool(losses) and has_diverged(losses[-1], losses[0])

    @property
    def alive(self) -> list[int]:
        """Members that have not diverged."""
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
                self.lr[member] = 0.0  # members come first: row m is member m
        return [value for member, value in seen if not self._lost(member)]

    def _descend(self, step: int, losses: Tensor) -> None:
        gradients = torch.autograd.grad(losses.sum(), self.parts)
        self._update(step, torch.cat([g.reshape(len(self.rows), -1) for g in gradients], 1))

    @torch.no_grad()
    def _update(self, step: int, g: Tensor) -> None:
        """torch.optim's formulas over rows; `g` is (rows, D)."""
        lr, wd = self.lr, self.decay
        if self.scheduled:
            members = [self.configs[m] for m in self.rows]
            rates = [[rate(step, c) for c in members], [decay(step, c) for c in members]]
            r, d = self.device.move(torch.tensor(rates, dtype=lr.dtype))
            lr, wd = lr * r[:, None], wd * d[:, None]
        if self.clip_weight is not None:
            norm = (self.clip_weight * g * g).sum(1, keepdim=True).sqrt()
            g = g * torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        kind, theta = self.configs[0].optimizer, self.theta
        if kind == "adamw":
            theta.mul_(1 - lr * wd)
        elif self.decayed:
            g = g + wd * theta
        if kind == "sgd":
            if self.heavy:
                held = self.moments[0].mul_(self.momentum).add_(g)
                g = torch.where(self.nesterov, g + self.momentum * held, held)
            theta.sub_(lr * g)
            return
        b1, b2 = self.betas
        first, second = self.moments
        t, exact = step + 1, lambda column: column.to(theta.dtype)
        first.lerp_(g, exact(1 - b1))
        second.mul_(exact(b2)).add_(exact(1 - b2) * g * g)
        scale = (second.sqrt() * exact((1 - b2**t).rsqrt())).add_(self.eps)
        theta.sub_(lr * exact(1 / (1 - b1**t)) * first / scale)

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
        """The vmapped forward as a plain graph for this number of rows, tried on equal rows."""
        held = list(self.fixed)

        def one(parts: list[Tensor], fixed: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
            given = {**dict(zip(self.names, parts, strict=True)), **dict(zip(held, fixed, strict=True))}
            tied = {twin: given[name] for twin, name in self.twins.items()}
            output = functional_call(self.skeleton, given | tied, (x,))
            return self.task.loss(output, (x, y))

        parts = self._parts(
            _first(self.theta)
        )  # strided like the real ones: the graph is recorded for their strides
        fixed, same = (
            [_first(v) for v in self.fixed.values()],
            [_first(b) for b in batch],
        )  # running statistics move here: copies
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # operations without a batching rule run row by row: slower, with the same numbers
            graph = plain(make_fx(vmap(one))([p.detach() for p in parts], fixed, *same))
        losses = graph(parts, fixed, *same)
        gradients = torch.autograd.grad(losses.sum(), parts)
        if not all(_equal_rows(t.detach()) for t in (losses, *gradients, *fixed)):
            raise InputError(
                f"equal rows of a fleet must give equal bits: with {len(self.rows)} rows of "
                f"{self.configs[0].model} (width "
                f"{self.configs[0].width}, depth {self.configs[0].depth}) they do not on this machine's "
                "kernels. Pass fleet = 1."
            )
        return graph

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


def _kind(config: RunConfig) -> str:
    """What the factors of a size depend on."""
    return json.dumps([config.gamma0, config.roles], sort_keys=True)


def _rows(members: int, slots: int) -> list[int]:
    """Which member each row is: the members in order, then the first again up to a multiple of ROWS.

    >>> _rows(3, 16)
    [0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    """
    slots = SLOTS if slots == 1 else slots
    if members > slots:
        raise InputError(f"a fleet of {slots} slots holds at most {slots} members: got {members}.")
    return [*range(members), *[0] * (ROWS * -(-slots // ROWS) - members)]


def _first(stacked: Tensor) -> Tensor:
    """As many rows, each a copy of the first."""
    return stacked[:1].expand(stacked.shape).clone()


def _equal_rows(stacked: Tensor) -> bool:
    """Whether every row has the bits of the first; rows that are not a number count as equal."""
    return bool(((stacked == stacked[:1]) | (stacked.isnan() & stacked[:1].isnan())).all())


def plain(graph: Any) -> Callable[..., Tensor]:
    """A recorded graph without the reshapes that change nothing; they are a third of its calls."""
    idle = {
        torch.ops.aten.expand.default,
        torch.ops.aten.view.default,
        UNSAFE_VIEW,
        torch.ops.aten.reshape.default,
    }
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in idle:
            source = node.args[0]
            before, after = (n.meta.get("tensor_meta") or n.meta.get("val") for n in (source, node))
            if before is not None and after is not None and tuple(before.shape) == tuple(after.shape):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _twins(model: nn.Module) -> dict[str, str]:
    """{further name of a tied tensor: the name it goes by}; moving a module to meta unties them."""
    first = {id(v): n for n, v in (*model.named_parameters(), *model.named_buffers())}
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {n: first[id(v)] for n, v in every if n != first[id(v)]}


def _alike(configs: list[RunConfig]) -> None:
    """Refuse members that do not share what a fleet shares."""
    if not configs:
        raise InputError("a fleet needs at least one configuration.")
    first = configs[0]
    for c in configs[1:]:
        fields = [key for key in RunConfig.model_fields if key in TOGETHER]
        different = [key for key in fields if getattr(c, key) != getattr(first, key)]
        if different:
            raise InputError(
                "the members of a fleet differ in numbers only (lr, momentum, decay, clip, gamma0, roles, "
                f"seed): {', '.join(different)} differ."
            )
    reason = hindrance(configs[0])
    if reason:
        raise InputError(f"a fleet cannot train this: {reason}. Train them one by one (fleet = 1).")


def hindrance(config: RunConfig) -> str:
    """Why runs like this one cannot train as a fleet; "" where they can."""
    if config.optimizer not in OPTIMIZERS:
        return f"it steps {', '.join(OPTIMIZERS)} only, not {config.optimizer}"
    if config.dtype == "bfloat16":
        return "it trains in float32 or float64, not in bfloat16"
    if config.compile:
        return "it records its own graph and does not compile"
    made = open_task(config)
    batch = made.batch(0, 0)
    if isinstance(batch, dict) or not all(isinstance(part, Tensor) for part in batch):
        return "it needs batches of one input tensor and one target tensor"
    if made.random:
        return "the forward draws random numbers (dropout), which each run draws from its own seed"
    return ""
