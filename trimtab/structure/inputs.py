"""Inputs for a model that came without any, read from the layers that could take them.

    an embedding       whole numbers below its vocabulary, (batch, time), time within a table of positions
    a convolution      images (or series, or volumes) of its channels
    a linear layer     vectors of its features, or sequences of them
    a recurrent layer  sequences of its features

Layers are taken in the order in which the model holds them. A candidate counts only if every given model's
forward runs on it; the first that does is used, and its words say what it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trimtab.structure.recording import as_call, tensors_in, untouched

TIMES = (16, 8, 4, 2)  # lengths of a sequence
# Of what a convolution takes, by dimensions.
SIDES = {1: (16, 64, 256), 2: (32, 64, 224, 28, 16, 8), 3: (8, 16, 32)}
MOST = 60  # forwards tried at most


class Inferred(NamedTuple):
    """Inputs that run, and what they are in words; where none did, `example` is None; see `tried`, and
    `halfway`: what ran through some of the models and how another failed on it."""

    example: Any
    words: str
    tried: tuple[str, ...] = ()
    halfway: str = ""


def infer(*models: nn.Module, batch: int = 2) -> Inferred:
    """Inputs that every one of the models runs on; `.example` is None where none were found.

    >>> infer(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))).words
    'vectors of shape (2, 6)'
    >>> infer(nn.Sequential(nn.Embedding(65, 8), nn.Linear(8, 65))).words
    'ids of shape (2, 16) below 65'
    """
    tried: dict[str, None] = {}
    halfway = ""
    for example, words in candidates(models[0], batch):
        if words in tried:
            continue
        if len(tried) >= MOST:
            break
        failed = [_failure(model, example) for model in models]
        if not any(failed):
            return Inferred(example, words)
        tried[words] = None
        if not all(failed) and not halfway:
            halfway = f"{words} run through one of the two models; the other {next(filter(None, failed))}"
    return Inferred(None, "", tuple(tried), halfway)


def candidates(model: nn.Module, batch: int = 2) -> Iterator[tuple[Any, str]]:
    """(inputs, what they are) that the model's layers suggest, in the order in which they are held."""
    generator = torch.Generator().manual_seed(0)
    name = getattr(model, "main_input_name", None)
    if isinstance(name, str) and hasattr(model, "config"):
        yield from _published(model, name, batch, generator)
    needed = _needed(model)
    if needed is None:
        return
    for layer in _layers(model):
        for value, words in _of_layer(layer, model, batch, generator):
            yield (value if not needed else {needed: value}), words


def _layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers as it holds them, the embeddings together where the first stands, the largest first.

    A vocabulary and a table of positions look alike; ids that go beyond the smaller one do not run.
    """
    layers = list(model.modules())
    tables = [m for m in layers if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    others = [m for m in layers if m not in tables]
    place = next((i for i, m in enumerate(layers) if m in tables), 0)
    return [*others[:place], *sorted(tables, key=_entries), *others[place:]]


def _entries(table: Any) -> int:
    return -table.num_embeddings


def _needed(model: nn.Module) -> str | None:
    """ "" where the forward takes one input by position, its name where by keyword, None for several."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return ""
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        return None
    return needed[0].name if needed and needed[0].kind is inspect.Parameter.KEYWORD_ONLY else ""


def _of_layer(
    layer: nn.Module, model: nn.Module, batch: int, generator: torch.Generator
) -> Iterator[tuple[Any, str]]:
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        for time in _times(model, layer):
            yield _ids(layer.num_embeddings, (batch, time), generator)
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        dimensions = len(layer.kernel_size)
        for side in SIDES[dimensions]:
            kind = {1: "series", 2: "images", 3: "volumes"}[dimensions]
            yield _floats(kind, (batch, layer.in_channels, *[side] * dimensions), generator)
    elif isinstance(layer, nn.Linear | nn.RNNBase | nn.RNNCellBase):
        features = layer.in_features if isinstance(layer, nn.Linear) else layer.input_size
        sequences = [("sequences", (batch, time, features)) for time in _times(model, None)]
        vectors = [("vectors", (batch, features))]
        attends = any(isinstance(m, nn.MultiheadAttention | nn.RNNBase) for m in model.modules())
        for kind, shape in sequences + vectors if attends else vectors + sequences:
            yield _floats(kind, shape, generator)


