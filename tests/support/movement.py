"""How far the first steps move a published family: RMS change of the residual stream and of the logits, on a
fixed batch.

What makes a small base show the limit's exponents, each found by an experiment (LOG.md):

- **Targets that can be learned, few of them.** A chain over 16 tokens with two successors each; a teacher's
  ten classes. The logit of a class for an unrelated token moves by chance, N^-1/2 of the rest: with 64
  tokens and a base 64 wide most of the change is that, and its slope over 4x width is -0.2 to -0.4 whatever
  the rule.
- **No padding token in the text.** Its embedding is 0, and an RMS norm of a stream that is 0 has a gradient
  of eps^-1/2.
- **A base whose stream is not made by the randomness of its branches**: at alpha = 1 that part falls as
  m_L^-1/2. Llama and Qwen3 draw embeddings at 0.02, smaller than their branches: five times that here.
  Gemma-2 and the ResNet end branches in norms of gain 1: 0.3 here.
- **Weights that one step does not turn over.** A norm after the branch bounds its change; with matrices at
  0.02, 64 wide and rate 1e-3, Gemma-2's branches are new after one step: 0.1 here.
"""

import math
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers as T

import trimtab

T.logging.set_verbosity_error()

TOKENS, CLASSES, STEPS, SEEDS = 16, 10, 5, 3


def _chain(rows, length, successors=2):
    g = torch.Generator().manual_seed(0)
    follows = torch.randint(0, TOKENS, (TOKENS, successors), generator=g)
    ids = [torch.randint(0, TOKENS, (rows,), generator=g)]
    for _ in range(length - 1):
        ids.append(follows[ids[-1], torch.randint(0, successors, (rows,), generator=g)])
    return torch.stack(ids, 1) + 1  # 0 is for padding


def _taught(images):
    g = torch.Generator().manual_seed(1)
    x = F.interpolate(torch.randn(images, 3, 8, 8, generator=g), size=(32, 32), mode="bilinear")
    return x, (F.avg_pool2d(x, 8).flatten(1) @ torch.randn(48, CLASSES, generator=g)).argmax(-1)


IDS = _chain(16, 32)
IMAGES, LABELS = _taught(64)


def text_sizes(n, L):
    return dict(
        vocab_size=TOKENS + 1,
        hidden_size=n,
        intermediate_size=2 * n,
        num_hidden_layers=L,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )


def scaled(model, pattern, factor):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(pattern):
                p.mul_(factor)
    return model


def gpt2(n, L):
    return T.GPT2LMHeadModel(
        T.GPT2Config(
            vocab_size=TOKENS + 1,
            n_positions=32,
            n_embd=n,
            n_layer=L,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    )


def llama(n, L, embeddings=5.0):
    return scaled(T.LlamaForCausalLM(T.LlamaConfig(**text_sizes(n, L))), "embed_tokens.weight", embeddings)


def qwen3(n, L, embeddings=5.0):
    return scaled(
        T.Qwen3ForCausalLM(T.Qwen3Config(**text_sizes(n, L), head_dim=n // 4)),
        "embed_tokens.weight",
        embeddings,
    )


def gemma2(n, L, gain=0.3, std=0.1):
    model = T.Gemma2ForCausalLM(
        T.Gemma2Config(
            **text_sizes(n, L), head_dim=n // 4, query_pre_attn_scalar=n // 4, initializer_range=std
        )
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight.fill_(gain - 1)  # stored as 1 + w
            layer.post_feedforward_layernorm.weight.fill_(gain - 1)
    return model


def vit(n, L):
    return T.ViTForImageClassification(
        T.ViTConfig(
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
            num_labels=CLASSES,
        )
    )


def resnet(n, L, gain=0.3):
    n = n // 2  # channels of the first stage; the stream that is read out is twice as wide
    model = T.ResNetForImageClassification(
        T.ResNetConfig(
            embedding_size=n, hidden_sizes=[n, 2 * n], depths=[L, L], layer_type="basic", num_labels=CLASSES
        )
    )
    return scaled(model, "layer.1.normalization.weight", gain)


BUILDS = {  # name -> (build(width, depth, **base's own choices), the module whose input is the stream)
    "gpt2": (gpt2, "transformer.ln_f"),
    "llama": (llama, "model.norm"),
    "gemma2": (gemma2, "model.norm"),
    "qwen3": (qwen3, "model.norm"),
    "vit": (vit, "vit.layernorm"),
    "resnet": (resnet, "resnet.pooler"),
}


def change(name, size, base, scheme, seed, **choices):
    """RMS change of (stream, logits) after each step: (STEPS, 2)."""
    build, before = BUILDS[name]
    batch = dict(pixel_values=IMAGES) if name in ("vit", "resnet") else dict(input_ids=IDS)
    torch.manual_seed(seed)
    model = build(*size, **choices).train()
    overrides = {"*norm*.weight": {"weight_decay": 0}} if name == "gemma2" else None
    p = trimtab.parametrize(
        model,
        build(*base, **choices),
        scheme=scheme,
        example={k: v[:2] for k, v in batch.items()},
        overrides=overrides,
    )
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3)
    seen = {}
    model.get_submodule(before).register_forward_pre_hook(
        lambda _, args: seen.update(stream=args[0].detach().clone())
    )

    def look():
        with torch.no_grad():
            logits = model(**batch).logits
        return seen["stream"], logits

    start, out = look(), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(**batch).logits
        loss = (
            F.cross_entropy(logits, LABELS)
            if logits.ndim == 2
            else F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
        )
        loss.backward()
        optimizer.step()
        out.append([(a - b).pow(2).mean().sqrt().item() for a, b in zip(look(), start, strict=True)])
    return torch.tensor(out)


def slopes(name, sizes, scheme, seeds=range(SEEDS), **choices):
    """Slope of log RMS change against log size, sizes doubling: (STEPS, 2)."""
    rows = [
        torch.stack([change(name, size, sizes[0], scheme, seed, **choices) for seed in seeds]).mean(0).log()
        for size in sizes
    ]
    x = torch.tensor([math.log(2.0) * i for i in range(len(sizes))])
    x = x - x.mean()
    return (torch.stack(rows) * x[:, None, None]).sum(0) / x.square().sum()


# From 64 wide three seeds scatter by 0.05 about slopes of -0.1 (other seeds: -0.20 to -0.03); from 128 all
# are within 0.11.
WIDTHS = [(128 * k, 2) for k in (1, 2, 4)]
DEPTHS = [(64, 2 * k) for k in (1, 2, 4, 8)]
