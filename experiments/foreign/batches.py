"""What the foreign models are: a record per model, and the small batches that they learn.

A batch can be learned and has few targets: next tokens of a chain with two successors each, the classes of a
linear teacher, a smooth image. The change of an output that nothing teaches is chance and falls as N^-1/2
whatever the rule (tests/support/movement.py says what was tried).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, CLASSES, ROWS, LENGTH = 16, 8, 16, 16


@dataclasses.dataclass(frozen=True, eq=False)
class Foreign:
    """One published model.

    Args:
        group: the package or list that it belongs to.
        name: of the model or of its options.
        build: (width, depth) -> the model.
        batch: keyword or positional inputs of the forward.
        loss: (output tensor) -> scalar.
        base: its (width, depth).
        skip: axes over which the model has no size: "depth" where one number of layers is built in.
        told: (width, depth) -> the model built as a refusal asks for it.
    """

    group: str
    name: str
    build: Callable[[int, int], nn.Module]
    batch: dict[str, Tensor] | tuple[Any, ...]
    loss: Callable[[Tensor], Tensor]
    base: tuple[int, int] = (64, 2)
    skip: tuple[str, ...] = ()
    told: Callable[[int, int], nn.Module] | None = None


def _chain() -> Tensor:
    g = torch.Generator().manual_seed(0)
    follows = torch.randint(0, TOKENS, (TOKENS, 2), generator=g)
    ids = [torch.randint(0, TOKENS, (ROWS,), generator=g)]
    for _ in range(LENGTH - 1):
        ids.append(follows[ids[-1], torch.randint(0, 2, (ROWS,), generator=g)])
    return torch.stack(ids, 1) + 3  # 0 to 2 are for padding, start and end


def _images(size: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = F.interpolate(torch.randn(ROWS, 3, 8, 8, generator=g), size=(size, size), mode="bilinear")
    teacher = torch.randn(48, CLASSES, generator=g)
    return x, (F.adaptive_avg_pool2d(x, 4).flatten(1) @ teacher).argmax(-1)


IDS = _chain()
VOCABULARY = TOKENS + 4
IMAGES, LABELS = _images(32)


def next_token(logits: Tensor) -> Tensor:
    """Cross-entropy of the token that follows."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


def class_of(logits: Tensor) -> Tensor:
    """Cross-entropy of the teacher's class."""
    return F.cross_entropy(logits, LABELS)


def regression(target: Tensor) -> Callable[[Tensor], Tensor]:
    """Mean square distance to a fixed target."""
    return lambda out: F.mse_loss(out, target)


def output_of(result: Any) -> Tensor:
    """The tensor that a forward is about."""
    for name in ("logits", "sample", "last_hidden_state"):
        if hasattr(result, name):
            return getattr(result, name)
    return result[0] if isinstance(result, tuple | list) else result


def call(model: nn.Module, batch: Any) -> Tensor:
    """One forward, its output tensor."""
    return output_of(model(**batch) if isinstance(batch, dict) else model(*batch))


def without_chance(model: nn.Module) -> nn.Module:
    """Every dropout off: the measurement is of one function."""
    for module in model.modules():
        for key, value in vars(module).items():
            if "drop" in key and isinstance(value, float):
                setattr(module, key, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model
