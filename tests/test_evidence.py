"""The evidence is made from what is stored, its texts speak of its verdicts, a tiny member of each runs."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"
NAMES = sorted(p.parent.name for p in EXPERIMENTS.glob("*/question.toml"))


def load(path):
    """A script of the experiments as a module of its own name."""
    name = "experiment_" + "_".join(path.relative_to(EXPERIMENTS).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def evidence():
    return load(EXPERIMENTS / "evidence.py")


def test_every_question_names_files_that_are_there(evidence):
    for folder in evidence.folders():
        q = evidence.question(folder)
        for files in q.get("stores", {}).values():
            assert files and all((folder / file).is_file() for file in files), folder.name
        assert all((folder / script).is_file() for script in q.get("scripts", [])), folder.name
        stored = [*q.get("stores", {}), *(line["store"] for line in q.get("lines", []))]
        absent = {name for name in stored if not (folder / f"{name}.csv").is_file()}
        assert not absent, f"{folder.name}: {absent} not run"
        named = {file for files in q.get("stores", {}).values() for file in files}
        left = {p.name for p in folder.glob("*.toml")} - named - {"question.toml", "sweep-paper.toml"}
        assert not left, f"{folder.name}: {left} fill no store"


def runs(**columns):
    rows = dict(
        scheme="sp", width=32, depth=3, state="done", train_loss=1.0, test_loss=1.0, accuracy=0.5
    ) | dict(initial_loss=2.0, collapsed=False, seconds=1.0, flops=1.0)
    return pd.DataFrame(rows | columns)


def test_runs_added_later_join_those_that_are_kept(evidence):
    kept = runs(seed=[0, 0, 1], lr=[0.5, 0.25, 0.5], schedule=["cosine", "cosine", "linear"])
    store = runs(seed=[0, 2], lr=[0.5, 0.5], schedule="cosine", train_loss=0.9)
    both = evidence.joined(kept, store)
    assert list(both) == list(kept) and len(both) == 4
    assert sorted(zip(both["seed"], both["lr"], both["train_loss"], strict=True)) == [
        (0, 0.25, 1.0),
        (0, 0.5, 0.9),
        (1, 0.5, 1.0),
        (2, 0.5, 0.9),
    ]


def test_a_rate_with_fewer_seeds_does_not_win_by_its_seeds(evidence):
    """Seeds 0 to 2 are easy ones: the rate that only they were run at has a lower mean and is worse."""
    table = pd.DataFrame(
        {
            0.25: {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0, 5: 2.0},
            0.5: {0: 1.1, 1: 1.1, 2: 1.1},
        }
    ).T
    assert table.mean(axis=1).idxmin() == 0.5
    assert evidence.best_rate(table) == 0.25
    assert evidence.levelled(table).to_dict() == pytest.approx({0.25: 1.5, 0.5: 1.6})


def test_rates_at_which_a_seed_fails_are_left_out(evidence):
    table = runs(
        seed=[0, 1, 0, 1, 0], lr=[0.1, 0.1, 0.2, 0.2, 0.4], state=["done"] * 3 + ["diverged", "done"]
    )
    assert list(evidence.mean_at(table).index) == [0.1, 0.4]


@pytest.mark.slow
def test_the_pages_are_those_of_the_stored_results(evidence):
    """Also: no line of the page says that the text expects another verdict than it has."""
    pages = [ROOT / "docs" / "evidence.md", *sorted(EXPERIMENTS.glob("*/README.md"))]
    drawn = sorted(EXPERIMENTS.glob("*/figure.svg"))
    before = {p: p.read_text(encoding="utf-8") for p in (*pages, *drawn)}
    try:
        evidence.write()
        changed = [str(p.relative_to(ROOT)) for p in pages if p.read_text(encoding="utf-8") != before[p]]
        assert not changed, f"run python experiments/evidence.py: {changed}"
        assert "the text expects" not in before[pages[0]]
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_member_of_each_runs(evidence, name, capsys):
    if name == "llama":
        pytest.importorskip("transformers", reason="transformers is not installed")
    evidence.tiny(name)
    said = capsys.readouterr().out
    assert "tiny runs finished" in said or "no sweep of its own" in said or not os.environ.get("TRIMTAB_DATA")


@pytest.mark.slow
def test_the_norms_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    load(EXPERIMENTS / "norms" / "steps.py").main(sizes=((16, 3),), rounds=1, out=tmp_path / "steps.csv")
    found = pd.read_csv(tmp_path / "steps.csv")
    assert list(found["norm"]) == ["batch", "layer"] and (found["ratio"] > 0).all()


@pytest.mark.slow
def test_both_ways_of_tuning_run(tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed")
    direct = load(EXPERIMENTS / "cost" / "direct.py")
    task = direct.RUN | dict(data="digits", data_options={}, steps=3)
    direct.main(task, trials=2, rounds=1, fresh=range(1), out=tmp_path / "direct.csv")
    found = pd.read_csv(tmp_path / "direct.csv").set_index("way")
    assert found.loc["target", "gflops"] > 5 * found.loc["base, carried", "gflops"] > 0


@pytest.mark.slow
def test_the_peer_is_asked(tmp_path):
    for package in ("mup", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    if not os.environ.get("TRIMTAB_DATA"):
        pytest.skip("needs data in $TRIMTAB_DATA")
    peer = load(EXPERIMENTS / "llama" / "peer.py")
    peer.main((32,), [2.0**-7], range(1), peer.RUN | dict(steps=3, warmup=1), out=tmp_path)
    said = pd.read_csv(tmp_path / "peer.csv")
    assert list(said["says"]) == list(pd.read_csv(EXPERIMENTS / "llama" / "peer.csv")["says"])
    assert list(pd.read_csv(tmp_path / "mup_width.csv")["state"]) == ["done"]


@pytest.mark.slow
def test_the_limit_is_asked(tmp_path, evidence):
    limit = load(EXPERIMENTS / "finite_size" / "limit.py")
    asked = "--width 8,16 --depth 2,4,inf --lr 0.1 --steps 2 --points 2 --networks 16 --samples 200"
    for name in ("limit-width", "limit-depth"):
        limit.measure(name, asked, tmp_path)
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["rates"] and evidence.infinite(tmp_path / f"{name}.json")[0].startswith("`trimtab limit")
    assert {rate["axis"] for rate in found["rates"]} == {"depth"}
