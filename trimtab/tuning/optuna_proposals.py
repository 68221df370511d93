"""The same question put to Optuna: its sampler proposes, our store remembers.

The study is made anew at every call and told all trials again, so that Optuna keeps no state of its own: what
the store holds is the truth, and a killed search goes on to the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.tuning.proposals import Round
from trimtab.tuning.space import Space
from trimtab.tuning.surface import Trial, observe


def propose(space: Space, trials: Sequence[Trial], count: int, *, start: int, seed: int) -> Round:
    """The next points, at most `count`, by Optuna's TPE sampler; `start` of them are random."""
    import importlib

    optuna: Any = importlib.import_module("optuna")  # an extra

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed + len(trials), n_startup_trials=start, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    names = [f"x{i}" for i in range(len(space))]
    box: dict[str, Any] = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in names}
    seen = observe(trials) if trials else None
    for i, trial in enumerate(trials):
        # where nothing has trained yet, all are as bad as each other
        value = 0.0 if seen is None else float(seen.y[i])
        params = dict(zip(names, trial.point, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=box, value=value))
    tried, chosen = {trial.point for trial in trials}, list[tuple[float, ...]]()
    for _ in range(
        20 * count
    ):  # a point of the grid that was tried already is asked for again, then given up
        asked = study.ask(box)
        point = space.snap([asked.params[name] for name in names])
        if point not in tried:
            tried.add(point)
            chosen.append(point)
        if len(chosen) == count:
            break
    return Round(tuple(chosen), None, "" if chosen else "every point of the grid was tried")
