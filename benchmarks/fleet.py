"""A fleet of runs against the same runs one by one in plain PyTorch, and our loop against a bare one.

python benchmarks/fleet.py
python benchmarks/fleet.py --rule       16 runs one by one over a fleet of 16, by size: where the rule of
                                        `trimtab.runs.fleet_or_single` comes from
python benchmarks/fleet.py --profile    where a fleet's time goes
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from records import Row, compare, in_turns, main

from trimtab.runs import fleet
from trimtab.runs.config import RunConfig
from trimtab.runs.fleet_or_single import choose
from trimtab.runs.losses import cross_entropy, forward
from trimtab.runs.tasks import prepare
from trimtab.runs.training import Run

FLEET = (
    "as a fleet: its products are batched, which gains where those of one run are too small to fill the "
    "processor; the rule goes by size alone, the same on every machine, since the two differ in rounding"
)
RATES = [2.0 ** (-6 + i / 2) for i in range(12)]


def plain(config: RunConfig, steps: int) -> Callable[[], None]:
    """What a user writes: model, torch's own optimizer, batches from memory, one run after the other."""
    made = prepare(config)
    runs = []
    for lr in RATES:
        model = made.start(0)
        cls = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[config.optimizer]
        runs.append((model, cls(model.parameters(), lr=lr * 1e-3)))

    def go() -> None:
        for model, optimizer in runs:
            for step in range(steps):
                batch = made.batch(0, step)
                loss = cross_entropy(forward(model, batch), batch)
                loss.item()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    return go


def ours(config: RunConfig, steps: int, together: bool) -> Callable[[], None]:
    """The same runs by trimtab, as a fleet or one by one; rates small enough that none diverges."""
    configs = [config.replace(lr=lr * 1e-3) for lr in RATES]
    if together:
        group = fleet.Fleet(configs)
        return lambda: [group.step(step) for step in range(steps)] and None
    runs = [Run(c) for c in configs]

    def go() -> None:
        for one in runs:
            for step in range(steps):
                one.losses.append(one.step(step))

    return go


def stepping(config: RunConfig) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of one run, and a step of a fleet of 16 like it."""
    single, group = (
        Run(config),
        fleet.Fleet([config.replace(seed=i % 3, lr=config.lr * (1 + i)) for i in range(16)]),
    )
    steps = itertools.count()

    def alone() -> None:
        single.step(next(steps))

    def together() -> None:
        group.step(next(steps))

    return alone, together


def rule() -> None:
    """The ratio against parameters and floating point operations of a step."""
    sizes = [
        ("mlp", w, d, {})
        for w, d in ((16, 6), (32, 12), (64, 6), (64, 24), (128, 6), (128, 12), (192, 6), (256, 6), (512, 6))
    ]
    sizes += [("resnet", w, 6, {"norm": n}) for w in (8, 16, 32, 64) for n in ("none", "batch")]
    sizes += [("vit", w, 2, {"patch": 4, "heads": 2}) for w in (16, 32, 64, 128)]
    for model, width, depth, options in sizes:
        shape = dict(model=model, width=width, depth=depth, base=(width, depth), model_options=options)
        config = RunConfig(**shape, lr=1e-4, optimizer="adamw", steps=50, eval_examples=0)
        made = prepare(config)
        alone, together = stepping(config)
        taken = in_turns({"alone": alone, "together": together}, 10)
        r = statistics.median(taken["alone"]) / statistics.median(taken["together"])
        numbers = sum(p.numel() for p in made.sample.parameters())
        print(
            f"{model:7s} width {width:4d} depth {depth:3d} {options!s:28s} {numbers:8d} parameters "
            f"{made.flops:9.2e} flops {16 * r:5.2f} x"
        )


def profile() -> None:
    config = RunConfig(width=32, depth=12, base=(32, 3), lr=0.1, eval_examples=0, steps=1000)
    group = fleet.Fleet([config.replace(lr=lr * 1e-3) for lr in RATES])
    group.step(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for step in range(1, 11):
            group.step(step)
    total = sum(e.self_cpu_time_total for e in profile.key_averages())
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total)[:8]:
        print(f"  {100 * event.self_cpu_time_total / total:5.1f} %  {event.key}")


MLP = RunConfig(width=32, depth=12, base=(32, 3), lr=0.1, eval_examples=0, steps=1000)
TASKS = {
    "residual MLP, 32 wide": MLP,
    "residual MLP, 64 wide": MLP.replace(width=64),
    "residual MLP, 256 wide": MLP.replace(width=256),
    "ResNet, 16 wide": RunConfig(model="resnet", width=16, depth=6, lr=0.1, eval_examples=0, steps=1000),
    "ViT, 32 wide": RunConfig(
        model="vit",
        width=32,
        depth=3,
        lr=0.001,
        optimizer="adamw",
        model_options={"patch": 2, "heads": 4},
        eval_examples=0,
        steps=1000,
    ),
}


def rows(tiny: bool = False) -> Iterator[Row]:
    torch.set_num_threads(1)
    steps, rounds = (1, 3) if tiny else (5, 10)
    peer = f"plain PyTorch {torch.__version__}"
    for name, config in list(TASKS.items())[: 1 if tiny else None]:
        together = choose(config).slots > 1
        taken = in_turns({"trimtab": ours(config, steps, together), peer: plain(config, steps)}, rounds)
        why = FLEET if together else "one by one, which the rule chose for this size"
        yield from compare(taken, f"12 runs, {name}", {peer: why})
    for width in (32,) if tiny else (32, 128):
        config = MLP.replace(width=width)
        taken = in_turns({"trimtab": ours(config, steps, False), peer: plain(config, steps)}, rounds)
        why = "the loop by itself: watching for divergence and keeping the curve, a fixed cost per step"
        yield from compare(taken, f"12 runs one by one, residual MLP, {width} wide", {peer: why})


if __name__ == "__main__":
    if "--rule" in sys.argv:
        rule()
    elif "--profile" in sys.argv:
        profile()
    else:
        main(rows)
