"""The truth of a sweep: its cells, who works on them, and what they gave, in one SQLite file. No torch.

    waiting --claim (lease, token + 1)--> running --finish (same token)--> done | diverged | failed
       ^------------ lease over, or released ------'

A claim takes a *unit*: one cell, or all cells of a fleet. A result is accepted once, from whoever holds the
newest token; a worker that was frozen and comes back too late is refused. Each row carries a SHA-256 of what
it says (`row_checksums`), checked whenever it is read: a flipped bit is never a number in a report. How the
file is opened, written and copied is in `database`; how its cells become a table in `cell_table`.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.files import json_ready, write_text
from trimtab.sweeps.cell_table import table
from trimtab.sweeps.database import Database, StoreError
from trimtab.sweeps.row_checksums import STATES, Damage, intact, pack_curves, seal, unpack_curves

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

LEASE = 30.0  # seconds a claim lasts without a heartbeat
CRASHES = 10  # times a unit may kill its worker before it is given up


@dataclass(frozen=True)
class Claim:
    """Work taken: the cells of one unit, with the token each was claimed under."""

    unit: str
    fleet: bool
    cells: tuple[str, ...]
    configs: tuple[dict[str, Any], ...]
    tokens: tuple[int, ...]
    attempts: int


class Store(Database):
    """A sweep's file.

    Args:
        path: the SQLite file.
        create: make it if it is not there. Otherwise a missing file is an error.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(Path(folder) / "sweep.db", create=True)
    ...     added = store.add([("cell", "first", {"lr": 0.1}, "unit", False, 1.0)])
    ...     claim = store.claim("me")
    ...     accepted = store.finish(claim, "cell", "done", {"train_loss": 0.5})
    ...     store.counts()["done"], float(store.to_pandas().train_loss[0])
    (1, 0.5)
    """

    open = classmethod(lambda cls, path: cls(path))  # type: ignore[assignment]

    # -- the grid --------------------------------------------------------------------------------------------

    def add(self, cells: Iterable[tuple[str, str, dict[str, Any], str, bool, float]]) -> int:
        """Add cells that are not there yet; returns how many were new.

        Args:
            cells: (name, label, config, unit, whether the unit is a fleet, cost in floating point
                operations).
        """
        before = self._db.total_changes
        with self._writing():
            self._db.executemany(
                "INSERT OR IGNORE INTO cells (cell, label, config, unit, fleet, cost, state) VALUES (?, ?, "
                "?, ?, ?, ?, 'waiting')",
                (
                    (cell, label, json.dumps(config, sort_keys=True), unit, int(fleet), cost)
                    for cell, label, config, unit, fleet, cost in cells
                ),
            )
        return self._db.total_changes - before

    def cell_names(self) -> set[str]:
        """The names of all cells."""
        return {row[0] for row in self._read("SELECT cell FROM cells")}

    def versions(self) -> dict[int, int]:
        """{version of the cells' fields: how many cells have it}; cells from before there were versions count
        as 1."""
        return dict(
            self._read(
                "SELECT coalesce(json_extract(config, '$.version'), 1), count(*) FROM cells GROUP BY 1"
            )
        )

    def arithmetics(self) -> dict[str, int]:
        """{class of rounding: how many results were made in it}."""
        query = (
            "SELECT json_extract(result, '$.arithmetic') AS a, count(*) FROM cells WHERE result IS NOT "
            "NULL AND a IS NOT NULL GROUP BY a"
        )
        return dict(self._read(query))

    def waiting_sources(self) -> list[tuple[str, dict[str, str]]]:
        """(cell, {name: SHA-256 of the user's file it was made with}) of the cells that wait and have such
        files."""
        found = self._read(
            "SELECT cell, json_extract(config, '$.sources') FROM cells WHERE state = 'waiting' AND "
            "json_extract(config, '$.sources') NOT IN ('{}')"
        )
        return [(cell, json.loads(held)) for cell, held in found]

    def forget(self, cells: Iterable[str]) -> int:
        """Remove cells that wait; returns how many were removed."""
        before = self._db.total_changes
        with self._writing():
            self._db.executemany(
                "DELETE FROM cells WHERE cell = ? AND state = 'waiting'", [(cell,) for cell in cells]
            )
        return self._db.total_changes - before

    def set_meta(self, **values: Any) -> None:
        """Keep facts about the sweep as a whole."""
        with self._writing():
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [(k, json.dumps(v, sort_keys=True)) for k, v in values.items()],
            )

    @property
    def meta(self) -> dict[str, Any]:
        """Facts about the sweep: name, config, toml, base, versions, command."""
        return {key: json.loads(value) for key, value in self._read("SELECT key, value FROM meta")}

    # -- work ------------------------------------------------------------------------------------------------

    def claim(self, owner: str, lease: float = LEASE) -> Claim | None:
        """Take the costliest waiting unit, those that killed a worker last; None if nothing waits."""
        now = time.time()
        with self._writing():
            self._db.execute(
                "UPDATE cells SET state = 'waiting', owner = NULL WHERE state = 'running' AND lease < ?",
                (now,),
            )
            found = self._db.execute(
                "SELECT unit FROM cells WHERE state = 'waiting' ORDER BY attempts, cost DESC, id LIMIT 1"
            ).fetchone()
            if found is None:
                return None
            rows = self._db.execute(
                "UPDATE cells SET state = 'running', owner = ?, token = token + 1, attempts = attempts + 1, "
                "lease = ? WHERE unit = ? AND state = 'waiting' "
                "RETURNING id, cell, config, token, fleet, attempts",
                (owner, now + lease, found[0]),
            ).fetchall()
        rows.sort()
        return Claim(
            found[0],
            bool(rows[0][4]),
            tuple(r[1] for r in rows),
            tuple(json.loads(r[2]) for r in rows),
            tuple(r[3] for r in rows),
            max(r[5] for r in rows),
        )

    def heartbeat(self, owner: str, lease: float = LEASE, steps: int = 0) -> None:
        """Say that an owner is alive, so that its claims last on, and how many steps its runs have made."""
        with self._writing():
            self._db.execute(
                "UPDATE cells SET lease = ?, steps = ? WHERE owner = ? AND state = 'running'",
                (time.time() + lease, steps, owner),
            )

    def release(self, owner: str, *, crashed: bool = False) -> int:
        """Give an owner's claims back; after many crashes a unit is failed instead. Returns how many cells it
        held."""
        with self._writing():
            if crashed:
                self._db.execute(
                    "UPDATE cells SET state = 'failed', owner = NULL, error = ?, sha = NULL WHERE owner = ? "
                    "AND state = 'running' AND attempts >= ?",
                    (
                        f"the worker died {CRASHES} times while it ran this cell (out of memory, or a crash "
                        "in native code)",
                        owner,
                        CRASHES,
                    ),
                )
            changed = self._db.execute(
                "UPDATE cells SET state = 'waiting', owner = NULL, attempts = attempts - ? WHERE owner = ? "
                "AND state = 'running'",
                (0 if crashed else 1, owner),
            ).rowcount
            self._seal_failed()
        return changed

    def holds(self, claim: Claim) -> bool:
        """Whether a claim is still the newest of its cells."""
        tokens = dict(zip(claim.cells, claim.tokens, strict=True))
        query = "SELECT cell, token FROM cells WHERE unit = ? AND state = 'running'"
        return any(tokens.get(cell) == token for cell, token in self._read(query, claim.unit))

    def owners(self) -> list[str]:
        """Who holds claims."""
        return [
            row[0]
            for row in self._read(
                "SELECT DISTINCT owner FROM cells WHERE state = 'running' AND owner IS NOT NULL"
            )
        ]

    def claims(self) -> list[tuple[str, float | None, int]]:
        """(owner, when its lease is over in seconds since 1970, how many cells it holds) of every claim."""
        query = (
            "SELECT coalesce(owner, ''), lease, count(*) FROM cells WHERE state = 'running' GROUP BY "
            "owner, lease"
        )
        return self._read(query)

    def count_collapsed(self) -> int:
        """How many finished cells ended no better than they began."""
        query = "SELECT count(*) FROM cells WHERE state = 'done' AND json_extract(result, '$.collapsed') = 1"
        return self._read(query)[0][0]

    def finish(
        self,
        claim: Claim,
        cell: str,
        state: str,
        result: Mapping[str, Any] | None = None,
        curves: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> bool:
        """Commit one cell's outcome; False if the claim is no longer the newest (then nothing is written)."""
        return self.finish_all(claim, [(cell, state, result, curves, error)]) == 1

    def finish_all(
        self,
        claim: Claim,
        outcomes: Iterable[tuple[str, str, Mapping[str, Any] | None, Mapping[str, Any] | None, str | None]],
    ) -> int:
        """Commit several cells of a claim in one transaction; returns how many were accepted."""
        tokens = dict(zip(claim.cells, claim.tokens, strict=True))
        accepted = 0
        with self._writing():
            for cell, state, result, curves, error in outcomes:
                text = None if result is None else json.dumps(json_ready(result), sort_keys=True)
                data = None if curves is None else pack_curves(curves)
                changed = self._db.execute(
                    "UPDATE cells SET state = ?, result = ?, error = ?, sha = ?, owner = NULL, lease = "
                    "NULL, accepted = accepted + 1 WHERE cell = ? AND token = ? AND state = 'running'",
                    (state, text, error, seal(cell, state, text, error, data), cell, tokens[cell]),
                ).rowcount
                if changed and data is not None:
                    self._db.execute("INSERT OR REPLACE INTO curves VALUES (?, ?)", (cell, data))
                accepted += changed
        return accepted

    def _seal_failed(self) -> None:
        for cell, error in self._db.execute(
            "SELECT cell, error FROM cells WHERE state = 'failed' AND sha IS NULL"
        ).fetchall():
            self._db.execute(
                "UPDATE cells SET sha = ? WHERE cell = ?", (seal(cell, "failed", None, error, None), cell)
            )

    def retry(self, states: Iterable[str]) -> int:
        """Set cells in these states back to waiting; returns how many."""
        with self._writing():
            chosen = tuple(states)
            marks = ",".join("?" * len(chosen))
            self._db.execute(
                f"DELETE FROM curves WHERE cell IN (SELECT cell FROM cells WHERE state IN ({marks}))", chosen
            )
            return self._db.execute(
                "UPDATE cells SET state = 'waiting', owner = NULL, attempts = 0, result = NULL, error = "
                f"NULL, sha = NULL WHERE state IN ({marks})",
                chosen,
            ).rowcount

    # -- reading ---------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """How many cells are in each state."""
        return dict.fromkeys(STATES, 0) | dict(self._read("SELECT state, count(*) FROM cells GROUP BY state"))

    def costs(self) -> tuple[float, float]:
        """(floating point operations spent, of all cells), for the time to go; runs under way count by their
        steps."""
        share = (
            "CASE WHEN state IN ('done', 'diverged', 'failed') THEN 1.0 WHEN state = 'running' THEN 1.0 * "
            "steps / json_extract(config, '$.steps') ELSE 0.0 END"
        )
        row = self._read(
            f"SELECT sum(cost * min(1.0, {share})), sum(cost) FROM cells WHERE json_extract(config, "
            "'$.steps') > 0"
        )[0]
        return float(row[0] or 0), float(row[1] or 0)

    def under_way(self) -> list[tuple[int, int]]:
        """(steps made, steps in all) of each unit that is running."""
        return self._read(
            "SELECT max(steps), max(json_extract(config, '$.steps')) FROM cells WHERE state = 'running' "
            "GROUP BY unit"
        )

    def finished_elsewhere(self) -> set[str]:
        """Canonical configurations, without the users' files' hashes, of finished cells that name such
        files."""
        query = (
            "SELECT json_remove(config, '$.sources') FROM cells WHERE state IN ('done', 'diverged') AND "
            "json_extract(config, '$.sources') NOT IN ('{}')"
        )
        return {json.dumps(json.loads(row[0]), sort_keys=True) for row in self._read(query)}

    def best(self) -> tuple[float, dict[str, Any]] | None:
        """(lowest training loss so far, its configuration)."""
        found = self._read(
            "SELECT json_extract(result, '$.train_loss') AS loss, config FROM cells WHERE state = 'done' AND "
            "json_extract(result, '$.collapsed') = 0 ORDER BY loss LIMIT 1"
        )
        return (found[0][0], json.loads(found[0][1])) if found else None

    def wrong_proofs(self) -> list[tuple[str, str]]:
        """(scheme, width and depth in words; what its proof by one step said) of the sizes that fail it."""
        found = self._read(
            "SELECT json_extract(config, '$.scheme'), json_extract(config, '$.width'), "
            "json_extract(config, '$.depth'), min(json_extract(result, '$.proof')) AS said FROM cells "
            "WHERE result IS NOT NULL AND json_extract(result, '$.proof') LIKE 'wrong%' "
            "GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
        return [(f"{scheme}, width {width}, depth {depth}", said) for scheme, width, depth, said in found]

    def errors(self, limit: int = 5) -> list[tuple[str, str]]:
        """(cell, traceback) of failed cells."""
        return [
            (c, e or "")
            for c, e in self._read(
                "SELECT cell, error FROM cells WHERE state = 'failed' ORDER BY id LIMIT ?", limit
            )
        ]

    def check(self) -> list[Damage]:
        """What is wrong with the file: SQLite's own structure, and each finished row against its SHA-256."""
        query = (
            "SELECT c.cell, c.config, c.state, c.result, c.error, c.sha, v.data FROM cells c "
            "LEFT JOIN curves v ON v.cell = c.cell ORDER BY c.id"
        )
        try:
            broken = [row[0] for row in self._db.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
            if broken:
                return [Damage("structure", f"structure: {words}") for words in broken]
            wrong = [str(row[0])[:80] for row in self._db.execute(query) if not intact(*row)]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            return [Damage("structure", f"structure: {error}")]
        return [Damage("cell", f"cell {cell}: its contents do not match their SHA-256") for cell in wrong]

    def to_pandas(self) -> pd.DataFrame:
        """One row per cell: `cell`, `label`, `state`, the configuration's fields (nested ones dotted), the
        results, `error`.

        Raises:
            StoreError: a row does not match its SHA-256, or SQLite finds the file broken.
        """
        wrong = self.check()
        if wrong:
            raise StoreError(
                f"the store {self.path} is damaged: "
                f"{wrong[0]}{f' and {len(wrong) - 1} more faults' if len(wrong) > 1 else ''}. `trimtab "
                "sweep` again mends it."
            )
        return table(self._read("SELECT cell, label, state, config, result, error FROM cells ORDER BY id"))

    def to_csv(self, path: str | Path) -> None:
        """Write `to_pandas` as CSV, whole or not at all."""
        write_text(path, self.to_pandas().to_csv(index=False, lineterminator="\n"))

    def curves(self, cell: str) -> dict[str, np.ndarray]:
        """A finished cell's curves: "step", "loss", "smoothed", and "test_step", "test_loss", "accuracy" if
        evaluated; else {}."""
        found = self._read(
            "SELECT c.config, c.state, c.result, c.error, c.sha, v.data FROM cells c JOIN curves v ON "
            "v.cell = c.cell WHERE c.cell = ?",
            cell,
        )
        if not found:
            return {}
        if not intact(cell, *found[0]):
            raise StoreError(
                f"the store {self.path} is damaged: the curves of cell {cell} do not match their SHA-256."
            )
        return unpack_curves(found[0][-1])

    # -- sections of a report --------------------------------------------------------------------------------

    def config(self, cell: str) -> dict[str, Any]:
        """The fields of a cell's run."""
        rows = list(self._read("SELECT config FROM cells WHERE cell = ?", cell))
        if not rows:
            raise StoreError(f"the store {self.path} has no cell {cell}.")
        return json.loads(rows[0][0])

    def attach(self, kind: str, content: Mapping[str, Any]) -> None:
        """Keep a section for the report (kind "check" or "limit"); one with the same title is replaced."""
        text = json.dumps(content, sort_keys=True)
        with self._writing():
            for row, held in self._db.execute(
                "SELECT id, content FROM attachments WHERE kind = ?", (kind,)
            ).fetchall():
                if json.loads(held).get("title") == content.get("title"):
                    self._db.execute("DELETE FROM attachments WHERE id = ?", (row,))
            self._db.execute(
                "INSERT INTO attachments (kind, content, sha) VALUES (?, ?, ?)",
                (kind, text, hashlib.sha256(text.encode()).hexdigest()),
            )

    def attached(self, kind: str) -> list[dict[str, Any]]:
        """The sections of one kind."""
        out = []
        for text, sha in self._read("SELECT content, sha FROM attachments WHERE kind = ? ORDER BY id", kind):
            if hashlib.sha256(text.encode()).hexdigest() != sha:
                raise StoreError(
                    f"the store {self.path} is damaged: an attached {kind} does not match its SHA-256."
                )
            out.append(json.loads(text))
        return out
