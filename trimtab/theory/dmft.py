r"""`solve`: the dynamical mean field theory of training, in one causal pass (arXiv 2309.16620; THEORY 3, 3.1, 3.2).

Sites are sampled (`fields`) and trained (`dynamics`) in independent blocks. The answer is the mean over blocks, its standard error their
scatter, widened by Student's t because blocks are few. Blocks, not samples, carry the error bar because rich networks near the edge of
stability amplify Monte-Carlo noise through the kernels all sites share, which no within-run estimate sees.

For phi(h) = h moment-matched noise makes one block exact, if its half holds all noise directions; then there is nothing to average.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable

import numpy as np
from scipy import stats

from trimtab.errors import InputError, faults
from trimtab.theory.depths import extrapolate
from trimtab.theory.dynamics import run
from trimtab.theory.fields import GaussianSites
from trimtab.theory.finite import single_run
from trimtab.theory.problem import Problem, problem
from trimtab.theory.results import Stderr, Trajectory

_BLOCKS = 8
_LADDER = (4, 8, 16)  # depths extrapolated to infinity
_TOL, _TOL_LINEAR = 1e-3, 1e-10  # smallest new direction kept, relative to the field's variance
_ERRORS = ("f", "loss", "ntk", "f_test")
_log = logging.getLogger("trimtab.theory")


def _block(task: Problem, samples: int, seed: int, responses: bool, tick) -> dict:
    exact = task.activation.name == "linear"
    sites = GaussianSites(task, samples, seed, responses=responses, tol=_TOL_LINEAR if exact else _TOL, share=1.0 if exact else 0.5)
    result = run(task, sites, tick)
    end = int(result.diverged[0])
    return single_run(task, result.f[0], result.phi[0], result.g[0]) | {"diverged": end if end <= task.steps else None}


class _Blocks:
    """Independent solutions, and their mean with error bars."""

    def __init__(self, task: Problem, size: int, responses: bool, tick):
        self.task, self.size, self.responses, self.tick = task, size, responses, tick
        self.found: list[dict] = []
        self.left: list[dict] = []
        self.layers = 0

    def add(self, seed: int) -> None:
        if math.isinf(self.task.depth):
            ladder = [_block(self.task.at_depth(level), self.size, seed + level, self.responses, self.tick) for level in _LADDER]
            found, left, self.layers = extrapolate(ladder, _LADDER, order=1)
            self.left.append(left)
        else:
            found, self.layers = _block(self.task, self.size, seed, self.responses, self.tick), int(self.task.depth)
        self.found.append(found)
