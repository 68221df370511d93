"""Optima, drift and verdicts against curves whose truth is known."""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from simulated import KINDS, SES, coverage, curve, verdicts
from simulated import runs as made_runs
from sweeps_made import Made, made, optimum

import trimtab
from trimtab.errors import InputError
from trimtab.optima.drift import Drift, drift, runs_needed
from trimtab.optima.fits import excess, fit
from trimtab.optima.transfers import Transfers, joint
from trimtab.runs.results import OUTCOMES


def slack(p: float, n: int) -> float:
    """Three binomial standard deviations: what n simulations can be off by."""
    return 3 * math.sqrt(p * (1 - p) / n)


def assert_covers(kind, se, seeds, shared, n):
    m = coverage(kind, se, seeds, shared, n)
    assert m.covered >= 0.92 - slack(0.92, n), m
    assert m.covered_bounded <= 0.98 + slack(0.98, n * m.bounded), m
    assert m.covered_bounded >= 0.92 - slack(0.92, n * m.bounded), m
    assert kind == "flat" or m.bounded > 0.9, m


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("se", [0.05, 0.3])
@pytest.mark.parametrize("kind", [*KINDS, "cliff"])
def test_intervals_cover(kind, se, shared):
    if kind in ("flat", "cliff") and se > 0.05:
        pytest.skip("one noise for these")
    assert_covers(kind, se if kind != "cliff" else 0.15, 3, shared, 120)


@pytest.mark.full
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("se", SES)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_in_full(kind, se, seeds, shared):
    if kind == "flat" and se > 0.05:
        pytest.skip("the flat curve has one noise")
    assert_covers(kind, se, seeds, shared, 500)


def assert_verdicts(n, kind):
    still, moving = verdicts(0.0, 0.15, n, kind), verdicts(0.5, 0.3, n, kind)
    assert still.transfers >= 0.90 - slack(0.90, n) and still.drifts <= 0.05 + slack(0.05, n), still
    assert moving.drifts >= 0.85 - slack(0.85, n), moving


@pytest.mark.slow
def test_verdicts_are_right():
    assert_verdicts(60, "quadratic")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["quadratic", "two-sided"])
def test_verdicts_are_right_in_full(kind):
    assert_verdicts(200, kind)


def line_of(f, x=np.arange(-6, 2.0, 0.5), seeds=3, noise=0.01, rng=0):
    draw = np.random.default_rng(rng)
    y = f(x)[:, None] + noise * draw.standard_normal((len(x), seeds)) + 0.05 * draw.standard_normal(seeds)
    return np.repeat(x, seeds), y.ravel(), np.tile(np.arange(seeds), len(x))


def test_seed_effects_drop_out():
    x, y, seed = line_of(lambda x: 1 + 0.1 * (x + 2.1) ** 2)
    shifted = y + 100.0 * seed
    a, b = fit(x, y, seed), fit(x, shifted, seed)
    assert abs(a.optimum - b.optimum) < 0.02 and abs(a.high - b.high) < 0.02
    assert (
        fit(x, shifted, np.arange(len(x))).high > a.high + 0.3
    )  # as if every run had its own seed, the shift is noise


def test_units_do_not_matter():
    x, y, seed = line_of(lambda x: 1 + 0.1 * (x + 2.1) ** 2)
    a, b = fit(x, y, seed), fit(3 * x + 1, 7 * y - 2, seed)
    for name in ("optimum", "low", "high"):
        assert abs(3 * getattr(a, name) + 1 - getattr(b, name)) < 1e-6, name
    mirrored = fit(-x, y, seed)
    assert abs(mirrored.low + a.high) < 1e-6 and abs(mirrored.optimum + a.optimum) < 0.02


def test_edges_are_beyond_the_grid():
    for sign in (1, -1):
        x, y, seed = line_of(lambda x, s=sign: 1 + 0.05 * (x + 2.25 - s * 6) ** 2)
        f = fit(x, y, seed)
        assert f.status == "beyond the grid" and math.isinf(f.high if sign == 1 else f.low), f


def test_flat_is_unbounded():
    f = fit(*line_of(lambda x: 1 + 0 * x, noise=0.1, rng=3))
    assert math.isinf(f.low) or math.isinf(f.high)


