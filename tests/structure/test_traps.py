"""Ways to be silently wrong that were met once: each is right now, or refused with what to do."""

import ast
import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from structures import CASES, IDS, LM, Block, Layer, Net, X
from trimtab import InputError, StructureError

R = 2**-0.5


def two_sizes(build, small=(16, 2), large=(16, 4), example=X, **more):
    return trimtab.parametrize(build(*large), build(*small), example=example, **more)


def branch_ratio(build, name="blocks.0"):
    """How much a branch's output shrinks when the model is parametrized at four times the depth: 1/2."""
    torch.manual_seed(1)
    model = build(16, 8)
    block = model.get_submodule(name)
    h = torch.randn(5, 16)
    before = block(h) - h
    trimtab.parametrize(model, build(16, 2), example=X)
    return ((block(h) - h).norm() / before.norm()).item()


class Normalised(Block):
    def f(self, h):
        return F.linear(torch.relu(self.a(h)), F.normalize(self.w, dim=1))


class Standardised(Block):
    def f(self, h):
        return F.linear(
            torch.relu(self.a(h)), (self.w - self.w.mean(1, keepdim=True)) / self.w.std(1, keepdim=True)
        )


class TiedInside(Block):
    def f(self, h):
        return F.linear(torch.relu(F.linear(h, self.w)), self.w.T)


@pytest.mark.parametrize("cls", [Normalised, Standardised])
def test_the_fold_scales_the_tensor_at_every_use(cls):
    """A weight divided by its own norm carries no factor, whatever one of its two uses says."""
    ratio = branch_ratio(
        lambda n, L: Net(n, [cls(a=nn.Linear(n, n), w=nn.Parameter(torch.randn(n, n))) for _ in range(L)])
    )
    assert ratio == pytest.approx(0.5, rel=1e-4)


def test_a_tail_of_degree_two_is_refused():
    with pytest.raises(StructureError, match="homogeneous"):
        two_sizes(
            lambda n, L: Net(n, [TiedInside(w=nn.Parameter(torch.randn(n, n) * 0.1)) for _ in range(L)])
        )


