"""Third-party families as published, at tiny random sizes: unmodified classes of `transformers`, no
download."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as T

T.logging.set_verbosity_error()

IDS = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
TEXT = dict(input_ids=IDS)
PAIR = dict(input_ids=IDS, decoder_input_ids=IDS)
PIXELS = dict(pixel_values=IMAGES)

FAMILIES = {}  # name -> (build(width, depth), example, branches at a depth, kinds)


def family(example, branches=lambda L: 2 * L, kinds=("identity",)):
    def register(build):
        FAMILIES[build.__name__.replace("_", "-")] = (build, example, branches, set(kinds))
        return build

    return register


@family(TEXT)
def gpt2(n, L):
    return T.GPT2LMHeadModel(T.GPT2Config(vocab_size=64, n_positions=16, n_embd=n, n_layer=L, n_head=4))


@family(TEXT)
def gpt2_untied(n, L):
    return T.GPT2LMHeadModel(
        T.GPT2Config(vocab_size=64, n_positions=16, n_embd=n, n_layer=L, n_head=4, tie_word_embeddings=False)
    )


@family(TEXT)
def llama_gqa(n, L):
    return T.LlamaForCausalLM(
        T.LlamaConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )
    )


@family(TEXT, branches=lambda L: L, kinds=("parallel",))
def neox(n, L):
    return T.GPTNeoXForCausalLM(
        T.GPTNeoXConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            max_position_embeddings=16,
        )
    )


@family(TEXT)
def gemma2(n, L):
    return T.Gemma2ForCausalLM(
        T.Gemma2Config(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=n // 4,
            query_pre_attn_scalar=n // 4,
            max_position_embeddings=16,
        )
    )


@family(TEXT)
def qwen3(n, L):
    return T.Qwen3ForCausalLM(
        T.Qwen3Config(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=n // 4,
            max_position_embeddings=16,
        )
    )


@family(TEXT)
def mixtral(n, L):
    return T.MixtralForCausalLM(
        T.MixtralConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            max_position_embeddings=16,
        )
    )


@family(TEXT)
def granite(n, L):
    return T.GraniteForCausalLM(
        T.GraniteConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            logits_scaling=8.0,
            attention_multiplier=0.1,
        )
    )


@family(TEXT, kinds=("post-norm",))
def bert(n, L):
    return T.BertForMaskedLM(
        T.BertConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            max_position_embeddings=16,
        )
    )


@family(PAIR, branches=lambda L: 5 * L)
def t5(n, L):
    return T.T5ForConditionalGeneration(
        T.T5Config(vocab_size=64, d_model=n, d_ff=2 * n, d_kv=n // 4, num_layers=L, num_heads=4)
    )


@family(PIXELS)
def vit(n, L):
    return T.ViTForImageClassification(
        T.ViTConfig(
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
    )


@family(PIXELS)
def dinov2(n, L):
    return T.Dinov2ForImageClassification(
        T.Dinov2Config(
            hidden_size=n,
            mlp_ratio=2,
            num_hidden_layers=L,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
    )


@family(PIXELS, branches=lambda L: 4 * L)
def swin(n, L):
    return T.SwinForImageClassification(
        T.SwinConfig(embed_dim=n, depths=[L, L], num_heads=[2, 4], image_size=32, patch_size=4, window_size=4)
    )


@family(PIXELS, kinds=("identity", "projection"))
def resnet(n, L):
    return T.ResNetForImageClassification(
        T.ResNetConfig(embedding_size=n, hidden_sizes=[n, 2 * n], depths=[L, L], layer_type="basic")
    )


@family(PIXELS, kinds=("identity", "projection"))
def resnet_bottleneck(n, L):
    return T.ResNetForImageClassification(
        T.ResNetConfig(embedding_size=n, hidden_sizes=[4 * n, 8 * n], depths=[L, L], layer_type="bottleneck")
    )


@family(PIXELS)
def convnext(n, L):
    return T.ConvNextForImageClassification(
        T.ConvNextConfig(hidden_sizes=[n, 2 * n], depths=[L, L], num_stages=2)
    )


@family(TEXT, branches=lambda L: L)
def mamba(n, L):
    return T.MambaForCausalLM(
        T.MambaConfig(vocab_size=64, hidden_size=n, num_hidden_layers=L, state_size=4, time_step_rank=4)
    )


@family(TEXT, kinds=("post-norm",))
def albert(n, L):
    return T.AlbertForMaskedLM(
        T.AlbertConfig(
            vocab_size=64,
            embedding_size=16,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            max_position_embeddings=16,
        )
    )


@family(TEXT)
def phi3(n, L):
    return T.Phi3ForCausalLM(
        T.Phi3Config(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            pad_token_id=0,
        )
    )


@family(TEXT)
def opt(n, L):
    return T.OPTForCausalLM(
        T.OPTConfig(
            vocab_size=64,
            hidden_size=n,
            ffn_dim=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            max_position_embeddings=16,
            word_embed_proj_dim=n,
        )
    )


@family(TEXT)
def bloom(n, L):
    return T.BloomForCausalLM(T.BloomConfig(vocab_size=64, hidden_size=n, n_layer=L, n_head=4))


@family(TEXT)
def olmo2(n, L):
    return T.Olmo2ForCausalLM(
        T.Olmo2Config(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )
    )


@family(PIXELS)
def deit(n, L):
    return T.DeiTForImageClassification(
        T.DeiTConfig(
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
    )


@family(PAIR, branches=lambda L: 5 * L, kinds=("post-norm",))
def bart(n, L):
    return T.BartForConditionalGeneration(
        T.BartConfig(
            vocab_size=64,
            d_model=n,
            encoder_ffn_dim=2 * n,
            decoder_ffn_dim=2 * n,
            encoder_layers=L,
            decoder_layers=L,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            max_position_embeddings=16,
        )
    )


@family(TEXT, kinds=("post-norm",))
def roberta(n, L):
    return T.RobertaForMaskedLM(
        T.RobertaConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            max_position_embeddings=16,
        )
    )


@family(TEXT, kinds=("identity", "parallel"))
def cohere(n, L):
    return T.CohereForCausalLM(
        T.CohereConfig(
            vocab_size=64,
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )
    )


@family(TEXT, branches=lambda L: L, kinds=("parallel",))
def falcon(n, L):
    return T.FalconForCausalLM(
        T.FalconConfig(vocab_size=64, hidden_size=n, num_hidden_layers=L, num_attention_heads=4)
    )


@family(PIXELS, branches=lambda L: 4 * L, kinds=("identity", "projection"))
def regnet(n, L):
    return T.RegNetForImageClassification(
        T.RegNetConfig(
            embedding_size=n, hidden_sizes=[n, 2 * n, 2 * n, 2 * n], depths=[L] * 4, groups_width=8
        )
    )
