"""The public surface: what is there, what it costs to import, and that nothing shadows it."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import trimtab
from structures import CASES, X
from trimtab.cli import main


def test_import_and_help_load_no_torch():
    code = "import sys, trimtab; assert 'torch' not in sys.modules; from trimtab.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rules_load_no_torch():
    code = "import sys, trimtab.parametrization.rules, trimtab.parametrization.initialization.init_laws; assert 'torch' not in sys.modules"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_works_with_torch_alone():
    """The table prints and parametrize works without rich, scipy, sklearn, pandas."""
    code = """
import sys
for name in ("rich", "scipy", "sklearn", "pandas", "plotly", "tyro"): sys.modules[name] = None
import torch, trimtab
from torch import nn
build = lambda n: nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 3))
p = trimtab.parametrize(build(64), build(16), example=torch.randn(2, 8))
assert "hidden" in str(p)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_submodule_shadows_a_public_name():
    for module in pkgutil.walk_packages(trimtab.__path__, "trimtab."):
        importlib.import_module(module.name)
    build = CASES["residual-mlp"].build
    for _ in range(2):
        assert callable(trimtab.parametrize)
        trimtab.parametrize(build(32, 2), build(16, 2), example=X)
    for name in trimtab.__all__:
        assert (name == "theory") == isinstance(getattr(trimtab, name), type(sys)), name
    for name in trimtab.theory.__all__:
        assert callable(getattr(trimtab.theory, name)), name
    assert set(trimtab.__all__) <= set(dir(trimtab))


def test_the_table():
    build = CASES["residual-mlp"].build
    p = trimtab.parametrize(build(32, 4), build(16, 2), example=X)
    text = str(p)
    assert "blocks.#.fc.weight x 4" in text and "head.weight" in text and "note: " in text
    import io

    import rich.console

    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(p)
    assert "blocks.#.fc.weight x 4" in console.file.getvalue()


MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)
    def forward(self, h): return h + self.fc(torch.relu(h))
def build(width, depth):
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(6, width), *blocks, nn.Linear(width, 3))
def example(): return torch.randn(2, 6)
"""


def explain(path, *more):
    return main(
        [
            "explain",
            f"{path}:build",
            "--width",
            "64",
            "--depth",
            "8",
            "--base-width",
            "32",
            "--base-depth",
            "2",
            *more,
        ]
    )


def test_explain(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    assert explain(path) == 0
    text = capsys.readouterr().out
    assert "8 residual branches" in text and "lr x" in text and "hidden: it maps" in text
    assert explain(path, "--json") == 0
    p = trimtab.Parametrization.from_json(capsys.readouterr().out)
    assert p.depth == 4.0 and p.width == 2.0


@pytest.mark.parametrize(("name", "branches"), [("gpt2", 12), ("llama", 12), ("t5", 30), ("vit", 12)])
def test_explain_a_published_architecture(name, branches, capsys):
    pytest.importorskip("transformers", reason="the [hf] extra is not installed")
    assert (
        main(
            [
                "explain",
                "--hf",
                name,
                "--width",
                "768",
                "--depth",
                "6",
                "--base-width",
                "192",
                "--base-depth",
                "2",
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert (
        f"{branches} residual branches" in text
        and "depth x 3" in text
        and "when the model has weights" in text
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [
                "explain",
                "nowhere.py:build",
                "--width",
                "64",
                "--depth",
                "8",
                "--base-width",
                "32",
                "--base-depth",
                "2",
            ],
            "no file nowhere.py",
        ),
        (
            [
                "explain",
                "--hf",
                "gpt22",
                "--width",
                "64",
                "--depth",
                "8",
                "--base-width",
                "32",
                "--base-depth",
                "2",
            ],
            "near it are",
        ),
        (
            [
                "explain",
                "--hf",
                "resnet",
                "--width",
                "64",
                "--depth",
                "8",
                "--base-width",
                "32",
                "--base-depth",
                "2",
            ],
            "has stages",
        ),
        (
            ["explain", "--width", "64", "--depth", "8", "--base-width", "32", "--base-depth", "2"],
            "name one model",
        ),
        (
            [
                "explain",
                "no_colon",
                "--width",
                "64",
                "--depth",
                "8",
                "--base-width",
                "32",
                "--base-depth",
                "2",
            ],
            "pkg.mod:function",
        ),
        (
            [
                "explain",
                "not_a_module_x:build",
                "--width",
                "64",
                "--depth",
                "8",
                "--base-width",
                "32",
                "--base-depth",
                "2",
            ],
            "could not be imported",
        ),
        (
            [
                "explain",
                "math:sqrt",
                "--width",
                "0",
                "--depth",
                "8",
                "--base-width",
                "32",
                "--base-depth",
                "2",
                "--optimizer",
                "Foo",
            ],
            "width must be >= 1",
        ),
    ],
)
def test_bad_command_lines(argv, message, capsys):
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_two_processes_agree():
    """Nothing depends on hash order: the same call prints the same JSON twice."""
    code = "import sys; sys.path.insert(0, 'tests/support')\nimport torch, trimtab\nfrom structures import CASES, IDS\ntorch.manual_seed(0)\nb = CASES['tied-with-packed-attention'].build\nprint(trimtab.parametrize(b(32, 4), b(16, 2), example=IDS).to_json())"  # noqa: E501
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "OMP_NUM_THREADS": "1"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outs) == 1 and len(outs.pop()) > 100
