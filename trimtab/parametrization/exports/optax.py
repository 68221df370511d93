"""optax: `optax.multi_transform({label: transform}, labels)`, as of optax 0.2.

One label for each set of equal numbers. A leaf of the parameter tree is known by its path, joined by dots, as
in torch; rename yours to these names, or pass a flat dict. AdamW is `optax.adamw`; Adam and SGD with L2 add
the decay to the gradient before the step, as torch does. optax can say the start too: `INIT` is the scale
of each tensor's start over the base's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.errors import OptimizerError
from trimtab.parametrization.exports.record import CLIPPING, Export, Numbers, Settings, literal

OPTIMIZERS = ("AdamW", "Adam", "SGD")
KNOWN = {"betas", "momentum", "nesterov"}  # beside lr, weight_decay and eps, what is carried over
SCHEDULES = (
    "schedules: a schedule multiplies every rate alike: pass build(schedule), a function of the step that "
    "gives 1 at the base's rate."
)


def write(s: Settings) -> Export:
    """Labels by name, numbers by label, scales of the start by name.

    Raises:
        OptimizerError: optax has no twin of this optimizer that is known here, or of one of its options.
    """
    if s.optimizer not in OPTIMIZERS:
        raise OptimizerError(
            f"the optax export knows the twins of {', '.join(OPTIMIZERS)} (others put eps or the decay "
            f'elsewhere): got {s.optimizer}. Export "json" and build the transforms from it.'
        )
    strange = {k: x for k, x in s.rest.items() if k not in KNOWN and x}
    if strange:
        raise OptimizerError(
            f"optax has no word for {', '.join(f'{k}={x!r}' for k, x in strange.items())} of {s.optimizer}: "
            'leave it out, or export "json".'
        )
    labels: dict[str, str] = {}
    transforms: dict[str, dict[str, float]] = {}
    for i, (names, own) in enumerate(s.groups):
        transforms[f"g{i}"] = {"learning_rate": own["lr"], **{k: x for k, x in own.items() if k != "lr"}}
        labels |= dict.fromkeys(names, f"g{i}")
    options: dict[str, Any] = {}
    if "betas" in s.rest:
        options["b1"], options["b2"] = s.rest["betas"]
    if s.optimizer == "SGD":
        options = {"momentum": s.rest.get("momentum") or None, "nesterov": bool(s.rest.get("nesterov"))}
    init = {name: s.start(name) for name in labels}
    data = dict(optimizer=s.optimizer, labels=labels, transforms=transforms, options=options, init=init)
    offset = [name for name in labels if s.rows[name].offset]
    lost = [CLIPPING, SCHEDULES]
    if offset:
        lost.append(f"gains stored as 1 + w: INIT scales 1 + w, not w, of {len(offset)} ({offset[0]}, ...).")
    return Export("optax", data, _text(data), tuple(lost))


def read(data: Any, names: Iterable[str]) -> Numbers:
    """What each name gets: the numbers of its label, and its start."""
    found: Numbers = {}
    for name in names:
        own: Mapping[str, float] = data["transforms"][data["labels"][name]]
        numbers = {"lr": own["learning_rate"], **{k: x for k, x in own.items() if k != "learning_rate"}}
        found[name] = numbers | {"init": data["init"][name]}
    return found


def _text(data: Mapping[str, Any]) -> str:
    options = "".join(f", {k}={x!r}" for k, x in data["options"].items())
    if data["optimizer"] == "AdamW":
        body = f"    return optax.adamw(lr(n), eps=n['eps'], weight_decay=n['weight_decay']{options})"
    else:
        step = f"optax.adam(lr(n), eps=n['eps']{options})" if data["optimizer"] == "Adam" else ""
        step = step or f"optax.sgd(lr(n){options})"
        body = f"    return optax.chain(optax.add_decayed_weights(n['weight_decay']), {step})"
    return f"""import jax
import optax

LABELS = {literal(data["labels"])}

NUMBERS = {literal(data["transforms"])}

INIT = {literal({n: x for n, x in data["init"].items() if x != 1})}  # scale of the start over the base's


def transform(n, schedule):
    def lr(n):
        rate = n["learning_rate"]
        return rate if schedule is None else lambda step: rate * schedule(step)

{body}


def labels(params):
    def label(path, _):
        return LABELS[jax.tree_util.keystr(path, simple=True, separator=".")]

    return jax.tree_util.tree_map_with_path(label, params)


def build(schedule=None):
    return optax.multi_transform({{k: transform(n, schedule) for k, n in NUMBERS.items()}}, labels)
"""
