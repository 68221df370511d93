"""A Ray cluster of two nodes on this machine that loses tasks and a node: nothing may be lost, nothing twice.

    python experiments/ray_losses.py [--cells 200] [--kills 20]

Two nodes x two slots train the cells of a small grid. While they do, tasks are killed -9 at random moments
and one node is removed when half the cells are finished. Then every cell must have been accepted once, with
the bits of the same cells trained by processes of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from trimtab.sweeps.driver import sweep
from trimtab.sweeps.store import Store

TASK = "ray::remote_unit"


def grid(cells: int) -> dict[str, Any]:
    return {
        "base": [8, 3],
        "depths": [3, 6],
        "seeds": max(1, cells // 20),
        "axes": {"lr": {"log2": [-7, 2], "step": 1}},
        "run": {"steps": 120, "batch_size": 16, "eval_examples": 32},
        "fleet": 1,
        "budget": {"checkpoint_seconds": 0.05},
    }


def results(path: Path) -> dict[str, tuple[Any, ...]]:
    """{cell: (state, numbers but the time, curves, how often accepted)}."""
    store, out = Store(path), {}
    for cell, state, text, accepted in store._read("SELECT cell, state, result, accepted FROM cells"):
        numbers = {k: v for k, v in json.loads(text or "{}").items() if k != "seconds"}
        curves = {k: v.tobytes() for k, v in store.curves(cell).items()}
        out[cell] = (state, numbers, curves, accepted)
    store.close()
    return out


def task_processes() -> list[int]:
    """The processes that train now: Ray names them after their task."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if name.startswith(TASK):
                found.append(int(entry.name))
    return found


class Trouble(threading.Thread):
    """Kills tasks, and removes a node halfway."""

    def __init__(self, cluster: Any, node: Any, store: Path, cells: int, wanted: int):
        super().__init__(daemon=True)
        self.cluster, self.node, self.store, self.cells, self.wanted = cluster, node, store, cells, wanted
        self.kills, self.removed_at, self.over = 0, None, False

    def run(self) -> None:
        dice = random.Random(0)
        while not self.over:
            time.sleep(dice.uniform(0.1, 0.5))
            pids = task_processes()
            if pids and self.kills < self.wanted:
                try:
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue
            done = self._count()
            if self.removed_at is None and done >= self.cells // 2:
                self.removed_at = done
                self.cluster.remove_node(self.node, allow_graceful=False)

    def _count(self) -> int:
        if not self.store.exists():
            return 0
        counts = Store(self.store).counts()
        return counts["done"] + counts["diverged"] + counts["failed"]


def lose(folder: Path, cells: int, kills: int) -> dict[str, Any]:
    """Run it; what was seen."""
    from ray.cluster_utils import Cluster

    table = grid(cells)
    sweep(table, folder / "calm.db")
    calm = results(folder / "calm.db")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    node = cluster.add_node(num_cpus=2)
    trouble = Trouble(cluster, node, folder / "lossy.db", len(calm), kills)
    trouble.start()
    begun = time.monotonic()
    try:
        outcome = sweep(table, folder / "lossy.db", engine="ray", address=cluster.address)
    finally:
        trouble.over = True
        trouble.join()
        cluster.shutdown()
    lossy = results(folder / "lossy.db")
    return dict(
        cells=len(lossy),
        counts=outcome.counts,
        killed=trouble.kills,
        node_removed_after=trouble.removed_at,
        accepted_once=sum(v[3] == 1 for v in lossy.values()),
        same_bits=sum(calm.get(cell, ())[:3] == v[:3] for cell, v in lossy.items()),
        seconds=round(time.monotonic() - begun, 1),
        said=outcome.said,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(lose(Path(name), given.cells, given.kills), indent=2))
