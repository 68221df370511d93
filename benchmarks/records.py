"""One row of a benchmark: trimtab and a peer on the same work, timed in turns, and what follows.

A row keeps the peer's cost over ours of every repetition, `ratios = theirs / ours`: above 1 trimtab is ahead.
Reported is their median with an interval of at least 95 % for it from order statistics where there are six or
more repetitions, and their range where there are fewer (n independent ratios hold their median with
probability 1 - 2^(1-n): 75 % at three, 94 % at five). Nothing is assumed of how timings scatter.

    ahead          the interval is above 1
    behind         the interval is below 1; `why` must say why
    equal          the median is within 2 % of 1, or the interval contains 1 and is within 10 % of it
    cannot tell    the interval contains 1 and is wider, or there are fewer than three repetitions
    not compared   the peer does not do this, or did not run here; `why` says which

Both sides of a ratio run one after the other in alternating order, so that a busy machine slows both. Work of
one process is counted in its processor time with one thread, work of several in wall time.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

EQUAL, NARROW = 0.02, 0.10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """trimtab beside one peer.

    Args:
        what: the work, in a few words.
        peer: who, with its version.
        unit: of `ours` and `theirs`.
        ours, theirs: medians over the repetitions, in `unit`; None for a peer that cannot do it.
        ratios: theirs / ours of every repetition.
        why: where trimtab is behind, the reason; else what a reader should know.
        spread: (low, high) where the interval is not one over repetitions of a timing.
    """

    what: str
    peer: str
    unit: str
    ours: float
    theirs: float | None = None
    ratios: tuple[float, ...] = ()
    why: str = ""
    spread: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios) if self.ratios else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return self.spread or median_interval(self.ratios)

    @property
    def verdict(self) -> str:
        if not self.ratios:
            return "not compared"
        low, high = self.interval
        if len(self.ratios) < 3 and self.spread is None:
            return "cannot tell"
        if abs(self.ratio - 1) <= EQUAL or 1 - NARROW < low <= 1 <= high < 1 + NARROW:
            return "equal"
        if low > 1:
            return "ahead"
        return "behind" if high < 1 else "cannot tell"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the median with at least 95 % where that many values allow it, else their range.

    >>> median_interval([1.0, 2.0, 3.0])
    (1.0, 3.0)
    >>> median_interval(list(range(1, 11)))  # 1 - 2 P(Binomial(10, 1/2) <= 1) = 0.979
    (2, 9)
    """
    ordered, n = sorted(values), len(values)
    if not n:
        return math.nan, math.nan
    cut, tail = 0, 2.0**-n
    while 2 * (tail + math.comb(n, cut + 1) * 2.0**-n) <= 0.05:
        cut += 1
        tail += math.comb(n, cut) * 2.0**-n
    return ordered[cut], ordered[n - 1 - cut]


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    gc.collect()  # what one side leaves behind is not counted to the other
    begun = clock()
    found = call()
    return found if isinstance(found, float) else clock() - begun


def in_turns(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm: bool = True,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each side in each round; every other round goes backwards.

    The clock is this process's processor time, which other load hardly touches and which is the wall's where
    one thread computes; work done by several processes needs `time.perf_counter`. A side that returns a float
    has taken its own time, in seconds.
    """
    if warm:
        for call in sides.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for k in range(rounds):
        for name in sides if k % 2 else reversed(list(sides)):
            taken[name].append(seconds(sides[name], clock))
    return taken


def compare(
    taken: Mapping[str, list[float]],
    what: str,
    peers: Mapping[str, str],
    scale: float = 1e3,
    unit: str = "ms",
) -> Iterator[Row]:
    """Rows of `taken["trimtab"]` against every peer; `peers` is {name: why}, `scale` units per second.

    A round in which one side failed (nan) does not count.
    """
    for peer, why in peers.items():
        pairs = [
            pair for pair in zip(taken["trimtab"], taken[peer], strict=True) if not math.isnan(sum(pair))
        ]
        if not pairs:
            continue
        ours, theirs = zip(*pairs, strict=True)
        yield Row(
            what=what,
            peer=peer,
            unit=unit,
            ours=scale * statistics.median(ours),
            theirs=scale * statistics.median(theirs),
            ratios=tuple(t / o for t, o in zip(theirs, ours, strict=True)),
            why=why,
        )


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(rows: Iterable[Row]) -> str:
    """Rows as text for a terminal."""
    lines = []
    for row in rows:
        low, high = row.interval
        ratio = f"{row.ratio:.3g} x ({low:.3g} to {high:.3g}, n = {len(row.ratios)})" if row.ratios else ""
        theirs = "" if row.theirs is None else f" against {row.theirs:.3g}"
        lines.append(
            f"{row.what} | {row.peer}: {row.verdict} {ratio} {row.ours:.3g}{theirs} {row.unit}".rstrip()
        )
        if row.why:
            lines.append(f"    {row.why}")
    return "\n".join(lines)


def rounded(row: Row) -> dict[str, object]:
    """A row as it is kept: five digits, more than any timing has."""
    short = {
        key: float(f"{value:.5g}") if isinstance(value, float) else value
        for key, value in dataclasses.asdict(row).items()
    }
    return short | {"ratios": [float(f"{value:.5g}") for value in row.ratios]}


def main(rows: Callable[[bool], Iterable[Row]]) -> None:
    """`python benchmarks/NAME.py [--tiny] [--json FILE]`: rows as they come, printed and kept."""
    arguments = sys.argv[1:]
    found = []
    for row in rows("--tiny" in arguments):
        print(table([row]), flush=True)
        found.append(row)
    if "--json" in arguments:
        with open(arguments[arguments.index("--json") + 1], "w") as file:
            json.dump([rounded(row) for row in found], file)
