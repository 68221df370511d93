"""Which runs an adaptive sweep asks for next: a pure function of the results so far. No torch.

A *curve* is the loss over the lattice's values at one size; a *line* is the curves of one scheme along one
axis of growth, which is what a verdict is about. For each line:

    bracket    from the cheapest size to the costliest: every second value about where the optimum is expected
               (the first size: over the whole grid), one seed; then past the edge while the best is the last
               one tried, and next to the wall while a value between it and the last stable one was not tried
    narrow     blocks of runs (a further seed over the values about the minimum, or the values between them),
               each time the block that narrows the drift most per floating point operation,

                   Var(beta) = 1 / sum_i w_i (s_i - s)^2,    w_i = 1 / stderr_i^2,    stderr_i^2 ~ 1 / runs_i

    end        the verdict is decided, with room for having been looked at several times (`GUARD`); or every
               interval is narrow enough; or nothing on the lattice is left that could decide it

What is hopeless is not begun: values beyond the first that diverged, or more than `REACH` steps from the
minimum. No run is cut short, so that every loss that enters a fit is that of a whole run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trimtab.optima.drift import TOLERANCE, Drift, verdict

STRIDE = 2  # steps of the lattice between the values of a first look
ARM = 2  # values on each side of the best that a bracket needs, STRIDE apart
REACH = 5  # steps from the minimum beyond which no further seed is spent
INNER = 2  # steps from the minimum within which the values between are run
ENOUGH = 2  # seeds at each size before a verdict counts
GUARD = 1.15  # the interval of a look is widened by this before it may end the sweep
MARGIN = 0.25  # of the interval's half: how far beyond the tolerance a drift must be
GROWTH = 0.35  # of what a line has spent: the most that one round of narrowing adds
PATIENCE = 2.0  # standard deviations that the slope may still move before a line is given up
UNKNOWN = 4.0  # steps: the standard error of an optimum that has none yet


class Outcome(NamedTuple):
    """What a finished run says: its loss (None: diverged, or ended no better than it began; NaN: it failed)
    and what it took."""

    loss: float | None
    flops: float


class Cell(NamedTuple):
    """One run: the index of its curve, of its value on the lattice, and of its seed."""

    curve: int
    value: int
    seed: int


@dataclass(frozen=True)
class Curve:
    """What is known of one size: {(value, seed): Outcome}, and a run's cost in floating point operations."""

    key: int
    cost: float
    runs: Mapping[tuple[int, int], Outcome]

    def tried(self) -> dict[int, list[Outcome]]:
        out: dict[int, list[Outcome]] = {}
        for (value, _), outcome in sorted(self.runs.items()):
            if outcome.loss is None or not math.isnan(outcome.loss):
                out.setdefault(value, []).append(outcome)
        return out

    def stable(self) -> dict[int, float]:
        """{value: mean loss} where every seed trained, of the seeds that the most values have in common."""
        out = {}
        for value, outcomes in self.tried().items():
            losses = [o.loss for o in outcomes]
            if losses and all(loss is not None for loss in losses):
                first = self.runs.get((value, 0))
                alone = first.loss if first is not None and first.loss is not None else math.nan
                out[value] = alone if math.isfinite(alone) else sum(map(float, losses)) / len(losses)  # type: ignore[arg-type]
        return out

    def wall(self, best: int | None) -> int | None:
        """The first value above the best at which a run did not train."""
        bad = [v for v, o in self.tried().items() if any(x.loss is None for x in o)]
        above = [v for v in bad if best is None or v > best]
        return min(above) if above else None


class Found(NamedTuple):
    """A size's optimum as it is fitted now, in steps of the lattice."""

    at: float
    stderr: float
    width: float


@dataclass(frozen=True)
class Line:
    """Curves of one scheme along one axis of growth, the cheapest first.

    Attributes:
        doublings: of each curve from the base; a single curve has no drift.
        analyse: () -> (the drift, one Found per curve); called when all are bracketed.
        tolerance: of the verdict, in the drift's units.
    """

    name: str
    curves: Sequence[Curve]
    doublings: Sequence[float]
    analyse: Any
    tolerance: float = TOLERANCE
    step: float = 0.5
    sizes: Sequence[str] = ()


