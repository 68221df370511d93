"""The calculator: ratios in, what each role gets out; the same numbers that a parametrized model gets."""

import json
import math
import subprocess
import sys

import pytest
import torch

import trimtab
from structures import CASES, X
from trimtab.commands.scale import Scale
from trimtab.errors import InputError
from trimtab.parametrization.horizons.calculator import scale
from trimtab.parametrization.horizons.horizon import Horizon
from trimtab.parametrization.rules import SCHEMES


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adam"])
def test_the_same_numbers_as_a_model(scheme, optimizer):
    """Every line against a residual MLP of 4x the width and 4x the depth that was traced and parametrized."""
    build = CASES["residual-mlp"].build
    p = trimtab.parametrize(build(64, 8), build(16, 2), example=X, scheme=scheme, apply=False)
    cls = getattr(torch.optim, optimizer)
    lines = {
        (line.role, line.place): line
        for line in scale(width=4, depth=4, scheme=scheme, optimizer=optimizer).lines
    }
    seen = set()
    for name, row in p.rows.items():
        if name.endswith("head.bias"):  # an output's bias does not grow
            continue
        line, factors = lines[row.role, row.place], p.factors(cls)[name]
        seen.add((row.role, row.place))
        assert math.isclose(line.init, row.init), name
        for key in ("lr", "weight_decay", "eps"):
            assert math.isclose(getattr(line, key), factors[key]), (name, key)
    assert {("input", "outside"), ("hidden", "tail"), ("readout", "outside")} <= seen


def test_size_and_horizon_multiply():
    h = Horizon(batch=16, tokens=100)
    size, both = scale(width=8, depth=4), scale(width=8, depth=4, horizon=h)
    f = h.factors("AdamW")
    for a, b in zip(size.lines, both.lines, strict=True):
        assert math.isclose(b.lr, a.lr * f.lr) and math.isclose(b.eps, a.eps * f.eps)
        assert math.isclose(b.weight_decay, a.weight_decay * f.weight_decay) and a.init == b.init


def test_at_ratio_1_nothing_changes():
    for optimizer in ("SGD", "AdamW", "Muon"):
        found = scale(optimizer=optimizer, momentum=0.95)
        assert all((x.init, x.lr, x.weight_decay, x.eps) == (1, 1, 1, 1) for x in found.lines)
        assert not found.sources and not found.notes and found.memories == {"momentum": 0.95}


def test_muon_takes_the_hidden_matrices():
    lines = scale(width=4, horizon=Horizon(batch=4), optimizer="Muon", scheme="mup").lines
    assert {x.optimizer for x in lines if x.role == "hidden"} == {"Muon"}
    assert {x.optimizer for x in lines if x.role != "hidden"} == {"AdamW"}
    assert all(x.lr == 2 for x in lines if x.role == "hidden")  # constant over width, the root over batch
    matched = scale(width=4, optimizer="Muon", scheme="mup", adjust_lr_fn="match_rms_adamw")
    assert [x.lr for x in matched.lines if x.role == "hidden"] == [0.5, 0.5]


def test_decay_is_a_choice():
    lr_wd = {
        name: next(x.lr * x.weight_decay for x in scale(width=16, decay=name).lines if x.role == "hidden")
        for name in ("product", "root", "value")
    }
    assert lr_wd == {"product": 1.0, "root": 0.25, "value": 0.0625}


def test_the_text_has_sources_and_marks_what_is_contested(capsys):
    command = Scale(width=8, depth=4, batch=16, tokens=100, scheme="completep", lr=1e-3, weight_decay=0.1)
    command.steps, command.batch_tokens = 1000, 4096
    assert command.run() == 0
    text = capsys.readouterr().out
    for word in (
        "hidden       tail",
        "sources:",
        "CONTESTED: lr as d^-0.32",
        "2505.01618",
        "betas: 0.9, 0.999",
    ):
        assert word in text
    assert "6250 here" in text and "1e+04 steps" in text and "fractions" in text


def test_json(capsys):
    Scale(width=8, batch=4, lr=1e-3, json=True, betas=(0.95, 0.99)).run()
    data = json.loads(capsys.readouterr().out)
    hidden = next(x for x in data["roles"] if x["role"] == "hidden")
    assert hidden["lr"] == 0.25 and math.isclose(hidden["values"]["lr"], 2.5e-4)
    assert data["memories"]["betas"]["here"] == pytest.approx([0.8, 0.96])
    assert data["rule"]["adam"]["lr"] == {"batch": 0.5, "tokens": -0.5}
    assert any(x["axis"] == "batch" and x["contested"] for x in data["sources"])


def test_all_faults_at_once():
    with pytest.raises(InputError) as error:
        Scale(width=-8, batch=0, rule="x", scheme="q", optimizer="Foo", decay="z", lr=-1).run()
    for word in ("width", "batch", "'x'", "'q'", "Foo", "'z'", "lr must"):
        assert word in str(error.value)
    assert "\n  - scale(" not in str(error.value)  # one list, no title inside it
    assert len(error.value.faults) == str(error.value).count("\n  - ")


def test_no_torch_is_loaded():
    code = (
        "import sys; from trimtab.commands.scale import Scale; Scale(width=8, batch=4).run(); "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
