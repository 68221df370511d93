"""The reference models: plain torch, every one through the same door as a user's model, at every size."""

import itertools
import os

import pytest
import torch

import trimtab
from trimtab.models import catalogue
from trimtab.models.builders import BUILD
from trimtab.runs import losses
from trimtab.runs.catalogue import LOSSES
from trimtab.runs.config import RunConfig
from trimtab.runs.fleet import run as fleet_run
from trimtab.runs.training import run

DATA = os.environ.get("TRIMTAB_DATA")
IMAGES = torch.randn(4, 3, 16, 16)
CASES = [
    ("mlp", {}, torch.randn(4, 64), "identity"),
    ("mlp", {"k": 2, "activation": "tanh"}, torch.randn(4, 64), "identity"),
    ("mlp", {"norm": "layer", "activation": "gelu", "branch_scale": 0.5}, torch.randn(4, 64), "identity"),
    ("mlp", {"activation": "linear"}, torch.randn(4, 64), "identity"),
    ("resnet", {}, IMAGES, "identity"),
    ("resnet", {"norm": "batch"}, IMAGES, "identity"),
    ("resnet", {"norm": "layer", "k": 2}, IMAGES, "identity"),
    ("vit", {"image": 16, "patch": 8, "heads": 2}, IMAGES, "identity"),
    ("vit", {"image": 16, "patch": 8, "head_dim": 8, "norm": "none"}, IMAGES, "identity"),
    ("gpt", {"heads": 2}, torch.randint(65, (4, 8)), "identity"),
]


SLOW = ("resnet-layer-2", "vit-16-8-2", "resnet-batch")  # others here show what they do


def marked(name: str, options: dict, *rest: object):
    label = f"{name}-{'-'.join(map(str, options.values()))}"
    return pytest.param(name, options, *rest, id=label, marks=[pytest.mark.slow] * (label in SLOW))


@pytest.mark.parametrize(("name", "options", "example", "kind"), [marked(*case) for case in CASES])
def test_every_size_parametrizes_with_verified_branches(name, options, example, kind):
    per = {"mlp": 1, "resnet": 1, "vit": 2, "gpt": 2}[name]
    for width, depth in itertools.product((16, 32, 64), (3, 6, 12)):
        p = trimtab.parametrize(
            BUILD[name](width, depth, **options), BUILD[name](16, 3, **options), example=example
        )
        assert len(p.branches) == per * depth and {b.kind for b in p.branches} == {kind}
        assert all(b.tail for b in p.branches) and p.depth == depth / 3
        assert all(row.role for row in p.rows.values())


TRAINED = [
    dict(model="mlp", lr=0.05, model_options={"branch_scale": 0.5}),
    dict(model="mlp", lr=0.05, model_options={"activation": "tanh", "norm": "layer"}),
    dict(model="resnet", lr=0.2, steps=80, model_options={"branch_scale": 0.5}),
    dict(model="resnet", lr=0.1, steps=30, model_options={"norm": "batch"}),
    dict(model="vit", lr=0.003, steps=15, optimizer="adamw", model_options={"patch": 4, "heads": 2}),
    dict(model="mlp", data="teacher", loss="mse", lr=0.02),
]


@pytest.mark.parametrize(
    "numbers",
    [pytest.param(c, marks=pytest.mark.slow if c["model"] in ("resnet", "vit") else ()) for c in TRAINED],
    ids=lambda c: f"{c['model']}-{c.get('data', 'digits')}-{len(c.get('model_options', {}))}",
)
def test_every_size_trains(numbers):
    small = 8 if numbers["model"] == "resnet" else 16
    for width, depth in itertools.product((small, 2 * small, 4 * small), (3, 6, 12)):
        config = RunConfig(
            **(
                {"width": width, "depth": depth, "base": (small, 3), "steps": 40, "eval_examples": 64}
                | numbers
            )
        )
        result = run(config)
        assert result.state == "done" and not result.collapsed, (width, depth, result)
        assert result.train_loss < 0.9 * result.initial_loss


@pytest.mark.slow
def test_characters_train(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    for width, depth in itertools.product((16, 32, 64), (2, 4, 8)):
        options = {"file": str(text), "context": 16}
        config = RunConfig(
            model="gpt",
            data="text",
            data_options=options,
            width=width,
            depth=depth,
            base=(16, 2),
            model_options={"heads": 2},
            optimizer="adamw",
            lr=0.01,
            steps=25,
            batch_size=16,
        )
        assert run(config).train_loss < 2.5  # log of the 29 characters is 3.4


@pytest.mark.parametrize("model", ["mlp", pytest.param("resnet", marks=pytest.mark.slow)])
def test_depth_96_without_a_norm_needs_the_branch_scale(model):
    """He gain, the base's best rate: mup alone blows up on the way through 96 branches, depth-mup trains."""
    width, steps = {"mlp": (32, 100), "resnet": (8, 40)}[model]
    options = {"branch_scale": 3**-0.5}
    base = RunConfig(
        model=model, width=width, depth=3, lr=0.1, steps=steps, model_options=options, eval_examples=0
    )
    rates = [2.0**e for e in range(-6, 3)]
    tuned = fleet_run([base.replace(lr=lr) for lr in rates])
    best = min((r.train_loss, lr) for r, lr in zip(tuned, rates, strict=True) if r.train_loss is not None)[1]
    deep = base.replace(depth=96, base=(width, 3), lr=best)
    scaled, alone = run(deep), run(deep.replace(scheme="mup"))
    assert scaled.state == "done" and scaled.train_loss < 0.75 * scaled.initial_loss
    assert alone.state == "diverged" or alone.collapsed


@pytest.mark.slow
@pytest.mark.parametrize(("model", "norm"), [("mlp", "layer"), ("resnet", "batch"), ("resnet", "layer")])
def test_with_a_norm_both_stay_finite_at_depth_96(model, norm):
    width, steps = {"mlp": (32, 40), "resnet": (8, 10)}[model]
    for scheme in ("mup", "depth-mup"):
        config = RunConfig(
            model=model,
            width=width,
            depth=96,
            base=(width, 3),
            scheme=scheme,
            lr=0.02,
            steps=steps,
            model_options={"norm": norm},
            eval_examples=0,
        )
        assert run(config).state == "done"


def test_without_a_skip_only_the_width_is_carried_over():
    config = RunConfig(
        width=64, depth=4, base=(32, 2), lr=0.05, steps=20, model_options={"skip": False}, eval_examples=0
    )
    assert run(config).state == "done"


def test_models_know_nothing_of_parametrization():
    import inspect

    for build in BUILD.values():
        source = inspect.getsource(inspect.getmodule(build))
        assert "trimtab.models" in source or "import torch" in source
        for word in ("rules", "parametrization", "planning"):
            assert f"trimtab.{word}" not in source


def test_each_name_has_all_it_needs():
    """A model or a loss that is listed in one place and forgotten in another must not take a neighbour's."""
    assert set(catalogue.MODELS) == set(catalogue.TAKES) == set(catalogue.FITTING)
    assert set(losses.NAMED) == set(LOSSES)
