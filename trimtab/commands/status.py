"""`trimtab status`: how far a sweep is, and what failed. The words that `trimtab sweep` ends with are made
here too."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.commands.options import Positional, Text
from trimtab.errors import is_own_file

if TYPE_CHECKING:
    from trimtab.sweeps.store import Store


@dataclasses.dataclass
class Status:
    """How far a sweep is, and what failed."""

    store: Positional[str]
    """The sweep's SQLite file."""
    csv: Text = None
    """Also write all cells to this CSV file."""
    json: bool = False
    """Print the counts as JSON."""

    def run(self) -> int:
        """Print how far a sweep is; exit code 4 if cells failed, 3 if it is not finished."""
        from trimtab.sweeps.store import Store

        store = Store(self.store)
        counts = count(store)
        if self.csv:
            store.to_csv(self.csv)
        best = store.best()
        if self.json:
            top = None if best is None else {"train_loss": best[0], "config": best[1]}
            wrong = [{"size": where, "proof": said} for where, said in store.wrong_proofs()]
            print(
                json.dumps({"counts": counts, "best": top, "errors": store.errors(), "wrong_proofs": wrong})
            )
        else:
            print("\n".join(_lines(store, counts, best)))
        if counts["waiting"] + counts["running"] + counts["interrupted"]:
            return 3
        return 4 if counts["failed"] else 0


def _lines(store: Store, counts: Mapping[str, int], best: tuple[float, dict[str, Any]] | None) -> list[str]:
    lines = [describe(counts, store.path)]
    if counts["interrupted"]:
        lines.append("interrupted: nothing runs these cells now; the same trimtab sweep goes on with them.")
    if counts["collapsed"]:
        lines.append(
            "collapsed: the loss ended no lower than it began; trimtab transfer counts these with the "
            "diverged."
        )
    from trimtab.sweeps.driver import proof_warning

    lines += [proof_warning(where, said) for where, said in store.wrong_proofs()]
    if best is not None:
        lines.append(f"best so far: loss {best[0]:.4g} at {run_name(best[1])}")
    lines += [f"failed {cell}: {last_line(error)}" for cell, error in store.errors()]
    from trimtab.refinement.sweeping import asks_next

    lines += asks_next(store)
    if counts["failed"]:
        lines.append(f"trimtab retry {store.path} --failed runs them again")
    return lines


def describe(counts: Mapping[str, int], path: Path) -> str:
    """A sweep's state in a sentence.

    >>> describe({"waiting": 0, "running": 0, "done": 7, "diverged": 1, "failed": 0}, Path("a.db"))
    'all 8 cells finished: 7 done, 1 diverged, 0 failed (a.db)'
    >>> counts = {"waiting": 1, "running": 0, "interrupted": 2, "done": 7, "collapsed": 3}
    >>> counts |= {"diverged": 0, "failed": 0}
    >>> print(describe(counts, Path("a.db")).replace(": ", ":\\n"))
    7 of 10 cells finished, 0 running, 2 interrupted, 1 waiting:
    7 done (3 of them collapsed), 0 diverged, 0 failed (a.db)
    """
    ended = counts["done"] + counts["diverged"] + counts["failed"]
    interrupted = counts.get("interrupted", 0)
    total = ended + counts["running"] + interrupted + counts["waiting"]
    stopped = f", {interrupted} interrupted" if interrupted else ""
    left = f"{counts['running']} running{stopped}, {counts['waiting']} waiting"
    head = f"all {total} cells finished" if ended == total else f"{ended} of {total} cells finished, {left}"
    collapsed = f" ({counts['collapsed']} of them collapsed)" if counts.get("collapsed") else ""
    parts = f"{counts['done']} done{collapsed}, {counts['diverged']} diverged, {counts['failed']} failed"
    return f"{head}: {parts} ({path})"


def count(store: Store, now: float | None = None) -> dict[str, int]:
    """How many of a store's cells are in each state now.

    "running" are cells that someone runs; those whose owner is gone or whose lease is over are "interrupted":
    the next `trimtab sweep` takes them. "collapsed" are those of "done" that ended no better than they began.
    With "diverged" they are what does not train, which is how `trimtab transfer` counts.
    """
    from trimtab.sweeps.claim_owners import alive

    counts, now = store.counts(), time.time() if now is None else now
    lost = sum(n for owner, lease, n in store.claims() if lease is None or lease < now or not alive(owner))
    running = counts["running"] - lost
    return counts | {"running": running, "interrupted": lost, "collapsed": store.count_collapsed()}


def last_line(error: str) -> str:
    """The last line of a traceback, which says what was raised, and the last line of the user's that led
    there."""
    places = [(name, at) for name, at in re.findall(r'File "(.+)", line (\d+)', error) if is_own_file(name)]
    place = f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""
    return f"{error.strip().splitlines()[-1][:300]}{place}" if error.strip() else "?"


def run_name(config: Mapping[str, Any]) -> str:
    """A run in a few words: its scheme, size, learning rate and seed."""
    size = f"width {config['width']}, depth {config['depth']}"
    return f"{config['scheme']}, {size}, lr {config['lr']:.4g}, seed {config['seed']}"