def test_branches_with_the_same_inner_names_are_not_mixed_up():
    class Two(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.mlp = nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))
            self.adapter = nn.Sequential(
                nn.LayerNorm(n), nn.Linear(n, n // 2), nn.GELU(), nn.Linear(n // 2, n)
            )

        def forward(self, h):
            h = h + self.mlp(h)
            return h + self.adapter(h)

    p = two_sizes(lambda n, L: Net(n, [Two(n) for _ in range(L)]))
    assert all(row.m_in == row.m_out == 1 for row in p.rows.values())
    assert p["blocks.1.mlp.3.weight"].init == pytest.approx(R) and p["blocks.0.adapter.3.weight"].u == 0.5


def test_nested_stacks_of_equal_groups_get_equal_numbers():
    class Group(nn.Module):
        def __init__(self, n, L):
            super().__init__()
            self.blocks, self.out = (
                nn.ModuleList(Block(fc=nn.Linear(n, n)) for _ in range(L)),
                nn.Linear(n, n),
            )

        def forward(self, h):
            z = h
            for block in self.blocks:
                z = block(z)
            return h + self.out(z)

    p = two_sizes(lambda n, L: Net(n, [Group(n, L) for _ in range(2)]))
    inner = {p[f"blocks.{g}.blocks.{b}.fc.weight"].m_L for g in range(2) for b in range(4)}
    assert inner == {2.0} and p["blocks.0.out.weight"].m_L == 1.0
    assert isinstance(p.depth, dict) and set(p.depth.values()) == {1.0, 2.0}


def test_a_learned_query_however_it_is_written():
    class Pool(nn.Module):
        def __init__(self, n, how):
            super().__init__()
            self.embed, self.k, self.q, self.head, self.how = (
                nn.Linear(6, n),
                nn.Linear(n, n),
                nn.Parameter(torch.randn(1, n)),
                nn.Linear(n, 5),
                how,
            )

        def forward(self, x):
            h = self.embed(x)[None].expand(2, -1, -1)
            k = self.k(h)
            if self.how == "sdpa":
                y = F.scaled_dot_product_attention(self.q.expand(2, -1, -1), k, h)
            else:
                y = (self.q @ k.transpose(1, 2) * k.shape[-1] ** -0.5).softmax(-1) @ h
            return self.head(y[:, 0])

    rows = [
        trimtab.parametrize(Pool(64, how), Pool(16, how), example=X, overrides={"q": {"init_law": "fixed"}})[
            "q"
        ]
        for how in ("sdpa", "matmul")
    ]
    assert [(r.init, r.u) for r in rows] == [pytest.approx((0.5, 0.5))] * 2


def test_attention_without_softmax_is_folded_once():
    class ReluAttention(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(n, n) for _ in range(4))

        def forward(self, h):
            a = torch.relu(self.q(h) @ self.k(h).transpose(-1, -2) * h.shape[-1] ** -0.5) / h.shape[1]
            return self.o(a @ self.v(h))

    p = two_sizes(lambda n, L: LM(n, [Layer(n, ReluAttention(n)) for _ in range(L)]), (16, 2), (64, 2), IDS)
    assert p["layers.0.attn.q.weight"].fold == pytest.approx(0.5) and p["layers.0.attn.k.weight"].fold == 1.0


def test_values_that_share_only_a_bias_with_the_queries():
    class Cross(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.e, self.at, self.h = (
                nn.Linear(6, n),
                nn.MultiheadAttention(n, 2, kdim=6, vdim=6, batch_first=True),
                nn.Linear(n, 5),
            )

        def forward(self, x):
            h = self.e(x)[None]
            return self.h(h + self.at(h, x[None], x[None], need_weights=False)[0])

    p = trimtab.parametrize(
        Cross(64), Cross(16), example=X, overrides={"at.*_proj_weight": {"init_law": "xavier"}}
    )
    r = 4**-0.25
    assert [
        p[f"at.{k}"].fold
        for k in ("q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "out_proj.weight")
    ] == pytest.approx([r, r, r, r, 1 / r])


@pytest.mark.parametrize("how", ["scalar", "weight", "vector"])
def test_a_constant_of_the_readout_however_it_is_written(how):
    class Head(nn.Linear):
        def forward(self, h):
            c = 16 / h.shape[-1]
            if how == "scalar":
                return c * super().forward(h)
            if how == "weight":
                return F.linear(h, c * self.weight, self.bias)
            return super().forward(h * torch.full((h.shape[-1],), c))

    model, base = (
        nn.Sequential(nn.Linear(6, n), nn.Tanh(), nn.Linear(n, n, bias=False), Head(n, 5, bias=False))
        for n in (64, 16)
    )
    p = trimtab.parametrize(model, base, example=X)
    assert p["3.weight"].init * p["2.weight"].init == pytest.approx((1 / 4) * (1 / 2) * 4)


def test_products_of_parameters_are_refused_not_guessed():
    class LowRank(Block):
        def f(self, h):
            return F.linear(h, self.a @ self.b)

    def build(n, L):
        return Net(
            n,
            [LowRank(a=nn.Parameter(torch.randn(n, 4)), b=nn.Parameter(torch.randn(4, n))) for _ in range(L)],
        )

    with pytest.raises(StructureError, match="contraction is not known"):
        two_sizes(build, (16, 2), (64, 2))


def test_weights_of_all_blocks_in_one_tensor_are_refused():
    class Stacked(nn.Module):
        def __init__(self, n, L):
            super().__init__()
            self.stem, self.w, self.head = (
                nn.Linear(6, n),
                nn.Parameter(torch.randn(L, n, n) * n**-0.5),
                nn.Linear(n, 5),
            )

        def forward(self, x):
            h = self.stem(x)
            for k in range(len(self.w)):
                h = h + torch.relu(h) @ self.w[k]
            return self.head(h)

    with pytest.raises(StructureError, match="slice by slice"):
        two_sizes(Stacked)


def test_a_gate_on_skip_and_branch_does_not_carry_the_factor():
    class Convex(Block):
        def forward(self, h):
            return (1 - self.g) * h + self.g * self.f(h)

    def build(start):
        gate = lambda: nn.Parameter(torch.tensor(start))  # noqa: E731
        return lambda n, L: Net(n, [Convex(fc=nn.Linear(n, n), g=gate()) for _ in range(L)])

    p = two_sizes(build(0.01))
    assert p.branches[0].tail == ("blocks.0.fc.weight", "blocks.0.fc.bias") and p[
        "blocks.0.fc.weight"
    ].init == pytest.approx(R)
    with pytest.raises(StructureError, match="kept whole"):  # half of the stream is forgotten in each block
        two_sizes(build(0.5))


def test_richness_sees_the_readout_behind_a_skip_from_the_input():
    class Denoiser(nn.Module):
        def __init__(self, n, L):
            super().__init__()
            self.net = Net(n, [Block(fc=nn.Linear(n, n)) for _ in range(L)], head=nn.Linear(n, 6))

        def forward(self, x):
            return x + self.net(x)

    p = two_sizes(Denoiser, (16, 2), (64, 2), gamma0=2.0)
    assert (p["net.head.weight"].init, p["net.head.weight"].u) == pytest.approx((1 / 8, 1 / 4))
    assert p["net.stem.weight"].u == 2.0


def test_factors_are_not_handed_to_another_size():
    def build(n, L):
        return Net(n, [Block(fc=nn.Linear(n, n)) for _ in range(L)])

    p = two_sizes(build, (16, 2), (64, 2))
    with pytest.raises(InputError, match="size that was parametrized"):
        p.groups(torch.optim.AdamW, lr=1e-3, model=build(32, 2))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("which", ["model", "base"])
def test_few_numbers_drawn_near_zero_are_still_torchs_draw(outputs, which):
    """A bias of one number is a thousandth of its law once in 600 draws: chance, and no other law."""

    def build(n):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, outputs))

    models = {"model": build(64), "base": build(16)}
    with torch.no_grad():
        models[which][2].bias.copy_(torch.full((outputs,), 64**-0.5 * 1e-3 ** (1 / outputs)))
    p = trimtab.parametrize(models["model"], models["base"], example=torch.randn(4, 8))
    assert p["2.bias"].init == 1.0 and p["2.bias"].rescale == pytest.approx(2.0)


def test_layers_of_one_sequential_keep_their_own_laws():
    def build(n, L):
        net = Net(
            n,
            [
                Block(fc=nn.Sequential(nn.Linear(n, n, bias=False), nn.ReLU(), nn.Linear(n, n, bias=False)))
                for _ in range(L)
            ],
        )
        for block in net.blocks:
            nn.init.normal_(block.fc[0].weight, std=0.005)
        return net

    p = two_sizes(build, (32, 2), (128, 2))
    assert (p["blocks.0.fc.0.weight"].rescale, p["blocks.0.fc.2.weight"].rescale) == pytest.approx((0.5, 1.0))


def test_more_layers_inside_a_branch_are_no_depth():
    def build(n, k):
        layers = [layer for _ in range(k) for layer in (nn.ReLU(), nn.Linear(n, n))]
        return Net(n, [Block(fc=nn.Sequential(*layers)) for _ in range(2)])

    with pytest.raises(StructureError, match="neither width nor depth"):
        two_sizes(build, (16, 2), (16, 4))


def test_blocks_dropped_at_random_are_noticed():
    class Dropping(Net):
        def forward(self, x):
            h = self.stem(x)
            for block in self.blocks:
                h = block(h) if torch.rand(()) > 0.5 else h
            return self.head(h)

    with pytest.raises(StructureError, match="every block must run"):
        two_sizes(lambda n, L: Dropping(n, [Block(fc=nn.Linear(n, n)) for _ in range(L)]), (16, 4), (16, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_number_types(dtype):
    p = trimtab.parametrize(LM(64, [Layer(64)]).to(dtype), LM(32, [Layer(32)]).to(dtype), example=IDS)
    assert p["layers.0.attn.q.weight"].fold == pytest.approx(R)


def test_compiled_and_parallel_models_are_looked_into():
    def build(n):
        return Net(n, [Block(fc=nn.Linear(n, n))])

    for wrap in (torch.compile, nn.DataParallel):
        p = trimtab.parametrize(wrap(build(32)), build(16), example=X)
        assert p["head.weight"].role == "readout"


def test_meta_is_proven_on_the_base():
    """A branch that ends in a norm without gain has no tail: refused on meta as on a real device."""

    class NoGain(Block):
        def f(self, h):
            z = self.fc(h)
            return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)

    def build(n, L):
        return Net(n, [NoGain(fc=nn.Linear(n, n)) for _ in range(L)])

    with torch.device("meta"):
        empty = build(16, 4)
    for model, apply in ((build(16, 4), True), (empty, False)):
        with pytest.raises(StructureError, match="homogeneous"):
            trimtab.parametrize(model, build(16, 2), example=X, apply=apply)


def test_weights_that_are_not_finite():
    model = Net(32, [Block(fc=nn.Linear(32, 32))])
    with torch.no_grad():
        model.stem.weight[0, 0] = math.nan
    with pytest.raises(InputError, match="finite"):
        trimtab.parametrize(model, Net(16, [Block(fc=nn.Linear(16, 16))]), example=X)


def test_a_gate_that_starts_closed():
    class Flamingo(Block):
        def forward(self, h):
            return h + torch.tanh(self.g) * self.f(h)

    p = two_sizes(
        lambda n, L: Net(n, [Flamingo(fc=nn.Linear(n, n), g=nn.Parameter(torch.zeros(()))) for _ in range(L)])
    )
    assert p.branches[0].tail == ("blocks.0.fc.weight", "blocks.0.fc.bias")


class TwoTerms(nn.Module):
    """Scores with a second term, scaled together or each by itself (relative positions, decoupled rotary
    keys)."""

    def __init__(self, n, together):
        super().__init__()
        self.q, self.k, self.k2, self.v, self.o = (nn.Linear(n, n) for _ in range(5))
        self.together = together

    def forward(self, h):
        q, c = self.q(h), h.shape[-1] ** -0.5
        a, b = (q @ k(h).transpose(-1, -2) for k in (self.k, self.k2))
        scores = (a + b) * c if self.together else a * c + b * c
        return self.o(scores.softmax(-1) @ self.v(h))


@pytest.mark.parametrize("together", [True, False])
def test_scores_of_two_terms(together):
    p = two_sizes(
        lambda n, L: LM(n, [Layer(n, TwoTerms(n, together)) for _ in range(L)]), (16, 2), (64, 2), IDS
    )
    assert p["layers.0.attn.q.weight"].fold == pytest.approx(0.5)
    assert {p[f"layers.0.attn.{k}.weight"].fold for k in ("k", "k2", "v", "o")} == {1.0}


@pytest.mark.parametrize("value", [0.1, 0.25, 1.0])
@pytest.mark.parametrize("n", [16, 64])
def test_a_constant_gain_is_not_taken_for_a_draw(value, n):
    class Scaled(Block):
        def forward(self, h):
            return h + self.gamma * self.f(h)

    def build(n, L):
        return Net(
            n, [Scaled(fc=nn.Linear(n, n), gamma=nn.Parameter(torch.full((n,), value))) for _ in range(L)]
        )

    p = two_sizes(build, (n, 2), (2 * n, 4))
    assert p["blocks.0.gamma"].rescale == pytest.approx(R)


@pytest.mark.parametrize("temperature", ["query", "scores", "none"])
def test_cosine_attention_is_over_d_already(temperature):
    class Cosine(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(n, n) for _ in range(4))
            self.t = nn.Parameter(torch.tensor(10.0))

        def forward(self, h):
            q, k = F.normalize(self.q(h), dim=-1), F.normalize(self.k(h), dim=-1)
            q = q * self.t if temperature == "query" else q
            scores = q @ k.transpose(-1, -2)
            scores = scores * self.t if temperature == "scores" else scores
            return self.o(scores.softmax(-1) @ self.v(h))

    p = two_sizes(lambda n, L: LM(n, [Layer(n, Cosine(n)) for _ in range(L)]), (16, 2), (64, 2), IDS)
    assert all(row.fold == 1.0 for row in p.rows.values())


def test_a_buffer_that_is_filled_piece_by_piece():
    class Filled(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.q, self.k1, self.k2, self.v, self.o = (
                nn.Linear(n, n),
                nn.Linear(n, n // 2),
                nn.Linear(n, n // 2),
                nn.Linear(n, n),
                nn.Linear(n, n),
            )

        def forward(self, h):
            half = h.shape[-1] // 2
            k = h.new_empty(h.shape).fill_(float("nan"))
            k[..., :half] = self.k1(h)
            k[..., half:] = self.k2(h)
            return self.o((self.q(h) @ k.transpose(-1, -2) * h.shape[-1] ** -0.5).softmax(-1) @ self.v(h))

    p = two_sizes(lambda n, L: LM(n, [Layer(n, Filled(n)) for _ in range(L)]), (16, 2), (64, 2), IDS)
    assert p["layers.0.attn.q.weight"].fold == pytest.approx(0.5)


def test_a_matrix_on_a_fixed_table():
    class Sinusoids(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("table", torch.randn(7, 6))
            self.project, self.embed, self.head = (
                nn.Linear(6, n, bias=False),
                nn.Embedding(11, n),
                nn.Linear(n, 5),
            )

        def forward(self, ids):
            return self.head(torch.tanh(self.embed(ids) + self.project(self.table)))

    p = trimtab.parametrize(Sinusoids(64), Sinusoids(16), example=IDS)
    assert (p["project.weight"].role, p["project.weight"].u, p["project.weight"].s) == ("input", 1.0, 0.25)


def test_unused_numbers_do_not_block():
    class Spare(Net):
        def __init__(self, n):
            super().__init__(n, [Block(fc=nn.Linear(n, n))])
            self.spare = nn.Parameter(torch.randn(n))

    p = trimtab.parametrize(Spare(32), Spare(16), example=X)
    assert p["spare"].rescale == 1.0 and any("not used" in n for n in p.notes)


# -- targets smaller than their base -------------------------------------------------------------------------


def fixed(model):
    for q in model.parameters():
        if q.ndim > 1:
            nn.init.normal_(q, std=0.02)
    return model


def plain_mlp(n, L=2):
    return Net(n, [Block(fc=nn.Linear(n, n)) for _ in range(L)])


@pytest.mark.parametrize("draw", [lambda m: m, fixed], ids=["standard", "fixed std"])
@pytest.mark.parametrize(
    ("build", "example", "body"),
    [(plain_mlp, X, "blocks"), (lambda n: LM(n, [Layer(n), Layer(n)]), IDS, "layers")],
    ids=["mlp", "transformer"],
)
def test_a_narrower_target_starts_as_its_base(build, example, body, draw):
    """512 wide to 64: the stream's rms is the base's (0.35 of it by the rule for larger targets); 64 numbers
    x 3 seeds."""
    sizes = [0.0, 0.0]
    for seed in range(3):
        torch.manual_seed(seed)
        model, base = draw(build(64)), draw(build(512))
        trimtab.parametrize(model, base, example=example)
        for i, m in enumerate((model, base)):
            seen = []
            hook = getattr(m, body)[-1].register_forward_hook(
                lambda m, args, out, seen=seen: seen.append(out)
            )
            with torch.no_grad():
                m(example)
            hook.remove()
            sizes[i] += seen[0].square().mean().item()
    assert math.sqrt(sizes[0] / sizes[1]) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("scheme", ["depth-mup", "completep", "mup", "ntk"])
@pytest.mark.parametrize("name", ["residual-mlp", "pre-norm-transformer"])
def test_there_and_back_through_a_model(name, scheme):
    build, example = CASES[name].build, CASES[name].example
    up = trimtab.parametrize(build(64, 4), build(16, 2), example=example, scheme=scheme, apply=False)
    down = trimtab.parametrize(build(16, 2), build(64, 4), example=example, scheme=scheme, apply=False)
    for name, row in down.rows.items():
        assert (up[name].init * row.init, up[name].u * row.u, up[name].s * row.s) == pytest.approx(
            (1, 1, 1), rel=1e-9
        ), name


class Bottleneck(nn.Module):
    def __init__(self, n, inner, L=2):
        super().__init__()
        self.stem, self.head = nn.Linear(6, n), nn.Linear(n, 5)
        self.blocks = nn.ModuleList(Block(up=nn.Linear(n, inner), fc=nn.Linear(inner, n)) for _ in range(L))

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + block.fc(torch.relu(block.up(h)))
        return self.head(h)


def test_one_width_up_and_the_other_down_is_asked_and_the_answer_works():
    def models():
        return Bottleneck(64, 16, 4), Bottleneck(16, 64, 2)

    with pytest.raises(
        InputError, match=r"up.weight: fan-in x 4, fan-out x 0.25(.|\n)*fc.weight: fan-in x 0.25, fan-out x 4"
    ) as asked:
        trimtab.parametrize(*models(), example=X)
    pasted = ast.literal_eval(re.search(r"pass overrides=(.*)\.$", str(asked.value))[1])
    p = trimtab.parametrize(*models(), example=X, overrides=pasted)
    assert p["blocks.3.up.weight"].init == pytest.approx(1 / 2) and p[
        "blocks.3.fc.weight"
    ].init == pytest.approx(2 * 2**-0.5, rel=1e-5)
    assert (p["blocks.0.up.weight"].u, p["blocks.0.up.weight"].s) == pytest.approx((1 / 4 * R, 4 * R))


def test_a_shallower_target_needs_tails_too():
    """A branch without parameters to fold into, whichever model is the deeper one."""

    class NoGain(Block):
        def f(self, h):
            z = self.fc(h)
            return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)

    with pytest.raises(StructureError, match="homogeneous"):
        two_sizes(lambda n, L: Net(n, [NoGain(fc=nn.Linear(n, n)) for _ in range(L)]), (16, 4), (16, 2))


# -- numbers that are not to be touched ----------------------------------------------------------------------


class Quantised(nn.Module):
    """A frozen matrix of codes times a scale, an index and a mask, all parameters."""

    def __init__(self, n, dtype):
        super().__init__()
        codes = torch.rand(n, n) > 0.5 if dtype is torch.bool else (20 * torch.randn(n, n)).to(dtype)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.order = nn.Parameter(torch.randperm(n), requires_grad=False)
        self.spare = nn.Parameter(torch.zeros(2, n, dtype=torch.int64), requires_grad=False)
        self.stem, self.scale, self.head = (
            nn.Linear(6, n),
            nn.Parameter(torch.full((n,), 0.01)),
            nn.Linear(n, 5),
        )

    def forward(self, x):
        h = torch.relu(self.stem(x))[:, self.order]
        return self.head(h + F.linear(h * self.scale, self.codes.float()))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_numbers_that_are_not_floating_point_are_left_alone(dtype):
    torch.manual_seed(0)
    model = Quantised(64, dtype)
    before = copy.deepcopy(model)
    p = trimtab.parametrize(model, Quantised(16, dtype), example=X)
    for name in ("codes", "order", "spare"):
        assert (
            torch.equal(getattr(model, name).float(), getattr(before, name).float())
            and p[name].rescale == 1.0
        )
    assert not torch.equal(model.head.weight, before.head.weight)
    assert any("3 parameters are not floating point" in note for note in p.notes)
    p.check(p.optimizer(torch.optim.AdamW, lr=1e-3))


def test_complex_parameters_are_refused():
    class Complex(Net):
        def __init__(self, n):
            super().__init__(n, [])
            self.w = nn.Parameter(torch.randn(n, n, dtype=torch.complex64))

        def forward(self, x):
            return self.head((self.stem(x).to(torch.complex64) @ self.w).real)

    with pytest.raises(InputError, match="w of the model is complex"):
        trimtab.parametrize(Complex(32), Complex(16), example=X)


def same_object(model, base):
    model.head.bias = base.head.bias


def same_storage(model, base):
    model.head.bias.data = base.head.bias.data


@pytest.mark.parametrize("share", [same_object, same_storage])
def test_memory_shared_with_the_base_is_refused(share):
    model, base = plain_mlp(64), plain_mlp(16)
    share(model, base)
    before = copy.deepcopy(base.state_dict())
    with pytest.raises(
        InputError, match="head.bias of the model and head.bias of the base are one memory.*copy.deepcopy"
    ):
        trimtab.parametrize(model, base, example=X)
    assert all(torch.equal(v, before[k]) for k, v in base.state_dict().items())
    model = plain_mlp(64)
    trimtab.parametrize(model, copy.deepcopy(base), example=X)


@pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel])
def test_model_and_base_are_two(wrap):
    base = plain_mlp(16)
    with pytest.raises(InputError, match="one object.*copy.deepcopy"):
        trimtab.parametrize(wrap(base), base, example=X)
    assert trimtab.parametrize(base, copy.deepcopy(base), example=X)["head.weight"].rescale == 1.0


def test_two_parameters_on_one_memory_are_refused():
    model = LM(32, [Layer(32)])
    model.head.weight.data = model.embed.weight.data
    with pytest.raises(InputError, match="embed.weight and head.weight are two parameters on one memory"):
        trimtab.parametrize(model, LM(16, [Layer(16)]), example=IDS)


class Gated(nn.Module):
    """Residual recurrent layers: torch writes the gates in place, one chunk of a tensor after the other."""

    def __init__(self, width: int, depth: int, projected: bool):
        super().__init__()
        self.embed, self.head = nn.Embedding(30, width), nn.Linear(width, 30)
        self.cells = nn.ModuleList(nn.GRU(width, width, batch_first=True) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth if projected else 0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids)
        for i, cell in enumerate(self.cells):
            y = cell(h)[0]
            h = h + (self.outs[i](y) if self.outs else y)
        return self.head(h)


def test_chunks_written_one_after_the_other_do_not_write_over_each_other():
    """A write to one chunk used to be recorded as one to its neighbour, at a negative place of it."""
    ids = torch.randint(0, 30, (2, 5))
    p = trimtab.parametrize(Gated(32, 6, True), Gated(32, 2, True), example=ids)
    assert p.depth == 3 and p["outs.0.weight"].place == "tail" and p["cells.0.weight_hh_l0"].place == "branch"
    with pytest.raises(trimtab.StructureError, match='ends in .*sigmoid(?s:.)*scheme="mup"'):
        trimtab.parametrize(Gated(32, 6, False), Gated(32, 2, False), example=ids)
