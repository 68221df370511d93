"""Measure how often the intervals cover and the verdicts are right; writes the tables of docs/statistics.md.

    python experiments/coverage.py [runs per row, 1000] [optima] [drifts] [counts]

About a quarter of an hour a thousand on one core, and as much again for `counts`. Names choose tables.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from simulated import KINDS, SES, counted, coverage, verdicts  # noqa: E402


def optima(n: int) -> list[str]:
    lines = [
        "| curve | standard error | seeds | shared | covered | bounded | covered where bounded |",
        "|---|---|---|---|---|---|---|",
    ]
    kinds = (*KINDS, "wall, short", "two-sided, mirrored", "quartic", "cliff")
    for kind, seeds, shared in itertools.product(kinds, (3, 5), (True, False)):
        for se in SES if kind != "flat" else (0.0,):
            m = coverage(kind, se, seeds, shared, n, rng=1)
            lines.append(
                f"| {kind} | {m.stderr:.2f} | {seeds} | {'yes' if shared else 'no'} | {m.covered:.1%} | "
                f"{m.bounded:.0%} | {m.covered_bounded:.1%} |"
            )
            print(lines[-1], flush=True)
    return lines


def drifts(n: int) -> list[str]:
    lines = [
        "| drift per doubling | standard error of each optimum | curve | between-size scatter | transfers | "
        "drifts | drift covered |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(0.0, 0.15), (0.5, 0.3), (0.0, 0.05), (0.25, 0.15)]
    for kind, (slope, se) in [
        (kind, row) for row in rows for kind in ("quadratic", "two-sided", "two-sided, mirrored")
    ]:
        t = verdicts(slope, se, n, kind, rng=2)
        lines.append(
            f"| {slope:g} | {se:g} | {kind} | 0 | {t.transfers:.1%} | {t.drifts:.1%} | {t.covered:.1%} |"
        )
        print(lines[-1], flush=True)
    for scatter in (0.2, 0.4):
        t = verdicts(0.0, 0.1, n, "quadratic", scatter=scatter, rng=3)
        lines.append(
            f"| 0 | 0.1 | quadratic | {scatter:g} | {t.transfers:.1%} | {t.drifts:.1%} | {t.covered:.1%} |"
        )
        print(lines[-1], flush=True)
    return lines


def counts(n: int) -> list[str]:
    lines = [
        "| over | exponent | curve | critical batch | exponent covered | the true rule refuted | critical "
        "batch covered |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [
        (over, slope, kind, 0)
        for over, slope in (("batch", 0.5), ("batch", 0.0), ("tokens", -0.5))
        for kind in ("quadratic", "two-sided", "wall")
    ]
    rows += [("batch", 0.5, kind, 64) for kind in ("quadratic", "two-sided", "wall")]
    for over, slope, kind, critical in rows:
        m = counted(kind, over, slope, 0.15, n, critical, rng=4)
        cells = (
            (f"{m.covered:.1%}", f"{m.refuted:.1%}" if slope else "-", "-")
            if not critical
            else ("-", "-", f"{m.critical:.1%}")
        )
        lines.append(f"| {over} | {slope:+g} | {kind} | {critical or 'none'} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


TABLES = {"optima": (optima, 1), "drifts": (drifts, 2), "counts": (counts, 1)}


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    asked = sys.argv[2:] or list(TABLES)
    page = ROOT / "docs" / "statistics.md"
    text = page.read_text(encoding="utf-8")
    for name in asked:
        make, fewer = TABLES[name]
        lines = make(n // fewer)
        block = "\n".join(
            [f"<!-- {name}: experiments/coverage.py {n} -->", "", *lines, "", f"<!-- end {name} -->"]
        )
        text = re.sub(rf"<!-- {name}: .*?<!-- end {name} -->", lambda _, b=block: b, text, flags=re.S)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