def test_the_wall_ends_the_interval():
    x, y, seed = line_of(lambda x: 1 + 0.1 * (x + 1) ** 2, x=np.arange(-6, -0.9, 0.5))
    f = fit(x, y, seed, wall=-0.5)
    assert f.status == "last stable" and f.high == -0.5 and -2 < f.low <= f.optimum < -0.5


@pytest.mark.parametrize("rates", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("wall", [math.inf, 5.0])
def test_few_rates_and_seeds_do_not_break(rates, seeds, wall):
    x, y, seed = line_of(lambda x: 1 + 0.1 * (x - 1) ** 2, x=np.arange(rates, dtype=float), seeds=seeds)
    f = fit(x, y, seed, wall=wall)
    assert not f.low > f.high and (rates > 0) == math.isfinite(f.optimum)


def test_exact_losses_do_not_break():
    x = np.arange(-4, 1.0)
    f = fit(x, (x + 1.5) ** 2, np.zeros(5))
    assert abs(f.optimum + 1.5) < 0.05 and f.low <= -1.5 <= f.high


def test_regret_of_a_quadratic():
    x, y, seed = line_of(lambda x: 1 + 0.1 * (x + 2.1) ** 2)
    value, low, high = excess(fit(x, y, seed), -1.1, x, y)
    assert low < 0.1 < high and abs(value - 0.1) < 0.03 and high - low < 0.1
    value, low, high = excess(fit(x, y, seed), 1.4, x, y)  # outside the window: from the runs
    assert abs(value - 0.1 * 3.5**2) < 0.1


def test_transfer_of_a_sweep():
    every = trimtab.transfer(made(), over="depth")
    assert isinstance(every, Transfers) and list(every) == ["sp", "mup", "depth-mup"]
    assert (
        every.verdict == "transfers" and every["mup"].verdict == "drifts" and every["sp"].verdict == "drifts"
    )
    assert every["mup"].drift.low < -0.9 < every["mup"].drift.high + 0.1
    for scheme, t in every.items():
        truth = np.array(
            [2.0 ** optimum(scheme, w, d) for w, d in zip(t.optima.width, t.optima.depth, strict=True)]
        )
        inside = (t.optima.low <= 1.12 * truth) & (
            truth <= 1.12 * t.optima.high
        )  # the made curve is no quadratic: a sixth of an octave of bias is its own
        assert inside.all(), t.optima
    assert any("without the branch scaling" in s for s in every["mup"].signatures) and not every.signatures
    assert (
        every.cost.ratio == pytest.approx(16)
        and every.cost.saved == pytest.approx(15 * every.cost.base)
        and every.more == 0
    )
    widths = trimtab.transfer(made(), over="width")
    assert (
        widths["sp"].verdict == "drifts"
        and widths["mup"].verdict == "transfers"
        and widths.optima.depth.unique().tolist() == [6]
    )
    assert any("moves with width" in s for s in widths["sp"].signatures)


def test_one_scheme_is_a_plain_transfer():
    t = trimtab.transfer(made(schemes=("mup",)), over="depth")
    assert isinstance(t, trimtab.Transfer) and t.scheme == "mup"
    assert trimtab.transfer(made(), scheme="sp").scheme == "sp"
    json.loads(json.dumps(t.to_dict(), allow_nan=False))


def test_full_products_use_the_base_line_and_where_another():
    source = made(schemes=("depth-mup",), cross=False)
    assert trimtab.transfer(source).optima.width.unique().tolist() == [32]
    assert trimtab.transfer(source, where={"width": 128}).optima.width.unique().tolist() == [128]
    assert trimtab.transfer(source, over="width").optima.depth.unique().tolist() == [3]


def test_another_swept_axis_is_refused_with_its_values():
    table = made(schemes=("mup",)).table
    both = pd.concat([table, table.assign(weight_decay=0.1, train_loss=table.train_loss + 0.2)])
    with pytest.raises(InputError, match=r"weight_decay: 0.0, 0.1\. Choose with --where weight_decay="):
        trimtab.transfer(both)
    assert trimtab.transfer(both, where={"weight_decay": 0.1}).verdict == "drifts"
    best = joint(both, "weight_decay").query("best")
    assert (best.weight_decay == 0).all() and len(best) == 5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(over="length"), "over must be"),
        (dict(hp="model"), "hp must be a number"),
        (dict(metric="lr"), "metric must be one of"),
        (dict(scheme="ntk"), "one of the store's"),
        (dict(where={"width": 7}), "leaves nothing"),
        (dict(where={"nothing": 7}), "no column"),
    ],
)
def test_bad_questions_are_refused(asked, said):
    with pytest.raises(InputError, match=said):
        trimtab.transfer(made(schemes=("mup",)), **asked)


