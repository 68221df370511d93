"""Each law stands once: no two places of the package share six lines, to the letter or by shape (names, texts
and numbers left out), but for those listed here with their reason.

Blank lines, comments, docstrings, imports and lone brackets do not count. By shape only logic counts, because
declarations are alike by nature: what stands outside functions, the parameters of a function, and lines of
`key=value` or `"key": value` in the making of a record.
"""

import ast
import functools
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "trimtab"
LINES = 6  # that two places may not share
SOLVERS = "each solver spells out its public arguments, alike; what they mean is checked once, in problem"

# {(place, place): why both are there}; a place is a file and the function that the shared lines begin in
SAME_LETTERS = {
    ("parametrization/result.py:groups", "parametrization/result.py:optimizer"): (
        "one public signature: optimizer() is groups() and the class called on them"
    ),
    ("refinement/sweeping.py:sweep", "sweeps/driver.py:sweep"): (
        "one signature: trimtab.sweep hands a whole grid on to the driver's"
    ),
    ("theory/deeplinear.py:linear", "theory/dmft.py:solve"): SOLVERS,
    ("theory/deeplinear.py:linear", "theory/finite.py:simulate"): SOLVERS,
    ("theory/deeplinear.py:linear", "theory/problem.py:problem"): SOLVERS,
    ("theory/dmft.py:solve", "theory/finite.py:simulate"): SOLVERS,
    ("theory/dmft.py:solve", "theory/problem.py:problem"): SOLVERS,
    ("theory/finite.py:simulate", "theory/problem.py:problem"): SOLVERS,
}
REFUSALS = "two refusals: each has its own sentence and the roles to propose; Twins.refused makes the error"
SAME_SHAPE = {
    (
        "parametrization/comparison/ratios.py:_contracted",
        "parametrization/comparison/ratios.py:_refuse_copies",
    ): REFUSALS,
    (
        "parametrization/comparison/ratios.py:_contracted",
        "parametrization/comparison/ratios.py:_elementwise",
    ): REFUSALS,
}

Lines = list[tuple[int, str | None]]  # (number, text); None: a line that is no part of any run


class Source:
    """The lines of a file that count."""

    def __init__(self, text: str):
        self.tree = ast.parse(text)
        nodes = list(ast.walk(self.tree))
        self.scopes = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]  # outermost first
        self.words = _words(text)
        skipped = _lines_of(n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) or _is_text(n))
        held = {n: words for n, words in self.words.items() if n not in skipped}
        self.counted = [
            n for n, words in sorted(held.items()) if any(w[0].isalnum() or w[0] in "_\"'" for w in words)
        ]
        values = [k for n in nodes if isinstance(n, ast.Call) for k in n.keywords if k.arg]
        values += [k for n in nodes if isinstance(n, ast.Dict) for k in n.keys if k is not None]
        starts = text.splitlines()
        keyed = {v.lineno for v in values if not starts[v.lineno - 1][: v.col_offset].strip()}
        bodies = _lines_of(part for n in nodes if isinstance(n, ast.FunctionDef) for part in n.body)
        heads = {
            line
            for n in nodes
            if isinstance(n, ast.FunctionDef)
            for line in range(n.lineno, n.body[0].lineno)
        }
        self.logic = bodies - heads - keyed

    def letters(self) -> Lines:
        return [(n, " ".join(self.words[n])) for n in self.counted]

    def shapes(self) -> Lines:
        lines = [(n, " ".join(map(_shape, self.words[n]))) for n in self.counted]
        return [(n, shape if n in self.logic else None) for n, shape in lines]

    def scope(self, line: int) -> str:
        """The innermost function or class that a line is in."""
        around = [n.name for n in self.scopes if n.lineno <= line <= n.end_lineno]
        return f":{around[-1]}" if around else ""


