"""The builder behind a model's name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from trimtab.models import gpt, mlp, resnet, vit

BUILD: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp.build,
    "resnet": resnet.build,
    "vit": vit.build,
    "gpt": gpt.build,
}