def test_accuracy_is_maximised_and_linear_axes_work():
    source = made(schemes=("depth-mup",))
    assert trimtab.transfer(source, metric="accuracy").verdict == "transfers"
    rows = [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            momentum=m,
            train_loss=1 + (m - 0.6) ** 2 + 0.01 * math.sin(9 * m + s + d),
        )
        for d in (2, 4, 8)
        for m in np.linspace(0, 0.9, 10)
        for s in range(3)
    ]
    t = trimtab.transfer(pd.DataFrame(rows), hp="momentum")
    assert (
        t.axis == "linear" and np.allclose(t.optima.optimum, 0.6, atol=0.05) and t.optima["log2"].isna().all()
    )


def test_half_finished_all_diverged_and_collapsed():
    table = made().table.copy()
    some = table.assign(state=np.where(np.arange(len(table)) % 3 == 0, "waiting", table.state))
    t = trimtab.transfer(Made(some, {"base": [32, 3]}))
    assert t.optima.pending.sum() > 0 and t.verdict in ("transfers", "cannot tell")
    t = trimtab.transfer(table.assign(state="diverged"), scheme="depth-mup")
    assert (
        (t.optima.status == "none stable").all()
        and t.verdict == "cannot tell"
        and t.more is None
        and "nothing was stable" in t.advice
    )
    t = trimtab.transfer(table.assign(collapsed=True, state="done"), scheme="depth-mup")
    assert (t.optima.status == "none stable").all()
    t = trimtab.transfer(table.assign(state="waiting"), scheme="depth-mup")
    assert t.verdict == "cannot tell" and "not finished" in t.advice
    with pytest.raises(InputError, match="needs runs"):
        trimtab.transfer(pd.DataFrame(columns=table.columns))


def test_more_says_how_many():
    t = trimtab.transfer(made(schemes=("depth-mup",), seeds=2, noise=0.5, rng=4))
    assert t.verdict == "cannot tell" and (t.more is None or t.more > 10) and t.advice


def test_more_seeds_at_one_rate_take_nothing_away():
    """What makes a whole run good or bad drops out of three shared seeds; fifty-seven more at a single rate
    say nothing of the others, and must cost nothing (optima once scattered four times as much)."""
    rng, rates = np.random.default_rng(0), np.arange(-5, 0.1, 0.5)
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(20):
        seed, x = (grid.ravel() for grid in np.meshgrid(range(3), rates))
        offset = rng.normal(0, 0.03, 60)
        loss = lambda x, seed: 1.8 + 0.01 * (x + 2.3) ** 2 + offset[seed] + rng.normal(0, 0.003, len(x))  # noqa: B023, E731
        y, more = loss(x, seed), np.arange(3, 60)
        found[False].append(fit(x, y, seed).optimum + 2.3)
        at = np.full(57, -2.0)
        every = fit(np.append(x, at), np.append(y, loss(at, more)), np.append(seed, more))
        found[True].append(every.optimum + 2.3)
        assert every.low <= -2.3 + 0.3 and every.high >= -2.3 - 0.3
    assert np.std(found[True]) == pytest.approx(np.std(found[False]), rel=0.01)


def test_a_hundred_thousand_runs_are_read():
    """How fast is for benchmarks/report.py to say; a cost that grew with their square would hang here."""
    source = made(seeds=3)
    table = pd.concat(
        [source.table.assign(seed=source.table.seed + 3 * i) for i in range(100)], ignore_index=True
    )
    assert len(table) > 100_000
    assert trimtab.transfer(table, over="depth").verdict == trimtab.transfer(source, over="depth").verdict


