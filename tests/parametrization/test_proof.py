"""A plan is tried by one step: what is right is good, what is wrong is said, and nothing of the user's models changes."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from structures import CASES, IDS, X, Block, Net

BASE, WIDE, DEEP = (64, 2), (256, 2), (64, 8)


def proven(build, size=WIDE, base=BASE, example=X, seed=0, **more):
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.parametrize(build(*size), build(*base), example=example, **more)


QUICK = [
    "residual-mlp",
    "pre-norm-transformer",
    "tied-with-packed-attention",
    "one-key-head-for-all",
    "norm-on-queries",
    "rezero",
    "tiny-layer-scale",
    "mixture-of-experts",
    "stages-of-blocks-called-alike",
    "attention-that-averages-features",
    "gru",
]


@pytest.mark.parametrize("size", [WIDE, DEEP])
@pytest.mark.parametrize("name", QUICK)
def test_what_is_right_is_good(name, size):
    case = CASES[name]
    p = proven(case.build, size, example=case.example, overrides=case.overrides)
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))


class NormTimesRoot(nn.Module):
    """An RMS norm written with F.normalize: the vector has length 1, and sqrt(N) makes its entries 1."""

    def __init__(self, n):
        super().__init__()
        self.g, self.scale = nn.Parameter(torch.ones(n)), n**0.5

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.g * self.scale


class Normed(Block):
    def f(self, h):
        return self.down(torch.relu(self.up(self.norm(h))))


def normed_by_length(n, L):
    return Net(n, [Normed(norm=NormTimesRoot(n), up=nn.Linear(n, n), down=nn.Linear(n, n)) for _ in range(L)])


class Prototypes(nn.Module):
    """A head that sums squared distances over the width: a sum without a parameter that could take its factor."""

    def __init__(self, n, classes=5):
        super().__init__()
        self.stem, self.hidden = nn.Linear(X.shape[1], n), nn.Linear(n, n)
        self.prototypes = nn.Parameter(torch.randn(classes, n))

    def forward(self, x):
        h = self.hidden(torch.relu(self.stem(x)))
        return -(h[:, None] - self.prototypes).square().sum(-1)


class Paths(nn.Module):
    """x + sum_k f_k(x), as many paths as the width has room for."""

    def __init__(self, n, paths):
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(n, n) for _ in range(paths))
        self.downs = nn.ModuleList(nn.Linear(n, n) for _ in range(paths))

    def forward(self, h):
        return h + sum(d(torch.relu(u(h))) for u, d in zip(self.ups, self.downs, strict=True))


FAULTS = {
    "a norm whose sqrt(N) is undone": normed_by_length,
    "a head that sums over the width": lambda n, L: Prototypes(n),
    "a growing number of paths": lambda n, L: Net(n, [Paths(n, n // 32) for _ in range(L)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_accepted_with_wrong_numbers_is_refused_or_wrong(fault):
    try:
        p = proven(FAULTS[fault])
    except trimtab.StructureError:
        return
    assert p.proof.verdict == "wrong", f"{p.proof.total}\n" + "\n".join(map(str, p.proof))


def test_a_failed_proof_warns_and_strict_raises():
    build = FAULTS["a head that sums over the width"]
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="prototypes"):
        p = trimtab.parametrize(build(*WIDE), build(*BASE), example=X)
    assert any("does not hold" in note for note in p.notes)
    with pytest.raises(trimtab.StructureError, match="wanted 1"):
        trimtab.parametrize(build(*WIDE), build(*BASE), example=X, strict=True)


def test_nothing_of_the_models_changes():
    case = CASES["conv-ending-in-batch-norm"]
    torch.manual_seed(0)
    model, base = case.build(128, 4), case.build(64, 2)
    for m in (model, base):
        m.blocks[0].register_full_backward_hook(lambda *_: pytest.fail("a user's hook ran"))
        for q in m.parameters():
            q.grad = torch.ones_like(q)
    before = copy.deepcopy((model.state_dict(), base.state_dict()))
    random_state = torch.get_rng_state()
    p = trimtab.parametrize(model, base, example=case.example, apply=False)
    assert p.proof.verdict == "good"
    assert torch.equal(random_state, torch.get_rng_state())
    for m, state in zip((model, base), before, strict=True):
        assert m.training
        assert all(torch.equal(state[k], v) for k, v in m.state_dict().items())
        assert all(q.requires_grad and q.is_leaf and bool((q.grad == 1).all()) for q in m.parameters())


def test_the_target_is_tried_as_it_will_be():
    """Applied or not, before or after, the same numbers."""
    case = CASES["pre-norm-transformer"]
    now = proven(case.build, example=IDS)
    later = proven(case.build, example=IDS, apply=False)
    rows = [(row.kind, row.change) for row in now.proof if row.change is not None]
    assert len(rows) > 10
    assert rows == [(row.kind, pytest.approx(row.change)) for row in later.proof if row.change is not None]
    torch.manual_seed(0)
    model, base = case.build(*WIDE), case.build(*BASE)
    p = trimtab.parametrize(model, base, example=IDS, apply=False)
    again = p.prove(model, base)
    p.apply(model)
    applied = p.prove(model, base)
    assert [r.change for r in applied if r.change] == pytest.approx([r.change for r in again if r.change])


@pytest.mark.parametrize("scheme", ["sp", "mup", "ntk"])
def test_what_a_scheme_leaves_alone_is_not_claimed(scheme):
    p = proven(CASES["residual-mlp"].build, DEEP, scheme=scheme)
    assert p.proof.verdict == "not claimed"
    if scheme != "sp":
        assert proven(CASES["residual-mlp"].build, WIDE, scheme=scheme).proof.verdict == "good"


def test_the_table_says_it_in_one_line():
    p = proven(CASES["residual-mlp"].build)
    assert [line for line in str(p).splitlines() if line.startswith("proof by one step: good")]
