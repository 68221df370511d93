"""The pair of models that a plan was tried on: `p.optimizer` tries a class that the rules do not know on it.

A class that torch wrote has a law that was derived; any other was measured on small tensors, which is no
proof for this model. So the optimizer that `p.optimizer` built takes one step on copies of the pair. That
says something only while both have the numbers they started with: torch counts the changes of each tensor in
place.
"""

from __future__ import annotations

import dataclasses

from torch import nn

from trimtab.torch_internals import times_written


@dataclasses.dataclass(frozen=True)
class Start:
    """Model and base as a plan was tried on them.

    Args:
        changes: how often the parameters of either had been changed in place by then.
    """

    model: nn.Module
    base: nn.Module
    changes: int

    @classmethod
    def of(cls, model: nn.Module, base: nn.Module) -> Start:
        return cls(model, base, _changes(model, base))

    @property
    def moved(self) -> bool:
        """Whether a number of either may have changed since.

        >>> pair = nn.Linear(2, 2), nn.Linear(1, 1)
        >>> start = Start.of(*pair)
        >>> before = start.moved
        >>> _ = nn.init.zeros_(pair[0].weight)
        >>> before, start.moved
        (False, True)
        """
        return _changes(self.model, self.base) != self.changes


def _changes(*models: nn.Module) -> int:
    return sum(times_written(q) for m in models for q in m.parameters())
