"""What is found in each structure is what was written down for it; see structures.py."""

import math

import pytest
import torch

import trimtab
from structures import CASES, IDS, X
from trimtab.structure.graph import analyse
from trimtab.structure.recording import record, record_export
from trimtab.structure.residuals import Patterns

BASE, WIDE = (16, 2), (32, 4)


def parametrized(case, size=WIDE, **more):
    return trimtab.parametrize(
        case.build(*size), case.build(*BASE), example=case.example, overrides=case.overrides, **more
    )


@pytest.mark.parametrize("name", CASES)
def test_structure(name):
    case = CASES[name]
    p = parametrized(case)
    assert len(p.branches) == case.branches(WIDE[1])
    assert {b.kind for b in p.branches} == case.kinds
    if case.branches(1):
        assert p.depth == 2.0 or (isinstance(p.depth, dict) and p.depth["blocks"] == 2.0)
        assert all(b.tail for b in p.branches)
    if case.tail:
        assert set(p.branches[0].tail) == case.tail
    for parameter, role in case.roles.items():
        assert p[parameter].role == role, parameter
    for parameter, place in case.places.items():
        assert p[parameter].place == place, parameter
    for parameter, numbers in case.numbers.items():
        row = p[parameter]
        assert (row.init, row.u, row.s) == pytest.approx(numbers, rel=1e-9), parameter


@pytest.mark.parametrize("name", CASES)
def test_start_is_the_base_times_init(name):
    """Whatever law the model drew from, its rms over the base's is the rule's init."""
    case = CASES[name]
    model, base = case.build(*WIDE), case.build(*BASE)
    p = trimtab.parametrize(model, base, example=case.example, overrides=case.overrides)
    mine, theirs = dict(model.named_parameters()), dict(base.named_parameters())
    for parameter, row in p.rows.items():
        q = mine[parameter].detach() + (1.0 if row.offset else 0.0)
        twin = theirs.get(parameter)
        if twin is None or tuple(twin.shape) != row.base_shape or not q.any():
            continue
        ratio = (
            q.norm()
            / math.sqrt(q.numel())
            / ((twin.detach() + (1.0 if row.offset else 0.0)).norm() / math.sqrt(twin.numel()))
        )
        noise = 5 * math.sqrt(
            0.5 / q.numel() + 0.5 / twin.numel()
        )  # five standard errors of a Gaussian's rms ratio
        assert abs(math.log(ratio / row.init)) < noise + 1e-6, (parameter, float(ratio), row.init)


