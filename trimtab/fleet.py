"""Many runs at once that share model, size and data and differ only in numbers (rate, momentum, decay, richness, seed).

Small networks spend their time in the interpreter, not in arithmetic. A fleet of M members stacks its parameters,

    theta (M, D),      losses = vmap(loss)(theta, batches),      d(sum of losses)/d theta,      one optimizer step for all,

with the vmapped forward recorded once as a plain graph of tensor operations. Row m of every operation reads row m alone,
so a member's numbers are bitwise the same whoever else is in the fleet; members that diverge are dropped on the way.
"""

from __future__ import annotations

import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from trimtab import checkpoints
from trimtab.config import RunConfig, decay, rate
from trimtab.errors import InputError
from trimtab.results import RunResult, conclude, diverged
from trimtab.setup import SHARED, Setup, setup
from trimtab.train import Interrupted, Run

SMALLEST = 2  # a stack of one would take other kernels (mm for bmm) and other bits
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
NO_FLEET = "a fleet trains with sgd, adam or adamw in float32 or float64, without compile and without dropout, on batches of one input tensor and one target tensor"


def run(
    configs: Sequence[RunConfig],
    *,
    checkpoint: Path | str | None = None,
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
        stop: asked before each step; when it says yes the fleet is checkpointed and `train.Interrupted` is raised.

    >>> base = RunConfig(width=32, depth=3, lr=0.1, steps=20)
    >>> [r.state for r in run([base.changed(lr=lr) for lr in (0.05, 0.1, 1e4)])]
    ['done', 'done', 'diverged']
    """
    return Fleet(configs, checkpoint).go(every, progress, stop)


def possible(config: RunConfig) -> bool:
    """Whether runs like this one may train as a fleet at all."""
    return config.optimizer in OPTIMIZERS and config.dtype != "bfloat16" and not config.compile and not setup(config).random and _two_tensors(setup(config))


def _two_tensors(made: Setup) -> bool:
    batch = made.batch(0, 0)
    return not isinstance(batch, dict) and all(isinstance(part, Tensor) for part in batch)


class Fleet:
    """Runs under way together. `rows` says which member each row of the stacked tensors is."""

    def __init__(self, configs: Sequence[RunConfig], checkpoint: Path | str | None = None):
        self.configs = list(configs)
        _alike(self.configs)
        self.setups: list[Setup] = [setup(c) for c in self.configs]
        self.setup = self.setups[0]
        self.path = None if checkpoint is None else Path(checkpoint)
        models, self.plans = (list(x) for x in zip(*(s.begin(c.seed) for s, c in zip(self.setups, self.configs, strict=True)), strict=True))
        for model in models:
            model.train()
        self.skeleton = copy.deepcopy(models[0]).to("meta")  # meta: a parameter that were not handed over would be noticed
        trained = {name for name, p in models[0].named_parameters() if p.requires_grad}
        self.names = [n for n, _ in models[0].named_parameters() if n in trained]
        self.shapes = [dict(models[0].named_parameters())[n].shape for n in self.names]
        self.sizes = [s.numel() for s in self.shapes]
        self.rows = list(range(len(models)))
        self.theta = torch.stack([torch.cat([dict(m.named_parameters())[n].detach().flatten() for n in self.names]) for m in models])
        rest = [{n: v.detach() for n, v in (*m.named_parameters(), *m.named_buffers()) if n not in trained} for m in models]
        self.fixed = {n: torch.stack([r[n] for r in rest]) for n in rest[0]}
        self.twins = _twins(models[0])
        self.moments = [torch.zeros_like(self.theta) for _ in range({"sgd": 1, "adam": 2, "adamw": 2}[self.configs[0].optimizer])]
        self.losses: list[list[float]] = [[] for _ in models]
        self.tests: list[list[tuple[int, float, float | None]]] = [[] for _ in models]
        self.step_done, self.seconds, self.said = 0, 0.0, []
        if self.path is not None:
            state, self.said = checkpoints.load(self.path)
            if state is not None and state["configs"] == [c.hash for c in self.configs]:
                self._restore(state)
        self._numbers()

    # -- what depends on which rows there are -------------------------------------------------------------------------------

    def _numbers(self) -> None:
        """Rates, decays and the rest as columns over rows; forgets the recorded graph."""
        while len(self.rows) < SMALLEST:
            self._take([0, 0][: SMALLEST - len(self.rows) + 1])
        members = [self.configs[m] for m in self.rows]
        cls, factors = OPTIMIZERS[members[0].optimizer], {}
        for c, m in zip(members, self.rows, strict=True):
            if c.gamma0 not in factors:
                found = self.plans[m].factors(cls, momentum=c.momentum, nesterov=c.nesterov, weight_decay=c.weight_decay)
                factors[c.gamma0] = {key: self._spread([found[n][key] for n in self.names]) for key in ("lr", "weight_decay", "eps")} | {
                    "clip": self._spread([1.0 if self.plans[m].scheme.identity else self.plans[m][n].u / self.plans[m][n].s for n in self.names])
                }
        over = lambda key: torch.stack([factors[c.gamma0][key] for c in members])  # noqa: E731
        column = lambda values: torch.tensor(list(values), dtype=self.theta.dtype, device=self.theta.device)[:, None]  # noqa: E731
        self.lr, self.decay, self.eps = (
            over("lr") * column(c.lr for c in members),
            over("weight_decay") * column(c.weight_decay for c in members),
            over("eps") * column(c.eps for c in members),
        )
        self.momentum, self.heavy = column(c.momentum for c in members), any(c.momentum for c in members)
        self.betas = [torch.tensor([c.betas[i] for c in members], dtype=torch.float64, device=self.theta.device)[:, None] for i in (0, 1)]  # 1 - b2 in float32 would be off by 3e-5
        self.nesterov = torch.tensor([c.nesterov for c in members], device=self.theta.device)[:, None]
        self.clip_weight = over("clip") if any(c.clip is not None for c in members) else None
        self.clip = column(math.inf if c.clip is None else c.clip for c in members)
        self.scheduled = any(c.schedule != "constant" or c.warmup or c.decay_schedule != "constant" for c in members)
        self.decayed = any(c.weight_decay for c in members)
        self.graph: Callable[..., Tensor] | None = None
        self.parts = [part.detach().view(len(self.rows), *shape).requires_grad_() for part, shape in zip(self.theta.split(self.sizes, 1), self.shapes, strict=True)]

    def _spread(self, values: list[float]) -> Tensor:
        return torch.cat([torch.full((size,), value, dtype=self.theta.dtype, device=self.theta.device) for value, size in zip(values, self.sizes, strict=True)])

    def _take(self, kept: list[int]) -> None:
        self.rows = [self.rows[i] for i in kept]
        self.theta = self.theta[kept].clone()
        self.moments = [m[kept].clone() for m in self.moments]
        self.fixed = {n: v[kept].clone() for n, v in self.fixed.items()}

    # -- training -----------------------------------------------------------------------------------------------------------

    def go(self, every: float, progress: Callable[[int, list[float]], None] | None, stop: Callable[[], bool] | None) -> list[RunResult]:
        steps = self.configs[0].steps
        begun, saved = time.perf_counter() - self.seconds, time.perf_counter()
        for step in range(self.step_done, steps):
            if stop is not None and stop():
                self.seconds = time.perf_counter() - begun
                self.save()
                raise Interrupted(f"stopped before step {step} of {steps}.")
            losses = self.step(step)
            self.step_done = step + 1
            if not self.alive:
                break
            if progress is not None:
                progress(step, losses)
            self._evaluate(step + 1, steps)
            if self.path is not None and time.perf_counter() - saved > every and step + 1 < steps:
                self.seconds = time.perf_counter() - begun
                self.save()
                saved = time.perf_counter()
        share = (time.perf_counter() - begun) / len(self.configs)
        return [conclude(lost, tests, steps=steps, seconds=share, flops_per_step=self.setup.flops) for lost, tests in zip(self.losses, self.tests, strict=True)]

    def _lost(self, member: int) -> bool:
        losses = self.losses[member]
        return bool(losses) and diverged(losses[-1], losses[0])

    @property
    def alive(self) -> list[int]:
        """Members that have not diverged."""
        return [m for m in range(len(self.configs)) if not self._lost(m)]

    def step(self, step: int) -> list[float]:
        """One update of every row; returns the losses before it of the members still training."""
        batch = self._batch(step)
        if self.graph is None:
            self.graph = self._record(batch)
        losses = self.graph(self.parts, list(self.fixed.values()), *batch)
        values, seen, dropped = losses.tolist(), {}, False
        for row, (member, value) in enumerate(zip(self.rows, values, strict=True)):
            if member in seen or self._lost(member):
                continue
            seen[member] = value
            self.losses[member].append(value)
            if self._lost(member):
                dropped = True
                self.lr[row] = 0.0
        if len(seen) and any(not self._lost(m) for m in seen):
            gradients = torch.autograd.grad(losses.sum(), self.parts)
            self._update(step, torch.cat([g.reshape(len(self.rows), -1) for g in gradients], 1))
        if dropped:
            kept = [row for row, member in enumerate(self.rows) if not self._lost(member)]
            if kept and len(kept) <= 0.75 * len(self.rows) and len(self.rows) > SMALLEST:
                self._take(kept)
                self._numbers()
        return [value for member, value in seen.items() if not self._lost(member)]

    @torch.no_grad()
    def _update(self, step: int, g: Tensor) -> None:
        """torch.optim's formulas over rows; `g` is (rows, D)."""
        lr, wd = self.lr, self.decay
        if self.scheduled:
            members = [self.configs[m] for m in self.rows]
            lr = lr * torch.tensor([rate(step, c) for c in members], dtype=lr.dtype, device=lr.device)[:, None]
            wd = wd * torch.tensor([decay(step, c) for c in members], dtype=lr.dtype, device=lr.device)[:, None]
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
                made[seed] = self.setup.cast(self.setup.batch(seed, step))
        batches = [made[self.configs[m].seed] for m in self.rows]
        return torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches])

    def _record(self, batch: tuple[Tensor, Tensor]) -> Callable[..., Tensor]:
        """The vmapped forward as a plain graph for this number of rows."""
        held = list(self.fixed)

        def one(parts: list[Tensor], fixed: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
            given = {**dict(zip(self.names, parts, strict=True)), **dict(zip(held, fixed, strict=True))}
            output = functional_call(self.skeleton, given | {twin: given[name] for twin, name in self.twins.items()}, (x,))
            return self.setup.loss(output, (x, y))

        fixed = [v.clone() for v in self.fixed.values()]  # recording runs the forward once: running statistics must not move
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # operations without a batching rule run row by row; the trial measures what that costs
            graph = make_fx(vmap(one))([p.detach() for p in self.parts], fixed, *batch)
        return plain(graph)

    # -- results ------------------------------------------------------------------------------------------------------------

    def _evaluate(self, step: int, steps: int) -> None:
        c = self.configs[0]
        if c.eval_examples == 0 or not (step == steps or (c.eval_every and step % c.eval_every == 0)):
            return
        for member in self.alive:
            single = Run.__new__(Run)  # only what `test` uses: a member is evaluated as the single run would be
            single.config, single.setup, single.model = self.configs[member], self.setup, self.model(member)
            self.tests[member].append((step, *single.test()))

    def model(self, member: int) -> nn.Module:
        """One member's model, as it is now."""
        row = self.rows.index(member)
        model = self.setup.start(self.configs[member].seed)
        held = {name: part.view(shape) for name, part, shape in zip(self.names, self.theta[row].split(self.sizes), self.shapes, strict=True)}
        places = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, value in (held | {n: v[row] for n, v in self.fixed.items()}).items():
                places[name].copy_(value)
        return model.train()

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        if self.path is not None:
            state = dict(
                configs=[c.hash for c in self.configs],
                rows=self.rows,
                theta=self.theta,
                moments=self.moments,
                fixed=self.fixed,
                losses=[torch.tensor(x, dtype=torch.float64) for x in self.losses],
                tests=self.tests,
                step=self.step_done,
                seconds=self.seconds,
            )
            checkpoints.save(self.path, state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.rows, self.theta, self.moments, self.fixed = state["rows"], state["theta"], state["moments"], state["fixed"]
        self.losses = [x.tolist() for x in state["losses"]]
        self.tests = [[tuple(t) for t in tests] for tests in state["tests"]]
        self.step_done, self.seconds = state["step"], state["seconds"]


def plain(graph: Any) -> Callable[..., Tensor]:
    """A recorded graph without the reshapes that change nothing; they are a third of its calls."""
    idle = {torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default}
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
    shared = (SHARED - {"gamma0"}) | {"optimizer", "steps", "eval_every", "compile"}
    first = configs[0].model_dump(include=shared)
    for c in configs[1:]:
        different = [key for key, value in c.model_dump(include=shared).items() if value != first[key]]
        if different:
            raise InputError(f"the members of a fleet differ in numbers only (lr, momentum, decay, clip, gamma0, seed): {', '.join(different)} differ.")
    c = configs[0]
    if not possible(c):
        raise InputError(f"{NO_FLEET}: got {c.optimizer}, {c.dtype}, compile {c.compile}, random {setup(c).random}. Train them one by one.")


# -- fleet or one by one: measured once, remembered ---------------------------------------------------------------------------

PATIENCE = 0.03  # seconds a single step may take before a fleet cannot pay: such a step is arithmetic, not overhead
TRIAL = 8  # members of the trial fleet, if there are as many
MARGIN = 1.1  # a fleet must be this much faster: a trial of a few steps is noisy
STEPS = 5


def pays(config: RunConfig, members: int, memory: Path | None = None) -> bool:
    """Whether `members` runs like this one are faster as a fleet on this machine.

    The first question about a model and size is answered by a trial of a few steps (and by comparing the fleet's losses
    with the single runs'); the answer is kept in `memory`, a JSON file.
    """
    if members < 2 or not possible(config):
        return False
    members = min(members, TRIAL)
    key = _key(config, members)
    known: dict[str, float] = {}
    if memory is not None and memory.exists():
        try:
            known = json.loads(memory.read_text())
        except (OSError, json.JSONDecodeError):
            known = {}
    if key not in known:
        known[key] = trial(config, members)
        if memory is not None:
            memory.parent.mkdir(parents=True, exist_ok=True)
            draft = memory.with_suffix(".draft")
            draft.write_text(json.dumps(known, indent=1))
            draft.replace(memory)
    return known[key] > MARGIN


def trial(config: RunConfig, members: int) -> float:
    """Time of single runs over time of a fleet of `members`, 0 where a fleet is refused or disagrees."""
    config = config.changed(steps=max(config.steps, 2 * STEPS), eval_examples=0)
    try:
        return _raced(config, members)
    except Exception:
        return 0.0  # an operation vmap does not know, a model that asks for numbers, data that raises: one by one always works


def _raced(config: RunConfig, members: int) -> float:
    single = Run(config)
    single.step(0)
    begun = time.perf_counter()
    second = single.step(1)
    if time.perf_counter() - begun > PATIENCE:
        return 0.0
    fleet = Fleet([config.changed(seed=config.seed + i) for i in range(members)])
    fleet.step(0)
    fleet.step(1)
    other = Run(config.changed(seed=config.seed + 1))  # of another draw: what the model keeps outside its parameters and buffers is not stacked
    other.step(0)
    if not np.allclose([losses[-1] for losses in fleet.losses[:2]], [second, other.step(1)], rtol=1e-3, atol=0.0, equal_nan=True):
        return 0.0
    alone, together = [], []
    for step in range(2, 2 + STEPS):  # interleaved, so that other load on the machine meets both
        begun = time.perf_counter()
        single.step(step)
        alone.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        fleet.step(step)
        together.append(time.perf_counter() - begun)
    return members * min(alone) / min(together)


def _key(config: RunConfig, members: int) -> str:
    import platform

    what = config.model_dump(mode="json", include=SHARED - {"scheme", "base", "gamma0", "eval_examples"} | {"optimizer", "sources"})
    return json.dumps([what, members, torch.__version__, platform.processor() or platform.machine(), torch.get_num_threads()], sort_keys=True)
