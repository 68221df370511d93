"""The coordinate check gives the right verdict on cases whose answer is known, and names the culprit."""

import dataclasses
import functools
import json
import math
import random

import numpy as np
import pytest
import torch
from nets import C, D, ResidualMLP, ResNet, Transformer, images, points, tokens
from setups import BASE, BUGS, mlp, transformer
from torch import nn, optim

import trimtab
from structures import CASES
from trimtab.cli import main
from trimtab.coordinates.quantities import COORDINATES, Sampler
from trimtab.coordinates.slopes import fit, judge
from trimtab.errors import InputError
from trimtab.testing import assert_transfers

RATE = {
    optim.AdamW: 1e-3,
    optim.Adam: 1e-3,
    optim.NAdam: 1e-3,
    optim.RMSprop: 3e-4,
    optim.Adagrad: 1e-2,
    optim.SGD: 0.1,
}
MODELS = {
    "one matrix": (ResidualMLP, points),
    "one matrix, normed": (functools.partial(ResidualMLP, norm=True), points),
    "two matrices": (functools.partial(ResidualMLP, k=2), points),
    "two matrices, normed": (functools.partial(ResidualMLP, k=2, norm=True), points),
    "transformer": (Transformer, tokens),
    "tied transformer": (functools.partial(Transformer, tied=True), tokens),
    "resnet": (ResNet, images),
    "resnet without norm": (functools.partial(ResNet, norm=False), images),
}
SIZES = {
    points: ([32, 64, 128, 256], [3, 6, 12, 24]),
    tokens: ([32, 64, 128], [2, 4, 8]),
    images: ([16, 32, 64], [2, 4, 8]),
}


def run(name, scheme, cls=optim.AdamW, **more):
    build, data = MODELS[name]
    widths, depths = SIZES[data]
    more = dict(lr=RATE[cls]) | more
    return trimtab.check(
        build,
        more.pop("widths", widths),
        more.pop("depths", depths),
        base=(widths[0], depths[0]),
        data=data,
        scheme=scheme,
        optimizer=cls,
        **more,
    )


# -- known cases ---------------------------------------------------------------------------------------------

KNOWN = [
    ("one matrix", "sp", "FAIL", "FAIL"),
    ("one matrix", "ntk", "FAIL", "FAIL"),
    ("one matrix", "mup", "PASS", "FAIL"),
    ("one matrix", "depth-mup", "PASS", "PASS"),
    ("two matrices, normed", "depth-mup", "PASS", "PASS"),
    ("two matrices, normed", "mup", "PASS", "FAIL"),
    ("two matrices, normed", "sp", "FAIL", "FAIL"),
    ("transformer", "depth-mup", "PASS", "PASS"),
    ("two matrices, normed", "completep", "PASS", "PASS"),
]


@pytest.mark.parametrize("cls", [optim.AdamW, pytest.param(optim.SGD, marks=pytest.mark.full)])
@pytest.mark.parametrize(("name", "scheme", "width", "depth"), KNOWN)
def test_known_case(name, scheme, width, depth, cls):
    found = run(name, scheme, cls)
    assert found.verdicts == {"width": width, "depth": depth}, str(found)
    assert found.verdict == ("FAIL" if "FAIL" in (width, depth) else "PASS")
    assert bool(found.culprits) == (found.verdict == "FAIL")


def test_inner_matrices_that_slow_down_are_noted():
    """What alpha = 1/2 predicts: a note with the exponent, no fault (the table in docs/check.md says why)."""
    found = run("two matrices, normed", "depth-mup", widths=None)
    (note,) = [n for n in found.notes if "inner matrices" in n]
    assert (
        found.verdict == "PASS"
        and "depth^-0.5" in note
        and "blocks.#.up.weight" in note
        and "completep" in note
    )
    update = found.slopes[(found.slopes["module"] == "blocks.#.up.weight") & (found.slopes["step"] == 5)]
    assert abs(float(update["slope"].iloc[0]) + 0.5) < 0.05
    assert not [
        n for n in run("two matrices, normed", "completep", widths=None).notes if "inner matrices" in n
    ]


