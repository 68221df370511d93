"""Published architectures by name, at any width and depth: `trimtab explain --hf llama`. Offline, from the configuration.

Width is the hidden size, depth the number of layers; the feed-forward keeps its ratio to the width, heads keep their
dimension where it divides the width (else their number), key-value heads their ratio. Needs the [hf] extra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trimtab.errors import InputError


def published(name: str) -> tuple[Callable[..., nn.Module], Callable[[], Any]]:
    """(build(width, depth, **fields of the configuration), example()) of a model type of `transformers`, such as "gpt2", "llama" or "vit"."""
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError as error:
        raise InputError("--hf needs transformers: install trimtab[hf].") from error
    kinds = (
        ("AutoModelForCausalLM", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("AutoModelForSeq2SeqLM", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("AutoModelForMaskedLM", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("AutoModelForImageClassification", modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    )
    kind = next((auto for auto, names in kinds if name in names), None)
    if kind is None:
        near = sorted({n for _, names in kinds for n in names if n[:3] == name[:3]})
        raise InputError(
            f"--hf takes a model type of transformers with a language-model or image-classification head: got {name!r}{', near it are ' + ', '.join(near[:8]) if near else ''}."
        )
    default = transformers.AutoConfig.for_model(name)
    if not isinstance(getattr(default, "hidden_size", None), int) or not isinstance(getattr(default, "num_hidden_layers", None), int):
        raise InputError(f"{name} has stages, not one width and one depth: write build(width, depth) for it and pass file.py:build.")

    def build(width: int, depth: int, **fields: Any) -> nn.Module:
        config = transformers.AutoConfig.for_model(name, **(_sizes(default, width, depth, fields) | fields))
        return getattr(transformers, kind).from_config(config)

    def example() -> dict[str, torch.Tensor]:
        if kind == "AutoModelForImageClassification":
            side = default.image_size if isinstance(default.image_size, int) else default.image_size[0]
            return {"pixel_values": torch.randn(2, default.num_channels, side, side)}
        ids = torch.randint(0, min(1000, default.vocab_size), (2, 8), generator=torch.Generator().manual_seed(0))
        return {"input_ids": ids} | ({"decoder_input_ids": ids} if kind == "AutoModelForSeq2SeqLM" else {})

    return build, example


def _sizes(config: Any, width: int, depth: int, fields: dict[str, Any]) -> dict[str, int]:
    """The configuration's size fields for a width and a depth, under the names this family uses, but for those given."""
    spelled = getattr(config, "attribute_map", {})
    sizes: dict[str, int] = {"hidden_size": width, "num_hidden_layers": depth}
    hidden, heads = config.hidden_size, getattr(config, "num_attention_heads", None)
    for inner in ("intermediate_size", "d_ff", "n_inner"):
        if isinstance(getattr(config, inner, None), int):
            sizes[inner] = getattr(config, inner) * width // hidden
    if isinstance(heads, int) and "num_attention_heads" not in fields:
        d = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or hidden // heads
        new_heads = width // d if width % d == 0 else heads
        if width % new_heads:
            raise InputError(f"width must be a multiple of the head dimension {d} or of the {heads} heads: got {width}.")
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
    return {spelled.get(key, key): value for key, value in sizes.items()}
