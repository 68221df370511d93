"""Batch and length: the rules as algebra, by the thousand; and against teachers whose best rate is known."""

import dataclasses
import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from noisy_quadratic import Quadratic, best

from trimtab.errors import InputError, OptimizerError
from trimtab.parametrization.horizons.decay import DECAYS, Decay, as_decay, timescale
from trimtab.parametrization.horizons.horizon import Horizon, HorizonFactors
from trimtab.parametrization.horizons.multipliers import Multipliers, read_roles
from trimtab.parametrization.horizons.rules import RULES, Powers, as_rule, rule_from
from trimtab.parametrization.horizons.table import disputes_table, rules_table
from trimtab.parametrization.optimizers.families import FAMILIES

ratio = st.floats(0.02, 50)
names = st.sampled_from(list(RULES))
adams = st.sampled_from(["AdamW", "Adam", "NAdam", "RMSprop", "Adamax", "Lion", "Muon"])
many = settings(max_examples=500, deadline=None)


def numbers(f: HorizonFactors) -> tuple[float, ...]:
    return f.lr, f.weight_decay, f.eps, f.steps


def near(a, b, rel=1e-9) -> bool:
    return all(math.isclose(x, y, rel_tol=rel) for x, y in zip(a, b, strict=True))


# -- algebra --------------------------------------------------------------------------------------------


@given(names, st.sampled_from(list(FAMILIES)))
def test_at_ratio_1_nothing_changes(rule, cls):
    h = Horizon(rule=rule)
    assert numbers(h.factors(cls, weight_decay=0.1, betas=(0.9, 0.999), momentum=0.9)) == (1, 1, 1, 1)
    assert h.betas((0.9, 0.999)) == (0.9, 0.999) and h.momentum(0.9) == h.momentum(0.9, "Muon") == 0.9
    assert h.notes == [] and h.factors(cls, momentum=0.9).notes == ()


@many
@given(names, adams, ratio, ratio, ratio, ratio)
def test_ratios_compose(rule, cls, b1, d1, b2, d2):
    one, two = Horizon(b1, d1, rule), Horizon(b2, d2, rule)
    both = one * two
    assert near((both.batch, both.tokens), (b1 * b2, d1 * d2)) and both == one.then(two)
    product = [x * y for x, y in zip(numbers(one.factors(cls)), numbers(two.factors(cls)), strict=True)]
    assert near(numbers(both.factors(cls)), product)
    beta = 1 - 1e-7  # far enough from 0 for every ratio
    assert near(
        [1 - x for x in two.betas(one.betas((beta, beta)))], [1 - x for x in both.betas((beta, beta))], 1e-4
    )


@many
@given(ratio, st.floats(0, 0.999))
def test_sgd_gives_the_linear_rule_over_batch(b, momentum):
    f = Horizon(batch=b).factors("SGD", momentum=momentum, weight_decay=0.1)
    assert near(numbers(f), (b, 1, 1, 1 / b))
    assert Horizon(batch=b).momentum(momentum) == momentum
    assert bool(momentum and b != 1) == any("1 - momentum" in note for note in f.notes)


@many
@given(st.sampled_from(["sde", "completedp"]), adams, ratio, ratio)
def test_the_clock_the_decay_and_the_memory_of_a_whole_run_are_kept(rule, cls, b, d):
    h = Horizon(b, d, rule)
    f = h.factors(cls)
    assert math.isclose(f.lr**2 * f.steps, 1, rel_tol=1e-9)  # clock eta^2 per step
    if FAMILIES[cls].decay == "decoupled":
        assert math.isclose(f.lr * f.weight_decay * f.steps, 1, rel_tol=1e-9)
    base = 1 - 1e-3 / max(1, b / d)
    for before, after in zip((base, base), h.betas((base, base)), strict=True):
        assert math.isclose((1 - after) * f.steps, 1 - before, rel_tol=1e-9)
    sgd = Horizon(b, d).factors("SGD")
    assert math.isclose(sgd.lr * sgd.steps, 1, rel_tol=1e-9)  # clock eta per step
    assert math.isclose(sgd.lr * sgd.weight_decay * sgd.steps, 1, rel_tol=1e-9)


