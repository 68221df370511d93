"""Exponents over batch and tokens, measured on teachers whose truth is known, against each rule."""

import math

import numpy as np
import pandas as pd
import pytest
from noisy_quadratic import Quadratic, best

import trimtab
from trimtab.errors import InputError
from trimtab.optima.drift import Drift
from trimtab.optima.exponents import judge, write_rule
from trimtab.optima.held_out import hold_out
from trimtab.parametrization.horizons.horizon import Horizon

Q = Quadratic(sigma=4.0, tokens=4096)


def runs(over, optimizer="sgd", sizes=(1, 2, 4, 8, 16), noise=0.02, seed=0, loss=None):
    """A table of runs of a teacher: five seeds, eleven rates half an octave apart around the truth."""
    rng = np.random.default_rng(seed)
    loss = loss or (lambda lr, k: Q.sgd(lr, k) if over == "batch" else Q.sgd(lr, longer=k))
    rows = []
    for k in sizes:
        centre = round(2 * best(lambda lr, k=k: loss(lr, k), -18, 1)[0]) / 2
        for x in np.arange(centre - 2.5, centre + 2.6, 0.5):
            for s in range(5):
                y = loss(2.0**x, k) * math.exp(noise * rng.standard_normal())
                batch, tokens = (8 * k, 8 * 4096) if over == "batch" else (8, 8 * 4096 * k)
                rows.append(
                    dict(state="done", scheme="mup", width=8, depth=2, seed=s, lr=2.0**x, train_loss=y,
                         optimizer=optimizer, batch_size=batch, steps=tokens // batch)
                )  # fmt: skip
    return pd.DataFrame(rows)


def verdicts(t):
    return {rule.rule: rule.verdict for rule in t.rules}


def test_sgd_over_batch_agrees_with_the_linear_rule_and_refutes_the_constant_one():
    t = trimtab.transfer(runs("batch"), over="batch")
    assert t.drift.low <= 1.0 <= t.drift.high and t.verdict == "drifts"
    assert verdicts(t) == {"sde": "agrees", "constant": "refuted"}
    found = {rule.rule: rule.regret for rule in t.rules}
    assert found["sde"] < 0.05 * Q.sgd(2.0**-10.2) and not found["constant"] <= 0.05 * Q.sgd(2.0**-10.2)


def test_over_tokens_the_truth_is_found_and_the_rule_refuted_where_it_is_off():
    """Over 16x the truth of one curvature goes as tokens^-0.88 (closed form)."""
    t = trimtab.transfer(runs("tokens"), over="tokens")
    steps = [4096 * k for k in (1, 2, 4, 8, 16)]
    rates = [math.log2(math.log(4 * n / 16) / (2 * n)) for n in steps]
    truth = np.polyfit(np.log2(steps), rates, 1)[0]
    assert t.drift.low - 0.01 <= truth <= t.drift.high + 0.01
    assert verdicts(t)["constant"] == "refuted" and verdicts(t)["sde"] == judge(t.drift, -1.0)


@pytest.mark.slow
def test_the_interval_covers_the_truth():
    """95 % of 40: below 33 happens once in 300 sweeps."""
    inside = 0
    for seed in range(40):
        d = trimtab.transfer(runs("batch", sizes=(1, 4, 16), noise=0.1, seed=seed), over="batch").drift
        inside += d.low <= 0.998 <= d.high
    assert inside >= 33


def test_only_rules_that_speak_of_the_optimizer():
    t = trimtab.transfer(runs("batch", optimizer="adamw", sizes=(1, 4)), over="batch")
    assert set(verdicts(t)) == {"sde", "completedp", "token-half-life", "constant"}
    assert trimtab.transfer(runs("batch", sizes=(1, 4)), over="batch", hp="lr").rules
    depth = runs("batch", sizes=(1,))
    deeper = pd.concat([depth, depth.assign(depth=4)])
    assert trimtab.transfer(deeper, over="depth").rules == ()


def test_judging():
    assert judge(Drift(math.nan, -math.inf, math.inf), 0.0) == "cannot tell"
    assert (
        judge(Drift(-0.31, -0.38, -0.24), -0.5) == "refuted"
        and judge(Drift(0.5, 0.2, 0.8), 0.5) == "cannot tell"
    )


def test_the_measured_rule_is_written_and_used(tmp_path):
    t = trimtab.transfer(runs("batch"), over="batch")
    path = tmp_path / "mine.json"
    assert "lr as batch^" in write_rule(path, {"batch": t})
    h = Horizon(batch=4, rule=path)
    f = h.factors("SGD")
    assert math.isclose(f.lr, 4**t.drift.slope) and math.isclose(f.lr * f.weight_decay * f.steps, 1)
    assert Horizon(tokens=4, rule=path).factors("SGD").lr == 1 / 4  # as sde where nothing was measured
    with pytest.raises(InputError, match=".json"):
        write_rule(tmp_path / "mine.txt", {"batch": t})


def test_batches_are_held_where_the_sweep_declares_them():
    """A sweep over width and batch: over width the base's batch is held; undeclared it is ambiguous."""
    table = pd.concat([runs("batch", sizes=(1, 4)).assign(width=w) for w in (8, 16)])
    from trimtab.optima.tables import TableSource

    source = TableSource(table, {"base": [8, 2, 8, 8 * 4096]})
    t = trimtab.transfer(source, over="width")
    assert t.fixed["batch"] == 8 and t.optima["width"].tolist() == [8, 16]
    with pytest.raises(InputError, match="batch_size"):
        trimtab.transfer(table, over="width")


def test_an_exponent_is_confirmed_at_a_size_it_has_not_seen():
    """Over batch the linear rule is true up to the largest size: the rate of the smaller sizes is as good
    there as the best. Where the optimum turns back at the last step, it is not."""
    held = hold_out(trimtab.transfer(runs("batch"), over="batch"))
    assert held.size == 128 and held.drift.low <= 1.0 <= held.drift.high
    assert held.low <= 0.02 * held.loss and held.regret < 0.05 * held.loss
    assert held.rate == pytest.approx(held.best, rel=0.3)
    stays = runs("batch", loss=lambda lr, k: Q.sgd(lr, min(k, 8)) if k < 16 else Q.sgd(2 * lr, 8))
    off = hold_out(trimtab.transfer(stays, over="batch"))
    assert off.rate / off.best > 3 and off.low > 0.05 * off.loss
    assert "held out: without batch 128" in str(off)
    few = trimtab.transfer(runs("batch", sizes=(1, 2, 4)), over="batch")
    assert hold_out(few) is None