def test_inner_matrices_slower_than_predicted_fail():
    def optimizer(model, width, depth):
        p = trimtab.parametrize(
            model, functools.partial(ResidualMLP, k=2, norm=True)(32, 3), example=points(0)[0]
        )
        groups = p.groups(optim.AdamW, lr=1e-3)
        slow = {id(q) for name, q in model.named_parameters() if ".up." in name}
        for group in groups:
            if any(id(q) in slow for q in group["params"]):
                group["lr"] *= 3 / depth
        return optim.AdamW(groups)

    build = functools.partial(ResidualMLP, k=2, norm=True)
    found = trimtab.check(
        build, None, [3, 6, 12, 24], base=(32, 3), data=points, scheme=None, optimizer=optimizer
    )
    assert found.verdict == "FAIL", str(found)
    assert any("up.weight" in c.module and c.quantity == "update" for c in found.culprits), str(found)


def test_unscaled_branches_are_the_cause():
    culprit = run("one matrix", "mup", widths=[32]).culprits[0]
    assert (
        culprit.axis == "depth"
        and culprit.module.startswith("blocks")
        and "not scaled" in culprit.cause
        and culprit.slope > 0.25
    )


def test_lazy_is_told():
    found = run("one matrix", "ntk", depths=[3])
    lazy = [c for c in found.culprits if c.quantity == "stream change"]
    assert lazy and all("lazy" in c.cause and abs(c.slope + 0.5) < 0.2 for c in lazy), str(found)


# -- planted bugs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug(bug):
    attends = bug in ("wrong attention scale", "tied head unscaled", "embeddings scaled by mistake")
    build, optimizer = transformer(bug) if attends else mlp(bug, optim.AdamW)
    found = trimtab.check(
        build,
        [32, 64, 128],
        [4] if attends else [4, 8, 16],
        base=BASE,
        data=tokens if attends else points,
        scheme=None,
        expect="depth-mup",
        optimizer=optimizer,
    )
    assert found.verdict == "FAIL", str(found)
    module, cause = BUGS[bug]
    assert module in found.culprits[0].module and cause in found.culprits[0].cause, str(found)


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_in_a_transformer(bug):
    build, optimizer = transformer(bug)
    found = trimtab.check(
        build,
        [32, 64, 128, 256],
        [4, 8, 16],
        base=BASE,
        data=tokens,
        scheme=None,
        expect="depth-mup",
        optimizer=optimizer,
    )
    assert found.verdict == "FAIL", str(found)
    assert BUGS[bug][1] in found.culprits[0].cause, str(found)


@pytest.mark.parametrize("cls", [optim.AdamW, pytest.param(optim.Adam, marks=pytest.mark.full), optim.SGD])
def test_a_right_set_up_by_hand_passes(cls):
    build, optimizer = mlp(cls=cls)
    found = trimtab.check(
        build,
        [32, 64, 128],
        [4, 8, 16],
        base=BASE,
        data=points,
        scheme=None,
        expect="depth-mup",
        optimizer=optimizer,
    )
    assert found.verdict == "PASS", str(found)


@pytest.mark.full
@pytest.mark.parametrize(("alpha", "expect"), [(0.5, "depth-mup"), (1.0, "completep")])
def test_a_right_transformer_by_hand_passes(alpha, expect):
    build, optimizer = transformer(alpha=alpha)
    found = trimtab.check(
        build,
        [32, 64, 128],
        [4, 8, 16],
        base=BASE,
        data=tokens,
        scheme=None,
        expect=expect,
        optimizer=optimizer,
    )
    assert found.verdict == "PASS", str(found)


# -- correct combinations ------------------------------------------------------------------------------------

