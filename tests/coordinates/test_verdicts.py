"""What makes a FAIL, what a note: lines with known slopes, then small networks whose drift was measured
(docs/check.md)."""

import numpy as np
import pytest
import torch
from nets import C, D, points, tokens
from torch import nn, optim

import trimtab
from trimtab.coordinates.expectations import Expected, exact, expected
from trimtab.coordinates.profiles import ALL, Line
from trimtab.coordinates.slopes import OF_CHANGES
from trimtab.coordinates.verdicts import Culprit, decide
from trimtab.runs.config import RunConfig
from trimtab.runs.tasks import prepare

SIZES = (2, 4, 8, 16)
ABOUT = dict(
    scheme="depth-mup", optimizer="AdamW", steps=1, seeds=3, base=[32, 2], widths=[*SIZES], depths=[*SIZES]
)


def line(module, quantity, axis, slope, wanted, noise=0.01, **more):
    """A quantity that goes like size^slope, three seeds that scatter by `noise`."""
    x = np.log(np.asarray(SIZES, float))
    y = slope * x[:, None] + noise * np.array([-1.0, 0.0, 1.0])
    return Line(module, quantity, axis, x, y[:, :, None], wanted, 0, **more)


def update(slope, wanted, axis="width"):
    return line("head.weight", "update", axis, slope, exact(wanted), role="readout")


def stream_change(slope, axis="width"):
    return line("end", "stream change", axis, slope, exact(0.0), tolerance=OF_CHANGES, alone=True)


def branches_learn(slope, alpha=0.5, **more):
    wanted = expected("branch change", "depth", alpha)
    return line(ALL, "branch change", "depth", slope, wanted, tolerance=OF_CHANGES, alone=True, **more)


def verdict_of(*lines, scheme="depth-mup"):
    axes = list(dict.fromkeys(one.axis for one in lines))
    return decide(lines, axes, ABOUT | dict(scheme=scheme), [], 0.5, 1)


# -- an update is a cause, a FAIL needs an effect ------------------------------------------------------------


def test_updates_that_nothing_answers_to_are_a_note():
    found = verdict_of(update(0.0, -1.0), stream_change(0.1))
    assert found.verdict == "PASS" and not found.culprits, str(found)
    (note,) = found.notes
    assert "updates do not follow width" in note and "head.weight" in note and "width^-1.00" in note
    (row,) = [r for r in found.rows if r["quantity"] == "update"]
    assert row["answer"] == "bad"  # the table of slopes still says so


def test_updates_with_an_effect_fail_and_are_named():
    found = verdict_of(update(0.0, -1.0), stream_change(0.8))
    assert found.verdict == "FAIL" and not found.notes, str(found)
    assert {c.quantity for c in found.culprits} == {"update", "stream change"}


def test_an_effect_on_the_other_axis_is_no_effect():
    found = verdict_of(update(0.0, -1.0), stream_change(0.0), stream_change(0.8, axis="depth"))
    assert found.verdicts == {"width": "PASS", "depth": "FAIL"}, str(found)
    assert {c.axis for c in found.culprits} == {"depth"} and len(found.notes) == 1


def test_a_rate_that_was_set_wrong_needs_no_effect():
    rate = line("head.weight", "lr", "width", 0.0, exact(-1.0), noise=0.0, given=True)
    found = verdict_of(rate, update(0.0, -1.0), stream_change(0.0))
    assert found.verdict == "FAIL" and found.culprits[0].quantity == "lr", str(found)
    assert any(c.quantity == "update" for c in found.culprits)


def test_noisy_updates_leave_no_doubt():
    noisy = line("head.weight", "update", "width", -0.6, exact(-1.0), noise=1.0, alone=True)
    found = verdict_of(noisy, stream_change(0.0))
    assert [r["answer"] for r in found.rows] == ["unsure", "good"] and found.verdict == "PASS", str(found)


# -- branches that learn too little with depth ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("slope", "noise", "verdict"),
    [
        (-0.5, 0.01, "PASS"),
        (-1.0, 0.01, "PASS"),  # first order in what the matrices learn
        (-1.2, 0.01, "PASS"),  # nearer to it than to the second
        (-1.3, 0.01, "FAIL"),
        (-1.5, 0.01, "FAIL"),  # products of what the tail and an inner matrix learn
        (-1.4, 0.3, "INCONCLUSIVE"),
    ],
)
def test_branches_that_learn_to_second_order_fail(slope, noise, verdict):
    found = verdict_of(branches_learn(slope, noise=noise))
    assert found.verdict == verdict, str(found)
    if verdict == "FAIL":
        assert "completep" in found.culprits[0].cause
    if verdict == "INCONCLUSIVE":
        assert "completep" in found.advice and "seeds would decide" in found.advice