def test_the_command(monkeypatch, capsys):
    from trimtab.cli import main
    from trimtab.optima import tables

    monkeypatch.setattr(tables, "open_source", lambda path: made())
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["transfer", "x.db"]) == 0
    text = capsys.readouterr().out
    assert (
        "transfers over depth 3 to 48 and width 32 to 128" in text and max(map(len, text.splitlines())) <= 100
    )
    assert main(["transfer", "x.db", "--scheme", "mup", "--over", "depth"]) == 1
    capsys.readouterr()
    assert main(["transfer", "x.db", "--scheme", "mup", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == {"depth": "drifts", "width": "transfers"}
    monkeypatch.setattr(tables, "open_source", lambda path: Made(made().table.assign(state="diverged"), {}))
    assert main(["transfer", "x.db"]) == 3
    capsys.readouterr()
    for bad in (["--hp", "nothing"], ["--scheme", "nothing"], ["--where", "width"], ["--metric", "nothing"]):
        assert main(["transfer", "x.db", *bad]) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_a_missing_store_is_said():
    done = subprocess.run(
        [sys.executable, "-m", "trimtab.cli", "transfer", "nosuch.db"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "nosuch.db is not there" in done.stderr and "Traceback" not in done.stderr


def test_too_few_stable_rates_ask_for_smaller_ones():
    rows = [
        dict(
            state="done" if x == -8 else "diverged",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            lr=2.0**x,
            train_loss=1.0 + 0.1 * s,
        )
        for d in (2, 4)
        for x in (-8, -7, -6)
        for s in (0, 1)
    ]
    t = trimtab.transfer(pd.DataFrame(rows))
    assert t.verdict == "cannot tell" and "try smaller ones" in t.advice and "seeds" not in t.advice


def test_rates_too_small_to_learn_ask_for_larger_ones():
    rows = [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            lr=2.0**x,
            train_loss=2.3 + 0.02 * s - 0.001 * (x + 17),
            collapsed=s == 1,  # one seed ends a little above its start at every rate
        )
        for d in (2, 4)
        for x in (-17, -16, -15)
        for s in (0, 1)
    ]
    t = trimtab.transfer(pd.DataFrame(rows))
    assert t.verdict == "cannot tell" and "try larger values" in t.advice and "smaller" not in t.advice
    assert t.remedy.values == {d: [2.0**-14, 2.0**-13, 2.0**-12] for d in (2, 4)}
    worse = [row | dict(train_loss=2.3 + 0.1 * (math.log2(row["lr"]) + 17), collapsed=True) for row in rows]
    assert "try smaller values" in trimtab.transfer(pd.DataFrame(worse)).advice


def test_one_more_seed_is_one():
    wide = [
        dict(state="done", scheme="sp", width=8, depth=d, seed=0, lr=2.0**x, train_loss=1 + (x + 5) ** 2 / 90)
        for d in (2, 4)
        for x in range(-9, 0)
    ]
    wide[3]["train_loss"] += 0.2
    assert "1 more seed" in trimtab.transfer(pd.DataFrame(wide)).advice.replace("1 more seeds", "")


def runs(**more):
    return [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            lr=2.0**x,
            train_loss=1 + 0.1 * (x + 3) ** 2 + 0.01 * math.sin(d + 7 * x + s),
            test_loss=math.nan,
            **more,
        )
        for d in (2, 4, 8)
        for x in range(-6, 0)
        for s in range(2)
    ]


def test_what_a_run_gave_is_never_a_setting_that_was_swept():
    """Diverged runs have no test examples, and a resumed sweep may have run on two classes of machines."""
    source = made()
    apart = source.table.state == "diverged"
    assert apart.any() and not apart.all()
    for name in OUTCOMES:
        if name not in source.table:
            source.table[name] = np.where(apart, None, "here")
    assert trimtab.transfer(source, over="depth")["depth-mup"].verdict == "transfers"


def test_lists_tables_and_none_are_values_too():
    for key, one, other in (
        ("betas", [0.9, 0.95], [0.9, 0.999]),
        ("overrides.a", {"lr": 2}, {"lr": 3}),
        ("clip", None, 1.0),
    ):
        table = pd.DataFrame(runs(**{key: one}) + runs(**{key: other}))
        with pytest.raises(InputError, match=f"Swept here too: {key}"):  # not pooled as if they were seeds
            trimtab.transfer(table)
        assert (
            trimtab.transfer(table, where={key: one}).optima.n.tolist()
            == trimtab.transfer(table, where={key: other}).optima.n.tolist()
            == [12] * 3
        )
    with pytest.raises(InputError, match="leaves nothing"):
        trimtab.transfer(pd.DataFrame(runs()), where={"depth": [2, 4]})


def test_what_was_not_measured_is_not_called_unstable():
    with pytest.raises(InputError, match="test_loss was not measured in these runs: they have train_loss"):
        trimtab.transfer(pd.DataFrame(runs()), metric="test_loss")
    for state, words in (
        ("waiting", "36 cells of this line are not finished"),
        ("failed", "36 cells of this line failed"),
    ):
        t = trimtab.transfer(pd.DataFrame(runs()).assign(state=state, train_loss=math.nan))
        assert (
            words in t.advice
            and "smaller" not in t.advice
            and not t.signatures
            and set(t.optima.status) == {"not finished"}
        )
    table = pd.DataFrame(runs()).assign(scheme="mup")
    table.loc[table.depth == 8, ["state", "train_loss"]] = "waiting", math.nan
    t = trimtab.transfer(table)  # what has not run yet is not said to diverge
    assert t.signatures == [] and t.optima.status.tolist() == ["inside", "inside", "not finished"]


def test_rates_are_always_on_a_log_axis():
    table = pd.DataFrame(
        [r | {"lr": 0.01 * (8 + math.log2(r["lr"]))} for r in runs()]
    )  # 0.02, 0.03, ... evenly spaced
    assert (
        trimtab.transfer(table).axis == "log2"
        and trimtab.transfer(table[table.lr < 0.035]).optima.low.tolist() == [0.0] * 3
    )


@pytest.mark.parametrize("size", [1e-300, 1e-6, 1e6, 1e300])
def test_losses_of_any_size(size):
    table = pd.DataFrame(runs())
    a, b = trimtab.transfer(table), trimtab.transfer(table.assign(train_loss=table.train_loss * size))
    assert (
        a.verdict == b.verdict
        and np.allclose(a.drift[:3], b.drift[:3])
        and np.allclose(a.regret.regret * size, b.regret.regret)
    )


def test_equal_losses_say_nothing():
    t = trimtab.transfer(pd.DataFrame(runs()).assign(train_loss=1.0))
    assert (
        t.verdict == "cannot tell"
        and math.isnan(t.drift.slope)
        and math.isinf(t.drift.low)
        and math.isinf(t.drift.high)
    )


def test_noise_in_proportion_is_fitted_on_the_log_scale():
    draw = np.random.default_rng(0)
    rows = [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            lr=2.0**x,
            train_loss=curve("cliff", np.array([x]), -3.0)[0] * math.exp(0.2 * draw.standard_normal()),
        )
        for d in (2, 4, 8, 16)
        for x in np.arange(-7, 0, 0.5)
        for s in range(3)
    ]
    t = trimtab.transfer(pd.DataFrame(rows))
    assert t.verdict == "transfers" and any("logarithm" in n for n in t.notes)
    assert (
        (t.optima["log2"] + 3).abs().max() < 0.5
        and (t.regret.regret >= 0).all()
        and (t.regret.regret < 0.05).all()
    )
    assert not trimtab.transfer(pd.DataFrame(runs())).notes


def test_a_common_skew_is_no_drift():
    """What the sizes share is not counted against each of them."""
    draw, fits = np.random.default_rng(0), []
    for _ in range(4):
        x, y, seed, wall, _m = made_runs(draw, "two-sided", 0.09, 3, True, -0.75)
        fits.append(fit(x, y, seed, wall=wall))
    alone = [dataclasses.replace(f, shapes=None) for f in fits]
    together, apart = drift(fits, range(4)), drift(alone, range(4))
    assert together.high - together.low < 0.95 * (apart.high - apart.low)


@pytest.mark.parametrize(
    ("d", "least"),
    [((0.1, 0.0, 0.26), 1), ((0.17, 0.08, 0.27), 1), ((0.3, -0.01, 0.6), 1), ((0.0, -0.3, 0.1), 1)],
)
def test_more_is_a_number_of_runs(d, least):
    assert runs_needed(Drift(*d), 100) >= least


def test_a_rate_that_one_seed_does_not_survive_is_not_stable():
    table = pd.DataFrame(runs())
    lost = (table.lr > 2.0**-3) | ((table.lr == 2.0**-3) & (table.seed == 1))  # at the best rate one of two
    table.loc[lost, ["state", "train_loss"]] = "diverged", math.nan
    t = trimtab.transfer(table)
    assert (
        (t.optima.stable_max == 2.0**-4).all()
        and (t.optima.status == "last stable").all()
        and (t.optima.high == 2.0**-3).all()
    )


def test_optima_that_scatter_widen_the_drift():
    rows = [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            lr=2.0**x,
            train_loss=1 + 0.1 * (x + 3 - off) ** 2 + 0.005 * math.sin(17 * d + 7 * x + 3 * s),
        )
        for d, off in zip((2, 4, 8, 16, 32), (0.4, -0.5, 0.5, -0.4, 0.3), strict=True)
        for x in np.arange(-6, 0, 0.5)
        for s in range(3)
    ]
    t = trimtab.transfer(pd.DataFrame(rows))
    assert (
        t.drift.scatter > 0.2
        and t.verdict == "cannot tell"
        and t.more is None
        and "scatter about a line" in t.advice
    )
    assert min(-t.drift.low, t.drift.high) > 1.9 * t.drift.scatter / math.sqrt(
        10
    )  # 95 % of five optima that scatter so


