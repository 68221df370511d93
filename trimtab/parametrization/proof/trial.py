"""Proof by one step: a plan is tried before it is returned (docs/proof.md).

Structure is read; here it is also tried. One backward at base and one at target, the target as it will be
after `p.apply`, with one random cotangent, give for each kind of parameter the gradient and the change a
first step makes. `verdicts` compares them with what the plan says; nothing of either model is changed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trimtab.errors import StructureError
from trimtab.parametrization.comparison.roles import Comparison, Facts
from trimtab.parametrization.optimizers.families import Shape
from trimtab.parametrization.optimizers.groups import choose
from trimtab.parametrization.optimizers.lookup import accepts, default, family
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.proof.backward import (
    COTANGENTS,
    Backward,
    Measure,
    Untested,
    backward,
    of_gradients,
)
from trimtab.parametrization.proof.coherence import expected
from trimtab.parametrization.proof.deep_limit import distance, spans
from trimtab.parametrization.proof.kinds import kinds
from trimtab.parametrization.proof.packs import Part, Unpacked, unpack
from trimtab.parametrization.proof.rows import Proof
from trimtab.parametrization.proof.verdicts import NARROW, Claim, judged
from trimtab.parametrization.rules import Scheme
from trimtab.structure.graph import Graph
from trimtab.structure.proofs import scaled

if TYPE_CHECKING:
    from trimtab.parametrization.result import Parametrization

WORK = 2e10  # multiply-adds of one forward of the target above which a proof is left to the user
DRAWS = (12, 6)  # of the weights, where the first says "wrong": of a small model, and of one beyond SLOW
SLOW = 5e7  # multiply-adds of a forward
SIGNS = 65521  # drawn for one tensor and repeated: a prime, so that no width is a multiple of it
ONE_SIDED = 0.3  # mean over rms of a tensor beyond which its numbers are no draw about 0
SMALL = 0.1  # what a tensor that starts at zero is tried at, over a usual start


@dataclasses.dataclass(frozen=True)
class Zero:
    """What a parameter is tried at if it starts at zero: `init` over the base's, which is SMALL fan^-1/2.

    `shrink`: a tail that starts at zero, or nearly (LayerScale 1e-6), grows as 1/m_L once it is trained.
    """

    fan: int
    init: float
    shrink: float
    tail: bool


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a proof needs beside the two models.

    Args:
        twins: {parameter of the model: its counterpart in the base}.
        expected: {parameter: (low, high)}, what its first gradient is over what the rules give; `parts` of
            packed ones.
        zero: parameters that may start at zero and hide what is before them.
        far: why the base is far from its deep limit, empty where it is near.
        spans: {parameter: (low, high)}, what a base far from its limit may add to `expected`.
        uses: {parameter: how often a forward uses it}, of the model; `base_uses`: of the base.
        width: of the narrower of the two models.
        work: multiply-adds of one forward of the model.
        partners: {bias: the weight that makes what it is added to}.
    """

    example: Any
    twins: dict[str, str]
    expected: dict[str, tuple[float, float]]
    parts: dict[str, tuple[Part, ...]]
    zero: dict[str, Zero]
    far: str
    spans: dict[str, tuple[float, float]]
    uses: dict[str, int]
    base_uses: dict[str, int]
    width: int
    work: float
    partners: dict[str, str]
    experts: bool = False  # a mixture has another number of them
    counted: bool = (
        False  # tensors beyond the base's are like paths or experts, whose number is accounted for
    )


