"""A tune whose processes are killed gives the answer of one that is left alone, bit for bit.

The kills come at events: a process that has reached a step of a run waits there to be killed (GATED). Twenty
kills at random moments: experiments/tune_kills.py.
"""

import subprocess

import pytest
from crashing import GATED, gone, kill, results, same, start, until, write
from hanging import HANGS

pytestmark = pytest.mark.slow

TUNE = dict(
    base=[8, 2],
    target=[32, 2],
    trials=6,
    per_round=3,
    seeds=2,
    finalists=2,
    final_seeds=2,
    run=dict(data="batches.py:rows", optimizer="adamw", batch_size=16, steps=30, eval_examples=0),
    search={"lr": dict(log2=[-8, -3])},
    budget={"checkpoint_seconds": 1e-3},
)


def made(folder):
    folder.mkdir()
    (folder / "batches.py").write_text(GATED)
    return write(folder, TUNE)


def begin(path, **gates):
    return start(path, gates=gates, command=("tune", "--json"), stderr=subprocess.DEVNULL)


def test_a_command_killed_in_the_search_and_a_worker_among_the_finalists(tmp_path):
    """Seed 0 is one of the search at the base, seed 2 of the finalists' at the larger size."""
    calm, torn = made(tmp_path / "calm"), made(tmp_path / "torn")
    answer = begin(calm).communicate(timeout=HANGS)[0]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    command = begin(torn, HOLD=first, HOLD_SEED=0)
    until((first / "20").exists)
    assert kill(command.pid)
    command.communicate(timeout=HANGS)
    assert gone(torn.with_suffix(".db"))
    command = begin(torn, HOLD=second, HOLD_SEED=2)
    until((second / "20").exists)
    assert kill(int((second / "20").read_text()))
    said = command.communicate(timeout=HANGS)[0]
    assert command.returncode == 0 and '"best"' in answer
    assert said.replace(str(torn.parent), str(calm.parent)) == answer  # the snippet names the folder
    same(results(torn.with_suffix(".db")), results(calm.with_suffix(".db")))
