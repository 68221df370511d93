"""The benchmarks' records are right, a tiny member of them runs, and the page is made from the kept results.

No assertion is on seconds.
"""

import importlib
import json
import math
import random
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {"planning": "transformers", "report": "playwright", "target": "optuna", "sweep": "optuna"}


@pytest.fixture(autouse=True)
def benchmarks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in ("records", "run"):  # names that others may use too
        sys.modules.pop(name, None)


def module(name):
    return importlib.import_module(name)


def row(*ratios, **fields):
    return module("records").Row(
        **dict(what="w", peer="p", unit="s", ours=1.0, theirs=1.0, ratios=ratios) | fields
    )


@pytest.mark.parametrize("n", [6, 9, 10, 30, 60])
def test_the_interval_holds_the_median_as_often_as_it_says(n):
    """Exactly: the k-th from each end misses with 2 P(Binomial(n, 1/2) < k). By trial: lognormal ratios."""
    low, high = module("records").median_interval(list(range(1, n + 1)))
    missed = 2 * sum(math.comb(n, i) for i in range(low)) / 2**n
    wider = 2 * sum(math.comb(n, i) for i in range(low + 1)) / 2**n
    assert low + high == n + 1 and missed <= 0.05 < wider
    draw, inside = random.Random(0), 0
    for _ in range(2000):
        a, b = module("records").median_interval([draw.lognormvariate(0, 0.3) for _ in range(n)])
        inside += a <= 1 <= b
    assert inside / 2000 > 1 - missed - 4 * math.sqrt(missed / 2000)


def test_verdicts():
    assert row(1.2, 1.3, 1.4).verdict == "ahead" and row(0.5, 0.6, 0.7).verdict == "behind"
    assert row(1.01, 1.3, 0.9).verdict == "equal"  # its median
    assert row(0.95, 1.05, 1.08).verdict == "equal" and row(0.5, 1.1, 1.5).verdict == "cannot tell"
    assert row(3.0, 4.0).verdict == "cannot tell", "two repetitions are no interval"
    assert row(3.0, spread=(2.0, 4.0)).verdict == "ahead"
    assert row(theirs=None).verdict == "not compared"


def test_sides_take_turns():
    said = []
    sides = {name: lambda name=name: said.append(name) for name in "ab"}
    taken = module("records").in_turns(sides, 3)
    assert said == ["a", "b", "b", "a", "a", "b", "b", "a"] and {len(v) for v in taken.values()} == {3}
    assert module("records").in_turns({"own": lambda: 2.5}, 2)["own"] == [2.5, 2.5]


def test_the_page_is_made_from_the_results():
    run = module("run")
    results = json.loads(run.RESULTS.read_text())
    assert run._lines_of(results) == run.RESULTS.read_text()
    assert run.PAGE.read_text() == run.page(results), "python benchmarks/run.py --page"
    rows = [run.read(kept) for result in results.values() for kept in result["rows"]]
    assert all(row.why for row in rows if row.verdict in ("behind", "not compared"))
    assert {"python", "torch"} <= set.intersection(*(set(result["versions"]) for result in results.values()))


def check(name):
    run = module("run")
    found = run.measure(name, tiny=True)
    rows = [run.read(kept) for kept in found["rows"]]
    assert rows and all(row.ours > 0 and row.verdict in run.VERDICTS for row in rows)
    assert f"| {rows[0].what} |" in run.page({name: found})


@pytest.mark.slow
def test_a_tiny_member_runs():
    check("fleet")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "planning", "sweep", "target", "theory", "report"])
def test_each_runs(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    if name == "report" and not shutil.which("chromium"):
        pytest.skip("chromium is not installed")
    check(name)


def test_none_is_forgotten():
    run = module("run")
    assert set(run.TITLES) == {p.stem for p in (ROOT / "benchmarks").glob("*.py")} - {"records", "run"}