class Limits(NamedTuple):
    """first, last: of the lattice; seeds: of a value, at most; the intervals that are narrow enough."""

    first: int
    last: int
    low: int
    high: int
    seeds: int
    optimum: float | None
    drift: float


@dataclass
class Request:
    """What a line asks for and why; nothing more where `cells` is empty."""

    cells: list[Cell] = field(default_factory=list)
    why: str = ""
    verdict: str = ""


def ask(line: Line, limits: Limits) -> Request:
    """The next runs of a line."""
    centre: float | None = None
    for i, curve in enumerate(line.curves):
        values, why = bracket(curve, centre, limits)
        if values:
            return Request([Cell(curve.key, v, 0) for v in values], f"{line.name}, {line.sizes[i]}: {why}")
        centre = _expected(line, i)
    return _narrow(line, limits)


def _expected(line: Line, done: int) -> float:
    """Where the next size's optimum is expected: on the line through the best values of those before it."""
    best = [(s, min(c.stable().items(), key=lambda kv: kv[1])[0]) for s, c in _usable(line, done)]
    if not best:
        return float(max(max(c.tried(), default=0) for c in line.curves[: done + 1]))
    if len(best) < 2 or done + 1 >= len(line.doublings):
        return float(best[-1][1])
    (s0, b0), (s1, b1) = best[0], best[-1]
    slope = (b1 - b0) / (s1 - s0) if s1 != s0 else 0.0
    ahead = line.doublings[done + 1] - s1
    # half of what was seen so far: the best of a first look jumps by a stride
    return b1 + 0.5 * slope * ahead


def _usable(line: Line, done: int) -> list[tuple[float, Curve]]:
    pairs = zip(line.doublings[: done + 1], line.curves[: done + 1], strict=True)
    return [(s, c) for s, c in pairs if c.stable()]


def bracket(curve: Curve, centre: float | None, limits: Limits) -> tuple[list[int], str]:
    """Values to try with one seed until the minimum lies between values that were tried; none when it does.

    >>> limits = Limits(-4, 10, 0, 6, 3, None, 0.2)
    >>> bracket(Curve(0, 1.0, {}), None, limits)
    ([0, 2, 4, 6], 'a first look over the grid')
    >>> falling = Curve(0, 1.0, {(i, 0): Outcome(1.0 - 0.1 * i, 1.0) for i in (0, 2, 4, 6)})
    >>> bracket(falling, None, limits)
    ([8, 10], 'the best value is at the edge of what was tried')
    """
    tried = curve.tried()
    if not tried and not curve.runs:
        if centre is None:
            wanted = list(range(limits.low, limits.high + 1, STRIDE))
            return wanted, "a first look over the grid"
        middle = round(centre)
        middle = min(max(middle, limits.first), limits.last)
        wanted = [middle + STRIDE * k for k in range(-ARM, ARM + 1)]
        return _free(wanted, curve, limits), "a first look about the optimum of the smaller sizes"
    stable = curve.stable()
    if not stable:
        lowest = min(tried, default=limits.low)
        wanted = [lowest - STRIDE * k for k in (1, 2, 3)]
        return _free(wanted, curve, limits), "nothing that was tried trains"
    best = min(stable, key=lambda v: (stable[v], v))
    wall = curve.wall(best)
    below = [best - STRIDE * k for k in range(1, ARM + 1)]
    above = [best + STRIDE * k for k in range(1, ARM + 1)] if wall is None else []
    missing = _free([v for v in below if not _near(v, tried, best)], curve, limits)
    missing += _free([v for v in above if not _near(v, tried, best)], curve, limits)
    if missing:
        return sorted(missing), "the best value is at the edge of what was tried"
    if wall is not None and wall - best <= STRIDE:
        between = _free(list(range(best + 1, wall)), curve, limits)
        if between:
            return between, "the best value is the last that trains"
    return [], ""


