"""`trimtab.sweep`: the whole grid, or an adaptive sweep where the file has `[search] adaptive = true`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.errors import faults
from trimtab.files import looking_in
from trimtab.runs.config import RunConfig
from trimtab.sweeps import driver, grid, placement
from trimtab.sweeps.driver import Outcome
from trimtab.sweeps.engines.choice import choose_engine
from trimtab.sweeps.grid import SweepConfig
from trimtab.sweeps.rounds import Listed, run_rounds
from trimtab.sweeps.store import Store


def sweep(
    config: str | Path | Mapping[str, Any] | SweepConfig,
    store: str | Path | None = None,
    *,
    workers: int = 2,
    engine: str = "local",
    address: str = "local",
    progress: Any = None,
    threads: int = 1,
) -> Outcome:
    """Run a sweep, or go on with it: calling it again does only what is missing.

    Args:
        config: the path of a sweep.toml, a dict or a SweepConfig. With `[search] adaptive = true` the grid's
            values are a lattice of which the runs that tell most are made, until the verdict is decided.
        store: the SQLite file; default: beside the file, as sweep.db.
        workers: units under way at once. A cluster takes as many as it has room for. threads: of each.
        engine: "local" (processes of this machine) or "ray" (tasks of a Ray cluster; the extra `ray`).
        address: of the cluster: "local" (one of this machine's own), "auto" (the one that runs here) or
            "HOST:PORT".
        progress: an object with `update(store, running)`, called twice a second, and `stopping(running)`,
            called when the sweep is interrupted and waits for this many workers, and `note(text)`; None is
            silent.

    Raises:
        InputError: everything that is wrong with the sweep, before any work.
        Stopped: Ctrl-C, or a disk that is full: call again to go on.
    """
    made = grid.read(config)
    if made.search is None:
        given = config if isinstance(config, str | Path) else made
        return driver.sweep(
            given,
            store,
            workers=workers,
            engine=engine,
            address=address,
            progress=progress,
            threads=threads,
        )
    problems = driver.call_faults(config, store, workers)
    chosen = choose_engine(engine, address, problems)
    if problems or chosen is None:
        raise faults("trimtab sweep:", problems)
    place = driver.store_path(config, store)
    what = str(config) if isinstance(config, str | Path) else "the sweep"
    made = placement.settle(made, remote=engine == "ray" and address != "local", what=what)
    from trimtab.refinement.walk import Walk  # with the statistics, for which a grid need not wait

    walk = Walk(made)

    def ask(held: Store) -> Sequence[RunConfig]:
        step = walk.advance(held)
        if progress is not None:
            for words in step.words:
                progress.note(f"round {step.rounds + 1}: {words}")
        return step.runs

    listed = Listed(**{f.name: getattr(made, f.name) for f in dataclasses.fields(SweepConfig)})
    options: dict[str, Any] = dict(workers=workers, threads=threads, progress=progress)
    return run_rounds(listed, ask, place, engine=chosen, **options)


def asks_next(store: Store) -> list[str]:
    """What the adaptive sweep of a store asks for next and why, a line each; none where it is a grid."""
    from trimtab.refinement.walk import Walk

    meta = store.meta
    plain = meta.get("config") or {}
    if not plain.get("search"):
        return []
    roots = meta.get("roots") or []
    made = grid.from_plain(plain, Path(roots[-1]) if len(roots) > 1 else None)
    with looking_in(made.folder):
        step = Walk(made).advance(store)
    head = f"adaptive: round {step.rounds + 1} asks for {len(step.runs)} more runs"
    return [
        head if step.runs else f"adaptive: ended after {step.rounds} rounds",
        *map("  {}".format, step.words),
    ]
