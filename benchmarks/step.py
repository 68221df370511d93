"""What a training step and the plan cost: plain PyTorch, mup and unit-scaling on the same network, in turns.

    python benchmarks/step.py

Guarantee: at most 3 % over plain fused AdamW. The network is an embedding, residual blocks (norm, up, GELU,
down) and a readout, each written in its package's own layers: mup needs its readout, unit-scaling its own
modules for all of it. Optimizers are AdamW with fused kernels in all four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import torch
import torch.nn.functional as F
from records import Row, compare, in_turns, main, version
from torch import nn

import trimtab

WORDS = 256
BEHIND_PLAIN = "one fused launch per group of equal factors instead of one for all"
PLAN = (
    "mup compares shapes alone. trimtab runs and reads the forward, verifies every branch by numbers and "
    "tries a step, once per training; in return it takes unmodified models and depth"
)


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.down(F.gelu(self.up(self.norm(h))))


def plain(width: int, depth: int, head: Callable[[int, int], nn.Module] = nn.Linear) -> nn.Module:
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Embedding(WORDS, width), *blocks, nn.LayerNorm(width), head(width, WORDS))


def unit_scaled(uu: ModuleType, width: int, depth: int) -> nn.Module:
    """The same network in unit-scaling's layers; depth enters through its container."""
    import unit_scaling.functional as U

    class UnitBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = uu.LayerNorm(width), uu.Linear(width, 4 * width, bias=True)
            self.down = uu.Linear(4 * width, width, bias=True)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return U.residual_apply(lambda z: self.down(U.gelu(self.up(self.norm(z)))), h, tau=0.5**0.5)

    blocks = uu.DepthSequential(*(UnitBlock() for _ in range(depth)))
    head = uu.LinearReadout(width, WORDS, bias=True)
    return nn.Sequential(uu.Embedding(WORDS, width), blocks, uu.LayerNorm(width), head)


def stepping(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor, loss=F.cross_entropy):
    def go() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            loss(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()

    return go


def contestants(width: int, depth: int, ids: torch.Tensor) -> tuple[dict[str, Callable[[], None]], int]:
    """{name: some steps of training}, those whose package is installed; and trimtab's number of groups."""
    hyper = dict(lr=1e-3, weight_decay=0.01, fused=True)
    model, mine = plain(width, depth), plain(width, depth)
    ours = trimtab.parametrize(mine, plain(32, 2), example=ids).optimizer(torch.optim.AdamW, **hyper)
    torch_name = f"plain PyTorch {torch.__version__}"
    sides = {torch_name: stepping(model, torch.optim.AdamW(model.parameters(), **hyper), ids)}
    sides["trimtab"] = stepping(mine, ours, ids)
    if version("mup"):
        import mup

        theirs = plain(width, depth, mup.MuReadout)
        shapes = [plain(n, depth, mup.MuReadout) for n in (32, 48)]
        mup.set_base_shapes(theirs, shapes[0], delta=shapes[1])
        sides[f"mup {version('mup')}"] = stepping(theirs, mup.MuAdamW(theirs.parameters(), **hyper), ids)
    if version("unit-scaling"):
        import unit_scaling as uu

        theirs = unit_scaled(uu, width, depth)
        optimizer = uu.optim.AdamW(theirs.parameters(), **hyper)
        loss = uu.functional.cross_entropy
        sides[f"unit-scaling {version('unit-scaling')}"] = stepping(theirs, optimizer, ids, loss)
    return sides, len(ours.param_groups)


def step_rows(tiny: bool) -> Iterator[Row]:
    ids = torch.randint(0, WORDS, (2, 8) if tiny else (8, 32))
    for width, depth in ((32, 2),) if tiny else ((64, 4), (256, 8)):
        sides, groups = contestants(width, depth, ids)
        what = f"4 training steps, residual MLP {width} wide, {depth} deep"
        why = {name: f"{groups} groups, {BEHIND_PLAIN}" * ("plain" in name) for name in sides}
        why.pop("trimtab")
        yield from compare(in_turns(sides, 3 if tiny else 30), what, why)


def plan_rows(tiny: bool) -> Iterator[Row]:
    """From a built model to an optimizer: once per training."""
    if not version("mup"):
        return
    import mup

    width, depth = (32, 2) if tiny else (256, 8)
    ids = torch.randint(0, WORDS, (2, 8))

    def ours() -> None:
        p = trimtab.parametrize(plain(width, depth), plain(32, depth), example=ids)
        p.optimizer(torch.optim.AdamW, lr=1e-3)

    def theirs() -> None:
        model = plain(width, depth, mup.MuReadout)
        shapes = [plain(n, depth, mup.MuReadout) for n in (32, 48)]
        mup.set_base_shapes(model, shapes[0], delta=shapes[1])
        mup.MuAdamW(model.parameters(), lr=1e-3)

    name = f"mup {version('mup')}"
    taken = in_turns({"trimtab": ours, name: theirs}, 2 if tiny else 10)
    yield from compare(taken, f"build and plan the same network, {width} wide, {depth} deep", {name: PLAN})


def rows(tiny: bool = False) -> Iterator[Row]:
    torch.set_num_threads(1)
    yield from step_rows(tiny)
    yield from plan_rows(tiny)


if __name__ == "__main__":
    main(rows)
