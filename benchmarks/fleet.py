"""A fleet of runs against the same runs one by one in plain PyTorch, and the loop against a bare one; ratios
in one run.

    python benchmarks/fleet.py
    python benchmarks/fleet.py --rule       16 runs one by one over a fleet of 16, by size: where the rule of
    `trimtab.slots` comes from

Interleaved, one thread, the best of several rounds of each side, since other load on a machine only ever adds
time.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

import torch

from trimtab.runs import fleet
from trimtab.runs.config import RunConfig
from trimtab.runs.fleet_rule import choose
from trimtab.runs.losses import cross_entropy, forward
from trimtab.runs.tasks import prepare
from trimtab.runs.training import Run

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


def ratio(a: Callable[[], None], b: Callable[[], None], rounds: int) -> tuple[float, float, float]:
    """(time of a over time of b, both in ms)."""
    best = [float("inf"), float("inf")]
    a(), b()
    for _ in range(rounds):
        for i, side in enumerate((a, b)):
            begun = time.perf_counter()
            side()
            best[i] = min(best[i], time.perf_counter() - begun)
    return best[0] / best[1], best[0] * 1e3, best[1] * 1e3


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
        r, _, _ = ratio(*stepping(config), 10)
        numbers = sum(p.numel() for p in made.sample.parameters())
        print(
            f"{model:7s} width {width:4d} depth {depth:3d} {options!s:28s} {numbers:8d} parameters "
            f"{made.flops:9.2e} flops {16 * r:5.2f} x"
        )


def main() -> None:
    torch.set_num_threads(1)
    if "--rule" in sys.argv:
        return rule()
    mlp = RunConfig(width=32, depth=12, base=(32, 3), lr=0.1, eval_examples=0, steps=1000)
    print("fleet of 12 rates, residual MLP, batch 64, depth 12: plain PyTorch one by one / fleet")
    for width, wanted in ((32, 3.0), (64, 1.6)):
        config = mlp.replace(width=width)
        r, a, b = ratio(plain(config, 10), ours(config, 10, True), 15)
        print(
            f"  width {width:4d}: {r:5.2f} x   (wanted {wanted})   {a / 120:.3f} ms a step one by one, "
            f"{b / 120:.3f} ms together"
        )
    print("automatic choice: plain PyTorch one by one / trimtab")
    others = {
        "mlp 256": mlp.replace(width=256),
        "mlp 128": mlp.replace(width=128),
        "resnet 16": RunConfig(model="resnet", width=16, depth=6, lr=0.1, eval_examples=0, steps=1000),
        "vit 32": RunConfig(
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
    for name, config in others.items():
        together = choose(config).slots > 1
        r, _, _ = ratio(plain(config, 5), ours(config, 5, together), 6)
        print(f"  {name:10s}: {r:5.2f} x   (wanted 0.95)   {'fleet' if together else 'one by one'}")
    print("the loop itself: trimtab one by one / plain PyTorch")
    for width in (32, 128):
        config = mlp.replace(width=width)
        r, _, _ = ratio(ours(config, 10, False), plain(config, 10), 15)
        print(f"  mlp {width:4d}: {r:5.3f} x   (wanted at most 1.05)")
    config = mlp.replace(width=32)
    group = fleet.Fleet([config.replace(lr=lr * 1e-3) for lr in RATES])
    group.step(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for step in range(1, 11):
            group.step(step)
    print("where a fleet's time goes (width 32):")
    total = sum(e.self_cpu_time_total for e in profile.key_averages())
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total)[:8]:
        print(f"  {100 * event.self_cpu_time_total / total:5.1f} %  {event.key}")


if __name__ == "__main__":
    main()
