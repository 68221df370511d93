"""`trimtab retry`: set a sweep's failed or diverged cells back to waiting."""

from __future__ import annotations

import dataclasses

from trimtab.commands.options import Positional
from trimtab.errors import InputError


@dataclasses.dataclass
class Retry:
    """Set cells back to waiting; the next `trimtab sweep` runs them."""

    store: Positional[str]
    """The sweep's SQLite file."""
    failed: bool = False
    """Cells that raised, hung or killed their worker."""
    diverged: bool = False
    """Cells whose loss was lost."""

    def run(self) -> int:
        from trimtab.sweeps.store import Store

        states = [s for s, chosen in (("failed", self.failed), ("diverged", self.diverged)) if chosen]
        if not states:
            raise InputError("say which cells run again: --failed, --diverged or both.")
        changed = Store(self.store).retry(states)
        if not changed:
            print(f"nothing to run again: no cell of {self.store} is {' or '.join(states)}.")
            return 0
        cells = "1 cell waits" if changed == 1 else f"{changed} cells wait"
        print(f"{cells} again; trimtab sweep runs {'it' if changed == 1 else 'them'}.")
        return 0
