"""The search at base size as rounds over a store.

    trials of round 1 .. r  --propose-->  trials of round r + 1  -->  cells (points x seeds)  -->  store

The whole search is replayed from its beginning at every call: a round whose runs are all in the store costs
nothing, the first one that is not is what to run now. So there is no state beside the results, and a killed
search goes on to the same answer. Cells of a round differ only in numbers and train as fleets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.runs.config import RunConfig
from trimtab.sweeps.store import Store
from trimtab.tuning.config import TuneConfig
from trimtab.tuning.proposals import Round, propose, ranking, start_size
from trimtab.tuning.surface import Trial

Point = tuple[float, ...]
Results = Mapping[str, Mapping[str, Any]]  # {cell: {"state", "loss", "flops"}}


@dataclass(frozen=True)
class Search:
    """A search as far as it got.

    Attributes:
        trials: all finished points with the seeds of the search. finals: the finalists with all their seeds.
        wanted: runs to make now; empty when the search is over. why: why no further point was tried.
        failed: runs that raised: they say nothing about a point.
    """

    trials: tuple[Trial, ...]
    finals: tuple[Trial, ...]
    wanted: tuple[RunConfig, ...]
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
    """One walk through the search, given what is known now."""

    def __init__(self, config: TuneConfig, known: Results, slots: int = 1):
        self.config, self.known, self.slots = config, known, slots
        self.flops, self.failed = 0.0, 0

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
            wanted, fresh = self._look_up(found.points, range(c.seeds))
            if wanted:
                return self._now(trials, [], wanted, "")
            trials += fresh
        best = ranking(trials, c.seed)[: c.finalists]
        wanted, finals = self._look_up(best, range(c.seeds, c.seeds + c.final_seeds))
        held = {trial.point: trial.losses for trial in trials}
        finals = (
            [Trial(t.point, held[t.point] + t.losses) for t in finals]
            if c.final_seeds
            else [Trial(point, held[point]) for point in best]
        )
        return self._now(trials, [] if wanted else finals, wanted, why)

    def _propose(self, trials: Sequence[Trial], count: int) -> Round:
        c = self.config
        if c.method == "optuna":
            from trimtab.tuning.optuna_proposals import propose as ask

            return ask(c.space, trials, count, start=start_size(c.space, c.per_round), seed=c.seed)
        return propose(c.space, trials, count, per_round=c.per_round, seed=c.seed)

    def _look_up(self, points: Sequence[Point], seeds: range) -> tuple[list[RunConfig], list[Trial]]:
        """(runs that are missing, the trials of points that are not)."""
        wanted: list[RunConfig] = []
        trials = []
        for point in points:
            values = self.config.space.values(point)
            runs = [self.config.at(values, self.config.base, seed) for seed in seeds]
            rows = [self.known.get(run.model_copy(update={"fleet": self.slots}).hash) for run in runs]
            wanted += [run for run, row in zip(runs, rows, strict=True) if row is None]
            held = [row for row in rows if row is not None]
            good = [row for row in held if row["state"] != "failed"]
            self.failed += len(held) - len(good)
            self.flops += sum(row["flops"] for row in good)
            if good:
                trials.append(Trial(point, tuple(row["loss"] for row in good)))
        return wanted, trials

    def _now(self, trials: list[Trial], finals: list[Trial], wanted: list[RunConfig], why: str) -> Search:
        return Search(
            trials=tuple(trials),
            finals=tuple(finals),
            wanted=tuple(wanted),
            flops=self.flops,
            failed=self.failed,
            why=why,
        )


def best_of(finals: Sequence[Trial]) -> Trial:
    """The finalist with the lowest mean log loss; those that lost a seed come after all that kept theirs.

    Raises:
        TrimtabError: no run trained.
    """

    def rank(trial: Trial) -> tuple[int, float]:
        good = [math.log(loss) for loss in trial.losses if loss is not None]
        return sum(loss is None for loss in trial.losses), sum(good) / max(1, len(good))

    usable = [trial for trial in finals if any(loss is not None for loss in trial.losses)]
    if not usable:
        raise TrimtabError(
            "no trial trained: every run diverged, ended no better than it began, or failed. Lower search.lr."
        )
    return min(usable, key=rank)
