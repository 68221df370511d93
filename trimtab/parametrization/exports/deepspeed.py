"""DeepSpeed: `deepspeed.initialize(model_parameters=groups, config=config)`, as of DeepSpeed 0.19.

Its configuration file has one lr, one weight decay and one eps. Numbers per parameter come as groups in
code, by name; the file's numbers are the base's, and a group's own stand before them. ZeRO replaces a
group's tensors by flat pieces but keeps its other keys, so each group also carries its `names`, by which
`p.check(engine.optimizer)` still knows what belongs to what.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trimtab.errors import OptimizerError
from trimtab.parametrization.exports.record import CLIPPING, START, Export, Numbers, Settings, literal

OPTIMIZERS = ("AdamW", "Adam", "SGD")
SCHEDULES = (
    "schedules: WarmupLR and WarmupDecayLR with warmup_max_lr, OneCycle and LRRangeTest set one rate for all "
    "groups and erase the factors (so does warmup_max_lr: auto). WarmupCosineLR and WarmupLR without "
    "warmup_max_lr scale each group's own. p.check(engine.optimizer) after the first step says which it was."
)
ZERO = (
    "ZeRO: groups without trainable parameters are dropped, and with them the place of a rate in a list; the "
    "others keep their numbers. Parameters unfrozen later are in no group. An optimizer other than Adam and "
    'AdamW needs "zero_allow_untested_optimizer": true.'
)
MERGING = (
    "wrappers: a launcher that hands over model.parameters() instead of these groups trains every parameter "
    "at one rate. Pass model_parameters=param_groups(model); p.check raises where they are gone."
)


def write(s: Settings) -> Export:
    """Groups by name and the part of the configuration file that speaks of the optimizer.

    Raises:
        OptimizerError: DeepSpeed does not build this optimizer from its file.
    """
    if s.optimizer not in OPTIMIZERS:
        raise OptimizerError(
            f"DeepSpeed's file is written for {', '.join(OPTIMIZERS)}: got {s.optimizer}. Build it with "
            "p.optimizer and pass it as deepspeed.initialize(optimizer=...)."
        )
    params = {key: list(x) if isinstance(x, tuple) else x for key, x in s.base.items()} | {
        key: list(x) if isinstance(x, tuple) else x for key, x in s.shared.items()
    }
    if s.optimizer == "Adam":
        params["adam_w_mode"] = False  # its own default is AdamW under both names
    config = {"optimizer": {"type": s.optimizer, "params": params}, "gradient_clipping": 0.0}
    groups = [{"names": names, **own} for names, own in s.groups]
    data = {"config": config, "groups": groups}
    return Export("deepspeed", data, _text(data), (START, CLIPPING, SCHEDULES, ZERO, MERGING))


def read(data: Any, names: Iterable[str]) -> Numbers:
    """What each name gets: its group's numbers, else the file's."""
    file = {k: x for k, x in data["config"]["optimizer"]["params"].items() if isinstance(x, float | int)}
    own = {name: file | group for group in data["groups"] for name in group["names"]}
    return {
        name: {key: own[name][key] for key in ("lr", "weight_decay", "eps") if key in own[name]}
        for name in names
        if name in own
    }


def _text(data: Any) -> str:
    return f"""CONFIG = {literal(data["config"])}

GROUPS = {literal(data["groups"])}


def param_groups(model):
    named = dict(model.named_parameters())
    trained = [(g, [n for n in g["names"] if named[n].requires_grad]) for g in GROUPS]
    return [{{**g, "names": names, "params": [named[n] for n in names]}} for g, names in trained if names]


# engine, *_ = deepspeed.initialize(
#     model=model, model_parameters=param_groups(model), config={{**YOUR_CONFIG, **CONFIG}})
# after the first step: p.check(engine.optimizer)
"""
