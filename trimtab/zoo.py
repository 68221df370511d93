"""What may be named in a configuration, and which sizes each name refuses. No torch: sweeps are checked with this.

A name is one of the lists here, or the user's own `pkg.mod:function` / `file.py:function`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """What a data set gives: the shape of one input, the number of classes (or outputs, or characters), how many."""

    inputs: tuple[int, ...]
    classes: int
    kind: str  # "image" | "vector" | "text"
    train: int | None = None  # examples in the training set; None: not known before it is opened, or endless


@dataclass(frozen=True)
class Option:
    """One option of a zoo name: its default and what it may be."""

    default: Any
    among: tuple[Any, ...] | None = None
    above: float | None = None
    kind: type | tuple[type, ...] = int


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

DATA: dict[str, dict[str, Option]] = {
    "digits": {},
    "cifar10": {
        "folder": Option(None, kind=str),
        "px": Option(32, among=(32, 16, 8)),
        "flip": Option(False, among=(True, False)),
        "crop": Option(0, above=-1),
        "train": Option(None, above=0),
    },
    "images": {
        "folder": Option(None, kind=str),
        "px": Option(64, above=0),
        "flip": Option(False, among=(True, False)),
        "crop": Option(False, among=(True, False)),
        "workers": Option(2, above=-1),
        "cache_gb": Option(1.0, above=-1, kind=(int, float)),
    },
    "text": {"file": Option(None, kind=str), "context": Option(64, above=0)},
    "teacher": {
        "inputs": Option(16, above=0),
        "outputs": Option(1, above=0),
        "train": Option(256, above=0),
        "test": Option(256, above=0),
        "width": Option(64, above=0),
        "activation": Option("tanh", among=("relu", "tanh", "linear")),
        "noise": Option(0.0, above=-1, kind=(int, float)),
        "draw": Option(0, above=-1),
    },
}

LOSSES = ("cross-entropy", "mse")


def unknown(what: str, name: Any, known: Iterable[str], *, own: bool = True) -> str:
    """A fault that lists the known names and the nearest.

    >>> unknown("model", "resnett", ["mlp", "resnet"])
    "model: unknown name 'resnett', nearest 'resnet'; known: mlp, resnet, or your own pkg.mod:function"
    """
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{what}: unknown name {str(name)[:80]!r}{f', nearest {near[0]!r}' if near else ''}; known: {', '.join(known)}{', or your own pkg.mod:function' if own else ''}"


def own(name: Any) -> bool:
    """Whether a name is a user's function rather than one of the zoo's."""
    return isinstance(name, str) and ":" in name


def option_faults(what: str, table: Mapping[str, Mapping[str, Option]], name: str, options: Mapping[str, Any]) -> list[str]:
    """Every fault of the options given to one zoo name."""
    found = []
    for key, value in options.items():
        option = table[name].get(key)
        if option is None:
            found.append(unknown(f"{what}_options", key, table[name], own=False))
        elif option.among is not None:
            if value not in option.among or isinstance(value, bool) != isinstance(option.among[0], bool):
                found.append(f"{what}_options.{key}: must be one of {', '.join(map(str, option.among))}: got {value!r}")
        elif value is None and option.default is None:
            continue
        elif value is None or not isinstance(value, option.kind) or isinstance(value, bool):
            wanted = "a number" if option.kind == (int, float) else {int: "a whole number", str: "a text"}[option.kind]  # type: ignore[index]
            found.append(f"{what}_options.{key}: must be {wanted}: got {value!r}")
        elif option.above is not None and not option.above < float(value) < math.inf:
            found.append(f"{what}_options.{key}: must be > {option.above:g}: got {value!r}")
    return found


def shape_of(data: str, options: Mapping[str, Any]) -> Shape | None:
    """What a zoo data set gives, as far as it can be told without opening it."""
    get = lambda key: options.get(key, DATA[data][key].default)  # noqa: E731
    if data == "digits":
        return Shape((1, 8, 8), 10, "image", 1437)
    if data == "cifar10":
        return Shape((3, get("px"), get("px")), 10, "image", get("train") or 50_000)
    if data == "teacher":
        return Shape((get("inputs"),), get("outputs"), "vector", get("train"))
    return None


def fitting(model: str, shape: Shape) -> dict[str, int]:
    """The options of a zoo model that follow from its data."""
    if model == "mlp":
        return {"inputs": math.prod(shape.inputs), "classes": shape.classes}
    if model == "resnet":
        return {"channels": shape.inputs[0], "classes": shape.classes}
    if model == "vit":
        return {"image": shape.inputs[-1], "channels": shape.inputs[0], "classes": shape.classes}
    return {"vocabulary": shape.classes, "context": shape.inputs[0]}


TAKES = {"mlp": ("image", "vector"), "resnet": ("image",), "vit": ("image",), "gpt": ("text",)}
KIND = {"digits": "image", "cifar10": "image", "images": "image", "text": "text", "teacher": "vector"}


def size_faults(model: str, width: int, depth: int, options: Mapping[str, Any], shape: Shape | None, what: str = "") -> list[str]:
    """The sizes a zoo model refuses: arithmetic only."""
    get = lambda key: options.get(key, MODELS[model][key].default)  # noqa: E731
    found = []
    if model == "resnet" and depth % 3:
        found.append(f"{what}depth: a resnet has three stages of depth/3 branches, so depth must be a multiple of 3: got {depth}")
    if model in ("vit", "gpt"):
        head_dim, heads = get("head_dim"), get("heads")
        if head_dim is not None and width % head_dim:
            found.append(f"{what}width: must be divisible by head_dim: got width {width}, head_dim {head_dim}")
        elif head_dim is None and width % heads:
            found.append(f"{what}width: must be divisible by heads: got width {width}, heads {heads}; pass model_options.heads or head_dim")
    if shape is None:
        return found
    wanted = fitting(model, shape)
    for key, value in wanted.items():
        given = options.get(key)
        if given is not None and given != value and not (key in ("classes", "vocabulary") and given > value):
            found.append(f"model_options.{key}: the data has {value}: got {given}; leave it out and it follows the data")
    if model == "vit" and shape.kind == "image" and shape.inputs[-1] % get("patch"):
        found.append(f"model_options.patch: the image side must be a multiple of the patch: got {shape.inputs[-1]} px, patch {get('patch')}")
    if model == "resnet" and shape.kind == "image" and shape.inputs[-1] < 4:
        found.append(f"data: a resnet pools twice and needs images of at least 4 px: got {shape.inputs[-1]}")
    return found
