"""The configuration of one run: frozen, validated, every fault at once. No torch.

    RunConfig -> (train.run) -> RunResult

Numbers are those of the *base*: the scheme carries them to (width, depth).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_serializer

from trimtab.data import catalogue as data_catalogue
from trimtab.data.catalogue import Shape
from trimtab.errors import Fault, InputError, faults_in
from trimtab.models import catalogue as model_catalogue
from trimtab.parametrization.horizons.multipliers import read_roles
from trimtab.parametrization.rules import as_scheme
from trimtab.runs import catalogue
from trimtab.runs.batch_and_length import horizon_faults

Positive = Field(gt=0, allow_inf_nan=False)
Count = Field(ge=1)

OPTIMIZERS = ("sgd", "adam", "adamw", "muon")
SCHEDULES = ("constant", "cosine", "linear", "step")
DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = {"float32": "float32", "bf16": "bfloat16"}  # what a user says: the dtype it stands for
LOGS = ("tensorboard", "wandb")
DECAYS = ("constant", "rate", "cosine", "linear")
SIGNS = {"greater_than_equal": ">=", "greater_than": ">", "less_than_equal": "<=", "less_than": "<"}
# fields that came later: in a run's name only where they say something
LATER = ("roles", "horizon", "give_up")
EARLIEST = 0.25  # share of the steps: before it a run that warms up has not begun to learn
VERSION = 2  # of what a run's fields mean: another one where the same fields would give other numbers


class RunConfig(BaseModel):
    """One training run, named by its numbers.

    >>> config = RunConfig(model="mlp", data="digits", width=64, depth=6, base=(32, 3), lr=0.1, steps=100)
    >>> config.scheme, config.batch_size
    ('depth-mup', 64)
    >>> RunConfig(model="mpl", width=0, lr=-1.0)
    Traceback (most recent call last):
        ...
    trimtab.errors.InputError: 4 faults in the run's configuration
      - width: must be >= 1: got 0
      - depth: is required
      - lr: must be > 0: got -1.0
      - model: unknown name 'mpl', nearest 'mlp'; known: mlp, resnet, vit, gpt, hf:llama and the like, or \
