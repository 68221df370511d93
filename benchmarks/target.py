"""What it costs to find the target's learning rate, and how good the answer is.

    python benchmarks/target.py

A residual MLP on the digits, AdamW, 100 steps, to be trained 512 wide. Three ways to its numbers:

    trimtab   `trimtab.tune` at width 64 (its default search: rate, gamma0, the input's rate), carried to 512
    Optuna    its TPE sampler on the rate alone at 512 itself, in the standard parametrization (sp)
    FLeRM     (arXiv 2502.17405) the rate tuned at 64 in the standard parametrization; then each tensor's
              rate at 512 is set so that its step alone moves the network's outputs as far as it did at 64

Costs are FLOPs of training. Losses are geometric means over fresh seeds that no choice has seen. A repetition
is the whole search with another seed. FLeRM is written here from its idea: outputs before and after one
tensor's step, by two forwards, where its authors estimate the change by Monte Carlo from a backward.
"""

from __future__ import annotations

import copy
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import Row, main, version
from torch import nn
from torch.func import functional_call

import trimtab
from trimtab.runs.config import RunConfig
from trimtab.runs.losses import cross_entropy, forward
from trimtab.runs.results import smooth
from trimtab.runs.tasks import prepare
from trimtab.runs.training import run
from trimtab.tuning.space import settings

RUN = dict(model="mlp", data="digits", optimizer="adamw", batch_size=64, eval_examples=0)
RATES = (2.0**-13, 2.0**-3)
EVERY = 10  # steps between two measurements of FLeRM
KNOWN = (
    "the numbers are chosen at the base alone: what the target would prefer and the base does not show is "
    "not found (docs/tune.md)"
)


class Task:
    """The sizes and counts of one benchmark."""

    def __init__(self, tiny: bool) -> None:
        self.base, self.target = ((16, 2), (32, 2)) if tiny else ((64, 3), (512, 3))
        self.run = RUN | {"steps": 4 if tiny else 100}
        self.trials, self.searched = (2, 4) if tiny else (12, 48)
        self.fresh = range(100, 102 if tiny else 108)
        self.rounds = 1 if tiny else 3

    def at(self, size: tuple[int, int], **fields: Any) -> RunConfig:
        return RunConfig(**self.run | dict(width=size[0], depth=size[1], base=self.base) | fields)


def log_loss(config: RunConfig) -> float:
    found = run(config)
    return math.log(found.train_loss) if found.train_loss and not found.collapsed else math.inf


