"""The optimizer step of a fleet: torch.optim's formulas over rows, each row with numbers of its own.

    theta (rows, D);    lr, weight decay, eps (rows, D), a member's rate times its parameters' factors;
    momentum, betas, clip (rows, 1)

A row that has diverged gets a rate of 0 and stays where it is, so that the shapes never change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from trimtab.parametrization.result import Parametrization
from trimtab.runs.batch_and_length import carried
from trimtab.runs.config import RunConfig, decay, rate
from trimtab.runs.devices import Device

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
MOMENTS = {"sgd": 1, "adam": 2, "adamw": 2}


class RowOptimizer:
    """Steps `theta` (rows, D) in place.

    Args:
        moments: as many as MOMENTS says, each like `theta`, moved in place too.
        configs, plans: of the run that each row is.
        sizes: {parameter: number of elements}, in the order of the columns.
    """

    def __init__(
        self,
        theta: Tensor,
        moments: list[Tensor],
        *,
        configs: Sequence[RunConfig],
        plans: Sequence[Parametrization],
        sizes: Mapping[str, int],
        device: Device,
    ):
        self.theta, self.moments, self.configs, self.device = theta, moments, configs, device
        moved = {id(c): carried(c) for c in configs}  # rows that pad a fleet repeat a member
        members = [moved[id(c)] for c in configs]
        kinds = [_kind(c) for c in members]
        firsts: dict[str, tuple[RunConfig, Parametrization]] = {}
        for kind, member, plan in zip(kinds, members, plans, strict=True):
            firsts.setdefault(kind, (member, plan))
        factors = {kind: self._factors(*first, sizes) for kind, first in firsts.items()}

        def over(key: str) -> Tensor:
            return torch.stack([factors[kind][key] for kind in kinds])

        def column(values: Iterable[float], dtype: torch.dtype = theta.dtype) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=theta.device)[:, None]

        self.lr = over("lr") * column(c.lr for c in members)
        self.decay = over("weight_decay") * column(c.weight_decay for c in members)
        self.eps = over("eps") * column(c.eps for c in members)
        self.momentum, self.heavy = column(c.momentum for c in members), any(c.momentum for c in members)
        # 1 - b2 in float32 would be off by 3e-5
        self.betas = [column((c.betas[i] for c in members), torch.float64) for i in (0, 1)]
        self.nesterov = column((c.nesterov for c in members), torch.bool)
        self.clip_weight = over("clip") if any(c.clip is not None for c in members) else None
        self.clip = column(math.inf if c.clip is None else c.clip for c in members)
        self.scheduled = any(
            c.schedule != "constant" or c.warmup or c.decay_schedule != "constant" for c in members
        )
        self.decayed = any(c.weight_decay for c in members)

    def _factors(
        self, member: RunConfig, plan: Parametrization, sizes: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """{number: its factors, one for each element of a row}."""
        lengths = torch.tensor(list(sizes.values()), device=self.theta.device)

        def spread(values: list[float]) -> Tensor:
            numbers = torch.tensor(values, dtype=self.theta.dtype, device=self.theta.device)
            return numbers.repeat_interleave(lengths, output_size=sum(sizes.values()))

        found = plan.factors(
            OPTIMIZERS[member.optimizer],
            momentum=member.momentum,
            nesterov=member.nesterov,
            weight_decay=member.weight_decay,
        )
        clip = [1.0 if plan.scheme.identity else plan[n].u / plan[n].s for n in sizes]
        numbers = {key: spread([found[n][key] for n in sizes]) for key in ("lr", "weight_decay", "eps")}
        return numbers | {"clip": spread(clip)}

    def freeze(self, row: int) -> None:
        """Leave a row where it is from now on."""
        self.lr[row] = 0.0

    @torch.no_grad()
    def step(self, step: int, g: Tensor) -> None:
        """One update by the gradients `g` (rows, D)."""
        lr, wd = self.lr, self.decay
        if self.scheduled:
            rates = [[rate(step, c) for c in self.configs], [decay(step, c) for c in self.configs]]
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


def _kind(config: RunConfig) -> str:
    """What the factors of a size depend on: members of a kind have the same."""
    return json.dumps([config.gamma0, config.roles], sort_keys=True)
