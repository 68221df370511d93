"""`trimtab sweep`: run a sweep or resume it, with a live display."""

from __future__ import annotations

import dataclasses

from trimtab.commands.options import Positional, Text


@dataclasses.dataclass
class Sweep:
    """Run a sweep, or go on with it: only what is missing is done."""

    config: Positional[str]
    """sweep.toml: `trimtab new sweep.toml` writes one with every key explained."""
    store: Text = None
    """The SQLite file of results; default: beside the file, as sweep.db."""
    workers: int = 2
    """Processes."""
    threads: int = 1
    """Threads of each process."""
    ray: Text = None
    """Train as tasks of a Ray cluster: local (a Ray of --workers slots for this call), auto (the one that
    runs on this machine) or HOST:PORT of its head. A cluster runs whatever code it is sent."""

    def run(self) -> int:
        """Run or resume; the exit code is 0, 4 if some cells failed, 130 if it was interrupted."""

        from trimtab.commands.display import run_shown
        from trimtab.commands.status import count, describe, last_line
        from trimtab.refinement.sweeping import sweep
        from trimtab.sweeps.driver import proof_warning
        from trimtab.sweeps.store import Store

        outcome = run_shown(sweep, self)
        if outcome is None:
            return 130
        store = Store(outcome.store)
        print(describe(count(store), outcome.store))
        for where, said in store.wrong_proofs():
            print(proof_warning(where, said))
        for cell, error in store.errors(1):
            print(
                f"the first failure, cell {cell}: {last_line(error)}\n  trimtab status {outcome.store} shows "
                "more; "
                f"trimtab retry {outcome.store} --failed runs them again"
            )
        return outcome.exit_code
