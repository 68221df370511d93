"""A check in bf16 trains as autocast does, and its numbers are measured in float32."""

import pytest
import torch
from nets import ResidualMLP, points

import trimtab
from trimtab.cli import main

SIZES = dict(base=(32, 3), data=points)


def checked(seen: list, **more) -> trimtab.Check:
    """A check of residual MLPs; `seen` gets the type of each output, and whether it was to be trained on."""

    def build(width, depth):
        model = ResidualMLP(width, depth)
        model.register_forward_hook(lambda m, i, out: seen.append((out.dtype, torch.is_grad_enabled())))
        return model

    return trimtab.check(build, [32, 64, 128], [3, 6, 12], **SIZES, **more)


def test_it_trains_under_autocast_and_measures_in_float32():
    seen, plain = [], []
    found = checked(seen, precision="bf16", device="cpu")
    assert found.verdict == "PASS", str(found)
    assert (torch.bfloat16, True) in seen
    assert {dtype for dtype, trains in seen if not trains} == {torch.float32}
    assert any("bf16" in note for note in found.notes)
    other = checked(plain)
    assert {dtype for dtype, _ in plain} == {torch.float32}
    assert not found.slopes["slope"].equals(other.slopes["slope"])
    assert not any("bf16" in note for note in other.notes)


def test_another_precision_is_refused():
    with pytest.raises(trimtab.InputError, match="precision must be one of float32, bf16: got 'fp8'"):
        checked([], precision="fp8")


def test_the_command_has_it_too(tmp_path, capsys):
    sizes = ["--base-width", "32", "--base-depth", "3", "--widths", "32", "64", "128", "--depths", "3"]
    path = tmp_path / "mine.py"
    path.write_text("from nets import ResidualMLP as build\nfrom nets import points as data\n")
    assert main(["check", f"{path}:build", *sizes, "--precision", "bf16", "--device", "cpu"]) == 0
    assert "bf16" in capsys.readouterr().out
