"""One trial of a coordinate check: build a model at one size from one seed, train a few steps, measure.

    q(t) = rms of the value on a fixed probe batch      Delta q(t) = rms of (value at t - value at the start)

The probe is the first batch; every size and seed sees the same batches. What is kept is a number per value
and step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.coordinates.expectations import yardstick
from trimtab.coordinates.quantities import Sampler, Survey, look, output_of, survey
from trimtab.errors import InputError, StructureError, TrimtabError, calling, raised
from trimtab.parametrization.optimizers.lookup import family
from trimtab.parametrization.planning import of_draws, parametrize
from trimtab.parametrization.result import Parametrization
from trimtab.parametrization.rules import Scheme
from trimtab.runs import user_code
from trimtab.runs.losses import cross_entropy
from trimtab.structure.recording import as_call

Key = tuple[str, int, int]
FLAGS = ("adjust_lr_fn", "decoupled_weight_decay")


@dataclasses.dataclass
class Setup:
    """What is checked: the user's functions and numbers, the same for every trial."""

    build: Callable[[int, int], nn.Module]
    base: tuple[int, int]
    batches: list[Any]
    example: Any
    scheme: Scheme | None  # None: the user's own set-up
    judged_as: Scheme
    optimizer: Any
    lr: float
    hyper: Mapping[str, Any]
    loss: Callable[[Any, Any], Tensor] | None
    overrides: Mapping[str, Any] | None
    gamma0: float
    device: torch.device | None
    precision: str = "float32"
    after_step: Callable[[nn.Module, list[Any], Callable[[], Tensor]], float] | None = None  # sharpness

    def said(self, what: str) -> tuple[str, ...]:
        return tuple(k for k, v in (self.overrides or {}).items() if v == what)


@dataclasses.dataclass
class Size:
    """What the trials at one size share."""

    width: int
    depth: int
    survey: Survey
    rows: (
        Parametrization | None
    )  # what transfer asks of each parameter; None where the structure could not be told
    note: str = ""
    trials: list[Trial] = dataclasses.field(default_factory=list)
    numbers: int = 0  # how many parameters it has


@dataclasses.dataclass
class Trial:
    """Sizes and changes of every value, by step (0 is the start), and the numbers the optimizer was given."""

    size: dict[Key, np.ndarray]
    change: dict[Key, np.ndarray]
    update: dict[str, np.ndarray]
    rates: dict[str, dict[str, float]]  # name -> lr, weight_decay
    losses: np.ndarray
    sharpness: np.ndarray | None = None
    optimizers: list[tuple[Any, dict[str, Any]]] = dataclasses.field(
        default_factory=list
    )  # class, and the flags its law depends on


def run(setup: Setup, width: int, depth: int, seeds: int) -> Size:
    """All seeds at one size. Random states are left as they were."""
    with torch.random.fork_rng():
        found: Size | None = None
        plan: Parametrization | None = None
        shared: Parametrization | None = None
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = build_model(setup.build, width, depth, device=setup.device)
            rows, note = None, ""
            if setup.scheme is not None:
                plan = plan or _plan(setup, width, depth)
                shared = plan.on(model)
                optimizers = [shared.optimizer(setup.optimizer, lr=setup.lr, **setup.hyper)]
            else:
                optimizers = _set_up(setup.optimizer, model, width, depth)
                _usable(optimizers, model, width, depth)
            if found is None:
                rows, note = _wanted_rows(setup, model, shared)
                where = survey(model, setup.example, branch=setup.said("branch"), skip=setup.said("skip"))
                found = Size(
                    width, depth, where, rows, note, numbers=sum(p.numel() for p in model.parameters())
                )
                if setup.scheme is None:
                    found.note = found.note or _strange(optimizers)
            found.trials.append(_train(setup, model, optimizers, found.survey, seed))
    assert found is not None
    return found


