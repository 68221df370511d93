"""`trimtab tune`: search at base size, print what to use at target size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.commands.options import Positional, Text
from trimtab.errors import InputError

if TYPE_CHECKING:
    from trimtab.tuning.result import Tuned
    from trimtab.tuning.sensitivity import Sensitivity


@dataclasses.dataclass
class Tune:
    """Tune small, train big: search at base size, say what to set at target size. Run again, it goes on."""

    config: Positional[str]
    """tune.toml: `trimtab new --tune tune.toml` writes one with every key explained."""
    store: Text = None
    """The SQLite file of the runs; default: beside the file, as tune.db."""
    snippet: Text = None
    """Also write the Python text to this file, which must not be there yet."""
    workers: int = 2
    """Processes."""
    threads: int = 1
    """Threads of each process."""
    ray: Text = None
    """Train as tasks of a Ray cluster: local (a Ray of --workers slots for this call), auto (the one that
    runs on this machine) or HOST:PORT of its head. A cluster runs whatever code it is sent."""
    json: bool = False
    """Print everything as JSON, without progress."""

    def run(self) -> int:
        """Tune; the exit code is 1 or 3 by the confirming runs, 4 if runs failed, 130 interrupted, else 0."""
        from pathlib import Path

        from trimtab.commands.display import run_shown
        from trimtab.files import create_text
        from trimtab.tuning.tuner import tune

        if self.snippet is not None and Path(self.snippet).exists():  # said before the search, not after it
            raise InputError(f"{self.snippet} is there already: it is not replaced. Name another file.")
        found = run_shown(tune, self, quiet=self.json)
        if found is None:
            return 130
        if self.snippet is not None:
            create_text(self.snippet, found.snippet)
        print(found.to_json() if self.json else "\n".join(describe(found)))
        return found.exit_code


def describe(found: Tuned) -> list[str]:
    """The answer in the terminal: the best, what matters, what to set, the snippet, what it cost."""
    (width, depth), (base_width, base_depth) = found.size, found.base
    return [
        f"Best with base width {base_width}, depth {base_depth} ({found.scheme}): {_best(found)}",
        *(f"  {name} = {value:.6g}{_power(value)}" for name, value in found.best.values.items()),
        "",
        "How much each matters, around the best:",
        *_sensitivity(found.sensitivity),
        "",
        f"Set at width {width}, depth {depth} ({found.best.metric} expected not above {found.expected:.4g}):",
        *_groups(found),
        "",
        "As Python (the factors are made by p.optimizer):",
        "",
        *(f"    {line}".rstrip() for line in found.snippet.splitlines()),
        "",
        _cost(found),
        *_confirmation(found),
        *(f"note: {note}" for note in found.notes),
    ]


def _best(found: Tuned) -> str:
    best = found.best
    within = "" if best.low is None or best.high is None else f" ({best.low:.4g} to {best.high:.4g})"
    fresh = f", {best.fresh} of them fresh" if best.fresh else ""
    lost = f", {best.diverged} diverged" if best.diverged else ""
    return f"{best.metric} {best.loss:.4g}{within} at {_size(best.size)}, {best.seeds} seeds{fresh}{lost}"


def _size(size: tuple[int, int]) -> str:
    return f"width {size[0]}, depth {size[1]}"


def _power(value: float) -> str:
    """An exact power of two is easier to read as one.

    >>> _power(0.0625), _power(0.1)
    (' (2^-4)', '')
    """
    exponent = math.log2(value) if value > 0 else 0.5
    return f" (2^{exponent:g})" if abs(8 * exponent - round(8 * exponent)) < 1e-9 else ""


def _sensitivity(rows: Sequence[Sensitivity]) -> list[str]:
    if not rows:
        return ["  too few trials to say"]
    lines = [("", "1 % of the loss is lost beyond", "one unit less costs", "one unit more costs", "unit")]
    for row in rows:
        room = f"-{row.below:.2g}{'+' * row.reaches_low} to +{row.above:.2g}{'+' * row.reaches_high}"
        lines.append((row.name, room, _percent(row.lost_below), _percent(row.lost_above), row.unit))
    ends = ["  (a + after a number: at least; the range ends there)"]
    lower = ["  (below 0: lower at the base; the best was chosen at a larger size)"]
    gains = any((cost or 0.0) < 0 for r in rows for cost in (r.lost_below, r.lost_above))
    ends = ends * any(r.reaches_low or r.reaches_high for r in rows)
    return [*_aligned(lines), *ends, *(lower * gains)]


def _percent(share: float | None) -> str:
    return "beyond the range" if share is None else f"{100 * share:.2g} %"


def _groups(found: Tuned) -> list[str]:
    lines: list[tuple[str, ...]] = [
        ("optimizer", "lr", "weight decay", "eps", "init x base's", "role", "parameters")
    ]
    for group in found.target:
        numbers = (group.lr, group.weight_decay, group.eps, group.init)
        shown = ("-" if number is None else f"{number:.6g}" for number in numbers)
        lines.append((group.optimizer, *shown, ", ".join(group.roles), group.pattern))
    return _aligned(lines)


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cost(found: Tuned) -> str:
    cost = found.cost
    head = f"Cost: {cost.trials} trials, {cost.runs} runs, {cost.flops:.3g} FLOPs of training ({found.why})"
    if cost.share is None:
        return f"{head}."
    return (
        f"{head}, {100 * cost.share:.2g} % of what the same runs take at the target ({cost.at_target:.3g})."
    )


def _confirmation(found: Tuned) -> list[str]:
    c = found.confirmation
    if c is None:
        return []
    within = "" if c.low is None or c.high is None else f" ({c.low:.4g} to {c.high:.4g})"
    loss = "no run trained" if c.loss is None else f"{found.best.metric} {c.loss:.4g}{within}"
    lost = f", {c.diverged} diverged" if c.diverged else ""
    against = f"against {found.best.loss:.4g} at {_size(found.best.size)}"
    return [f"Confirmed at {_size(c.size)}: {loss}, {c.seeds} seeds{lost}, {against}: {c.verdict}."]