@pytest.mark.parametrize("gap", [0.0, 0.1])
def test_a_base_too_narrow_is_named(gap):
    rows = [
        dict(
            state="done",
            scheme="mup",
            width=w,
            depth=4,
            seed=s,
            lr=2.0**x,
            train_loss=1 + gap * 32 / w + 0.1 * (x + 3) ** 2 + 0.02 * math.sin(w + 5 * x + 3 * s),
        )
        for w in (32, 64, 128)
        for x in range(-6, 0)
        for s in range(4)
    ]
    named = [
        s for s in trimtab.transfer(pd.DataFrame(rows), over="width").signatures if "finite-width gap" in s
    ]
    assert len(named) == (gap > 0) and all("-0.05" in s for s in named)


def test_where_seeds_disagree_the_edge_is_soft():
    """Two walls a step apart, because one seed of three was unlucky, are no drift; three of three unlucky
    are."""

    def falling(walls, lost):
        return pd.DataFrame(
            dict(
                state="diverged" if x > wall or (x == wall and s < lost) else "done",
                scheme="sp",
                width=8,
                depth=d,
                seed=s,
                lr=2.0**x,
                train_loss=math.exp(-0.3 * x + 0.1 * math.sin(d + 5 * x + 3 * s)),
            )
            for d, wall in walls.items()
            for x in np.arange(-6, 1, 0.5)
            for s in range(3)
        )

    unlucky = trimtab.transfer(falling({2: -1.0, 4: -1.5, 8: -1.5, 16: -1.5}, 1))
    assert unlucky.drift.low < 0 < unlucky.drift.high and unlucky.verdict != "drifts"
    assert trimtab.transfer(falling({2: -1.0, 4: -2.0, 8: -3.0, 16: -4.0}, 3)).verdict == "drifts"


