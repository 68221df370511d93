"""Which law an optimizer obeys: by name where torch wrote it, by measurement where someone else did.

A law has two halves (docs/theory.md, equations (3), (7) and (14)). *Fold*: storing a theta, with lr, decay and eps of its
group multiplied by powers of a, must give the same path. *Shape*: the entries of a step must move as one power of each
dimension. So an unknown class is tried at the user's own rate and hyperparameters:

    company   does a step on an entry depend on the other entries of its tensor, or on other tensors?
    fold      400 steps and then late ones, each tensor with its own a, against every candidate
    shape     for tensors whose entries share something: p, q, t on gradients of low rank (`optimizer_shapes`)

From these follow lr factor = u / (entry factor), with u/s or u/init in place of u. What fits no law is refused with what
was measured: it would be silently wrong.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import OptimizerError
from trimtab.parametrization import optimizer_shapes as shapes
from trimtab.parametrization import optimizer_trials as trials
from trimtab.parametrization.optimizer_trials import Make, Numbers, Problem, apart
from trimtab.parametrization.rules import FAMILIES, Family, Scales, Shape, factors, family_of

EXACT = 1e-9  # of the way an entry goes, over a few steps: rounding in float64
ROUNDED = 1e-6  # the same over 400 steps, or where an implementation may sum in another order
COARSE = 1e-2  # what low precision inside an optimizer does to a factor that is no power of two
BFLOAT = 0.1  # the same to a spectral step, whose iteration in bfloat16 rounds many times
SINGLE = 1e-3  # an entry beside others, in float32
ANY = (0.37, 2.3, 1.7, 0.6, 2.3, 0.37)
FOURS = (0.25, 4.0, 4.0, 0.25, 4.0, 0.25)  # exact in every precision, roots of fourth order too
CANDIDATES = (
    *(FAMILIES[name] for name in ("AdamW", "Adam", "SGD", "Lion", "Adadelta")),
    Family("AdamW, eps in squares", "u", "decoupled", 2),
    Family("Adam, eps in squares", "u", "coupled", 2),
    Family("sign", "u", "coupled", 0),
    Family("SGD with eps", "u/s", "ratio", 1),
    Family("relative", "u/init", "decoupled", 0),
    Family("relative with eps", "u/init", "decoupled", 1),
    Family("relative, coupled", "u/init", "coupled", 1),
)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was measured on tensors of so many dimensions. `others`: how much an entry's path depends on the others."""

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
class Trial:
    """An optimizer ready to be tried: as `Parametrization.optimizer` builds it, on these tensors, in this precision."""

    name: str
    make: Make
    numbers: Numbers
    tensors: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    def train(self, p: Problem, numbers: Sequence[Numbers] | None = None, **more: Any) -> Tensor:
        return trials.train(self.make, p, numbers or [self.numbers] * len(p.shapes), **more)

    def problem(self, steps: int = trials.SHORT, decades: float = 6.0) -> Problem:
        return trials.problem(self.tensors, steps, decades=decades, dtype=self.dtype)

    @property
    def limit(self) -> float:
        """What rounding alone may do to an entry that stands beside others."""
        return ROUNDED if self.dtype == torch.float64 else SINGLE

    @property
    def dims(self) -> list[int]:
        return sorted({len(shape) for shape in self.tensors})

    def of(self, dims: int) -> list[int]:
        return [i for i, shape in enumerate(self.tensors) if len(shape) == dims]


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
        raise OptimizerError(f"an optimizer class is needed, such as torch.optim.AdamW: got {cls!r}.")
    in_torch = getattr(cls, "__module__", "").startswith("torch.optim")
    if in_torch or name == "SWATS":  # whether SWATS ever becomes SGD, a trial cannot promise
        found = family_of(name, hyper)
        if found is not None:
            return Law(name, found)
    rate = lr if lr is not None else hyper.get("lr", default(cls, "lr"))
    rate = float(rate) if isinstance(rate, int | float) and 0 < rate < math.inf else 1e-3
    accepted = {k: v for k, v in hyper.items() if k not in ("lr", "params") and _accepts(cls, k)}
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


