"""A parametrization as JSON, and what a resume from it would change.

Saved is what training on needs: the rows, the scheme and its ratios. What initialising needs (the base's
draws, the models) is not, so a plan that was read again says so where it is asked to initialise.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trimtab.errors import InputError
from trimtab.parametrization.horizons.decay import Decay
from trimtab.parametrization.horizons.horizon import Horizon
from trimtab.parametrization.parameters import Branch, row_from
from trimtab.parametrization.rules import Scheme

if TYPE_CHECKING:
    from trimtab.parametrization.result import Parametrization

FORMAT = 1
OF_PLAN = ("scheme", "gamma0", "depth", "horizon", "decay")  # numbers of a plan that a resume must have alike
OF_ROW = ("role", "place", "shape", "init", "u", "s", "override", "multipliers")  # and those of each row


def to_json(p: Parametrization, aliases: Mapping[str, str], notes: Sequence[str]) -> str:
    """The text that `from_json` reads; `aliases`: other names of tied weights; `notes`: of the plan alone."""
    data = dict(
        format=FORMAT,
        scheme=dataclasses.asdict(p.scheme),
        gamma0=p.gamma0,
        width=p.width,
        depth=p.depth,
        branches=[dataclasses.asdict(b) for b in p.branches],
        rows=[dataclasses.asdict(r) for r in p.rows.values()],
        aliases=dict(aliases),
        notes=list(notes),
        horizon=None if p.horizon is None else p.horizon.to_dict(),
        decay=dataclasses.asdict(p.decay),
    )
    return json.dumps(data)


def from_json(text: str) -> dict[str, Any]:
    """The arguments of `Parametrization` from what `to_json` wrote.

    >>> from_json('{"format": 9}')
    Traceback (most recent call last):
    trimtab.errors.InputError: format must be 1: got 9. Read it with the version of trimtab that wrote it.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise InputError(
                f"format must be {FORMAT}: got {data['format']!r}. "
                "Read it with the version of trimtab that wrote it."
            )
        branches = [
            b | {"tail": tuple(b["tail"]), "parameters": tuple(b["parameters"])} for b in data["branches"]
        ]
        return dict(
            rows={r["name"]: row_from(r) for r in data["rows"]},
            branches=[Branch(**b) for b in branches],
            depth=data["depth"],
            scheme=Scheme(**data["scheme"]),
            gamma0=data["gamma0"],
            width=data["width"],
            notes=list(data["notes"]),
            aliases=dict(data["aliases"]),
            horizon=None if data.get("horizon") is None else Horizon.from_dict(data["horizon"]),
            decay=Decay(**data["decay"]) if "decay" in data else "product",
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise InputError(
            f"the text must be what Parametrization.to_json wrote: {type(error).__name__}: {error}."
        ) from error


def differences(here: Parametrization, there: Parametrization) -> list[str]:
    """One line for each number that differs, none when all agree."""
    found = []
    for key in OF_PLAN:
        if getattr(here, key) != getattr(there, key):
            found.append(f"{key}: {getattr(here, key)} here, {getattr(there, key)} there")
    for name in here.rows.keys() ^ there.rows.keys():
        found.append(f"{name}: only {'here' if name in here.rows else 'there'}")
    for name in here.rows.keys() & there.rows.keys():
        a, b = here.rows[name], there.rows[name]
        for key in OF_ROW:
            x, y = getattr(a, key), getattr(b, key)
            same = math.isclose(x, y, rel_tol=1e-9) if isinstance(x, float) else x == y
            if not same:
                found.append(f"{name}.{key}: {x} here, {y} there")
    return sorted(found)
