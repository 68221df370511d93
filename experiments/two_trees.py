"""One checkout against another: is this change slower?

    python experiments/two_trees.py ../before . --rounds 15

A process for each tree stays up; they take turns, a task at a time, on one thread. What is compared is the
CPU time of a task (its processes included), as the median of the ratios of the rounds, second tree over
first, with a 95 % interval of that median from the order of the rounds. Planning is timed without its
proof by one step, which the older of two trees may not have; `with proof` is there for those that do.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

SWEEP = """
name = "timed"
schemes = ["depth-mup"]
base = [32, 3]
widths = [32]
depths = [3, 6]
seeds = 2
fleet = {fleet}
[axes]
lr = {{ log2 = [-8, -3.5], step = 0.5 }}
[run]
model = "mlp"
steps = 60
"""


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.down(torch.relu(self.up(self.norm(h))))


def mlp(width: int, depth: int) -> nn.Module:
    blocks = (Block(width) for _ in range(depth))
    return nn.Sequential(nn.Linear(64, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def published(name: str, width: int, depth: int) -> nn.Module:
    import transformers

    if name == "gpt2":
        options: dict[str, Any] = dict(n_embd=width, n_layer=depth, n_head=4, vocab_size=256, n_positions=64)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**options))
    options = dict(hidden_size=width, intermediate_size=3 * width, num_hidden_layers=depth)
    options |= dict(num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))


def first_of(*names: str) -> Any:
    """The first of these modules that this tree has, old names first: they were moved, and a checkout that is
    installed would answer to the new ones."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(names[0])


def planning(build: Callable[[int, int], nn.Module], example: Any, proof: bool) -> Callable[[], None]:
    import trimtab

    cls: Any = trimtab.Parametrization
    if not proof and hasattr(cls, "try_one_step"):
        cls.try_one_step = lambda *_, **__: None
        importlib.import_module("trimtab.parametrization.proof.trial").prepare = lambda *_, **__: None

    def go() -> None:
        torch.manual_seed(0)
        model, base = build(128, 8), build(64, 4)
        trimtab.parametrize(model, base, example=example)

    return go


def config(**options: Any) -> Any:
    return first_of("trimtab.config", "trimtab.runs.config").RunConfig(**options)


def steps(number: int, **options: Any) -> Callable[[], None]:
    run = first_of("trimtab.train", "trimtab.runs.training").Run(config(**options))
    counter = iter(range(10**9))
    return lambda: [run.step(next(counter)) for _ in range(number)] and None


def fleet_steps(number: int) -> Callable[[], None]:
    configs = [config(width=32, depth=6, lr=2.0 ** (-6 - i / 4), steps=10**6) for i in range(16)]
    group = first_of("trimtab.fleet", "trimtab.runs.fleet").Fleet(configs)
    counter = iter(range(10**9))
    return lambda: [group.step(next(counter)) for _ in range(number)] and None


def whole_runs(number: int) -> Callable[[], None]:
    configs = [config(width=32, depth=3, lr=2.0 ** (-6 - i / 4), steps=400) for i in range(number)]
    if number == 1:
        run = first_of("trimtab.train", "trimtab.runs.training").run
        return lambda: run(configs[0]) and None
    together = first_of("trimtab.fleet", "trimtab.runs.fleet").run
    return lambda: together(configs) and None


def sweep(fleet: int) -> Callable[[], None]:
    import trimtab

    def go() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sweep.toml"
            path.write_text(SWEEP.format(fleet=fleet))
            trimtab.sweep(path, path.with_suffix(".db"), workers=1)

    return go


def tasks(proof: bool) -> dict[str, Callable[[], Callable[[], None]]]:
    ids, x = torch.randint(0, 256, (2, 16)), torch.randn(8, 64)
    gpt: dict[str, Any] = dict(
        model="gpt", data="text", width=64, depth=4, lr=1e-3, steps=10**6, batch_size=8
    )
    return {
        "plan MLP": lambda: planning(mlp, x, proof),
        "plan GPT-2": lambda: planning(lambda w, d: published("gpt2", w, d), {"input_ids": ids}, proof),
        "plan Llama": lambda: planning(lambda w, d: published("llama", w, d), {"input_ids": ids}, proof),
        "step MLP": lambda: steps(300, width=64, depth=6, lr=1e-3, steps=10**6),
        "step GPT": lambda: steps(20, **gpt),
        "run of 400 steps": lambda: whole_runs(1),
        "fleet step": lambda: fleet_steps(60),
        "fleet run of 16": lambda: whole_runs(16),
        "sweep of 80 cells": lambda: sweep(16),
    }


def spent() -> float:
    """CPU seconds of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def child(proof: bool) -> None:
    """Answer each name on standard input with the CPU seconds of that task."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    known, ready = tasks(proof), {}
    for line in sys.stdin:
        name = line.strip()
        if name not in ready:
            ready[name] = known[name]()
            ready[name]()  # once without the clock: imports, caches
        start = spent()
        ready[name]()
        print(spent() - start, file=answers, flush=True)


def open_tree(path: Path, proof: bool) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(path.resolve()), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *(["--with-proof"] if proof else [])]
    pipe = subprocess.PIPE
    log = subprocess.DEVNULL
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd="/")


def ask(tree: subprocess.Popen[str], name: str) -> float:
    assert tree.stdin is not None and tree.stdout is not None
    print(name, file=tree.stdin, flush=True)
    return float(tree.stdout.readline() or "nan")


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and the order statistics around it that hold 95 %."""
    ordered, n = sorted(values), len(values)
    k = max(0, int(n / 2 - 0.98 * n**0.5))
    return statistics.median(ordered), ordered[k], ordered[n - 1 - k]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="tasks whose name holds this")
    parser.add_argument("--with-proof", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.with_proof)
        return
    for name in (n for n in tasks(False) if given.only in n):
        trees = [open_tree(path, given.with_proof) for path in given.trees]
        ratios = []
        for number in range(given.rounds):
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {i: ask(trees[i], name) for i in order}
            ratios.append(seconds[1] / seconds[0])
        for tree in trees:
            tree.kill()
        middle, low, high = interval(ratios)
        print(f"{name:20} {middle:.3f} ({low:.3f} to {high:.3f}), {seconds[0]:.3g} s", flush=True)


if __name__ == "__main__":
    main()
