"""The picture of the layers is the contract's, and the walks of docs/architecture.md go down it and name what
exists."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = re.findall(r"<!-- walk: (\w+) -->\n(.*?)(?=\n## |\Z)", PAGE, flags=re.S)


def drawing():
    spec = importlib.util.spec_from_file_location("layers", ROOT / "experiments" / "layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(walk: str) -> list[tuple[str, str]]:
    return re.findall(r"`(trimtab/[\w/]+\.py):([\w.]+)`", walk)


def test_the_picture_is_drawn_from_the_contract():
    draw = drawing()
    assert draw.PICTURE.read_text() == draw.picture(), "run python experiments/layers.py"


def test_at_most_fourteen_layers_and_no_exemption():
    assert len(drawing().layers()) <= 14
    assert "ignore_imports" not in (ROOT / "pyproject.toml").read_text()
    assert len(list((ROOT / "trimtab").glob("*.py"))) <= 9


@pytest.mark.parametrize(("name", "walk"), WALKS, ids=[name for name, _ in WALKS])
def test_walks_name_what_exists_and_go_down(name, walk):
    found = steps(walk)
    assert len(found) >= 5
    for path, what in found:
        body = ast.parse((ROOT / path).read_text()).body
        defined = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert what.split(".")[0] in defined, (path, what)
    height = {package: i for i, names in enumerate(drawing().layers()) for package in names}
    heights = [height[Path(path).parts[1].removesuffix(".py")] for path, _ in found]
    assert heights == sorted(heights), [path for path, _ in found]
