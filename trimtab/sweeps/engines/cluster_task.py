"""What runs on a node of a cluster: one attempt at a unit, told to the driver as parcels.

    order -> begun, (beat | checkpoint)*, ended

The attempt trains in a thread; the task's own thread sends what it says, asks the driver's desk whether to
stop, and watches the wall clock. It touches no store and no disk but to read the user's files.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trimtab.sweeps.engines import parcels
from trimtab.sweeps.row_checksums import pack_curves, unpack_curves
from trimtab.sweeps.store import Claim

BEAT = 4.0  # seconds between heartbeats
GLANCE = 0.5  # seconds between looks at the desk


@dataclass(frozen=True)
class Order:
    """What a node is told: the claim, and under what to train it.

    Attributes:
        folder, working: where the user's files are looked for; None: the task's own working folder.
    """

    claim: Claim
    budget: dict[str, float]
    threads: int
    folder: str | None
    working: str | None

    def pack(self, checkpoint: bytes | None) -> bytes:
        c = self.claim
        claim = dict(
            unit=c.unit,
            fleet=c.fleet,
            cells=c.cells,
            configs=c.configs,
            tokens=c.tokens,
            attempts=c.attempts,
        )
        rest = dict(budget=self.budget, threads=self.threads, folder=self.folder, working=self.working)
        blobs = {} if checkpoint is None else {"checkpoint": checkpoint}
        return parcels.pack({"claim": claim} | rest, blobs)


def read_order(content: bytes) -> tuple[Order, bytes | None]:
    """(order, checkpoint to resume from) of a parcel."""
    header, blobs = parcels.unpack(content)
    given = header.pop("claim")
    claim = Claim(**given | {key: tuple(given[key]) for key in ("cells", "configs", "tokens")})
    return Order(claim=claim, **header), blobs.get("checkpoint")


def train_unit(content: bytes, stop: Callable[[], bool]) -> Iterator[bytes]:
    """Train the unit of an order; yields parcels for the driver.

    Args:
        stop: whether the driver wants everyone to leave.
    """
    order, checkpoint = read_order(content)
    if order.working is not None:
        os.chdir(order.working)
    thread = _Trainer(order, checkpoint)
    yield parcels.pack({"kind": "begun", "host": os.uname().nodename, "pid": os.getpid()})
    thread.start()
    beaten = time.monotonic()
    while True:
        try:
            parcel, last = thread.inbox.get(timeout=GLANCE)
        except queue.Empty:
            parcel, last = None, False
        if parcel is not None:
            yield parcel
        if last:
            return
        attempt = thread.attempt
        if attempt is None:
            continue
        if (ended := attempt.hung()) is not None:
            yield pack_ended(ended, kind="hung")
            return
        if stop():
            attempt.stopping.set()
        if time.monotonic() - beaten > BEAT:
            beaten = time.monotonic()
            yield parcels.pack({"kind": "beat", "steps": attempt.steps, "training": attempt.training})


class _Trainer(threading.Thread):
    """The attempt in its own thread; what it says lies in `inbox` as (parcel, whether it is the last)."""

    def __init__(self, order: Order, checkpoint: bytes | None):
        super().__init__(daemon=True)
        self.order, self.checkpoint = order, checkpoint
        self.inbox: queue.SimpleQueue[tuple[bytes, bool]] = queue.SimpleQueue()
        self.attempt: Any = None

    def run(self) -> None:
        try:
            ended = self._train()
        except BaseException as error:  # whatever it is, the driver must hear of it
            self._say({"kind": "raised", "text": f"{type(error).__name__}: {error}"}, last=True)
        else:
            self.inbox.put((pack_ended(ended), True))

    def _train(self) -> Any:
        import torch

        from trimtab.files import looking_in
        from trimtab.runs.checkpoints import BytesKeeper
        from trimtab.sweeps.attempts import Attempt

        torch.set_num_threads(self.order.threads)  # a thread has its own number
        with looking_in(self.order.folder):
            keeper = BytesKeeper(self.checkpoint, self._send_checkpoint)
            files: dict[str, str] = {}
            self.attempt = Attempt(self.order.claim, keeper, self.order.budget, files, self._say_training)
            return self.attempt.run()

    def _say(self, header: dict[str, Any], *, last: bool = False) -> None:
        self.inbox.put((parcels.pack(header), last))

    def _say_training(self) -> None:
        self._say({"kind": "beat", "steps": 0, "training": True})

    def _send_checkpoint(self, content: bytes) -> None:
        header = {"kind": "checkpoint", "steps": self.attempt.steps}
        self.inbox.put((parcels.pack(header, {"checkpoint": content}), False))


def pack_ended(ended: Any, kind: str = "ended") -> bytes:
    """How an attempt ended, as a parcel: numbers as JSON, curves as arrays."""
    rows = [[cell, state, row, error] for cell, state, row, _, error in ended.outcomes]
    curves = {o[0]: pack_curves(o[3]) for o in ended.outcomes if o[3] is not None}
    return parcels.pack(
        {"kind": kind, "outcomes": rows, "left": ended.left, "crashed": ended.crashed}, curves
    )


def read_outcomes(header: dict[str, Any], blobs: dict[str, bytes]) -> list[tuple[Any, ...]]:
    """The outcomes of an "ended" parcel, as a store takes them."""
    curves = {cell: unpack_curves(blob) for cell, blob in blobs.items()}
    return [(cell, state, row, curves.get(cell), error) for cell, state, row, error in header["outcomes"]]


def remote_unit(content: bytes, desk: Any) -> Iterator[bytes]:
    """`train_unit` as a Ray task: the desk says whether to stop; a desk that is gone means so, too."""
    import ray

    def stop() -> bool:
        try:
            return bool(ray.get(desk.is_closed.remote(), timeout=30.0))
        except Exception:
            return True

    with contextlib.closing(train_unit(content, stop)) as parts:  # type: ignore[type-var]
        yield from parts


class Desk:
    """An actor beside the driver that knows whether the tasks should leave."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def is_closed(self) -> bool:
        return self.closed
