"""`parametrize`: compare a model with its base and work out what each parameter gets.

    record -> graph -> pairing -> roles -> folds -> rows -> Parametrization (-> apply)

Everything is checked before anything is changed.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from trimtab.errors import InputError, LawError, StructureError, faults
from trimtab.parametrization import meta_buffers, proof
from trimtab.parametrization.folds import collect
from trimtab.parametrization.init_measurement import prepare
from trimtab.parametrization.notes import advice
from trimtab.parametrization.pairing import Pairing, pair, template
from trimtab.parametrization.parameters import Row, branches_of, row_of, stack_names
from trimtab.parametrization.result import Parametrization
from trimtab.parametrization.roles import Facts, Overrides, main_width, read
from trimtab.parametrization.rules import Scheme, as_scheme, opposed
from trimtab.structure.graph import Graph
from trimtab.structure.recording import record
from trimtab.structure.trace import Trace, adjustable

DRAWS = 4  # of a model whose law one draw does not tell


def of_draws(drawn: Callable[[int], tuple[nn.Module, nn.Module]], **options: Any) -> Parametrization:
    """`parametrize` of a model that can be drawn anew: a law is the code's, so where one draw does not tell it the next may.

    Args:
        drawn: seed -> (model, base).
        options: those of `parametrize`.
    """
    for seed in range(DRAWS):
        try:
            return parametrize(*drawn(seed), **options)
        except LawError:
            if seed == DRAWS - 1:
                raise
    raise AssertionError


def parametrize(
    model: nn.Module,
    base: nn.Module,
    *,
    scheme: str | Scheme = "depth-mup",
    gamma0: float = 1.0,
    example: Any = None,
    overrides: Mapping[str, Any] | None = None,
    apply: bool = True,
    strict: bool = False,
) -> Parametrization:
    """Carry the hyperparameters of `base` over to `model`, whatever its width and depth.

    Args:
        model: the model to train. Its parameters are rescaled in place (once; never twice). It may be on the meta
            device with `apply=False`; call `p.apply(model)` when it has real weights.
        base: the model that was tuned, built by the same code at its own width and depth. It is not changed.
        scheme: "depth-mup" (branches over sqrt(depth)), "completep" (over depth), "mup", "ntk", "sp", or a `Scheme`.
        gamma0: richness: how far features move, 1 as in the base.
        example: the inputs of one forward: a tensor, a tuple of args or a dict of kwargs.
        overrides: {name pattern: a role, "branch", "skip", or {"init", "lr", "weight_decay", "eps", "init_law"}}.
        apply: rescale now. With False only the numbers are computed.
        strict: raise where the proof by one step fails (`p.proof`); by default it warns.

    >>> import torch
    >>> def build(width):
    ...     return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    >>> p = parametrize(build(64), build(16), example=torch.randn(4, 8))
    >>> p["2.weight"].role, p["2.weight"].u
    ('hidden', 0.25)
    >>> optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3)
    """
    scheme = as_scheme(scheme)
    example = _checked(model, base, gamma0, example)
    model, base = _unwrapped(model), _unwrapped(base)
    names = [name for name, _ in model.named_parameters()]
    said = Overrides(overrides, names)
    numbers = meta_buffers.numbers(model, base)
    traces = [record(model, example, "model", numbers), record(base, example, "base")]
    if not traces[1].real:
        raise InputError(
            "the base must have real weights: its residual branches are verified by numbers there. Build it on a real device; only the model may be on meta."
        )
    skip = said.patterns("skip")
    graph, base_graph, pairing, facts = _compared(traces, said, skip)
    notes: list[str] = []
    if scheme.alpha is not None:
        alone = _unfoldable(graph, facts, pairing)
        if alone:
            notes.append(
                f"{', '.join(alone[:3])}: a branch that is there once whatever the depth and ends in nothing that folds; left as it is."
            )
            graph, base_graph, pairing, facts = _compared(traces, said, (*skip, *alone))
    gamma = gamma0
    if scheme.width == "ntk":  # docs/theory.md, equation (12)
        gamma = gamma0 * collect(graph, base_graph, pairing, facts, 1.0).readout_ratio ** -0.5
    folds = collect(graph, base_graph, pairing, facts, gamma)
    branches = branches_of(graph)
    stacks = stack_names(branches)
    rows = {
        name: row_of(
            f, scheme, gamma, folds.factor.get(name, 1.0), name in folds.offset, branches, stacks, said
        )
        for name, f in facts.items()
    }
    if scheme.width != "sp":
        _ask_for_starts(facts, rows, said)
    depth = _depth({stacks[k]: n / b for k, (n, b) in enumerate(pairing.counts)})
    p = Parametrization(rows, [b for b, _ in branches], depth, scheme, gamma0, main_width(facts))
    notes += _left_alone(p.rows, model)
    p.notes = [*notes, *folds.notes, *advice(graph, base_graph, p)]
    p._draws = prepare(facts, rows, base, said, p.width)
    p._aliases, p._numbers = _aliases(model), numbers
    p._remember(model)
    p._trial = proof.prepare(graph, base_graph, pairing, facts, p, example)
    if graph.trace.real:
        if apply:
            p.apply(model)
        else:
            p._applied = False
            p._measure(model, strict=False)
    elif apply:
        raise InputError(
            "a model on the meta device has no weights to rescale: pass apply=False, and call p.apply(model) when it is materialised."
        )
    p.proof = proof.prove(p, p._trial, model, base, rescaled=apply)
    p.notes += proof.report(p.proof, strict=strict)
    return p


def _checked(model: Any, base: Any, gamma0: Any, example: Any) -> Any:
    problems = [
        f"{label} must be an nn.Module: got {type(m).__name__}"
        for label, m in (("model", model), ("base", base))
        if not isinstance(m, nn.Module)
    ]
    if isinstance(gamma0, bool) or not isinstance(gamma0, int | float) or not 0 < gamma0 < math.inf:
        problems.append(f"gamma0 must be a finite number > 0: got {gamma0!r}")
    if example is None and isinstance(model, nn.Module):
        example = getattr(model, "dummy_inputs", None)
        if example is None:
            problems.append(
                "an example of the model's inputs is needed to see what it computes: pass example= a tensor, a tuple of args or a dict of kwargs"
            )
    if isinstance(model, nn.Module) and isinstance(base, nn.Module):
        problems += _memory_faults(model, base) + _complex_faults(model, base)
    if problems:
        raise faults("parametrize(model, base, example=...):", problems)
    return example


def _memory_faults(model: nn.Module, base: nn.Module) -> list[str]:
    """The model is rescaled in place and the base only read, so no number may be in both, nor twice in the model."""
    cure = "build the base separately, or pass copy.deepcopy(base) as the base"
    if model is base or _unwrapped(model) is _unwrapped(base):
        return [f"model and base are one object, and the base is only read: {cure}"]
    there = {_memory(q): n for n, q in base.named_parameters() if _memory(q)}
    shared = [
        (n, there[_memory(q)]) for n, q in model.named_parameters() if adjustable(q) and _memory(q) in there
    ]
    if shared:
        name, other = shared[0]
        more = f" ({len(shared)} are, also {', '.join(n for n, _ in shared[1:4])})" if len(shared) > 1 else ""
        return [
            f"{name} of the model and {other} of the base are one memory{more}, so rescaling it would change the base: {cure}"
        ]
    first: dict[tuple[int, ...], str] = {}
    for name, q in model.named_parameters():
        place = (q.data_ptr(), q.numel()) if adjustable(q) and _memory(q) else ()
        if place and first.setdefault(place, name) != name:
            return [
                f"{first[place]} and {name} are two parameters on one memory, which would be rescaled twice: "
                "tie them as one parameter (a.weight = b.weight, not a.weight.data = b.weight.data), or give each its own"
            ]
    return []


def _memory(q: nn.Parameter) -> int:
    """Where a parameter's numbers are; 0 where it has none (meta) or where that is not to be told (a sharded one)."""
    try:
        return 0 if q.is_meta or not q.numel() else q.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _complex_faults(model: nn.Module, base: nn.Module) -> list[str]:
    names = [
        f"{name} of the {label}"
        for label, m in (("model", model), ("base", base))
        for name, q in m.named_parameters()
        if q.is_complex()
    ]
    if not names:
        return []
    return [
        f"parameters must be real numbers, and {names[0]} is complex ({len(names)} are): store torch.view_as_real(w) and use "
        "torch.view_as_complex of it in the forward; keep what is not trained in a buffer"
    ]


