"""`parametrize`: compare a model with its base and work out what each parameter gets.

    record -> analyse -> pair -> compare -> collect folds -> rows -> Parametrization (-> apply)

Each pass takes the records of those before and returns new ones; everything is checked before anything is
changed.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from trimtab.errors import InputError, LawError, StructureError
from trimtab.parametrization.comparison import meta_buffers
from trimtab.parametrization.comparison.layer_pairing import pair_layers
from trimtab.parametrization.comparison.names import pattern, template
from trimtab.parametrization.comparison.overrides import Overrides
from trimtab.parametrization.comparison.pairing import Pairing, pair
from trimtab.parametrization.comparison.roles import Comparison, Facts, compare, main_width
from trimtab.parametrization.folds.collecting import collect, readout_ratio
from trimtab.parametrization.horizons.multipliers import Multipliers, read_roles, refuse_absent
from trimtab.parametrization.initialization.base_draws import Draw, prepare
from trimtab.parametrization.notes import advice
from trimtab.parametrization.parameters import Row, branches_of, row_of, stack_names
from trimtab.parametrization.proof import trial as proof
from trimtab.parametrization.requirements import check_arguments, unwrap
from trimtab.parametrization.result import Parametrization
from trimtab.parametrization.rules import Scheme, as_scheme, opposed
from trimtab.parametrization.suggestions import advised
from trimtab.structure.graph import Graph, analyse
from trimtab.structure.recording import record
from trimtab.structure.residuals import Patterns, Residual
from trimtab.structure.trace import Trace, adjustable
from trimtab.torch_internals import times_written

KEPT = 0.02  # of a stream: what a block may forget of it at the start
DRAWS = 4  # of a model whose law one draw does not tell
LABELS = ("model", "base")  # what messages call the two
LAYERS = (
    "the blocks are not residual branches that follow each other in both models, so layers are paired by "
    "their names and shapes: the width is carried over, depth is left alone and nothing is claimed over it."
)


def of_draws(drawn: Callable[[int], tuple[nn.Module, nn.Module]], **options: Any) -> Parametrization:
    """`parametrize` of a model that can be drawn anew: where one draw does not show the law, the next may.

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
    roles: Mapping[str, Mapping[str, float]] | None = None,
    apply: bool = True,
    strict: bool = False,
) -> Parametrization:
    """Carry the hyperparameters of `base` over to `model`, whatever its width and depth.

    Args:
        model: the model to train. Its parameters are rescaled in place (once; never twice). It may be on the
            meta device with `apply=False`; call `p.apply(model)` when it has real weights.
        base: the model that was tuned, built by the same code at its own width and depth. It is not changed.
        scheme: "depth-mup" (branches over sqrt(depth)), "completep" (over depth), "mup", "ntk", "sp", or a
            `Scheme`.
        gamma0: richness: how far features move, 1 as in the base.
        example: the inputs of one forward: a tensor, a tuple of args or a dict of kwargs.
        overrides: {name pattern: a role, "branch", "skip", or {"init", "lr", "weight_decay", "eps",
            "init_law"}}.
        roles: {role: {"init" | "lr" | "weight_decay" | "eps": multiplier}}, tuned at the base and carried
            unchanged: pass the same ones with the base and with every other size.
        apply: rescale now. With False only the numbers are computed.
        strict: raise where the proof by one step fails (`p.proof`); by default it warns.

    >>> import torch
    >>> def build(width):
    ...     stem, hidden, head = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 2)
    ...     return nn.Sequential(stem, nn.ReLU(), hidden, nn.ReLU(), head)
    >>> p = parametrize(build(64), build(16), example=torch.randn(4, 8))
    >>> p["2.weight"].role, p["2.weight"].u
    ('hidden', 0.25)
    >>> optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3)
    """
    scheme = as_scheme(scheme)
    example = check_arguments(model, base, gamma0, example)
    multipliers = read_roles(roles)
    model, base = unwrap(model), unwrap(base)
    names = [name for name, _ in model.named_parameters()]
    said = Overrides(overrides, names)
    buffers = meta_buffers.numbers(model, base)
    counts = {name: times_written(q) for name, q in model.named_parameters()}
    traces = record(model, example, "model", buffers), record(base, example, "base")
    written = [name for name, q in model.named_parameters() if times_written(q) != counts[name]]
    if not traces[1].real:
        raise InputError(
            "the base must have real weights: its residual branches are verified by numbers there. "
            "Build it on a real device; only the model may be on meta."
        )
    if apply and not traces[0].real:
        raise InputError(
            "a model on the meta device has no weights to rescale: pass apply=False, and call "
            "p.apply(model) when it is materialised."
        )

    def planned(said: Overrides, scheme: Scheme = scheme) -> Parametrization:
        try:
            return made(said, scheme, *_compare(traces, said, scheme))
        except StructureError:
            found = _compare_layers(traces, said) if scheme.alpha is None else None
            if found is None:
                raise
            return made(said, scheme, found, [LAYERS])

    def made(said: Overrides, scheme: Scheme, compared: Comparison, notes: list[str]) -> Parametrization:
        return _plan(
            compared,
            notes,
            scheme=scheme,
            gamma0=gamma0,
            said=said,
            multipliers=multipliers,
            model=model,
            base=base,
            buffers=buffers,
            example=example,
        )

    def verdict(proposed: dict[str, Any]) -> str:
        p = planned(Overrides(proposed, names))
        if traces[0].real:
            p.measure(model, strict=True)
        return p.proof_of(model, base).verdict

    def width_only() -> None:
        p = planned(said, as_scheme("mup"))
        if traces[0].real:
            p.measure(model, strict=True)

    try:
        p = planned(said)
        if p.has_experts and traces[0].real:
            _refuse_unlike_mixture(p, model, base)
        if apply:
            p.apply(model)
        elif traces[0].real:
            p.measure(model, strict=False)
    except StructureError as error:
        raise advised(
            _of_written(error, written),
            overrides,
            verdict,
            width_only if scheme.alpha is not None else None,
        ) from None
    p.try_one_step(model, base, rescaled=apply, strict=strict)
    return p


