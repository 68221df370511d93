"""Advice is executed: overrides that an error proposes are tried before the user reads them.

What cannot be told is refused with proposals (`errors.StructureError.proposals`). Each is planned and proven
by one step on the models as they are, nothing of them changed; a trial that meets a further refusal goes on
with what that one proposes. Only overrides under which a first step holds become `error.suggestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.errors import InputError, StructureError, TrimtabError

TRIALS = 8  # plans made for one refusal
ROUNDS = 3  # refusals on the way of one trial

Verdict = Callable[[dict[str, Any]], str]  # overrides -> of the proof of the plan they make

NONE_HOLDS = (
    "No override was found under which a first step changes the network alike at both sizes. Keep the "
    "numbers that differ the same in both models"
)
WIDTH_ONLY = ', or use scheme="mup", which claims nothing over depth'


def advised(
    error: StructureError, given: Mapping[str, Any] | None, verdict: Verdict, width_only: Callable[[], object]
) -> StructureError:
    """The same refusal with what was found by trying.

    Args:
        given: the overrides that the user passed; a suggestion holds them too.
        verdict: makes a plan with overrides and proves it; raises where there is none.
        width_only: makes the plan that claims nothing over depth; raises where there is none either.
    """
    if not error.proposals:
        return error
    found = _first_that_holds(error, dict(given or {}), verdict)
    if found:
        text = f"{error}\nPass overrides={found}: tried, and a first step holds."
    else:
        text = f"{error}\n{NONE_HOLDS}{WIDTH_ONLY if _works(width_only) else ''}."
    new = type(error)(text, error.proposals)
    new.suggestion = found
    return new


def _works(plan: Callable[[], object]) -> bool:
    try:
        plan()
    except TrimtabError:
        return False
    return True


def _first_that_holds(
    error: StructureError, given: dict[str, Any], verdict: Verdict
) -> dict[str, Any] | None:
    queue = [({**given, **proposal}, 1) for proposal in error.proposals]
    seen: list[dict[str, Any]] = [given]
    while queue and len(seen) <= TRIALS:
        overrides, rounds = queue.pop(0)
        if overrides in seen:
            continue
        seen.append(overrides)
        try:
            if verdict(overrides) in ("good", "far from its limit", "untested"):
                return overrides
        except StructureError as further:
            if rounds < ROUNDS:
                queue = [({**overrides, **p}, rounds + 1) for p in further.proposals] + queue
        except (InputError, TrimtabError):
            continue
    return None