def _near(value: int, tried: Mapping[int, Any], best: int) -> bool:
    """Whether a value, or its neighbour further out, was tried."""
    return value in tried or value + (1 if value > best else -1) in tried


def _free(values: Sequence[int], curve: Curve, limits: Limits, seed: int = 0) -> list[int]:
    """Those on the lattice that were not run with this seed."""
    return [v for v in sorted(values) if limits.first <= v <= limits.last and (v, seed) not in curve.runs]


def decided(drift: Drift, tolerance: float, guard: float | None = None) -> bool:
    """Whether the verdict stands with room to spare: its interval, widened by `guard`, says the same.

    >>> decided(Drift(0.0, -0.2, 0.2), 0.25), decided(Drift(0.0, -0.24, 0.24), 0.25)
    (True, False)
    """
    wide, half = widened(drift, GUARD if guard is None else guard), (drift.high - drift.low) / 2
    answer = verdict(wide, tolerance)
    if answer == "drifts" and abs(drift.slope) - MARGIN * half <= tolerance:
        return False
    return answer != "cannot tell" and answer == verdict(drift, tolerance)


def widened(drift: Drift, factor: float) -> Drift:
    """The drift with its interval stretched about the slope."""
    return drift._replace(
        low=drift.slope - factor * (drift.slope - drift.low),
        high=drift.slope + factor * (drift.high - drift.slope),
    )


def _narrow(line: Line, limits: Limits) -> Request:
    drift, found = line.analyse()
    alone = len(line.curves) < 2
    answer = "" if alone else verdict(drift, line.tolerance)
    plans = [_blocks(c, f, limits) for c, f in zip(line.curves, found, strict=True)]
    first = [b for b in (_to_seeds(c, p) for c, p in zip(line.curves, plans, strict=True)) if b]
    if first:
        cells = [cell for block in first for cell in block]
        return Request(cells, f"{line.name}: a second seed about each minimum", answer)
    wanted = limits.optimum if limits.optimum is not None else 1.0 if alone else None
    wide = [f for f in found if wanted is not None and not f.width * line.step <= wanted]
    interval = drift.high - drift.low
    if not alone and not wide:
        if decided(drift, line.tolerance):
            return Request([], f"{line.name}: decided", answer)
        if interval <= limits.drift:
            return Request([], f"{line.name}: the drift's interval is narrow enough", answer)
    if alone and not wide:
        return Request([], f"{line.name}: the optimum's interval is narrow enough", answer)
    if not wide and _futile(line, found, plans, drift):
        return Request([], f"{line.name}: what is left on the lattice is not expected to decide it", answer)
    chosen = _choose(line, found, plans, drift, wide=bool(wide))
    if not chosen:
        return Request([], f"{line.name}: the lattice is used up", answer)
    names = sorted({line.sizes[i] for i, _ in chosen})
    aim = "their optima" if alone or (wide and answer != "cannot tell") else "the drift"
    why = f"{line.name}: runs at {', '.join(names)} narrow {aim} most per operation"
    return Request([cell for _, block in chosen for cell in block], why, answer)


def _blocks(curve: Curve, found: Found, limits: Limits) -> list[list[Cell]]:
    """What could be run next at a size, in order: seeds over the values about the minimum, with the values
    between from the second seed on."""
    stable = curve.stable()
    best = min(stable, key=lambda v: (stable[v], v)) if stable else min(curve.tried(), default=limits.low)
    at = found.at if math.isfinite(found.at) else float(best)
    wall = curve.wall(best)
    top = limits.last if wall is None else wall
    tried = set(curve.tried())
    core = [v for v in sorted(tried) if abs(v - at) <= REACH and v <= top]
    inner = [v for v in range(math.ceil(at - INNER), math.floor(at + INNER) + 1) if v <= top]
    inner = [v for v in inner if limits.first <= v <= limits.last]
    rest = [v for v in range(math.ceil(at - REACH), math.floor(at + REACH) + 1) if v <= top]
    rest = [v for v in rest if limits.first <= v <= limits.last]
    blocks: list[list[Cell]] = []
    seen = set(curve.runs)

    def add(values: Sequence[int], seeds: Sequence[int]) -> None:
        cells = [(v, s) for s in seeds for v in values if (v, s) not in seen]
        seen.update(cells)
        if cells:
            blocks.append([Cell(curve.key, v, s) for v, s in cells])

    add(core, [0])
    add(core, [1])
    add(inner, [0, 1])
    for seed in range(2, limits.seeds):
        add(sorted({*core, *inner}), [seed])
    add(rest, list(range(limits.seeds)))
    add([v for v in range(limits.low, limits.high + 1) if v <= top], list(range(limits.seeds)))
    return blocks