def _of_written(error: StructureError, written: list[str]) -> StructureError:
    """A refusal of numbers that the model's own forward has changed says so; any other as it is."""
    if not written or not isinstance(error, LawError):
        return error
    return LawError(
        f"{error}\nThe model's forward writes to its own parameters outside training ({_first(written)}), so "
        "these are not the numbers it was drawn with. Switch that off (RWKV: rescale_every=0 in its config)."
    )


def _refuse_unlike_mixture(p: Parametrization, model: nn.Module, base: nn.Module) -> None:
    """The rule over experts rests on weights that sum alike at every size: tried before anything is changed.

    Raises:
        StructureError: a first step does not hold, so these weights do not.
    """
    p.measure(model, strict=True)
    proof = p.proof_of(model, base)
    if proof.verdict == "wrong":
        raise StructureError(
            "a mixture with another number of experts is scaled by the mean-field rule (arXiv 2601.20205), "
            "which needs weights that sum to the same at every size (softmax over all, or normalised over "
            f"the chosen ones). A first step does not hold here: {proof.wrong[0]}. Normalise the weights, or "
            "keep the number of experts."
        )


def _compare(traces: tuple[Trace, Trace], said: Overrides, scheme: Scheme) -> tuple[Comparison, list[str]]:
    """Both models compared, and a note on branches that cannot be scaled and need not be."""
    skip = said.patterns("skip")
    compared = _compare_without(traces, said, skip)
    if scheme.alpha is not None:
        _refuse_forgetting(compared)
    alone = _unfoldable(compared) if scheme.alpha is not None else []
    if not alone:
        return compared, []
    note = (
        f"{', '.join(alone[:3])}: a branch that is there once whatever the depth and ends in nothing that "
        "folds; left as it is."
    )
    return _compare_without(traces, said, (*skip, *alone)), [note]


def _compare_layers(traces: tuple[Trace, Trace], said: Overrides) -> Comparison | None:
    """Both models compared layer by layer, for a scheme that leaves depth alone; None where their depth is
    not what differs, or their layers cannot be paired either."""
    if set(traces[0].params) == set(traces[1].params):
        return None
    patterns = Patterns(branch=said.patterns("branch"), skip=said.patterns("skip"))
    try:
        graph, base = (analyse(t, n, patterns=patterns) for t, n in zip(traces, LABELS, strict=True))
        return compare(graph, base, pair_layers(graph, base), said)
    except StructureError:
        return None


def _refuse_forgetting(c: Comparison) -> None:
    """A stream that is multiplied by a number below 1 in every block forgets its start in a fixed number of
    blocks: a^L, whatever the depth.

    Raises:
        StructureError: the stack grows, its blocks keep as much as the base's, and no norm undoes it.
    """
    seen: dict[str, str] = {}
    for r in c.model.residuals:
        twin = c.pairing.branch_twin[r.index]
        n, b = c.pairing.counts[r.stack]
        theirs = abs(c.base.network.kept(twin))
        kept = abs(c.model.network.kept(r.index)) if c.model.trace.real else theirs
        if n == b or math.isclose(kept, 1.0, abs_tol=KEPT) or not math.isclose(kept, theirs):
            continue
        if c.model.network.normed(r.index):
            continue
        inside = sorted(f.name for f in c.facts.values() if r.index in f.branches)
        seen[pattern(inside[-1]) if inside else "a branch"] = f"{kept:.3g}"
    if seen:
        shown = "; ".join(f"{name}: {kept}" for name, kept in list(seen.items())[:3])
        raise StructureError(
            f"the stream must be kept whole from block to block to be scaled over depth: here a block keeps "
            f"a part of it at both depths ({shown}), so that it forgets its start in a fixed number of "
            "blocks. Keep 1 - (1 - a) / depth of it, relative to the base, or start a learned weight at 1; "
            'or use scheme="mup", which claims nothing over depth.'
        )