def test_alpha_one_may_learn_less_before():
    """At alpha = 1 a base that still has random features may lie a quarter off (expectations.py)."""
    assert verdict_of(branches_learn(-1.3, alpha=1.0), scheme="completep").verdict == "PASS"


def test_only_the_mean_of_the_branches_is_asked_for_more_than_its_tolerance():
    one = line(
        "layers.#.down", "branch change", "depth", -1.3, Expected(-0.5, -1.0, -0.5), tolerance=OF_CHANGES
    )
    assert verdict_of(one).verdict == "PASS"


# -- small networks whose drift was measured -----------------------------------------------------------------


def digits(scheme, lr, **more):
    """The one-matrix MLP of docs/check.md on scikit-learn's digits, gradient descent at a given rate."""
    run = RunConfig(
        model="mlp", model_options={"branch_scale": 3**-0.5}, data="digits", batch_size=64, optimizer="sgd",
        steps=200, width=32, depth=3, scheme=scheme, lr=lr,
    )  # fmt: skip
    task = prepare(run)
    return trimtab.check(
        task.build, more.get("widths"), more.get("depths"), base=(32, 3),
        data=lambda step: task.batch(0, step),
        scheme=scheme, optimizer=optim.SGD, lr=lr,
    )  # fmt: skip


BEST = 0.35  # of the base


def test_plain_gradient_descent_over_width_passes_at_the_best_rate():
    """Measured over 32 to 256: -0.00 (-0.22 to +0.08) octaves per doubling, although no rate follows the
    width."""
    found = digits("sp", BEST, widths=[32, 64, 128, 256])
    assert found.verdict == "PASS", str(found)
    assert any("updates do not follow width" in note for note in found.notes), found.notes


def test_plain_gradient_descent_over_width_fails_at_a_small_rate():
    """At a thirtieth of that rate the readout learns alone and the features turn lazy: an effect, so no
    note."""
    found = digits("sp", BEST / 30, widths=[32, 64, 128, 256])
    assert found.verdict == "FAIL" and not found.notes, str(found)
    assert any(c.quantity == "stream change" and "lazy" in c.cause for c in found.culprits), str(found)
    assert found.culprits[0].quantity == "update"  # the root comes first


def test_unscaled_branches_over_depth_fail_at_the_best_rate():
    """Measured over 3 to 24: -0.96 (-1.41 to -0.80)."""
    assert digits("mup", BEST, depths=[3, 6, 12, 24]).verdict == "FAIL"
    assert digits("depth-mup", BEST, depths=[3, 6, 12, 24]).verdict == "PASS"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "verdict"), [("depth-mup", "FAIL"), ("completep", "PASS")])
def test_published_llama_over_depth(scheme, verdict):
    """An unmodified Llama at the best rate of two blocks. Measured on characters over 2 to 16 blocks: under
    depth-mup +0.47 (+0.29 to +0.68), under completep +0.06 (-0.05 to +0.20)."""
    families = pytest.importorskip("families")
    build = families.FAMILIES["llama-gqa"][0]

    def data(step):
        ids = torch.cat([part[:, -1:] if i else part for i, part in enumerate(tokens(step))], dim=1)
        return dict(input_ids=ids, labels=ids)

    found = trimtab.check(build, None, [2, 4, 8], base=(32, 2), data=data, scheme=scheme, lr=2**-7, seeds=6)
    assert found.verdict == verdict, str(found)


# -- a branch that goes through a bottleneck -----------------------------------------------------------------


class Narrow(nn.Module):
    """Residual branches through four numbers: what feeds a branch's last matrix does not grow with width."""

    def __init__(self, width, depth, inner=4):
        super().__init__()
        self.stem, self.head = nn.Linear(D, width), nn.Linear(width, C)
        self.down = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(depth))

    def forward(self, x):
        h = self.stem(x)
        for down, up in zip(self.down, self.up, strict=True):
            h = h + up(down(torch.relu(h)))
        return self.head(h)


def test_a_branch_after_an_internal_readout_may_start_small():
    """The four numbers start like a readout, width^-1/2 (docs/theory.md), and so does the branch: no fault.
    Qwen3 with heads of fixed size is the published case."""
    found = trimtab.check(Narrow, [32, 64, 128, 256], None, base=(32, 2), data=points, scheme="mup", seeds=6)
    starts = found.slopes[(found.slopes["quantity"] == "branch") & (found.slopes["step"] == 0)]
    assert (starts["slope"] < -0.3).all() and set(starts["answer"]) == {"good"}, str(found)
    assert found.verdict == "PASS", str(found)


def test_what_is_not_finite_has_no_slope_to_show():
    culprit = Culprit("head", "logits change", "width", 1, np.nan, np.nan, np.nan, 0.0, "is not finite")
    assert str(culprit) == "head: logits change is not finite"