CORRECT = [
    *[("one matrix", "depth-mup", cls, {}) for cls in RATE],
    ("one matrix", "depth-mup", optim.SGD, dict(lr=0.05, hyper=dict(momentum=0.9))),
    ("one matrix", "completep", optim.AdamW, {}),
    ("one matrix, normed", "depth-mup", optim.AdamW, {}),
    ("one matrix, normed", "completep", optim.SGD, {}),
    ("two matrices", "completep", optim.AdamW, {}),
    ("two matrices", "completep", optim.SGD, {}),
    ("two matrices, normed", "completep", optim.NAdam, {}),
    ("transformer", "completep", optim.AdamW, {}),
    ("transformer", "completep", optim.SGD, dict(lr=0.3)),
    ("tied transformer", "completep", optim.AdamW, {}),
    ("transformer", "mup", optim.AdamW, dict(depths=[2])),
    ("resnet", "depth-mup", optim.AdamW, {}),
    ("resnet", "depth-mup", optim.SGD, dict(hyper=dict(momentum=0.9))),
    ("resnet", "completep", optim.AdamW, {}),
    ("resnet without norm", "depth-mup", optim.AdamW, {}),
]


@pytest.mark.full
def test_correct_combinations():
    verdicts = [
        (name, scheme, cls.__name__, run(name, scheme, cls, **more).verdict)
        for name, scheme, cls, more in CORRECT
    ]
    assert len(verdicts) >= 20
    assert not [v for v in verdicts if v[-1] == "FAIL"]
    assert sum(v[-1] == "PASS" for v in verdicts) >= len(verdicts) - 2, verdicts


# -- any model -----------------------------------------------------------------------------------------------
# ----------------


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    extra: str = "not a tensor"


class Odd(nn.Module):
    """One block used over and over, an odd signature, an output of a class of its own, dropout, a branch in
    place."""

    def __init__(self, n, L):
        super().__init__()
        self.stem, self.block, self.head, self.L = nn.Linear(D, n), nn.Linear(n, n), nn.Linear(n, C), L
        self.drop = nn.Dropout(0.1)

    def forward(self, *, features, answers, scale=1.0):
        h = self.stem(features) * scale
        for _ in range(self.L):
            h += self.drop(self.block(torch.relu(h)))
        logits = self.head(h)
        return Output(nn.functional.cross_entropy(logits, answers), logits)


def test_reused_modules_and_outputs_of_any_kind():
    def data(step):
        x, y = points(step)
        return dict(features=x, answers=y)

    found = trimtab.check(Odd, [32, 64, 128], [3], base=(32, 3), data=data)
    assert found.verdict == "PASS", str(found)
    assert {"stream", "branch", "logits", "update"} <= set(found.slopes["quantity"])


@pytest.mark.parametrize(
    "name",
    [
        "experts-not-all-visited",
        "subtracted-branch",
        "rezero",
        "tiny-layer-scale",
        "added-in-place",
        "encoder-decoder",
        "plain-mlp",
        "gru",
        "staged-resnet",
    ],
)
def test_structures_run(name):
    case = CASES[name]
    example = case.example
    out = case.build(16, 2)(example) if not isinstance(example, tuple) else case.build(16, 2)(*example)
    target = torch.randint(0, out.shape[-1], out.shape[:-1], generator=torch.Generator().manual_seed(0))
    depths = [2, 4] if case.branches(4) != case.branches(2) else [2]
    found = trimtab.check(
        case.build,
        [16, 32],
        depths,
        base=(16, 2),
        data=lambda step: (example, target),
        steps=2,
        seeds=2,
        overrides=case.overrides,
    )
    assert found.verdicts and len(found.slopes), str(found)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama-gqa",
        *(pytest.param(n, marks=pytest.mark.full) for n in ("vit", "resnet", "mamba", "albert")),
    ],
)
def test_published_families(name):
    """Unmodified classes of transformers, with the loss they compute themselves."""
    families = pytest.importorskip("families")
    build, example, _, _ = families.FAMILIES[name]

    def data(step):
        g = torch.Generator().manual_seed(step)
        if "pixel_values" in example:
            x = torch.randn(16, 3, 32, 32, generator=g)
            return dict(pixel_values=x, labels=(x[:, :, :16].mean((1, 2, 3)) > 0).long())
        ids = torch.randint(1, 4, (8, 16), generator=g).cumsum(1) % 64
        return dict(input_ids=ids, labels=ids)

    found = trimtab.check(build, [32, 64, 128], [2, 4, 8], base=(32, 2), data=data, scheme="completep")
    assert found.verdict != "FAIL", str(found)


