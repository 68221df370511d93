"""What README.md and the pages of docs/ show runs as it is written there.

A page is one story: its ```python blocks run in order, in one namespace and one folder. What a block needs
and a reader need not see stands before it in the page's source, in a comment `<!-- setup ... -->`. Lines of a
```console block that begin with "$ " are run as commands. A block without a language is output, or command
lines with words beside them: those that begin with "trimtab " must be command lines that parse. A block after
`<!-- slow -->` runs with the slow tests.
"""

import re
import shlex
from pathlib import Path

import pytest

from trimtab import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PART = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->|<!-- (?P<slow>slow) -->|```(?P<kind>\w*)\n(?P<body>.*?)```", re.DOTALL
)
NEEDS = {"migrating.md": ("mup",)}  # packages that a page is about
MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
    def forward(self, h):
        return h + self.fc(torch.relu(h))
def build(width, depth):
    return nn.Sequential(nn.Linear(8, width), *(Block(width) for _ in range(depth)), nn.Linear(width, 4))
def example():
    return torch.randn(4, 8)
"""


def parts(page):
    """(kind, text, slow) of what a page shows: setup, python and console."""
    found, slow = [], False
    for match in PART.finditer(page.read_text(encoding="utf-8")):
        if match["slow"]:
            slow = True
        elif match["setup"]:
            found.append(("setup", match["setup"], False))
        else:
            found.append((match["kind"], match["body"], slow))
            slow = False
    return found


def stories(kinds):
    return [page for page in PAGES if any(kind in kinds for kind, _, _ in parts(page))]


def tell(page, slow):
    space = {"__name__": "page", "MODEL": MODEL}
    for kind, text, takes_long in parts(page):
        if takes_long and not slow:
            continue
        if kind in ("setup", "python"):
            exec(compile(text, page.name, "exec"), space)
        elif kind == "console":
            for line in text.splitlines():
                if line.startswith("$ trimtab "):
                    assert cli.main(shlex.split(line)[2:]) == 0, line


@pytest.mark.parametrize("page", stories(("python", "console")), ids=lambda page: page.name)
def test_the_code_runs_as_written(page, capsys, tmp_path, monkeypatch):
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    tell(page, slow=False)
    if page.name in ("README.md", "start.md"):
        assert "readout" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(slow for *_, slow in parts(page))], ids=lambda page: page.name
)
def test_slow_code_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tell(page, slow=True)


def command_lines():
    """(page, line) of commands in blocks without a language; words after two blanks or # are left out."""
    for page in PAGES:
        for kind, text, _ in parts(page):
            for line in text.splitlines() if kind in ("", "console") else []:
                if re.match(r"(\$ )?trimtab [a-z]", line):
                    line = re.sub(r"^\$ ", "", line)
                    line = re.sub(r"^(trimtab \w+) +", r"\1 ", line)
                    yield page.name, re.split(r" {2,}| # ", line)[0]


@pytest.mark.parametrize(("page", "line"), list(command_lines()))
def test_command_lines_parse(page, line, monkeypatch):
    ran = []
    for kind in cli.COMMANDS:
        monkeypatch.setattr(kind, "run", lambda self: ran.append(self) or 0)
    if "|" in line:
        pytest.skip("a choice of commands")
    assert cli.main(shlex.split(line)[1:]) == 0 and len(ran) == 1


def test_there_is_code():
    python = [text for page in PAGES for kind, text, _ in parts(page) if kind == "python"]
    assert len(python) >= 12 and len(list(command_lines())) >= 12
    assert sum("import" in text for kind, text, _ in parts(ROOT / "README.md") if kind == "python") >= 2


LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, _ in LINK.findall(text):
        assert not target or (page.parent / target).exists(), target
