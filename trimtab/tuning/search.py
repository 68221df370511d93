"""The search as rounds over a store: points at base size, then its finalists at a larger one.

    trials of round 1 .. r  --propose-->  trials of round r + 1  -->  cells (points x seeds)  -->  store
    all trials  --finalists-->  half of the fresh seeds at `final_size`  -->  the better half: the other seeds
                (fewer of them where one seed shows that little is to be gained)

The whole search is replayed from its beginning at every call: a round whose runs are all in the store costs
nothing, the first one that is not is what to run now. So there is no state beside the results, and a killed
search goes on to the same answer. Cells of a round differ only in numbers and train as fleets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.runs.config import RunConfig
from trimtab.sweeps.store import Store
from trimtab.tuning.config import TuneConfig
from trimtab.tuning.larger import finalists, little_to_gain
from trimtab.tuning.proposals import Round, propose, ranking, start_size
from trimtab.tuning.surface import Trial

Point = tuple[float, ...]
Size = tuple[int, int]
Results = Mapping[str, Mapping[str, Any]]  # {cell: {"state", "loss", "flops"}}


@dataclass(frozen=True)
class Search:
    """A search as far as it got.

    Attributes:
        trials: all finished points with the seeds of the search. finals: the finalists that were compared to
            the end, with all their seeds: at the base those of the search and the fresh ones, else the fresh.
        runs: how many took part, those of finalists that left half way too.
        wanted: runs to make now; empty when the search is over. why: why no further point was tried.
        failed: runs that raised: they say nothing about a point.
    """

    trials: tuple[Trial, ...]
    finals: tuple[Trial, ...]
    wanted: tuple[RunConfig, ...]
    runs: int
    flops: float
    failed: int
    why: str = ""


def read_results(store: Store, metric: str) -> dict[str, dict[str, Any]]:
    """What the store holds of finished cells; a run that ended no better than it began has no loss."""
    table: Any = store.to_pandas()
    ended = table[table["state"].isin(("done", "diverged", "failed"))]
    found = {}
    for row in ended.to_dict("records"):
        good = row["state"] == "done" and not row["collapsed"] and math.isfinite(row[metric])
        loss = float(row[metric]) if good else None
        flops = row["flops"] if math.isfinite(row["flops"]) else 0.0
        found[str(row["cell"])] = dict(state=row["state"], loss=loss, flops=float(flops))
    return found


class Replay:
    """One walk through the search, given what is known now.

    Args:
        slots: of the fleets of a size: part of a cell's name.
    """

    def __init__(self, config: TuneConfig, known: Results, slots: Callable[[Size], int] = lambda size: 1):
        self.config, self.known, self.slots = config, known, slots
        self.used: dict[str, float] = {}  # {cell: FLOPs}: two points may round to one run
        self.failed = 0

    def walk(self) -> Search:
        """Round by round until runs are missing or the search is over."""
        c, trials, why = self.config, list[Trial](), ""
        while True:
            left = c.trials - len(trials)
            found = (
                self._propose(trials, min(c.per_round, left))
                if left
                else Round((), None, "trials are used up")
            )
            if not found.points:
                why = found.why
                break
            wanted, fresh = self._look_up(found.points, range(c.seeds), c.base)
            if wanted:
                return self._now(trials, [], wanted, "")
            trials += fresh
        wanted, finals = self._compare(trials)
        return self._now(trials, [] if wanted else finals, wanted, why)

    def _compare(self, trials: Sequence[Trial]) -> tuple[list[RunConfig], list[Trial]]:
        """(runs that are missing, the finalists): half of the seeds for all, the rest for the better half.

        At a larger size a run is dear: there one seed comes first. Where more seeds could not improve the
        choice by as much as matters, a quarter gets a second one and the best of these the rest.
        """
        c = self.config
        larger = c.final_size != c.base and c.final_seeds > 0
        if larger:
            now = [Trial(point, ()) for point in finalists(c.space, trials, c.finalists, c.seed)]
        else:
            held = {trial.point: trial.losses for trial in trials}
            now = [Trial(point, held[point]) for point in ranking(c.space, trials, c.seed)[: c.finalists]]
        first, half = c.seeds, c.seeds + (c.final_seeds + 1) // 2
        one = first + 1 if larger and first + 1 < half else half
        most = (len(now) + 1) // 2
        for seeds in (range(first, one), range(one, half), range(half, c.seeds + c.final_seeds)):
            if seeds.start == half:
                now = sorted(now, key=_rank)[:most]
            wanted, now = self._add(now, seeds)
            if wanted:
                return wanted, []
            if seeds.stop == one < half and little_to_gain(now):
                now, most = sorted(now, key=_rank)[: (len(now) + 3) // 4], 1
        return [], now

    def _add(self, trials: Sequence[Trial], seeds: range) -> tuple[list[RunConfig], list[Trial]]:
        """(runs that are missing, the same points with these seeds of the final size added)."""
        wanted, more = self._look_up([trial.point for trial in trials], seeds, self.config.final_size)
        fresh = {trial.point: trial.losses for trial in more}
        return wanted, [Trial(t.point, t.losses + fresh.get(t.point, ())) for t in trials]

    def _propose(self, trials: Sequence[Trial], count: int) -> Round:
        c = self.config
        if c.method == "optuna":
            from trimtab.tuning.optuna_proposals import propose as ask

            return ask(c.space, trials, count, start=start_size(c.space, c.per_round), seed=c.seed)
        spread = c.final_size != c.base
        return propose(c.space, trials, count, per_round=c.per_round, seed=c.seed, spread=spread)

    def _look_up(
        self, points: Sequence[Point], seeds: range, size: Size
    ) -> tuple[list[RunConfig], list[Trial]]:
        """(runs that are missing, the trials of points that are not)."""
        wanted: list[RunConfig] = []
        trials = []
        for point in points:
            values = self.config.space.values(point)
            runs = [self.config.at(values, size, seed) for seed in seeds]
            cells = [run.model_copy(update={"fleet": self.slots(size)}).hash for run in runs]
            rows = [self.known.get(cell) for cell in cells]
            wanted += [run for run, row in zip(runs, rows, strict=True) if row is None]
            held = [row for row in rows if row is not None]
            good = [row for row in held if row["state"] != "failed"]
            self.failed += len(held) - len(good)
            self.used |= {cell: row["flops"] for cell, row in zip(cells, rows, strict=True) if row in good}
            if good:
                trials.append(Trial(point, tuple(row["loss"] for row in good)))
        return wanted, trials

    def _now(self, trials: list[Trial], finals: list[Trial], wanted: list[RunConfig], why: str) -> Search:
        return Search(
            trials=tuple(trials),
            finals=tuple(finals),
            wanted=tuple(wanted),
            runs=len(self.used),
            flops=sum(self.used.values()),
            failed=self.failed,
            why=why,
        )


def _rank(trial: Trial) -> tuple[float, float]:
    """(share of seeds that were lost, mean log loss of the others); what is not known at all is last."""
    good = [math.log(loss) for loss in trial.losses if loss is not None]
    lost = 1 - len(good) / len(trial.losses) if trial.losses else 2.0
    return lost, sum(good) / max(1, len(good))


def best_of(finals: Sequence[Trial]) -> Trial:
    """The finalist with the lowest mean log loss; those that lost a seed come after all that kept theirs.

    Raises:
        TrimtabError: no run trained.
    """
    usable = [trial for trial in finals if any(loss is not None for loss in trial.losses)]
    if not usable:
        raise TrimtabError(
            "no trial trained: every run diverged, ended no better than it began, or failed. Lower search.lr."
        )
    return min(usable, key=_rank)
