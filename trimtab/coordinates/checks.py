"""The coordinate check: does one set of hyperparameters move the network alike at every width and depth?

    slope = d log rms / d log size      of the stream, each branch, the output and their changes in training

for several seeds, over widths at the base depth and over depths at the base width, against what transfer asks
for (`expectations`). A verdict, and the culprit first. The first such check is in arXiv 2203.03466 (section
D.1), over width and to be read by eye.

    watching -> trials -> lines -> slopes -> verdicts
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.coordinates.expectations import yardstick
from trimtab.coordinates.profiles import lines
from trimtab.coordinates.requirements import argument_faults
from trimtab.coordinates.trials import Setup, Size, build_model, inputs_of, run, to_device
from trimtab.coordinates.verdicts import Check, decide
from trimtab.errors import InputError, calling, faults
from trimtab.parametrization.rules import Scheme, as_scheme
from trimtab.runs.devices import find
from trimtab.runs.losses import as_batch
from trimtab.runs.user_code import of_step

Place = tuple[int, int]  # (width, depth)


def check(
    build: Callable[[int, int], nn.Module],
    widths: Sequence[int] | None,
    depths: Sequence[int] | None,
    *,
    base: tuple[int, int],
    data: Callable[..., Any],
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
            first batch is also the probe on which everything is measured. A sweep's `data(split, seed, step)`
            is taken too.
        scheme: how trimtab parametrizes each model; None for a set-up of your own.
        optimizer: a class, built by trimtab at each size; or, with scheme=None, a callable
            `(model, width, depth) -> optimizer` (or a list of them) that does what you do.
        lr: base learning rate, for a class.
        steps: training steps.  seeds: initialisations at every size.
        loss: `loss(output, target)`, default cross-entropy; for a dict batch, and beside a sweep's data,
            `loss(output, batch)`.
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
    problems = argument_faults(
        build=build,
        widths=widths,
        depths=depths,
        base=base,
        data=data,
        scheme=scheme,
        optimizer=optimizer,
        lr=lr,
        steps=steps,
        seeds=seeds,
        loss=loss,
        expect=expect,
        hyper=hyper,
        gamma0=gamma0,
        precision=precision,
    )
    if problems:
        raise faults("check(build, widths, depths, base=..., data=...):", problems)
    own = scheme is None
    chosen = None if own else as_scheme(scheme)  # type: ignore[arg-type]
    wanted = None if expect is None else as_scheme(expect)
    base = (int(base[0]), int(base[1]))
    place = find(device).torch if isinstance(device, str) else device
    batches = _batches(of_step(data, whole=loss is not None), steps, _device_of(build, base, place))
    setup = Setup(
        build=build,
        base=base,
        batches=batches,
        example=inputs_of(batches[0]),
        scheme=chosen,
        judged_as=yardstick(wanted or chosen or as_scheme("depth-mup")),
        optimizer=optimizer,
        lr=lr or 0.0,
        hyper=dict(hyper or {}),
        loss=loss,
        overrides=overrides,
        gamma0=gamma0,
        device=place,
        precision=precision,
        after_step=_sharpness() if sharpness else None,
    )
    axes = _axes(base, widths, depths)
    sizes = _measure(setup, axes, seeds, steps, progress)
    found = []
    for axis, places in axes.items():
        along = [sizes[place] for place in places]
        found += lines(along, axis, setup.judged_as, own=own)
    about = dict(
        scheme=chosen.name if chosen else f"own set-up, expected {setup.judged_as.name}",
        optimizer=getattr(optimizer, "__name__", type(optimizer).__name__),
        lr=lr,
        steps=steps,
        seeds=seeds,
        base=list(base),
        widths=[w for w, _ in axes.get("width", [])],
        depths=[d for _, d in axes.get("depth", [])],
    )
    notes = list(dict.fromkeys(s.note for s in sizes.values() if s.note))
    if precision != "float32":
        notes.append(f"trained in {precision} (autocast over float32 weights), measured in float32")
    said = wanted if own and wanted is not None else chosen
    return decide(found, list(axes), about, notes, said.alpha if said else 0.5, steps)


def _axes(base: Place, widths: Sequence[int], depths: Sequence[int]) -> dict[str, list[Place]]:
    """Sizes along each axis that has more than one: widths at the base depth, depths at its width."""
    axes = {
        "width": sorted({(int(w), base[1]) for w in widths}),
        "depth": sorted({(base[0], int(d)) for d in depths}),
    }
    return {axis: places for axis, places in axes.items() if len(places) > 1}


def _measure(
    setup: Setup,
    axes: Mapping[str, Sequence[Place]],
    seeds: int,
    steps: int,
    progress: Callable[[str], None] | None,
) -> dict[Place, Size]:
    """Every size trained and watched, once where both axes have it."""
    whole = len({place for places in axes.values() for place in places})
    sizes: dict[Place, Size] = {}
    for axis, places in axes.items():
        for width, depth in (p for p in places if p not in sizes):
            if progress is not None:
                where = f"size {len(sizes) + 1} of {whole}: width {width}, depth {depth}"
                progress(f"{where}, {seeds} seeds x {steps} steps")
            sizes[width, depth] = run(setup, width, depth, seeds)
            _starts_finite(sizes[places[0]])
        _grows([sizes[p] for p in places], axis)
    return sizes


def _device_of(
    build: Callable[[int, int], nn.Module], base: Place, place: torch.device | None
) -> torch.device | None:
    """Where the models' parameters are, so that the batches go there too."""
    with torch.random.fork_rng():
        model = build_model(build, *base, device=place)
    return next((p.device for p in model.parameters()), None)


def _sharpness() -> Callable[..., Any]:
    from trimtab.coordinates.curvature import effective_sharpness

    return effective_sharpness


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


def _batches(data: Callable[[int], Any], steps: int, device: torch.device | None) -> list[Any]:
    made = []
    for step in range(steps):
        with calling(f"data(step={step})"):
            batch = data(step)
        made.append(to_device(as_batch(batch, "data(step)"), device))
    return made
