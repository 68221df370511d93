"""x-transformers: one decoder, 30 sets of its options."""

from __future__ import annotations

from typing import Any

from foreign.batches import IDS, LENGTH, VOCABULARY, Foreign, next_token


def _build(layers: dict[str, Any], wrapper: dict[str, Any], head_dim: int | None):
    def build(n: int, depth: int):
        from x_transformers import Decoder, TransformerWrapper

        heads, dim = (4, n // 4) if head_dim is None else (n // head_dim, head_dim)
        options = {"attn_dim_head": dim, "heads": heads, **layers}
        body = Decoder(dim=n, depth=depth, verbose=False, **options)
        return TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=body, attn_z_loss_weight=0.0, **wrapper
        )

    return build


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    "plain": ({}, {}, None),
    "more heads": ({}, {}, 16),
    "rotary": (dict(rotary_pos_emb=True), {}, None),
    "alibi": (dict(alibi_pos_bias=True), dict(use_abs_pos_emb=False), None),
    "rel-pos bias": (dict(rel_pos_bias=True), {}, None),
    "dynamic pos bias": (dict(dynamic_pos_bias=True), {}, None),
    "RMSNorm": (dict(use_rmsnorm=True), {}, None),
    "simple RMSNorm": (dict(use_simple_rmsnorm=True), {}, None),
    "scale-norm": (dict(use_scalenorm=True), {}, None),
    "GLU": (dict(ff_glu=True), {}, None),
    "SwiGLU": (dict(ff_glu=True, ff_swish=True, ff_no_bias=True), {}, 16),
    "sandwich norm": (dict(sandwich_norm=True), {}, None),
    "residual attention": (dict(residual_attn=True), {}, None),
    "gate residual": (dict(gate_residual=True), {}, None),
    "macaron": (dict(macaron=True), {}, None),
    "qk-norm": (dict(attn_qk_norm=True), {}, None),
    "qk-norm learned": (dict(attn_qk_norm=True, attn_qk_norm_dim_scale=True), {}, None),
    "one kv head": (dict(attn_one_kv_head=True), {}, None),
    "talking heads": (dict(attn_pre_talking_heads=True, attn_post_talking_heads=True), {}, None),
    "memory tokens": ({}, dict(num_memory_tokens=4), None),
    "post-norm": (dict(pre_norm=False), {}, None),
    "layerscale": (dict(use_layerscale=True, layerscale_init_value=0.1), {}, None),
    "zero-init branches": (dict(zero_init_branch_output=True), {}, None),
    "value residual": (dict(add_value_residual=True), {}, None),
    "hyper-connections": (dict(num_residual_streams=2), {}, None),
    "unet skips": (dict(unet_skips=True), {}, None),
    "reinject input": (dict(reinject_input=True), {}, None),
    "gate values": (dict(attn_gate_values=True), {}, None),
    "tied embedding": ({}, dict(tie_embedding=True), None),
    "shared layers": (dict(weight_tie_layers=True), {}, None),
}

MODELS = [
    Foreign("x-transformers", name, _build(*options), dict(x=IDS), next_token)
    for name, options in OPTIONS.items()
]
