"""What a configuration names, made real: the model at its size, the batches, the loss, the parametrization.

The structure of a model does not depend on the draw of its weights. So one canonical draw is parametrized
for each (model, size, scheme, gamma0, roles), and every run of that size multiplies its own draw by the same
numbers: a run's start depends on its own seed alone, whoever else is trained.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trimtab.data.opening import open_data
from trimtab.errors import ExampleError, InputError, TrimtabError, faults, raised
from trimtab.files import folders
from trimtab.models.builders import BUILD
from trimtab.models.catalogue import fitting, size_faults
from trimtab.parametrization.planning import of_draws
from trimtab.parametrization.result import Parametrization
from trimtab.runs import devices
from trimtab.runs.catalogue import is_own
from trimtab.runs.config import RunConfig, batch_fault
from trimtab.runs.losses import NAMED, Batch, as_batch, forward, length
from trimtab.runs.published_models import fit_fields, load_published
from trimtab.runs.user_code import accepts, beside, build_model, by_split, load
from trimtab.torch_internals import count_flops

PLAN_SEED = 0
EVAL_BATCH = 500
HF = "hf:"
SHARED = {
    "model",
    "model_options",
    "width",
    "depth",
    "base",
    "scheme",
    "gamma0",
    "overrides",
    "roles",
    "data",
    "data_options",
    "loss",
    "batch_size",
    "eval_examples",
    "dtype",
    "device",
}

Made = TypeVar("Made")


class Task:
    """Everything a run needs that does not depend on its numbers (rate, momentum, decay, seed).

    Attributes:
        build: () -> the model as its own code draws it, from torch's global generator.
        loss: (model output, batch) -> scalar.
        plan: the parametrization of this size.
        device: where it computes.
        example: the inputs of one small forward.
    """

    def __init__(self, config: RunConfig):
        self.config = config
        self.device = devices.find(config.device)
        self._open()

    @functools.cached_property
    def plan(self) -> Parametrization:
        return self._make_plan()

    @functools.cached_property
    def sample(self) -> nn.Module:
        """The model at its size as its own code draws it, in training mode, to look at."""
        return self.draw(self.config.width, self.config.depth, PLAN_SEED).to(self.device.torch).train()

    # -- data
    # --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        c = self.config
        self.source = None if is_own(c.data) else open_data(c.data, c.data_options)
        self._function = load(c.data) if self.source is None else None
        own = self._function
        if own is not None and not (by_split(own) and accepts(own, "train", 0, 0)):
            raise InputError(
                f"data: {c.data} must be data(split, seed, step), with split 'train' or 'test': it takes "
                f"{inspect.signature(own)}."
            )
        self._fields: dict[str, Any] = {}  # of a published model's configuration, on a data set of the zoo
        if self.source is not None:
            shape = self.source.shape
            problems = (
                size_faults(c.model, c.width, c.depth, c.model_options, shape) if c.model in BUILD else []
            )
            if c.model.startswith(HF):
                self._fields, problems = fit_fields(c.model.removeprefix(HF), shape, c.model_options)
            if shape.train is not None and c.batch_size > shape.train:
                problems.append(batch_fault(shape.train, c.batch_size))
            if problems:
                raise faults(f"{len(problems)} faults in the run's configuration", problems)

    def batch(self, seed: int, step: int) -> Batch:
        """The training batch of a step: a pure function of (seed, step)."""
        if self.source is not None:
            return self.source.batch("train", seed, step, self.config.batch_size)
        return self._call("train", seed, step)

    def tests(self) -> Iterator[Batch]:
        """The test batches, the same for every seed."""
        if self.config.eval_examples == 0:
            return
        if self.source is not None:
            yield from self.source.test(EVAL_BATCH, self.config.test_limit)
            return
        seen = step = 0
        # a function has no end: without a limit one batch is looked at
        while seen < (self.config.eval_examples or 1):
            batch = self._call("test", 0, step)
            yield batch
            seen, step = seen + length(batch), step + 1

    def _call(self, split: str, seed: int, step: int) -> Batch:
        assert self._function is not None
        made = self._function(split, seed, step, **self.config.data_options)
        return as_batch(made, str(self.config.data))

    # -- model -----------------------------------------------------------------------------------------------

    def build(self, width: int, depth: int) -> nn.Module:
        c = self.config
        if is_own(c.model):
            return build_model(
                find_builder(c.model), width, depth, self._fields or c.model_options, name=c.model
            )
        options = dict(c.model_options)
        if self.source is not None:
            options = {**fitting(c.model, self.source.shape), **options}
        return BUILD[c.model](width, depth, **options)

    def draw(self, width: int, depth: int, seed: int) -> nn.Module:
        """A model drawn from `seed`, the global generator left as it was."""
        with self.device.forked():
            self.device.seed(seed)
            model = self.build(width, depth)
        if self.config.dtype == "float64":
            model = model.double()
        return model

    def example(self) -> Any:
        """Inputs of a small forward, made of the first training examples."""
        if is_own(self.config.model) and not self.config.model.startswith(HF):
            made = beside(self.config.model, "example")
            if made is not None:
                return made()
        batch = self.cast(self.batch(0, 0), devices.Device())  # models are planned on the processor
        few = _few(batch if isinstance(batch, dict) else batch[0])
        return few if isinstance(few, dict | tuple) else (few,)

    def _make_plan(self) -> Parametrization:
        c = self.config
        width, depth = c.base or (c.width, c.depth)
        if c.model in BUILD and c.model_options.get("skip", True) is False:
            depth = c.depth  # no skip, no branch to scale: only the width is carried over
        example = self.example()
        pair = lambda seed: (self.draw(c.width, c.depth, seed), self.draw(width, depth, seed))  # noqa: E731
        with self.device.forked():
            self.device.seed(PLAN_SEED)
            try:
                return of_draws(
                    pair,
                    scheme=c.scheme,
                    gamma0=c.gamma0,
                    overrides=c.overrides or None,
                    roles=c.roles or None,
                    example=example,
                )
            except ExampleError as error:
                raise self._misfit(example, error.__cause__ or error) from error

    def _misfit(self, example: Any, cause: BaseException) -> InputError:
        """The model does not take what the data gives: the shapes say why."""
        c = self.config
        given = example.items() if isinstance(example, dict) else enumerate(example)
        shapes = ", ".join(
            f"{f'{key} ' if isinstance(key, str) else ''}{tuple(value.shape)}"
            for key, value in given
            if isinstance(value, Tensor)
        )
        return InputError(
            f"the model must take the data: inputs of {c.data} are of shape {shapes}, and {c.model} (width "
            f"{c.width}, depth {c.depth}) raised {raised(cause, short=True)}. Begin "
            "the model with what reshapes them (nn.Flatten() for vectors), or write data(split, seed, step)."
        )

    @property
    def proof(self) -> str:
        """What the proof by one step says of this size in a line: "good", "wrong: ...", "untested: ..."."""
        return self.plan.proof.summary()

    def begin(self, seed: int) -> tuple[nn.Module, Parametrization]:
        """The model a run begins with, its own draw times this size's numbers, and the numbers that go with
        it."""
        model = self.draw(self.config.width, self.config.depth, seed)
        plan = self.plan.on(model)
        return model.to(self.device.torch), plan

    def start(self, seed: int) -> nn.Module:
        """The model alone."""
        return self.begin(seed)[0]

    @functools.cached_property
    def random(self) -> bool:
        """Whether a training forward draws random numbers (dropout, stochastic depth)."""
        with self.device.forked(), torch.no_grad():
            before = self.device.random_state()
            self.evaluate(self.sample, self.cast(self.batch(0, 0)))
            after = self.device.random_state()
            return not all(torch.equal(before[kind], after[kind]) for kind in before)

    @functools.cached_property
    def flops(self) -> float:
        """Floating point operations of one training step: three forwards' worth of matrix products."""
        losses: list[Any] = []
        with self.device.forked(), torch.no_grad():
            flops = count_flops(
                lambda: losses.append(self.evaluate(self.sample, self.cast(self.batch(0, 0)))[0])
            )
        if not isinstance(losses[0], Tensor) or losses[0].numel() != 1:
            shaped = isinstance(losses[0], Tensor)
            found = f"shape {tuple(losses[0].shape)}" if shaped else f"a {type(losses[0]).__name__}"
            cure = "Take the mean over examples" if shaped else "Return it before .item() or float()"
            raise InputError(
                f"the loss must be a tensor with one number: {self.config.loss or 'the model'} gave {found}. "
                f"{cure}."
            )
        return 3.0 * flops

    # -- loss ------------------------------------------------------------------------------------------------

    def cast(self, batch: Batch, device: devices.Device | None = None) -> Batch:
        """A batch on the run's device, or another, its floats in the run's precision."""
        device = device or self.device
        dtype = torch.float64 if self.config.dtype == "float64" else torch.float32
        if device.kind == "cpu" and dtype == torch.float32 and self.source is not None:
            return batch  # the zoo's data is made like this

        def move(v: Any) -> Any:
            floats = isinstance(v, Tensor) and v.is_floating_point()
            return device.move(v, dtype if floats else None) if isinstance(v, Tensor) else v

        if isinstance(batch, dict):
            return {k: move(v) for k, v in batch.items()}
        inputs, target = batch
        if isinstance(inputs, Mapping):
            return {k: move(v) for k, v in inputs.items()}, move(target)
        return (tuple(move(v) for v in inputs) if isinstance(inputs, list | tuple) else move(inputs)), move(
            target
        )

    @functools.cached_property
    def loss(self) -> Callable[[Any, Batch], Tensor]:
        c = self.config
        if c.loss is not None and is_own(c.loss):
            return load(c.loss)
        near = (
            beside(c.model, "loss")
            if c.loss is None and is_own(c.model) and not c.model.startswith(HF)
            else None
        )
        return near or NAMED[c.loss or "cross-entropy"]

    def evaluate(self, model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Tensor | None]:
        """(loss, output) of one forward, autocast if the run asks for it."""
        if self.config.dtype != "bfloat16":
            output = forward(model, batch)
            return self.loss(output, batch), output
        with torch.autocast(self.device.torch.type, torch.bfloat16):
            output = forward(model, batch)
            return self.loss(output, batch), output

    def first_loss(self) -> Any:
        """The loss before any step; where the model does not take the data, the shapes say why."""
        batch = self.cast(self.batch(0, 0))
        try:
            forward(self.sample, batch)
        except Exception as error:
            raise self._misfit(self.example(), error) from error
        return self.evaluate(self.sample, batch)[0]


