"""Advice is executed: overrides that an error proposes are tried before the user reads them.

What cannot be told is refused with proposals (`errors.StructureError.proposals`). Each is planned and proven
by one step on the models as they are, nothing of them changed; a trial that meets a further refusal goes on
with what that one proposes. Only overrides under which a first step holds become `error.suggestion`. Where
none does, the scheme that claims nothing over depth is tried: it becomes `error.scheme`.
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
    "numbers that differ the same in both models."
)
WIDTH_ONLY = "mup"  # scales width alone


def advised(
    error: StructureError,
    given: Mapping[str, Any] | None,
    verdict: Verdict,
    width_only: Callable[[], object] | None,
) -> StructureError:
    """The same refusal with what was found by trying.

    Args:
        given: the overrides that the user passed; a suggestion holds them too.
        verdict: makes a plan with overrides and proves it; raises where there is none.
        width_only: makes the plan that claims nothing over depth; raises where there is none either. None
            where the user asked for such a scheme.
    """
    found = _first_that_holds(error, dict(given or {}), verdict)
    works = not found and width_only is not None and _works(width_only)
    if not found and not works and not error.proposals:
        return error
    lines = [str(error)]
    if found:
        lines.append(f"Pass overrides={found}: tried, and a first step holds.")
    elif error.proposals:
        lines.append(NONE_HOLDS)
    if works:
        lines.append(
            f'Or pass scheme="{WIDTH_ONLY}": tried; it carries the width over and leaves depth alone.'
        )
    new = type(error)("\n".join(lines), error.proposals)
    new.suggestion, new.scheme = found, WIDTH_ONLY if works else None
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
