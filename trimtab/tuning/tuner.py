"""`trimtab.tune`: search at the base, hand over at the target.

tune.toml -> rounds of trials at base size -> the best, the surface -> the target's groups, a snippet
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import InputError, faults_in
from trimtab.files import looking_in
from trimtab.runs.config import RunConfig
from trimtab.sweeps.engines.choice import choose_engine
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.placement import settle_run
from trimtab.sweeps.rounds import Listed, run_rounds
from trimtab.sweeps.store import Store
from trimtab.sweeps.units import choose_slots, refuse_unbuildable
from trimtab.tuning.config import Confirm, TuneConfig, read
from trimtab.tuning.result import Best, Confirmation, Cost, Tuned, interval
from trimtab.tuning.search import Replay, Search, best_of, read_results
from trimtab.tuning.sensitivity import Sensitivity, sensitivities
from trimtab.tuning.surface import Trial


def tune(
    config: str | Path | Mapping[str, Any] | TuneConfig,
    store: str | Path | None = None,
    *,
    workers: int = 2,
    threads: int = 1,
    engine: str = "local",
    address: str = "local",
    progress: Any = None,
) -> Tuned:
    """Search hyperparameters at base size and say what to set at target size. Called again, it goes on.

    Args:
        config: the path of a tune.toml, a dict or a TuneConfig.
        store: the SQLite file of the runs; default: beside the file, as tune.db.
        workers: processes. threads: of each.
        engine, address, progress: as in `trimtab.sweep`. The answer is the same on any engine; proposals are
            made here.

    Raises:
        InputError: everything that is wrong with the tune, before any work.
        Stopped: Ctrl-C, or a disk that is full: call again to go on.
    """
    made, problems = read(config), list[str]()
    chosen = choose_engine(engine, address, problems)
    if chosen is None:
        raise InputError("\n".join(["trimtab tune:", *(f"  - {p}" for p in problems)]))
    run, gpu, faults = settle_run(made.run, remote=engine == "ray" and address != "local")
    if faults:
        raise faults_in(str(config) if isinstance(config, str | Path) else "the tune", faults)
    made = dataclasses.replace(made, run=run)
    if store is None and not isinstance(config, str | Path):
        raise InputError("store: name the SQLite file of a tune that is not read from a file.")
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise InputError(f"workers: must be >= 1: got {workers!r}.")
    place = Path(store) if store is not None else Path(config).with_suffix(".db")  # type: ignore[arg-type]
    with looking_in(made.folder):
        tuning = Tuning(made, gpu)
        refuse_unbuildable(tuning.sizes())
        given: dict[str, Any] = dict(workers=workers, threads=threads, progress=progress)
        run_rounds(tuning.listed(), tuning.ask, place, engine=chosen, **given)
        held = Store(place)
        try:
            return tuning.answer(held)
        finally:
            held.close()


class Tuning:
    """One call of `tune`: what to run next, and the answer when nothing is left."""

    def __init__(self, config: TuneConfig, gpu: int | None = None):
        self.config, self.gpu = config, gpu
        self._slots: dict[tuple[int, int], int] = {}

    def listed(self) -> Listed:
        """The sweep that the rounds are cells of."""
        c = self.config
        axes = {axis.name: (axis.value(0.0), axis.value(1.0)) for axis in c.space.axes}
        plain = SweepConfig(
            name=c.name,
            schemes=(c.scheme,),
            base=c.base,
            sizes=(c.base,),
            axes=axes,
            seeds=tuple(range(c.seeds)),
            run=c.run,
            fleet=c.fleet,
            budget=c.budget,
            folder=c.folder,
            gpu=self.gpu,
        )
        return Listed(**{key: getattr(plain, key) for key in plain.__dataclass_fields__})

    def sizes(self) -> list[RunConfig]:
        """A run of every size that the search or its answer needs."""
        c, middle = self.config, self.config.space.values((0.5,) * len(self.config.space))
        sizes = [c.base, c.final_size, (c.target.width, c.target.depth)]
        sizes += [c.confirm.size] if c.confirm is not None else []
        return [c.at(middle, size, 0) for size in dict.fromkeys(sizes)]

    def ask(self, store: Store) -> Sequence[RunConfig]:
        """The runs that are missing now: of the search, then of the confirmation."""
        found = self.search(store)
        if found.wanted or not found.finals:
            return found.wanted
        if self.config.confirm is None:
            return ()
        known = read_results(store, self.config.metric)
        runs = self._confirming(best_of(found.finals), self.config.confirm)
        return [run for run in runs if self._named(run) not in known]

    def search(self, store: Store) -> Search:
        """The search as far as the store knows it."""
        known = read_results(store, self.config.metric)
        return Replay(self.config, known, self._slots_at).walk()

    def _slots_at(self, size: tuple[int, int]) -> int:
        """Slots of the fleets of a size: part of a cell's name."""
        if size not in self._slots:
            middle = self.config.space.values((0.5,) * len(self.config.space))
            cells, _ = choose_slots([self.config.at(middle, size, 0)], self.config.fleet)
            self._slots[size] = cells[0].fleet
        return self._slots[size]

    def _named(self, run: RunConfig) -> str:
        return run.model_copy(update={"fleet": self._slots_at((run.width, run.depth))}).hash

    def _confirming(self, best: Trial, confirm: Confirm) -> list[RunConfig]:
        c, values = self.config, self.config.space.values(best.point)
        # where the finalists were compared, seeds that took no part in the choice
        first = c.seeds + c.final_seeds if confirm.size in (c.base, c.final_size) else 0
        return [c.at(values, confirm.size, first + seed) for seed in range(confirm.seeds)]

    # -- the answer ------------------------------------------------------------------------------------------

    def answer(self, store: Store) -> Tuned:
        """All that follows from a finished search."""
        from trimtab.tuning.snippet import write_snippet
        from trimtab.tuning.target import groups_at, horizon_of, plan_target

        c, found = self.config, self.search(store)
        top = best_of(found.finals)
        best = self._best(top)
        at = c.at(best.values, (c.target.width, c.target.depth), 0)
        horizon = horizon_of(c.target.batch, c.target.tokens, c.target.rule)
        plan, _, meta = plan_target(at)
        rows = sensitivities(c.space, found.trials, top.point, c.seed)
        confirmation = None if c.confirm is None else self._confirmation(store, best, c.confirm, top)
        return Tuned(
            name=c.name,
            base=c.base,
            size=(c.target.width, c.target.depth),
            scheme=c.scheme,
            best=best,
            sensitivity=tuple(rows),
            target=tuple(groups_at(plan, at, horizon)),
            snippet=write_snippet(at, horizon, meta=meta),
            expected=best.loss if best.high is None else best.high,
            cost=self._cost(found, at, c.target.tokens),
            confirmation=confirmation,
            why=found.why,
            notes=tuple(_notes(rows, found)),
            failed=found.failed,
        )

    def _best(self, top: Trial) -> Best:
        good = [loss for loss in top.losses if loss is not None]
        loss, low, high = interval(good)
        c, moved = self.config, self.config.final_size != self.config.base and self.config.final_seeds > 0
        return Best(
            values=c.space.values(top.point),
            metric=c.metric,
            size=c.final_size if moved else c.base,
            loss=loss,
            low=low,
            high=high,
            seeds=len(top.losses),
            fresh=len(top.losses) - (0 if moved else min(len(top.losses), c.seeds)),
            diverged=len(top.losses) - len(good),
        )

    def _cost(self, found: Search, at: RunConfig, tokens: float) -> Cost:
        from trimtab.tuning.target import step_flops

        step = step_flops(at)
        there = None if step is None else step * at.steps * tokens * found.runs
        return Cost(trials=len(found.trials), runs=found.runs, flops=found.flops, at_target=there)

    def _confirmation(self, store: Store, best: Best, confirm: Confirm, top: Trial) -> Confirmation:
        known = read_results(store, self.config.metric)
        rows = [known[self._named(run)] for run in self._confirming(top, confirm)]
        good = [row["loss"] for row in rows if row["loss"] is not None]
        loss, low, high = interval(good) if good else (None, None, None)
        return Confirmation(
            size=confirm.size,
            loss=loss,
            low=low,
            high=high,
            seeds=len(rows),
            diverged=len(rows) - len(good),
            verdict=_verdict(best, loss, low, len(rows) - len(good)),
        )


def _verdict(best: Best, loss: float | None, low: float | None, diverged: int) -> str:
    """The carried numbers must not do worse than where they were chosen, beyond the interval there."""
    top = best.loss if best.high is None else best.high
    if loss is None or diverged:
        return "worse"
    if loss <= top:
        return "as good"
    return "worse" if low is not None and low > top else "cannot tell"


def _notes(rows: Sequence[Sensitivity], found: Search) -> list[str]:
    notes = [
        f"{row.name} is best at the {row.edge} end of its range ({row.value:.4g}): the best may lie beyond."
        for row in rows
        if row.edge is not None
    ]
    if found.failed:
        notes.append(
            f"{found.failed} runs failed and say nothing; `trimtab retry`, then the same command again."
        )
    return notes