@many
@given(ratio)
def test_eps_follows_the_size_of_a_noisy_gradient(b):
    for rule in ("sde", "completedp"):
        assert math.isclose(Horizon(batch=b, rule=rule).factors("AdamW").eps, b**-0.5, rel_tol=1e-9)
    assert Horizon(tokens=b).factors("AdamW").eps == 1
    assert math.isclose(Horizon(tokens=b, rule="completedp").factors("AdamW").eps, b**0.5, rel_tol=1e-9)
    assert Horizon(batch=b).factors("Lion").eps == Horizon(batch=b).factors("SGD").eps == 1


@many
@given(st.floats(0.1, 500), ratio, st.floats(0.5, 0.99999))
def test_the_half_life_in_tokens_is_kept(b, d, beta2):
    h = Horizon(b, d, "token-half-life")
    beta1, after = h.betas((0.9, beta2))
    assert beta1 == 0.9 and numbers(h.factors("AdamW"))[:3] == (1, 1, 1)
    assert math.isclose(b * math.log(0.5) / math.log(after), math.log(0.5) / math.log(beta2), rel_tol=1e-6)


def test_off_stays_off():
    assert Horizon(batch=64).betas((0.0, 0.999))[0] == 0 and Horizon(tokens=9).momentum(0.0, "Muon") == 0


# -- what is said and refused ---------------------------------------------------------------------------


def test_all_faults_of_a_horizon_at_once():
    with pytest.raises(InputError) as error:
        Horizon(batch=0, tokens=math.nan, rule="sed", critical=-1)
    for word in ("batch", "tokens", "critical", "'sed'", "token-half-life"):
        assert word in str(error.value)
    with pytest.raises(InputError, match="batch must be a finite number > 0"):
        Horizon(batch=True)


def test_a_memory_out_of_range_is_an_error_that_says_what_would_do():
    h = Horizon(batch=16)
    with pytest.raises(InputError) as error:
        h.betas((0.9, 0.5))
    assert "beta1" in str(error.value) and "beta2" in str(error.value) and "0.9375" in str(error.value)
    with pytest.raises(InputError, match="beta1"):
        h.factors("AdamW", betas=(0.9, 0.999))
    with pytest.raises(InputError, match="no memory at all"):
        Horizon(batch=10).betas((0.9, 0.999))
    assert h.betas((0.9376, 0.999))[0] < 0.01
    with pytest.raises(InputError, match="two numbers"):
        h.betas((0.9,))
    with pytest.raises(InputError, match="from 0 to below 1"):
        h.betas((1.0, 0.9))
    assert any("memory" in note for note in Horizon(batch=8).factors("AdamW", betas=(0.9, 0.999)).notes)


def test_coupled_decay_is_refused_where_it_would_be_moved():
    for cls in (torch.optim.Adam, "RMSprop", "NAdam"):
        with pytest.raises(OptimizerError, match="AdamW"):
            Horizon(batch=2).factors(cls, weight_decay=0.1)
        assert Horizon(batch=2).factors(cls, weight_decay=0.0).weight_decay == 1
        assert Horizon(batch=2, rule="constant").factors(cls, weight_decay=0.1).lr == 1
    f = Horizon(batch=4).factors(torch.optim.Adam, weight_decay=0.1, decoupled_weight_decay=True)
    assert f.weight_decay == 2


def test_optimizers_without_a_rule_are_refused():
    for cls in ("Adagrad", "Adadelta"):
        with pytest.raises(OptimizerError, match="no rule"):
            Horizon(batch=2).factors(cls)
    for rule in ("completedp", "token-half-life"):
        with pytest.raises(OptimizerError, match="SGD-like"):
            Horizon(batch=2, rule=rule).factors("SGD")
    with pytest.raises(OptimizerError, match="none of SGD"):
        Horizon().factors("Mystery")
    with pytest.raises(OptimizerError, match="RAdam"):
        Horizon().factors(torch.optim.RAdam)


