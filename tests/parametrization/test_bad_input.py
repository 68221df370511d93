"""Bad input: a clear error (the law, the values, the next step), raised before anything is changed."""

import dataclasses

import pytest
import torch
from torch import nn

import trimtab
from structures import CASES, IMAGES, Block, Net, ResNet, X
from trimtab import InputError, OptimizerError, StructureError

build = CASES["residual-mlp"].build


def refused(error, match, model, base, **kwargs):
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=match) as caught:
        trimtab.parametrize(model, base, **kwargs)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    text = str(caught.value)
    assert len(text) > 60 and "Traceback" not in text
    return text


def test_missing_example():
    refused(InputError, "example of the model's inputs is needed", build(32, 2), build(16, 2))


def test_all_faults_at_once():
    text = refused(InputError, "gamma0", build(32, 2), build(16, 2), gamma0=-1)
    assert "example" in text


def test_example_that_does_not_run():
    refused(
        StructureError, "must run through the model", build(32, 2), build(16, 2), example=torch.randn(2, 99)
    )


def test_empty_example():
    refused(InputError, "without elements", build(32, 2), build(16, 2), example=torch.randn(0, 6))


def test_different_architectures():
    refused(StructureError, "one architecture", build(32, 2), CASES["pre-norm-mlp"].build(16, 2), example=X)
    refused(StructureError, "base has none", build(32, 2), CASES["plain-mlp"].build(16, 2), example=X)
    refused(
        StructureError,
        "has no counterpart",
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)),
        example=X,
    )


def test_base_deeper_in_one_stage_and_shallower_in_another():
    text = refused(StructureError, "in every stack", ResNet(8, [2, 3]), ResNet(8, [3, 2]), example=IMAGES)
    assert "[2, 3]" in text and "[3, 2]" in text


def test_outputs_without_tensors():
    class Silent(nn.Linear):
        def forward(self, x):
            super().forward(x)
            return {"loss": 1.0}

    refused(StructureError, "at least one float tensor", Silent(6, 8), Silent(6, 4), example=X)


def test_outputs_of_any_container_are_fine():
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        note: str

    class Wrapped(Net):
        def forward(self, x):
            return Output(super().forward(x), "hi")

    p = trimtab.parametrize(
        Wrapped(32, [Block(fc=nn.Linear(32, 32))]),
        Wrapped(16, [Block(fc=nn.Linear(16, 16))]),
        example={"x": X},
    )
    assert p["head.weight"].role == "readout"


def test_frozen_parameters_are_rescaled_but_not_trained():
    model = build(32, 2)
    model.stem.weight.requires_grad_(False)
    p = trimtab.parametrize(model, build(16, 2), example=X)
    assert not any(q is model.stem.weight for g in p.groups(torch.optim.SGD, lr=0.1) for q in g["params"])
    for q in model.parameters():
        q.requires_grad_(False)
    with pytest.raises(InputError, match="no trainable parameter"):
        p.groups(torch.optim.SGD, lr=0.1)


def test_parameter_without_elements():
    def empty(n):
        net = build(n, 2)
        net.nothing = nn.Parameter(torch.empty(0))
        return net

    refused(StructureError, "no elements", empty(32), empty(16), example=X)


def test_integer_buffers_and_parameters_do_no_harm():
    def with_ints(n):
        net = CASES["conv-ending-in-batch-norm"].build(n, 2)
        net.register_buffer("table", torch.arange(5))
        return net

    trimtab.parametrize(with_ints(32), with_ints(16), example=IMAGES)


def test_override_that_matches_nothing():
    text = refused(
        InputError,
        "matches no parameter",
        build(32, 2),
        build(16, 2),
        example=X,
        overrides={"haed.*": "readout", "stem.*": "wizard", "head.*": {"speed": 1, "lr": -1}},
    )
    assert all(word in text for word in ("haed", "wizard", "speed", "lr"))


def test_sizes_that_are_no_width():
    def sized(n, vocabulary=11, classes=5):
        return nn.Sequential(nn.Embedding(vocabulary, n), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, classes))

    ids = torch.randint(0, 11, (4,))
    text = refused(StructureError, "vocabulary", sized(32, 22), sized(16), example=ids)
    assert "11" in text and "22" in text
    refused(StructureError, "classes", sized(32, 11, 10), sized(16), example=ids)
    p = trimtab.parametrize(
        sized(32, 22, 10), sized(16), example=ids, overrides={"0.weight": "input", "3.weight": "readout"}
    )
    assert (p["0.weight"].m_in, p["3.weight"].m_out) == (1.0, 1.0)
    experts = CASES["mixture-of-experts"]

    def mixture(n, e):
        net = experts.build(n, 1)
        net.blocks[0] = type(net.blocks[0])(n, e)
        return net

    refused(StructureError, "experts", mixture(16, 8), mixture(16, 4), example=X)


def test_positions_that_differ():
    class Positions(nn.Module):
        def __init__(self, n, t):
            super().__init__()
            self.embed, self.pos, self.head = (
                nn.Linear(6, n),
                nn.Parameter(torch.randn(t, n)),
                nn.Linear(n, 5),
            )

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x) + self.pos[: len(x)]))

    refused(StructureError, "pos", Positions(32, 16), Positions(16, 8), example=X)
    refused(StructureError, "positions", Positions(16, 16), Positions(16, 8), example=X)
    with pytest.raises(StructureError) as caught:  # too narrow for the proof to tell roles: the nearest
        trimtab.parametrize(Positions(32, 8), Positions(16, 16), example=X)
    assert caught.value.suggestion == {"pos": "elementwise"}