your own file.py:function
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, protected_namespaces=(), validate_default=False
    )

    model: str = "mlp"
    """A zoo name (mlp, resnet, vit, gpt) or your own pkg.mod:build."""
    model_options: dict[str, Any] = {}
    """Options of `build(width, depth, **options)`; what follows from the data may be left out."""
    width: int = Count
    depth: int = Count
    base: tuple[int, int] | None = None
    """(width, depth) of the model that was tuned; None: this run is its own base."""
    scheme: str = "depth-mup"
    gamma0: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Richness: how far features move, 1 as in the base."""
    overrides: dict[str, Any] = {}
    """What `trimtab.parametrize` takes as overrides: {name pattern: a role, "branch", "skip", or a table of
    numbers}."""
    roles: dict[str, dict[str, float]] = {}
    """Multipliers by role, tuned at the base and the same at every size: {"input": {"lr": 0.25, "init":
    2.0}}."""
    horizon: dict[str, Any] = {}
    """A rule over batch and length that lr, betas, momentum, decay and eps follow from the base's numbers:
    {"rule": a name or a table of exponents, "batch": the base's, "tokens": the base's}. {}: they stay."""

    data: str = "digits"
    """A zoo name (digits, cifar10, fashion-mnist, images, text, teacher) or your own pkg.mod:data, called
    with (split, seed, step)."""
    data_options: dict[str, Any] = {}
    loss: str | None = None
    """cross-entropy, mse ((f - y)^2 / 2 summed over outputs) or your own pkg.mod:loss, called with (output,
    batch). None: the function `loss` beside your own build if there is one, else cross-entropy."""
    batch_size: int = Field(64, ge=1)

    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    lr: float = Positive
    """The base's learning rate, independent of width and depth."""
    momentum: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    rest_lr: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Rate of the AdamW that trains what muon does not take; None: lr / 10."""
    clip: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Largest gradient norm, in the norm that means the same at every size."""

    steps: int = Field(200, ge=1)
    warmup: int = Field(0, ge=0)
    """Steps over which the rate rises linearly from 0."""
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    """Of the rate after warmup: cosine and linear end at `floor` x lr; step divides by 10 at 50 % and 75
    %."""
    floor: float = Field(0.0, ge=0, le=1)
    decay_schedule: Literal["constant", "rate", "cosine", "linear"] = "constant"
    """Of the weight decay: constant, in proportion to the rate's schedule (warmup, floor), or its own way to
    0 over the whole run. A decoupled decay (AdamW) is multiplied by the rate of the step besides."""

    give_up: float = Field(0.0, ge=0, lt=1)
    """Share of the steps after which a run whose loss is no lower than it began ends and counts as diverged;
    0: never."""

    seed: int = Field(0, ge=0, lt=2**63)
    eval_every: int = Field(0, ge=0)
    """Steps between evaluations on the test split; 0: only at the end."""
    eval_examples: int | None = Field(None, ge=0)
    """Test examples looked at per evaluation, at most; 0: none. None: as many as keep all evaluations
    together under a tenth of the training's cost (`test_limit`); a user's data function: one batch."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """bfloat16 is autocast over float32 weights."""
    precision: Literal["float32", "bf16"] | None = Field(None, exclude=True)
    """Another way to say dtype: float32, or bf16 for bfloat16."""
    device: str = "cpu"
    """auto (the first of cuda, mps and cpu that is there), cpu, cuda, cuda:N or mps. Its class is part of the
    run's name, its number is not."""
    compile: bool = False
    fleet: int = Field(1, ge=1, le=4096)
    """Slots of the fleet this run trains in, 1: it trains alone. The two differ in rounding, so this is part
    of a run's name; a sweep fills it in."""
    log: str | None = Field(None, exclude=True)
    """Where the run's numbers go while it trains: tensorboard:DIR, wandb, or your own pkg.mod:function,
    called with (step, metrics). No part of the run's name."""
    version: Literal[2] = VERSION
    """Of what these fields mean. A store's cells of another version are read, never mixed with new ones."""
    sources: dict[str, str] = {}
    """SHA-256 of the files behind the user's own functions: another file is another run. Filled in when a
    sweep is read."""

    def __init__(self, **given: Any):
        own = catalogue.is_own(given.get("model")) and not str(given["model"]).startswith("hf:")
        if given.get("loss") is None and not own:
            # only beside a user's own build may another one stand: elsewhere the name says it all
            given["loss"] = "cross-entropy"
        found: list[Fault] = _read_precision(given)
        try:
            super().__init__(**given)
        except ValidationError as error:
            found += [field_fault(problem) for problem in error.errors()]
        bad = {fault.path.split(".")[0] for fault in found}
        found += _cross({key: given.get(key, default) for key, default in _defaults().items()}, bad)
        if found:
            raise faults_in("the run's configuration", found)

    def replace(self, **numbers: Any) -> RunConfig:
        """This configuration with some fields replaced, validated again."""
        held = {**self.model_dump(), "log": self.log}
        if "precision" in numbers:
            held.pop("dtype")
        return RunConfig(**{**held, **numbers})

    @property
    def test_limit(self) -> int:
        """Test examples of one evaluation, at most: `eval_examples`, or what its default stands for.

        A training step is three forwards (one forward, a backward of two), an evaluation one, so that
        all evaluations together cost a tenth of the training at 3/10 steps x batch_size examples. At least a
        batch.

        >>> RunConfig(width=32, depth=3, lr=0.1, steps=200, batch_size=64).test_limit
        3840
        >>> RunConfig(width=32, depth=3, lr=0.1, steps=200, batch_size=64, eval_every=50).test_limit
        960
        """
        if self.eval_examples is not None:
            return self.eval_examples
        evaluations = 1 + ((self.steps - 1) // self.eval_every if self.eval_every else 0)
        return max(self.batch_size, 3 * self.steps * self.batch_size // (10 * evaluations))

    @model_serializer(mode="wrap")
    def _said(self, handler: Any) -> dict[str, Any]:
        """Without the later fields where they are empty: the names of runs made before them stay valid."""
        return {key: value for key, value in handler(self).items() if value or key not in LATER}

    def as_json(self, *, sources: bool = True) -> str:
        """The configuration as canonical JSON, with or without the hashes of the users' files. Of the device
        only the class: which of two GPUs it is changes no number."""
        held = self.model_dump(mode="json", exclude=None if sources else {"sources"})
        return json.dumps(held | {"device": device_class(self.device)}, sort_keys=True)

    @property
    def hash(self) -> str:
        """The run's name: 16 hexadecimal digits of the SHA-256 of its canonical JSON."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()[:16]


def device_class(device: str) -> str:
    """What a device rounds like: its name without its number.

    >>> device_class("cuda:1"), device_class("cpu")
    ('cuda', 'cpu')
    """
    return device.partition(":")[0]


def _read_precision(given: dict[str, Any]) -> list[Fault]:
    """Put the dtype that `precision` stands for into the fields; what is wrong with it."""
    wanted = PRECISIONS.get(given.get("precision") or "")
    if wanted is None:
        return []
    if given.get("dtype", wanted) != wanted:
        got = f"precision {given['precision']!r} and dtype {given['dtype']!r}"
        return [Fault("precision", "is another way to say dtype: pass one of them", got)]
    given["dtype"] = wanted
    given.pop("precision")
    return []


FILLED_IN = ("version", "sources")  # by trimtab itself
WHOLE = "configuration"  # where a key is that no run has; the sweep or tune around it calls it [run]


def field_fault(problem: Mapping[str, Any]) -> Fault:
    """One fault of pydantic's, in our words: the place, the law, the value.

    >>> print(field_fault({"type": "greater_than", "loc": ("lr",), "ctx": {"gt": 0}, "input": -1, "msg": ""}))
    lr: must be > 0: got -1
    """
    places = [str(part) for part in problem["loc"]]
    path, kind, context = ".".join(places), problem["type"], problem.get("ctx") or {}
    value = problem.get("input")
    got = repr(value)[:80]
    if kind == "missing":
        return Fault(path, "is required")
    if kind == "extra_forbidden":
        table = ".".join(places[:-1]) or WHOLE
        fields = [field for field in RunConfig.model_fields if field not in FILLED_IN]
        return catalogue.unknown(table, problem["loc"][-1], fields, own=False, kind="key")
    if kind == "literal_error":
        known = [word.strip(" '\"") for word in str(context["expected"]).replace(" or ", ", ").split(",")]
        return catalogue.unknown(path, value, known, own=False)
    if kind in SIGNS:
        return Fault(path, f"must be {SIGNS[kind]} {next(iter(context.values())):g}", got)
    if kind == "finite_number":
        return Fault(path, "must be a finite number", got)
    return Fault(path, f"{problem['msg'][0].lower()}{problem['msg'][1:]}", got)


def _defaults() -> dict[str, Any]:
    return {
        key: None if field.is_required() else field.get_default()
        for key, field in RunConfig.model_fields.items()
    }


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _cross(c: dict[str, Any], bad: set[str]) -> list[Fault]:
    """What the fields mean together; a field already found wrong is not judged again."""
    found: list[Fault] = []
    try:
        as_scheme(str(c["scheme"]))
    except InputError as error:
        found.append(Fault("scheme", str(error)))
    model = _zoo_name("model", model_catalogue.MODELS, c, found)
    data = _zoo_name("data", data_catalogue.DATA, c, found)
    if isinstance(c["loss"], str) and c["loss"] not in catalogue.LOSSES and not catalogue.is_own(c["loss"]):
        found.append(catalogue.unknown("loss", c["loss"], catalogue.LOSSES))
    options = c["data_options"]
    shape = data_catalogue.shape_of(data, options) if data and isinstance(options, Mapping) else None
    if model and data and data_catalogue.KIND[data] not in model_catalogue.TAKES[model]:
        takes = " or ".join(model_catalogue.TAKES[model])
        found.append(Fault("data", f"{model} takes {takes} data: {data} is {data_catalogue.KIND[data]}"))
        shape = None
    if model and isinstance(c["model_options"], Mapping):
        found += [fault for fault in _size_faults(model, c, shape) if fault not in found]
    if "base" not in bad and c["base"] is not None and not all(_whole(v) for v in c["base"]):
        found.append(Fault("base", "must be (width, depth), each >= 1", repr(c["base"])))
    train = shape.train if shape is not None else None
    if train is not None and _whole(c["batch_size"]) and c["batch_size"] > train:
        found.append(batch_fault(train, c["batch_size"]))
    return found + _training_faults(c, bad)


def _zoo_name(
    what: str, table: Mapping[str, Mapping[str, Any]], c: dict[str, Any], found: list[Fault]
) -> str | None:
    """The zoo's model or data set that is named, with options it takes; None for the user's own, or a wrong
    one."""
    name, options = c[what], c[f"{what}_options"]
    known = isinstance(name, str) and name in table
    if isinstance(name, str) and not known and not catalogue.is_own(name):
        published = ("hf:llama and the like",) if what == "model" else ()
        found.append(catalogue.unknown(what, name, (*table, *published)))
    if not known:
        return None
    wrong = catalogue.option_faults(what, table, name, options) if isinstance(options, Mapping) else []
    found += wrong
    return None if wrong else name


def _size_faults(model: str, c: dict[str, Any], shape: Shape | None) -> list[Fault]:
    """What the zoo's model refuses of its own size and of the base's."""
    sizes, base = [(c["width"], c["depth"], "")], c["base"]
    if isinstance(base, tuple | list) and len(base) == 2 and tuple(base) != (c["width"], c["depth"]):
        sizes.append((*base, "base "))
    found: list[Fault] = []
    for width, depth, what in sizes:
        if _whole(width) and _whole(depth):
            new = model_catalogue.size_faults(model, width, depth, c["model_options"], shape, what)
            found += [fault for fault in new if fault not in found]
    return found


def batch_fault(train: int, batch_size: int) -> Fault:
    """A batch that is larger than the training set, of `train` examples."""
    return Fault("batch_size", f"must be at most the training set's size, {train}", str(batch_size))


def _training_faults(c: dict[str, Any], bad: set[str]) -> list[Fault]:
    found: list[Fault] = []
    if isinstance(c["nesterov"], bool) and c["nesterov"] and c["momentum"] == 0:
        found.append(Fault("nesterov", "needs momentum > 0", "0"))
    if "betas" not in bad and not all(isinstance(b, int | float) and 0 <= b < 1 for b in c["betas"]):
        found.append(Fault("betas", "must be two numbers in [0, 1)", repr(c["betas"])))
    if _whole(c["steps"]) and _whole(c["warmup"]) and c["warmup"] >= c["steps"]:
        found.append(Fault("warmup", "must end before the run does", f"{c['warmup']} of {c['steps']} steps"))
    if "give_up" not in bad and 0 < c["give_up"] < EARLIEST:
        found.append(Fault("give_up", f"must be 0 (never) or at least {EARLIEST:g}", repr(c["give_up"])))
    if c["loss"] == "cross-entropy" and c["data"] == "teacher":
        found.append(Fault("loss", "the teacher gives numbers, not classes: pass loss = 'mse'"))
    if "roles" not in bad:
        try:
            read_roles(c["roles"])
        except InputError as error:
            found.append(Fault("roles", str(error)))
    if c["horizon"] and not bad & {"horizon", "batch_size", "steps", "betas", "momentum", "optimizer"}:
        found += horizon_faults(c)
    log = c["log"]
    if isinstance(log, str) and log.split(":")[0] not in LOGS and not catalogue.is_own(log):
        found.append(catalogue.unknown("log", log, LOGS))
    kind, colon, number = str(c["device"]).partition(":")
    if kind not in DEVICES:
        found.append(catalogue.unknown("device", str(c["device"]), DEVICES, own=False))
    elif colon and (kind != "cuda" or not number.isdigit()):
        found.append(Fault("device", "must be auto, cpu, cuda, cuda:N or mps", repr(c["device"])))
    if kind == "mps" and c["dtype"] == "float64":
        found.append(Fault("dtype", "mps has no float64: pass float32, or device = 'cpu'"))
    return found


def decay(step: int, config: RunConfig) -> float:
    """Weight decay of a step over the configured one.

    >>> decay(50, RunConfig(width=32, depth=3, lr=0.1, steps=100, decay_schedule="cosine"))
    0.5
    """
    if config.decay_schedule == "constant":
        return 1.0
    if config.decay_schedule == "rate":
        return rate(step, config)
    if config.decay_schedule == "linear":
        return 1 - step / config.steps
    return round(0.5 * (1 + math.cos(math.pi * step / config.steps)), 15)


def rate(step: int, config: RunConfig) -> float:
    """Learning rate of a step over the configured one: warmup, then the schedule.

    >>> c = RunConfig(width=32, depth=3, lr=0.1, steps=110, warmup=10, schedule="cosine", floor=0.1)
    >>> [round(rate(step, c), 3) for step in (0, 4, 9, 10, 60, 109)]
    [0.1, 0.5, 1.0, 1.0, 0.55, 0.1]
    """
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    if config.schedule == "cosine":
        return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "linear":
        return config.floor + (1 - config.floor) * (1 - done)
    if config.schedule == "step":
        return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01
    return 1.0
