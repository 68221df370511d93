"""The search as a pure function: on surfaces whose minimum is known, without training."""

import itertools
import math

import numpy as np
import pytest

from trimtab.tuning.larger import finalists
from trimtab.tuning.proposals import candidates_of, choose, propose, ranking, start_size
from trimtab.tuning.sensitivity import sensitivities
from trimtab.tuning.space import Axis, Space
from trimtab.tuning.surface import Surface, Trial, observe

AXES = (
    Axis("lr", "log2", -12, -3),
    Axis("gamma0", "log2", -4, 2),
    Axis("weight_decay", "log2", -10, 0),
)
BEST = (0.42, 0.6, 0.35)


def excess(point):
    """Log loss above its lowest: a bowl, steeper towards large rates."""
    bowl = sum(3 * (1 + k) * (x - b) ** 2 for k, (x, b) in enumerate(zip(point, BEST, strict=False)))
    return bowl + (4 * max(0.0, point[0] - BEST[0])) ** 2


def loss(point, seed, noise):
    """One run: diverged beyond a wall in the rate; a seed shifts every point alike, and each a little."""
    if point[0] > BEST[0] + 0.25:
        return None
    draw = np.random.default_rng([seed, *(int(2**20 * x) for x in point)])
    return math.exp(-3 + excess(point) + math.sin(seed) + noise * draw.standard_normal())


def searched(dimensions, noise, trials, per_round=8, seeds=2, known=()):
    space, found = Space(AXES[:dimensions]), list(known)
    while len(found) < trials:
        next_round = propose(space, found, min(per_round, trials - len(found)), per_round=per_round, seed=0)
        if not next_round.points:
            break
        found += [Trial(p, tuple(loss(p, s, noise) for s in range(seeds))) for p in next_round.points]
    return space, found


# the grid is 1/8 octave for lr, 1/2 for gamma0: half a step of each costs less than 0.01 here
@pytest.mark.parametrize(("dimensions", "trials"), [(1, 16), (2, 32), (3, 48)])
def test_the_minimum_is_found(dimensions, trials):
    """Without noise: within two percent of the lowest loss, past a wall on one side."""
    space, found = searched(dimensions, 0.0, trials)
    assert len(found) <= trials
    assert excess(ranking(space, found, 0)[0]) < 0.02


@pytest.mark.parametrize("dimensions", [1, 2])
def test_noise_does_not_lead_astray(dimensions):
    """Runs that scatter by 10 %: the point that is chosen loses less than that."""
    space, found = searched(dimensions, 0.1, 40)
    assert excess(ranking(space, found, 0)[0]) < 0.1


def test_better_than_chance():
    """The refined search against the very best of as many points of the Sobol start alone."""
    space, found = searched(3, 0.0, 40)
    blind = propose(space, [], 40, per_round=40, seed=0).points
    assert len(blind) == 40
    assert excess(ranking(space, found, 0)[0]) < 0.5 * min(excess(p) for p in blind)


@pytest.mark.parametrize(("dimensions", "trials"), [(3, 24), (3, 48), (2, 24)])
def test_the_same_results_give_the_same_proposals(dimensions, trials):
    """Far from the minimum, where the whole box is looked at, and near it, where its surroundings are."""
    space, found = searched(dimensions, 0.05, trials)
    again = [Trial(t.point, t.losses) for t in found]
    one, other = (propose(space, known, 8, per_round=8, seed=0) for known in (found, again))
    assert one == other and len(set(one.points)) == 8
    assert not set(one.points) & {t.point for t in found}


def test_another_result_gives_other_proposals():
    _, found = searched(2, 0.0, 16)
    worse = [Trial(t.point, tuple(None if x is None else 1 / x for x in t.losses)) for t in found]
    one, other = (propose(Space(AXES[:2]), trials, 8, per_round=8, seed=0) for trials in (found, worse))
    assert one.points != other.points


def test_a_round_cut_short_is_the_beginning_of_the_whole():
    for known in (0, 16):
        space, found = searched(2, 0.05, known)
        whole = propose(space, found, 8, per_round=8, seed=0).points
        assert propose(space, found, 3, per_round=8, seed=0).points == whole[:3]


def test_diverged_runs_are_information():
    """After the start, fewer of the proposals lie beyond the wall than its share of the box."""
    _, found = searched(2, 0.0, 40)
    start = start_size(Space(AXES[:2]), 8)
    beyond = [t.point[0] > BEST[0] + 0.25 for t in found]
    assert any(beyond[:start])
    assert sum(beyond[start:]) / len(beyond[start:]) < 0.15 < 1 - (BEST[0] + 0.25)


def test_where_nothing_trains_the_box_is_filled_on():
    trials = [Trial(p, (None, None)) for p in propose(Space(AXES), [], 8, per_round=8, seed=0).points]
    assert observe(trials) is None and ranking(Space(AXES), trials, 0) == []
    assert len(propose(Space(AXES), trials, 8, per_round=8, seed=0).points) == 8