def _published(
    model: nn.Module, name: str, batch: int, generator: torch.Generator
) -> Iterator[tuple[Any, str]]:
    """Inputs of a model of transformers, by the name of its main input."""
    config: Any = model.config
    more = ["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else []
    if name == "input_ids" and isinstance(getattr(config, "vocab_size", None), int):
        for time in TIMES:
            ids, words = _ids(config.vocab_size, (batch, time), generator)
            yield dict.fromkeys((name, *more), ids), words
    if name == "pixel_values":
        own = getattr(config, "image_size", None)
        sides: list[int] = [own] if isinstance(own, int) else []
        for side in [*sides, *SIDES[2]]:
            images, words = _floats(
                "images", (batch, getattr(config, "num_channels", 3), side, side), generator
            )
            yield {name: images}, words
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, dict) and dummy:
        yield dummy, "the model's own dummy_inputs"


def _times(model: nn.Module, tokens: nn.Module | None) -> list[int]:
    """Lengths of a sequence to try: short ones that fit every table of positions, then the tables' own."""
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding) and m is not tokens]
    tables += [
        n for module in model.modules() for p in module.parameters(recurse=False) for n in _lengths(module, p)
    ]
    limit = min(tables, default=max(TIMES))
    short = [t for t in TIMES if t <= limit] or [limit]
    return list(dict.fromkeys([*short[:3], *sorted(set(tables))[:4], *short[3:]]))


def _lengths(module: nn.Module, p: Tensor) -> list[int]:
    """How many positions a bare parameter may hold: (time, features) or (1, time, features)."""
    if p.ndim not in (2, 3) or type(module).__module__.startswith("torch.nn"):
        return []
    return [p.shape[-2]] if p.shape[-2] > 1 else []


def _ids(below: int, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, str]:
    return torch.randint(0, below, shape, generator=generator), f"ids of shape {shape} below {below}"


def _floats(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, str]:
    return torch.randn(shape, generator=generator), f"{kind} of shape {shape}"


def _failure(model: nn.Module, example: Any) -> str:
    """Why a forward does not run or gives no float tensor, in words; empty where it does."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)

    def move(v: Any) -> Any:
        if first is None or not isinstance(v, Tensor):
            return v
        return v.to(first.device, first.dtype if v.is_floating_point() else None)

    args, kwargs = as_call(example)
    try:
        with untouched(model, training=False):
            out = model(*map(move, args), **{k: move(v) for k, v in kwargs.items()})
    except Exception as error:  # another candidate may do
        return f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    return "" if any(t.is_floating_point() for t in tensors_in(out)) else "returns no floating point tensor"


def cure(name: str, inferred: Inferred, option: str, function: str) -> str:
    """What to do where nothing was found: the law, what was tried, and both ways out."""
    tried = list(inferred.tried)
    seen = (
        f"tried {', '.join(tried[:4])}{f' and {len(tried) - 4} more' if len(tried) > 4 else ''}"
        if tried
        else ("it holds no embedding, convolution or linear layer that takes one input")
    )
    place = name.rpartition(":")[0]
    if inferred.halfway:
        return (
            f"{name} must run at both sizes: {inferred.halfway}. Choose sizes that the model can have (a "
            f"width that its heads divide), or, if these are no inputs for it, write {function} beside build "
            f"in {place}, or pass {option} file.py:function"
        )
    return (
        f"the inputs of {name} are needed and could not be inferred ({seen}): write {function} beside build "
        f"in {place}, or pass {option} file.py:function"
    )
