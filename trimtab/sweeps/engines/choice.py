"""The engine a user asks for: "local", or "ray" with an address."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from trimtab.sweeps.engines.job import Engine, Job
from trimtab.sweeps.engines.local import Local

ENGINES = ("local", "ray")


def choose_engine(engine: str, address: str, problems: list[str]) -> Callable[[Job], Engine] | None:
    """What makes the engine, None with its faults in `problems`.

    >>> problems = []
    >>> choose_engine("slurm", "local", problems), problems
    (None, ["engine: must be one of local, ray: got 'slurm'"])
    """
    if engine not in ENGINES:
        problems.append(f"engine: must be one of {', '.join(ENGINES)}: got {engine!r}")
        return None
    if engine == "local":
        return Local
    if importlib.util.find_spec("ray") is None:
        problems.append("engine: 'ray' needs Ray, which is not installed: pip install 'trimtab[ray]'")
        return None
    from trimtab.sweeps.engines.cluster import Cluster, address_fault

    fault = address_fault(address)
    if fault:
        problems.append(fault)
        return None
    return lambda job: Cluster(job, address)
