"""From trials to lines: one quantity of one module over sizes, with the slope that is expected of it.

Over **width** (at the base depth) every size has the same modules, and each is a line of its own. Over
**depth** (at the base width) blocks have no twins, so what is compared is the stream at the start, middle and
end of each stack, and for each kind of branch the first, the mean (of logarithms) of the others, and the
last. The abscissa is then the number of branches in that stack; a stack that does not grow is asked to stay
as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trimtab.coordinates.equal_forms import carried_by_readout
from trimtab.coordinates.expectations import Expected, exact, expected
from trimtab.coordinates.slopes import OF_CHANGES, TOLERANCE
from trimtab.coordinates.trials import Key, Size, Trial
from trimtab.parametrization.comparison.names import loose_template, template
from trimtab.parametrization.optimizers.lookup import family
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.rules import Scheme

ALL = "all"
ATTENTION = (
    0.5  # queries and keys learn N^-1/2 slower at first: values and what reads them are not aligned yet
)
NEGLIGIBLE = 1e-3  # a branch this small beside its stream (LayerScale at 1e-6) says nothing about it


@dataclasses.dataclass
class Line:
    """`y[size, seed, step]` holds logarithms; steps without a value are nan. `judged`: the step that counts,
    None for none."""

    module: str
    quantity: str
    axis: str
    x: np.ndarray
    y: np.ndarray
    expected: Expected | None
    judged: int | None
    role: str = ""
    place: str = ""
    carries: str = (
        ""  # what a rate that is off points to: a multiplier the forward lacks and this parameter would carry
    )
    given: bool = False  # a number the user set, without noise
    tolerance: float = TOLERANCE
    alone: bool = False  # speaks for itself; else one of many, whose mean must be known well enough


def lines(sizes: Sequence[Size], axis: str, scheme: Scheme, *, own: bool) -> list[Line]:
    """All lines over one axis.

    Args:
        scheme: the yardstick, whose alpha says how branches should shrink.
        own: the optimizer is the user's, so the rates it was given are judged too.
    """
    assert scheme.alpha is not None
    sizes = _as_written(sizes, axis) if own else sizes
    x = np.log([float(s.width if axis == "width" else s.depth) for s in sizes])
    found = _streams(sizes, axis, x, scheme.alpha) + _outputs(sizes, axis, x, scheme.alpha)
    plain = not found[0].quantity.startswith("stream")  # no residual stream: the layers must speak
    found += _scores_and_layers(sizes, x) if axis == "width" else []
    found += _means(found, ("stream", "branch", *(("layer",) if plain else ())))
    if all(s.rows is not None for s in sizes):
        found += _updates(sizes, axis, x) + (_rates(sizes, axis, x) if own else [])
    if all(t.sharpness is not None for s in sizes for t in s.trials):
        y = _log(np.stack([np.stack([t.sharpness for t in s.trials]) for s in sizes]))  # type: ignore[misc]
        found.append(Line("loss", "sharpness", axis, x, y, exact(0.0), None))
    return found


def _as_written(sizes: Sequence[Size], axis: str) -> Sequence[Size]:
    """The sizes, seen in the gauge the user's rates were written in."""
    other = carried_by_readout(sizes)
    if other is None:
        return sizes
    x = np.log([float(s.width if axis == "width" else s.depth) for s in sizes])

    def misfits(own: Sequence[Size]) -> int:
        rates = [line for line in _rates(own, axis, x) if line.quantity == "lr" and line.expected is not None]
        return sum(
            abs(_slope(x, line.y[:, 0, 0]) - line.expected.slope) > 0.1
            for line in rates
            if line.expected is not None
        )

    return other if misfits(sizes) and not misfits(other) else sizes


def _means(found: Sequence[Line], quantities: Sequence[str]) -> list[Line]:
    """For each quantity the mean over its modules, less noisy than any of them."""
    means = []
    for quantity in (q for name in quantities for q in (name, f"{name} change")):
        members = [
            line
            for line in found
            if line.quantity == quantity
            and line.expected is not None
            and line.judged is not None
            and not np.isneginf(line.y[:, :, line.judged]).any()
        ]
        for key in dict.fromkeys((line.expected, tuple(line.x)) for line in members):
            own = [line for line in members if (line.expected, tuple(line.x)) == key]
            means.append(
                dataclasses.replace(
                    own[0], module=ALL, y=np.mean([line.y for line in own], axis=0), alone=True
                )
            )
    return means


