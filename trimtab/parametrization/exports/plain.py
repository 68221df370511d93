"""JSON: all numbers of one optimizer, per parameter, for a tool that is not here or a script of your own.

    parameters[name] = {role, place, shape, lr, weight_decay, eps, init, rescale, factors}

`lr`, `weight_decay` and `eps` are the target's, `factors` what the base's were multiplied by. `init` is the
scale of the start over the base's, `rescale` what this model's own draw is multiplied by to get there (null
where it was not measured). `p.to_json()` is another thing: it keeps a parametrization to resume with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from trimtab.parametrization.exports.record import Export, Numbers, Settings

FORMAT = 1


def write(s: Settings) -> Export:
    """Every number, per parameter."""
    parameters = {
        name: {
            "role": s.rows[name].role,
            "place": s.rows[name].place,
            "shape": list(s.rows[name].shape),
            **own,
            "init": s.start(name),
            "rescale": s.rows[name].rescale,
            "factors": dict(s.factors[name]),
        }
        for name, own in s.numbers.items()
    }
    data = {
        "format": FORMAT,
        "optimizer": s.optimizer,
        "base": dict(s.base),
        "shared": s.rest,
        "scheme": s.scheme.name,
        "width": s.width,
        "depth": s.depth,
        "parameters": parameters,
        "aliases": dict(s.aliases),
    }
    text = json.dumps(data, indent=1)
    return Export("json", json.loads(text), text, ())


def read(data: Any, names: Iterable[str]) -> Numbers:
    """What each name gets."""
    return {
        name: {k: row[k] for k in ("lr", "weight_decay", "eps", "init") if k in row}
        for name, row in data["parameters"].items()
        if name in set(names)
    }
