"""The second size: which points of the base are compared there. No torch.

    tied      f(x) - f* <= one standard error of a trial        f: the surface through the base's trials
    chosen    x_1 the best,  x_k the tied point farthest from x_1 .. x_(k-1)

Why a second size at all: a valley of the base (rate x gamma0 is nearly one number to a narrow network) need
not be one at the target. Among points that tie at the base the ranking at twice the width has most of what
there is to know about the target's; the base's own ranking has none of it (docs/tune.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, stdev

import numpy as np
from threadpoolctl import threadpool_limits

from trimtab.tuning.proposals import candidates_of
from trimtab.tuning.space import Space
from trimtab.tuning.surface import NEGLIGIBLE, Surface, Trial, observe


def finalists(space: Space, trials: Sequence[Trial], count: int, seed: int) -> list[tuple[float, ...]]:
    """At most `count` points for a comparison at a larger size, the best of the base first.

    Among points that tie at the base nothing speaks for one of them. So they are spread: each is the one
    farthest from those before it. A point that was not tried may be one of them, where the surface is as low.
    Where fewer tie, the next best fill the places.
    """
    seen = observe(trials)
    if seen is None:
        return []
    points = [trial.point for trial in trials]
    if len(trials) < 3:
        return [points[i] for i in np.argsort(seen.y, kind="stable")][:count]
    with threadpool_limits(1):
        surface = Surface(seen, seed, space.features())
        means = surface.predict(seen.x)[0]
        x = np.vstack([seen.x, candidates_of(space, trials, means, seed)])
        means = np.append(means, surface.predict(x[len(points) :])[0]) if len(x) > len(points) else means
        tied = surface.tied(means, float(means[: len(points)].min()))
    order = [int(i) for i in np.argsort(means[: len(points)], kind="stable")]  # of those that were tried
    chosen, left = [order[0]], [int(i) for i in np.nonzero(tied)[0] if i != order[0]]
    while left and len(chosen) < count:
        reach = [float(np.min(np.linalg.norm(x[chosen] - x[i], axis=1))) for i in left]
        chosen.append(left.pop(int(np.argmax(reach))))
    chosen += [i for i in order if i not in chosen][: count - len(chosen)]
    return [tuple(x[i].tolist()) for i in chosen]


def little_to_gain(trials: Sequence[Trial]) -> bool:
    """Whether further seeds cannot improve the choice by as much as matters, by the spread s of the points.

    Of that spread some is real and some is noise. Perfect knowledge would gain m (sigma - sigma^2 / s) over
    the point that now looks best (sigma: the real part, m: the expected largest of as many standard normals),
    which is m s / 4 at most.

    >>> [little_to_gain([Trial((x,), (1 + s * x,)) for x in range(12)]) for s in (0.001, 0.01)]
    [True, False]
    """
    logs = [math.log(good[0]) for t in trials if (good := trained(t))]
    if len(logs) < 3:
        return False
    m = NormalDist().inv_cdf((len(logs) - 0.375) / (len(logs) + 0.25))  # Blom's approximation
    return m * stdev(logs) / 4 < NEGLIGIBLE


def trained(trial: Trial) -> list[float]:
    """A trial's losses where every seed trained, else none."""
    good = [loss for loss in trial.losses if loss is not None]
    return good if len(good) == len(trial.losses) else []
