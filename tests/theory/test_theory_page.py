"""docs/theory.md and the code cite each other: every equation cited is on the page, every function named
exists.

Paths are read from the page, so moving a file means moving its name there and nothing here.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "theory.md"
FOLDERS = ("trimtab", "tests", "experiments", "benchmarks", "examples", "docs")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
EQUATION = re.compile(r"^### Equation \((\d+)\): .+$", re.MULTILINE)
CITED = re.compile(r"docs/theory\.md, equations? (\(\d+\)(?:(?:, | and | to )\(\d+\))*)")
NAMED = re.compile(r"\[`(\S+\.py):([\w.]+)`\]\(\.\./(\S+?)\)")


def texts() -> dict[str, str]:
    """The project's files but for the page and this test, each on one line and without comment signs."""
    found = [
        p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".toml")
    ]
    found += [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    kept = (p for p in found if p not in (PAGE, Path(__file__).resolve()))
    return {
        str(p.relative_to(ROOT)): re.sub(r"\s*\n\s*#?\s*", " ", p.read_text(encoding="utf-8")) for p in kept
    }


def numbers(citation: str) -> set[int]:
    """The equations of "(1), (4) to (6) and (9)".

    >>> sorted(numbers("(1), (4) to (6) and (9)"))
    [1, 4, 5, 6, 9]
    """
    parts = re.findall(r"(to )?\((\d+)\)", citation)
    found: list[int] = []
    for to, n in parts:
        found += range(found[-1] + 1, int(n) + 1) if to else [int(n)]
    return set(found)


def sections() -> dict[int, str]:
    """The page's text under each equation's heading."""
    page = PAGE.read_text(encoding="utf-8")
    starts = [(int(m[1]), m.end()) for m in EQUATION.finditer(page)]
    assert starts, "no heading of docs/theory.md reads '### Equation (n): ...'"
    assert [n for n, _ in starts] == list(range(1, len(starts) + 1)), "equations are numbered from 1 in order"
    ends = [m.start() for m in HEADING.finditer(page)] + [len(page)]
    return {n: page[start : min(e for e in ends if e >= start)] for n, start in starts}


def defined(path: Path) -> set[str]:
    """Names a module defines: functions, classes, constants, and Class.method."""

    def of(body: list[ast.stmt], prefix: str) -> set[str]:
        found = set()
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                found |= of(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found |= {prefix + t.id for t in targets if isinstance(t, ast.Name)}
        return found

    return of(ast.parse(path.read_text(encoding="utf-8")).body, "")


def test_every_cited_equation_is_on_the_page():
    known, faults, cited = sections().keys(), [], 0
    for name, text in texts().items():
        found = CITED.findall(text)
        cited += len(found)
        faults += [f"{name} cites equation ({n})" for c in found for n in numbers(c) if n not in known]
        if len(found) != text.count("docs/theory.md, equation"):
            faults.append(f"{name} has a citation that is not of the form 'docs/theory.md, equation (n)'")
    assert not faults, f"docs/theory.md has equations (1) to ({max(known)}): {faults}"
    assert cited > 40


def test_every_cited_heading_is_on_the_page():
    headings = HEADING.findall(PAGE.read_text(encoding="utf-8"))
    cited = [
        (name, title)
        for name, text in texts().items()
        for title in re.findall(r'docs/theory\.md, "([^"]+)"', text)
    ]
    assert cited
    assert [c for c in cited if c[1] not in headings] == []


@pytest.mark.parametrize("number", sections())
def test_an_equation_names_its_source_and_code_that_exists(number):
    text = sections()[number]
    assert re.search(r"^- Source: ", text, re.MULTILINE), f"equation ({number}) has no line '- Source: ...'"
    named = NAMED.findall(text.partition("\n- Code: ")[2])
    assert named, f"equation ({number}) has no line '- Code: [`path.py:function`](../path.py)'"
    for path, name, link in named:
        assert path == link and (ROOT / path).is_file(), f"equation ({number}): no file {path} (link: {link})"
        assert name in defined(ROOT / path), f"equation ({number}): {path} defines no {name}"


def test_every_file_the_page_names_cites_it_back():
    wanted: dict[str, set[int]] = {}
    for number, text in sections().items():
        for path, _, _ in NAMED.findall(text):
            wanted.setdefault(path, set()).add(number)
    every, missing = texts(), []
    for path, equations in wanted.items():
        cited = {n for c in CITED.findall(every[path]) for n in numbers(c)}
        missing += [f"{path}: equation ({n})" for n in sorted(equations - cited)]
    assert not missing, f"the code that implements an equation cites it: {missing}"


def test_links_of_the_page_lead_somewhere():
    page = PAGE.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in HEADING.findall(page)}
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page)
    assert links
    assert [p for p, _ in links if p and not (PAGE.parent / p).is_file()] == []
    assert [a for p, a in links if not p and a not in anchors] == []


def test_nothing_cites_a_page_that_is_not_here():
    absent = "THE" + "ORY"  # the name of notes kept elsewhere
    assert [name for name, text in texts().items() if re.search(rf"\b{absent}\b", text)] == []
    assert not re.search(rf"\b{absent}\b", PAGE.read_text(encoding="utf-8"))