def test_notes_say_range_schedule_and_who_disagrees():
    notes = "\n".join(Horizon(16, 100, critical=8).notes)
    assert "beyond the critical 8" in notes and "fractions" in notes and "6.25" in notes
    assert "2507.07101" in notes and "2606.29158" in notes
    assert "critical=" in "\n".join(Horizon(batch=2).notes)
    assert not any("critical" in note for note in Horizon(batch=4, critical=8).notes)
    assert any("analogy" in note for note in Horizon(batch=2).factors("Muon").notes)
    assert (Horizon(batch=2, critical=8) * Horizon(batch=2, critical=3)).critical == 6


def test_the_table():
    text = str(Horizon(16, 4))
    assert "b^0.5 d^-0.5" in text and "source: " in text and "contested" in text
    assert repr(Horizon(16, 4)) == "Horizon(batch=16, tokens=4, rule='sde')"
    assert "beta^16" in str(Horizon(16, rule="token-half-life"))


def test_every_record_names_source_support_and_dispute():
    for rule in RULES.values():
        assert rule.source and rule.support and rule.contested_over_batch and rule.contested_over_tokens
    for decay in DECAYS.values():
        assert decay.source and decay.contested


# -- a rule of one's own --------------------------------------------------------------------------------

OWN = """
extends = "sde"
source = "measured here"
[adam]
lr = {batch = 0.5, tokens = -0.31}
weight_decay = {batch = 0.5, tokens = -0.69}
"""


def test_a_rule_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    for given_as in (path, str(path)):
        h = Horizon(batch=4, tokens=8, rule=given_as)
        assert math.isclose(h.factors("AdamW").lr, 2 * 8**-0.31) and h.record.name == "mine"
        assert h.factors("SGD").lr == 0.5 and h.record.source == "measured here"
    saved = tmp_path / "mine.json"
    saved.write_text(json.dumps(h.record.to_dict()))
    assert as_rule(saved) == h.record
    with pytest.raises(InputError, match="one rule"):
        h * Horizon(batch=2)


def test_horizons_go_through_json():
    for rule in RULES:
        h = Horizon(16, 4, rule, critical=32)
        assert Horizon.from_dict(json.loads(json.dumps(h.to_dict()))) == h


def test_all_faults_of_a_rule_at_once(tmp_path):
    faulty = {
        "extends": "sed",
        "nme": "x",
        "source": 3,
        "adam": {"lr": 0.5, "eps": {"batch": "x"}, "beta3": {}, "memory": "long"},
    }
    with pytest.raises(InputError) as error:
        rule_from(faulty)
    for word in ("extends", "nme", "source", "adam.lr", "adam.eps", "adam.beta3", "adam.memory"):
        assert word in str(error.value)
    with pytest.raises(InputError, match="must have a column"):
        rule_from({"name": "empty"})
    bad = tmp_path / "bad.toml"
    bad.write_text("= 3")
    with pytest.raises(InputError, match="TOML"):
        Horizon(rule=bad)
    with pytest.raises(InputError, match="readable"):
        Horizon(rule=str(tmp_path / "none.toml"))


# -- decay ----------------------------------------------------------------------------------------------


@many
@given(ratio, ratio, ratio, names)
def test_decay_keeps_what_its_name_says(f, b, d, rule):
    """f: the rate's factor over width. Every timescale is 1/(lr wd) steps."""
    h = Horizon(b, d, rule)
    moved = h.factors("AdamW")
    lr = f * moved.lr
    wd = {name: x.over_size(f) * x.over_horizon(h, moved) for name, x in DECAYS.items()}
    steps = {name: 1 / (lr * x) for name, x in wd.items()}
    assert math.isclose(DECAYS["product"].over_size(f) * f, 1, rel_tol=1e-9)
    assert DECAYS["value"].over_size(f) == 1
    assert math.isclose(DECAYS["root"].over_size(f) ** 2 * f, 1, rel_tol=1e-9)
    assert math.isclose(steps["tokens"] * b, 1, rel_tol=1e-9)
    assert math.isclose(steps["epochs"], d / b, rel_tol=1e-9)  # one pass: as long as the run
    assert math.isclose(
        1 / (lr * f**-1 * Decay("e", keeps="epochs", dataset=2.0).over_horizon(h, moved)) * b / 2,
        1,
        rel_tol=1e-9,
    )
    if rule in ("sde", "completedp"):
        assert math.isclose(wd["epochs"], wd["product"], rel_tol=1e-9)


