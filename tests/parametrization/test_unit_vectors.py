"""A unit vector wants sqrt(N), however the norm is spelled: a right norm is left alone and proven."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from structures import Block, Net, X
from trimtab.errors import LawError

BASE, WIDE = (64, 2), (256, 2)


class Spelled(nn.Module):
    """gain * sqrt(N) * x / |x|, the unit vector and the root each written in one of the usual ways."""

    def __init__(self, n, unit, root):
        super().__init__()
        self.g, self.unit, self.root = nn.Parameter(torch.ones(n)), unit, root
        self.scale = n**0.5
        if root == "buffer":
            self.register_buffer("held", torch.tensor(n**0.5))
        if root == "parameter":
            self.learned = nn.Parameter(torch.tensor(n**0.5))

    def forward(self, x):
        u = self.unit(x)
        if self.root == "before the gain":
            return u * self.scale * self.g
        if self.root == "in two":
            return u * self.scale**0.5 * self.g * self.scale**0.5
        if self.root == "none":
            return u * self.g
        return (
            u
            * self.g
            * {"buffer": getattr(self, "held", 0), "parameter": getattr(self, "learned", 0)}.get(
                self.root, self.scale
            )
        )


UNITS = {
    "normalize": lambda x: F.normalize(x, dim=-1),
    "over the norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "clamped": lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6),
    "rsqrt": lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6),
}
ROOTS = ["attribute", "before the gain", "in two", "buffer", "none"]


class Normed(Block):
    def f(self, h):
        return self.down(torch.relu(self.up(self.norm(h))))


def builder(unit, root):
    def build(n, L):
        blocks = (
            Normed(norm=Spelled(n, UNITS[unit], root), up=nn.Linear(n, n), down=nn.Linear(n, n))
            for _ in range(L)
        )
        return Net(n, list(blocks))

    return build


def planned(build, size=WIDE, **more):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.parametrize(build(*size), build(*BASE), example=X, **more)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("unit", UNITS)
def test_a_norm_by_length_starts_alike_at_every_width(unit, root):
    p = planned(builder(unit, root))
    assert p.proof.verdict == "good", f"{p.proof.total}\n" + "\n".join(map(str, p.proof))
    assert 0.9 < p.proof.total.change < 1.1
    for block in range(2):  # sqrt(4) is in the forward, or in the gain
        assert p[f"blocks.{block}.norm.g"].init == pytest.approx(2.0 if root == "none" else 1.0)


def test_a_learned_root_is_asked_for_and_right_once_its_law_is_said():
    build = builder("normalize", "parameter")
    with pytest.raises(LawError, match="norm.learned"):
        planned(build)
    p = planned(build, overrides={"*.norm.learned": {"init_law": 2.0}})
    assert p.proof.verdict == "good", f"{p.proof.total}\n" + "\n".join(map(str, p.proof))
    wrong = planned(build, overrides={"*.norm.learned": {"init_law": "fixed"}})
    assert wrong.proof.verdict == "wrong"


def test_a_model_on_meta_gets_the_same_numbers():
    build = builder("normalize", "attribute")
    torch.manual_seed(0)
    base = build(*BASE)
    with torch.device("meta"):
        model = build(*WIDE)
    p = trimtab.parametrize(model, base, example=X, apply=False)
    assert p["blocks.0.norm.g"].init == 1.0


MEANS = {
    "length over sqrt(N)": lambda x, n: x / (x.norm(dim=-1, keepdim=True) / n**0.5 + 1e-6),
    "length times N^-1/2": lambda x, n: x / (x.norm(dim=-1, keepdim=True) * n**-0.5).clamp(min=1e-6),
    "squares over N": lambda x, n: x * torch.rsqrt(x.square().sum(-1, keepdim=True) / n + 1e-6),
    "root over sqrt(N)": lambda x, n: x / (x.pow(2).sum(-1, keepdim=True).sqrt() / n**0.5),
    "inverse times sqrt(N)": lambda x, n: x * (x.square().sum(-1, keepdim=True).rsqrt() * n**0.5),
    "variance over N - 1": lambda x, n: (
        (x - x.mean(-1, keepdim=True))
        * torch.rsqrt((x - x.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) / (n - 1) + 1e-6)
    ),
    "centred by a sum over N": lambda x, n: F.normalize(x - x.sum(-1, keepdim=True) / n, dim=-1) * n**0.5,
    "sum of sizes": lambda x, n: F.normalize(x, p=1, dim=-1) * n,
    "softmax": lambda x, n: torch.softmax(x, -1) * n,
}


class Mean(nn.Module):
    """A norm whose constant makes a mean of a sum over the width."""

    def __init__(self, n, normed):
        super().__init__()
        self.g, self.n, self.normed = nn.Parameter(torch.ones(n)), n, normed

    def forward(self, x):
        return self.g * self.normed(x, self.n)


@pytest.mark.parametrize("size", [WIDE, (16, 2)], ids=["wide", "narrow"])
@pytest.mark.parametrize("spelled", MEANS)
def test_a_constant_that_makes_a_mean_of_a_sum_over_the_width_is_left_alone(spelled, size):
    def build(n, L):
        blocks = (
            Normed(norm=Mean(n, MEANS[spelled]), up=nn.Linear(n, n), down=nn.Linear(n, n)) for _ in range(L)
        )
        return Net(n, list(blocks))

    p = planned(build, size)
    assert p["blocks.0.norm.g"].init == p["stem.weight"].init == 1.0
    assert 1 / 1.5 < p.proof.total.change < 1.5  # the proof's own bound; N^1/2 that is undone is 2
    assert p.proof.verdict != "wrong", "\n".join(map(str, p.proof))


class OnTheSphere(nn.Module):
    """A stream of unit vectors that moves a learned part of the way to a block's (nGPT)."""

    def __init__(self, n):
        super().__init__()
        self.up, self.down = nn.Linear(n, n), nn.Linear(n, n)
        self.rate = nn.Parameter(torch.full((n,), 0.05))

    def forward(self, x):
        aim = F.normalize(self.down(torch.relu(self.up(F.layer_norm(x, x.shape[-1:])))), dim=-1)
        return F.normalize(torch.lerp(x, aim, self.rate), dim=-1)


def test_the_rate_of_a_stream_on_the_sphere_is_left_alone():
    class Unit(nn.Linear):
        def forward(self, x):
            return F.normalize(super().forward(x), dim=-1)

    def build(n, L):
        net = Net(n, [OnTheSphere(n) for _ in range(L)], stem=Unit(6, n))
        net.head = nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 3))
        return net

    p = planned(build)
    assert p["blocks.0.rate"].init == p["blocks.1.rate"].init == 1.0
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


def test_an_embedding_that_is_multiplied_is_still_undone():
    """What is no unit vector keeps the old law."""

    class Scaled(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.fc, self.scale = nn.Linear(6, n), n**0.5

        def forward(self, x):
            return self.fc(x) * self.scale

    p = planned(lambda n, L: Net(n, [], stem=Scaled(n)))
    assert p["stem.fc.weight"].init == pytest.approx(0.5)