def _compare_without(traces: tuple[Trace, Trace], said: Overrides, skip: tuple[str, ...]) -> Comparison:
    """Both models compared, what matches `skip` taken for no branch."""
    patterns = Patterns(branch=said.patterns("branch"), skip=skip)
    base = analyse(traces[1], "base", patterns=patterns)
    refuted = {frozenset(map(template, names)) for names in base.network.refuted}
    graph = analyse(
        traces[0],
        "model",
        patterns=patterns,
        known_refuted=lambda names: frozenset(map(template, names)) in refuted,
    )
    pairing = pair(graph, base, skip)
    if not graph.trace.real:
        adopted = _with_tails_of_base(graph, base, pairing)
        if adopted != graph.residuals:
            graph = graph.with_residuals(adopted)
            pairing = pair(graph, base, skip)
    return compare(graph, base, pairing, said)


def _with_tails_of_base(graph: Graph, base: Graph, pairing: Pairing) -> tuple[Residual, ...]:
    """A model on meta proves nothing by numbers: its adds with the tails that were proven in the base."""
    adopted: list[Residual] = []
    for r in graph.residuals:
        proven = base.residuals[pairing.branch_twin[r.index]]
        names = {site.name for site in proven.tail}
        like = (t for t in r.candidates if {pairing.twin[s.name] for s in t} == names)
        tail = next(like, None) if names else {}
        if tail is None:
            raise StructureError(
                f"the tail proven in the base, {sorted(names)}, has no counterpart in the model's branch. "
                "Build the model on a real device."
            )
        same = tail == r.tail
        adopted.append(r if same else dataclasses.replace(r, tail=tail, blocked=proven.blocked))
    return tuple(adopted)


def _plan(
    c: Comparison,
    notes: list[str],
    *,
    scheme: Scheme,
    gamma0: float,
    said: Overrides,
    multipliers: Mapping[str, Multipliers],
    model: nn.Module,
    base: nn.Module,
    buffers: Mapping[str, float],
    example: Any,
) -> Parametrization:
    """From facts to numbers: folds, rows, and all that a parametrization holds."""
    gamma = gamma0
    if scheme.width == "ntk":  # docs/theory.md, equation (12)
        gamma = gamma0 * readout_ratio(c) ** -0.5
    folds = collect(c, gamma)
    refuse_absent(multipliers, {f.role for f in c.facts.values()})
    branches = branches_of(c.model)
    stacks = stack_names(branches)
    rows = {
        name: row_of(
            f,
            scheme=scheme,
            gamma=gamma,
            fold=folds.factor.get(name, 1.0),
            offset=name in folds.offset,
            branch=branches[f.branches[0]][0].name if f.branches else None,
            stack=stacks[f.stack] if f.stack is not None else None,
            numbers=said.numbers(name),
            multipliers=multipliers.get(f.role, Multipliers()),
        )
        for name, f in c.facts.items()
    }
    if scheme.width != "sp":
        _ask_for_starts(c.facts, rows, said)
    frozen = _frozen_under_adapters(c.model, model)
    rows, untouched = _left_alone(rows, model, frozen)
    depth = _depth({stacks[k]: n / b * _path_ratio(c, k) for k, (n, b) in enumerate(c.pairing.counts)})
    depth = c.pairing.layers or depth
    width = main_width(c.facts)
    still = c.pairing.layers is not None and not c.grows  # nothing to do: starts are left alone too
    learned = advice(c.model, c.base, scheme=scheme, depth=depth, width=width, rows=rows)
    return Parametrization(
        rows=rows,
        branches=[b for b, _ in branches],
        depth=depth,
        scheme=scheme,
        gamma0=gamma0,
        width=width,
        notes=[*notes, *_path_notes(c), *untouched, *folds.notes, *learned],
        aliases=_aliases(model),
        draws=_known(prepare(c.facts, rows, base, said, width), frozen if not still else list(rows)),
        buffers=buffers,
        model=model,
        trial=proof.prepare(c, rows, scheme, example),
    )


