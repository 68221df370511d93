"""Reference models in plain torch, as in arXiv 2309.16620: none of them knows of any parametrization.

Each is a `build(width, depth, **options) -> nn.Module`; what may be passed, and which sizes are refused, stands in
`trimtab.zoo`, which needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from trimtab.models import gpt, mlp, resnet, vit

BUILD: dict[str, Callable[..., nn.Module]] = {"mlp": mlp.build, "resnet": resnet.build, "vit": vit.build, "gpt": gpt.build}
