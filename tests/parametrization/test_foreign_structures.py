"""Structures that other packages' models have, written here small: each was wrong, or refused with advice
that failed, before it was read (experiments/foreign_models.py measures the published models themselves)."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from skips import MLP, SKIPS, Add, Attention, Net, X, flatness, plan
from torch import nn

import trimtab
from trimtab.errors import LawError, StructureError

BASE, WIDE = (64, 2), (256, 2)


def planned(build, size=WIDE, base=BASE, **more):
    torch.manual_seed(0)
    model = build(*size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.parametrize(model, build(*base), example=X, **more)


# -- attention -----------------------------------------------------------------------------------------------


class UnitNorm(nn.Module):
    """A norm without a gain, written as a unit vector times sqrt(N) (x-transformers' SimpleRMSNorm)."""

    def __init__(self, n):
        super().__init__()
        self.scale = n**0.5

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale


class UnitNormAttention(Attention):
    def __init__(self, n):
        super().__init__(n)
        self.norm = UnitNorm(n)

    def forward(self, h):
        return h + super().forward(h)[0]


def of_blocks(cls):
    return lambda n, L: Net(n, [cls(n) for _ in range(L)])


def test_a_unit_vector_before_the_projection_makes_no_cosine_of_the_scores():
    p = planned(of_blocks(UnitNormAttention))
    assert p["blocks.0.q.weight"].fold == pytest.approx(0.5)  # 1/sqrt(d) -> 1/d, d four times the base's
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


class SummedScores(Attention):
    """Scores as a sum of products over the head dimension, as graph transformers have them."""

    def forward(self, h):
        x = self.norm(h)
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / q.shape[-1] ** 0.5
        y = scores.softmax(-1) @ v
        return h + self.o(y.transpose(1, 2).flatten(-2))


def test_scores_summed_by_hand_want_what_a_matrix_product_wants():
    p = planned(of_blocks(SummedScores))
    assert p["blocks.1.q.weight"].fold == pytest.approx(0.5)
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


class NormedQueries(Attention):
    def forward(self, h):
        x = self.norm(h)
        q, k = (F.rms_norm(self.split(f(x)), (x.shape[-1] // self.heads,)) for f in (self.q, self.k))
        y = F.scaled_dot_product_attention(q, k, self.split(self.v(x)))
        return h + self.o(y.transpose(1, 2).flatten(-2))


def test_query_norms_without_a_gain_say_what_to_keep():
    with pytest.raises(StructureError, match="Keep the head dimension of the base") as caught:
        planned(of_blocks(NormedQueries))
    assert "overrides" not in str(caught.value)
    more_heads = lambda n, L: Net(n, [NormedQueries(n, heads=n // 16) for _ in range(L)])  # noqa: E731
    assert planned(more_heads).proof.verdict == "good"  # as it was told


# -- positions -----------------------------------------------------------------------------------------------


class PositionBias(nn.Module):
    """A small network of the distance between tokens makes a bias of the scores (Swin v2, dynamic bias)."""

    def __init__(self, n, heads):
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(1, n), nn.Linear(n, n), nn.Linear(n, heads)

    def forward(self, length):
        at = torch.arange(length, dtype=torch.float32)
        distance = (at[:, None] - at[None, :]).unsqueeze(-1)
        return self.down(F.silu(self.mid(F.silu(self.up(distance))))).permute(2, 0, 1)


class BiasedAttention(Attention):
    def __init__(self, n):
        super().__init__(n)
        self.bias = PositionBias(n, self.heads)

    def forward(self, h):
        x = self.norm(h)
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(h.shape[1]))
        return h + self.o(y.transpose(1, 2).flatten(-2))


def test_a_network_over_fixed_positions_has_roles_of_its_own():
    p = planned(of_blocks(BiasedAttention))
    roles = [p[f"blocks.0.bias.{name}.weight"].role for name in ("up", "mid", "down")]
    assert roles == ["input", "hidden", "readout"]
    assert [p[f"blocks.0.bias.{name}.weight"].u for name in ("up", "mid", "down")] == [1.0, 0.25, 0.25]


class FixedBasis(nn.Module):
    """A weight that is a fixed basis times coefficients is a weight still."""

    def __init__(self, n, basis=3):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("basis", torch.randn(n, basis, generator=g))
        self.coefficients = nn.Parameter(torch.randn(basis, n) * n**-0.5)

    def forward(self, h):
        return h + F.linear(h, self.basis @ self.coefficients)


def test_a_basis_times_coefficients_is_no_network_of_its_own():
    model = Net(64, [FixedBasis(64)])
    from trimtab.structure.recording import record
    from trimtab.structure.uses import flow

    found = flow(record(model, X))
    product = next(n for n in found.trace.nodes if found.trace.params["blocks.0.coefficients"] in n.inputs)
    assert not found.act[product.outputs[0]]


# -- two streams, splits, joins ------------------------------------------------------------------------------


class TwoStreams(nn.Module):
    """Joint attention of two streams, its output split between them; the last block leaves the second stream
    as it is (SD3, Flux)."""

    def __init__(self, n, last):
        super().__init__()
        self.last, self.mix, self.mix_two = last, nn.Linear(n, n), nn.Linear(n, n)
        self.out = nn.Linear(n, n)
        self.norm, self.norm_two = nn.LayerNorm(n), nn.LayerNorm(n)
        if not last:
            self.out_two = nn.Linear(n, n)

    def forward(self, a, b):
        both = torch.cat([self.mix(self.norm(a)), self.mix_two(self.norm_two(b))], 1)
        both = F.scaled_dot_product_attention(both / 8, both / 8, both)
        second, first = both.split([b.shape[1], a.shape[1]], 1)
        return a + self.out(first), b if self.last else b + self.out_two(second)


class Joint(nn.Module):
    def __init__(self, n, L):
        super().__init__()
        self.stem, self.stem_two, self.head = nn.Linear(6, n), nn.Linear(6, n), nn.Linear(n, 5)
        self.blocks = nn.ModuleList(TwoStreams(n, last=i == L - 1) for i in range(L))

    def forward(self, x):
        a, b = self.stem(x), self.stem_two(x[:, :3])
        for block in self.blocks:
            a, b = block(a, b)
        return self.head(a)


def test_the_second_part_of_a_split_is_a_branch_and_streams_may_end_apart():
    p = planned(Joint, (64, 16), (64, 4))
    assert len(p.branches) == 16 + 15 and p.depth == {"blocks": 4.0, "blocks#1": 5.0}
    assert p["blocks.3.out.weight"].place == "tail" and p["blocks.3.out.weight"].init == pytest.approx(0.5)
    assert p["blocks.3.out_two.weight"].init == pytest.approx(5**-0.5)
    assert p["blocks.3.mix.weight"].u == pytest.approx(20**-0.25)  # of both streams: sqrt(4 x 5), alpha 1/2


class Join(nn.Module):
    """A block behind a join with an earlier stream, its shortcut a projection (every U-net's way up)."""

    def __init__(self, n):
        super().__init__()
        self.short, self.norm = nn.Linear(2 * n, n), nn.LayerNorm(2 * n)
        self.up, self.down = nn.Linear(2 * n, n), nn.Linear(n, n)

    def forward(self, h, kept):
        both = torch.cat([h, kept], -1)
        return self.short(both) + self.down(F.gelu(self.up(self.norm(both))))


class WayUp(Net):
    def __init__(self, n, L):
        super().__init__(n, [MLP(n) for _ in range(L)])
        self.joins = nn.ModuleList(Join(n) for _ in range(2))

    def body(self, h):
        kept = []
        for block in self.blocks:
            h = h + block(h)
            kept.append(h)
        for join in self.joins:
            h = join(h, kept.pop())
        return h


def test_a_block_behind_a_join_is_read_as_a_block():
    p = planned(WayUp)
    assert [b.kind for b in p.branches] == ["identity", "identity", "projection", "projection"]
    assert p.proof.verdict == "good"


# -- shares of an earlier stream -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x0 learned", "x0 scalars", "x0 packed"])
def test_learned_shares_of_the_first_stream_are_numbers_on_the_stream(name):
    """x = a x + b x0 with b at 0 (nanochat, modded-nanogpt): one stack, u = 1/m_L for a and b."""
    _, p = plan(SKIPS[name], (64, 16), (64, 4))
    assert p.depth == 4.0 and len(p.branches) == 16 and p.proof.verdict == "good"
    shares = [row for n, row in p.rows.items() if "lambdas" in n or n.endswith((".a", ".b"))]
    assert shares and all((r.place, r.init, r.u) == ("stream", 1.0, 0.25) for r in shares)


def test_learned_shares_move_alike():
    features, outputs = flatness(SKIPS["x0 learned"], (64, 16), (64, 4), seeds=2)
    assert 0.75 < features < 1.33 and 0.75 < outputs < 1.33


# -- adapters ------------------------------------------------------------------------------------------------


class LoRA(nn.Module):
    """W x + 2 B A x, W frozen."""

    def __init__(self, n, rank=4):
        super().__init__()
        self.frozen = nn.Linear(n, n).requires_grad_(False)
        self.a, self.b = nn.Linear(n, rank, bias=False), nn.Linear(rank, n, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.frozen(x) + 2 * self.b(self.a(x))


class Adapted(MLP):
    def __init__(self, n):
        super().__init__(n)
        self.up, self.down = LoRA(n), LoRA(n)

    def forward(self, h):
        return h + super().forward(h)


def test_adapters_are_no_blocks_and_leave_what_is_frozen_alone():
    torch.manual_seed(0)
    model, base = (of_blocks(Adapted)(n, 2) for n in (256, 64))
    with torch.no_grad():  # trained elsewhere: no law that anything was drawn from
        for name, q in model.named_parameters():
            q.mul_(1.3 if "frozen" in name else 1.0)
    before = {name: q.clone() for name, q in model.named_parameters() if "frozen" in name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = trimtab.parametrize(model, base, example=X)
    assert len(p.branches) == 2
    assert all(torch.equal(q, before[name]) for name, q in model.named_parameters() if name in before)
    rows = [p[f"blocks.0.up.{name}.weight"] for name in ("a", "b")]
    assert [(r.init, r.u, r.s) for r in rows] == [(0.25, 0.25, 1.0), (1.0, 1.0, 0.25)]
    assert any("under adapters" in note for note in p.notes)


# -- advice --------------------------------------------------------------------------------------------------


class Rooted(MLP):
    """A gain that the model fills with width^1/4: no law that drawn weights follow."""

    def __init__(self, n):
        super().__init__(n)
        self.gain = nn.Parameter(torch.full((n,), n**0.25))

    def forward(self, h):
        return h + super().forward(h) * self.gain


def test_the_law_of_a_gain_that_was_set_is_advised_and_the_advice_works():
    with pytest.raises(LawError) as caught:
        planned(of_blocks(Rooted))
    assert caught.value.suggestion == {"blocks.*.gain": {"init_law": pytest.approx(4**0.25, rel=1e-5)}}
    assert f"Pass overrides={caught.value.suggestion}" in str(caught.value)
    p = planned(of_blocks(Rooted), overrides=caught.value.suggestion)
    assert p.proof.verdict == "good" and p["blocks.1.gain"].rescale == pytest.approx(4**-0.25, rel=1e-5)


def chain(n, L):
    """Layers without a skip: their number is no depth that anything can be scaled by."""
    layers = [layer for _ in range(L) for layer in (nn.Linear(n, n), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, n), *layers, nn.Linear(n, 5))


def test_width_alone_is_advised_only_where_it_works():
    with pytest.raises(StructureError) as caught:
        planned(chain, (64, 8), (64, 2))
    assert caught.value.suggestion is None and caught.value.scheme == "mup"
    assert planned(chain, (64, 8), (64, 2), scheme="mup").proof.verdict == "not claimed"
    another = lambda n, L: nn.Sequential(chain(n, L), nn.Linear(5, 5)) if L > 2 else chain(n, L)  # noqa: E731
    with pytest.raises(StructureError) as caught:
        planned(another, (64, 8), (64, 2))
    assert "mup" not in str(caught.value) and caught.value.scheme is None


# -- starts --------------------------------------------------------------------------------------------------


class HeadByDepth(Net):
    """The head's inner matrix is drawn like the tails, by depth^-1/2 (ModernBERT)."""

    def __init__(self, n, L):
        super().__init__(n, [Add(n) for _ in range(L)])
        self.dense = nn.Linear(n, n)
        nn.init.normal_(self.dense.weight, std=0.1 * L**-0.5)

    def forward(self, x):
        return self.head(self.norm(F.gelu(self.dense(self.body(self.stem(x))))))


def test_a_matrix_outside_the_blocks_may_be_drawn_by_depth():
    p = planned(HeadByDepth, (64, 8), (64, 2))
    assert p["dense.weight"].init == 1.0 and p["dense.weight"].rescale == pytest.approx(2.0)


# -- scores of several terms ---------------------------------------------------------------------------------


class Angles(nn.Module):
    """Rotary angles kept as a frozen embedding (RoFormer)."""

    def __init__(self, dim):
        super().__init__()
        at = torch.arange(16.0)[:, None] * 100.0 ** -(torch.arange(dim // 2) / dim)
        self.table = nn.Embedding.from_pretrained(torch.cat([at.sin(), at.cos()], 1), freeze=True)

    def forward(self, length):
        sin, cos = self.table(torch.arange(length)).chunk(2, -1)
        return torch.cat([sin, sin], -1), torch.cat([cos, cos], -1)


class TableRotary(Attention):
    def __init__(self, n):
        super().__init__(n)
        self.angles = Angles(n // self.heads)

    def rotated(self, x):
        sin, cos = self.angles(x.shape[-2])
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, h):
        x = self.norm(h)
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scores = self.rotated(q) @ self.rotated(k).transpose(-1, -2) / q.shape[-1] ** 0.5
        return h + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


def test_a_frozen_table_of_angles_takes_no_factor_of_the_scores():
    p = planned(of_blocks(TableRotary))
    assert p["blocks.1.q.weight"].fold == pytest.approx(0.5) and p["blocks.1.k.weight"].fold == 1
    assert p["blocks.1.angles.table.weight"].fold == 1
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


class Disentangled(Attention):
    """Contents look at positions and positions at contents, over sqrt(3 d) (DeBERTa)."""

    def __init__(self, n):
        super().__init__(n)
        self.positions = nn.Parameter(torch.randn(16, n))
        self.position_q, self.position_k = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, h):
        x = self.norm(h)
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        table = self.positions[: h.shape[1]].unsqueeze(0)
        pq, pk = (self.split(f(table)).repeat(len(h), 1, 1, 1) for f in (self.position_q, self.position_k))
        scale = torch.sqrt(torch.tensor(q.shape[-1], dtype=torch.float) * 3)
        scores = q @ (k.transpose(-1, -2) / scale)
        scores = (
            scores + q @ pk.transpose(-1, -2) / scale + (k @ pq.transpose(-1, -2) / scale).transpose(-1, -2)
        )
        return h + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


def test_each_term_of_the_scores_is_scaled_once():
    p = planned(of_blocks(Disentangled))
    folds = {name: p[f"blocks.0.{name}.weight"].fold for name in ("q", "k", "position_q", "position_k")}
    assert folds == pytest.approx({"q": 0.5, "k": 1.0, "position_q": 0.5, "position_k": 1.0})
    roles = [p[f"blocks.0.{name}"].role for name in ("positions", "position_q.weight")]
    assert roles == ["elementwise", "hidden"]
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


class QueriesReadTwice(Attention):
    """What is made of the queries beside the scores (ConvBert's kernels of a convolution)."""

    def __init__(self, n):
        super().__init__(n)
        self.beside, self.out = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, h):
        x = self.norm(h)
        q, k, v = self.q(x), self.k(x), self.v(x)
        y = F.scaled_dot_product_attention(*map(self.split, (q, k, v)))
        return h + self.o(y.transpose(1, 2).flatten(-2)) + self.out(F.gelu(q * self.beside(x)))


def test_queries_that_something_else_reads_leave_the_factor_to_the_keys():
    p = planned(of_blocks(QueriesReadTwice))
    assert p["blocks.0.q.weight"].fold == 1 and p["blocks.0.k.weight"].fold == pytest.approx(0.5)
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


class Residual(Attention):
    def forward(self, h):
        return h + super().forward(h)[0]


def test_one_attention_among_many_small_blocks_keeps_its_share():
    build = lambda n, L: Net(n, [*[Add(n) for _ in range(L)], Residual(n), Add(n)])  # noqa: E731
    p = planned(build, (64, 15), (64, 3))
    wanted = {row.kind: row.wanted for row in p.proof if ".v.weight" in row.kind or ".o.weight" in row.kind}
    # four times more small blocks, 17 branches of 5 in all: the norms of both sorts grow as the branches do
    assert len(wanted) == 2 and all(w == pytest.approx(5 / 17) for w in wanted.values()), wanted
    assert p.proof.verdict != "wrong", "\n".join(map(str, p.proof))


# -- products of three ---------------------------------------------------------------------------------------


class BilinearBlock(nn.Module):
    """x + B(h, d(h)): a product of a weight and two activations (nn.Bilinear)."""

    def __init__(self, n, inner):
        super().__init__()
        self.norm, self.d, self.b = nn.LayerNorm(n), nn.Linear(n, inner), nn.Bilinear(n, inner, n)

    def forward(self, h):
        y = self.norm(h)
        return h + self.b(y, self.d(y))


@pytest.mark.parametrize(
    ("inner", "summed"), [(lambda n: 8, 4), (lambda n: n // 8, 16)], ids=["8", "growing"]
)
def test_a_bilinear_layer_sums_over_both_its_inputs_and_ends_a_branch(inner, summed):
    p = planned(lambda n, L: Net(n, [BilinearBlock(n, inner(n)) for _ in range(L)]), size=(256, 4))
    row = p["blocks.0.b.weight"]
    assert (row.role, row.place, row.m_in, row.m_out) == ("hidden", "tail", summed, 4.0)
    assert row.u == pytest.approx(1 / summed / p.depth)
    assert row.init == pytest.approx((summed * p.depth) ** -0.5)  # it makes what the base's makes
    assert p["blocks.0.b.bias"].place == "tail"


# -- outputs that are a width --------------------------------------------------------------------------------


class TwoTowers(nn.Module):
    """Cosines of two embeddings, whose size is a width (contrastive models)."""

    def __init__(self, n, L):
        super().__init__()
        self.left, self.right = Net(n, [Add(n) for _ in range(L)]), Net(n, [Add(n) for _ in range(L)])
        self.left.head, self.right.head = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        a, b = (F.normalize(tower(t)[:, 0], dim=-1) for tower, t in ((self.left, x), (self.right, -x)))
        return 10 * a @ b.T


def test_a_bias_follows_what_is_said_of_its_weight():
    with pytest.raises(StructureError, match="outputs .* are no width") as caught:
        planned(TwoTowers)
    suggestion = caught.value.suggestion
    assert suggestion is not None and set(suggestion.values()) == {"hidden"}
    p = planned(TwoTowers, overrides=suggestion)
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))
    assert (p["left.head.weight"].s, p["left.head.bias"].s) == (0.25, 0.25)