def _path_ratio(c: Comparison, stack: int) -> float:
    """How many times more like paths the branches of a stack are the sum of, on average."""
    own = [c.pairing.paths.get(r.index) for r in c.model.residuals if r.stack == stack]
    ratios = [1.0 if two is None or two[0].mixed else two[0].count / two[1].count for two in own]
    return sum(ratios) / len(ratios) if ratios else 1.0


def _path_notes(c: Comparison) -> list[str]:
    """What was made of numbers of paths and experts that differ."""
    notes: dict[str, None] = {}
    for here, there in c.pairing.paths.values():
        what = f"a branch is the sum of {here.count} like paths, {there.count} in the base"
        if here.mixed:
            notes[
                f"{what}, each weighed by a gate: experts. Their start and rate stay, their gradient is "
                f"{there.count / here.count:.4g} times the base's: the mean-field rule over the number of "
                "experts (arXiv 2601.20205), for weights that sum to the same at every size."
            ] = None
        else:
            notes[f"{what}: each counts as a branch, so their number is scaled as depth is."] = None
    return list(notes)


def _frozen_under_adapters(graph: Graph, model: nn.Module) -> list[str]:
    """The frozen parameters of a model in which a frozen matrix has an adapter beside it: what is frozen was
    trained elsewhere. Without adapters it is a fresh draw like the rest, and nothing is listed."""
    frozen = [name for name, q in model.named_parameters() if adjustable(q) and not q.requires_grad]
    beside = {name for names in graph.flow.adapters.values() for name in names}
    return frozen if beside.intersection(frozen) else []


def _left_alone(
    rows: Mapping[str, Row], model: nn.Module, frozen: list[str]
) -> tuple[dict[str, Row], list[str]]:
    """Numbers that are not floating point (quantised, indices, masks) stay: rows of ones, a note; those that
    are frozen under adapters too."""
    whole = [name for name, q in model.named_parameters() if name in rows and not adjustable(q)]
    ones = {
        n: dataclasses.replace(rows[n], init=1.0, u=1.0, s=1.0, fold=1.0, override=(), multipliers=())
        for n in (*whole, *frozen)
    }
    left = "left as drawn, so what such numbers multiply is not rescaled with the size."
    notes = [f"{_counted(whole)} not floating point ({_first(whole)}): {left}"] if whole else []
    if frozen:
        notes.append(
            f"{_counted(frozen)} frozen ({_first(frozen)}) under adapters: left as they are, whatever the "
            "size asks for. The adapters get starts and rates; their rank is no width."
        )
    return {**rows, **ones}, notes


def _known(draws: Mapping[str, Draw], names: list[str]) -> dict[str, Draw]:
    """The draws, those of `names` as they should be."""
    return dict(draws) | {name: dataclasses.replace(draws[name], forced=1.0) for name in names}


def _counted(names: list[str]) -> str:
    return "1 parameter is" if len(names) == 1 else f"{len(names)} parameters are"


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + ("..." if len(names) > 3 else "")


def _ask_for_starts(facts: Mapping[str, Facts], rows: Mapping[str, Row], said: Overrides) -> None:
    """A matrix that grows in one dimension and shrinks in the other has no rule: the user says its init.

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
                "a matrix must grow or shrink in both dimensions, or in one alone, for its start to have a "
                "rule:",
                *(f"  - {line}" for line in list(seen)[:8]),
                "Change one width at a time, or say how large it starts, relative to the base's. To keep "
                "what it makes the size it has in the base (init as fan-in^-1/2), pass "
                f"overrides={overrides}.",
            ]
        ),
        suggestion=overrides,
    )


def _depth(ratios: Mapping[str, float]) -> float | dict[str, float]:
    """m_L: one number where all stacks grow alike, else by stack; stacks named and grown alike share a line.

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


def _unfoldable(c: Comparison) -> list[str]:
    """Parameters of branches that cannot be scaled and need not be: the base has as many.

    Raises:
        StructureError: a branch that comes with every block has no tail.
    """
    problems, alone, left = [], [], {}
    for r in c.model.residuals:
        inside = [f.name for f in c.facts.values() if r.index in f.branches and f.m_L != 1]
        if r.tail or not inside:
            continue
        if r.index in c.pairing.alone:
            alone += inside
            continue
        problems.append(
            f"the branch of {inside[-1]} ends in {r.blocked}: there is no parameter its depth factor could "
            'fold into. End it in a gain or a matrix, or use scheme="mup", which claims nothing over depth.'
        )
        left[_pattern(inside[-1])] = "skip"
    if problems:
        text = "\n".join(
            ["a branch must end in parameters it is homogeneous in:", *(f"  - {p}" for p in problems[:6])]
        )
        raise StructureError(text, [left])
    return alone


def _aliases(model: nn.Module) -> dict[str, str]:
    """Second names of tied parameters."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(p), name) != name:
            aliases[name] = first[id(p)]
    return aliases
