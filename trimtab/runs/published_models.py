"""Published architectures by name, at any width and depth: `trimtab explain --hf llama`. Offline, from the
configuration.

On one of the zoo's data sets their vocabulary, classes, channels and image size follow the data
(`fit_fields`).

Width is the hidden size, depth the number of layers; the feed-forward keeps its ratio to the width, heads
keep their dimension where it divides the width (else their number), key-value heads their ratio. Needs the
[hf] extra.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from trimtab.data.catalogue import Shape
from trimtab.errors import Fault, InputError, faults_in
from trimtab.models.catalogue import FOLLOW

CAUSAL, IMAGES = "AutoModelForCausalLM", "AutoModelForImageClassification"
SPECIAL = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)  # characters have none: a padding row would never be trained
LOADING = ("attn_implementation", "dtype", "torch_dtype")  # of how a model is loaded, not of what it is


def load_published(name: str) -> tuple[Callable[..., nn.Module], Callable[[], Any]]:
    """(build(width, depth, **fields of the configuration), example()) of a model type of `transformers`, such
    as "gpt2", "llama" or "vit"."""
    kind, default = _look_up(name)
    import transformers

    def build(width: int, depth: int, **fields: Any) -> nn.Module:
        given = _canonical(default, fields)
        if problems := _unknown_fields(name, default, given):
            raise faults_in(f"the options of hf:{name}", problems)
        made = _sizes(default, width, depth, given) | given
        spelled = getattr(default, "attribute_map", {})
        config = transformers.AutoConfig.for_model(
            name, **{spelled.get(key, key): v for key, v in made.items()}
        )
        return getattr(transformers, kind).from_config(config)

    def example() -> dict[str, torch.Tensor]:
        if kind == IMAGES:
            side = _side(default.image_size)
            return {"pixel_values": torch.randn(2, default.num_channels, side, side)}
        ids = torch.randint(
            0, min(1000, default.vocab_size), (2, 8), generator=torch.Generator().manual_seed(0)
        )
        return {"input_ids": ids} | ({"decoder_input_ids": ids} if kind == "AutoModelForSeq2SeqLM" else {})

    return build, example


def fit_fields(name: str, shape: Shape, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """(the fields of a published model's configuration on some data, what is wrong with them).

    Vocabulary, classes, channels and image size follow the data. Options that are given win, where they can
    work.
    """
    kind, default = _look_up(name)
    given = _canonical(default, options)
    takes = "image" if kind == IMAGES else "text"
    if shape.kind != takes:
        return {}, [Fault("data", f"hf:{name} takes {takes} data", f"{shape.kind} data")]
    if takes == "text" and kind != CAUSAL:
        law = f"text asks for the next character, and hf:{name} is no causal language model: write "
        return {}, [Fault("data", law + "data(split, seed, step) for it and pass file.py:data")]
    if takes == "text":
        wanted: dict[str, Any] = {"vocab_size": shape.classes}
        positions = getattr(default, "max_position_embeddings", None)
        if isinstance(positions, int) and positions < shape.inputs[0]:
            wanted["max_position_embeddings"] = shape.inputs[0]
        if hasattr(default, "is_decoder"):  # an encoder's family, as bert: uncausal it would see the answers
            wanted["is_decoder"] = True
        else:
            wanted |= {key: None for key in SPECIAL if hasattr(default, key)}
    else:
        wanted = {"num_labels": shape.classes}
        sides = {"image_size": shape.inputs[-1], "num_channels": shape.inputs[0]}
        wanted |= {key: value for key, value in sides.items() if hasattr(default, key)}
    return wanted | given, [*_unknown_fields(name, default, given), *_misfits(wanted, given, default)]


def _unknown_fields(name: str, default: Any, given: Mapping[str, Any]) -> list[Fault]:
    """Options that its configuration has no field for: transformers takes any name without a word."""
    known = {*vars(default), *getattr(default, "attribute_map", {}), *LOADING}
    found = []
    for key in given:
        if key not in known and not hasattr(default, key):
            near = difflib.get_close_matches(key, known, n=1)
            nearest = f", nearest {near[0]!r}" if near else ""
            law = f"the configuration of hf:{name} has no such field{nearest}"
            found.append(Fault(f"model_options.{key}", law))
    return found


def _misfits(wanted: Mapping[str, Any], given: Mapping[str, Any], default: Any) -> list[Fault]:
    """What was given and cannot work with the data."""
    found = []
    for key in ("vocab_size", "num_labels", "max_position_embeddings", "image_size", "num_channels"):
        if key not in wanted or key not in given:
            continue
        # more classes than the data has do no harm
        value, least = given[key], key not in ("image_size", "num_channels")
        if _side(value) != wanted[key] and not (least and isinstance(value, int) and value > wanted[key]):
            law = f"the data has {wanted[key]}"
            found.append(Fault(f"model_options.{key}", law, str(value), FOLLOW))
    patch = _side(given.get("patch_size", getattr(default, "patch_size", None)))
    if isinstance(patch, int) and "image_size" in wanted and wanted["image_size"] % patch:
        law, got = (
            "the image side must be a multiple of the patch",
            f"{wanted['image_size']} px, patch {patch}",
        )
        found.append(Fault("model_options.patch_size", law, got))
    return found


def _look_up(name: str) -> tuple[str, Any]:
    """(the class that builds it, its default configuration) of a model type."""
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError as error:
        raise InputError("--hf needs transformers: install trimtab[hf].") from error
    kinds = (
        (CAUSAL, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("AutoModelForSeq2SeqLM", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("AutoModelForMaskedLM", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        (IMAGES, modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    )
    kind = next((auto for auto, names in kinds if name in names), None)
    if kind is None:
        near = sorted({n for _, names in kinds for n in names if n[:3] == name[:3]})
        raise InputError(
            "hf:NAME takes a model type of transformers with a language-model or image-classification head: "
            f"got {name!r}{', near it are ' + ', '.join(near[:8]) if near else ''}."
        )
    default = transformers.AutoConfig.for_model(name)
    if not isinstance(getattr(default, "hidden_size", None), int) or not isinstance(
        getattr(default, "num_hidden_layers", None), int
    ):
        raise InputError(
            f"{name} has stages, not one width and one depth: write build(width, depth) for it and pass "
            "file.py:build."
        )
    return kind, default


def _canonical(config: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under their common names: gpt2's n_head is num_attention_heads."""
    common = {own: name for name, own in getattr(config, "attribute_map", {}).items()}
    return {common.get(key, key): value for key, value in fields.items()}


def _side(size: Any) -> Any:
    """One side of an image or a patch, which some write twice."""
    return size[0] if isinstance(size, list | tuple) and len(set(size)) == 1 else size


def _sizes(config: Any, width: int, depth: int, fields: dict[str, Any]) -> dict[str, int]:
    """The configuration's size fields for a width and a depth, under their common names, but for those
    given."""
    sizes: dict[str, int] = {"hidden_size": width, "num_hidden_layers": depth}
    hidden, heads = config.hidden_size, getattr(config, "num_attention_heads", None)
    for inner in ("intermediate_size", "d_ff", "n_inner"):
        if isinstance(getattr(config, inner, None), int):
            sizes[inner] = getattr(config, inner) * width // hidden
    if isinstance(heads, int) and "num_attention_heads" not in fields:
        d = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or hidden // heads
        new_heads = width // d if width % d == 0 else heads
        if width % new_heads:
            raise InputError(
                f"width must be a multiple of the head dimension {d} or of the {heads} heads: got {width}."
            )
        sizes["num_attention_heads"] = new_heads
        kv = getattr(config, "num_key_value_heads", None)
        if isinstance(kv, int):
            sizes["num_key_value_heads"] = max(1, new_heads * kv // heads)
        for fixed in ("head_dim", "d_kv"):
            if isinstance(getattr(config, fixed, None), int):
                sizes[fixed] = d if width % d == 0 else width // new_heads
    for extra in ("num_decoder_layers", "decoder_layers", "encoder_layers"):
        if isinstance(getattr(config, extra, None), int):
            sizes[extra] = depth
    return sizes