def test_decay_faults_and_timescales():
    with pytest.raises(InputError, match="'product', 'root'"):
        as_decay("prodcut")
    with pytest.raises(InputError) as error:
        Decay("mine", width=math.inf, keeps="x", dataset=-1)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in ("width", "keeps", "dataset"))
    with pytest.raises(OptimizerError, match="decoupled"):
        DECAYS["tokens"].refuse(FAMILIES["Adam"])
    for name in DECAYS:
        DECAYS[name].refuse(FAMILIES["AdamW"])
    found = timescale(1e-3, 0.1, batch=100, dataset=5e5, steps=20_000)
    assert near(dataclasses.astuple(found), (1e4, 1e6, 2, 0.5))
    assert str(timescale(1e-3, 0.0)) == "no decay"
    with pytest.raises(InputError, match="lr must"):
        timescale(-1, 0.1)


# -- multipliers by role --------------------------------------------------------------------------------


def test_multipliers_by_role():
    roles = read_roles({"input": {"lr": 0.25, "init": 2}, "readout": {"weight_decay": 0.0}})
    assert roles["input"] == Multipliers(init=2.0, lr=0.25) and roles["readout"].weight_decay == 0
    assert roles["input"].to_dict() == {"init": 2.0, "lr": 0.25} and read_roles(None) == {}
    with pytest.raises(InputError) as error:
        read_roles(
            {
                "inputs": {},
                "hidden": 3,
                "input": {"lr": -1, "rate": 2, "init": 0},
                "scalar": {"eps": math.nan},
            }
        )
    for word in ("'inputs'", "'hidden' must", "lr must", "'rate'", "init must", "eps must"):
        assert word in str(error.value)


# -- against teachers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("a", [(1.0,), tuple(i**-1.5 for i in range(1, 30))])
def test_sgd_on_a_noisy_quadratic_follows_the_batch(momentum, a):
    """Exact in the limit of small steps: error of order lr a / (1 - momentum), here below a tenth of an
    octave."""
    q = Quadratic(a=a, sigma=4.0, tokens=4096)
    at_base, loss = best(lambda lr: q.sgd(lr, 1, momentum), -14, 0)
    for b in (2.0, 4.0, 16.0):
        f = Horizon(batch=b).factors("SGD", momentum=momentum)
        there, found = best(lambda lr, b=b: q.sgd(lr, b, momentum), -14, 2)
        assert abs(there - at_base - math.log2(f.lr)) < 0.1
        assert q.sgd(2**at_base * f.lr, b, momentum) < 1.02 * found
        assert abs(found / loss - 1) < 0.1


def test_the_other_momentum_rule_keeps_sgd_too():
    """The alternative that the note names: 1 - momentum by b and lr by b^2 gives the same path in clock
    units."""
    q = Quadratic(sigma=4.0, tokens=4096)
    for lr in (2**-16, 2**-15, 2**-14):
        base = q.sgd(lr, 1, 0.99)
        assert abs(q.sgd(lr * 4**2, 4, 1 - 4 * 0.01) / base - 1) < 0.02


def test_sgd_weight_decay_is_kept_over_batch():
    q = Quadratic(sigma=4.0, tokens=4096)
    losses = [q.sgd(2**-11 * b, b, decay=0.5) for b in (1, 4, 16)]
    assert max(losses) < 1.02 * min(losses)


def test_beyond_the_critical_batch_the_optimum_stops_following():
    """One step sees all: the best rate is 1/(1 + sigma^2/B), while the rule asks for 3.5 and loses."""
    q = Quadratic(sigma=4.0, tokens=4096)
    at_base, _ = best(lambda lr: q.sgd(lr), -14, 0)
    there, found = best(lambda lr: q.sgd(lr, 4096), -4, 1)
    assert math.isclose(2**there, 1 / (1 + 16 / 4096), rel_tol=1e-3)
    assert q.sgd(2**at_base * Horizon(batch=4096).factors("SGD").lr, 4096) > 100 * found