def prepare(config: RunConfig) -> Task:
    """The set-up of a configuration, parametrized; runs that differ only in numbers share one."""
    made = open_task(config)
    _name_faults(config, lambda: made.plan)
    return made


def open_task(config: RunConfig) -> Task:
    """The set-up before its parametrization: data, model, loss."""
    shared = config.model_dump(mode="json", include=SHARED) | {
        "test_limit": config.test_limit
    }  # steps are in it
    shared["folders"] = [str(folder) for folder in folders()]  # the same name is another file elsewhere
    return _name_faults(config, lambda: _task(json.dumps(shared, sort_keys=True), _Held(config)))


def build_fault(config: RunConfig) -> str:
    """Why the model cannot be built at its size; "" where it can.

    Tried on the meta device first, which takes neither time nor memory, and with weights where a user's code
    cannot do that.

    >>> build_fault(RunConfig(width=32, depth=2, lr=0.1))
    ''
    """
    try:
        _count(open_task(config), config.width, config.depth)
    except Exception as error:
        if devices.is_out_of_memory(error):  # a matter of the machine, not of the size
            return ""
        return str(error) if isinstance(error, TrimtabError) else raised(error)
    return ""


def _count(task: Task, width: int, depth: int) -> int:
    """How many parameters the model has at a size: on meta, or with weights."""
    with contextlib.suppress(Exception), torch.device("meta"):
        return sum(p.numel() for p in task.draw(width, depth, PLAN_SEED).parameters())
    return sum(p.numel() for p in task.draw(width, depth, PLAN_SEED).parameters())


