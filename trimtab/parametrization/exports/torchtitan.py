"""torchtitan: `OptimizersContainer.Config(param_groups=[ParamGroupConfig(...)])`, as of torchtitan 0.3.

    ParamGroupConfig(pattern=regex, optimizer_name="AdamW", optimizer_kwargs={"lr", "weight_decay", ...})

Each parameter goes to the first pattern that `re.search` finds in its name, so a pattern that is not exact
takes what belongs to another. Each pattern here is anchored and escaped, and matches its own names alone; the
order does not matter. Activation checkpointing puts a wrapper's name into the path; patterns look through it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trimtab.errors import OptimizerError
from trimtab.parametrization.exports.record import CLIPPING, START, Export, Numbers, Settings, literal
from trimtab.torch_internals import WRAPPER_PREFIXES

OPTIMIZERS = ("AdamW", "Adam")
WRAPPED = "(?:" + "|".join(re.escape(prefix) for prefix in WRAPPER_PREFIXES) + ")?"
PIPELINE = (
    "pipeline parallelism: torchtitan asks every pattern to match in every model part and raises where one "
    "does not, so that these groups work with one part per process."
)


def write(s: Settings) -> Export:
    """The parameter groups, one for each set of equal numbers.

    Raises:
        OptimizerError: torchtitan does not build this optimizer.
    """
    if s.optimizer not in OPTIMIZERS:
        raise OptimizerError(
            f"torchtitan builds {' and '.join(OPTIMIZERS)} from torch.optim: got {s.optimizer}. Export one "
            "of them, or build the optimizer in your own container from p.groups."
        )
    entries = [
        dict(pattern=exact(names), optimizer_name=s.optimizer, optimizer_kwargs={**own, **s.rest})
        for names, own in s.groups
    ]
    return Export("torchtitan", entries, _text(entries), (START, CLIPPING, PIPELINE))


def read(data: Any, names: Iterable[str]) -> Numbers:
    """What each name gets: the keyword arguments of the first pattern found in it."""
    compiled = [(re.compile(entry["pattern"]), entry["optimizer_kwargs"]) for entry in data]
    found: Numbers = {}
    for name in names:
        own = next((numbers for pattern, numbers in compiled if pattern.search(name)), {})
        found[name] = {key: own[key] for key in ("lr", "weight_decay", "eps") if key in own}
    return found


def exact(names: list[str]) -> str:
    """A pattern that matches these names and no others, block numbers gathered.

    >>> exact(["head.weight"])
    '^head\\\\.weight$'
    >>> import re
    >>> pattern = exact(["h.0.w", "h.1.w", "h.11.w"])
    >>> [bool(re.search(pattern, n)) for n in ("h.1.w", "h.2.w", "xh.1.w", "h.1.wx", "h_1.w")]
    [True, False, False, False, False]
    >>> bool(re.search(pattern, "h.1._checkpoint_wrapped_module.w"))
    True
    """
    by_shape: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        parts = name.split(".")
        first = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if first is None:
            by_shape[(name,)] = []
        else:
            around = (".".join(parts[:first]), ".".join(parts[first + 1 :]))
            by_shape.setdefault(around, []).append(parts[first])
    options = [_alternative(around, numbers) for around, numbers in by_shape.items()]
    return f"^{options[0]}$" if len(options) == 1 else f"^(?:{'|'.join(options)})$"


def _alternative(around: tuple[str, ...], numbers: list[str]) -> str:
    if not numbers:
        return _escaped(around[0])
    before, after = around
    number = numbers[0] if len(numbers) == 1 else f"(?:{'|'.join(numbers)})"
    head = _escaped(before) + r"\." if before else ""
    return head + number + (rf"\.{WRAPPED}{_escaped(after)}" if after else "")


def _escaped(name: str) -> str:
    """Dots escaped, a wrapper allowed after each number inside."""
    return re.sub(r"(?<=\d)\\\.", lambda m: rf"\.{WRAPPED}", re.escape(name))


def _text(entries: list[dict[str, Any]]) -> str:
    lines = [
        "from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig",
        "",
        "optimizer = OptimizersContainer.Config(",
        "    param_groups=[",
    ]
    for entry in entries:
        lines += [
            "        ParamGroupConfig(",
            f"            pattern={entry['pattern']!r},",
            f"            optimizer_name={entry['optimizer_name']!r},",
            f"            optimizer_kwargs={literal(entry['optimizer_kwargs'], 12)},",
            "        ),",
        ]
    return "\n".join([*lines, "    ],", ")", ""])
