"""The models that may be named: their options, what follows from the data, and the sizes each refuses. No
torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.data.catalogue import Option, Shape
from trimtab.errors import Fault

MODELS: dict[str, dict[str, Option]] = {
    "mlp": {
        "inputs": Option(None, above=0),
        "classes": Option(None, above=0),
        "k": Option(1, above=0),
        "activation": Option("relu", among=("relu", "tanh", "gelu", "linear")),
        "norm": Option("none", among=("none", "layer")),
        "skip": Option(True, among=(True, False)),
        "branch_scale": Option(1.0, above=0, kind=(int, float)),
    },
    "resnet": {
        "channels": Option(None, above=0),
        "classes": Option(None, above=0),
        "k": Option(1, above=0),
        "norm": Option("none", among=("none", "batch", "layer")),
        "skip": Option(True, among=(True, False)),
        "branch_scale": Option(1.0, above=0, kind=(int, float)),
    },
    "vit": {
        "image": Option(None, above=0),
        "channels": Option(None, above=0),
        "classes": Option(None, above=0),
        "patch": Option(4, above=0),
        "heads": Option(8, above=0),
        "head_dim": Option(None, above=0),
        "norm": Option("layer", among=("none", "layer")),
        "branch_scale": Option(1.0, above=0, kind=(int, float)),
    },
    "gpt": {
        "vocabulary": Option(None, above=0),
        "context": Option(None, above=0),
        "heads": Option(4, above=0),
        "head_dim": Option(None, above=0),
        "branch_scale": Option(1.0, above=0, kind=(int, float)),
    },
}

FOLLOW = "leave it out and it follows the data"
TAKES = {"mlp": ("image", "vector"), "resnet": ("image",), "vit": ("image",), "gpt": ("text",)}


FITTING: dict[str, Callable[[Shape], dict[str, int]]] = {
    "mlp": lambda data: {"inputs": math.prod(data.inputs), "classes": data.classes},
    "resnet": lambda data: {"channels": data.inputs[0], "classes": data.classes},
    "vit": lambda data: {"image": data.inputs[-1], "channels": data.inputs[0], "classes": data.classes},
    "gpt": lambda data: {"vocabulary": data.classes, "context": data.inputs[0]},
}


def fitting(model: str, shape: Shape) -> dict[str, int]:
    """The options of a zoo model that follow from its data."""
    return FITTING[model](shape)


def size_faults(
    model: str, width: int, depth: int, options: Mapping[str, Any], shape: Shape | None, what: str = ""
) -> list[Fault]:
    """The sizes a zoo model refuses: arithmetic only."""
    get = lambda key: options.get(key, MODELS[model][key].default)  # noqa: E731
    found = []
    if model == "resnet" and depth % 3:
        law = "a resnet has three stages of depth/3 branches, so depth must be a multiple of 3"
        found.append(Fault(f"{what}depth", law, str(depth)))
    if model in ("vit", "gpt"):
        head_dim, heads = get("head_dim"), get("heads")
        if head_dim is not None and width % head_dim:
            got = f"width {width}, head_dim {head_dim}"
            found.append(Fault(f"{what}width", "must be divisible by head_dim", got))
        elif head_dim is None and width % heads:
            got, cure = f"width {width}, heads {heads}", "pass model_options.heads or head_dim"
            found.append(Fault(f"{what}width", "must be divisible by heads", got, cure))
    if shape is None:
        return found
    wanted = fitting(model, shape)
    for key, value in wanted.items():
        given = options.get(key)
        if given is not None and given != value and not (key in ("classes", "vocabulary") and given > value):
            found.append(Fault(f"model_options.{key}", f"the data has {value}", str(given), FOLLOW))
    if model == "vit" and shape.kind == "image" and shape.inputs[-1] % get("patch"):
        got = f"{shape.inputs[-1]} px, patch {get('patch')}"
        found.append(Fault("model_options.patch", "the image side must be a multiple of the patch", got))
    if model == "resnet" and shape.kind == "image" and shape.inputs[-1] < 4:
        law = "a resnet pools twice and needs images of at least 4 px"
        found.append(Fault("data", law, str(shape.inputs[-1])))
    return found
