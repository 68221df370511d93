"""diffusers: six models at tiny random sizes, no download."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from foreign.batches import Foreign, regression

G = torch.Generator().manual_seed(3)
ROWS, SIDE = 2, 8
IMAGE = F.interpolate(torch.randn(ROWS, 4, 4, 4, generator=G), size=(SIDE, SIDE), mode="bilinear")
TARGET = F.interpolate(torch.randn(ROWS, 4, 4, 4, generator=G), size=(SIDE, SIDE), mode="bilinear")
TIMES = torch.tensor([20, 700])
TEXT, POOLED = torch.randn(ROWS, 5, 32, generator=G), torch.randn(ROWS, 24, generator=G)


def unet_2d(n, depth):
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=SIDE,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(n, 2 * n),
        layers_per_block=depth,
        norm_num_groups=8,
        attention_head_dim=16,
    )


def unet_2d_condition(n, depth):
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=SIDE,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(n, 2 * n),
        layers_per_block=depth,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=4,
    )


def dit(n, depth):
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=n // 4,
        in_channels=4,
        num_layers=depth,
        sample_size=SIDE,
        patch_size=2,
        num_embeds_ada_norm=10,
        dropout=0.0,
    )


def sd3(n, depth):
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=SIDE,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=depth,
        attention_head_dim=n // 4,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=n,
        pooled_projection_dim=24,
        pos_embed_max_size=8,
    )


def flux(n, depth):
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=depth,
        num_single_layers=depth,
        attention_head_dim=16,
        num_attention_heads=n // 16,
        joint_attention_dim=32,
        pooled_projection_dim=24,
        axes_dims_rope=(4, 4, 8),
    )


def autoencoder(n, depth):
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=4,
        out_channels=4,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(n, 2 * n),
        layers_per_block=depth,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=SIDE,
    )


def _places():
    """Flux wants the row and the column of each position."""
    rows = torch.arange(SIDE).repeat_interleave(SIDE)
    return torch.stack([torch.zeros(SIDE**2), rows, torch.arange(SIDE).repeat(SIDE)], 1).float()


FLUX = dict(
    hidden_states=IMAGE.flatten(2).transpose(1, 2),
    encoder_hidden_states=TEXT,
    pooled_projections=POOLED,
    timestep=TIMES / 1000,
    img_ids=_places(),
    txt_ids=torch.zeros(5, 3),
)


def _model(build, batch, target=TARGET, base=(64, 2)):
    return Foreign("diffusers", build.__name__, build, batch, regression(target), base)


MODELS = [
    _model(unet_2d, dict(sample=IMAGE, timestep=TIMES), base=(32, 2)),
    _model(unet_2d_condition, dict(sample=IMAGE, timestep=TIMES, encoder_hidden_states=TEXT), base=(32, 2)),
    _model(dit, dict(hidden_states=IMAGE, timestep=TIMES, class_labels=torch.arange(ROWS))),
    _model(
        sd3,
        dict(hidden_states=IMAGE, encoder_hidden_states=TEXT, pooled_projections=POOLED, timestep=TIMES),
        base=(64, 4),  # the last block writes no context: of two blocks one would be left
    ),
    _model(flux, FLUX, TARGET.flatten(2).transpose(1, 2)),
    _model(autoencoder, dict(sample=IMAGE), base=(32, 2)),
]
