"""Megatron-LM: per-parameter overrides in code, and the flags it has for muP, as of August 2026.

Its command line has one lr, one weight decay, one eps, and `--use-mup --mup-base-hidden-size N`: with one
width ratio m for the whole model,

    matrices in the blocks   lr / m, eps / m      all other tensors, head and embedding   lr, eps
    weight decay             the same everywhere, 0 for vectors and biases
    logits                   x 1/m in the forward

No depth, no second width ratio, no multiplier by role, no choice of what decay keeps. What a parametrization
asks for beyond that the flags cannot say; `lost` lists it, with numbers. The exact way is in code: `max_lr`,
`min_lr`, `eps` and `wd_mult` by exact name, `config_overrides=` of `get_megatron_optimizer`. There the model
keeps its own forward and is rescaled by `p.apply`; do not pass `--use-mup` with it.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from trimtab.errors import OptimizerError
from trimtab.parametrization.exports.record import CLIPPING, START, Export, Numbers, Settings, literal
from trimtab.parametrization.parameters import Row

OPTIMIZERS = {"AdamW": "adam", "SGD": "sgd"}
NAMES = (
    "names: Megatron-LM fuses what other models keep apart (linear_qkv, linear_fc1) and names it in its own "
    "way; these overrides fit the model that was parametrized, so parametrize the Megatron model itself."
)


def write(s: Settings) -> Export:
    """Overrides by name, the flags, and what the flags cannot say.

    Raises:
        OptimizerError: Megatron-LM has no such optimizer.
    """
    if s.optimizer not in OPTIMIZERS:
        raise OptimizerError(
            f"Megatron-LM's --optimizer is exported for {', '.join(OPTIMIZERS)} (its adam is AdamW): got "
            f"{s.optimizer}. Use one of them, or build the optimizer in code from p.groups."
        )
    decay = s.base.get("weight_decay") or 0.0
    overrides = []
    for names, own in s.groups:
        numbers: dict[str, float] = {"max_lr": own["lr"], "min_lr": 0.0}
        if "eps" in own:
            numbers["eps"] = own["eps"]
        numbers["wd_mult"] = own.get("weight_decay", 0.0) / decay if decay else 1.0
        overrides.append({"name": [_quoted(name) for name in names], "override": numbers})
    common = _common_flags(s)
    flags, refused = _mup_flags(s)
    data = {"flags": common | flags, "arguments": common, "overrides": overrides}
    lost = [*refused, *(_differences(s) if flags else []), START, CLIPPING, NAMES]
    return Export("megatron", data, _text(data), tuple(lost))


def read(data: Any, names: Iterable[str]) -> Numbers:
    """What each name gets by the overrides: the first key whose name pattern fits."""
    found: Numbers = {}
    base = data["arguments"]
    for name in names:
        fits = (
            e["override"] for e in data["overrides"] if any(fnmatch.fnmatchcase(name, n) for n in e["name"])
        )
        own = next(fits, None)
        if own is None:
            continue
        found[name] = {"lr": own["max_lr"], "weight_decay": base["--weight-decay"] * own["wd_mult"]}
        found[name] |= {"eps": own["eps"]} if "eps" in own else {}
    return found


def _quoted(name: str) -> str:
    """A name as a pattern of fnmatch that fits it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _common_flags(s: Settings) -> dict[str, Any]:
    flags = {
        "--optimizer": OPTIMIZERS[s.optimizer],
        "--lr": s.base["lr"],
        "--weight-decay": s.base.get("weight_decay") or 0.0,
        "--clip-grad": 0.0,
    }
    if s.optimizer == "AdamW":
        b1, b2 = s.rest["betas"]
        flags |= {"--adam-beta1": b1, "--adam-beta2": b2, "--adam-eps": s.base["eps"]}
    else:
        flags["--sgd-momentum"] = s.rest.get("momentum") or 0.0
    return flags


def _mup_flags(s: Settings) -> tuple[dict[str, Any], list[str]]:
    """The flags of muP, and why there are none where they would be wrong."""
    if s.scheme.identity or s.width == 1:
        return {}, []
    if s.scheme.width != "mup":
        return {}, [f"flags: Megatron-LM has muP and nothing else, the scheme here is {s.scheme.name}."]
    width = _base_width(s)
    if width is None:
        return {}, ["flags: --mup-base-hidden-size is not plain from these shapes: add it by hand."]
    return {"--use-mup": True, "--mup-base-hidden-size": width}, []


def _base_width(s: Settings) -> int | None:
    """The base's hidden size: the dimension met most often among those that grow by the width ratio."""
    seen = Counter(
        small
        for row in s.rows.values()
        for big, small in zip(row.shape, row.base_shape, strict=True)
        if big != small and math.isclose(big / small, s.width)
    )
    return seen.most_common(1)[0][0] if seen else None


def _by_flags(s: Settings, row: Row) -> dict[str, float]:
    """What --use-mup multiplies this parameter's lr, eps and weight decay by (at the base: 1)."""
    plain = len(row.shape) <= 1 or row.role in ("input", "readout")
    m = s.width
    lr = (m if plain else 1.0) if s.optimizer == "SGD" else (1.0 if plain else 1 / m)
    return {"lr": lr, "eps": 1.0 if plain else 1 / m, "weight_decay": 0.0 if len(row.shape) == 1 else 1.0}


def _differences(s: Settings) -> list[str]:
    """One line for each kind of number that the flags get wrong, with how many and the first.

    The head is compared in its own units: the flags put its 1/m into the forward, trimtab into the weight.
    """
    lines = []
    for key in ("lr", "weight_decay", "eps"):
        wrong: list[tuple[str, float, float]] = []
        for name, own in s.numbers.items():
            if key not in own or not s.base.get(key):
                continue
            got = _by_flags(s, s.rows[name])[key]
            if s.rows[name].role == "readout":
                got *= {"lr": 1 / s.width, "eps": s.width, "weight_decay": s.width}[key]
            meant = own[key] / s.base[key]
            if not math.isclose(got, meant, rel_tol=1e-9, abs_tol=1e-300):
                wrong.append((name, got, meant))
        if wrong:
            name, got, meant = wrong[0]
            lines.append(
                f"flags: {key} of {len(wrong)} of {len(s.numbers)} parameters cannot be said with --use-mup: "
                f"{name} would get {got:.4g} times the base's, meant is {meant:.4g}. Use the overrides."
            )
    if any(x != 1 for x in (s.depth.values() if isinstance(s.depth, dict) else [s.depth])):
        lines.append(f"flags: the depth ratio {s.depth} has no flag (width only). Use the overrides.")
    return lines


def _text(data: Any) -> str:
    flags = " ".join(k if x is True else f"{k} {x}" for k, x in data["flags"].items())
    exact = " ".join(k if x is True else f"{k} {x}" for k, x in data["arguments"].items())
    return f'''"""Exact, with p.apply(model) and without --use-mup:  {exact}
The nearest by flags alone:  {flags}
"""

from megatron.core.optimizer import ParamKey

OVERRIDES = {literal([(tuple(e["name"]), e["override"]) for e in data["overrides"]])}

config_overrides = {{ParamKey(name=names): override for names, override in OVERRIDES}}
# get_megatron_optimizer(config, model_chunks, config_overrides=config_overrides)
'''
