"""The rows of a parametrization: what each parameter is and gets, and the branches it sits in.

A `Row` joins the facts of one parameter (`roles`), the folds that meet in it (`folds`) and the numbers that
follow (`rules`): (init, u, s) = kind x place x richness x folds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trimtab.parametrization import rules
from trimtab.parametrization.comparison.roles import Facts
from trimtab.parametrization.horizons.multipliers import Multipliers
from trimtab.parametrization.rules import Scales, Scheme
from trimtab.structure.graph import Graph


@dataclasses.dataclass(frozen=True)
class Branch:
    """A residual branch: its shortcut's `kind`, the `tail` its multiplier folds into, its `parameters`."""

    name: str
    kind: str
    tail: tuple[str, ...]
    parameters: tuple[str, ...]
    stack: str


@dataclasses.dataclass(frozen=True)
class Row:
    """What one parameter is and gets, relative to its twin in the base (docs/theory.md, equation (6))."""

    name: str
    role: str
    place: str
    branch: str | None
    stack: str | None
    m_in: float
    m_out: float
    m_L: float
    uses: tuple[str, ...]
    init: float
    u: float
    s: float
    rescale: float | None
    fold: float
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    law: str | None = None
    offset: bool = False
    muon: bool = False
    override: tuple[tuple[str, float], ...] = ()
    multipliers: tuple[tuple[str, float], ...] = ()  # of its role, at the base and at every size

    @property
    def scales(self) -> Scales:
        return Scales(self.init, self.u, self.s)


def branches_of(graph: Graph) -> list[tuple[Branch, int]]:
    """The model's branches with their stacks, named after the module their tail belongs to."""
    found: list[tuple[Branch, int]] = []
    names: dict[str, int] = {}
    places = {name: graph.place(name) for name in graph.uses}
    for r in graph.residuals:
        own = [name for name, place in places.items() if r.index in place.branches]
        tail = tuple(dict.fromkeys(site.name for site in r.tail))
        leader = (tail or tuple(own) or ("branch",))[0]
        name = leader.rpartition(".")[0] or leader
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name}#{names[name]}"
        found.append((Branch(name, r.kind, tail, tuple(own), ""), r.stack))
    stacks = stack_names(found)
    return [(dataclasses.replace(b, stack=stacks[k]), k) for b, k in found]


def stack_names(branches: list[tuple[Branch, int]]) -> dict[int, str]:
    """The module path the branches of a stack share, made unique."""
    names: dict[int, str] = {}
    for k in sorted({k for _, k in branches}):
        paths = [b.name.split("#")[0].split(".") for b, j in branches if j == k]
        common: list[str] = []
        for parts in zip(*paths, strict=False):
            if len(set(parts)) > 1 or (len(parts) == 1 and parts[0].isdigit()):
                break
            common.append(parts[0])
        name = ".".join(common) or "stack"
        names[k] = name if name not in names.values() else f"{name}#{k}"
    return names


def row_of(
    f: Facts,
    *,
    scheme: Scheme,
    gamma: float,
    fold: float,
    offset: bool,
    branch: str | None,
    stack: str | None,
    numbers: Mapping[str, Any],
    multipliers: Multipliers,
) -> Row:
    """The row of one parameter.

    Args:
        gamma: richness.
        fold: the product of its folds.
        offset: it is a gain stored as 1 + w.
        branch, stack: what they are called.
        numbers: the user's overrides.
        multipliers: of its role; an override of the start stands in their place.
    """
    scales = Scales() if scheme.identity else _scales(f, scheme, gamma, fold)
    if "init" in numbers:
        scales = dataclasses.replace(scales, init=float(numbers["init"]))
    hidden = f.kind == "matrix" and not f.first and f.readout is None and not f.tied
    return Row(
        name=f.name,
        role=f.role,
        place=f.where,
        branch=branch,
        stack=stack,
        m_in=f.m_in,
        m_out=f.m_out,
        m_L=f.m_L,
        uses=f.uses,
        init=scales.init,
        u=scales.u,
        s=scales.s,
        rescale=None,
        fold=fold if not scheme.identity else 1.0,
        shape=f.shape,
        base_shape=f.base_shape,
        offset=offset,
        muon=hidden and len(f.shape) == 2,
        override=tuple(
            sorted((k, float(v)) for k, v in numbers.items() if k in ("lr", "weight_decay", "eps"))
        ),
        multipliers=tuple((k, v) for k, v in multipliers.to_dict().items() if k not in numbers),
    )


def _scales(f: Facts, scheme: Scheme, gamma: float, fold: float) -> Scales:
    """kind x place x richness x folds (docs/theory.md, equation (6))."""
    # What the matrix makes keeps its size: where there is no rule (planning asks), and where it is summed
    # against a product of activations, whose n^2 numbers are made of n and lead back to n.
    kept = rules.opposed(f.kind, f.m_in, f.m_out) or (f.of_product and f.m_out != 1)
    scales = rules.scheme_scales(
        scheme,
        f.kind,
        f.where,
        m_in=f.m_in,
        m_out=f.m_out,
        m_L=f.m_L,
        readout=f.readout,
        gamma0=gamma,
        uses=f.reuse,
        zero_tail=f.zero_tail,
        init=f.m_in**-0.5 if kept else None,
    )
    if scheme.alpha is not None:
        for where, m_L in f.outer:
            scales *= rules.place_scales(where, m_L, scheme.alpha)
    return (scales * Scales(s=1 / f.experts)).fold(fold)


def row_from(r: dict[str, Any]) -> Row:
    """A row as it was saved in JSON."""
    for key in ("uses", "shape", "base_shape"):
        r[key] = tuple(r[key])
    for key in ("override", "multipliers"):
        r[key] = tuple((k, v) for k, v in r.get(key, ()))
    return Row(**r)
