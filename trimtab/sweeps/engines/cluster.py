"""Tasks of a Ray cluster: the driver claims and commits, the nodes train.

    claim (lease, token) -> order --Ray task--> parcels -> checkpoint file, commit with the same token

The driver is the only one that touches the store. Orders, checkpoints and results are bytes with a SHA-256;
Ray carries them in its object store, so that nodes need no shared disk. A task that dies, or its node, gives
its claim back; the unit starts elsewhere from the last checkpoint that reached the driver. A task that has
not been heard of for a lease is given up; should it come back, its token is old and its result refused.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimtab.errors import InputError
from trimtab.runs import checkpoints
from trimtab.runs.arithmetic import environment
from trimtab.sweeps.attempts import NO_SPACE
from trimtab.sweeps.engines import parcels
from trimtab.sweeps.engines.cluster_task import Desk, Order, read_outcomes, remote_unit
from trimtab.sweeps.engines.job import Job, Stopped
from trimtab.sweeps.engines.shipment import Shipment, pack_files
from trimtab.sweeps.placement import classes
from trimtab.sweeps.store import LEASE, Claim, Store
from trimtab.sweeps.worker import BEAT, checkpoint_of

KNOCK = 5.0  # seconds a port has to answer
HEALTH = 10.0  # seconds Ray's own health check has
LOOK = 2.0  # seconds between looks at the cluster's size


@dataclass
class Task:
    """A unit under way on some node. `heard` is when it last said something; None: it has not begun."""

    owner: str
    claim: Claim
    heard: float | None = None
    training: bool = False
    steps: int = 0


class Cluster:
    """Units as tasks of a Ray cluster.

    Args:
        address: "local", "auto" or HOST:PORT.
    """

    def __init__(self, job: Job, address: str):
        self.job, self.address = job, address
        self.tasks: dict[Any, Task] = {}  # by the stream of their parcels
        self.births = 0
        self.own = False  # whether this call connected to Ray
        self.warned = False
        self.beaten = self.looked = 0.0
        self.room = 0

    @property
    def running(self) -> int:
        return len(self.tasks)

    # -- connecting ------------------------------------------------------------------------------------------

    def start(self, store: Store) -> None:
        """Connect, and prepare what is sent with every task.

        Raises:
            InputError: there is no cluster at the address.
        """
        import ray

        self.store = store
        self.shipment = Shipment() if self.address == "local" else pack_files(self.job.config)
        for line in self.shipment.notes:
            self.job.say(line)
        if self.job.config.run.get("log"):
            self.job.say("log: runs on a cluster are not logged; their curves are in the store.")
        try:
            self._connect(ray)
        except Exception:
            self.shipment.remove()
            raise
        self.desk: Any = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=_here(ray)).remote()
        asked = self._resources()
        self.needs = {"CPU": asked["num_cpus"], "GPU": asked["num_gpus"], "memory": asked["memory"] or 0}
        options: dict[str, Any] = dict(asked, max_retries=0, num_returns="streaming")
        if not self.own:  # somebody's own connection: the files are theirs to ship, the numbers' mode is ours
            options["runtime_env"] = {"env_vars": environment(self.job.threads)}
        self.task = ray.remote(remote_unit).options(**options)

    def _connect(self, ray: Any) -> None:
        quiet: dict[str, Any] = dict(log_to_driver=False, logging_level="ERROR")
        env: dict[str, Any] = {"env_vars": environment(self.job.threads)}
        if ray.is_initialized():
            _refuse_another(self.address, ray.get_runtime_context().gcs_address)
            return
        self.own = True
        if self.address == "local":
            asked = self._resources()
            slots = max(1, round(asked["num_cpus"] * self.job.workers))
            ray.init(address="local", num_cpus=slots, include_dashboard=False, runtime_env=env, **quiet)
            return
        _knock(self.address)
        try:
            ray.init(address=self.address, runtime_env=env | self.shipment.environment, **quiet)
        except Exception as error:
            raise no_cluster(self.address, f"{type(error).__name__}: {error}") from error

    def _resources(self) -> dict[str, Any]:
        """What a task asks of a node, by the sweep's table [ray]."""
        given = self.job.config.ray
        return dict(
            num_cpus=given.get("num_cpus", self.job.threads),
            num_gpus=given.get("num_gpus", int("cuda" in classes(self.job.config))),
            memory=given.get("memory"),
        )

    # -- work ------------------------------------------------------------------------------------------------

    def fill(self, waiting: int) -> None:
        """Claim units for the room there is, and send them off."""
        if time.monotonic() - self.looked > LOOK:
            self.looked, self.room = time.monotonic(), self._count_room()
        while waiting and len(self.tasks) < max(1, self.room):  # one task tells a cluster what is wanted
            self.births += 1
            owner = f"{self.job.mark}/{self.births}"
            claim = self.store.claim(owner)
            if claim is None:
                return
            self._send(owner, claim)
            waiting -= len(claim.cells)

    def _send(self, owner: str, claim: Claim) -> None:
        local = self.address == "local" or not self.own
        order = Order(
            claim=claim,
            budget=self.job.budget,
            threads=self.job.threads,
            folder=str(self.job.folder) if local and self.job.folder is not None else None,
            working=os.getcwd() if self.address == "local" and self.own else None,
        )
        content = order.pack(checkpoints.read(checkpoint_of(self.job.path, claim.unit)))
        self.tasks[self.task.remote(content, self.desk)] = Task(owner, claim)

    def _count_room(self) -> int:
        """How many tasks the cluster can run at once, were nobody else on it."""
        import ray

        found = 0
        for node in ray.nodes():
            have = node.get("Resources", {}) if node.get("Alive") else {}
            wanted = {name: n for name, n in self.needs.items() if n}
            found += min((int(have.get(name, 0) / n) for name, n in wanted.items()), default=self.job.workers)
        if not found and not self.warned:
            self.warned = True
            asked = ", ".join(f"{name} {n:g}" for name, n in self.needs.items() if n)
            self.job.say(f"no node of the cluster has room for a task ({asked}): waiting for one.")
        return found

    def listen(self, wait: float) -> None:
        """Take the parcels that came; keep the leases of those who live."""
        import ray

        if self.tasks:
            ready, _ = ray.wait(list(self.tasks), num_returns=1, timeout=wait, fetch_local=True)
            if ready:  # whatever else is there by now
                ready, _ = ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=0)
            for stream in ready:
                self._take(stream)
        else:
            time.sleep(min(wait, 0.1))
        self._beat()

    def _take(self, stream: Any) -> None:
        """One parcel of a task, or its end."""
        import ray
        from ray.exceptions import NodeDiedError, RayError

        task = self.tasks[stream]
        try:
            content: Any = ray.get(next(stream))
            header, blobs = parcels.unpack(content)
        except StopIteration:
            self._give_back(stream, crashed=True)  # it ended without a last parcel
            return
        except (RayError, parcels.Damaged) as error:
            lost = isinstance(error, NodeDiedError)  # not the unit's fault
            self._give_back(stream, crashed=not lost)
            return
        task.heard = time.monotonic()
        kind = header["kind"]
        if kind in ("beat", "checkpoint"):
            task.training, task.steps = True if kind == "checkpoint" else header["training"], header["steps"]
        if kind == "checkpoint":
            self._keep(task.claim, blobs["checkpoint"])
        elif kind in ("ended", "hung"):
            self._commit(stream, header, blobs)
        elif kind == "raised":
            self.job.say(f"a task could not train unit {task.claim.unit}: {header['text']}")
            self._give_back(stream, crashed=True)

    def _keep(self, claim: Claim, content: bytes) -> None:
        """Write a checkpoint that reached the driver, if it is whole and the claim is still ours."""
        if not checkpoints.is_whole(content) or not self.store.holds(claim):
            return
        try:
            checkpoints.write(checkpoint_of(self.job.path, claim.unit), content)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise Stopped(f"{error}; free some space and run the same command again.") from error
            raise

    def _commit(self, stream: Any, header: dict[str, Any], blobs: dict[str, bytes]) -> None:
        task = self.tasks.pop(stream)
        accepted = self.store.finish_all(task.claim, read_outcomes(header, blobs))
        if header["left"] or header["crashed"]:
            self.store.release(task.owner, crashed=header["crashed"])
        elif accepted:
            checkpoints.remove(checkpoint_of(self.job.path, task.claim.unit))
        if header["kind"] == "hung":
            self._kill(stream)

    def _give_back(self, stream: Any, *, crashed: bool) -> None:
        self.store.release(self.tasks.pop(stream).owner, crashed=crashed)

    def _beat(self) -> None:
        """Renew the leases of tasks that wait for a node or were heard of; give up those that went silent."""
        now = time.monotonic()
        if now - self.beaten < BEAT:
            return
        self.beaten = now
        for stream, task in list(self.tasks.items()):
            if task.heard is not None and now - task.heard > LEASE:
                self._kill(stream)
                self._give_back(stream, crashed=True)
            else:
                self.store.heartbeat(task.owner, steps=task.steps)

    def _kill(self, stream: Any) -> None:
        import ray

        with contextlib.suppress(Exception):  # it may be gone already
            ray.cancel(stream, force=True)

    def wake(self) -> None:
        """Nothing to do: no wait here is longer than half a second."""

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, stopping: Callable[[int], Any] | None) -> None:
        """Ask the tasks to leave: those that train send a checkpoint, the others are ended at once."""
        import ray

        if not hasattr(self, "task"):  # it never connected
            return
        try:
            if self.tasks:
                self.desk.close.remote()
                if stopping is not None:
                    stopping(len(self.tasks))
            while self.tasks:
                for stream, task in list(self.tasks.items()):
                    if not task.training:
                        self._kill(stream)
                        self._give_back(stream, crashed=False)
                self.listen(0.5)
        finally:
            if self.own:
                ray.shutdown()
            self.shipment.remove()


