"""One run: deterministic, resumable bit for bit, equal to plain torch at base size, honest about
divergence."""

import json
import math

import numpy as np
import pytest
import torch
from hanging import HANGS

import trimtab
from trimtab import cli
from trimtab.errors import InputError
from trimtab.runs.config import RunConfig, decay, rate
from trimtab.runs.results import conclude
from trimtab.runs.tasks import prepare
from trimtab.runs.training import Interrupted, Run, run

SMALL = RunConfig(width=16, depth=3, base=(16, 3), lr=0.05, steps=25, batch_size=32)

KINDS = {
    "sgd": dict(
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-3,
        clip=1.0,
        schedule="cosine",
        warmup=4,
        decay_schedule="cosine",
    ),
    "adam": dict(optimizer="adam", lr=0.01, weight_decay=1e-3, schedule="step"),
    "adamw": dict(optimizer="adamw", lr=0.01, weight_decay=0.1, schedule="linear", decay_schedule="rate"),
    "muon": dict(optimizer="muon", lr=0.02, rest_lr=0.01),
    "batchnorm": dict(model="resnet", width=4, base=(4, 3), model_options={"norm": "batch"}, momentum=0.9),
    "bfloat16": dict(dtype="bfloat16"),
    "float64": dict(dtype="float64"),
    "mse": dict(loss="mse"),
}