def _set_up(optimizer: Callable[..., Any], model: nn.Module, width: int, depth: int) -> list[Any]:
    """What the user's `(model, width, depth) -> optimizer` returns."""
    try:
        made = optimizer(model, width, depth)
    except TrimtabError:
        raise
    except Exception as error:
        name = getattr(optimizer, "__name__", "it")
        raise InputError(
            f"optimizer= must be a class in torch.optim, or a function (model, width, depth) -> optimizer: "
            f"{name}(model, {width}, {depth}) raised {raised(error)}."
        ) from error
    return list(made) if isinstance(made, list | tuple) else [made]


def _plan(setup: Setup, width: int, depth: int) -> Parametrization:
    def pair(seed: int) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(seed)
        return build_model(setup.build, width, depth, device=setup.device), build_model(
            setup.build, *setup.base, device=setup.device
        )

    with torch.random.fork_rng():
        return of_draws(
            pair, scheme=setup.scheme, gamma0=setup.gamma0, example=setup.example, overrides=setup.overrides
        )


def build_model(
    build: Callable[[int, int], nn.Module], width: int, depth: int, *, device: torch.device | None = None
) -> nn.Module:
    """The user's model at one size, in training mode."""
    model = user_code.build_model(build, width, depth)
    model = model.to(device) if device is not None else model
    return model.train()


def _usable(optimizers: list[Any], model: nn.Module, width: int, depth: int) -> None:
    known = {id(p) for p in model.parameters()}
    for optimizer in optimizers:
        if not all(hasattr(optimizer, name) for name in ("step", "zero_grad", "param_groups")):
            raise InputError(
                f"optimizer(model, width, depth) must return an optimizer, or a list of them: at "
                f"({width}, {depth}) it returned {type(optimizer).__name__}."
            )
        strange = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
        if strange:
            raise InputError(
                f"the optimizer must train the model it was given: at "
                f"({width}, {depth}) {strange} of its parameters are of another model."
            )


def _strange(optimizers: list[Any]) -> str:
    """Why the rates of these optimizers cannot be compared with roles, if so."""
    try:
        for o in optimizers:
            family(type(o), {k: v for k, v in getattr(o, "defaults", {}).items() if k in FLAGS})
    except TrimtabError as error:
        return f"rates were not compared with their roles: {str(error).splitlines()[0]}"
    return ""


def _wanted_rows(
    setup: Setup, model: nn.Module, shared: Parametrization | None
) -> tuple[Parametrization | None, str]:
    """What transfer asks of each parameter, seen from the model as it stands."""
    if (
        shared is not None
        and setup.judged_as == yardstick(shared.scheme)
        and shared.scheme.width == "mup"
        and shared.scheme.alpha == setup.judged_as.alpha
    ):
        return shared, ""
    try:
        base = build_model(setup.build, *setup.base, device=setup.device)
        return parametrize(
            model,
            base,
            scheme=setup.judged_as,
            gamma0=setup.gamma0,
            example=setup.example,
            overrides=setup.overrides,
            apply=False,
        ), ""
    except TrimtabError as error:
        if setup.scheme is not None:
            raise
        return None, f"rates and updates were not compared with their roles: {str(error).splitlines()[0]}"


