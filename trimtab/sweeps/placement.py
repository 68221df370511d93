"""Which devices the cells of a sweep are on: settled before any cell is named.

    device = "auto" -> "cuda", "mps" or "cpu"        device = "cuda:1" -> "cuda", and every worker on GPU 1

A cell is named by the class of its device. Which GPU it runs on is dealt to the workers in turn, and is no
part of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from trimtab.errors import Fault, faults_in
from trimtab.runs.config import device_class
from trimtab.sweeps.grid import SweepConfig

Config = TypeVar("Config", bound=SweepConfig)


def settle(config: Config, *, remote: bool = False, what: str = "the sweep") -> Config:
    """The sweep with classes of devices for cells.

    Args:
        remote: the runs are on other machines, whose devices are not known here.
        what: the sweep's file, for faults.

    Raises:
        InputError: a device is not there.
    """
    run, gpu, faults = settle_run(config.run, remote=remote)
    axes = dict(config.axes)
    if "device" in axes:
        found = [settle_run({"device": v}, remote=remote) for v in axes["device"]]
        faults = [replace(f, path="axes.device") for _, _, each in found for f in each]
        axes["device"] = tuple(table["device"] for table, _, _ in found)
        gpu = next((number for _, number, _ in found if number is not None), None)
    if faults:
        raise faults_in(what, faults)
    return replace(config, run=run, axes=axes, gpu=gpu)


def settle_run(
    run: dict[str, Any], *, remote: bool = False
) -> tuple[dict[str, Any], int | None, list[Fault]]:
    """(the fields of runs with the class of their device, the number of the GPU that was named, faults).

    >>> settle_run({"lr": 0.1}), settle_run({"device": "cuda:1"}, remote=True)
    (({'lr': 0.1}, None, []), ({'device': 'cuda'}, 1, []))
    """
    named = str(run.get("device", "cpu"))
    if named == "cpu":  # then torch need not be asked
        return run, None, []
    from trimtab.runs import devices

    if remote and named == "auto":
        law = "'auto' is what this machine has, and the runs are on others: name the nodes' device"
        return run, None, [Fault("run.device", law)]
    fault = None if remote else devices.device_fault(named)
    if fault is not None:
        return run, None, [replace(fault, path="run.device")]
    named = devices.settle(named)
    _, _, number = named.partition(":")
    return run | {"device": device_class(named)}, int(number) if number else None, []


def classes(config: SweepConfig) -> tuple[str, ...]:
    """The classes of devices that a settled sweep's cells are on.

    >>> from trimtab.sweeps.grid import read
    >>> classes(read({"base": [8, 3], "axes": {"lr": [0.1]}}))
    ('cpu',)
    """
    return tuple(str(v) for v in config.axes.get("device", (config.run.get("device", "cpu"),)))