def test_samples_are_bounded_and_stay():
    sampler, big = Sampler(), torch.randn(10 * COORDINATES)
    assert sampler(big).numel() == COORDINATES and torch.equal(sampler(big), sampler(big))
    assert abs(float(sampler(big).square().mean()) - 1) < 0.05


def test_nothing_is_left_behind():
    torch.manual_seed(3)
    random.seed(3)
    state, own, threads = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    run("one matrix", "depth-mup", widths=[32], depths=[3, 6], steps=1, seeds=1)
    assert (
        torch.equal(state, torch.get_rng_state())
        and own == random.getstate()
        and threads == torch.get_num_threads()
    )


def test_same_numbers_twice():
    one, two = (run("resnet", "depth-mup", depths=[2], steps=2, seeds=2) for _ in range(2))
    assert one.to_json() == two.to_json()


# -- the verdict as an object --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failed():
    return run("one matrix", "mup", widths=[32, 64], depths=[3, 6, 12])


def test_slopes_table(failed):
    table = failed.slopes
    assert list(table.columns[:8]) == [
        "module",
        "quantity",
        "axis",
        "step",
        "slope",
        "low",
        "high",
        "expected",
    ]
    measured = table.dropna()
    assert (measured["low"] <= measured["slope"]).all() and (measured["slope"] <= measured["high"]).all()
    assert set(table["axis"]) == {"width", "depth"} and set(table["step"]) == set(range(6))
    assert {"stream", "stream change", "branch", "branch change", "logits", "logits change", "update"} <= set(
        table["quantity"]
    )


def test_json_and_figure(failed):
    again = trimtab.Check.from_json(failed.to_json())
    assert again == failed and str(again) == str(failed)
    json.loads(failed.to_json())
    figure = failed.figure()
    assert len(figure.data) > 4 and "FAIL" in figure.layout.title.text
    with pytest.raises(trimtab.InputError):
        trimtab.Check.from_json("{}")


def test_features(failed):
    table = failed.features
    assert (
        list(table.columns) == ["axis", "quantity", "module", "size", "speed"] and (table["speed"] > 0).all()
    )
    lazy = run("one matrix", "ntk", widths=[32, 128], depths=None, seeds=2).features
    speed = lazy[(lazy["quantity"] == "stream") & (lazy["module"] == "blocks.2.fc after")].set_index("size")[
        "speed"
    ]
    assert speed.iloc[1] < 0.7 * speed.iloc[0]


def test_strange_optimizers_are_measured_and_said():
    def optimizer(model, width, depth):
        return optim.RAdam(model.parameters(), lr=1e-3)

    found = trimtab.check(
        ResidualMLP,
        [32, 64, 128],
        None,
        base=(32, 3),
        data=points,
        scheme=None,
        optimizer=optimizer,
        lr=None,
        seeds=2,
    )
    assert any("RAdam" in note for note in found.notes) and "lr" not in set(found.slopes["quantity"])


def test_two_optimizers_at_once():
    def optimizers(model, width, depth):
        p = trimtab.parametrize(model, ResidualMLP(32, 3), example=points(0)[0])
        return [
            p.optimizer(optim.Muon, lr=2e-3, only="matrices"),
            p.optimizer(optim.AdamW, lr=1e-3, only="rest"),
        ]

    found = trimtab.check(
        ResidualMLP,
        [32, 64, 128],
        [3, 6, 12],
        base=(32, 3),
        data=points,
        scheme=None,
        expect="depth-mup",
        optimizer=optimizers,
    )
    assert found.verdict == "PASS", str(found)