def _left_alone(rows: dict[str, Row], model: nn.Module) -> list[str]:
    """Numbers that are not floating point (quantised weights, indices, masks) stay as they are: rows of ones, and a note."""
    names = [name for name, q in model.named_parameters() if name in rows and not adjustable(q)]
    for name in names:
        rows[name] = dataclasses.replace(rows[name], init=1.0, u=1.0, s=1.0, fold=1.0, override=())
    if not names:
        return []
    shown = ", ".join(names[:3]) + ("..." if len(names) > 3 else "")
    return [
        f"{'1 parameter is' if len(names) == 1 else f'{len(names)} parameters are'} not floating point ({shown}): left as drawn, "
        "so what such numbers multiply is not rescaled with the size."
    ]


def _ask_for_starts(facts: Mapping[str, Facts], rows: Mapping[str, Row], said: Overrides) -> None:
    """A matrix that grows in one dimension and shrinks in the other has no rule: its init is the user's to say.

    Raises:
        InputError: with the matrices and an override that can be pasted.
    """
    asked = {
        n: f for n, f in facts.items() if opposed(f.kind, f.m_in, f.m_out) and "init" not in said.numbers(n)
    }
    if not asked:
        return
    overrides: dict[str, dict[str, float]] = {}
    for name in asked:
        init = float(f"{rows[name].init:.6g}")
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        matched = [n for n in facts if fnmatch.fnmatchcase(n, pattern)]
        alike = all(n in asked and math.isclose(rows[n].init, rows[name].init, rel_tol=1e-9) for n in matched)
        overrides[pattern if alike else name] = {"init": init}
    seen = dict.fromkeys(
        f"{template(n)}: fan-in x {f.m_in:.4g}, fan-out x {f.m_out:.4g}" for n, f in asked.items()
    )
    raise InputError(
        "\n".join(
            [
                "a matrix must grow or shrink in both dimensions, or in one alone, for its start to have a rule:",
                *(f"  - {line}" for line in list(seen)[:8]),
                "Change one width at a time, or say how large it starts, relative to the base's. To keep what it makes the "
                f"size it has in the base (init as fan-in^-1/2), pass overrides={overrides}.",
            ]
        )
    )