def address_fault(address: str) -> str:
    """What is wrong with an address; "" if nothing can be told before asking it.

    >>> address_fault("auto"), address_fault("10.0.0.1:6379")
    ('', '')
    >>> address_fault("head")
    "ray: must be local, auto or HOST:PORT of the cluster's head: got 'head'"
    """
    if address in ("local", "auto"):
        return ""
    if address.startswith("ray://"):
        return (
            f"ray: {address} is a Ray Client address, which cannot stream checkpoints; run on a machine of "
            "the cluster with HOST:PORT of its head (ray start prints it), or with auto"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        return f"ray: must be local, auto or HOST:PORT of the cluster's head: got {address!r}"
    return ""


def no_cluster(address: str, why: str) -> InputError:
    return InputError(
        f"there is no Ray cluster at {address} ({why}). Start one with `ray start --head`, or use --ray "
        "local."
    )


def _knock(address: str) -> None:
    """Refuse an address where no cluster answers, before Ray waits for it for minutes. What "auto" stands for
    (RAY_ADDRESS, or what the last `ray start` left behind) may be long gone, too."""
    named = os.environ.get("RAY_ADDRESS", "")
    if address == "auto" and named and not address_fault(named):
        address = named
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=KNOCK).close()
        except OSError as error:
            raise no_cluster(address, str(error)) from error
        command += ["--address", address]
    try:
        found = subprocess.run(command, capture_output=True, timeout=HEALTH)
    except subprocess.TimeoutExpired as error:
        raise no_cluster(address, f"no answer in {HEALTH:g} s") from error
    if found.returncode:
        raise no_cluster(address, "none is found" if address == "auto" else "what answers there is not Ray")


def _refuse_another(address: str, connected: str) -> None:
    """A process has one connection to Ray: refuse an address that is not the one it has."""
    if address in ("local", "auto") or address == connected:
        return
    raise InputError(
        f"this process is connected to the Ray cluster at {connected}: it cannot use the one at {address} as "
        "well. Call ray.shutdown() first, or pass address='auto' to use the connection that is there."
    )


def _here(ray: Any) -> Any:
    """The driver's own node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
