"""The public surface is frozen: names, argument order and defaults as in tests/api.txt. Pages made from the
code are current."""

import importlib.util
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_surface_is_the_one_that_was_promised(generate):
    wanted = (ROOT / "tests" / "api.txt").read_text(encoding="utf-8").splitlines()
    found = generate.surface().splitlines()
    gone, new = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    assert not gone and not new, (
        f"gone or changed: {gone}; new: {new}. CONTRIBUTING.md says how the surface may change; "
        "then run python docs/generate.py"
    )


@pytest.mark.parametrize("page", ["api", "rules"])
def test_generated_pages_are_current(generate, page):
    held = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert held == getattr(generate, page)(), "run python docs/generate.py"


def test_a_package_index_shows_all_of_the_readme(generate):
    """An index has none of the repository's files: no link and no picture may need one."""
    held = (ROOT / "PACKAGE.md").read_text(encoding="utf-8")
    assert held == generate.package(generate.repository()), "run python docs/generate.py"
    assert 'readme = "PACKAGE.md"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for text in (held, generate.package("https://host/us/it")):
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)]*)\)", prose))
    there = generate.package("https://host/us/it")
    assert "](https://host/us/it/raw/HEAD/docs/demo.svg)" in there and "/blob/HEAD/docs/howto.md" in there


def test_the_drawn_picture_has_the_optima_of_the_svg(generate):
    lines = generate.drawing(ROOT / "docs" / "demo.svg").splitlines()
    ticks = lines[1].split()
    low, at = int(ticks[0]), lines[1].index(ticks[0]) + 1
    said = re.findall(r"<title>(\w+ \d+): best rate ([\d.e-]+)", (ROOT / "docs" / "demo.svg").read_text())
    plain = dict(reversed(said))  # the first of each size
    assert len(lines) == 2 + len(plain)
    for line in lines[2:]:
        size = " ".join(line.split()[:2])
        assert abs(low + (line.index("O") - at) / generate.OCTAVE - math.log2(float(plain[size]))) <= 0.101


def test_every_public_name_has_words(generate):
    import inspect

    bare = [name for name, value in generate.names().items() if not inspect.getdoc(value)]
    assert not bare


def test_the_rules_page_has_the_known_powers(generate):
    """muP under Adam: hidden lr 1/N; CompleteP: branch init 1/L in the tail; standard: nothing."""
    page = generate.rules()
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert "| hidden | branch | N^-0.5 | N^-1 |" in sections["mup, AdamW"]
    rows = [line for line in sections["completep, AdamW"].splitlines() if line.startswith("| hidden | tail")]
    assert rows and "N^-0.5 L^-1" in rows[0]
    numbers = [
        line.split("|")[3:5] for line in sections["sp, AdamW"].splitlines() if line.startswith("| hid")
    ]
    assert numbers and all("L" not in "".join(cells) for cells in numbers)