@pytest.mark.parametrize(("apart", "wider"), [(0.6, True), (0.0, False)])
def test_seeds_that_disagree_as_wholes_widen_the_drift(apart, wider):
    """One seed's curve lies left, another's right: a seed is one draw, however many rates it was run at."""
    draw = np.random.default_rng(1)
    rows = [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=s,
            lr=2.0**x,
            train_loss=1 + 0.1 * (x + 3 - apart * (s - 1)) ** 2 + 0.03 * draw.standard_normal(),
        )
        for d in (2, 4, 8)
        for x in np.arange(-6.5, 0.5, 0.25)
        for s in range(3)
    ]
    assert (trimtab.transfer(pd.DataFrame(rows)).drift.inflation > 2) == wider


def test_a_random_search_is_fitted_too():
    draw = np.random.default_rng(0)
    x = draw.uniform(-7, 0, 400)
    f = fit(x, 1 + 0.1 * (x + 2.6) ** 2 + 0.05 * draw.standard_normal(400), np.arange(400))
    assert f.low < -2.6 < f.high and f.high - f.low < 0.3 and f.rates <= 40
    rows = [
        dict(
            state="done",
            scheme="sp",
            width=8,
            depth=d,
            seed=i,
            lr=2.0**v,
            train_loss=1 + 0.1 * (v + 3) ** 2 + 0.05 * draw.standard_normal(),
        )
        for d in (2, 4, 8, 16)
        for i, v in enumerate(draw.uniform(-7, 0, 60))
    ]
    t = trimtab.transfer(pd.DataFrame(rows))
    assert t.verdict == "transfers" and (t.regret.regret < 0.05).all()


