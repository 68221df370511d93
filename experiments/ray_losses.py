"""A Ray cluster of two nodes on this machine that loses tasks and a node: nothing may be lost, nothing twice.

    python experiments/ray_losses.py [--cells 200] [--kills 20]

Two nodes x two slots train the cells of a small grid. While they do, tasks are killed -9, spread over the
whole sweep, and one node is removed when half the cells are finished. Then every cell must have been accepted
once, with the bits of the same cells trained by processes of this machine.
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
        "run": {"steps": 300, "batch_size": 16, "eval_examples": 32},
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
    """The processes that train for this one: Ray names them after their task; their grandparent, by way of a
    node's raylet, is whoever started the cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                named = (entry / "cmdline").read_bytes().decode(errors="replace").startswith(TASK)
                if named and _parent(_parent(int(entry.name))) == os.getpid():
                    found.append(int(entry.name))
            except (OSError, IndexError):
                continue
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Trouble(threading.Thread):
    """Kills the k-th task when k of `wanted` + 1 parts of the cells are finished, and removes a node halfway.

    Attributes:
        kills: how many tasks were killed. removed_at: cells finished when the node went; None: it did not.
        removed_with: tasks under way on both nodes at that moment.
    """

    def __init__(self, cluster: Any, node: Any, store: Path, cells: int, wanted: int):
        super().__init__(daemon=True)
        self.cluster, self.node, self.store, self.cells, self.wanted = cluster, node, store, cells, wanted
        self.kills, self.removed_with, self.over = 0, 0, False
        self.removed_at: int | None = None

    def run(self) -> None:
        dice = random.Random(0)
        while not self.over:
            time.sleep(dice.uniform(0.02, 0.2))
            pids, done = task_processes(), self._count()
            if pids and self.kills < self.wanted and done >= self.kills * self.cells // (self.wanted + 1):
                try:
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue
            if self.removed_at is None and done >= self.cells // 2 and len(pids) > 2:
                self.removed_at, self.removed_with = done, len(pids)  # more than one node's: its own die, too
                self.cluster.remove_node(self.node, allow_graceful=False)

    def _count(self) -> int:
        if not self.store.exists():
            return 0
        store = Store(self.store)
        counts = store.counts()
        store.close()
        return counts["done"] + counts["diverged"] + counts["failed"]


def retries(path: Path) -> int:
    """Attempts beyond the first, summed over cells; those lost with a node do not count as attempts."""
    store = Store(path)
    (found,) = store._read("SELECT SUM(attempts - 1) FROM cells")
    store.close()
    return int(found[0])


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
        retried=retries(folder / "lossy.db"),
        node_removed_after=trouble.removed_at,
        tasks_under_way_then=trouble.removed_with,
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
