"""Errors that say the law, the values and the next step.

Every refusal in trimtab is a `TrimtabError`. The command line turns any of them
into a message without a traceback and exit code 2.

A check that can find several faults collects them as `Fault` records; their text is made once, in `faults`.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LIBRARIES = (Path(__file__).parent, *(Path(sysconfig.get_path(k)) for k in ("stdlib", "purelib", "platlib")))


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with what the user gave.

    Attributes:
        path: where, as the user wrote it: a dotted key such as "run.lr"; "" where there is no one place.
        law: the rule that is broken.
        got: the values seen, as text.
        next_step: what to do about it.

    >>> print(Fault("width", "must be divisible by heads", "width 30, heads 4", "pass model_options.heads"))
    width: must be divisible by heads: got width 30, heads 4; pass model_options.heads
    """

    path: str
    law: str
    got: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        seen = f": got {self.got}" if self.got else ""
        return f"{place}{self.law}{seen}{f'; {self.next_step}' if self.next_step else ''}"


class TrimtabError(Exception):
    """Base of all errors trimtab raises on purpose."""


class InputError(TrimtabError, ValueError):
    """An argument breaks a law that could be checked before any work; `faults` has the single ones.

    `suggestion`: overrides that settle it, where there are such.
    """

    def __init__(self, text: str, faults: Sequence[Fault] = (), suggestion: Mapping[str, Any] | None = None):
        super().__init__(text)
        self.faults = tuple(faults)
        self.suggestion = None if suggestion is None else dict(suggestion)

    def __reduce__(self) -> tuple[object, ...]:  # exceptions are pickled by their text alone
        return type(self), (str(self), self.faults, self.suggestion)


def raised(error: BaseException, *, short: bool = False) -> str:
    """What the user's code raised: the error's name and words, and the user's own line that led to it.

    An `assert` has no words of its own: its line stands for them. `short`: of many lines of words the first.

    >>> raised(KeyError("width"))
    "KeyError: 'width'"
    >>> raised(AssertionError())
    'AssertionError'
    """
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own_file(frame.filename)]
    words = str(error).strip() or (own[-1].line if own else "")
    if short:
        words = (words or "").partition("\n")[0][:200]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{place}"


def is_own_file(name: str) -> bool:
    """Whether a file named in a traceback is the user's: not trimtab's, Python's or a package's."""
    return Path(name).is_file() and not any(Path(name).is_relative_to(folder) for folder in LIBRARIES)


@contextmanager
def calling(what: str) -> Generator[None]:
    """Around a call of the user's own function: what it raises is said with its name; refusals pass.

    >>> with calling("build(8, 2)"):
    ...     raise KeyError("width")
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: build(8, 2) raised KeyError: 'width'.
    """
    try:
        yield
    except TrimtabError:
        raise
    except Exception as error:
        raise InputError(f"{what} raised {raised(error)}.") from error


Proposal = Mapping[str, Any]  # what a user could pass as overrides=


def together(proposals: Sequence[Sequence[Proposal]]) -> list[dict[str, Any]]:
    """One proposal for all problems at once: the first of each, the second of each, and so on.

    Args:
        proposals: those of each problem; where one has none, nothing settles them all.

    >>> together([[{"a": 1}, {"a": 2}], [{"b": 3}]])
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    if not all(proposals):
        return []
    most = max((len(own) for own in proposals), default=0)
    return [{k: v for own in proposals for k, v in own[min(i, len(own) - 1)].items()} for i in range(most)]


class StructureError(TrimtabError):
    """What the model computes could not be told, or not be proven by numbers.

    Attributes:
        proposals: overrides that might settle it, as the place that raises it sees them; not tried yet.
        suggestion: overrides that were tried and hold by one step, to be passed as `overrides=`; None where
            none of the proposals did.
        scheme: the name of a scheme that was tried and plans what this one refuses, claiming less; else None.
    """

    def __init__(self, text: str, proposals: Sequence[Proposal] = ()):
        super().__init__(text)
        self.proposals = tuple(proposals)
        self.suggestion: dict[str, Any] | None = None
        self.scheme: str | None = None

    def __reduce__(self) -> tuple[object, ...]:  # exceptions are pickled by their text alone
        found = {"suggestion": self.suggestion, "scheme": self.scheme}
        return type(self), (str(self), self.proposals), found


class ExampleError(StructureError):
    """The model's own forward raised on the example."""


class LawError(StructureError):
    """The law the weights were drawn from could not be told from this draw; another draw may tell."""


class OptimizerError(TrimtabError):
    """The optimizer does not fold, is not known, or has lost its factors."""


def faults(title: str, problems: Sequence[Fault | str]) -> InputError:
    """One error for all faults found, so that the user fixes them in one go.

    >>> print(faults("2 faults in sweep.toml", [Fault("lr", "must be > 0"), "depth: must be >= 1"]))
    2 faults in sweep.toml
      - lr: must be > 0
      - depth: must be >= 1
    """
    records = [Fault("", problem) if isinstance(problem, str) else problem for problem in problems]
    said: set[str] = set()
    lines = [title]
    for record in records:  # a list of what is known is read once
        again = record.next_step in said and record.next_step.startswith("known: ")
        lines.append(f"  - {replace(record, next_step='') if again else record}")
        said.add(record.next_step)
    return InputError("\n".join(lines), records)


def faults_in(what: str, problems: Sequence[Fault | str]) -> InputError:
    """`faults`, titled with how many there are.

    >>> print(faults_in("run.toml", [Fault("lr", "must be > 0", "-1")]))
    1 fault in run.toml
      - lr: must be > 0: got -1
    """
    return faults(f"{len(problems)} fault{'s' if len(problems) != 1 else ''} in {what}", problems)