def _depth(ratios: Mapping[str, float]) -> float | dict[str, float]:
    """m_L: one number where all stacks grow alike, else by stack; stacks numbered alike that grow alike share a line.

    >>> _depth({"stages.0": 1.5, "stages.1": 2.0})
    {'stages.0': 1.5, 'stages.1': 2.0}
    """
    if len(set(ratios.values())) <= 1:
        return next(iter(ratios.values()), 1.0)
    alike: dict[str, set[float]] = {}
    for name, ratio in ratios.items():
        alike.setdefault(template(name), set()).add(ratio)
    return {
        template(name) if len(alike[template(name)]) == 1 else name: ratio for name, ratio in ratios.items()
    }


def _pattern(name: str) -> str:
    """A pattern for all blocks like the one that holds a parameter.

    >>> _pattern("body.blocks.3.fc.weight")
    'body.blocks.*'
    """
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join([*parts[:number], "*"])


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile or a parallel wrapper: parametrize looks at what was written."""
    for inner in ("_orig_mod", "module"):
        child = model._modules.get(inner)
        if child is not None and len(model._modules) == 1 and not model._parameters:
            return _unwrapped(child)
    return model


def _compared(
    traces: list[Trace], said: Overrides, skip: tuple[str, ...]
) -> tuple[Graph, Graph, Pairing, dict[str, Facts]]:
    """Both models analysed, paired and read."""
    patterns = dict(branch=said.patterns("branch"), skip=skip)
    base = Graph(traces[1], "base", **patterns)
    refuted = {frozenset(map(template, names)) for names in base.refuted}
    graph = Graph(
        traces[0], "model", **patterns, refuted=lambda names: frozenset(map(template, names)) in refuted
    )
    pairing = pair(graph, base, skip)
    if not graph.trace.real and _adopt_tails(graph, base, pairing):
        pairing = pair(graph, base, skip)
    return graph, base, pairing, read(graph, base, pairing, said)


def _adopt_tails(graph: Graph, base: Graph, pairing: Pairing) -> bool:
    """A model on meta proves nothing by numbers: its tails are those that were proven in the base. True if any changed."""
    changed = False
    for r in graph.residuals:
        proven = base.residuals[pairing.branch_twin[r.index]]
        names = {site.name for site in proven.tail}
        found = (
            next((t for t in r.candidates if {pairing.twin[s.name] for s in t} == names), None)
            if names
            else {}
        )
        if found is None:
            raise StructureError(
                f"the tail proven in the base, {sorted(names)}, has no counterpart in the model's branch. Build the model on a real device."
            )
        if found != r.tail:
            r.tail, r.blocked, changed = found, proven.blocked, True
    return changed


def _unfoldable(graph: Graph, facts: Mapping[str, Facts], pairing: Pairing) -> list[str]:
    """Parameters of branches that cannot be scaled and need not be: as many in the base, so they are no depth.

    Raises:
        StructureError: a branch that comes with every block has no tail.
    """
    problems, alone = [], []
    for r in graph.residuals:
        inside = [f.name for f in facts.values() if r.index in f.branches and f.m_L != 1]
        if r.tail or not inside:
            continue
        if r.index in pairing.alone:
            alone += inside
            continue
        problems.append(
            f"the branch of {inside[-1]} ends in {r.blocked}: there is no parameter its depth factor could fold into. "
            f'Pass overrides={{"{_pattern(inside[-1])}": "skip"}} to leave such branches unscaled, or use scheme="mup".'
        )
    if problems:
        raise StructureError(
            "\n".join(
                ["a branch must end in parameters it is homogeneous in:", *(f"  - {p}" for p in problems[:6])]
            )
        )
    return alone


def _aliases(model: nn.Module) -> dict[str, str]:
    """Second names of tied parameters."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(p), name) != name:
            aliases[name] = first[id(p)]
    return aliases
