"""Which law an optimizer obeys: by name where torch wrote it, by measurement where someone else did.

A law has two halves (docs/theory.md, equations (3), (7) and (14)). *Fold*: storing a theta, with lr, decay
and eps of its group multiplied by powers of a, must give the same path. *Shape*: the entries of a step must
move as one power of each dimension. So an unknown class is tried at the user's own rate and hyperparameters:

    company   does a step on an entry depend on the other entries of its tensor, or on other tensors?
    fold      400 steps and then late ones, each tensor with its own a, against every candidate
    shape     for tensors whose entries share something: p, q, t on gradients of low rank (`shape_trials`)

From these follow lr factor = u / (entry factor), with u/s or u/init in place of u. What fits no law is
refused with what was measured: it would be silently wrong.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trimtab.errors import OptimizerError
from trimtab.parametrization.optimizers import shape_trials as shapes
from trimtab.parametrization.optimizers import trials
from trimtab.parametrization.optimizers.company_trials import company
from trimtab.parametrization.optimizers.families import FAMILIES, Family, Shape, family_of
from trimtab.parametrization.optimizers.fold_trials import fold
from trimtab.parametrization.optimizers.trials import Trial


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was measured on tensors of so many dimensions.

    Args:
        others: how much an entry's path depends on the other entries, relative to how far it goes.
        fold: how far the folded path is from the plain one, the same way, over 400 steps and late ones.
    """

    dims: int
    others: float
    fold: float
    powers: shapes.Powers | None


