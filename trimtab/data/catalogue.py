"""The data sets that may be named: their options, and what each gives, told without opening it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """What a data set gives: the shape of one input, the number of classes (or outputs, or characters), how
    many."""

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


DATA: dict[str, dict[str, Option]] = {
    "digits": {},
    "cifar10": {
        "folder": Option(None, kind=str),
        "px": Option(32, among=(32, 16, 8)),
        "flip": Option(False, among=(True, False)),
        "crop": Option(0, above=-1),
        "train": Option(None, above=0),
    },
    "fashion-mnist": {
        "folder": Option(None, kind=str),
        "px": Option(28, among=(28, 14, 7)),
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

KIND = {
    **dict.fromkeys(("digits", "cifar10", "fashion-mnist", "images"), "image"),
    "text": "text",
    "teacher": "vector",
}


def shape_of(data: str, options: Mapping[str, Any]) -> Shape | None:
    """What a zoo data set gives, as far as it can be told without opening it."""
    get = lambda key: options.get(key, DATA[data][key].default)  # noqa: E731
    if data == "digits":
        return Shape((1, 8, 8), 10, "image", 1437)
    if data == "cifar10":
        return Shape((3, get("px"), get("px")), 10, "image", get("train") or 50_000)
    if data == "fashion-mnist":
        return Shape((1, get("px"), get("px")), 10, "image", get("train") or 60_000)
    if data == "teacher":
        return Shape((get("inputs"),), get("outputs"), "vector", get("train"))
    return None
