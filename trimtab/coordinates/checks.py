"""The coordinate check: does one set of hyperparameters move the network alike at every width and depth?

    slope = d log rms / d log size      of the stream, each branch, the output and their changes in training

for several seeds, over widths at the base depth and over depths at the base width, against what transfer asks
for (`expectations`). A verdict, and the culprit first. The first such check is in arXiv 2203.03466 (section
D.1), over width and to be read by eye.

    watching -> trials -> lines -> slopes -> verdicts
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.coordinates.expectations import yardstick
from trimtab.coordinates.profiles import lines
from trimtab.coordinates.trials import Setup, Size, build_model, inputs_of, run, to_device
from trimtab.coordinates.verdicts import Check, decide
from trimtab.errors import InputError, calling, faults
from trimtab.parametrization.rules import Scheme, as_scheme
from trimtab.runs.config import PRECISIONS
from trimtab.runs.devices import find
from trimtab.runs.losses import as_batch


def check(
    build: Callable[[int, int], nn.Module],
    widths: Sequence[int] | None,
    depths: Sequence[int] | None,
    *,
    base: tuple[int, int],
    data: Callable[[int], Any],
    scheme: str | Scheme | None = "depth-mup",
    optimizer: Any = torch.optim.AdamW,
    lr: float | None = 1e-3,
    steps: int = 5,
    seeds: int = 3,
    loss: Callable[[Any, Any], Tensor] | None = None,
    expect: str | Scheme | None = None,
    hyper: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    gamma0: float = 1.0,
    device: str | torch.device | None = None,
    precision: str = "float32",
    sharpness: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Check:
    """Check that hyperparameters transfer over width and depth, in a minute, before a cluster is spent.

    Args:
        build: `build(width, depth) -> nn.Module`.
        widths: sizes measured at the base depth; none or one leaves that axis out.
        depths: sizes measured at the base width; likewise.
        base: (width, depth) of the model that was tuned.
        data: `data(step) -> batch`: a dict (then `model(**batch).loss` is used) or (inputs, target). The
            first batch is also the probe on which everything is measured.
        scheme: how trimtab parametrizes each model; None for a set-up of your own.
        optimizer: a class, built by trimtab at each size; or, with scheme=None, a callable
            `(model, width, depth) -> optimizer` (or a list of them) that does what you do.
        lr: base learning rate, for a class.
        steps: training steps.  seeds: initialisations at every size.
        loss: `loss(output, target)`, default cross-entropy; for a dict batch `loss(output, batch)`.
        expect: the scheme whose predictions are the yardstick, for a set-up of your own (default
        "depth-mup").
        hyper: the optimizer's other hyperparameters, as for the base.
        overrides, gamma0: as for `parametrize`.
        device: where the models are put ("auto", "cpu", "cuda", "cuda:1", "mps"); default: where build puts
            them.
        precision: "bf16" trains under autocast over float32 weights; what is watched is measured in float32.
        progress: called with a line of words before each size is trained.
        sharpness: also follow the top eigenvalue of the Hessian in the optimizer's own metric (slower).

    Returns:
        a `Check`: `.verdict`, `.verdicts` by axis, `.culprits`, `.slopes`, `.figure()`, `.to_json()`.

    >>> class Block(nn.Module):
    ...     def __init__(self, n):
    ...         super().__init__()
    ...         self.fc = nn.Linear(n, n)
    ...     def forward(self, h):
    ...         return h + self.fc(torch.relu(h))
    >>> def build(width, depth):
    ...     blocks = [Block(width) for _ in range(depth)]
    ...     return nn.Sequential(nn.Linear(8, width), *blocks, nn.Linear(width, 4))
    >>> x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    >>> setup = dict(base=(32, 4), data=lambda step: (x, x[:, :4].argmax(-1)))
    >>> check(build, [32, 64, 128], [4, 8, 16], **setup).verdict
    'PASS'
    >>> check(build, [32], [4, 8, 16], scheme="mup", **setup).verdict
    'FAIL'
    """
    widths, depths = [] if widths is None else widths, [] if depths is None else depths
    problems = _problems(
        build, widths, depths, base, data, scheme, optimizer, lr, steps, seeds, loss, expect, hyper, gamma0
    )
    if precision not in PRECISIONS:
        problems.append(f"precision must be one of {', '.join(PRECISIONS)}: got {precision!r}")
    if problems:
        raise faults("check(build, widths, depths, base=..., data=...):", problems)
    own = scheme is None
    chosen = None if own else as_scheme(scheme)  # type: ignore[arg-type]
    judged_as = yardstick(as_scheme(expect) if expect is not None else chosen or as_scheme("depth-mup"))
    said = as_scheme(expect) if own and expect is not None else chosen
    base = (int(base[0]), int(base[1]))
    place = find(device).torch if isinstance(device, str) else device
    with torch.random.fork_rng():
        model = build_model(build, *base, device=place)
    where = next((p.device for p in model.parameters()), None)
    batches = [to_device(_batch(data, step), where) for step in range(steps)]
    setup = Setup(
        build=build,
        base=base,
        batches=batches,
        example=inputs_of(batches[0]),
        scheme=chosen,
        judged_as=judged_as,
        optimizer=optimizer,
        lr=lr or 0.0,
        hyper=dict(hyper or {}),
        loss=loss,
        overrides=overrides,
        gamma0=gamma0,
        device=place,
        precision=precision,
    )
    if sharpness:
        from trimtab.coordinates.curvature import effective_sharpness

        setup.after_step = effective_sharpness
    axes = {
        "width": sorted({(int(w), base[1]) for w in widths}),
        "depth": sorted({(base[0], int(d)) for d in depths}),
    }
    axes = {axis: places for axis, places in axes.items() if len(places) > 1}
    whole = len({place for places in axes.values() for place in places})
    sizes: dict[tuple[int, int], Size] = {}
    found = []
    for axis, places in axes.items():
        for width, depth in (p for p in places if p not in sizes):
            if progress is not None:
                where = f"size {len(sizes) + 1} of {whole}: width {width}, depth {depth}"
                progress(f"{where}, {seeds} seeds x {steps} steps")
            sizes[width, depth] = run(setup, width, depth, seeds)
            _starts_finite(sizes[places[0]])
        _grows([sizes[p] for p in places], axis)
        found += lines([sizes[p] for p in places], axis, judged_as, own=own)
    notes = list(dict.fromkeys(s.note for s in sizes.values() if s.note))
    if precision != "float32":
        notes.append(f"trained in {precision} (autocast over float32 weights), measured in float32")
    about = dict(
        scheme=chosen.name if chosen else f"own set-up, expected {judged_as.name}",
        optimizer=getattr(optimizer, "__name__", type(optimizer).__name__),
        lr=lr,
        steps=steps,
        seeds=seeds,
        base=list(base),
        widths=[w for w, _ in axes.get("width", [])],
        depths=[d for _, d in axes.get("depth", [])],
    )
    return decide(found, list(axes), about, notes, said.alpha if said else 0.5, steps)


def _starts_finite(smallest: Size) -> None:
    """A larger size may diverge, which is an answer; what is not finite before the first step at the smallest
    is none."""
    first = [float(trial.losses[0]) for trial in smallest.trials]
    if not all(map(math.isfinite, first)):
        raise InputError(
            f"the loss must be finite before the first step: at width {smallest.width}, depth "
            f"{smallest.depth} it is {next(v for v in first if not math.isfinite(v))}. Look at the data and "
            "the loss."
        )


def _grows(sizes: Sequence[Size], axis: str) -> None:
    """Every size must be another model, or a flat slope would mean nothing."""
    seen: dict[tuple[int, ...], Size] = {}
    for s in sizes:
        key = (s.numbers, *(len(stack.branches) for stack in s.survey.stacks))
        if key in seen:
            a, b = ((o.width if axis == "width" else o.depth) for o in (seen[key], s))
            raise InputError(
                f"build(width, depth) must follow {axis}: it gives the same number of parameters and "
                f"branches at {axis} {a} and {b}."
            )
        seen[key] = s


def _batch(data: Callable[[int], Any], step: int) -> Any:
    with calling(f"data(step={step})"):
        made = data(step)
    return as_batch(made, "data(step)")


def _problems(
    build: Any,
    widths: Any,
    depths: Any,
    base: Any,
    data: Any,
    scheme: Any,
    optimizer: Any,
    lr: Any,
    steps: Any,
    seeds: Any,
    loss: Any,
    expect: Any,
    hyper: Any,
    gamma0: Any,
) -> list[str]:
    problems = [
        f"{name} must be callable: got {value!r}"
        for name, value in (("build", build), ("data", data))
        if not callable(value)
    ]
    problems += _size_faults(widths, depths)
    if not (
        isinstance(base, Sequence)
        and not isinstance(base, str)
        and len(base) == 2
        and all(_whole(v) for v in base)
    ):
        problems.append(f"base must be (width, depth), two whole numbers >= 1: got {base!r}")
    for name, value in (("steps", steps), ("seeds", seeds)):
        if not _whole(value):
            problems.append(f"{name} must be a whole number >= 1: got {value!r}")
    if (lr is not None or scheme is not None) and (
        isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < math.inf
    ):
        problems.append(f"lr must be a finite number > 0: got {lr!r}")
    if isinstance(gamma0, bool) or not isinstance(gamma0, int | float) or not 0 < gamma0 < math.inf:
        problems.append(f"gamma0 must be a finite number > 0: got {gamma0!r}")
    if loss is not None and not callable(loss):
        problems.append(f"loss must be callable, loss(output, target): got {loss!r}")
    if hyper is not None and not isinstance(hyper, Mapping):
        problems.append(f"hyper must be a dict of the optimizer's hyperparameters: got {hyper!r}")
    for name, value in (("scheme", scheme), ("expect", expect)):
        try:
            _ = as_scheme(value) if value is not None else None
        except (InputError, TypeError) as error:
            problems.append(f"{name}: {error}")
    return problems + _optimizer_faults(scheme, optimizer)


def _size_faults(widths: Any, depths: Any) -> list[str]:
    problems = []
    sizes = {}
    for name, values in (("widths", widths), ("depths", depths)):
        good = isinstance(values, Sequence) and not isinstance(values, str) and all(_whole(v) for v in values)
        if not good:
            problems.append(f"{name} must be a list of whole numbers >= 1: got {values!r}")
        else:
            sizes[name] = set(values)
    if len(sizes) == 2 and all(len(s) < 2 for s in sizes.values()):
        problems.append(
            f"a slope needs two sizes: got widths {list(widths)} and depths {list(depths)}; "
            "three or more are better"
        )
    return problems


def _optimizer_faults(scheme: Any, optimizer: Any) -> list[str]:
    a_class = inspect.isclass(optimizer)
    if not callable(optimizer):
        return [
            "optimizer must be a class, or with scheme=None a callable (model, width, depth) -> optimizer: "
            f"got {optimizer!r}"
        ]
    if scheme is None and a_class:
        return [
            "scheme=None measures your own set-up: optimizer must be a callable (model, width, depth) "
            f"-> optimizer, got the class {optimizer.__name__}"
        ]
    if scheme is not None and not a_class and not _builds(optimizer):
        return [
            "a callable optimizer is your own set-up: pass scheme=None and expect='depth-mup' (or another "
            "scheme), or pass an optimizer class"
        ]
    return []


def _builds(optimizer: Any) -> bool:
    """A factory that takes parameter groups, such as functools.partial(AdamW, betas=...), is as good as a
    class."""
    return inspect.isclass(getattr(optimizer, "func", None))


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1