def test_text(failed):
    text = str(failed)
    assert text.startswith("FAIL  (width ") and "culprits:" in text and "branch not scaled" in text


def test_assert_transfers():
    options = dict(base=(32, 3), data=points)
    assert assert_transfers(ResidualMLP, [32, 64, 128], [3, 6, 12], **options)
    with pytest.raises(AssertionError, match="branch not scaled"):
        assert_transfers(ResidualMLP, [32], [3, 6, 12], scheme="mup", **options)


def test_inconclusive_says_what_would_decide():
    def data(step):  # two points: the change of the output is mostly luck
        x, y = points(0)
        return x[:2], y[:2]

    found = trimtab.check(
        functools.partial(ResidualMLP, bias=False), [4, 8], [2], base=(4, 2), data=data, seeds=2, steps=2
    )
    if found.verdict == "INCONCLUSIVE":
        assert "seeds" in found.advice or "sizes" in found.advice
    one = trimtab.check(ResidualMLP, [32, 64], [3], base=(32, 3), data=points, seeds=1)
    assert one.verdict == "INCONCLUSIVE" and "3 seeds would decide" in one.advice


def test_divergence_of_large_sizes_fails():
    def optimizer(model, width, depth):
        return optim.SGD(model.parameters(), lr=0.1 if width == 32 else 1e30)

    found = trimtab.check(
        ResidualMLP, [32, 64], [3], base=(32, 3), data=points, scheme=None, optimizer=optimizer
    )
    assert found.verdict == "FAIL"


def test_training_that_does_nothing_or_diverges_everywhere_does_not_pass():
    for options, words in (
        (dict(optimizer=optim.SGD, lr=1e30), "lower lr"),
        (dict(optimizer=optim.SGD, lr=1e-30), "raise lr"),
    ):
        found = trimtab.check(
            ResidualMLP, [32, 64, 128], [3], base=(32, 3), data=points, seeds=2, steps=3, **options
        )
        assert found.verdict == "INCONCLUSIVE" and words in found.advice and "noisy" not in str(found), str(
            found
        )


def test_all_faults_at_once():
    with pytest.raises(trimtab.InputError) as error:
        trimtab.check(
            3,
            "32",
            [0, 2],
            base=(4,),
            data=None,
            scheme="depthmup",
            optimizer=optim.AdamW,
            lr=-1,
            steps=0,
            seeds=0,
        )
    for word in ("build", "widths", "depths", "base", "data", "scheme", "lr", "steps", "seeds"):
        assert f"- {word}" in str(error.value), word


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(scheme=None), "callable"),
        (dict(optimizer=lambda model, width, depth: None), "scheme=None"),
        (dict(optimizer=lambda model, width, depth: None, scheme=None), "must return an optimizer"),
        (dict(data=lambda step: torch.zeros(3)), "data(step) must return"),
        (dict(data=lambda step: (points(0)[0], torch.zeros(128, C))), "probabilities"),
        (dict(data=lambda step: 1 / 0), "ZeroDivisionError"),
        (dict(widths=[32], depths=[3]), "two sizes"),
        (dict(build=lambda n, L: 3), "nn.Module"),
        (dict(build=lambda n, L: ResidualMLP(32, L), scheme="mup"), "must follow width"),
        (dict(build=lambda n, L: 1 / 0), "ZeroDivisionError"),
        (dict(loss=lambda output, target: 1 / 0), "loss(output, target) raised ZeroDivisionError"),
    ],
)
def test_faults_are_explained(change, message):
    options = dict(build=ResidualMLP, widths=[32, 64], depths=[3], base=(32, 3), data=points) | change
    with pytest.raises(trimtab.InputError) as error:
        trimtab.check(options.pop("build"), options.pop("widths"), options.pop("depths"), **options)
    assert message in str(error.value)


