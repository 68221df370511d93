"""Where to look next: a pure function of the trials so far. No torch.

    start         points of a scrambled Sobol sequence
    then          argmax over candidates of  EI(x) = E[max(0, z* - z(x))],   z* the lowest mean tried
    spread        that once, and three times  argmax sd(z(x))  over what may tie: z(x) - sd(z(x)) ties with z*

`spread` is for the sake of a target: where the loss has a valley, one point of it is not the answer but its
whole length is, from which a larger size then chooses (`larger`).

Several points of one round are chosen one after the other, each as if those before it had given what is
expected of them. So the first k points of a round do not depend on how many it has, and a search that was cut
short goes on to the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc
from threadpoolctl import threadpool_limits

from trimtab.tuning.space import Space
from trimtab.tuning.surface import NEGLIGIBLE, Floats, Surface, Trial, observe

CANDIDATES = 2048  # spread over the box
NEAR, REACH = 256, (0.03, 0.1)  # candidates around each of the best points, at these distances
AROUND = 3  # best points
LITTLE = 0.1  # of the seeds' noise: a gain that is expected to be less is not worth a round
SMALL = 0.005  # in log loss, likewise


@dataclass(frozen=True)
class Round:
    """Points to try next; none when the search is over, and then `why` says why."""

    points: tuple[tuple[float, ...], ...]
    gain: float | None = None
    why: str = ""


def start_size(space: Space, per_round: int) -> int:
    """Trials of the start: whole rounds, at least two per axis and two more.

    >>> from trimtab.tuning.space import Axis
    >>> axis = Axis("lr", "log2", -8, -2)
    >>> start_size(Space((axis,) * 3), 8), start_size(Space((axis,) * 4), 8)
    (8, 16)
    """
    return per_round * -(-(2 * len(space) + 2) // per_round)


def propose(
    space: Space, trials: Sequence[Trial], count: int, *, per_round: int, seed: int, spread: bool = False
) -> Round:
    """The next points, at most `count`, given all trials so far.

    Args:
        spread: the whole of what ties with the best is wanted, not one point of it.
    """
    with threadpool_limits(1):  # sums in one order, whatever else the machine does
        begun = start_size(space, per_round)
        seen = observe(trials) if trials else None
        if len(trials) < begun or seen is None:
            return _start(space, trials, count, seed)
        surface = Surface(seen, seed, space.features())
        means = surface.predict(seen.x)[0]
        candidates = candidates_of(space, trials, means, seed)
        if not len(candidates):
            return Round((), 0.0, "every point of the grid was tried")
        incumbent = float(means.min())
        gain = float(expected_gain(surface, candidates, incumbent).max()) * surface.scale
        known = not spread or _are_known(surface, candidates, incumbent)
        if len(trials) > begun and known and gain < max(SMALL, LITTLE * surface.error):
            return Round((), gain, f"a further round is expected to gain {100 * gain:.2g} % of the loss")
        return Round(choose(surface, candidates, incumbent, count, spread=spread), gain)


def _start(space: Space, trials: Sequence[Trial], count: int, seed: int) -> Round:
    """The next points of the Sobol sequence that were not tried."""
    tried = {trial.point for trial in trials}
    wanted = len(trials) + count
    rows = _sobol(len(space), 4 * max(wanted, 64), seed)
    fresh = [point for point in dict.fromkeys(map(space.snap, rows)) if point not in tried]
    why = "" if fresh else "every point of the grid was tried"
    return Round(tuple(fresh[:count]), None, why)


def _sobol(dimensions: int, count: int, seed: int) -> Floats:
    return qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random_base2(int(np.ceil(np.log2(count))))


def candidates_of(space: Space, trials: Sequence[Trial], means: Floats, seed: int) -> Floats:
    """Points of the grid that were not tried: over the whole box, and around those of the lowest means."""
    rows = list(_sobol(len(space), CANDIDATES, seed + 1))
    draw = np.random.default_rng([seed, len(trials)])
    x = np.array([trial.point for trial in trials], dtype=float)
    for i in np.argsort(means, kind="stable")[:AROUND]:
        for reach in REACH:
            rows += list(x[i] + reach * draw.standard_normal((NEAR, len(space))))
    tried = {trial.point for trial in trials}
    fresh = [point for point in dict.fromkeys(map(space.snap, rows)) if point not in tried]
    return np.array(fresh, dtype=float).reshape(len(fresh), len(space))


def expected_gain(surface: Surface, x: Floats, incumbent: float) -> Floats:
    """EI(x) in units of z."""
    mean, deviation = surface.predict(x)
    t = (incumbent - mean) / deviation
    return deviation * (t * ndtr(t) + np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi))


def _are_known(surface: Surface, candidates: Floats, incumbent: float) -> bool:
    """Whether all that may tie with the best is known as well as a trial would say it."""
    means, deviations = surface.predict(candidates)
    tied = surface.tied(means - deviations, incumbent)
    return not (surface.scale * deviations[tied] > max(surface.error, NEGLIGIBLE)).any()


def choose(
    surface: Surface, candidates: Floats, incumbent: float, count: int, *, spread: bool = False
) -> tuple[tuple[float, ...], ...]:
    """At most `count` of the candidates, one after the other.

    Args:
        spread: three of four are the least known ones of those that may tie with the best.
    """
    chosen: list[tuple[float, ...]] = []
    left = np.ones(len(candidates), dtype=bool)
    while len(chosen) < count and left.any():
        worth = expected_gain(surface, candidates, incumbent)
        if spread and len(chosen) % 4:
            means, deviations = surface.predict(candidates)
            tied = left & surface.tied(means - deviations, incumbent)
            worth = np.where(tied, deviations, -1.0) if tied.any() else worth
        i = int(np.argmax(np.where(left, worth, -np.inf)))
        left[i] = False
        chosen.append(tuple(candidates[i].tolist()))
        surface = surface.believing(candidates[i])
        incumbent = min(incumbent, float(surface.predict(candidates[i])[0][0]))
    return tuple(chosen)


def ranking(space: Space, trials: Sequence[Trial], seed: int) -> list[tuple[float, ...]]:
    """The tried points, best first, by the surface: one lucky seed does not make a point the best."""
    seen = observe(trials)
    if seen is None:
        return []
    with threadpool_limits(1):
        means = Surface(seen, seed, space.features()).predict(seen.x)[0] if len(trials) > 2 else seen.y
    return [trials[i].point for i in np.argsort(means, kind="stable")]