def test_matrix_in_disguise():
    class Disguise(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.a, self.w, self.head = nn.Linear(6, n), nn.Parameter(torch.randn(n, n)), nn.Linear(n, 5)

        def forward(self, x):
            h = self.a(x)
            return self.head((h[:, None, :] * self.w).amax(-1))

    refused(StructureError, "matrix in disguise", Disguise(32), Disguise(16), example=X)


def test_tied_readout_without_a_final_norm():
    class Tied(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.embed, self.fc = nn.Embedding(11, n), nn.Linear(n, n)

        def forward(self, ids):
            h = self.embed(ids)
            h = h + self.fc(torch.relu(h))
            return h @ self.embed.weight.T

    refused(StructureError, "final norm", Tied(32), Tied(16), example=torch.randint(0, 11, (4,)))


def test_trained_weights_have_no_init_law():
    model = build(64, 2)
    with torch.no_grad():
        for q in model.parameters():
            q.mul_(torch.rand(()) * 3 + 0.2)
    text = refused(StructureError, "must be known", model, build(64, 1), example=X)
    assert "from_json" in text and "apply=False" in text
    p = trimtab.parametrize(model, build(64, 1), example=X, apply=False)
    assert p["head.weight"].u == 1.0


def test_scheme():
    refused(InputError, "scheme must be one of", build(32, 2), build(16, 2), example=X, scheme="mu")
    with pytest.raises(InputError, match="alpha"):
        trimtab.Scheme("bad", alpha=-1)
    with pytest.raises(InputError, match="width"):
        trimtab.Scheme("bad", width="wide")
    p = trimtab.parametrize(build(16, 4), build(16, 2), example=X, scheme=trimtab.Scheme("flat", alpha=0.0))
    assert any("outside [1/2, 1]" in n for n in p.notes)


def test_base_on_meta_and_model_on_meta():
    with torch.device("meta"):
        empty = build(32, 2)
    with pytest.raises(InputError, match="base must have real weights"):
        trimtab.parametrize(build(32, 2), empty, example=X)
    with pytest.raises(InputError, match="apply=False"):
        trimtab.parametrize(empty, build(16, 2), example=X)


def test_not_modules():
    with pytest.raises(InputError, match=r"model must be an nn.Module"):
        trimtab.parametrize(3, build(16, 2), example=X)
    same = build(16, 2)
    with pytest.raises(InputError, match="one object"):
        trimtab.parametrize(same, same, example=X)


def test_optimizers_that_do_not_fold():
    p = trimtab.parametrize(build(32, 2), build(16, 2), example=X)
    for cls in (torch.optim.RAdam, torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.SparseAdam):
        with pytest.raises(OptimizerError, match=f"{cls.__name__} does not"):
            p.optimizer(cls, lr=0.1)
    with pytest.raises(OptimizerError, match="optimizer class is needed"):
        p.optimizer(None, lr=0.1)
    with pytest.raises(OptimizerError, match="got an SGD that is built already: pass the class"):
        p.optimizer(torch.optim.SGD(build(8, 1).parameters()), lr=0.1)
    for wrong, got in ((build(8, 1), "Sequential|Net"), (torch.optim.AdamW, "AdamW")):
        with pytest.raises(InputError, match=f"an optimizer is needed.* got ({got})"):
            p.check(wrong)
        with pytest.raises(InputError, match=f"an optimizer is needed.* got ({got})"):
            p.lrs(wrong, 0.1)
    with pytest.raises(InputError, match="lr must be"):
        p.optimizer(torch.optim.SGD, lr=float("nan"))
    with pytest.raises(OptimizerError, match="only='matrices'"):
        p.optimizer(torch.optim.Muon, lr=0.1)
    with pytest.raises(InputError, match="matches none"):
        p.groups(torch.optim.SGD, lr=0.1, only="nothing.*")


def test_unknown_names():
    p = trimtab.parametrize(build(32, 2), build(16, 2), example=X)
    with pytest.raises(KeyError):
        p["nope"]


def test_json_that_is_not_ours():
    for text in ("{}", "[]", "not json", '{"format": 99}'):
        with pytest.raises(InputError):
            trimtab.Parametrization.from_json(text)


def test_wrong_model_for_groups():
    p = trimtab.parametrize(build(32, 2), build(16, 2), example=X)
    with pytest.raises(InputError, match="must be the one parametrized"):
        p.groups(torch.optim.SGD, lr=0.1, model=nn.Linear(3, 3))


def mlp(width):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def test_an_example_that_does_not_run_says_how_to_pass_it():
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    with pytest.raises(StructureError, match=r"pass the inputs, example=batch\[0\]"):
        trimtab.parametrize(mlp(8), mlp(4), example=(x, y))
    with pytest.raises(StructureError, match=r"holds no tensor \(ndarray\): pass example= a torch.Tensor"):
        trimtab.parametrize(mlp(8), mlp(4), example=x.numpy())


def test_an_example_with_nan_is_refused_as_that():
    x = torch.randn(4, 6)
    x[1, 2] = torch.nan
    with pytest.raises(InputError, match=r"a tensor of shape \(4, 6\) has 1 that are NaN"):
        trimtab.parametrize(mlp(8), mlp(4), example=x)


def test_a_parameter_that_is_not_there_names_the_nearest():
    p = trimtab.parametrize(mlp(8), mlp(4), example=torch.randn(4, 6))
    with pytest.raises(KeyError, match=r"no parameter '2.weihgt', nearest '2.weight'"):
        p["2.weihgt"]


def test_the_table_explains_its_columns():
    said = str(trimtab.parametrize(mlp(8), mlp(4), example=torch.randn(4, 6)))
    for column in ("role", "place", "m_in", "m_L", "init", "u", "s", "fold", "rescale"):
        assert f"{column}: " in said or f"{column}, " in said, column
    assert "kinds of parameters: " in said