def prepare(c: Comparison, rows: Mapping[str, Row], scheme: Scheme, example: Any) -> Trial:
    """What `prove` needs, taken from the analysed models while they are at hand."""
    graph, base, facts = c.model, c.base, c.facts
    twins = {name: f.twin for name, f in facts.items()}
    zero = {}
    for name, f in facts.items():
        tail = f.zero_tail and f.where == "tail"
        token = (
            f.where == "outside" and f.kind == "elementwise" and f.partner is None and not rows[name].offset
        )
        if tail or token or "contract" in f.uses:
            fan = f.fans[2] if "contract" in f.uses else 1
            zero[name] = Zero(fan, rows[name].init, 1 / f.m_L if tail else 1.0, tail)
    grown = {f.stack: f.m_L for f in facts.values() if f.stack is not None}
    of_base = {
        base.residuals[c.pairing.branch_twin[r.index]].stack: grown[r.stack]
        for r in graph.residuals
        if r.stack in grown and r.index in c.pairing.branch_twin
    }
    coherent = expected(graph, base, twins)
    return Trial(
        example=example,
        twins=twins,
        expected=_uses(graph, base, facts, coherent.ranges),
        parts=coherent.parts,
        zero=zero,
        far=distance(base, of_base, scheme.alpha),
        spans=_spans(c, scheme),
        uses={name: max(1, len(found)) for name, found in graph.uses.items()},
        base_uses={name: max(1, len(found)) for name, found in base.uses.items()},
        width=_width(facts),
        work=_work(graph),
        partners={name: f.partner for name, f in facts.items() if f.partner is not None},
        experts=any(here.mixed for here, _ in c.pairing.paths.values()),
        counted=bool(c.pairing.paths),
    )


def _spans(c: Comparison, scheme: Scheme) -> dict[str, tuple[float, float]]:
    """What a base far from its limit may add, by parameter; outside all branches, what any of them has."""
    of_branch = spans(c.model, c.base, c.pairing.branch_twin, scheme.alpha)
    if not of_branch:
        return {}
    found = {}
    for name, f in c.facts.items():
        mine = [of_branch[i] for i in f.branches if i in of_branch] or list(of_branch.values())
        found[name] = min(low for low, _ in mine), max(high for _, high in mine)
    return found


def _width(facts: Mapping[str, Facts]) -> int:
    """The width of the narrower of the two models, read from shapes, whatever the roles are: the extent that
    differs in most tensors; where none does, the one that most matrices have."""
    differ: Counter[int] = Counter()
    same: Counter[int] = Counter()
    for f in facts.values():
        for here, there in zip(f.shape[:2], f.base_shape[:2], strict=True):
            if here != there:
                differ[min(here, there)] += 1
            elif len(f.shape) > 1:
                same[here] += 1
    (width, _) = (differ or same or Counter({0: 1})).most_common(1)[0]
    return width


