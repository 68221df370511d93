"""The models that may be named: their options, what follows from the data, and the sizes each refuses. No
torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trimtab.data.catalogue import Option, Shape

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

TAKES = {"mlp": ("image", "vector"), "resnet": ("image",), "vit": ("image",), "gpt": ("text",)}


def fitting(model: str, shape: Shape) -> dict[str, int]:
    """The options of a zoo model that follow from its data."""
    if model == "mlp":
        return {"inputs": math.prod(shape.inputs), "classes": shape.classes}
    if model == "resnet":
        return {"channels": shape.inputs[0], "classes": shape.classes}
    if model == "vit":
        return {"image": shape.inputs[-1], "channels": shape.inputs[0], "classes": shape.classes}
    return {"vocabulary": shape.classes, "context": shape.inputs[0]}


def size_faults(
    model: str, width: int, depth: int, options: Mapping[str, Any], shape: Shape | None, what: str = ""
) -> list[str]:
    """The sizes a zoo model refuses: arithmetic only."""
    get = lambda key: options.get(key, MODELS[model][key].default)  # noqa: E731
    found = []
    if model == "resnet" and depth % 3:
        found.append(
            f"{what}depth: a resnet has three stages of depth/3 branches, so depth must be a multiple of 3: "
            f"got {depth}"
        )
    if model in ("vit", "gpt"):
        head_dim, heads = get("head_dim"), get("heads")
        if head_dim is not None and width % head_dim:
            found.append(
                f"{what}width: must be divisible by head_dim: got width {width}, head_dim {head_dim}"
            )
        elif head_dim is None and width % heads:
            found.append(
                f"{what}width: must be divisible by heads: got width {width}, heads {heads}; pass "
                "model_options.heads or head_dim"
            )
    if shape is None:
        return found
    wanted = fitting(model, shape)
    for key, value in wanted.items():
        given = options.get(key)
        if given is not None and given != value and not (key in ("classes", "vocabulary") and given > value):
            found.append(
                f"model_options.{key}: the data has {value}: got {given}; leave it out and it follows the "
                "data"
            )
    if model == "vit" and shape.kind == "image" and shape.inputs[-1] % get("patch"):
        found.append(
            f"model_options.patch: the image side must be a multiple of the patch: got {shape.inputs[-1]} "
            f"px, patch {get('patch')}"
        )
    if model == "resnet" and shape.kind == "image" and shape.inputs[-1] < 4:
        found.append(f"data: a resnet pools twice and needs images of at least 4 px: got {shape.inputs[-1]}")
    return found