def direct(task: Task, size: tuple[int, int], scheme: str, seed: int) -> tuple[float, float]:
    """(rate, FLOPs): Optuna's default sampler on the rate, two seeds a trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", *RATES, log=True)
        return statistics.mean(
            min(10.0, log_loss(task.at(size, scheme=scheme, lr=lr, seed=s))) for s in (0, 1)
        )

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=task.trials)
    flops = prepare(task.at(size, scheme=scheme, lr=1e-3)).flops * task.run["steps"]
    return study.best_params["lr"], 2 * task.trials * flops


def tuned(task: Task, seed: int) -> tuple[dict[str, Any], float]:
    """(fields of a run at the target, FLOPs): `trimtab.tune` with what it searches by default."""
    table = dict(base=list(task.base), target=list(task.target), run=task.run, seeds=2, seed=seed)
    table |= dict(trials=task.searched, per_round=min(16, task.searched))
    with tempfile.TemporaryDirectory() as folder:
        found = trimtab.tune(table, Path(folder) / "tune.db", workers=2)
    return settings(found.best.values, {}), found.cost.flops


# -- FLeRM --------------------------------------------------------------------------------------------------


def moved(model: nn.Module, before: dict[str, torch.Tensor], batch: Any) -> dict[str, float]:
    """{tensor: rms change of the outputs when this tensor alone makes its step}."""
    after = dict(model.named_parameters())
    inputs = batch[0]
    with torch.no_grad():
        old = functional_call(model, before, (inputs,))
        new = {name: functional_call(model, before | {name: after[name]}, (inputs,)) for name in after}
    return {name: float((out - old).square().mean().sqrt()) for name, out in new.items()}


def flerm(
    task: Task, size: tuple[int, int], lr: float, seed: int, like: list[dict[str, float]] | None = None
) -> tuple[float, list[dict[str, float]]]:
    """(log loss, changes at each measurement); with `like`, rates that give those changes.

    At a measurement the step is made once to be looked at, and again with each tensor's rate times (change
    wanted / change seen).
    """
    config = task.at(size, scheme="sp", lr=lr, seed=seed)
    made = prepare(config)
    model = made.start(seed)
    groups = [{"params": [w]} for w in model.parameters()]
    optimizer = torch.optim.AdamW(
        groups, lr=lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    names, seen, losses = [name for name, _ in model.named_parameters()], [], []
    for step in range(config.steps):
        batch = made.batch(seed, step)
        loss = cross_entropy(forward(model, batch), batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if step % EVERY == 0:
            before = {name: w.detach().clone() for name, w in model.named_parameters()}
            state = copy.deepcopy(optimizer.state_dict())
            optimizer.step()
            seen.append(moved(model, before, batch))
            if like is not None:
                rates = [g["lr"] for g in optimizer.param_groups]
                optimizer.load_state_dict(state)
                with torch.no_grad():
                    for name, w in model.named_parameters():
                        w.copy_(before[name])
                for name, group, rate in zip(names, optimizer.param_groups, rates, strict=True):
                    now = seen[-1][name]
                    group["lr"] = rate * like[len(seen) - 1][name] / now if now else rate
                optimizer.step()
            continue
        optimizer.step()
    return math.log(float(smooth(np.array(losses), config.steps)[-1])), seen


# -- the rows -----------------------------------------------------------------------------------------------


def rows(tiny: bool = False) -> Iterator[Row]:
    torch.set_num_threads(1)
    task = Task(tiny)
    ways = ("sp",) if version("optuna") else ()
    costs: dict[str, list[float]] = {name: [] for name in ("ours", *ways)}
    losses: dict[str, list[float]] = {name: [] for name in ("ours", *ways, "flerm")}
    for seed in range(task.rounds):
        chosen, spent = tuned(task, seed)
        costs["ours"].append(spent)
        losses["ours"].append(_final(task, scheme="depth-mup", **chosen))
        for scheme in ways:
            lr, spent = direct(task, task.target, scheme, seed)
            costs[scheme].append(spent)
            losses[scheme].append(_final(task, scheme=scheme, lr=lr))
        if ways:
            lr, _ = direct(task, task.base, "sp", seed)
            wanted = flerm(task, task.base, lr, seed=0)[1]
            found = [flerm(task, task.target, lr, seed=s, like=wanted)[0] for s in task.fresh]
            losses["flerm"].append(math.exp(statistics.mean(found)))
    size = f"{task.base[0]} to {task.target[0]} wide"
    for scheme in ways:
        peer = f"Optuna {version('optuna')}, TPE at the target, {scheme}"
        why = f"{task.trials} rates, 2 seeds each; trimtab searched three hyperparameters at the base"
        yield _row(costs["ours"], costs[scheme], f"FLOPs to choose the rate, {size}", peer, "FLOP", why)
        yield _row(losses["ours"], losses[scheme], f"loss with it at the target, {size}", peer, "", KNOWN)
    if losses["flerm"]:
        peer, what = "FLeRM's idea (2502.17405)", f"loss with carried numbers at the target, {size}"
        why = "measured rates carry the standard parametrization's tuned rate over width; "
        why += "no plan is needed, but every layer is measured in training at both sizes"
        yield _row(losses["ours"], losses["flerm"], what, peer, "", why)


def _final(task: Task, **fields: Any) -> float:
    """Geometric mean of the target's losses over the fresh seeds."""
    return math.exp(statistics.mean(log_loss(task.at(task.target, seed=s, **fields)) for s in task.fresh))


def _row(ours: list[float], theirs: list[float], what: str, peer: str, unit: str, why: str) -> Row:
    return Row(
        what=what,
        peer=peer,
        unit=unit,
        ours=statistics.median(ours),
        theirs=statistics.median(theirs),
        ratios=tuple(t / o for t, o in zip(theirs, ours, strict=True)),
        why=why,
    )


if __name__ == "__main__":
    main(rows)