def _to_seeds(curve: Curve, blocks: Sequence[list[Cell]]) -> list[Cell]:
    """The block that gives a size its second seed, if it has none yet."""
    have = {seed for _, seed in curve.runs}
    return blocks[0] if blocks and len(have) < ENOUGH else []


def _choose(
    line: Line, found: Sequence[Found], plans: Sequence[list[list[Cell]]], drift: Drift, *, wide: bool
) -> list[tuple[int, list[Cell]]]:
    """Blocks in the order of what they gain per operation, until the round is as large as it may be."""
    spent = sum(o.flops for c in line.curves for o in c.runs.values())
    variance = [(f.stderr if math.isfinite(f.stderr) and f.stderr > 0 else UNKNOWN) ** 2 for f in found]
    runs = [max(1, len(c.runs)) for c in line.curves]
    left = [list(p) for p in plans]
    chosen: list[tuple[int, list[Cell]]] = []
    cost = 0.0
    while True:
        gains = []
        for i, blocks in enumerate(left):
            if blocks:
                after = [*variance]
                after[i] *= runs[i] / (runs[i] + len(blocks[0]))
                gain = _variance(line, variance, wide) - _variance(line, after, wide)
                gains.append((gain / (line.curves[i].cost * len(blocks[0])), -i))
        if not gains:
            return chosen
        i = -max(gains)[1]
        price = line.curves[i].cost * len(left[i][0])
        if chosen and cost + price > GROWTH * spent:
            return chosen
        block = left[i].pop(0)
        variance[i] *= runs[i] / (runs[i] + len(block))
        runs[i] += len(block)
        cost += price
        chosen.append((i, block))


def _futile(line: Line, found: Sequence[Found], plans: Sequence[list[list[Cell]]], drift: Drift) -> bool:
    """Whether even all that may still be run would leave the verdict open, with the slope where it is or as
    far from there as one standard deviation of what those runs can move it."""
    if not math.isfinite(drift.high - drift.low):
        return False
    variance = [(f.stderr if math.isfinite(f.stderr) and f.stderr > 0 else UNKNOWN) ** 2 for f in found]
    more = [sum(map(len, p)) for p in plans]
    after = [v * len(c.runs) / (len(c.runs) + n) for v, c, n in zip(variance, line.curves, more, strict=True)]
    ratio = math.sqrt(_variance(line, after, False) / _variance(line, variance, False))
    half = (drift.high - drift.low) / 2
    moves = PATIENCE * half / 1.96 * math.sqrt(max(0.0, 1 - ratio**2))
    near, far = max(0.0, abs(drift.slope) - moves), abs(drift.slope) + moves
    transfers = near + ratio * half < line.tolerance
    drifts = far > line.tolerance and far > ratio * half
    return not (transfers or drifts)


def _variance(line: Line, variance: Sequence[float], wide: bool) -> float:
    """Of the slope; of the optima together where those are what is asked for."""
    if wide or len(variance) < 2:
        return sum(variance)
    w = [1 / v for v in variance]
    mean = sum(a * s for a, s in zip(w, line.doublings, strict=True)) / sum(w)
    spread = sum(a * (s - mean) ** 2 for a, s in zip(w, line.doublings, strict=True))
    return 1 / spread if spread > 0 else math.inf