def _instead() -> str:
    return f"Use one of {', '.join(FAMILIES)}."


# -- getting it to run -----------------------------------------------------------------------------------------------


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
                    f"an optimizer must do with one gradient a step: {name} asks for more, at weights it moved by itself, "
                    f"by a distance that is absolute and does not fold. {_instead()}"
                ) from None
            except Exception as why:
                first = first or why
    assert first is not None
    if _differentiates(
        Trial(name=name, make=make, numbers=numbers, tensors=trials.TENSORS, dtype=torch.float64)
    ):
        raise OptimizerError(
            f"an optimizer must do with gradients alone: {name} asks for second derivatives, and no rule says how "
            f"they move with the size. {_instead()}"
        ) from first
    said = str(first).strip().splitlines() or [""]
    raise OptimizerError(
        f"{name} is not known, and trying it on a small problem raised {type(first).__name__}: {said[0][:160]}. "
        f"Known: {', '.join(FAMILIES)}. Pass one of these, or a class that takes (params, lr=..., weight_decay=..., eps=...)."
    ) from first


def _differentiates(trial: Trial) -> bool:
    """It runs where gradients can be differentiated (it does not where they cannot)."""
    try:
        trial.train(trial.problem(), ways=("graph",))
    except Exception:
        return False
    return True


# -- company ---------------------------------------------------------------------------------------------------------


def _company(trial: Trial) -> dict[int, float]:
    """By number of dimensions, how much an entry's path depends on the other entries of its tensor.

    At the user's rate and at 1: some estimate their own rate (Prodigy) and at a small one take long to show it.

    Raises:
        OptimizerError: it depends on other tensors.
    """
    limit, p = trial.limit, trial.problem()
    tensors = torch.cat([torch.full((n,), i % 2 == 0) for i, n in enumerate(p.sizes)])
    even = torch.arange(len(p.start)) % 2 == 0
    found, path = dict.fromkeys(trial.dims, 0.0), p.slope
    for lr in (1.0, trial.numbers["lr"]):
        numbers = [trial.numbers | {"lr": lr}] * len(p.shapes)
        path = trial.train(p, numbers)
        if lr == 1.0 and not trials.finite_times(path):
            continue
        other = trial.train(p.changed(tensors), numbers)
        much = max(x for i, x in enumerate(apart(p, path, other, by_tensor=True)) if i % 2)
        if not much <= limit:
            raise OptimizerError(
                f"an optimizer's step on one tensor must not depend on other tensors: with {trial.name} at lr={lr:g} it "
                f"does (by {much:.2g} of the way it goes). A distance or a norm over all parameters has units of all of "
                f"them, and no lr of one undoes it. {_instead()}"
            )
        other = trial.train(p.changed(even), numbers)
        for dims in trial.dims:
            found[dims] = max(found[dims], _entries_apart(p, path, other, _entries(trial, p, dims) & ~even))
    return {dims: _in_company(trial, p, path, dims, much) for dims, much in found.items()}


def _entries(trial: Trial, p: Problem, dims: int) -> Tensor:
    """Which entries are in tensors of so many dimensions."""
    own = torch.zeros(len(p.start), dtype=torch.bool)
    for i in trial.of(dims):
        own[p.tensor(i)] = True
    return own


def _in_company(trial: Trial, p: Problem, path: Tensor, dims: int, worst: float) -> float:
    """`worst`, or how far an entry's path in a tensor, small or large, is from its path as a tensor of its own."""
    own, limit = _entries(trial, p, dims), trial.limit
    if worst <= limit and 1 in trial.dims:
        chosen = torch.nonzero(own).flatten()[::3]
        alone = p.alone(chosen)
        worst = max(worst, max(apart(alone, path[:, chosen], trial.train(alone))))
    if worst <= limit and dims == 2 and 1 in trial.dims:
        big = trials.problem(((130, 131),), dtype=trial.dtype)
        chosen = torch.tensor([0, 129, 131 * 64 + 7, 131 * 130 - 1])
        alone = big.alone(chosen)
        worst = max(worst, max(apart(alone, trial.train(big)[:, chosen], trial.train(alone))))
    return worst