def _log(y: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(y)


def _gather(sizes: Sequence[Size], read: Callable[[Size, Trial], list[np.ndarray]]) -> np.ndarray:
    """(sizes, seeds, steps): mean of logarithms over the members that `read` lists."""
    return np.stack(
        [np.stack([np.mean(_log(np.stack(read(s, t))), axis=0) for t in s.trials]) for s in sizes]
    )


def _pair(
    module: str,
    quantity: str,
    axis: str,
    x: np.ndarray,
    sizes: Sequence[Size],
    keys: Sequence[list[Key]],
    alpha: float,
) -> list[Line]:
    """The size of a value, judged at the start, and its change, judged at the last step."""
    chosen = {id(s): ks for s, ks in zip(sizes, keys, strict=True)}
    if any(k not in t.size for s in sizes for t in s.trials for k in chosen[id(s)]):
        return []
    still = _gather(sizes, lambda s, t: [t.size[k] for k in chosen[id(s)]])
    moved = _gather(sizes, lambda s, t: [t.change[k] for k in chosen[id(s)]])
    moved[:, :, 0] = np.nan
    last = still.shape[-1] - 1
    return [
        Line(module, quantity, axis, x, still, expected(quantity, axis, alpha), 0),
        Line(
            module,
            f"{quantity} change",
            axis,
            x,
            moved,
            expected(f"{quantity} change", axis, alpha),
            last,
            tolerance=OF_CHANGES,
        ),
    ]


def _streams(sizes: Sequence[Size], axis: str, x: np.ndarray, alpha: float) -> list[Line]:
    found: list[Line] = []
    stacks = [s.survey.stacks for s in sizes]
    if len({len(k) for k in stacks}) != 1:
        return found
    for k, stack in enumerate(stacks[0]):
        counts = [len(own[k].branches) for own in stacks]
        grows = axis == "depth" and len(set(counts)) > 1
        own_x = np.log(np.asarray(counts, float)) if grows else x
        own_alpha = alpha if grows or axis == "width" else 0.0
        if axis == "width" and len(set(counts)) == 1:
            places = [(f"{stack.name} start", [[("stream", k, 0)]] * len(sizes))]
            places += [
                (f"{name} after", [[("stream", k, i + 1)]] * len(sizes))
                for i, name in enumerate(stack.branches)
            ]
            members = [(name, [[("branch", k, i)]] * len(sizes)) for i, name in enumerate(stack.branches)]
        else:
            places = [
                (f"{stack.name} start", [[("stream", k, 0)] for _ in counts]),
                (
                    f"{stack.name} middle",
                    [[("stream", k, n // 2), ("stream", k, (n + 1) // 2)] for n in counts],
                ),
                (f"{stack.name} end", [[("stream", k, n)] for n in counts]),
            ]
            members = _kinds([own[k].branches for own in stacks], k)
        for module, keys in places:
            found += _pair(module, "stream", axis, own_x, sizes, keys, own_alpha)
        ends = {id(s): ("stream", k, n) for s, n in zip(sizes, counts, strict=True)}
        for module, keys in members:
            pair = _pair(module, "branch", axis, own_x, sizes, keys, own_alpha)
            if pair and axis == "width" and _tail_reads_a_readout(module, sizes):
                pair[0].expected = Expected(0.0, -0.5, 0.0)
            for line in pair:
                if "change" in line.quantity and module.endswith((" first", " last")):
                    line.judged = None  # one block of a few: the mean over its kind is asked
                if _negligible(line, sizes, ends):
                    line.judged = None
            found += pair
    return found


def _negligible(line: Line, sizes: Sequence[Size], ends: Mapping[int, Key]) -> bool:
    """Whether a branch is nowhere large enough to matter beside the end of its stream."""
    if line.judged is None:
        return False
    beside = _gather(sizes, lambda s, t: [(t.change if "change" in line.quantity else t.size)[ends[id(s)]]])
    with np.errstate(invalid="ignore"):  # infinite beside infinite, where training diverged: no number
        return not bool((line.y[:, :, line.judged] - beside[:, :, line.judged] > math.log(NEGLIGIBLE)).any())


def _kinds(names: list[tuple[str, ...]], k: int) -> list[tuple[str, list[list[Key]]]]:
    """Branches by kind: the first of each, the mean of the others, the last, where every size has that kind.

    The first reads what an embedding or a stem wrote, often of another size than the stream later on; in a
    mean it would count for less and less as depth grows.
    """
    for how in (template, loose_template, lambda _: "branches"):
        kinds = [
            {
                kind: [i for i, n in enumerate(own) if how(n.split("#")[0]) == kind]
                for kind in dict.fromkeys(how(n.split("#")[0]) for n in own)
            }
            for own in names
        ]
        if all(set(kind) == set(kinds[0]) for kind in kinds):
            break
    found = []
    for kind in kinds[0]:
        members: list[list[Key]] = [[("branch", k, i) for i in own[kind]] for own in kinds]
        if all(len(m) > 1 for m in members):
            found.append((kind, [m[1:] for m in members]))
            found += [
                (f"{kind} first", [m[:1] for m in members]),
                (f"{kind} last", [m[-1:] for m in members]),
            ]
        else:
            found.append((kind, members))
    return found


def _outputs(sizes: Sequence[Size], axis: str, x: np.ndarray, alpha: float) -> list[Line]:
    pair = _pair(sizes[0].survey.readout, "logits", axis, x, sizes, [[("logits", 0, 0)]] * len(sizes), alpha)
    pair[1].alone = True
    if axis == "depth":
        pair[0].judged = None  # a few noisy numbers that say no more than the end of the stream does
    return pair


def _scores_and_layers(sizes: Sequence[Size], x: np.ndarray) -> list[Line]:
    """Only over width: attention scores where the contracted dimension grows, outputs of matrices whose
    fan-out does."""
    found: list[Line] = []
    first = sizes[0].survey
    if all(len(s.survey.scores) == len(first.scores) for s in sizes):
        for k, score in enumerate(first.scores):
            if len({s.survey.scores[k].size for s in sizes}) > 1:
                found += _pair(
                    score.name, "scores", "width", x, sizes, [[("scores", k, 0)]] * len(sizes), 0.5
                )
    if all(list(s.survey.layers) == list(first.layers) for s in sizes):
        for k, module in enumerate(first.layers):
            pair = _pair(module, "layer", "width", x, sizes, [[("layer", k, 0)]] * len(sizes), 0.5)
            for line in pair:
                line.expected, line.carries = _of_layer(line, sizes, module, x)
            found += pair
    return found


def _of_layer(line: Line, sizes: Sequence[Size], module: str, x: np.ndarray) -> tuple[Expected | None, str]:
    """A layer whose fan-out grows keeps its size, times the multipliers folded into its weights; else nothing
    is asked."""
    if any(s.rows is None for s in sizes):
        return None, ""
    rows = [
        next((r for n, r in s.rows.rows.items() if n.rpartition(".")[0] == module or n == module), None)
        for s in sizes
        if s.rows is not None
    ]
    if any(r is None or r.role not in ("input", "hidden") for r in rows):
        return None, ""
    own = [r for r in rows if r is not None]
    fold = _slope(x, [math.log(abs(r.fold) or 1.0) for r in own])
    slack = ATTENTION if "change" in line.quantity and own[0].name in sizes[0].survey.scored else 0.0
    slack = max(slack, _reads_a_readout(own[-1]))
    return Expected(fold, fold - slack, fold), _multiplier_carried_by(fold, own[0].name, sizes)


def _reads_a_readout(row: Row) -> float:
    """Inside a branch, a fan-in that does not grow is an internal readout (a step size, a low rank), which
    starts like N^-1/2."""
    return 0.5 if row.role == "input" and row.place != "outside" else 0.0


def _tail_reads_a_readout(branch: str, sizes: Sequence[Size]) -> bool:
    """Whether what ends a branch has a fan-in that does not grow, as after heads of fixed number and size:
    what it reads starts like N^-1/2, and so does the branch."""
    rows = sizes[-1].rows
    own = [r for n, r in rows.rows.items() if n.rpartition(".")[0] == branch] if rows is not None else []
    return any(_reads_a_readout(r) for r in own if len(r.shape) > 1)


def _multiplier_carried_by(fold: float, name: str, sizes: Sequence[Size]) -> str:
    """Which multiplier a parameter carries, where that grows or shrinks: of the attention scores or of the
    readout."""
    return "" if abs(fold) < 0.1 else "scores" if name in sizes[0].survey.scored else "readout"


def _parameters_by_name(sizes: Sequence[Size], axis: str) -> dict[str, list[list[str]]]:
    """{what to call it: for each size the parameters it stands for}: over width each by name, over depth by
    kind."""
    tables = [list(s.rows.rows) for s in sizes if s.rows is not None]
    if axis == "width" and all(t == tables[0] for t in tables):
        return {name: [[name]] * len(sizes) for name in tables[0]}
    common: dict[str, list[list[str]]] = {}
    for how in (template, loose_template):
        kinds: list[dict[tuple[str, str, str, bool], list[str]]] = []
        for s in sizes:
            own: dict[tuple[str, str, str, bool], list[str]] = {}
            for name, row in s.rows.rows.items() if s.rows is not None else ():
                own.setdefault((how(name), row.role, row.place, name in s.survey.inner), []).append(name)
            kinds.append(own)
        shared = [k for k in kinds[0] if all(k in own for own in kinds)]
        clash = Counter(k[0] for k in shared)
        common = {
            k[0] if clash[k[0]] == 1 else f"{k[0]} ({'inner' if k[3] else k[2]})": [own[k] for own in kinds]
            for k in shared
        }
        if len(common) == len(kinds[0]):
            break
    return common


def _updates(sizes: Sequence[Size], axis: str, x: np.ndarray) -> list[Line]:
    """Sizes of weight updates beside the wanted update u; inner matrices may keep theirs over depth
    instead."""
    found = []
    for module, names in _parameters_by_name(sizes, axis).items():
        rows = [s.rows.rows[own[0]] for s, own in zip(sizes, names, strict=True) if s.rows is not None]
        if any(n not in t.update for s, own in zip(sizes, names, strict=True) for t in s.trials for n in own):
            continue
        chosen = {id(s): own for s, own in zip(sizes, names, strict=True)}
        y = _gather(sizes, lambda s, t, c=chosen: [t.update[n] for n in c[id(s)]])
        y[:, :, 0] = np.nan
        matrix = rows[-1].role in ("hidden", "readout", "input") and len(rows[-1].shape) > 1
        inner = (
            axis == "depth"
            and rows[-1].place == "branch"
            and all(n in s.survey.inner for s, own in zip(sizes, names, strict=True) for n in own)
            and len({r.m_L for r in rows}) > 1
        )
        want = _slope(x, [math.log(r.u) for r in rows])
        spectral = any(_spectral(cls) for cls, _ in sizes[0].trials[0].optimizers)
        judged = y.shape[-1] - 1 if matrix and not spectral else None
        carries = _multiplier_carried_by(
            _slope(x, [math.log(abs(r.fold) or 1.0) for r in rows]), names[0][0], sizes
        )
        slack = ATTENTION if axis == "width" and rows[-1].name in sizes[-1].survey.scored else 0.0
        slack = max(slack, _reads_a_readout(rows[-1]) if axis == "width" else 0.0)
        asked = Expected(want, want - slack, max(want, 0.0) if inner else want)
        place = "inner" if inner else rows[-1].place
        found.append(Line(module, "update", axis, x, y, asked, judged, rows[-1].role, place, carries))
    return found


def _spectral(cls: object) -> bool:
    return "muon" in getattr(cls, "__name__", "").lower()


def _slope(x: np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    dx = x - x.mean()
    return float((dx * np.asarray(y)).sum() / (dx**2).sum())


def _rates(sizes: Sequence[Size], axis: str, x: np.ndarray) -> list[Line]:
    """The rates and decays the optimizers were given, beside what each parameter's role asks for."""
    found: list[Line] = []
    factors = []
    if any(s.note for s in sizes):
        return found
    for s in sizes:
        assert s.rows is not None
        factors.append([s.rows.factors(cls, **flags) for cls, flags in s.trials[0].optimizers])
    for module, names in _parameters_by_name(sizes, axis).items():
        rates, wanted, decays, folds, role, place = [], [], [], [], "", ""
        for s, own, tables in zip(sizes, names, factors, strict=True):
            given = [(s.trials[0].rates.get(n), n) for n in own]
            if any(g is None or g["lr"] <= 0 for g, _ in given):
                break
            rates.append(np.mean([math.log(g["lr"]) for g, _ in given if g]))
            wanted.append(np.mean([math.log(tables[int(g["optimizer"])][n]["lr"]) for g, n in given if g]))
            decays.append(np.mean([g["lr"] * g["weight_decay"] for g, _ in given if g]))
            row = s.rows.rows[own[0]]  # type: ignore[union-attr]
            role, place = row.role, row.place
            folds.append(math.log(abs(row.fold) or 1.0))
        if len(rates) < len(sizes):
            continue
        carries = _multiplier_carried_by(_slope(x, folds), names[0][0], sizes)
        line = functools.partial(
            Line, module=module, axis=axis, x=x, judged=0, role=role, place=place, given=True
        )
        y, asked = np.asarray(rates)[:, None, None], exact(_slope(x, wanted))
        found.append(line(quantity="lr", y=y, expected=asked, carries=carries))
        kinds = {family(cls, flags).decay for cls, flags in sizes[0].trials[0].optimizers}
        if min(decays) > 0 and "coupled" not in kinds:
            y = _log(np.asarray(decays))[:, None, None]
            found.append(line(quantity="lr x decay", y=y, expected=exact(0.0)))
    return found