def test_over_length_the_rule_is_a_hypothesis():
    """Closed form, one curvature: lr* = ln(4 a^2 T x0^2 B / sigma^2) / (2 a T), an exponent of -1 +
    1/ln(...), not -1."""
    q = Quadratic(sigma=4.0, tokens=4096)
    for d in (1, 4, 16):
        steps = 4096 * d
        there, _ = best(lambda lr, d=d: q.sgd(lr, longer=d), -18, 0)
        assert math.isclose(2**there, math.log(4 * steps / 16) / (2 * steps), rel_tol=0.01)
    assert Horizon(tokens=4).factors("SGD").lr == 1 / 4
    spread = Quadratic(a=tuple(i**-1.5 for i in range(1, 30)), sigma=1.0, tokens=1024)
    moves = [best(lambda lr, d=d: spread.sgd(lr, longer=d), -14, 0)[0] for d in (1, 16)]
    assert -0.55 < (moves[1] - moves[0]) / 4 < -0.4  # many curvatures: about half of what the rule says


def test_sign_descent_follows_the_root_of_the_batch():
    """An exact Markov chain. Noise dominates (a x0 / sigma = 1/6 at batch 1), so the square root holds to
    0.1 octaves."""
    q = Quadratic(sigma=6.0, tokens=512)
    at_base, loss = best(lambda lr: q.sign(lr), -8, -2, near=0.02)
    for b in (4.0, 16.0):
        f = Horizon(batch=b).factors("Lion")
        there, found = best(lambda lr, b=b: q.sign(lr, b), -8, 0, near=0.02)
        assert abs(there - at_base - math.log2(f.lr)) < 0.1
        assert q.sign(2**at_base * f.lr, b) < 1.02 * found and abs(found / loss - 1) < 0.05


BASE = dict(betas=(0.98, 0.995), eps=3.0, weight_decay=0.05)


def adamw(rates, batch, rule="sde", keep=()):
    h = Horizon(batch=batch, rule=rule)
    f = h.factors(torch.optim.AdamW, **BASE)
    hyper = {
        "betas": h.betas(BASE["betas"]),
        "eps": BASE["eps"] * f.eps,
        "weight_decay": BASE["weight_decay"] * f.weight_decay,
    } | {name: BASE[name] for name in keep}
    q = Quadratic(sigma=6.0, tokens=2048)
    return [q.adam(lr * f.lr, batch, copies=4096, **hyper) for lr in rates]


def test_adamw_gives_one_curve_over_batch():
    """torch's own AdamW with decay and an eps as large as the gradient: loss against rate is one curve. The
    equation is first order in 1 - beta, 0.16 here at batch 8, and so is the error; leaving out any part of
    the rule shows."""
    rates = [2.0**k for k in (-7, -6, -5, -4)]
    base = adamw(rates, 1)

    def apart(other):
        return max(abs(y / x - 1) for x, y in zip(base, other, strict=True))

    assert apart(adamw(rates, 8)) < 0.16
    for name in BASE:
        assert apart(adamw(rates, 8, keep=(name,))) > 0.16, name
    assert apart(adamw(rates, 8, "constant")) > 1


def test_no_torch_is_loaded():
    modules = ("horizon", "rules", "table", "decay", "multipliers", "calculator")
    lines = ["import sys", *(f"import trimtab.parametrization.horizons.{m}" for m in modules)]
    code = "\n".join([*lines, "assert not {'torch', 'numpy'} & set(sys.modules)"])
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_powers_print():
    assert str(Powers(1, -1)) == "b d^-1" and str(Powers(tokens=0.307)) == "d^0.307"


def test_the_page_has_the_tables_of_the_records():
    page = (Path(__file__).parents[2] / "docs" / "horizon.md").read_text()
    assert rules_table() in page and disputes_table() in page
    own = page.split("```toml\n")[1].split("```")[0]
    assert rule_from(tomllib.loads(own)).adam.lr == Powers(0.5, -0.31)
    for name in DECAYS:
        assert f"| `{name}` |" in page
