"""Further families of `transformers`: those that the tests do not hold, at tiny random sizes, no download."""

from __future__ import annotations

import functools
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from foreign.batches import CLASSES, IDS, IMAGES, VOCABULARY, Foreign, class_of, next_token

HEADS = 4


def _text(n: int, depth: int) -> dict[str, Any]:
    return dict(
        vocab_size=VOCABULARY,
        hidden_size=n,
        intermediate_size=2 * n,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=64,
        head_dim=n // HEADS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )


def _model(name: str, sizes: dict[str, Any], head: str) -> Any:
    import transformers as T

    T.logging.set_verbosity_error()
    config = getattr(T, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")(**sizes)
    return getattr(T, f"{name}{head}")(config)


def text(
    name: str,
    head: str = "ForCausalLM",
    skip: tuple[str, ...] = (),
    base=(64, 2),
    told: dict[str, Any] | None = None,
    **more: Any,
):
    """A family whose config takes the usual names; `more` may be functions of (width, depth), and so may
    `told`, what a refusal asks for."""

    def build(n: int, depth: int, options: dict[str, Any] = more):
        own = {k: v(n, depth) if callable(v) else v for k, v in options.items()}
        return _model(name, {**_text(n, depth), **own}, head)

    follow = None if told is None else functools.partial(build, options={**more, **told})
    return Foreign("transformers", name, build, dict(input_ids=IDS), next_token, base, skip, follow)


def masked(name: str, **more: Any):
    """The same of an encoder with a language head."""
    return text(name, "ForMaskedLM", **more)


def image(name: str, sizes: Any, base=(64, 2), skip: tuple[str, ...] = (), head="ForImageClassification"):
    """An image classifier; `sizes` is a function of (width, depth)."""

    def build(n: int, depth: int):
        return _model(name, {"num_labels": CLASSES, **sizes(n, depth)}, head)

    return Foreign("transformers", name, build, dict(pixel_values=IMAGES), class_of, base, skip)


def pair(name: str, sizes: Any):
    """An encoder and a decoder over the same tokens."""

    def build(n: int, depth: int):
        return _model(name, sizes(n, depth), "ForConditionalGeneration")

    batch = dict(input_ids=IDS, decoder_input_ids=IDS)
    return Foreign("transformers", name, build, batch, next_token)


def _vit(n: int, depth: int) -> dict[str, Any]:
    return dict(
        hidden_size=n,
        intermediate_size=2 * n,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        image_size=32,
        patch_size=8,
    )


def _bart(n: int, depth: int) -> dict[str, Any]:
    return dict(
        vocab_size=VOCABULARY,
        d_model=n,
        encoder_ffn_dim=2 * n,
        decoder_ffn_dim=2 * n,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )


def _stages(n: int, depth: int) -> dict[str, Any]:
    return dict(hidden_sizes=[n, 2 * n], depths=[depth, depth])


EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=lambda n, _: n)
LATENT = dict(
    q_lora_rank=lambda n, _: n // 2,
    kv_lora_rank=lambda n, _: n // 2,
    qk_rope_head_dim=8,
    qk_nope_head_dim=lambda n, _: n // 8,
    v_head_dim=lambda n, _: n // 4,
    head_dim=8,
    num_key_value_heads=HEADS,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=0,
    moe_intermediate_size=lambda n, _: n,
    n_shared_experts=1,
)

TEXT = [
    text("GPTJ", n_positions=64, rotary_dim=8),
    text("CodeGen", n_positions=64, rotary_dim=8, n_ctx=64),
    text("GPTNeo", attention_types=lambda _, L: [[["global", "local"], L // 2]], num_layers=lambda _, L: L),
    text("GPTBigCode", n_positions=64),
    text("Mpt", d_model=lambda n, _: n, n_heads=HEADS, n_layers=lambda _, L: L, max_seq_len=64),
    text("Gemma"),
    text("Gemma3", query_pre_attn_scalar=lambda n, _: n // HEADS),
    text("Mistral"),
    text("Qwen2"),
    text("Qwen3Moe", **EXPERTS),
    text("Qwen2Moe", shared_expert_intermediate_size=lambda n, _: n, **EXPERTS),
    text("Phi"),
    text("StableLm"),
    text("Starcoder2"),
    text("Glm"),
    text("Glm4"),
    text("Olmo"),
    text("Olmoe", **EXPERTS),
    text("Persimmon"),
    text("Nemotron"),
    text("Helium"),
    text("Cohere2", sliding_window=8),
    text("SmolLM3"),
    text("GraniteMoe", num_local_experts=4),
    text("DeepseekV3", **LATENT),
    text("GptOss", num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
    text(
        "XGLM",
        d_model=lambda n, _: n,
        ffn_dim=lambda n, _: 2 * n,
        num_layers=lambda _, L: L,
        attention_heads=HEADS,
    ),
    text("BioGpt"),
    text("DiffLlama"),
    text("Exaone4", sliding_window=8),
    text("Apertus"),
    text(
        "NanoChat",
        told=dict(
            head_dim=16, num_attention_heads=lambda n, _: n // 16, num_key_value_heads=lambda n, _: n // 32
        ),
    ),
    text("Arcee"),
    text("BitNet"),
    text("Mamba2", num_heads=lambda n, _: n // 8, head_dim=16, state_size=8, n_groups=1, chunk_size=8),
    text("FalconMamba", state_size=8),
    text("Rwkv", attention_hidden_size=lambda n, _: n, context_length=64, told=dict(rescale_every=0)),
    text(
        "Lfm2",
        layer_types=lambda _, L: ["conv", "full_attention"] * (L // 2),
        block_ff_dim=lambda n, _: 2 * n,
        block_auto_adjust_ff_dim=False,
    ),
    text("GPTNeoXJapanese", intermediate_multiple_size=2),
    text(
        "OpenAIGPT",
        head="LMHeadModel",
        n_positions=64,
        n_embd=lambda n, _: n,
        n_layer=lambda _, L: L,
        n_head=HEADS,
    ),
    text(
        "CTRL",
        head="LMHeadModel",
        n_positions=64,
        n_embd=lambda n, _: n,
        n_layer=lambda _, L: L,
        n_head=HEADS,
        dff=lambda n, _: 2 * n,
    ),
]
MASKED = [
    masked("Electra", embedding_size=lambda n, _: n),
    masked(
        "DistilBert",
        dim=lambda n, _: n,
        hidden_dim=lambda n, _: 2 * n,
        n_layers=lambda _, L: L,
        n_heads=HEADS,
    ),
    masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16),
    masked("ModernBert", local_attention=8, cls_token_id=1, sep_token_id=2),
    masked("RoFormer", embedding_size=lambda n, _: n),
    masked("Esm", position_embedding_type="rotary", token_dropout=False, mask_token_id=3),
    masked("FNet"),
    masked("MPNet"),
    masked("MegatronBert"),
    masked("ConvBert", embedding_size=lambda n, _: n),
    masked("RobertaPreLayerNorm"),
    masked("SqueezeBert", embedding_size=lambda n, _: n),
]
IMAGE = [
    image("Beit", lambda n, L: dict(**_vit(n, L), use_relative_position_bias=True)),
    image("ConvNextV2", lambda n, L: dict(num_stages=2, patch_size=2, **_stages(n, L)), (32, 2)),
    image("Dinov2WithRegisters", lambda n, L: dict(**_vit(n, L))),
    image("ViTMSN", _vit),
    image("Bit", lambda n, L: dict(embedding_size=n, num_groups=8, **_stages(n, L)), (32, 2)),
    image(
        "PoolFormer",
        lambda n, L: dict(
            num_encoder_blocks=2, patch_sizes=[4, 2], strides=[4, 2], padding=[1, 1], **_stages(n, L)
        ),
        (32, 2),
    ),
    image(
        "Segformer",
        lambda n, L: dict(
            num_encoder_blocks=2,
            patch_sizes=[4, 2],
            strides=[4, 2],
            sr_ratios=[2, 1],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
            decoder_hidden_size=n,
            **_stages(n, L),
        ),
        (32, 2),
    ),
    image(
        "FocalNet",
        lambda n, L: dict(
            embed_dim=n,
            image_size=32,
            patch_size=4,
            depths=[L, L],
            focal_levels=[2, 2],
            focal_windows=[3, 3],
            hidden_sizes=[n, 2 * n],
        ),
        (32, 2),
    ),
    image(
        "Swinv2",
        lambda n, L: dict(
            embed_dim=n, image_size=32, patch_size=4, depths=[L, L], num_heads=[2, 4], window_size=4
        ),
        (32, 2),
    ),
    image(
        "EfficientNet",
        lambda n, L: dict(
            image_size=32,
            width_coefficient=n / 32,
            depth_coefficient=L / 2,
            hidden_dim=40 * n,
            in_channels=[32, 32],
            out_channels=[32, 64],
            kernel_sizes=[3, 3],
            strides=[1, 2],
            num_block_repeats=[2, 2],
            expand_ratios=[2, 2],
            depthwise_padding=[],
        ),
        (32, 2),
    ),
    image("MobileNetV2", lambda n, L: dict(image_size=32, depth_multiplier=n / 32), (32, 2), ("depth",)),
    image(
        "PvtV2",
        lambda n, L: dict(
            image_size=32,
            num_encoder_blocks=2,
            depths=[L, L],
            sr_ratios=[2, 1],
            hidden_sizes=[n, 2 * n],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
        ),
        (32, 2),
    ),
]
PAIRS = [
    pair("Pegasus", _bart),
    pair("M2M100", _bart),
    pair("MBart", _bart),
    pair(
        "MT5",
        lambda n, L: dict(
            vocab_size=VOCABULARY,
            d_model=n,
            d_ff=2 * n,
            d_kv=n // HEADS,
            num_heads=HEADS,
            num_layers=L,
            num_decoder_layers=L,
            decoder_start_token_id=1,
        ),
    ),
    pair("Blenderbot", _bart),
]

MODELS = [*TEXT, *MASKED, *IMAGE, *PAIRS]
