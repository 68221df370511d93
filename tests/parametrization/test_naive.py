"""What a naive rule would do to published models, beside what is right: the two differ, and ours is the
second.

All at width x 2 and depth x 2, depth-mup (alpha = 1/2). "Naive" is what public code does: trust the model's
own draw, the stored shape, the class's name, or the number of tensors. `right` is worked out from the theory,
not from the code.
"""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the [hf] extra is not installed")

from families import FAMILIES

import trimtab

R = 2**-0.5


def family(name):
    build, example, _, _ = FAMILIES[name]
    torch.manual_seed(0)
    return trimtab.parametrize(build(64, 4), build(32, 2), example=example)


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9)


def test_fixed_std_init():
    """Llama draws everything at std 0.02 whatever the width: leaving its draw alone starts hidden weights
    sqrt(2) too large."""
    row = family("llama-gqa")["model.layers.0.mlp.gate_proj.weight"]
    naive, right = 1.0, R
    assert close(row.rescale, right) and not close(row.rescale, naive)


def test_depth_scaled_init():
    """GPT-2 divides its residual projections' draw by sqrt(2L) itself: folding 2^-1/2 once more would count
    depth twice."""
    row = family("gpt2")["transformer.h.0.mlp.c_proj.weight"]
    naive, right = R * R, R  # fan-in and depth, against fan-in alone
    assert close(row.rescale, right) and not close(row.rescale, naive)


def test_conv1d_orientation():
    """GPT-2's Conv1D stores (in, out). Widening only the MLP's inner size: the first matrix has the old
    fan-in, the second the new."""
    import transformers

    def build(inner):
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4, n_inner=inner
            )
        )

    p = trimtab.parametrize(
        build(256), build(128), example=dict(input_ids=torch.zeros(1, 8, dtype=torch.long))
    )
    up, down = p["transformer.h.0.mlp.c_fc.weight"], p["transformer.h.0.mlp.c_proj.weight"]
    naive_up, naive_down = 0.5, 1.0  # fan-in read from the second stored dimension, as for nn.Linear
    assert (up.u, down.u) == (1.0, 0.5) and (up.u, down.u) != (naive_up, naive_down)


def test_tied_embeddings():
    """A tied head cannot be given the readout's 1/m: the embedding is the same tensor. The fold goes into the
    final norm."""
    p = family("gpt2")
    naive, right = 0.5, 1.0
    assert p["transformer.wte.weight"].init == right != naive
    assert p["transformer.ln_f.weight"].init == 0.5


def test_own_residual_multipliers():
    """A model that divides its branches by sqrt(depth) itself (MiniCPM's scale_depth): nothing is left to
    fold."""

    class Net(nn.Module):
        def __init__(self, width, depth, own):
            super().__init__()
            self.a, self.b = nn.Linear(8, width), nn.Linear(width, 4)
            self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
            self.c = depth**-0.5 if own else 1.0

        def forward(self, x):
            h = self.a(x)
            for block in self.blocks:
                h = h + self.c * block(torch.tanh(h))
            return self.b(h)

    x = torch.randn(4, 8)
    own, none = (
        trimtab.parametrize(Net(64, 8, o), Net(64, 4, o), example=x)["blocks.0.weight"] for o in (True, False)
    )
    naive, right = R, 1.0
    assert close(own.init, right) and not close(own.init, naive) and close(none.init, naive)


def test_gains_stored_as_one_plus_w():
    """Gemma multiplies by 1 + w with w = 0: scaling w changes nothing, the fold has to shift it to 2^-1/2 -
    1."""
    build, example, _, _ = FAMILIES["gemma2"]
    model = build(64, 4)
    trimtab.parametrize(model, build(32, 2), example=example)
    stored = dict(model.named_parameters())["model.layers.0.post_attention_layernorm.weight"]
    naive, right = 0.0, R - 1.0
    assert torch.allclose(stored, torch.full_like(stored, right)) and not torch.allclose(
        stored, torch.full_like(stored, naive)
    )


class Attention(nn.Module):
    """One pre-norm attention block whose logits are multiplied by d^-power."""

    def __init__(self, width, power):
        super().__init__()
        self.embed, self.head, self.norm = nn.Linear(8, width), nn.Linear(width, 4), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.scale = (width // 2) ** -power

    def forward(self, x):
        h = self.embed(x)
        z = self.norm(h)
        q, k, v = (f(z).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(-1, -2) * self.scale, -1) @ v
        return self.head(h + self.o(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("power", "right"), [(0.5, R), (1.0, 1.0), (0.0, 0.5)], ids=["over sqrt(d)", "over d already", "no scale"]
)
def test_attention_scales(power, right):
    """Logits want 1/d: fold = wanted over what the model does itself. Naive: 2^-1/2 whatever the model
    does."""
    p = trimtab.parametrize(Attention(64, power), Attention(32, power), example=torch.randn(2, 5, 8))
    fold = p["q.weight"].init / p["k.weight"].init
    assert close(fold, right)
    if power != 0.5:
        assert not close(fold, R)


def test_shared_layers():
    """ALBERT uses one layer at every depth: its gradient is a sum over twice the uses, and its updates add up
    coherently (alpha = 1)."""
    row = family("albert")["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output.weight"]
    naive, right = (
        (R * R, 1 / 4, 1 / 2),
        (R / 2, 1 / 4, 1.0),
    )  # as a tail of its own at every depth, against a shared one
    assert all(map(close, (row.init, row.u, row.s), right)) and not all(
        map(close, (row.init, row.u, row.s), naive)
    )


def test_routers():
    """Mixtral's router maps the width to a fixed number of experts: an inner readout, 1/m at the start, not
    m^-1/2."""
    row = family("mixtral")["model.layers.0.mlp.gate.weight"]
    naive, right = R, 0.5
    assert close(row.init, right) and not close(row.init, naive)
