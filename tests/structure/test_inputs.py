"""A model file without example() or data(): inputs come from the structure, or the cure is named at once."""

import json

import pytest
import torch
from torch import nn

import trimtab
from structures import CASES
from trimtab.cli import main
from trimtab.errors import InputError
from trimtab.structure.inputs import infer

SIZES = ["--base-width", "32", "--base-depth", "2"]
FILE = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)
    def forward(self, h): return h + self.fc(torch.relu(h))
def blocks(n, L): return nn.Sequential(*[Block(n) for _ in range(L)])
def net(n, L, out): return nn.Sequential(nn.Linear(6, n), blocks(n, L), nn.Linear(n, out))
def vectors(width, depth): return net(width, depth, 3)
def numbers(width, depth): return net(width, depth, 1)
class Tokens(nn.Module):
    def __init__(self, n, L):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(12, n))
        self.tokens, self.blocks, self.head = nn.Embedding(65, n), blocks(n, L), nn.Linear(n, 65)
    def forward(self, idx, targets=None):
        return self.head(self.blocks(self.tokens(idx) + self.positions[: idx.shape[1]]))
def tokens(width, depth): return Tokens(width, depth)
class Two(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b = nn.Linear(6, n), nn.Linear(n, 3)
    def forward(self, x, y): return self.b(self.a(x) + y)
def two(width, depth): return Two(width)
def nothing(width, depth): vectors(width, depth)
def a_list(width, depth): return [vectors(width, depth)]
def no_depth(width): return vectors(width, 2)
def swapped(depth, width): return vectors(width, depth)
"""


class Image(nn.Module):
    """A convolution, and a linear layer that fits images of one size only."""

    def __init__(self, side, channels=3):
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(4 * side * side, 10)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


class Fixed(nn.Module):
    """A table of positions that is added whole: only sequences of its own length run."""

    def __init__(self, length):
        super().__init__()
        self.positions, self.tokens = nn.Embedding(length, 8), nn.Embedding(65, 8)

    def forward(self, ids):
        return self.tokens(ids) + self.positions.weight


class Keyword(nn.Linear):
    def forward(self, *, features):
        return super().forward(features)


MODELS = {
    "ids of shape (2, 16) below 65": nn.Sequential(nn.Embedding(65, 8), nn.Linear(8, 65)),
    "ids of shape (2, 11) below 65": Fixed(11),
    "ids of shape (2, 48) below 65": Fixed(48),
    "images of shape (2, 3, 32, 32)": Image(32),
    "images of shape (2, 1, 28, 28)": Image(28, 1),
    "images of shape (2, 3, 224, 224)": Image(224),
    "vectors of shape (2, 6)": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "sequences of shape (2, 16, 6)": nn.Sequential(
        nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    ),
    "vectors of shape (2, 5)": Keyword(5, 3),
}


@pytest.mark.parametrize("words", MODELS)
def test_inputs_are_read_from_the_structure(words):
    model = MODELS[words]
    before = [b.clone() for b in model.buffers()]
    found = infer(model)
    assert found.words == words
    out = model(**found.example) if isinstance(found.example, dict) else model(found.example)
    assert out.is_floating_point() and all(
        torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True)
    )


@pytest.mark.parametrize(
    "name",
    ["residual-mlp", "tied-with-packed-attention", "gru", "staged-resnet", "plain-mlp", "mixture-of-experts"],
)
def test_structures_run_on_what_was_inferred(name):
    case = CASES[name]
    found = infer(case.build(16, 2), case.build(32, 4))
    assert found.example is not None, found.tried
    trimtab.parametrize(
        case.build(32, 4), case.build(16, 2), example=found.example, apply=False, overrides=case.overrides
    )


def test_published_models_say_their_own_input():
    transformers = pytest.importorskip("transformers", reason="the [hf] extra is not installed")
    small = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    config = transformers.AutoConfig.for_model("vit", **small, image_size=24, patch_size=8, num_channels=1)
    found = infer(transformers.AutoModelForImageClassification.from_config(config))
    assert found.words == "images of shape (2, 1, 24, 24)" and set(found.example) == {"pixel_values"}
    config = transformers.AutoConfig.for_model(
        "t5", d_model=32, d_kv=16, num_heads=2, d_ff=64, num_layers=1, vocab_size=77
    )
    found = infer(transformers.AutoModelForSeq2SeqLM.from_config(config))
    assert found.words == "ids of shape (2, 16) below 77" and set(found.example) == {
        "input_ids",
        "decoder_input_ids",
    }


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def explain(mine, name, *more):
    return main(["explain", f"{mine}:{name}", "--width", "64", "--depth", "8", *SIZES, *more])


@pytest.mark.parametrize(
    ("name", "words"), [("vectors", "vectors of shape (2, 6)"), ("tokens", "ids of shape (2, 8) below 65")]
)
def test_explain_without_example(mine, name, words, capsys):
    assert explain(mine, name) == 0
    text = capsys.readouterr().out
    assert f"inputs were inferred: {words}; pass --example" in text and "8 residual branches" in text
    assert explain(mine, name, "--json") == 0
    out = capsys.readouterr()
    assert json.loads(out.out) and words in out.err


@pytest.mark.parametrize(
    ("name", "words"),
    [("vectors", "3 random classes"), ("tokens", "65 random classes"), ("numbers", "mean squared error")],
)
def test_check_without_data(mine, name, words, capsys):
    sizes = [*SIZES, "--widths", "32", "64", "--depths", "2", "4"]
    assert main(["check", f"{mine}:{name}", *sizes]) in (0, 3)
    text = capsys.readouterr().out
    assert "note: there is no data: inputs were inferred" in text and words in text and "--data" in text
    assert main(["check", f"{mine}:{name}", *sizes, "--json"]) in (0, 3)
    assert any("no data" in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_a_check_without_data_tells_right_from_wrong(mine):
    sizes = [*SIZES, "--widths", "32", "64", "128", "--depths", "2", "4", "8"]
    assert main(["check", f"{mine}:vectors", *sizes]) == 0
    assert main(["check", f"{mine}:vectors", *sizes, "--scheme", "mup"]) == 1


def test_check_without_data_asks_the_loss_what_it_takes(mine, tmp_path, capsys):
    mine.write_text(FILE + "def loss(output, target): return (output - target).square().mean()\n")
    sizes = [*SIZES, "--widths", "32", "64", "--depths", "2", "4"]
    assert main(["check", f"{mine}:vectors", *sizes]) in (0, 3)
    assert "random numbers" in capsys.readouterr().out
    odd = tmp_path / "odd.py"
    odd.write_text(FILE + "def loss(output, target): return output.nonsense\n")
    assert main(["check", f"{odd}:vectors", *sizes]) == 2
    assert "the loss takes neither" in capsys.readouterr().err


def test_what_cannot_be_inferred_names_the_cure(mine, capsys):
    assert explain(mine, "two") == 2
    text = capsys.readouterr().err
    assert "could not be inferred" in text and "--example file.py:function" in text and "example()" in text
    assert main(["check", f"{mine}:two", *SIZES, "--optimizer", "Nadamm"]) == 2
    text = capsys.readouterr().err
    assert (
        "--data file.py:function" in text and "data(split, seed, step)" in text and "Nadamm" in text
    )  # all faults at once


# -- build itself: the same words from every command ---------------------------------------------------------

WRONG = {
    "nothing": "returned None: end it with `return model`",
    "a_list": "returned list",
    "no_depth": "must take (width, depth): it is",
    "swapped": "called with the width first",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_builds_are_told_alike(name, mine, capsys, tmp_path):
    run = f'model = "{mine}:{name}"\nwidth = 32\ndepth = 2\nlr = 0.1\nsteps = 2\ndata = "digits"\n'
    (tmp_path / "run.toml").write_text(run)
    for argv in (
        ["explain", f"{mine}:{name}", "--width", "64", "--depth", "8", *SIZES],
        ["check", f"{mine}:{name}", *SIZES],
        ["train", str(tmp_path / "run.toml")],
    ):
        assert main(argv) == 2, argv
        assert WRONG[name] in (text := capsys.readouterr().err) and "Traceback" not in text, argv


def test_a_sweep_tells_of_a_wrong_build(mine, tmp_path):
    grid = dict(
        base=[32, 2],
        depths=[2],
        seeds=1,
        axes={"lr": [0.1]},
        run=dict(model=f"{mine}:nothing", data="digits", steps=2),
    )
    with pytest.raises(InputError, match="end it with `return model`"):
        trimtab.sweep(grid, tmp_path / "s.db", workers=1)
    assert not (tmp_path / "s.db").exists(), "refused before any work"