def _entries_apart(p: Problem, one: Tensor, other: Tensor, kept: Tensor) -> float:
    part = p.alone(torch.nonzero(kept).flatten())
    found = apart(part, one[:, kept], other[:, kept])
    return max(math.inf if math.isnan(x) else x for x in found)


# -- fold ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fold:
    """A family under which a path folds: with what a, and how far it is off over the long and late steps."""

    family: Family
    a: tuple[float, ...]
    error: float


def _folded(group: Numbers, candidate: Family, a: float) -> Numbers:
    f = factors(candidate, Scales().fold(a))
    by = {"lr": f.lr, "weight_decay": f.weight_decay, "eps": f.eps}
    return {k: v * by[k] for k, v in group.items()}


def _errors(
    trial: Trial,
    p: Problem,
    path: Tensor,
    group: Numbers,
    use: Mapping[int, tuple[Family, Sequence[float]]],
    mixed: set[int],
    **more: Any,
) -> dict[int, float]:
    """By number of dimensions, how far the path of a theta is from that of theta, under the powers of a of each family."""
    a = [use[len(shape)][1][i] for i, shape in enumerate(p.shapes)]
    numbers = [_folded(group, use[len(shape)][0], a[i]) for i, shape in enumerate(p.shapes)]
    folded = trial.train(p, numbers, a=a, **more)
    found = {}
    for dims in trial.dims:
        each = apart(p, path, folded, by_tensor=dims in mixed)
        found[dims] = max(math.inf if math.isnan(each[i]) else each[i] for i in trial.of(dims))
    return found


def _survivors(
    trial: Trial, group: Numbers, mixed: set[int], tried: dict[str, float]
) -> dict[int, list[tuple[Family, tuple[float, ...]]]]:
    """By number of dimensions, the candidates under which a short path folds; `tried` gets the errors on matrices.

    In an optimizer that rounds inside, only a power of two is exact: then that counts, if another a is as near as
    the optimizer's own precision lets it be.
    """
    p = trial.problem(trials.QUICK, decades=1.0 if mixed else 6.0)
    path = trial.train(p, [group] * len(p.shapes))
    coarse = _precision(trial, p, path, group, mixed)
    found: dict[int, list[tuple[Family, tuple[float, ...]]]] = {dims: [] for dims in trial.dims}
    for candidate in CANDIDATES:
        any_a = _errors(trial, p, path, group, dict.fromkeys(trial.dims, (candidate, ANY)), mixed)
        near = [d for d in trial.dims if EXACT < any_a[d] <= coarse[d]]
        fours = any_a
        if near:
            fours = _errors(trial, p, path, group, dict.fromkeys(trial.dims, (candidate, FOURS)), mixed)
        for dims in trial.dims:
            if any_a[dims] <= EXACT:
                found[dims].append((candidate, ANY))
            elif dims in near and fours[dims] <= EXACT:
                found[dims].append((candidate, FOURS))
        tried[candidate.name] = max(fours[d] if d in near else any_a[d] for d in trial.dims)
        if candidate.name == "Adadelta" and all(found.values()):
            break
    return found