def _uses(
    graph: Graph, base: Graph, facts: Mapping[str, Facts], found: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Shared parameters: what m_U times more uses give adds up as they agree, and the first use may be unlike
    the others."""
    for name, f in facts.items():
        low, high = found.get(name, (1.0, 1.0))
        more = len(graph.uses[name]) / max(1, len(base.uses[f.twin])) if graph.uses[name] else 1.0
        if f.reuse != 1:
            found[name] = (low * min(f.reuse, f.reuse**-0.5), high * max(1.0, f.reuse))
        elif f.where == "outside" and more != 1:
            found[name] = (low * min(1.0, more), high * max(1.0, more))
    return found


def _work(graph: Graph) -> float:
    trace = graph.trace
    uses = {
        (u.node, u.fan_in) for us in graph.uses.values() for u in us if u.kind == "contract" and u.node >= 0
    }
    return sum(fan_in * math.prod(trace.values[trace.nodes[n].outputs[0]].shape) for n, fan_in in uses)


@dataclasses.dataclass(frozen=True, eq=False)
class Attempt:
    """What is tried: a plan on its model and base; `rescaled` and `steps` as in `prove`."""

    p: Parametrization
    trial: Trial
    model: nn.Module
    base: nn.Module
    rescaled: bool
    steps: Steps | None


def prove(
    p: Parametrization,
    trial: Trial | None,
    model: nn.Module,
    base: nn.Module,
    *,
    rescaled: bool,
    steps: Steps | None = None,
) -> Proof:
    """Try a plan by one backward in each model. It never raises because of what a model is: "untested", with
    the reason.

    Args:
        rescaled: the model's numbers are those it trains from (`p.apply` was called); else they are rescaled
            on a copy.
        steps: what an optimizer's step does in model and base (`one_step`), in place of sum u |g|.
    """
    if trial is None:
        return Proof(
            reason="a parametrization read from JSON has no example: parametrize anew, or keep the one that "
            "was made"
        )
    if trial.work > WORK:
        return Proof(
            reason=f"one forward is {trial.work:.1e} multiply-adds, above {WORK:.0e}: call p.prove(model, "
            "base) for it"
        )
    # A BatchNorm in eval mode does nothing at the start (its statistics are none yet); in training mode it
    # makes a shallow base far from its limit. What is wrong in the plan is wrong in both.
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    normed = base.training and model.training and any(isinstance(m, norms) for m in base.modules())
    modes = (True, False) if normed else (False,)
    attempt = Attempt(p=p, trial=trial, model=model, base=base, rescaled=rescaled, steps=steps)
    found = Proof(reason="nothing was tried")
    # What one draw calls wrong may be chance: other draws of the same laws tell.
    for draws in (1, DRAWS[trial.work > SLOW]):
        for training in modes:
            found = _prove_in(attempt, training=training, draws=draws)
            if found.verdict != "wrong":
                return found
    return found


def _prove_in(attempt: Attempt, *, training: bool, draws: int = 1) -> Proof:
    """`prove` with the models in one mode, over so many draws of their weights."""
    p, trial, base, steps = attempt.p, attempt.trial, attempt.base, attempt.steps
    whole = steps is not None and not steps.entrywise
    cut = unpack(
        {n: trial.twins[n] for n in p.rows},
        _mixed(trial) if whole else trial.expected,
        {} if whole else {n: trial.parts[n] for n in p.rows if n in trial.parts},
        {n: tuple(q.shape) for n, q in base.named_parameters()},
    )
    try:
        run = functools.partial(_both, attempt, cut, training=training)
        # The first draw is left out where it called for others: it was chosen for being odd.
        pairs = [run(draw=k) for k in (range(1, draws + 1) if draws > 1 else (0,))]
    except Untested as why:
        return Proof(reason=str(why))
    mine, theirs = pairs[0]
    if mine.outputs != theirs.outputs and len(mine.outputs) != len(theirs.outputs):
        return Proof(reason=f"model and base return {len(mine.outputs)} and {len(theirs.outputs)} outputs")
    frozen = {n for n, q in p.named_parameters(attempt.model).items() if not q.requires_grad}
    claim = Claim(
        claimed=_claimed(p, base, counted=trial.counted),
        far=trial.far,
        narrow=trial.width < NARROW,
        frozen=frozenset(label for label, name in cut.names.items() if name in frozen),
        expected=cut.expected,
        spans={label: trial.spans[name] for label, name in cut.names.items() if name in trial.spans},
        uses={label: trial.uses.get(name, 1) for label, name in cut.names.items()},
        base_uses={
            cut.twins[label]: trial.base_uses.get(trial.twins[name], 1) for label, name in cut.names.items()
        },
        weights=_weights(trial, cut),
    )
    rows = {label: p.rows[name] for label, name in cut.names.items()}
    return judged(
        rows,
        kinds(rows, cut.twins, cut.shapes),
        [(here.gradients, there.gradients) for here, there in pairs],
        (mine.starts, theirs.starts),
        claim,
        step=steps.power if steps else 0.0,
    )


def _weights(trial: Trial, cut: Unpacked) -> tuple[dict[str, str], dict[str, str]]:
    """{bias: its weight} of model and base, parts of packs by their own names."""
    mine = {
        label: label.replace(name, trial.partners[name], 1)
        for label, name in cut.names.items()
        if name in trial.partners
    }
    return mine, {cut.twins[b]: cut.twins[w] for b, w in mine.items() if w in cut.twins}


def _mixed(trial: Trial) -> dict[str, tuple[float, float]]:
    """What a pack may get as a whole: anything from its least part's to its largest's."""
    low = {n: min(part.low for part in cut) for n, cut in trial.parts.items()}
    return {n: (x * low.get(n, 1.0), y) for n, (x, y) in trial.expected.items()}


def _claimed(p: Parametrization, base: nn.Module, *, counted: bool) -> bool:
    """Whether the scheme claims this: not an axis it leaves alone, nor layers in no residual branch."""
    ratios = list(p.depth.values()) if isinstance(p.depth, dict) else [p.depth]
    deeper = any(r != 1 for r in ratios)
    stacked = not deeper and not counted and len(p.rows) != len(dict(base.named_parameters()))
    covers_depth = (p.scheme.alpha is not None or not deeper) and not stacked
    return not p.scheme.identity and p.scheme.width != "sp" and covers_depth


def _both(attempt: Attempt, cut: Unpacked, *, training: bool, draw: int = 0) -> tuple[Backward, Backward]:
    """The two backward passes. Where eval is asked for and training mode uses more of the base, in that."""
    p, trial, model, base, steps = attempt.p, attempt.trial, attempt.model, attempt.base, attempt.steps
    of_model, of_base = (steps.model, steps.base) if steps else (of_gradients, of_gradients)
    called = {id(q): n for n, q in model.named_parameters()}
    rows = {called[id(q)]: name for name, q in p.named_parameters(model).items() if id(q) in called}
    grown = {t: n for n, t in trial.twins.items()}
    mine = {
        n: redrawn(_tried(p, trial, rows[n], q, attempt.rescaled), n, draw)
        for n, q in model.named_parameters()
        if n in rows
    }
    theirs = {
        n: redrawn(_of_base(p.rows.get(grown.get(n, "")), q, n, trial.zero.get(grown.get(n, ""))), n, draw)
        for n, q in base.named_parameters()
    }
    many = COTANGENTS if draw == 0 else COTANGENTS // 4  # further draws scatter more than their cotangents
    run = functools.partial(
        backward, base, theirs, trial.example, measure=of_base, cut=cut.base, cotangents=many
    )
    small = run(training=training)
    if not training and base.training and model.training and len(small.gradients) < len(cut.shapes):
        trained = run(training=True)
        if len(trained.gradients) > len(small.gradients):
            small, training = trained, True

    def measure(
        parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        return of_model(*({rows[n]: t for n, t in x.items() if n in rows} for x in (parameters, gradients)))

    large = backward(
        model, mine, trial.example, training=training, measure=measure, cut=cut.model, cotangents=many
    )
    starts = {rows.get(n, n): x for n, x in large.starts.items()}
    return dataclasses.replace(large, starts=starts), small


def _tried(p: Parametrization, trial: Trial, name: str, q: nn.Parameter, rescaled: bool) -> Tensor:
    row, x = p.rows[name], q.detach()
    if not rescaled and row.rescale not in (1.0, None):
        x = scaled(x.to(torch.promote_types(x.dtype, torch.float32)), row.rescale, row.offset).to(x.dtype)
    if name not in trial.zero:
        return x
    return _nonzero(x, trial.twins[name], trial.zero[name])


def _of_base(row: Row | None, q: nn.Parameter, name: str, zero: Zero | None) -> Tensor:
    """A parameter of the base as it is trained: with its role's multiplier, the same at every size."""
    start = dict(row.multipliers).get("init", 1.0) if row is not None else 1.0
    x = q.detach() if row is None or start == 1 else scaled(q.detach(), start, row.offset)
    return x if zero is None else _nonzero(x, name, dataclasses.replace(zero, init=1.0, shrink=1.0))


def _nonzero(x: Tensor, seed: str, zero: Zero) -> Tensor:
    """A tensor of zeros as small numbers, so that what is before it has a gradient; any other as it is."""
    if x.is_meta or not x.is_floating_point():
        return x
    if bool(x.any()):
        return x * (SMALL * zero.shrink / x.float().square().mean().sqrt()) if zero.tail else x
    generator = torch.Generator().manual_seed(sum(map(ord, seed)))
    noise = torch.randn(x.shape, generator=generator).to(x)
    return noise * (SMALL * zero.init * zero.shrink / math.sqrt(zero.fan))


def redrawn(x: Tensor, seed: str, draw: int) -> Tensor:
    """Another draw of the law that a tensor's numbers have: each with a sign of its own. A law that is
    symmetric about 0 stays as it is, and so does what any entry's size says (blocks, masks, scales of rows).
    What is not symmetric, gains and decays among them, is left alone.

    >>> redrawn(torch.ones(4), "gain", 1), int(redrawn(torch.tensor([3.0, -3.0]), "w", 1).abs().sum())
    (tensor([1., 1., 1., 1.]), 6)
    """
    if draw == 0 or x.is_meta or not x.is_floating_point() or x.numel() < 2:
        return x
    wide = x.float()
    if abs(float(wide.mean())) > ONE_SIDED * float(wide.square().mean().sqrt()):
        return x
    generator = torch.Generator().manual_seed(sum(map(ord, seed)) + 7919 * draw)
    signs = 2.0 * torch.randint(0, 2, (min(SIGNS, x.numel()),), generator=generator).to(x) - 1.0
    return x * signs.repeat(-(-x.numel() // len(signs)))[: x.numel()].view(x.shape)


@dataclasses.dataclass(frozen=True)
class Steps:
    """One optimizer's step in model and base.

    Args:
        power: its sum g d grows as |g| (1) or as g^2 (2).
        entrywise: an entry's step does not depend on the rest of its tensor, so a pack may be cut.
    """

    model: Measure
    base: Measure
    power: float
    entrywise: bool


def one_step(p: Parametrization, cls: Any, hyper: dict[str, Any]) -> Steps:
    """What one step d of an optimizer does to L in each parameter, -sum g d: in the model as `p.optimizer`
    builds it, in the base as the class is. Each cotangent starts a new optimizer on copies.

    Args:
        hyper: `lr` (1e-3 where it is not said), `only`, and the optimizer's own; no weight decay but what is
            said here.
    """
    decays = bool(default(cls, "weight_decay")) and accepts(cls, "weight_decay")
    hyper = {"lr": 1e-3} | ({"weight_decay": 0.0} if decays else {}) | hyper
    only = {k: hyper.pop(k) for k in ("only", "no_decay") if k in hyper}

    def moved(optimizer: Any, copies: Mapping[str, nn.Parameter]) -> dict[str, tuple[Tensor, Tensor]]:
        held = {id(q) for group in optimizer.param_groups for q in group["params"]}
        before = {n: q.detach().clone() for n, q in copies.items() if id(q) in held and q.grad is not None}
        optimizer.step()
        found = {}
        for n, start in before.items():
            g, d = copies[n].grad.double(), (copies[n].detach() - start).double()  # type: ignore[union-attr]
            found[n] = (-g * d, g)
        return found

    def copied(parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
        copies = {n: nn.Parameter(t.detach().clone()) for n, t in parameters.items()}
        for n, g in gradients.items():
            copies[n].grad = g.detach().clone()
        return copies

    def model_step(
        parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        copies = copied(parameters, gradients)
        return moved(p.optimizer(cls, model=_Holder(copies), **only, **hyper), copies)

    def base_step(
        parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        copies = copied(parameters, gradients)
        chosen = {p._trial.twins[n] for n in choose(p.rows, only.get("only"))} if p._trial else set[str]()
        return moved(cls([q for n, q in copies.items() if n in chosen], **hyper), copies)

    law = family(cls, hyper)
    power = 2.0 if law.rate == "u/s" and cls.__name__ != "Adadelta" else 1.0
    return Steps(model_step, base_step, power, entrywise=law.shape == Shape() and law.rate != "spectral")


class _Holder(nn.Module):
    """Parameters under the names they have in a model."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]):
        super().__init__()
        self.held = dict(parameters)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.held.items())


def report(proof: Proof, *, strict: bool) -> list[str]:
    """What the notes say of a proof; a loud warning where it failed.

    Raises:
        StructureError: it failed and `strict` is set.
    """
    if proof.reason:
        return [f"not proven by a step: {proof.reason}."]
    if not proof.wrong:
        return []
    lines = [
        "the plan does not hold for a first step, which must change the network alike at every size (target "
        "over base):",
        *(f"  - {row}" for row in proof.wrong[:6]),
        *(
            [f"  - and {len(proof.wrong) - 6} more kinds; p.proof has them all"]
            if len(proof.wrong) > 6
            else []
        ),
        "What was read from the structure is wrong somewhere before or at these parameters. Look for "
        "constants, sums and "
        "numbers of paths that depend on the size; make them the same at every size, or say the factors "
        "with overrides=.",
    ]
    if strict:
        raise StructureError("\n".join(lines))
    warnings.warn("\n".join(lines), UserWarning, stacklevel=4)
    return ["\n".join(lines)]