def test_a_small_grid_is_tried_once_and_then_it_ends():
    space = Space((Axis("lr", "log2", -4.0, -3.5),))
    found = []
    for _ in range(5):
        points = propose(space, found, 8, per_round=8, seed=0).points
        found += [Trial(p, (1.0 + p[0], 1.1 + p[0])) for p in points]
    assert sorted(t.point[0] for t in found) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_it_stops_when_nothing_is_to_be_gained():
    _, found = searched(1, 0.0, 200)
    assert len(found) < 60


def test_sensitivity_of_a_known_bowl():
    """log loss = c x^2 in octaves x: one percent is lost at sqrt(log(1.01) / c), an octave costs e^c - 1."""
    space = Space((Axis("lr", "log2", -8, 0), Axis("gamma0", "log2", -4, 4)))
    curvature = (0.5, 0.02)

    def bowl(point):
        octaves = [axis.coordinate(x) - mid for axis, x, mid in zip(space.axes, point, (-4, 0), strict=True)]
        return math.exp(sum(c * x * x for c, x in zip(curvature, octaves, strict=True)))

    grid = [(i / 8, j / 8) for i in range(9) for j in range(9)]
    trials = [Trial(p, (bowl(p), bowl(p))) for p in grid]
    rows = sensitivities(space, trials, (0.5, 0.5), 0)
    for row, c in zip(rows, curvature, strict=True):
        room = math.sqrt(math.log(1.01) / c)
        assert row.unit == "octave" and row.edge is None
        assert (row.below + row.above) / 2 == pytest.approx(room, rel=0.35)
        assert row.lost_below == pytest.approx(math.expm1(c), rel=0.2)
        assert row.lost_above == pytest.approx(math.expm1(c), rel=0.2)


FLAT = Space((Axis("lr", "log2", -8, -2), Axis("gamma0", "log2", -4, 2)))


def valley(point, seed, noise=0.2):
    """Only the product of rate and gamma0 matters."""
    draw = np.random.default_rng([seed, *(int(2**20 * x) for x in point)])
    return math.exp(-3 + 8 * (point[0] + point[1] - 1) ** 2 + noise * draw.standard_normal())


def mapped(trials, spread, seed=0):
    """A search of the valley, one seed a trial."""
    found = []
    while len(found) < trials:
        points = propose(FLAT, found, 16, per_round=16, seed=seed, spread=spread).points
        found += [Trial(p, (valley(p, 0),)) for p in points]
        if not points:
            break
    return found


def longest_gap(points):
    """Of the valley's length, from -1 to 1, the longest piece without a point of its floor."""
    along = sorted([-1.0, 1.0, *(x - y for x, y in points if 8 * (x + y - 1) ** 2 < 0.2)])
    return max(b - a for a, b in itertools.pairwise(along))


def test_the_surface_sees_rate_times_gamma0():
    """From 24 points all over the box it knows the floor of a valley that runs across both axes better than
    one trial would tell it; without these features its error is more than twice that."""
    floor = np.array([(x, 1 - x) for x in np.linspace(0, 1, 21)])

    def error(seed, features):
        points = propose(FLAT, [], 24, per_round=24, seed=seed).points
        surface = Surface(observe([Trial(p, (valley(p, 0, 0.1),)) for p in points]), seed, features)
        return float(np.sqrt(np.mean((surface.log_loss(floor) + 3) ** 2)))

    seeds = range(4)
    with_them = np.mean([error(seed, FLAT.features()) for seed in seeds])
    assert with_them < 0.1 and with_them < 0.5 * np.mean([error(seed, None) for seed in seeds])


def test_a_spread_search_goes_where_less_is_known():
    """Its first point is the plain search's; the second is the least known one of all that may tie then."""
    found = mapped(32, spread=False)
    surface = Surface(observe(found), 0, FLAT.features())
    best = float(surface.predict(surface.seen.x)[0].min())
    candidates = candidates_of(FLAT, found, surface.predict(surface.seen.x)[0], 0)
    first, second = choose(surface, candidates, best, 2, spread=True)
    assert first == choose(surface, candidates, best, 1)[0]
    then = surface.believing(np.array(first))
    means, deviations = then.predict(candidates)
    mean, deviation = then.predict(np.array(second))
    assert then.tied(mean - deviation, best).all()
    assert deviation == pytest.approx(deviations[then.tied(means - deviations, best)].max(), rel=1e-6)
    assert second != choose(surface, candidates, best, 2)[1]


def test_finalists_are_spread_over_what_ties():
    """Along a valley all points tie: eight finalists leave no long piece of it out and none is on a wall."""
    found = mapped(48, spread=True)
    chosen = finalists(FLAT, found, 8, 0)
    assert len(set(chosen)) == 8 and chosen[0] == ranking(FLAT, found, 0)[0]
    assert longest_gap(chosen) < 0.8
    # two trials differ by chance by 0.28 (one standard deviation); the walls rise to 8
    assert max(8 * (x + y - 1) ** 2 for x, y in chosen) < 2 * 0.28


def test_where_nothing_ties_the_best_are_finalists():
    """A clean bowl: differences are real, and the places go to the lowest (half a percent is none)."""
    space, found = searched(2, 0.0, 40)
    chosen = finalists(space, found, 4, 0)
    assert chosen[0] == ranking(space, found, 0)[0] and len(set(chosen)) == 4
    assert max(map(excess, chosen)) < 0.02
