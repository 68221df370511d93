"""Published families, unmodified: every branch found and verified, every parameter with a role, the right
start.

The numbers are those of docs/theory.md, equations (6) to (12), worked out here for width x 2 and depth x 2 at
alpha = 1/2, not taken from the code.
"""

import math

import pytest
import torch

pytest.importorskip("transformers", reason="the [hf] extra is not installed")

import torch.nn.functional as F
from families import FAMILIES, IDS

import trimtab

R, Q = 2**-0.5, 2**-0.25
INNER, TAIL = (R, R / 2, R / 2), (R * R, 1 / 4, 1 / 2)
QUERY = (R * R, R / 2 * R, R / 2 / R)  # the head dimension grows: 1/sqrt(d) -> 1/d
UNSCALED_QUERY = (R / 2, R / 4, R)  # no scale in the model: the whole 1/m_d
ONE_NORM, TAIL_NORM = (1, R, R / 2), (R, 1 / 2, 1 / 2)
READOUT, EMBED = (1 / 2, 1 / 2, 1), (1, 1, 1 / 2)

NUMBERS = {
    "gpt2": {
        "transformer.wte.weight": EMBED,
        "transformer.h.0.attn.c_attn.weight": (R * Q, R / 2 * Q, R / 2 / Q),
        "transformer.h.0.attn.c_proj.weight": (R * R / Q, 1 / 4 / Q, Q / 2),
        "transformer.h.0.mlp.c_fc.weight": INNER,
        "transformer.h.0.mlp.c_proj.weight": TAIL,
        "transformer.ln_f.weight": READOUT,
    },
    "gpt2-untied": {"transformer.ln_f.weight": EMBED, "lm_head.weight": READOUT},
    "llama-gqa": {
        "model.layers.0.self_attn.q_proj.weight": QUERY,
        "model.layers.0.self_attn.k_proj.weight": INNER,
        "model.layers.1.mlp.down_proj.weight": TAIL,
        "lm_head.weight": READOUT,
    },
    "gemma2": {
        "model.embed_tokens.weight": (R, R, R),
        "model.norm.weight": (R, R, R),
        "model.layers.0.post_attention_layernorm.weight": TAIL_NORM,
        "model.layers.0.mlp.down_proj.weight": INNER,
    },
    "qwen3": {
        "model.layers.0.self_attn.q_norm.weight": (R, R * R, R / 2 / R),
        "model.layers.0.self_attn.q_proj.weight": INNER,
    },
    "mixtral": {
        "model.layers.0.mlp.gate.weight": (1 / 2, R / 2, R),
        "model.layers.0.mlp.experts.down_proj": TAIL,
        "model.layers.0.mlp.experts.gate_up_proj": INNER,
    },
    "granite": {
        "model.layers.0.self_attn.q_proj.weight": UNSCALED_QUERY,
        "model.layers.0.self_attn.o_proj.weight": TAIL,
    },
    "t5": {
        "shared.weight": EMBED,
        "decoder.final_layer_norm.weight": (R, R, R),
        "encoder.block.0.layer.0.SelfAttention.q.weight": UNSCALED_QUERY,
        "encoder.final_layer_norm.weight": EMBED,
    },
    "albert": {
        "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight": (R, 1 / 2, 1 / 2),
        "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output.weight": (R / 2, 1 / 4, 1),
    },
    "bert": {
        "bert.encoder.layer.0.attention.output.LayerNorm.weight": (1, 1 / 2, 1 / 2),
        "bert.encoder.layer.3.output.LayerNorm.weight": (1, 1 / 2, 1 / 2),
    },
    "dinov2": {
        "dinov2.encoder.layer.0.layer_scale1.lambda1": TAIL_NORM,
        "dinov2.encoder.layer.0.mlp.fc2.weight": INNER,
    },
    "mamba": {
        "backbone.layers.0.mixer.x_proj.weight": (1 / 2, R / 2, R),
        "backbone.layers.0.mixer.conv1d.weight": ONE_NORM,
        "backbone.layers.0.mixer.A_log": ONE_NORM,
    },
    "convnext": {
        "convnext.encoder.stages.0.layers.0.dwconv.weight": (1, 1, 1 / 4)
    },  # LayerScale 1e-6: alpha = 1 before it
}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name):
    build, example, branches, kinds = FAMILIES[name]
    model, base = build(64, 4), build(32, 2)
    p = trimtab.parametrize(model, base, example=example)
    assert len(p.branches) == branches(4) and {b.kind for b in p.branches} == kinds
    assert all(b.tail for b in p.branches) and p.depth == 2.0
    assert set(p.rows) == {n for n, _ in model.named_parameters()}
    assert len(p.groups(torch.optim.AdamW, lr=1e-3, weight_decay=0.0)) <= 12
    for parameter, numbers in NUMBERS.get(name, {}).items():
        row = p[parameter]
        assert (row.init, row.u, row.s) == pytest.approx(numbers, rel=1e-9), parameter
    theirs = dict(base.named_parameters())
    for parameter, q in model.named_parameters():
        twin, row = theirs.get(parameter), p[parameter]
        if twin is None or tuple(twin.shape) != row.base_shape or not q.any():
            continue
        q, twin = q.detach() + float(row.offset), twin.detach() + float(row.offset)
        ratio = q.norm() / math.sqrt(q.numel()) / (twin.norm() / math.sqrt(twin.numel()))
        assert abs(math.log(ratio / row.init)) < 5 * math.sqrt(0.5 / q.numel() + 0.5 / twin.numel()) + 1e-6, (
            parameter
        )


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-gqa", "gemma2", "qwen3", "mixtral", "t5", "vit", "resnet", "mamba"]
)
def test_family_on_meta(name):
    """Planned without weights, applied when they are there."""
    build, example, _, _ = FAMILIES[name]
    with torch.device("meta"):
        empty = build(64, 4)
    base = build(32, 2)
    planned = trimtab.parametrize(empty, base, example=example, apply=False)
    model = build(64, 4)
    real = trimtab.parametrize(build(64, 4), base, example=example)
    planned.apply(model)
    for parameter, row in real.rows.items():
        other = planned[parameter]
        assert (row.role, row.place, row.init, row.u, row.s, row.rescale) == pytest.approx(
            (other.role, other.place, other.init, other.u, other.s, other.rescale)
        ), parameter


