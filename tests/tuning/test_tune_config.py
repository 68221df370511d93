"""tune.toml: every fault at once, nothing that is searched in vain, nothing lost on the way to a run."""

import pytest

from trimtab.errors import InputError
from trimtab.tuning.config import read

GOOD = {
    "base": [64, 3],
    "target": [512, 3],
    "run": {"optimizer": "adamw"},
    "search": {"lr": {"log2": [-10, -4]}},
}


def faults_of(**changes):
    with pytest.raises(InputError) as caught:
        read({**GOOD, **changes})
    return {fault.path: str(fault) for fault in caught.value.faults}


def test_all_faults_at_once(tmp_path):
    """One file with a fault in every table: one error that names them all, and the file."""
    path = tmp_path / "tune.toml"
    path.write_text("""
base = [64]
target = { width = 512 }
trials = 1
finalist = 3
fleet = 0
[run]
steps = 0
width = 3
optimizer = "adamw"
[search]
lr = { log2 = [1, -1] }
momentum = { from = 0.0, to = 0.9 }
gama0 = { log2 = [-1, 1] }
warmup = { log2 = [-3, -1] }
[confirm]
size = [0, 3]
[budget]
cell_seconds = -1
""")
    with pytest.raises(InputError) as caught:
        read(path)
    text, paths = str(caught.value), [fault.path for fault in caught.value.faults]
    assert str(path) in text.splitlines()[0] and f"{len(paths)} faults" in text
    for wanted in (
        "base",
        "target.depth",
        "trials",
        "tune",
        "fleet",
        "run.steps",
        "run.width",
        "search.lr",
        "search.momentum",
        "search",
        "search.warmup",
        "confirm.size.0",
        "budget.cell_seconds",
    ):
        assert wanted in paths, (wanted, text)
    assert "nearest 'finalists'" in text and "nearest 'gamma0'" in text


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"search": {}}, "search", "must name a hyperparameter"),
        ({"search": {"gamma0": {"log2": [-1, 1]}}}, "search.lr", "is required"),
        ({"scheme": "sp", "search": {"lr": {"log2": [-9, -4]}, "gamma0": {"log2": [-1, 1]}}}, "search.gamma0", "as it is"),  # noqa: E501
        ({"run": {"lr": 0.1}}, "search.lr", "also set in run"),
        ({"run": {"optimizer": "sgd"}, "search": {"lr": {"log2": [-9, -4]}, "beta2": {"log2": [-9, -4]}}}, "search.beta2", "not used by sgd"),  # noqa: E501
        ({"search": {"lr": {"log2": [-9, -4]}, "momentum": {"from": 0.5, "to": 1.5}}, "run": {"optimizer": "sgd"}}, "search.momentum", "must be < 1"),  # noqa: E501
        ({"search": {"lr": {"log2": [-9, -4]}, "warmup": {"from": 0.0, "to": 1.0}}}, "search.warmup", "fraction"),  # noqa: E501
        ({"search": {"lr": {"log2": [-9, 400]}}}, "search.lr", "+-300"),
        ({"search": {"lr": [0.1, 0.2]}}, "search.lr", "{ log2 = [low, high] }"),
        ({"scheme": "mupp"}, "scheme", "mupp"),
        ({"metric": "test_loss", "run": {"eval_examples": 0}}, "metric", "test examples"),
        ({"target": [512, 3, 4]}, "target", "[width, depth]"),
        ({"run": {"model": "resnet"}, "base": [64, 4]}, "base", "multiple of 3"),
        ({"run": {"model": "resnet"}, "target": [64, 4]}, "target", "multiple of 3"),
        ({"run": {"model": "mpl"}}, "run.model", "nearest 'mlp'"),
        ({"run": {"steps": "many"}}, "run.steps", "got 'many'"),
    ],
)  # fmt: skip
def test_each_fault_has_its_path(changes, path, words):
    found = faults_of(**changes)
    assert path in found and words in found[path], found


@pytest.mark.parametrize(
    ("base", "target", "given", "size"),
    [
        ([64, 3], [512, 3], "auto", (128, 3)),
        ([64, 3], [256, 3], "auto", (128, 3)),  # four times: a second size is still half of it
        ([64, 3], [192, 9], "auto", (64, 3)),  # nothing grows fourfold
        ([64, 3], [64, 24], "auto", (64, 6)),
        ([64, 3], [512, 24], "auto", (128, 6)),
        ([64, 3], [512, 3], "base", (64, 3)),
        ([64, 3], [512, 3], [256, 3], (256, 3)),
    ],
)
def test_where_finalists_are_compared(base, target, given, size):
    assert read({**GOOD, "base": base, "target": target, "final_size": given}).final_size == size


@pytest.mark.parametrize("given", ["large", [64], [0, 3], 128])
def test_a_final_size_that_is_none(given):
    found = faults_of(final_size=given)
    assert list(found) == ["final_size"] and "'auto', 'base' or a size" in found["final_size"]


def test_a_final_size_that_the_model_does_not_take():
    found = faults_of(run={"model": "resnet"}, final_size=[64, 4])
    assert "multiple of 3" in found["final_size"]


def test_multipliers_by_role_are_axes():
    changes = {"search": {"lr": {"log2": [-9, -4]}, "roles.input.lr": {"log2": [-2, 2]}}}
    assert read({**GOOD, **changes}).space.axes[1].name == "roles.input.lr"
    assert any(
        "roles.inputs.lr" in path + law for path, law in faults_of(search={"roles.inputs.lr": {}}).items()
    )


def test_batch_and_tokens_need_a_rule():
    from trimtab.tuning.validation import horizon_is_there

    target = {"width": 512, "depth": 3, "batch": 4.0}
    if horizon_is_there():
        assert read({**GOOD, "target": target}).target.batch == 4
    else:
        assert "not in this version" in faults_of(target=target)["target"]


def test_a_run_gets_what_was_searched():
    search = {
        "lr": {"log2": [-10, -4]},
        "beta2": {"log2": [-8, -4]},
        "warmup": {"from": 0.0, "to": 0.5},
        "weight_decay": {"from": 0.0, "to": 0.2},
    }
    made = read({**GOOD, "run": {"optimizer": "adamw", "steps": 200, "betas": [0.8, 0.9]}, "search": search})
    run = made.at(made.space.values((0.5, 0.5, 0.5, 1.0)), (128, 3), 7)
    assert (run.lr, run.betas, run.warmup, run.weight_decay) == (2.0**-7, (0.8, 1 - 2.0**-6), 50, 0.2)
    assert (run.width, run.base, run.seed, run.scheme) == (128, (64, 3), 7, "depth-mup")


def test_without_a_search_more_than_the_rate_is_tuned():
    made = read({"base": [64, 3], "target": [512, 3], "run": {"optimizer": "adamw"}})
    assert {"lr", "gamma0"} <= {axis.name for axis in made.space.axes}