@pytest.mark.parametrize("name", CASES)
def test_export_sees_the_same(name):
    """The second front end, torch.export, gives the same branches, tails and uses."""
    case = CASES[name]
    if name == "experts-not-all-visited":
        pytest.skip("its forward asks for numbers (torch.where), which export refuses")
    model = case.build(16, 3).eval()
    skip = tuple(k for k, v in (case.overrides or {}).items() if v == "skip")
    a, b = (analyse(f(model, case.example), patterns=Patterns(skip=skip)) for f in (record, record_export))
    assert [(r.kind, {s.name for s in r.tail}, r.stack) for r in a.residuals] == [
        (r.kind, {s.name for s in r.tail}, r.stack) for r in b.residuals
    ]
    assert {n: [(u.kind, u.fan_in, u.fan_out) for u in us] for n, us in a.uses.items()} == {
        n: [(u.kind, u.fan_in, u.fan_out) for u in us] for n, us in b.uses.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_meta_gives_the_same_numbers(name):
    """A model without weights is planned from its structure and the base's numbers."""
    case = CASES[name]
    if name == "experts-not-all-visited":
        pytest.skip("its forward asks for numbers, which a model on meta does not have")
    with torch.device("meta"):
        empty = case.build(*WIDE)
    planned = trimtab.parametrize(
        empty, case.build(*BASE), example=case.example, overrides=case.overrides, apply=False
    )
    real = parametrized(case)
    for parameter, row in real.rows.items():
        other = planned[parameter]
        assert (row.role, row.place, row.init, row.u, row.s) == (
            other.role,
            other.place,
            other.init,
            other.u,
            other.s,
        ), parameter
    model = case.build(*WIDE)
    planned.apply(model)
    assert {n: r.rescale for n, r in planned.rows.items()} == pytest.approx(
        {n: r.rescale for n, r in real.rows.items()}
    )


def test_stages_that_grow_differently():
    from structures import IMAGES, ResNet

    p = trimtab.parametrize(ResNet(8, [3, 4, 6, 3]), ResNet(8, [2, 2, 2, 2]), example=IMAGES)
    assert sorted(p.depth.values()) == [1.5, 1.5, 2.0, 3.0]
    assert p["stages.1.blocks.0.bn2.weight"].init == pytest.approx(3**-0.5)
    assert p["stages.1.blocks.0.bn2.weight"].m_L == 3.0
    assert len(p.groups(torch.optim.AdamW, lr=1e-3)) <= 12


def test_a_one_layer_base_does_not_mislead():
    """With one decoder layer the encoder's norm feeds one branch only; the deeper model shows that it feeds
    many."""
    case = CASES["encoder-decoder"]
    p = trimtab.parametrize(case.build(16, 4), case.build(16, 1), example=case.example)
    assert (p["enc_norm.weight"].u, p["enc_norm.weight"].s) == (1.0, 1.0)
    assert p["decoder.3.cross.v.weight"].u == pytest.approx(0.5)


def test_a_stage_of_one_block_is_no_twin_for_a_longer_one():
    """The base's only block of the second stage widens; that of the model's second does not, so its fan-in
    ratio would be read as 4."""
    case = CASES["stages-of-blocks-called-alike"]
    with pytest.raises(trimtab.StructureError, match="give the base two blocks there"):
        trimtab.parametrize(case.build(32, 2), case.build(16, 1), example=case.example)


def test_rows_that_do_not_grow_are_said():
    assert any(
        "SGD's is m_out times too large" in note
        for note in parametrized(CASES["rows-that-grow-beside-rows-that-do-not"]).notes
    )
    assert not any(
        "m_out times" in note
        for name in ("pre-norm-transformer", "tied-with-packed-attention", "grouped-and-depthwise-conv")
        for note in parametrized(CASES[name]).notes
    )


@pytest.mark.slow
def test_at_most_twelve_groups():
    for name, case in CASES.items():
        assert (
            len(
                parametrized(case).groups(
                    torch.optim.AdamW, lr=1e-3, weight_decay=0.0 if "one-plus" in name else 0.1
                )
            )
            <= 12
        ), name


def test_ambiguous_sum_asks():
    case = CASES["wide-and-deep-said-to-be-towers"]
    with pytest.raises(trimtab.StructureError, match="two towers") as error:
        trimtab.parametrize(case.build(32, 1), case.build(16, 1), example=X)
    assert "'branch'" in str(error.value) and "'skip'" in str(error.value)


def test_a_hidden_skip_can_be_said():
    """The skip is inside an operation that is not an add; the user says which parameters are a branch."""
    from torch import nn

    from structures import Block, Net

    class Hidden(Block):
        def forward(self, h):
            return torch.stack([h, self.f(h)]).sum(0)

    def build(n, L):
        return Net(n, [Hidden(fc=nn.Linear(n, n)) for _ in range(L)])

    with pytest.raises(trimtab.StructureError, match="no counterpart"):
        trimtab.parametrize(build(16, 4), build(16, 2), example=X)
    p = trimtab.parametrize(build(16, 4), build(16, 2), example=X, overrides={"blocks.*": "branch"})
    assert len(p.branches) == 4 and p.depth == 2.0
    assert (p["blocks.0.fc.weight"].place, p["blocks.0.fc.weight"].init) == ("tail", pytest.approx(2**-0.5))


def test_branch_without_a_tail_is_refused_over_depth_and_said():
    from torch import nn

    from structures import Block, Net

    class Tanh(Block):
        def f(self, h):
            return torch.tanh(self.fc(h))

    def build(n, L):
        return Net(n, [Tanh(fc=nn.Linear(n, n)) for _ in range(L)])

    with pytest.raises(trimtab.StructureError, match="ends in tanh"):
        trimtab.parametrize(build(16, 4), build(16, 2), example=X)
    p = trimtab.parametrize(build(16, 4), build(16, 2), example=X, overrides={"blocks.*": "skip"})
    assert p.branches == [] and p["blocks.0.fc.weight"].init == 1.0
    p = trimtab.parametrize(build(32, 2), build(16, 2), example=X)
    assert any("no parameters a depth factor could fold into" in n for n in p.notes)


def test_export_front_end_on_meta_runs():
    with torch.device("meta"):
        model = CASES["pre-norm-transformer"].build(32, 4)
    assert len(analyse(record(model, IDS)).residuals) == 8