def _is_text(node: ast.AST) -> bool:
    """A docstring, or one beside a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _lines_of(nodes) -> set[int]:
    placed = [n for n in nodes if hasattr(n, "lineno")]
    return {line for n in placed for line in range(n.lineno, n.end_lineno + 1)}


def _words(text: str) -> dict[int, list[str]]:
    """{line: its tokens}, comments left out; a text over several lines stands in its first."""
    found: dict[int, list[str]] = defaultdict(list)
    opened, begun = 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        opened += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if kind == "FSTRING_START" and opened == 1:
            begun = token.start[0]
            found[begun].append("")
        if (
            opened or kind == "FSTRING_END"
        ):  # before Python 3.12 an f-string is one token: here it is one word
            found[begun][-1] += token.string
        elif token.string.strip() and kind != "COMMENT":
            found[token.start[0]].append(token.string)
    return found


def _shape(word: str) -> str:
    if keyword.iskeyword(word) or not (word[0].isalnum() or word[0] in "_\"'"):
        return word
    return "0" if word[0].isdigit() else "name" if word.isidentifier() else "text"


def runs(sequences: Mapping[str, Lines]) -> list[tuple[tuple[str, int], tuple[str, int], int]]:
    """Runs of LINES or more equal lines in two places: (file, first line) twice, and how many lines."""
    windows = defaultdict(list)
    for name, lines in sequences.items():
        for i in range(len(lines) - LINES + 1):
            window = tuple(text for _, text in lines[i : i + LINES])
            if None not in window:
                windows[window].append((name, i))
    pairs = {
        (a, b)
        for places in windows.values()
        for k, a in enumerate(places)
        for b in places[k + 1 :]
        if a[0] != b[0] or b[1] - a[1] >= LINES
    }
    found = []
    for a, b in sorted(pairs):
        if ((a[0], a[1] - 1), (b[0], b[1] - 1)) in pairs:
            continue
        more = 0
        while ((a[0], a[1] + more + 1), (b[0], b[1] + more + 1)) in pairs:
            more += 1
        found.append(((a[0], sequences[a[0]][a[1]][0]), (b[0], sequences[b[0]][b[1]][0]), LINES + more))
    return found


@functools.cache
def package() -> dict[str, Source]:
    return {p.relative_to(ROOT).as_posix(): Source(p.read_text()) for p in sorted(ROOT.rglob("*.py"))}


def repetitions(sources: Mapping[str, Source], kind: str) -> dict[tuple[str, str], str]:
    """{(place, place): where the lines are}."""
    found = {}
    for (one, i), (two, j), lines in runs({name: getattr(s, kind)() for name, s in sources.items()}):
        key = (one + sources[one].scope(i), two + sources[two].scope(j))
        found[key] = f"{one}:{i} and {two}:{j} share {lines} lines"
    return found


@pytest.mark.parametrize(("kind", "explained"), [("letters", SAME_LETTERS), ("shapes", SAME_SHAPE)])
def test_no_six_lines_stand_twice_unexplained(kind, explained):
    found = repetitions(package(), kind)
    new = [where for places, where in found.items() if places not in explained]
    assert not new, (
        "merge them into the lower layer, or say here in one line why both are there: " + "; ".join(new)
    )
    assert explained.keys() <= found.keys(), "explanations of what is no longer there"


COPIED = """
def first(values, limit):
    kept = []
    for value in values:
        if value is None or value > limit:
            continue
        kept.append(value / limit)
    total = sum(kept)
    return total / len(kept)
"""
RENAMED = (
    COPIED.replace("first", "second")
    .replace("value", "entry")
    .replace("kept", "rest")
    .replace("limit", "top")
)


@pytest.mark.parametrize(
    ("kind", "text", "seen"),
    [
        ("letters", COPIED, True),
        ("letters", RENAMED, False),
        ("shapes", RENAMED, True),
        ("shapes", "x = 1\n", False),
    ],
)
def test_a_planted_copy_is_seen(kind, text, seen):
    sources = {"a.py": Source(COPIED), "b.py": Source("import math\n\n" + text)}
    found = repetitions(sources, kind)
    assert [*found] == ([("a.py:first", f"b.py:{'second' if 'second' in text else 'first'}")] if seen else [])