@pytest.mark.parametrize("step", [0.1, 1 / 3, 0.7, math.log2(3)])
def test_any_grid_of_rates(step):
    """Places of the minimum come from two grids: what they share must be one place, whatever the step rounds
    to."""
    x, y, seed = line_of(
        lambda x: 1 + 0.1 * ((x + 2.1) / step) ** 2, x=-2.1 + step * np.arange(-6, 7), noise=0.02
    )
    f = fit(x, y, seed)
    assert np.diff(f.grid).min() > step / 40 and f.low < -2.1 < f.high
    assert drift([f, f], [0.0, 1.0]).low < 0 < drift([f, f], [0.0, 1.0]).high


def test_what_keeping_the_base_costs_is_unknown_where_the_best_is_beyond_the_grid():
    cells = [(w, k, s) for w in (32, 64) for k in range(-8, -2) for s in range(2)]
    rows = [
        dict(scheme="mup", width=w, depth=2, lr=2.0**k, seed=s, state="done", train_loss=1 - k / 10 + s / 99)
        for w, k, s in cells
    ]
    found = trimtab.transfer(pd.DataFrame(rows), over="width", scheme="mup")
    assert set(found.optima["status"]) == {"beyond the grid"}
    assert set(found.regret["status"]) == {"the best is beyond the grid"}
    assert found.regret["high"].isna().all()


@pytest.mark.parametrize(("failing", "said"), [(3, "cannot tell"), (1, "transfers")])
def test_a_rate_that_does_not_train_at_a_size_does_not_transfer(failing, said):
    """The optimum falls by 0.1 an octave per doubling; at depth 64 some seeds diverge from the base's on."""
    runs = []
    for octave, depth in enumerate((2, 4, 8, 16, 32, 64)):
        for rate in np.arange(-4.0, 0.5, 0.5):
            for seed in range(3):
                noise = 0.002 * math.sin(7 * octave + 13 * rate + 29 * seed)
                loss = 1 + 0.1 * (rate + 2 + 0.1 * octave) ** 2 + 0.01 * seed + noise
                lost = depth == 64 and seed < failing and rate > -2.1
                run = dict(state="diverged" if lost else "done", scheme="depth-mup", width=32, depth=depth)
                runs.append(run | dict(seed=seed, lr=2.0**rate, train_loss=math.nan if lost else loss))
    t = trimtab.transfer(pd.DataFrame(runs), over="depth", scheme="depth-mup")
    assert abs(t.drift.slope + 0.1) < 0.05 and -0.25 < t.drift.low < t.drift.high < 0.25
    assert t.verdict == said
    assert ("does not train at depth 64" in t.advice) == (said == "cannot tell")
    assert ("3 of 3 runs at 0.25 fail" in t.advice) == (said == "cannot tell")


def test_a_transfer_is_printed_in_words():
    t = trimtab.transfer(pd.DataFrame(runs()), scheme="sp")
    said = str(t)
    assert said.startswith("With sp, one learning rate serves") and "  depth 2: 0.12 (0.118 to" in said
    assert len(said) < 1500 and repr(t) == f"Transfer(lr over depth, sp: {t.verdict})"
    assert str(trimtab.transfer(pd.DataFrame(runs()))) == said
    open_ = trimtab.transfer(pd.DataFrame([row for row in runs() if row["depth"] == 2]), scheme="sp")
    assert "To tell: a drift needs two sizes" in str(open_)


def test_what_can_be_held_fixed_is_listed():
    with pytest.raises(InputError, match=r"where names 'depht', which is no column; swept here: .*lr"):
        trimtab.transfer(pd.DataFrame(runs()), where={"depht": 2})