def same(a, b):
    assert a.row() | {"seconds": 0} == b.row() | {"seconds": 0}
    assert a.curves.keys() == b.curves.keys() and all(
        np.array_equal(a.curves[k], b.curves[k], equal_nan=True) for k in a.curves
    )


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_bitwise_an_uninterrupted_run(kind, tmp_path):
    config = SMALL.replace(eval_every=7, **KINDS[kind])
    whole = run(config)
    path, asked = tmp_path / "c", iter(range(100))
    for _ in range(4):  # interrupted after 6, 12, ... steps
        with pytest.raises(Interrupted):
            run(config, checkpoint=path, stop=lambda: next(asked) % 7 == 6)
    same(run(config, checkpoint=path), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_twice_and_the_rng_untouched(kind):
    before = torch.get_rng_state()
    config = SMALL.replace(**KINDS[kind])
    same(run(config), run(config))
    assert torch.equal(before, torch.get_rng_state())


def test_at_base_it_is_plain_torch():
    config = SMALL.replace(momentum=0.9, weight_decay=1e-3)
    made = prepare(config)
    torch.manual_seed(config.seed)
    model = made.build(16, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    losses = []
    for step in range(config.steps):
        x, y = made.batch(config.seed, step)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert run(config).curves["loss"].tolist() == losses


def test_dropout_is_a_function_of_seed_and_step(tmp_path):
    file = tmp_path / "dropping.py"
    file.write_text(
        "from torch import nn\ndef build(width, depth):\n    return nn.Sequential(nn.Flatten(), "
        "nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 10))\n"
    )
    config = SMALL.replace(model=f"{file}:build", base=(8, 3))
    assert prepare(config).random
    whole, asked = run(config), iter(range(100))
    with pytest.raises(Interrupted):
        run(config, checkpoint=tmp_path / "c", stop=lambda: next(asked) == 9)
    torch.manual_seed(99)
    same(run(config, checkpoint=tmp_path / "c"), whole)


def test_divergence_is_a_result():
    result = run(SMALL.replace(lr=1e4))
    assert (
        result.state == "diverged"
        and result.train_loss is None
        and result.stopped_at == len(result.curves["loss"]) - 1 < 10
    )
    assert result.last_loss is not None and math.isfinite(result.last_loss)


def test_nan_at_step_k_is_seen_at_step_k(tmp_path):
    file = tmp_path / "poison.py"
    file.write_text(
        "import torch\ndef data(split, seed, step):\n    x = torch.ones(8, 64) * (float('nan') if step == 6 "
        "else 1)\n    return x, torch.zeros(8, dtype=torch.long)\n"
    )
    result = run(SMALL.replace(data=f"{file}:data"))
    assert result.state == "diverged" and result.stopped_at == 6 and result.steps == 7


def test_a_loss_that_ends_where_it_began_is_collapsed():
    assert conclude([2.0, 3.0, 2.0], [], steps=3, seconds=0, flops_per_step=1).collapsed
    assert not conclude([2.0, 3.0, 1.9], [], steps=3, seconds=0, flops_per_step=1).collapsed
    last = conclude([2.0, 1.0], [(2, math.nan, None)], steps=2, seconds=0, flops_per_step=1)
    assert last.state == "diverged" and last.stopped_at == 2


def test_schedules():
    c = SMALL.replace(steps=100, warmup=20, schedule="linear", floor=0.1)
    assert [round(rate(s, c), 4) for s in (0, 19, 20, 60, 100)] == [0.05, 1.0, 1.0, 0.55, 0.1]
    assert [rate(s, c.replace(schedule="step")) for s in (20, 59, 60, 80)] == [1.0, 1.0, 0.1, 0.01]
    assert decay(60, c.replace(decay_schedule="rate")) == rate(60, c)
    assert decay(0, c) == 1.0 and abs(decay(100, c.replace(decay_schedule="cosine"))) < 1e-12


def test_flops_count_products():
    result = run(SMALL)
    forward = 2 * 32 * (64 * 16 + 3 * 16 * 16 + 16 * 10)
    assert result.flops == 3 * forward * SMALL.steps


def test_the_scheme_reaches_the_optimizer():
    made = Run(SMALL.replace(width=64, depth=12, base=(16, 3), optimizer="adamw", lr=0.01))
    rates = {round(g["lr"], 8) for g in made.optimizers[0].param_groups}
    assert rates == {0.01, round(0.01 / 16, 8), round(0.01 / 4, 8)}  # input; tails 1/(m_N m_L); readout 1/m_N


def test_compile_agrees():
    pytest.importorskip("torch._dynamo")
    config = SMALL.replace(steps=4, eval_examples=0)
    with torch._dynamo.config.patch(suppress_errors=False):
        compiled = torch.compile(prepare(config).start(0), backend="aot_eager")
        made = Run(config)
        made.callable = compiled
        x = made.task.batch(0, 0)
        assert torch.allclose(compiled(x[0]), prepare(config).start(0)(x[0]), atol=1e-6)


BAD = [
    (dict(model="resnett"), ["unknown name 'resnett', nearest 'resnet'", "mlp, resnet, vit, gpt"]),
    (dict(data="cifar"), ["nearest 'cifar10'"]),
    (dict(optimizer="adamm"), ["nearest 'adam'"]),
    (dict(optimizer="AdamW"), ["nearest 'adamw'"]),
    (dict(schedule="cosin"), ["nearest 'cosine'"]),
    (dict(learning_rate=1), ["unknown key 'learning_rate'"]),
    (dict(depth=0), ["depth: must be >= 1: got 0"]),
    (dict(lr=0.0), ["lr: must be > 0"]),
    (dict(lr=math.nan), ["lr: must be"]),
    (dict(lr="fast"), ["lr: "]),
    (dict(model="vit", width=30, model_options={"patch": 4}), ["divisible by heads"]),
    (dict(model="vit", width=32, model_options={"patch": 3}), ["multiple of the patch"]),
    (dict(model="resnet", depth=4, base=None), ["multiple of 3"]),
    (dict(batch_size=5000), ["at most the training set's size, 1437: got 5000"]),
    (dict(model="gpt"), ["gpt takes text data"]),
    (dict(model_options={"inputs": 3072}), ["the data has 64: got 3072"]),
    (dict(model="vit", data="cifar10", data_options={"px": 20}, width=32), ["one of 32, 16, 8"]),
    (dict(model_options={"activation": "selu"}), ["one of relu, tanh, gelu, linear"]),
    (dict(model_options={"depht": 3}), ["unknown name 'depht'"]),
    (dict(scheme="mupp"), ["scheme: scheme must be one of"]),
    (dict(warmup=25), ["warmup: must end before the run does"]),
    (dict(nesterov=True), ["needs momentum"]),
    (dict(betas=(0.9, 1.0)), ["betas"]),
    (dict(base=(0, 3)), ["base: must be (width, depth)"]),
    (dict(device="gpu"), ["unknown name 'gpu'"]),
    (dict(data="teacher"), ["pass loss = 'mse'"]),
    (
        dict(depth=0, lr=-1, model="vit", width=30, batch_size=10**6, loss="mze", model_options={"patch": 4}),
        ["depth: must be", "lr: must be", "at most the training set's", "nearest 'mse'"],
    ),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_all_faults_at_once(given, words):
    with pytest.raises(InputError) as error:
        RunConfig(**(SMALL.model_dump() | given))
    for word in words:
        assert word in str(error.value), str(error.value)


def test_the_command(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text("width = 16\ndepth = 3\nlr = 0.05\nsteps = 20\n")
    assert cli.main(["train", str(file), "--out", str(tmp_path / "r.json")]) == 0
    assert "loss" in capsys.readouterr().out
    held = json.loads((tmp_path / "r.json").read_text())
    assert held["state"] == "done" and len(held["curves"]["loss"]) == 20
    file.write_text("width = 16\ndepth = 3\nlr = 1e6\nsteps = 20\n")
    assert cli.main(["train", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "diverged"
    file.write_text("width = 0\ndepht = 3\n")
    assert cli.main(["train", str(file)]) == 2
    said = capsys.readouterr().err
    assert "run.toml" in said and "depht" in said and "width" in said and "Traceback" not in said
    assert not list(tmp_path.glob("*.checkpoint*"))


def test_interrupt_and_go_on(tmp_path):
    """Ctrl-C between steps leaves a checkpoint; the same command finishes with the numbers of one go."""
    import os
    import signal
    import subprocess
    import sys

    file = tmp_path / "run.toml"
    file.write_text(
        "width = 32\ndepth = 12\nlr = 0.05\nsteps = 3000\nmodel_options = { branch_scale = 0.3 }\n"
    )
    command = [sys.executable, "-m", "trimtab.cli", "train", str(file), "--out", str(tmp_path / "r.json")]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step"):
            break
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    assert process.wait(HANGS) == 130
    assert (tmp_path / "run.checkpoint").exists()
    assert (
        subprocess.run(command, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode
        == 0
    )
    held = json.loads((tmp_path / "r.json").read_text())
    torch.set_num_threads(1)
    whole = run(RunConfig(width=32, depth=12, lr=0.05, steps=3000, model_options={"branch_scale": 0.3}))
    assert held["curves"]["loss"] == whole.curves["loss"].tolist()


def test_a_loss_beside_the_model_lasts(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def build(width, depth):\n    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, "
        "1))\n"
        "def data(split, seed, step):\n    x = torch.randn(8, 4, "
        "generator=torch.Generator().manual_seed(seed + step))\n    return x, x[:, :1]\n"
        "def loss(output, batch):\n    return 7 + (output - batch[1]).square().mean()\n"
    )
    config = RunConfig(model=f"{file}:build", data=f"{file}:data", width=8, depth=1, lr=0.01, steps=3)
    first = run(config).initial_loss
    assert first > 7
    for again in (
        config.replace(lr=0.02),
        RunConfig(**json.loads(json.dumps(config.model_dump(mode="json")))),
    ):  # as a sweep keeps it
        assert run(again).initial_loss == first
    assert run(config.replace(loss="mse")).initial_loss < 7 and config.replace(loss="mse").hash != config.hash
    assert RunConfig(width=8, depth=1, lr=0.1).loss == "cross-entropy"


def test_losses_and_accuracies_of_every_kind_of_batch():
    from trimtab.runs.losses import count_correct, cross_entropy, forward, mse

    torch.manual_seed(0)
    plain = torch.nn.functional.cross_entropy
    scores, classes = torch.randn(4, 6, 5), torch.randint(0, 5, (4, 6))
    classes[:, ::2] = -100
    asked = scores.argmax(-1)[:, 1::2] == classes[:, 1::2]
    for output in (scores, {"logits": scores}, (scores, 1)):
        assert cross_entropy(output, (None, classes)) == plain(scores.flatten(0, 1), classes.flatten())
        assert count_correct(output, (None, classes)) == (
            int(asked.sum()),
            asked.numel(),
        )  # targets left out of the loss are not counted as wrong
    image, pixels = torch.randn(2, 3, 7, 7), torch.randint(0, 3, (2, 7, 7))
    assert cross_entropy(image, (None, pixels)) == plain(image, pixels)
    assert count_correct(image, (None, pixels)) == (int((image.argmax(1) == pixels).sum()), pixels.numel())
    soft = torch.softmax(torch.randn(4, 6, 5), -1)
    assert cross_entropy(scores, (None, soft)) == pytest.approx(
        float(plain(scores.flatten(0, 1), soft.flatten(0, 1)))
    )
    f, y = torch.randn(8), torch.randn(8, 1)
    assert mse(f, (None, y)) == pytest.approx(float((f - y[:, 0]).square().mean() / 2)) and mse(
        f[:, None], (None, y[:, 0])
    ) == mse(f, (None, y))
    assert forward(lambda a, b: a + b, ({"a": 1, "b": 2}, 0)) == 3
    for loss, output, batch in (
        (cross_entropy, torch.randn(8, 1), (None, y)),  # numbers are no classes
        (cross_entropy, torch.randn(2, 7, 7, 7), (None, pixels)),  # which of the sevens are the classes?
        (cross_entropy, torch.randn(2, 3), (None, pixels)),
        (cross_entropy, {"hidden": f}, (None, classes)),
        (mse, {"logits": f}, {"labels": y}),
        (mse, f, (None, torch.randn(9))),
    ):
        with pytest.raises(InputError):
            loss(output, batch)


def test_folders_that_are_not_there_are_said_before_training(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("width = 8\ndepth = 3\nlr = 0.1\nsteps = 2\n")
    assert (
        cli.main(
            [
                "train",
                str(tmp_path / "run.toml"),
                "--out",
                str(tmp_path / "a" / "b.json"),
                "--checkpoint",
                str(tmp_path / "c" / "d"),
            ]
        )
        == 2
    )
    said = capsys.readouterr()
    assert (
        "out: must be in a folder" in said.err
        and "checkpoint: must be in a folder" in said.err
        and "step" not in said.err
    )


def test_the_checkpoint_of_another_configuration_is_said(tmp_path):
    with pytest.raises(Interrupted):
        run(SMALL, checkpoint=tmp_path / "c", stop=iter([False, False, True]).__next__)
    other = Run(SMALL.replace(lr=0.06), tmp_path / "c")
    assert (
        not other.losses and "another configuration" in other.said[0] and not Run(SMALL, tmp_path / "c").said
    )


def test_a_check_refuses_the_targets_that_a_run_refuses():
    """Five classes of 5 x 5 pixels: the classes may be on the second axis or on the last."""
    from trimtab.runs.losses import cross_entropy

    inputs, target = torch.randn(2, 1, 5, 5), torch.zeros(2, 5, 5, dtype=torch.long)
    with pytest.raises(InputError, match="one class per output row") as refused:
        cross_entropy(torch.zeros(2, 5, 5, 5), (inputs, target))

    def build(width, depth):
        layers = [torch.nn.Conv2d(1, width, 1), torch.nn.ReLU(), torch.nn.Conv2d(width, 5, 1)]
        return torch.nn.Sequential(*layers)

    with pytest.raises(InputError) as checked:
        trimtab.check(build, [4, 8], [1], base=(4, 1), data=lambda step: (inputs, target), lr=0.1, steps=1)
    assert str(refused.value) in str(checked.value)


def test_a_run_is_not_resumed_with_other_code(tmp_path):
    from trimtab.commands.train import read_run
    from trimtab.files import looking_in

    code = "from torch import nn\ndef build(width, depth):\n    return nn.Sequential(nn.Flatten(), {})\n"
    file, model = tmp_path / "run.toml", tmp_path / "own.py"
    file.write_text('model = "own.py:build"\nwidth = 8\ndepth = 1\nlr = 0.1\nsteps = 9\n')
    model.write_text(code.format("nn.Linear(64, 10)"))
    with looking_in(tmp_path):
        with pytest.raises(Interrupted):
            run(read_run(file), checkpoint=tmp_path / "c", stop=iter([False, False, True]).__next__)
        assert Run(read_run(file), tmp_path / "c").losses
        model.write_text(code.format("nn.Linear(64, 10), nn.Softplus()"))
        changed = Run(read_run(file), tmp_path / "c")
    assert not changed.losses and "other code" in changed.said[0]