# -- the statistics ------------------------------------------------------------------------------------------


def test_intervals_cover():
    """95 % intervals hold the true slope in 95 % of draws: 2000 draws, four standard errors of a binomial are
    0.02."""
    rng, x = np.random.default_rng(0), np.log([1.0, 2.0, 4.0, 8.0])
    inside = [
        f.low <= 0.3 <= f.high
        for f in (fit(x, 0.3 * x[:, None] + rng.normal(0, 0.2, (4, 3))) for _ in range(2000))
    ]
    assert abs(np.mean(inside) - 0.95) < 0.02


def test_finite_size_settles_and_a_broken_law_does_not():
    m = np.array([1.0, 2.0, 4.0, 8.0])
    noise = np.array([[0.01, -0.01, 0.0]])
    assert judge(fit(np.log(m), (-1.2 * (1 - 1 / m))[:, None] + noise), 0.0, 0.0) == "good"
    assert judge(fit(np.log(m), (0.5 * np.log(1 + m))[:, None] + noise), 0.0, 0.0) == "bad"


# -- the command line ----------------------------------------------------------------------------------------

SOURCE = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)
    def forward(self, h): return h + self.fc(torch.relu(h))
def build(width, depth):
    return nn.Sequential(nn.Linear(6, width), *[Block(width) for _ in range(depth)], nn.Linear(width, 3))
def data(split, seed, step):
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(step))
    return x, x[:, :3].argmax(-1)
def plain(model, width, depth): return torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