def test_attention_pooling_by_a_learned_query():
    """The query is a token, expanded over the batch and multiplied by a weight: it is no weight itself."""
    import transformers as T

    def build(n, L):
        sizes = dict(
            hidden_size=n,
            intermediate_size=2 * n,
            num_hidden_layers=L,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
        return T.SiglipForImageClassification(T.SiglipConfig(vision_config=sizes))

    p = trimtab.parametrize(build(64, 4), build(32, 2), example=FAMILIES["vit"][1], apply=False)
    row = p["vision_model.head.probe"]
    assert (row.role, row.place, row.init, row.u, row.s) == ("elementwise", "outside", 1, 1, 1 / 2)


@pytest.mark.parametrize("seed", range(6))
def test_few_numbers_tell_the_law(seed):
    """T5's relative positions: 128 numbers at width^-1/2. Under every scheme, at a size where one draw in
    four did not tell."""
    build, example, _, _ = FAMILIES["t5"]
    torch.manual_seed(seed)
    p = trimtab.parametrize(build(128, 2), build(64, 2), scheme="completep", example=example)
    row = p["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    assert row.law == "width" and row.rescale == pytest.approx(2**0.5)


def test_a_constant_that_meta_hides():
    """Gemma keeps sqrt(width) in a buffer, which has no value on meta: read off its module, or asked for, and
    never missed."""
    build, example, _, _ = FAMILIES["gemma2"]
    with torch.device("meta"):
        empty = build(64, 4)
    p = trimtab.parametrize(empty, build(32, 2), example=example, apply=False)
    assert p["model.embed_tokens.weight"].init == pytest.approx(R)
    other = build(64, 4)
    other.model.embed_tokens.embed_scale.fill_(3.0)
    with pytest.raises(trimtab.InputError, match="embed_scale is 3, and 8 was"):
        p.apply(other)
    del empty.model.embed_tokens.scalar_embed_scale
    with pytest.raises(trimtab.StructureError, match="embed_scale") as error:
        trimtab.parametrize(empty, build(32, 2), example=example, apply=False)
    assert "register_buffer" in str(error.value)
    empty.model.embed_tokens.register_buffer("embed_scale", torch.tensor(8.0), persistent=False)
    p = trimtab.parametrize(empty, build(32, 2), example=example, apply=False)
    assert p["model.embed_tokens.weight"].init == pytest.approx(R)


def trained(model, optimizer, steps=3):
    for step in range(steps):
        ids = IDS.roll(step, 0)
        optimizer.zero_grad()
        F.cross_entropy(model(input_ids=ids).logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    return {k: v.clone() for k, v in model.state_dict().items()}


def test_reloaded_is_the_same_model(tmp_path):
    """save_pretrained, from_pretrained, resume from JSON: logits equal, three steps equal."""
    build = FAMILIES["gpt2"][0]
    model = build(64, 4).eval()
    p = trimtab.parametrize(model, build(32, 2), example=dict(input_ids=IDS))
    model.save_pretrained(tmp_path)
    (tmp_path / "trimtab.json").write_text(p.to_json())
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(model(IDS).logits, again(IDS).logits)
    q = trimtab.Parametrization.from_json((tmp_path / "trimtab.json").read_text())
    a, b = (
        trained(model, p.optimizer(torch.optim.AdamW, lr=1e-3)),
        trained(again, q.optimizer(torch.optim.AdamW, lr=1e-3, model=again)),
    )
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_trainer_with_the_optimizer_handed_over(tmp_path):
    """HF Trainer makes its own optimizer unless given one; given ours, the factors survive its schedule and
    its steps."""
    pytest.importorskip("accelerate", reason="the [hf] extra is not installed")
    import transformers as T

    build = FAMILIES["gpt2"][0]
    model = build(64, 4)
    p = trimtab.parametrize(model, build(32, 2), example=dict(input_ids=IDS))
    data = [dict(input_ids=row, labels=row) for row in IDS for _ in range(4)]
    args = T.TrainingArguments(
        str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        lr_scheduler_type="cosine",
        warmup_steps=1,
    )
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    before = {n: q.detach().clone() for n, q in model.named_parameters()}
    trainer = T.Trainer(model=model, args=args, train_dataset=data, optimizers=(optimizer, None))
    trainer.train()
    assert any(not torch.equal(before[n], q) for n, q in model.named_parameters())
    p.check(optimizer)
    own = T.Trainer(model=model, args=args, train_dataset=data)
    own.create_optimizer()
    with pytest.raises(trimtab.OptimizerError):
        p.check(own.optimizer)


@pytest.mark.parametrize("name", ["resnet", "resnet-bottleneck", "regnet"])
def test_every_convolution_of_a_stage_has_a_twin_of_its_kind(name):
    """The first block of a stage widens, so its fan-in is no measure of the next block's: all ratios are 1 or
    2."""
    build, example, *_ = FAMILIES[name]
    p = trimtab.parametrize(build(64, 4), build(32, 2), example=example)
    assert {m for row in p.rows.values() for m in (row.m_in, row.m_out)} == {1.0, 2.0}
