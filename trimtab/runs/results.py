"""The result of one run, and how it is read off the loss curve. No torch.

diverged   the loss is not finite, or 10,000 times what it was: the run ends there, with the step and the last
finite loss
given up   at the share of its steps that is its `give_up` it was at or above its initial loss: it ends there
and counts as diverged, with a last loss that is finite
collapsed  it ended at or above its initial loss: trained nothing, never counted as stable
train_loss the mean over the last tenth of the steps (the last value of the smoothed curve)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

METRICS = ("train_loss", "test_loss", "accuracy", "initial_loss", "last_loss")
# All that a store keeps of a run beside its configuration: never a setting that was swept.
OUTCOMES = (*METRICS, "collapsed", "stopped_at", "seconds", "flops", "test_examples", "arithmetic", "proof")
BLOWN = 1e4
Tested = tuple[Any, ...]  # (step, test loss, accuracy or None, test examples looked at)


@dataclass(frozen=True)
class RunResult:
    """What a run gave. Losses are in the loss's own unit, `seconds` wall time, `flops` of training.

    `test_examples` is how many test examples `test_loss` and `accuracy` are of; None where nothing was
    evaluated.

    `curves` has "step", "loss", "smoothed", and "test_step", "test_loss", "accuracy" where it was evaluated.
    """

    state: str  # "done" | "diverged"
    initial_loss: float
    train_loss: float | None
    last_loss: float | None
    test_loss: float | None
    accuracy: float | None
    collapsed: bool
    stopped_at: int | None
    steps: int
    seconds: float
    flops: float
    test_examples: int | None = None
    curves: dict[str, np.ndarray] = field(repr=False, default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The numbers without the curves."""
        return {key: value for key, value in asdict(self).items() if key != "curves"}


def has_diverged(loss: float, initial: float) -> bool:
    """Whether a loss says that the run is lost.

    >>> has_diverged(float("nan"), 2.3), has_diverged(40.0, 2.3), has_diverged(5e4, 2.3)
    (True, False, True)
    """
    return not math.isfinite(loss) or loss > BLOWN * (1.0 + abs(initial))


def is_given_up(losses: Sequence[float], steps: int, give_up: float) -> bool:
    """Whether a run ends here because it has learned nothing by `give_up` of its steps (0: never asked).

    A function of the run's own losses: what other runs gave, and when, must not change a result.

    >>> [is_given_up(losses, 4, 0.5) for losses in ([2.0, 2.5], [2.0, 1.5], [2.0, 1.5, 3.0])]
    [True, False, False]
    """
    if not give_up or len(losses) != math.ceil(give_up * steps):
        return False
    recent = losses[-window(steps) :]
    return sum(recent) / len(recent) >= losses[0]


def is_over(losses: Sequence[float], steps: int, give_up: float) -> bool:
    """Whether a run has ended before its last step."""
    return bool(losses) and (has_diverged(losses[-1], losses[0]) or is_given_up(losses, steps, give_up))


def window(steps: int) -> int:
    """Steps a smoothed value is the mean of: a tenth of the run."""
    return max(1, steps // 10)


def smooth(losses: np.ndarray, steps: int) -> np.ndarray:
    """The trailing mean of a loss curve.

    >>> smooth(np.array([4.0, 2.0, 3.0]), 20).tolist()
    [4.0, 3.0, 2.5]
    """
    total = np.concatenate([[0.0], np.cumsum(losses)])
    end = np.arange(1, len(losses) + 1)
    begin = np.maximum(0, end - window(steps))
    return (total[end] - total[begin]) / (end - begin)


def conclude(
    losses: list[float],
    tests: Sequence[Tested],
    *,
    steps: int,
    seconds: float,
    flops_per_step: float,
    give_up: float = 0.0,
) -> RunResult:
    """The result of the losses of all steps made; the last may be the one that showed divergence.

    Args:
        tests: (step, loss, accuracy, examples) of each evaluation.
    """
    curve = np.asarray(losses, dtype=np.float64)
    lost = is_over(losses, steps, give_up)
    stopped = len(curve) - 1 if lost else None
    if not lost and tests and tests[-1][0] == steps and not math.isfinite(tests[-1][1]):
        lost, stopped = True, steps  # the very last update blew up: only the evaluation sees it
    finite = curve[np.isfinite(curve)]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = smooth(curve, steps)
    train_loss = None if lost else float(mean[-1])
    curves = {"step": np.arange(len(curve)), "loss": curve, "smoothed": mean}
    if tests:
        curves |= {
            "test_step": np.array([t[0] for t in tests]),
            "test_loss": np.array([t[1] for t in tests]),
            "accuracy": np.array([math.nan if t[2] is None else t[2] for t in tests]),
        }
    final = tests[-1] if tests and tests[-1][0] == steps and not lost else None
    return RunResult(
        state="diverged" if lost else "done",
        initial_loss=float(curve[0]),
        train_loss=train_loss,
        last_loss=float(finite[-1]) if len(finite) else None,
        test_loss=final[1] if final else None,
        accuracy=final[2] if final else None,
        collapsed=train_loss is not None and train_loss >= float(curve[0]),
        stopped_at=stopped,
        steps=len(curve),
        seconds=seconds,
        flops=flops_per_step * len(curve),
        # a checkpoint of an older version has no count
        test_examples=final[3] if final and len(final) > 3 else None,
        curves=curves,
    )
