"""One attempt at a unit: train its cells, and say how it ended. It knows no store and no engine.

    Claim -> Attempt.run -> Ended: outcomes to commit, and whether the rest goes back (left, crashed)

So a process of this machine and a task on a node of a cluster do the same, bit for bit.
"""

from __future__ import annotations

import errno
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.runs import fleet, user_code
from trimtab.runs.arithmetic import arithmetic
from trimtab.runs.checkpoints import Keeper
from trimtab.runs.config import RunConfig
from trimtab.runs.devices import OutOfMemory
from trimtab.runs.results import RunResult
from trimtab.runs.tasks import prepare
from trimtab.runs.training import Interrupted, run
from trimtab.sweeps.store import Claim

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
GRACE = 5.0  # seconds beyond the wall clock before a unit that does not come back is cut off

Outcome = tuple[str, str, dict[str, Any] | None, dict[str, Any] | None, str | None]


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Attributes:
        outcomes: (cell, state, numbers, curves, error) to commit.
        left: asked to stop: the cells without an outcome go back, their checkpoint is written.
        crashed: it raised and may be tried again: its cells go back, and the attempt counts.
    """

    outcomes: tuple[Outcome, ...] = ()
    left: bool = False
    crashed: bool = False

    @property
    def final(self) -> bool:
        """Whether nothing of the unit is left to do, so that its checkpoint may go."""
        return not self.left


class Attempt:
    """A unit under way.

    Args:
        claim: what was claimed.
        keeper: where its checkpoint is read from and written to.
        budget: of the sweep: "cell_seconds" (wall clock of one run), "retries", "checkpoint_seconds".
        files: the users' files as this process first met them, {name: SHA-256}; it grows.
        asked: called whenever the attempt asks whether to stop: from then on a stop leaves a checkpoint.
        log: where the runs are logged (`RunConfig.log`); no part of a cell, so not in its configuration.
    """

    def __init__(
        self,
        claim: Claim,
        keeper: Keeper,
        budget: dict[str, float],
        files: dict[str, str],
        asked: Callable[[], None] = lambda: None,
        log: str | None = None,
    ):
        self.claim, self.keeper, self.budget, self.files = claim, keeper, budget, files
        self.stopping = threading.Event()
        self.steps = 0  # made so far
        self.training = False  # from the first question whether to stop until the end
        self.over = False  # the wall clock has run out
        self._asked, self._log, self._begun = asked, log, time.monotonic()

    def run(self) -> Ended:
        """Train the unit.

        Raises:
            OSError: a disk is full.
        """
        changed = self._changed_files()
        if changed:
            return self._failed(
                f"{', '.join(changed)}: the file has changed since this cell was made. `trimtab sweep` again "
                "runs the cells of the file as it is now."
            )
        try:
            configs = [RunConfig(**c, log=self._log) for c in self.claim.configs]
            results = self._train(configs)
        except Interrupted:
            if not self.over:
                return Ended(left=True)
            limit = f"{self.budget['cell_seconds']:g} s (budget.cell_seconds)"
            return self._failed(f"the run took longer than its wall clock of {limit}")
        except OutOfMemory as error:  # apart or again it would not fit either
            return self._failed(str(error))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise
            return self._handle_error(traceback.format_exc())
        ended = zip(self.claim.cells, results, configs, strict=True)
        return Ended(tuple(outcome(cell, result, c) for cell, result, c in ended))

    def hung(self) -> Ended | None:
        """What to commit if the unit is stuck in native code far beyond its wall clock; None if it is not."""
        limit = self.budget["cell_seconds"] * len(self.claim.cells) + GRACE
        if time.monotonic() - self._begun <= limit:
            return None
        return self._failed(f"the run hung beyond its wall clock of {self.budget['cell_seconds']:g} s")

    def _changed_files(self) -> list[str]:
        """The users' functions whose file is not the one that the unit's cells were made with."""
        held = {name: sha for c in self.claim.configs for name, sha in (c.get("sources") or {}).items()}
        self.files |= user_code.sources(*(name for name in held if name not in self.files))
        return [name for name, sha in held.items() if self.files.get(name, sha) != sha]

    def _train(self, configs: list[RunConfig]) -> list[RunResult]:
        every = self.budget["checkpoint_seconds"]
        given: dict[str, Any] = dict(progress=self._note_step, stop=self._should_stop)
        if self.claim.fleet:
            return fleet.run(configs, checkpoint=self.keeper, every=every, **given)
        return [run(configs[0], checkpoint=self.keeper, every=every, **given)]

    def _handle_error(self, text: str) -> Ended:
        """A unit raised. A fleet is taken apart: each member alone has the numbers it has in the fleet, and
        only the guilty fail."""
        claim = self.claim
        self.keeper.remove()
        if not claim.fleet or len(claim.cells) == 1:
            retry = claim.attempts <= self.budget["retries"]
            return Ended(crashed=True) if retry else self._failed(text)
        out: list[Outcome] = []
        for cell, config in zip(claim.cells, claim.configs, strict=True):
            try:
                single = RunConfig(**config)
                result = fleet.run([single], stop=self._should_stop)[0]
            except Interrupted:
                return Ended(tuple(out), left=True)
            except Exception:
                out.append((cell, "failed", None, None, traceback.format_exc()))
            else:
                out.append(outcome(cell, result, single))
        return Ended(tuple(out))

    def _failed(self, text: str) -> Ended:
        return Ended(tuple((cell, "failed", None, None, text) for cell in self.claim.cells))

    def _note_step(self, step: int, *_: Any) -> None:
        self.steps = step + 1

    def _should_stop(self) -> bool:
        if not self.training:
            self.training = True
            self._asked()
        if time.monotonic() - self._begun > self.budget["cell_seconds"] * len(self.claim.cells):
            self.over = True
        return self.over or self.stopping.is_set()


def outcome(cell: str, result: RunResult, config: RunConfig) -> Outcome:
    """A result as the store takes it, with what the proof of its size's plan said: it was made with the plan,
    which runs of this size in this process share."""
    row = result.row() | {
        "arithmetic": arithmetic(torch.get_num_threads(), config.device),
        "proof": prepare(config).proof,
    }
    return cell, row.pop("state"), row, result.curves, None
