"""Which cells are claimed together: a unit is one cell, or the members of one fleet. Settled when cells are
made.

Fleet or alone is part of a cell's name, so it follows from the file and the sizes alone
(`runs.fleet_or_single`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Literal

from trimtab.errors import Fault, InputError, TrimtabError, faults
from trimtab.runs.config import RunConfig


def choose_slots(
    cells: list[RunConfig], wanted: int | Literal["auto"]
) -> tuple[list[RunConfig], dict[str, int]]:
    """(each cell with the slots of its fleet, {why a fleet was not possible: of how many cells})."""
    if wanted == 1:
        return cells, {}
    from trimtab.runs import fleet_or_single
    from trimtab.runs.devices import is_out_of_memory
    from trimtab.runs.fleet_groups import TOGETHER

    alike = TOGETHER - {"scheme", "base", "overrides", "fleet"} | {"sources"}
    choices: dict[str, fleet_or_single.Choice] = {}
    reasons: dict[str, int] = {}
    out = []
    for c in cells:
        key = json.dumps(c.model_dump(mode="json", include=alike), sort_keys=True)
        if key not in choices:
            try:
                choices[key] = fleet_or_single.choose(_here(c), wanted)
            except Exception as error:  # a size that cannot be set up: its cells will say why
                if is_out_of_memory(error):  # how much memory is free must not decide what a cell is
                    raise _unchosen(c) from error
                choices[key] = fleet_or_single.Choice(1)
        out.append(c.model_copy(update={"fleet": choices[key].slots}))
        if choices[key].reason:
            reasons[choices[key].reason] = reasons.get(choices[key].reason, 0) + 1
    return out, reasons


def group(cells: list[tuple[str, RunConfig]]) -> list[tuple[str, RunConfig, str, bool]]:
    """(name, config, unit, is it a fleet) for new cells: those that share all but numbers fill the slots of a
    fleet together.

    Like rates come together, the highest first: those that diverge early then end a fleet early.
    """
    from trimtab.runs.fleet_groups import TOGETHER
    from trimtab.runs.tasks import prepare

    groups: dict[str, list[tuple[str, RunConfig]]] = {}
    for name, config in cells:
        groups.setdefault(
            json.dumps(config.model_dump(mode="json", include=TOGETHER), sort_keys=True), []
        ).append((name, config))
    troubles: list[Exception] = []
    for members in groups.values():
        try:
            _ = prepare(_here(members[0][1])).flops  # a forward with its loss, too
            break
        except Exception as error:  # another size may run
            troubles.append(error)
    if troubles and len(troubles) == len(groups):  # nothing of the grid runs: said before any work
        first = troubles[0]
        raise (
            first
            if isinstance(first, TrimtabError)
            else InputError(f"no run of the grid can be set up: {type(first).__name__}: {first}")
        ) from first
    refuse_unbuildable([members[0][1] for members in groups.values()])
    out = []
    for members in groups.values():
        slots = members[0][1].fleet
        members = sorted(members, key=lambda member: -member[1].lr)
        for i in range(0, len(members), slots):
            part = members[i : i + slots]
            unit = unit_name([name for name, _ in part])
            out += [(name, config, unit, slots > 1) for name, config in part]
    return out


def refuse_unbuildable(configs: Iterable[RunConfig]) -> None:
    """Refuse sizes whose model cannot be built or is the base's again, and a base whose loss is not finite.

    Raises:
        InputError: it names each of them.
    """
    from trimtab.runs.tasks import axis_fault, build_fault, start_fault

    sizes = {(c.width, c.depth, json.dumps(c.model_options, sort_keys=True)): c for c in configs}
    problems = [
        Fault(f"width {c.width}, depth {c.depth}", fault)
        for c in sizes.values()
        if (fault := build_fault(_here(c)))
    ]
    if problems:
        many = "a size" if len(problems) == 1 else f"{len(problems)} sizes"
        raise faults(f"{many} cannot be built; take another, or mend the model", problems)
    ignored = [fault for c in sizes.values() if (fault := axis_fault(_here(c)))]
    if ignored:
        raise faults("every size must be another model, or an optimum that stays would mean nothing", ignored)
    for c in sizes.values():
        if (c.width, c.depth) == c.base and (fault := start_fault(_here(c))):
            raise InputError(fault)


def _here(config: RunConfig) -> RunConfig:
    """The configuration to look at a run with on this machine: on the processor where its device is only on
    the nodes of a cluster."""
    from trimtab.runs.devices import device_fault

    return config if device_fault(config.device) is None else config.model_copy(update={"device": "cpu"})


def _unchosen(config: RunConfig) -> InputError:
    return InputError(
        f"fleet: width {config.width}, depth {config.depth} on {config.device} ran out of memory while the "
        "slots of its fleets were chosen, and how much is free must not decide what a cell is. Pass "
        "fleet = 1, a smaller batch_size, or free the device."
    )


def unit_name(names: list[str]) -> str:
    """A unit's name: a hash, since it becomes a file name."""
    return hashlib.sha256("".join(names).encode()).hexdigest()[:24]


def cost(config: RunConfig) -> float:
    """What a cell costs, up to a constant: which units come first, and the time to go."""
    return float(config.steps) * config.batch_size * config.depth * config.width**1.5