@dataclasses.dataclass(frozen=True)
class Law:
    """An optimizer's law and how it is known.

    Args:
        family: what the factors follow from.
        evidence: by number of dimensions; empty where torch wrote the optimizer and its law is derived.
        precision: of the trial.
    """

    name: str
    family: Family
    evidence: tuple[Evidence, ...] = ()
    precision: str = ""

    def __str__(self) -> str:
        f = self.family
        said = f"{self.name}: {f.shape.name} step, lr follows {f.rate}, decay {f.decay}"
        for e in self.evidence:
            said += f"; {e.dims}-D: fold error {e.fold:.1g}, others {e.others:.1g}"
            if e.powers is not None:
                said += f", entries rows^{-e.powers.rows:.2f} columns^{-e.powers.columns:.2f}"
        return said


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Hyperparameters that can be a key: told apart by what they print."""

    text: str
    values: dict[str, Any] = dataclasses.field(compare=False)


def family(cls: Any, hyper: Mapping[str, Any], lr: float | None = None) -> Family:
    """The family of an optimizer class, with the flags in `hyper` that matter.

    Args:
        hyper: hyperparameters as for the base.
        lr: the base's learning rate; an optimizer that is not torch's own is tried at this rate.

    >>> import torch
    >>> family(torch.optim.AdamW, {}).decay
    'decoupled'
    """
    return law_of(cls, hyper, lr).family


def law_of(cls: Any, hyper: Mapping[str, Any], lr: float | None = None) -> Law:
    """The law of an optimizer class and the numbers it rests on.

    >>> import torch
    >>> law_of(torch.optim.Muon, {}).family.shape.name
    'spectral'

    Raises:
        OptimizerError: it obeys none; the message says what was measured.
    """
    name = getattr(cls, "__name__", str(cls))
    if not callable(cls):
        built = hasattr(cls, "param_groups")
        got = f"an {type(cls).__name__} that is built already: pass the class" if built else repr(cls)
        raise OptimizerError(f"an optimizer class is needed, such as torch.optim.AdamW: got {got}.")
    in_torch = getattr(cls, "__module__", "").startswith("torch.optim")
    if in_torch or name == "SWATS":  # whether SWATS ever becomes SGD, a trial cannot promise
        found = family_of(name, hyper)
        if found is not None:
            return Law(name, found)
    rate = lr if lr is not None else hyper.get("lr", default(cls, "lr"))
    rate = float(rate) if isinstance(rate, int | float) and 0 < rate < math.inf else 1e-3
    accepted = {k: v for k, v in hyper.items() if k not in ("lr", "params") and accepts(cls, k)}
    settings = _Settings(repr(sorted(accepted.items(), key=lambda item: item[0])), accepted)
    found = _remembered(cls, name, rate, settings)
    if isinstance(found, str):
        raise OptimizerError(found)
    return found


@functools.cache
def _remembered(cls: Any, name: str, lr: float, settings: _Settings) -> Law | str:
    """The law, or the words in which it is refused."""
    try:
        return _measure(_ready(cls, name, settings.values, lr))
    except OptimizerError as why:
        return str(why)


# -- getting it to run ---------------------------------------------------------------------------------------


def _ready(cls: Callable[..., Any], name: str, hyper: Mapping[str, Any], lr: float) -> Trial:
    """The optimizer on the tensors and in the precision that it takes: all tensors in float64 where it can.

    Raises:
        OptimizerError: it does not run on any.
    """
    numbers = {"lr": lr}
    for key in ("weight_decay", "eps"):
        value = hyper.get(key, default(cls, key))
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[key] = float(value)

    def make(groups: list[dict[str, Any]]) -> Any:
        return cls(groups, lr=lr, **copy.deepcopy(dict(hyper)))

    first: Exception | None = None
    for tensors in (trials.TENSORS, trials.MATRICES):
        for dtype in (torch.float64, torch.float32):
            trial = Trial(name=name, make=make, numbers=numbers, tensors=tensors, dtype=dtype)
            try:
                trial.train(trial.problem())
                return trial
            except trials.SeveralGradients:
                raise OptimizerError(
                    f"an optimizer must do with one gradient a step: {name} asks for more, at weights it "
                    f"moved by itself, by a distance that is absolute and does not fold. {trials.INSTEAD}"
                ) from None
            except Exception as why:
                first = first or why
    assert first is not None
    if _differentiates(
        Trial(name=name, make=make, numbers=numbers, tensors=trials.TENSORS, dtype=torch.float64)
    ):
        raise OptimizerError(
            f"an optimizer must do with gradients alone: {name} asks for second derivatives, and no rule "
            f"says how they move with the size. {trials.INSTEAD}"
        ) from first
    said = str(first).strip().splitlines() or [""]
    raise OptimizerError(
        f"{name} is not known, and trying it on a small problem raised {type(first).__name__}: "
        f"{said[0][:160]}. Known: {', '.join(FAMILIES)}. Pass one of these, or a class that takes (params, "
        "lr=..., weight_decay=..., eps=...)."
    ) from first


def _differentiates(trial: Trial) -> bool:
    """It runs where gradients can be differentiated (it does not where they cannot)."""
    try:
        trial.train(trial.problem(), ways=("graph",))
    except Exception:
        return False
    return True


# -- shape and the law ---------------------------------------------------------------------------------------


def _measure(trial: Trial) -> Law:
    try:
        others = company(trial)
        mixed = {dims for dims, much in others.items() if not much <= trial.limit}
        folds = fold(trial, mixed)
        laws, evidence = {}, []
        for dims, found in folds.items():
            laws[dims], powers = _shaped(trial, dims, found.family, dims in mixed)
            evidence.append(Evidence(dims, others[dims], found.error, powers))
    except OptimizerError:
        raise
    except Exception as why:
        raise OptimizerError(
            f"{trial.name} is not known, and trying it on a small problem raised {type(why).__name__}: "
            f"{str(why)[:160]}. {trials.INSTEAD}"
        ) from why
    main = laws[2]
    if not main.eps and any(law.eps for law in laws.values()) and "eps" in trial.numbers:
        raise OptimizerError(
            f"eps must be in units of the gradient on matrices if it is on other tensors: with {trial.name} "
            f"it is not, and one optimizer has its eps scaled or not. {trials.INSTEAD}"
        )
    if set(laws) == {2} and main.rate == "u":
        main = dataclasses.replace(main, rate="spectral", vectors=dataclasses.replace(main, shape=Shape()))
    for dims, field in ((1, "vectors"), (4, "kernels")):
        if dims in laws and laws[dims] != laws[2]:
            main = dataclasses.replace(main, **{field: laws[dims]})
    return Law(trial.name, main, tuple(evidence), str(trial.dtype).removeprefix("torch."))


def _shaped(trial: Trial, dims: int, found: Family, mixed: bool) -> tuple[Family, shapes.Powers]:
    """The family with its shape, from the powers measured on tensors of so many dimensions.

    Raises:
        OptimizerError: the entries follow no power of the shape, or a power of the parameter that the fold
        denies.
    """
    numbers = trial.numbers | ({"weight_decay": 0.0} if "weight_decay" in trial.numbers else {})
    powers = shapes.powers(trial.make, numbers, dims, trial.dtype, shapes=mixed)
    start = shapes.snap(powers.start)
    if start != (1.0 if found.rate == "u/init" else 0.0):
        raise OptimizerError(
            f"a step must not follow the parameter's own size unless it is a fixed part of it: a step of "
            f"{trial.name} on tensors of {dims} dimensions goes as the {powers.start:.2f}th power of it at "
            f"lr={numbers['lr']:g}. {trials.INSTEAD}"
        )
    if shapes.snap(powers.rate) != 1.0:
        raise OptimizerError(
            f"steps must be proportional to lr, for that is what the factors multiply: the way {trial.name} "
            f"goes is as lr^{powers.rate:.2f} below lr={numbers['lr']:g}. {trials.INSTEAD}"
        )
    if not mixed:
        return found, powers
    exact = [shapes.snap(x) for x in (powers.rows, powers.columns, powers.tall)]
    if None in exact or not powers.miss <= shapes.OFF:
        raise OptimizerError(
            f"the entries of a step must move as one power of each dimension: with {trial.name} on tensors "
            f"of {dims} dimensions they go as rows^{-powers.rows:.2f} columns^{-powers.columns:.2f} max(1, "
            f"rows/columns)^{powers.tall:.2f} and miss that by 4^{powers.miss:.2f}, from 36 to 144 rows and "
            f"columns. {trials.INSTEAD}"
        )
    p, q, t = (x or 0.0 for x in exact)
    eps_rows = eps_columns = 0.0
    if found.eps and "eps" in numbers:
        measured = shapes.eps_powers(trial.make, numbers, dims, trial.dtype)
        eps_rows, eps_columns = (round(2 * x) / 2 / found.eps + 0.0 for x in measured)
    name = _called(dims, p, q, t, powers.spread)
    shape = Shape(name, rows=p, columns=q, tall=t, eps_rows=eps_rows, eps_columns=eps_columns)
    return dataclasses.replace(found, name=trial.name, shape=shape), powers


def _called(dims: int, p: float, q: float, t: float, spread: float) -> Any:
    if spread > 0.5:
        return "spectral"
    if dims == 1:
        q = p  # a vector has one norm
    names = {(0.5, 0.5): "whole tensor", (0.0, 0.5): "row", (0.5, 0.0): "column", (0.0, 0.0): "averaged"}
    return names.get((p, q), "own") if not t else "own"


def accepts(cls: Callable[..., Any], key: str) -> bool:
    """The constructor takes this argument (an optimizer's `defaults` hold more than that)."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return True
    return key in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def default(cls: Any, key: str) -> Any:
    """An optimizer's default for a hyperparameter, None where it has none.

    Where the signature does not say (`**kwargs` handed on, a number that is fixed), its groups do.
    """
    try:
        parameter = inspect.signature(cls).parameters.get(key)
    except (TypeError, ValueError):
        return None
    if parameter is None:
        return _groups_of(cls).get(key)
    return None if parameter.default is inspect.Parameter.empty else parameter.default


@functools.cache
def _groups_of(cls: Any) -> Mapping[str, Any]:
    """What an optimizer class fills into a group by itself: nothing where it cannot be built on a matrix."""
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        return {}
    make: Callable[..., Any] = cls
    hypers: tuple[dict[str, Any], ...] = ({}, {"lr": 1e-3})
    for hyper in hypers:
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=()):
            return dict(make([torch.zeros(2, 2, requires_grad=True)], **hyper).defaults)
    return {}