def _precision(trial: Trial, p: Problem, path: Tensor, group: Numbers, mixed: set[int]) -> dict[int, float]:
    """By number of dimensions, what rounding does to a path.

    A spectral step has directions that only rounding decides (the null space of the first gradient, for SOAP): there
    it is measured, by gradients that differ in the last digits.
    """
    found = dict.fromkeys(trial.dims, COARSE)
    if mixed:
        noise = torch.randn(p.slope.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        near = dataclasses.replace(
            p, slope=p.slope * (1 + 8 * torch.finfo(trial.dtype).eps * noise.to(trial.dtype))
        )
        each = apart(p, path, trial.train(near, [group] * len(p.shapes)), by_tensor=True)
        found |= {d: max(BFLOAT, *(3 * each[i] for i in trial.of(d))) for d in mixed}
    return found


def _fold(trial: Trial, mixed: set[int]) -> dict[int, Fold]:
    """By number of dimensions, the first family under which the long and late path folds.

    Raises:
        OptimizerError: there is none.
    """
    tried: dict[str, float] = {}
    long = 0.0
    for group in _groups(trial.numbers):
        left = _survivors(trial, group, mixed, tried)
        p = trial.problem(trials.LONG, decades=1.0 if mixed else 6.0)
        path = trial.train(p, [group] * len(p.shapes))
        done: dict[int, Fold] = {}
        while all(left.values()):
            use = {dims: candidates[0] for dims, candidates in left.items()}
            errors = _errors(trial, p, path, group, use, mixed)
            done |= {d: Fold(*use[d], errors[d]) for d in errors if errors[d] <= ROUNDED}
            if len(done) == len(errors):
                _refuse_curvature(trial, group, use, mixed)
                _refuse_own_rate(trial, use, mixed)
                return done
            long = max(long, *errors.values())
            left = {d: c if d in done else c[1:] for d, c in left.items()}
    errors = ", ".join(f"{k} {v:.1g}" for k, v in sorted(tried.items(), key=lambda item: item[1])[:3])
    late = f"; over {trials.LONG} steps and late ones {long:.1g}" if long else ""
    raise OptimizerError(
        f"a parametrization needs an optimizer whose steps fold: {trial.name} at lr={trial.numbers['lr']:g} follows none of "
        f"the known laws (relative error of its path by the nearest: {errors}{late}). Something in it is in absolute units. {_instead()}"
    )


def _refuse_own_rate(
    trial: Trial, use: Mapping[int, tuple[Family, Sequence[float]]], mixed: set[int]
) -> None:
    """A step that mixes entries must fold at lr = 1 too: one that estimates a distance hides it at small rates."""
    if not mixed:
        return
    p = trial.problem(decades=1.0)
    group = trial.numbers | {"lr": 1.0} | ({"weight_decay": 0.0} if "weight_decay" in trial.numbers else {})
    path = trial.train(p, [group] * len(p.shapes))
    error = max(_errors(trial, p, path, group, use, mixed).values())
    if trials.finite_times(path) and not error <= ROUNDED:
        raise OptimizerError(
            f"a parametrization needs an optimizer whose steps fold: {trial.name} does at lr={trial.numbers['lr']:g} and not "
            f"at lr=1 (relative error of its path {error:.1g}), so it follows none of the known laws for long. {_instead()}"
        )


def _groups(numbers: Numbers) -> list[Numbers]:
    """With decay, to tell its law, then as the user has it: where it has none, what is not decayed needs none."""
    if numbers.get("weight_decay", 1.0):
        return [numbers]
    return [numbers | {"weight_decay": min(0.1, 0.1 / numbers["lr"])}, numbers]


def _refuse_curvature(
    trial: Trial, group: Numbers, use: Mapping[int, tuple[Family, Sequence[float]]], mixed: set[int]
) -> None:
    """An optimizer that uses more than gradients where it gets it (a loss, a Hessian) must fold there too."""
    p = trial.problem(decades=1.0 if mixed else 6.0)
    numbers = [group] * len(p.shapes)
    try:
        path, with_more = trial.train(p, numbers), trial.train(p, numbers, ways=("graph",))
    except Exception:  # it takes no closure: then it gets nothing more
        return
    if max(apart(p, path, with_more, by_tensor=True)) <= (
        ROUNDED if trial.dtype == torch.float64 else SINGLE
    ):
        return
    error = max(_errors(trial, p, with_more, group, use, mixed, ways=("graph",)).values())
    if not error <= EXACT:
        raise OptimizerError(
            f"a parametrization needs an optimizer whose steps fold: {trial.name} does by gradients alone, but where "
            f"step(closure) gives it a loss and gradients that can be differentiated it does not (relative error of its "
            f"path {error:.1g}). {_instead()}"
        )


# -- shape and the law -----------------------------------------------------------------------------------------------


def _measure(trial: Trial) -> Law:
    try:
        others = _company(trial)
        mixed = {dims for dims, much in others.items() if not much <= trial.limit}
        folds = _fold(trial, mixed)
        laws, evidence = {}, []
        for dims, fold in folds.items():
            laws[dims], powers = _shaped(trial, dims, fold.family, dims in mixed)
            evidence.append(Evidence(dims, others[dims], fold.error, powers))
    except OptimizerError:
        raise
    except Exception as why:
        raise OptimizerError(
            f"{trial.name} is not known, and trying it on a small problem raised {type(why).__name__}: "
            f"{str(why)[:160]}. {_instead()}"
        ) from why
    main = laws[2]
    if set(laws) == {2} and main.rate == "u":
        main = dataclasses.replace(main, rate="spectral", vectors=dataclasses.replace(main, shape=Shape()))
    for dims, field in ((1, "vectors"), (4, "kernels")):
        if dims in laws and laws[dims] != laws[2]:
            main = dataclasses.replace(main, **{field: laws[dims]})
    return Law(trial.name, main, tuple(evidence), str(trial.dtype).removeprefix("torch."))


def _shaped(trial: Trial, dims: int, found: Family, mixed: bool) -> tuple[Family, shapes.Powers]:
    """The family with its shape, from the powers measured on tensors of so many dimensions.

    Raises:
        OptimizerError: the entries follow no power of the shape, or a power of the parameter that the fold denies.
    """
    numbers = trial.numbers | ({"weight_decay": 0.0} if "weight_decay" in trial.numbers else {})
    powers = shapes.powers(trial.make, numbers, dims, trial.dtype, shapes=mixed)
    start = shapes.snap(powers.start)
    if start != (1.0 if found.rate == "u/init" else 0.0):
        raise OptimizerError(
            f"a step must not follow the parameter's own size unless it is a fixed part of it: a step of {trial.name} "
            f"on tensors of {dims} dimensions goes as the {powers.start:.2f}th power of it at lr={numbers['lr']:g}. "
            f"{_instead()}"
        )
    if not mixed:
        return found, powers
    exact = [shapes.snap(x) for x in (powers.rows, powers.columns, powers.tall)]
    if None in exact or not powers.miss <= shapes.OFF:
        raise OptimizerError(
            f"the entries of a step must move as one power of each dimension: with {trial.name} on tensors of {dims} "
            f"dimensions they go as rows^{-powers.rows:.2f} columns^{-powers.columns:.2f} max(1, rows/columns)^"
            f"{powers.tall:.2f} and miss that by 4^{powers.miss:.2f}, from 36 to 144 rows and columns. {_instead()}"
        )
    p, q, t = (x or 0.0 for x in exact)
    eps_rows = eps_columns = 0.0
    if found.eps and "eps" in numbers:
        measured = shapes.eps_powers(trial.make, numbers, dims, trial.dtype)
        eps_rows, eps_columns = (round(2 * x) / 2 / found.eps + 0.0 for x in measured)
    name = _called(p, q, t, powers.spread)
    shape = Shape(name, rows=p, columns=q, tall=t, eps_rows=eps_rows, eps_columns=eps_columns)  # type: ignore[arg-type]
    return dataclasses.replace(found, name=trial.name, shape=shape), powers


def _called(p: float, q: float, t: float, spread: float) -> str:
    if spread > 0.6:
        return "spectral"
    names = {(0.5, 0.5): "whole tensor", (0.0, 0.5): "row", (0.5, 0.0): "column", (0.0, 0.0): "averaged"}
    return names.get((p, q), "own") if not t else "own"


def _accepts(cls: Callable[..., Any], key: str) -> bool:
    """The constructor takes this argument (an optimizer's `defaults` hold more than that)."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return True
    return key in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def default(cls: Any, key: str) -> Any:
    """An optimizer's default for a hyperparameter, None where it has none."""
    try:
        parameter = inspect.signature(cls).parameters.get(key)
    except (TypeError, ValueError):
        return None
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default