def test_command_line(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    sizes = [
        "--base-width",
        "32",
        "--base-depth",
        "3",
        "--widths",
        "32",
        "64",
        "128",
        "--depths",
        "3",
        "6",
        "12",
    ]
    assert main(["check", f"{path}:build", *sizes, "--figure", str(tmp_path / "figure.html")]) == 0
    assert "PASS" in capsys.readouterr().out and (tmp_path / "figure.html").stat().st_size > 1000
    assert main(["check", f"{path}:build", *sizes, "--scheme", "mup", "--json"]) == 1
    assert trimtab.Check.from_json(capsys.readouterr().out).verdict == "FAIL"
    assert main(["check", f"{path}:build", *sizes, "--optimizer", f"{path}:plain"]) == 1
    assert (
        main(["check", f"{path}:build", *sizes[:4], "--widths", "32", "64", "--depths", "3", "--seeds", "1"])
        == 3
    )
    capsys.readouterr()
    assert main(["check", f"{path}:nothing", *sizes, "--optimizer", "Nadamm"]) == 2
    assert "nothing" in (text := capsys.readouterr().err) and "Nadamm" in text


def test_the_file_of_a_sweep_is_the_file_of_a_check(tmp_path, capsys):
    """The loss of a sweep is called with (output, batch); beside data(split, seed, step) it is here too."""
    path = tmp_path / "mine.py"
    path.write_text(
        SOURCE
        + "def loss(output, batch):\n    assert isinstance(batch, tuple) and len(batch) == 2\n    return "
        "nn.functional.cross_entropy(output, batch[1])\n"
    )
    sizes = [
        "--base-width",
        "32",
        "--base-depth",
        "3",
        "--widths",
        "32",
        "64",
        "--depths",
        "3",
        "--seeds",
        "2",
        "--steps",
        "2",
        "--json",
    ]
    answers = []
    for loss in ([], ["--loss", f"{path}:plain_loss"]):
        path.write_text(
            path.read_text() + "def plain_loss(output, batch):\n    return loss(output, batch)\n" * (not loss)
        )
        assert main(["check", f"{path}:build", *sizes, *loss]) in (0, 3)
        answers.append(json.loads(capsys.readouterr().out)["rows"])
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_sharpness_transfers():
    """The top eigenvalue in the optimizer's metric has the same trajectory at every size under depth-mup, and
    not under sp."""
    slopes = {}
    for scheme in ("depth-mup", "sp"):
        table = run(
            "one matrix", scheme, optim.SGD, widths=[32, 64, 128], depths=[3], sharpness=True, seeds=2
        ).slopes
        slopes[scheme] = table[(table["quantity"] == "sharpness")]["slope"].abs().max()
    assert slopes["depth-mup"] < 0.2 < slopes["sp"], slopes


# -- a peer --------------------------------------------------------------------------------------------------
# ----------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_agrees_with_mup(optimizer):
    """The same MLP, data and sizes through mup's own coordinate check: slopes of every layer, every step,
    within 0.05."""
    mup = pytest.importorskip("mup")
    from mup.coord_check import get_coord_data

    widths, seeds, steps = [32, 64, 128, 256], 3, 4
    batch = points(0)

    def plain(n):
        return nn.Sequential(nn.Linear(D, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), mup.MuReadout(n, C))

    def build(n, L):
        model = plain(n)
        mup.set_base_shapes(model, plain(32), delta=plain(48))
        return model

    def own(model, width, depth):
        return (
            mup.MuAdam(model.parameters(), lr=1e-3)
            if optimizer == "adam"
            else mup.MuSGD(model.parameters(), lr=0.1)
        )

    calls = {n: iter(range(seeds)) for n in widths}

    def lazily(n):
        torch.manual_seed(next(calls[n]))
        return build(n, 1)

    models = {n: functools.partial(lazily, n) for n in widths}
    rate = 1e-3 if optimizer == "adam" else 0.1
    options = dict(mup=True, cuda=False, output_fdict=dict(l2="l2"), show_progress=False)
    theirs = get_coord_data(models, [batch], optimizer, lr=rate, nsteps=steps + 1, nseeds=seeds, **options)
    found = trimtab.check(
        build,
        widths,
        [1],
        base=(32, 1),
        data=lambda step: batch,
        scheme=None,
        expect="mup",
        optimizer=own,
        steps=steps,
        seeds=seeds,
    )
    ours = found.slopes.set_index(["module", "quantity", "step"])["slope"]
    for module, quantity in (("0", "layer"), ("2", "layer"), ("4", "logits")):
        for step in range(steps + 1):
            rows = theirs[(theirs["module"] == module) & (theirs["t"] == step + 1)]
            x, y = np.log(rows["width"].astype(float)), rows["l2"].astype(float).map(math.log)
            slope = np.polyfit(x, y, 1)[0]
            assert abs(ours[module, quantity, step] - slope) < 0.05, (module, step)
    assert found.verdicts["width"] == "PASS", str(found)


def test_the_data_of_a_sweep_is_taken_with_its_loss():
    """docs/check.md: data(split, seed, step) is taken too; its loss sees the whole batch, as in a sweep."""
    seen = []

    def data(split, seed, step):
        draw = torch.Generator().manual_seed(step)
        return torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)

    def loss(output, batch):
        seen.append(len(batch))
        return nn.functional.cross_entropy(output, batch[1])

    def build(width, depth):
        return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

    sizes = dict(widths=[8, 16], depths=None, base=(8, 1), steps=1, seeds=1, scheme="mup")
    assert trimtab.check(build, data=data, **sizes).about["widths"] == [8, 16]
    trimtab.check(build, data=data, loss=loss, **sizes)
    assert set(seen) == {2}


def test_an_optimizer_that_is_built_is_refused_in_one_line():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError) as refused:
        trimtab.check(
            lambda width, depth: model,
            [8, 16],
            None,
            base=(8, 1),
            data=lambda step: None,
            optimizer=torch.optim.AdamW(model.parameters()),
        )
    assert (
        "an AdamW that is built already" in str(refused.value) and len(str(refused.value).splitlines()) == 2
    )
