"""Every script and notebook of examples/ runs as a user runs it and says what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hanging import HANGS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NEEDS = {"huggingface_llama": "transformers", "theory_vs_network": "plotly"}
SMALL = {
    "tune_small_train_big": ["--steps", "30", "--width", "128", "--depth", "4"],
    "your_own_model": [],
    "huggingface_llama": ["--steps", "3", "--rates", "0.002", "0.004", "--save", "saved"],
    "vit_cifar10": ["--steps", "4", "--px", "8", "--rates", "0.002", "0.004"],
    "theory_vs_network": ["--widths", "16", "64", "--seeds", "4", "--samples", "2000", "-o", "page.html"],
}
SAID = {
    "tune_small_train_big": r"128 wide, 4 blocks, the same lr through trimtab: loss \d",
    "your_own_model": r"(?s)proof by one step: good.*with trimtab: +PASS.*as it is: +FAIL",
    "huggingface_llama": r"256 wide, 8 blocks, lr \S+ through trimtab: loss \d.*\nsaved to saved",
    "vit_cifar10": r"128 wide, 6 blocks, lr \S+, completep: loss \d",
    "theory_vs_network": r"width +64: loss \d.*\nwrote page.html",
}


def test_each_is_tried():
    assert set(SMALL) == set(SAID) == {p.stem for p in EXAMPLES.glob("*.py")} - {"figure"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_it_runs(name, tmp_path):
    pytest.importorskip(NEEDS.get(name, "torch"), reason=f"{NEEDS.get(name)} is not installed")
    if name == "vit_cifar10" and "TRIMTAB_DATA" not in os.environ:
        pytest.skip("CIFAR-10 is not here: TRIMTAB_DATA is not set")
    command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / f"{name}.py"), *SMALL[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    assert re.search(SAID[name], done.stdout), done.stdout


NOTEBOOKS = {
    "your_model": ["good\n", "FAIL\n", "PASS\n", "mixes parameters", "HorizonFactors(lr=0.5"],
    "theory": ["depth  inf: 2.06090", "features are learned", "depth infinite: 0."],
}


def outputs(notebook):
    return "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_says_what_it_is_kept_with(name, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(EXAMPLES / "notebooks" / f"{name}.ipynb", 4)
    kept = outputs(notebook)
    options = dict(timeout=HANGS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.NotebookClient(notebook, **options).execute()
    for words in NOTEBOOKS[name]:
        assert words in kept and words in outputs(notebook), words
