"""Results in words: the sentences that the report, the command and their tables share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from trimtab.optima.drift import Drift
from trimtab.optima.tables import Table

NAMES = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "batch_size": "batch size",
    "gamma0": "richness",
}
SUPERSCRIPTS = str.maketrans("-0123456789.", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹·")


class Answer(Protocol):
    """What is put into words: a `Transfer`."""

    @property
    def scheme(self) -> str: ...
    @property
    def over(self) -> str: ...
    @property
    def hp(self) -> str: ...
    @property
    def axis(self) -> str: ...
    @property
    def optima(self) -> Table: ...
    @property
    def drift(self) -> Drift: ...
    @property
    def verdict(self) -> str: ...
    @property
    def advice(self) -> str: ...
    @property
    def signatures(self) -> list[str]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def hp_name(hp: str) -> str:
    return NAMES.get(hp, hp.replace("_", " "))


def number(x: float, digits: int = 3) -> str:
    """Three digits, no noise.

    >>> number(0.234567), number(1234567.0), number(float("nan")), number(float("inf"))
    ('0.235', '1.23e+06', '-', '∞')
    """
    if x is None or (isinstance(x, float) and math.isnan(x)):
        return "-"
    return ("∞" if x > 0 else "-∞") if math.isinf(x) else f"{x:.{digits}g}"


def power(x: float) -> str:
    """A power of two for an axis.

    >>> power(-6.0), power(0.5)
    ('2⁻⁶', '2⁰·⁵')
    """
    return "2" + f"{x:g}".translate(SUPERSCRIPTS)


def optimum(row: Mapping[str, Any]) -> str:
    """The optimum as one would say it."""
    if row["status"] in ("none stable", "not finished"):
        return row["status"]
    return number(row["optimum"])


def between(row: Mapping[str, Any], axis: str, digits: int = 3) -> str:
    """The interval of an optimum; open ends say so."""
    low, high = row["low"], row["high"]
    open_low, open_high = low == 0 if axis == "log2" else math.isinf(low), math.isinf(high)
    least, most = number(low, digits), number(high, digits)
    if row["status"] in ("none stable", "not finished"):
        return f"below {most}" if not open_high else "-"
    if open_low and open_high:
        return "anywhere"
    if open_low:
        return f"up to {most}"
    return f"{least} or more" if open_high else f"{least} to {most}"


def slope(t: Answer) -> str:
    """The drift with its interval."""
    unit = f"log2 per doubling of {t.over}" if t.axis == "log2" else f"per doubling of {t.over}"
    if math.isnan(t.drift.slope):
        return f"unknown {unit}"
    return f"{t.drift.slope:+.2f} {unit} (95 % interval {_end(t.drift.low)} to {_end(t.drift.high)})"


def _end(x: float) -> str:
    return f"{x:+.2f}" if math.isfinite(x) else ("∞" if x > 0 else "-∞")


def span(t: Answer) -> str:
    sizes = t.optima[t.over].tolist()
    return f"{t.over} {sizes[0]:g} to {sizes[-1]:g}" if len(sizes) > 1 else f"{t.over} {sizes[0]:g}"


def sentence(t: Answer) -> str:
    """The verdict in one sentence."""
    what, where = hp_name(t.hp), span(t)
    if t.verdict == "transfers":
        return f"With {t.scheme}, one {what} serves {where}: its optimum moves {slope(t)}."
    if t.verdict == "drifts":
        return f"With {t.scheme}, the {what} does not transfer over {where}: its optimum moves {slope(t)}."
    return f"With {t.scheme}, whether the {what} transfers over {where} cannot be told yet: drift {slope(t)}."


def in_words(t: Answer) -> str:
    """What `print(transfer)` shows: the verdict, what would tell, the optimum of each size."""
    lines = [sentence(t), *([f"To tell: {t.advice}."] if t.advice else [])]
    for row in t.optima.to_dict("records"):
        status = "" if row["status"] in ("inside", optimum(row)) else f", {row['status']}"
        lines.append(f"  {t.over} {row[t.over]:g}: {optimum(row)} ({between(row, t.axis)}){status}")
    return "\n".join([*lines, *(f"- {words}." for words in (*t.signatures, *t.notes))])


def headline(by_axis: Mapping[str, Answer]) -> str:
    """All axes of one scheme in one sentence.

    >>> headline({})
    'Nothing to tell yet: no run has finished.'
    """
    if not by_axis:
        return "Nothing to tell yet: no run has finished."
    first = next(iter(by_axis.values()))
    words = {
        "transfers": "transfers",
        "drifts": "does not transfer",
        "cannot tell": "may or may not transfer",
    }
    groups: dict[str, list[str]] = {}
    for t in by_axis.values():
        groups.setdefault(words[t.verdict], []).append(span(t))
    body = ", but ".join(f"{verb} over {' and '.join(spans)}" for verb, spans in groups.items())
    return f"With {first.scheme}, the {hp_name(first.hp)} {body}."


def short(by_axis: Mapping[str, Answer]) -> str:
    """The same for a heading: who, what, which axes; the sizes are said below it.

    >>> short({})
    'Nothing to tell yet: no run has finished.'
    """
    if not by_axis:
        return headline(by_axis)
    first = next(iter(by_axis.values()))
    by = {
        kind: [over for over, t in by_axis.items() if t.verdict == kind]
        for kind in ("transfers", "drifts", "cannot tell")
    }
    good, bad, open_ = (" and ".join(overs) for overs in by.values())
    if not good and not bad:
        return f"{first.scheme}: {hp_name(first.hp)} over {open_}: cannot tell yet"
    verb = f"transfers over {good}" if good else f"does not transfer over {bad}"
    rest = (f", not over {bad}" if good and bad else "") + (f"; {open_}: cannot tell" if open_ else "")
    return f"{first.scheme}: {hp_name(first.hp)} {verb}{rest}"


def regret(row: Mapping[str, Any]) -> str:
    if row["status"] == "unstable":
        return "does not train"
    if row["status"] != "measured":
        return f"unknown ({row['status']})"
    return f"{number(row['regret'], 2)} ({number(row['low'], 2)} to {number(row['high'], 2)})"
