"""What each role gets at a larger size, batch and length, from ratios alone: no model, no torch.

Every number is (scheme over width and depth) x (rule over batch and length), each with its source:

    lr  =  families.factors(...).lr  x  horizon.factors(...).lr           and so on for weight decay and eps

The lines are those of an ordinary residual network: fan-in and fan-out grow alike inside, inputs and outputs
stay.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from trimtab.errors import TrimtabError, faults
from trimtab.parametrization import rules
from trimtab.parametrization.horizons.decay import Decay, as_decay
from trimtab.parametrization.horizons.horizon import Horizon, HorizonFactors, known_family
from trimtab.parametrization.optimizers import families
from trimtab.parametrization.optimizers.families import Family
from trimtab.parametrization.rules import Kind, Scheme, Where, as_scheme


@dataclasses.dataclass(frozen=True)
class Line:
    """What the parameters of one role in one place get, over the base's: scale of the start and an
    optimizer's numbers."""

    role: str
    place: str
    example: str
    optimizer: str
    init: float
    lr: float
    weight_decay: float
    eps: float


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the numbers over one axis come from. `contested`: who says otherwise, "" where nobody does."""

    axis: str
    source: str
    contested: str = ""


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The answer: lines, memories (betas, momentum) as they become, steps, sources and notes."""

    width: float
    depth: float
    horizon: Horizon
    scheme: Scheme
    decay: Decay
    lines: tuple[Line, ...]
    memories: Mapping[str, Any]
    sources: tuple[Source, ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """One line before it has numbers: `grows` says which of fan-in and fan-out follow the width."""

    role: str
    place: Where
    example: str
    kind: Kind
    grows: tuple[bool, bool]


ROLES = (
    _Kind("input", "outside", "embedding, stem, patches", "matrix", (False, True)),
    _Kind("hidden", "branch", "matrices of a branch before its last", "matrix", (True, True)),
    _Kind("hidden", "tail", "the last matrix of a branch", "matrix", (True, True)),
    _Kind("readout", "outside", "head, classifier", "matrix", (True, False)),
    _Kind("elementwise", "outside", "final norm, positions", "elementwise", (False, True)),
    _Kind(
        "elementwise", "branch", "norms and biases of a branch before its last", "elementwise", (False, True)
    ),
    _Kind("elementwise", "tail", "bias of the last matrix, LayerScale", "elementwise", (False, True)),
    _Kind("scalar", "outside", "temperature", "scalar", (False, False)),
)
WIDTH_SOURCES = {
    "mup": Source("width", "muP (2203.03466)"),
    "ntk": Source("width", "NTK: lazy at large width (1806.07572)"),
    "sp": Source("width", "left as it is", "the best rate moves with width (2203.03466)"),
}
MORE_MATRICES = "branches of two or more matrices want alpha = 1 (2310.02244, 2505.01618)"


def scale(
    *,
    width: float = 1.0,
    depth: float = 1.0,
    horizon: Horizon | None = None,
    scheme: str | Scheme = "depth-mup",
    optimizer: Any = "AdamW",
    decay: str | Decay = "product",
    **hyper: Any,
) -> Scaling:
    """What each role gets.

    Args:
        width: width over the base's. depth: number of residual branches over the base's.
        horizon: batch and length over the base's.
        scheme, decay: as in `parametrize` and `p.optimizer`.
        optimizer: a class or its name. With Muon the lines that are no hidden matrices are AdamW's.
        hyper: the base's betas, momentum, weight_decay, adjust_lr_fn, where they matter.

    >>> found = scale(width=8, depth=4, horizon=Horizon(batch=16), betas=(0.99, 0.999))
    >>> [(line.role, line.lr) for line in found.lines if line.place == "tail"]
    [('hidden', 0.125), ('elementwise', 1.0)]
    >>> [round(beta, 4) for beta in found.memories["betas"]]
    [0.84, 0.984]

    Raises:
        InputError: with all faults at once.
    """
    problems: list[str] = []
    for name, ratio in (("width", width), ("depth", depth)):
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
            problems.append(f"{name} must be a finite number > 0, a ratio to the base's: got {ratio!r}")
    horizon = horizon or Horizon()
    given = [_attempt(problems, as_scheme, scheme), _attempt(problems, as_decay, decay)]
    family = _attempt(problems, known_family, optimizer, hyper)
    moved = _attempt(problems, horizon.of_family, family, hyper) if family else None
    if family and given[1]:
        _attempt(problems, given[1].refuse, family)
    if problems:
        raise faults("scale(width, depth, horizon):", problems)
    scheme, decay = given
    assert isinstance(scheme, Scheme) and isinstance(decay, Decay)
    assert family is not None and moved is not None
    rest = families.FAMILIES["AdamW"] if family.rate == "spectral" else family
    lines = []
    for kind in ROLES:
        own = family if kind.role == "hidden" else rest
        lines.append(_line(kind, own, width, depth, scheme, decay, horizon, hyper))
    return Scaling(
        width=width,
        depth=depth,
        horizon=horizon,
        scheme=scheme,
        decay=decay,
        lines=tuple(lines),
        memories=horizon.hyper(family, hyper),
        sources=tuple(_sources(width, depth, scheme, decay, horizon)),
        notes=tuple(note for note in moved.notes if note not in horizon.disputes),
    )


def _attempt(problems: list[str], function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except TrimtabError as error:
        problems.append(str(error))
        return None


def _line(
    kind: _Kind,
    family: Family,
    width: float,
    depth: float,
    scheme: Scheme,
    decay: Decay,
    horizon: Horizon,
    hyper: Mapping[str, Any],
) -> Line:
    m_in, m_out = (width if grows else 1.0 for grows in kind.grows)
    scales = rules.scheme_scales(
        scheme,
        kind.kind,
        kind.place,
        m_in=m_in,
        m_out=m_out,
        m_L=depth,
        readout="weight" if kind.role == "readout" else None,
        gamma0=width**-0.5 if scheme.width == "ntk" else 1.0,
    )
    matrix = kind.kind == "matrix"  # square in the base
    entry = family.shape.entry((m_out, m_in)) if matrix else 1.0  # type: ignore[arg-type]
    size = families.factors(family, scales, entry=entry)
    if scheme.identity:
        size = families.Factors()
    moved: HorizonFactors = horizon.of_family(family, hyper)
    shrink = size.weight_decay if family.decay == "coupled" else decay.over_size(size.lr)
    return Line(
        role=kind.role,
        place=kind.place,
        example=kind.example,
        optimizer=family.name,
        init=scales.init,
        lr=size.lr * moved.lr,
        weight_decay=shrink * decay.over_horizon(horizon, moved),
        eps=size.eps * moved.eps,
    )


def _sources(width: float, depth: float, scheme: Scheme, decay: Decay, horizon: Horizon) -> list[Source]:
    """The sources of the axes that change."""
    found = []
    if width != 1:
        found.append(WIDTH_SOURCES[scheme.width])
        found.append(Source("weight decay over width", decay.source, decay.contested))
    if depth != 1 and scheme.alpha is None:
        found.append(Source("depth", "left as it is", "the best rate moves with depth (2309.16620)"))
    elif depth != 1 and scheme.alpha == 1:
        found.append(Source("depth", "CompleteP, alpha = 1 (2505.01618)"))
    elif depth != 1:
        found.append(Source("depth", f"branches over depth^{scheme.alpha:g} (2309.16620)", MORE_MATRICES))
    rule = horizon.record
    if horizon.batch != 1:
        found.append(Source("batch", f"{rule.name}: {rule.source}", "; ".join(rule.contested_over_batch)))
    if horizon.tokens != 1:
        found.append(Source("tokens", f"{rule.name}: {rule.source}", "; ".join(rule.contested_over_tokens)))
    return found