def axis_fault(config: RunConfig) -> str:
    """That the user's build gives the base's width or depth again; "" where it follows both.

    As many parameters are a suspicion: a loop over one block has them too. The plan decides, whose ratio is
    then 1.

    >>> axis_fault(RunConfig(width=32, depth=2, base=(32, 1), lr=0.1))
    ''
    """
    if config.base is None or not is_own(config.model):
        return ""
    width, depth = config.width, config.depth
    task = open_task(config)
    for axis, base, other in (
        ("width", config.base[0], (config.base[0], depth)),
        ("depth", config.base[1], (width, config.base[1])),
    ):
        if other == (width, depth):
            continue
        with contextlib.suppress(Exception):  # a size between the two that the model cannot have
            same = _count(task, *other) == _count(task, width, depth)
            if same and getattr(prepare(config).plan, axis) == 1:
                return (
                    f"{config.model} must follow {axis}: at width {width}, depth {depth} it builds the model "
                    f"of {axis} {base} again"
                )
    return ""


def start_fault(config: RunConfig) -> str:
    """Why no learning rate could train the base: its loss on the first batch is not finite; "" where it is.

    >>> start_fault(RunConfig(width=32, depth=2, lr=0.1))
    ''
    """
    if not any(is_own(name) for name in (config.model, config.data, config.loss)):
        return ""
    task = open_task(config)
    with task.device.forked(), torch.no_grad():
        first = _name_faults(config, task.first_loss)
    if not isinstance(first, Tensor) or bool(first.isfinite().all()):
        return ""
    return (
        f"the loss must be finite before the first step: {config.loss or config.model} gives "
        f"{float(first.mean())} at the base (width {config.width}, depth {config.depth}) on the first batch "
        f"of {config.data}. No learning rate mends that: look at the data and the loss."
    )


def _name_faults(config: RunConfig, make: Callable[[], Made]) -> Made:
    """What `make` makes; whatever the user's code raises becomes a fault that names model, size and data."""
    try:
        return make()
    except (TrimtabError, ModuleNotFoundError):  # the command says what to install
        raise
    except Exception as error:
        c = config
        raise InputError(
            f"model {c.model} (width {c.width}, depth {c.depth}) on data {c.data} could not be set up: "
            f"{raised(error)}"
        ) from error


class _Held:
    """Carries a config through the cache without being part of its key."""

    def __init__(self, config: RunConfig):
        self.config = config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=8)
def _task(key: str, held: _Held) -> Task:
    return Task(held.config)


def find_builder(model: str) -> Callable[..., nn.Module]:
    """The `build(width, depth, **options)` behind a name that is not the zoo's: the user's, or transformers'
    as hf:llama."""
    return load_published(model.removeprefix(HF))[0] if model.startswith(HF) else load(model)


def _few(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_few(v) for v in value)
    if isinstance(value, dict):
        return {k: _few(v) for k, v in value.items()}
    return value[:8] if isinstance(value, Tensor) and value.ndim else value