def _train(setup: Setup, model: nn.Module, optimizers: list[Any], where: Survey, seed: int) -> Trial:
    sampler = Sampler()
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = {name: sampler(p) for name, p in names.items()}
    start, where = _look(setup, model, where, sampler)
    sizes: Any = {k: [rms(v)] for k, v in start.items()}  # lists while they grow, arrays in the end
    changes: Any = {k: [0.0] for k in start}
    updates: Any = {n: [0.0] for n in names}
    losses: Any = []
    trial = Trial(sizes, changes, updates, _rates(model, optimizers), losses)
    trial.optimizers = [
        (type(o), {k: v for k, v in getattr(o, "defaults", {}).items() if k in FLAGS}) for o in optimizers
    ]
    sharpness: list[float] = []
    for batch in setup.batches:
        if setup.after_step is not None:
            sharpness.append(
                setup.after_step(model, optimizers, lambda: _loss(setup, model, setup.batches[0]))
            )
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = _training_loss(setup, model, batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        trial.losses.append(float(loss.detach()))  # type: ignore[attr-defined]
        now, where = _look(setup, model, where, sampler)
        if now.keys() != start.keys():
            raise StructureError(
                f"the model must do the same operations at every step: after {len(trial.losses)} steps the "
                "residual adds differ from those at the start."
            )
        for k, v in now.items():
            trial.size[k].append(rms(v))  # type: ignore[attr-defined]
            trial.change[k].append(rms(v - start[k]) if v.shape == start[k].shape else float("nan"))  # type: ignore[attr-defined]
        for name, p in names.items():
            trial.update[name].append(rms(sampler(p) - weights[name]))  # type: ignore[attr-defined]
    for table in (trial.size, trial.change, trial.update):
        for k in table:
            table[k] = np.asarray(table[k])  # type: ignore[index]
    trial.losses = np.asarray(trial.losses)
    trial.sharpness = np.asarray(sharpness) if sharpness else None
    return trial


def rms(t: Tensor) -> float:
    return float(t.square().mean().sqrt()) if t.numel() else 0.0


def _look(
    setup: Setup, model: nn.Module, where: Survey, sampler: Sampler
) -> tuple[dict[Key, Tensor], Survey]:
    """Look; where the operations are not those surveyed (routing that depends on the data), survey again
    first."""
    found, same = look(model, setup.example, where, sampler)
    if not same:
        where = survey(model, setup.example, branch=setup.said("branch"), skip=setup.said("skip"))
        found, same = look(model, setup.example, where, sampler)
        if not same:
            raise StructureError(
                "two forwards of one model on one batch did different operations: "
                "the check needs a forward that is a function of its inputs."
            )
    return found, where


def _rates(model: nn.Module, optimizers: Iterable[Any]) -> dict[str, dict[str, float]]:
    names = {id(p): name for name, p in model.named_parameters()}
    found = {}
    for which, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in names:
                    found[names[id(p)]] = dict(
                        lr=float(group["lr"]),
                        weight_decay=float(group.get("weight_decay") or 0.0),
                        optimizer=float(which),
                    )
    return found


# -- data and loss -------------------------------------------------------------------------------------------


def inputs_of(batch: Any) -> Any:
    """What the model is called with: the dict, or the first of (inputs, target)."""
    return batch if isinstance(batch, Mapping) else batch[0]


def to_device(batch: Any, device: torch.device | None) -> Any:
    if device is None:
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {k: to_device(v, device) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(v, device) for v in batch)
    return batch


def _training_loss(setup: Setup, model: nn.Module, batch: Any) -> Tensor:
    """The loss of a step, autocast if the check asks for it. What is watched is measured in float32 all the
    same: a change of one part in a thousand, rounded to eight bits, would be rounding alone."""
    kind = next((p.device.type for p in model.parameters()), "cpu")
    with torch.autocast(kind, torch.bfloat16, enabled=setup.precision == "bf16"):
        return _loss(setup, model, batch)


def _loss(setup: Setup, model: nn.Module, batch: Any) -> Tensor:
    args, kwargs = as_call(inputs_of(batch))
    out = model(*args, **kwargs)
    if setup.loss is not None:
        with calling(f"loss(output, {'batch' if isinstance(batch, Mapping) else 'target'})"):
            value = setup.loss(out, batch if isinstance(batch, Mapping) else batch[1])
    else:
        value = cross_entropy(out if isinstance(batch, Mapping) else output_of(out), batch)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise InputError(
            "the loss must be one number that depends on the parameters: got "
            f"{type(value).__name__}{tuple(value.shape) if isinstance(value, Tensor) else ''}."
        )
    return value.reshape(())
