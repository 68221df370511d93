"""Who may train in one fleet: runs that differ in numbers only, and the rows that they get."""

from __future__ import annotations

from torch import Tensor

from trimtab.errors import InputError
from trimtab.runs.config import RunConfig
from trimtab.runs.row_optimizer import OPTIMIZERS
from trimtab.runs.tasks import SHARED, open_task

# rows come in multiples: vectorised loops then have no remainder, which scalar code would round differently
ROWS = 16
SLOTS = 16  # members of a fleet where nothing else is said
# what all members have alike
TOGETHER = (SHARED - {"gamma0", "roles"}) | {"optimizer", "steps", "eval_every", "compile", "fleet"}


def rows_of(members: int, slots: int) -> list[int]:
    """Which member each row is: the members in order, then the first again up to a multiple of ROWS.

    >>> rows_of(3, 16)
    [0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    """
    slots = SLOTS if slots == 1 else slots
    if members > slots:
        raise InputError(f"a fleet of {slots} slots holds at most {slots} members: got {members}.")
    return [*range(members), *[0] * (ROWS * -(-slots // ROWS) - members)]


def refuse_unlike(configs: list[RunConfig]) -> None:
    """Refuse members that do not share what a fleet shares."""
    if not configs:
        raise InputError("a fleet needs at least one configuration.")
    first = configs[0]
    for c in configs[1:]:
        fields = [key for key in RunConfig.model_fields if key in TOGETHER]
        different = [key for key in fields if getattr(c, key) != getattr(first, key)]
        if different:
            raise InputError(
                "the members of a fleet differ in numbers only (lr, momentum, decay, clip, gamma0, roles, "
                f"seed): {', '.join(different)} differ."
            )
    reason = hindrance(configs[0])
    if reason:
        raise InputError(f"a fleet cannot train this: {reason}. Train them one by one (fleet = 1).")


def hindrance(config: RunConfig) -> str:
    """Why runs like this one cannot train as a fleet; "" where they can."""
    if config.optimizer not in OPTIMIZERS:
        return f"it steps {', '.join(OPTIMIZERS)} only, not {config.optimizer}"
    if config.dtype == "bfloat16":
        return "it trains in float32 or float64, not in bfloat16"
    if config.compile:
        return "it records its own graph and does not compile"
    made = open_task(config)
    batch = made.batch(0, 0)
    if isinstance(batch, dict) or not all(isinstance(part, Tensor) for part in batch):
        return "it needs batches of one input tensor and one target tensor"
    if made.random:
        return "the forward draws random numbers (dropout), which each run draws from its own seed"
    return ""
