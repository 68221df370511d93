r"""Finite networks against the infinite one: how far off, how fast that falls, how large is large enough.

docs/theory.md, equation (44):

    E f_{N,L} = f_{inf,L} + a/N + ...        sd f_{N,L} = s N^-1/2        f_{inf,L} = f_{inf,inf} + b/L + ...

`approach` runs ensembles (`theory.simulate`) and the limit (`theory.solve`) at every width and depth, and
fits the three rates (`powerlaws`). What is compared: the outputs f over the whole trajectory, relative to
their norm, and the loss after the last step, relative to the limit's. The mean error of f is small beside the
scatter of single networks (about 1/N against N^-1/2), so it is measured as a projection, not as a norm, and
with as many networks as patience allows; the loss, being convex, shows its 1/N plainly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from trimtab.errors import InputError, faults
from trimtab.files import json_ready
from trimtab.limits.powerlaws import Rate, along, amplitudes, fit_power
from trimtab.theory import linear, simulate, solve, sweep_rates
from trimtab.theory.problem import problem
from trimtab.theory.results import Trajectory

if TYPE_CHECKING:
    import pandas

BLOCKS = 16  # of networks, for error bars of anything computed from their means
FAR = (4, 8)  # finite depths that stand in where only infinity is asked for
COLUMNS: tuple[str, ...] = (
    "width",
    "depth",
    "error",
    "stderr",
    "fluctuation",
    "fluctuation_stderr",
    "loss",
    "loss_error",
    "loss_stderr",
    "networks",
)


@dataclass(frozen=True)
class Bound:
    """Smallest sizes whose error is at most `tolerance` (relative), with 95 % intervals: the largest any
    fitted rate asks for.

    `width` is for one network, not for a mean over many. nan: not measured.
    """

    tolerance: float
    width: float = math.nan
    width_low: float = math.nan
    width_high: float = math.nan
    depth: float = math.nan
    depth_low: float = math.nan
    depth_high: float = math.nan


@dataclass(frozen=True)
class Optimum:
    """Best rate eta_0 and stable edge in the limit, and those of finite networks.

    rows: width, lr, low, high (95 % interval of the best rate; nan where it lies beside the edge), edge
    (largest rate seen stable), shift (log2 of best / the limit's), shift_stderr; the limit is the row of
    infinite width. curves: width, rates, loss after the last step.
    """

    rows: list[dict[str, float]]
    curves: list[dict[str, Any]]
    rate: Rate


@dataclass(frozen=True)
class Limit:
    """What `approach` found. `rates`: fitted exponents; `bound`: how large is large enough; `table`: what
    they were fitted to.

    verdict: "converges" (nothing contradicts the theory, and the scatter of networks is seen to follow it),
    "contradicts" or "cannot tell".
    """

    verdict: str
    rows: list[dict[str, float]]
    rates: tuple[Rate, ...]
    bound: Bound
    curves: list[dict[str, Any]]  # width, depth, loss (T+1), stderr (T+1)
    kernels: dict[str, Any]  # depth, tau, phi and g (layers, T+1): the mean of their diagonals
    about: dict[str, Any]
    optimum: Optimum | None = None

    @property
    def table(self) -> pandas.DataFrame:
        """One row per (width, depth), relative to the limit: finite widths against the same depth at infinite
        width, those against infinite depth.

        error, stderr: of the mean output over the trajectory, signed. fluctuation: standard deviation of one
        network's output. loss: after the last step, loss_error and loss_stderr relative to the limit's.
        networks: how many were trained.
        """
        import pandas

        return pandas.DataFrame(self.rows, columns=list(COLUMNS))

    def figures(self) -> list[dict[str, Any]]:
        """Plotly figures as plain dicts: loss curves, kernels over layer time, convergence over width and
        depth, loss against rate."""
        from trimtab.limits.figures import draw

        return draw(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; infinite and missing numbers are None."""
        content = {
            "verdict": self.verdict,
            "about": self.about,
            "table": self.rows,
            "rates": [_rate(r, self.bound.tolerance) for r in self.rates],
            "bound": asdict(self.bound),
            "curves": self.curves,
            "kernels": self.kernels,
            "optimum": None if self.optimum is None else asdict(self.optimum),
        }
        return json_ready(content)

    def __str__(self) -> str:
        lines = [sentence(self)]
        lines += [
            f"  {r.quantity} over {r.axis}: exponent {_end(r.exponent)} ({_end(r.low)} to {_end(r.high)}), "
            f"theory {r.expected:+.2f}: {r.verdict}"
            for r in self.rates
        ]
        return "\n".join(lines)


def sentence(limit: Limit) -> str:
    """The practical bound in words."""
    b = limit.bound
    parts = [
        f"{name} {_whole(value)} ({_whole(low)} to {_whole(high)})"
        for name, value, low, high in (
            ("width", b.width, b.width_low, b.width_high),
            ("depth", b.depth, b.depth_low, b.depth_high),
        )
        if not math.isnan(value)
    ]
    word = {
        "converges": "Finite networks approach the limit as the theory says",
        "contradicts": "Finite networks do not approach the limit as the theory says",
    }
    return (
        f"{word.get(limit.verdict, 'Whether finite networks approach the limit cannot be told yet')}; "
        f"within {100 * b.tolerance:g} % of it from {' and '.join(parts) or 'sizes unknown'} on."
    )


def _whole(x: float) -> str:
    return f"{x:.0f}" if math.isfinite(x) else "∞"


def _end(x: float) -> str:
    return f"{x:+.2f}" if math.isfinite(x) else "unknown" if math.isnan(x) else ("∞" if x > 0 else "-∞")


def _rate(rate: Rate, tolerance: float) -> dict[str, Any]:
    return asdict(rate) | dict(
        zip(("needed", "needed_low", "needed_high"), rate.needed(tolerance), strict=True)
    )


# -- running -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ensemble:
    """Networks of one size in blocks: `f` (B, T+1, P[, C]) and `loss` (B, T+1) are block means, `variance`
    (B,) of f per network, summed over f."""

    f: np.ndarray
    loss: np.ndarray
    variance: np.ndarray
    networks: int


def _ensemble(
    x: ArrayLike, y: ArrayLike, width: int, depth: int, networks: int, seed: int, case: dict[str, Any]
) -> Ensemble:
    each = networks // BLOCKS
    runs = [
        simulate(
            x, y, width=width, depth=depth, seeds=list(range(seed + b * each, seed + (b + 1) * each)), **case
        )
        for b in range(BLOCKS)
    ]
    f, loss = np.stack([r.f for r in runs]), np.stack([r.loss for r in runs])
    within = np.array([0.0 if r.variance is None or each == 1 else r.variance.f.sum() / width for r in runs])
    between = np.square(f - f.mean(0)).reshape(BLOCKS, -1).sum(1)
    return Ensemble(f, loss, BLOCKS * ((each - 1) * within + each * between) / (networks - 1), networks)


def _limit_of(
    x: ArrayLike, y: ArrayLike, depth: float, samples: int, seed: int, case: dict[str, Any]
) -> tuple[Trajectory, Trajectory]:
    """Two independent solutions."""
    if case["activation"] == "linear":
        exact = linear(x, y, depth=depth, **case)
        return exact, exact
    one, two = (solve(x, y, depth=depth, samples=samples, seed=2 * seed + i, **case) for i in range(2))
    return one, two


def approach(
    x: ArrayLike,
    y: ArrayLike,
    *,
    widths: Sequence[int],
    depths: Sequence[float],
    networks: int = 256,
    samples: int = 8000,
    seed: int = 0,
    tolerance: float = 0.05,
    progress: Callable[[int, int], None] | None = None,
    **case: Any,
) -> Limit:
    """Train networks of every width and depth beside the limit, fit the rates at which they approach it.

    widths: N, integers. depths: L, integers and `math.inf`; infinity alone stands for 4, 8 and infinity.
    networks: how many of the smallest width and depth; wider ones in proportion 1/N, at least 16. samples: of
    each of two solutions. tolerance: relative error of the practical bound.
    `case`: the arguments of `theory.solve` (activation, lr, steps, gamma0, ...). A limit that diverges is a
    result: nothing can be told.

    >>> case = dict(activation="tanh", lr=0.2, steps=3, samples=400)
    >>> found = approach([[1.0, 1.0]], [1.0], widths=[16, 32], depths=[2], networks=64, **case)
    >>> found.table.shape, [r.quantity for r in found.rates]
    ((2, 10), ['mean output', 'mean loss', 'one network'])
    """
    problems = argument_faults(x, y, widths, depths, networks, samples, tolerance, case)
    if problems:
        raise faults(f"{len(problems)} fault{'s'[: len(problems) > 1]} in the arguments", problems)
    widths, depths = (
        sorted({int(w) for w in widths}),
        sorted({d if d == math.inf else int(d) for d in depths}),
    )
    depths = [*FAR, math.inf] if depths == [math.inf] else depths
    finite = [int(d) for d in depths if math.isfinite(d)]
    total, done = len(depths) + len(widths) * len(finite), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    limits = {}
    for i, depth in enumerate(depths):
        limits[depth] = _limit_of(x, y, depth, samples, seed * 1000 + i, case)
        tick()
    nets: dict[tuple[int, int], Ensemble] = {}
    for i, (depth, width) in enumerate((d, w) for d in finite for w in widths):
        count = BLOCKS * max(1, round(networks * widths[0] / width / BLOCKS))
        nets[width, depth] = _ensemble(x, y, width, depth, count, (seed * 1000 + i + 1) * 10**6, case)
        tick()
    about = {
        "widths": widths,
        "depths": depths,
        "networks": networks,
        "samples": samples,
        "seed": seed,
        "points": len(np.asarray(y)),
    }
    return compare(
        limits,
        nets,
        tolerance=tolerance,
        alpha=float(case.get("alpha", 0.5)),
        about=about | {k: v for k, v in case.items() if isinstance(v, (int, float, str))},
    )


def argument_faults(x, y, widths, depths, networks, samples, tolerance, case) -> list[str]:
    """All faults of the arguments of `approach`, in words.

    >>> case = {"activation": "tanh", "lr": 0.1, "steps": 0}
    >>> for fault in argument_faults([[1.0]], [1.0], [8.5], [1], 16, 400, 0.05, case):
    ...     print(fault)
    width: must be integers >= 2, got [8.5].
    steps: the number of gradient steps T must be an integer >= 1, got 0.
    """
    problems: list[str] = []
    if not len(widths) or any(isinstance(w, bool) or not 2 <= w < math.inf or int(w) != w for w in widths):
        problems.append(f"width: must be integers >= 2, got {list(widths)}.")
    good = len(depths) and all(
        not isinstance(d, bool) and (d == math.inf or (d >= 1 and int(d) == d)) for d in depths
    )
    if not good:
        problems.append(f"depth: must be integers >= 1 or inf, got {list(depths)}.")
    if isinstance(networks, bool) or int(networks) != networks or networks < BLOCKS:
        problems.append(f"networks: must be an integer >= {BLOCKS}, got {networks!r}.")
    if not 0 < tolerance < 1:
        problems.append(f"tolerance: must be between 0 and 1, got {tolerance!r}. 0.05 is 5 %.")
    try:
        task = problem(x, y, depth=math.inf if good and math.inf in depths else 1, **case)
        least = 8 * (2 + 2 * task.points * task.outputs + task.outputs)
        if samples < least:
            problems.append(
                f"samples: {task.points} points and {task.outputs} outputs need at least {least}, "
                f"got {samples}."
            )
    except InputError as error:
        problems += [line.removeprefix("  - ") for line in str(error).splitlines()[1:]]
    except TypeError as error:
        problems.append(f"arguments: {error}.")
    return problems


# -- what it says: pure arithmetic ---------------------------------------------------------------------------


@np.errstate(invalid="ignore", over="ignore", divide="ignore")  # a divergence is a result: its errors are nan
def compare(
    limits: dict[float, tuple[Trajectory, Trajectory]],
    nets: dict[tuple[int, int], Ensemble],
    *,
    tolerance: float,
    alpha: float,
    about: dict[str, Any],
) -> Limit:
    """Rates, bound and verdict from trained ensembles (by width and depth) and pairs of solutions (by
    depth)."""
    widths, finite = sorted({w for w, _ in nets}), sorted({d for _, d in nets})
    rows: list[dict[str, float]] = []
    rates: list[Rate] = []
    for depth in finite:
        own = _over_width(widths, [nets[w, depth] for w in widths], limits[depth], depth)
        rows += own[0]
        rates += own[1]
    if math.inf in limits and finite:
        own = _over_depth(finite, limits, alpha)
        rows += own[0]
        rates += own[1]
    verdicts = [r.verdict for r in rates]
    seen = [r.verdict for r in rates if r.quantity == "one network"]
    verdict = "contradicts" if "disagrees" in verdicts else "converges" if "agrees" in seen else "cannot tell"
    shown = limits[max(limits)][0]
    kernels = {
        "depth": max(limits),
        "tau": shown.tau,
        "phi": np.einsum("lttmm->lt", shown.phi) / shown.phi.shape[-1],
        "g": np.einsum("lttmm->lt", shown.g) / shown.g.shape[-1],
    }
    curves = [
        {"width": math.inf, "depth": d, "loss": (a.loss + b.loss) / 2, "stderr": a.stderr.loss / math.sqrt(2)}
        for d, (a, b) in limits.items()
    ]
    curves += [
        {"width": w, "depth": d, "loss": e.loss.mean(0), "stderr": e.loss.std(0, ddof=1) / math.sqrt(BLOCKS)}
        for (w, d), e in nets.items()
    ]
    return Limit(verdict, rows, tuple(rates), _bound(rates, tolerance), curves, kernels, about)


def _bound(rates: Sequence[Rate], tolerance: float) -> Bound:
    found: dict[str, float] = {}
    for axis in ("width", "depth"):
        needed = [r.needed(tolerance) for r in rates if r.axis == axis and math.isfinite(r.constant)]
        if needed:
            value = max(needed)
            found |= {axis: value[0], f"{axis}_low": value[1], f"{axis}_high": max(n[2] for n in needed)}
    return Bound(tolerance, **found)


def _over_width(
    widths: list[int], nets: list[Ensemble], limit: tuple[Trajectory, Trajectory], depth: int
) -> tuple[list[dict[str, float]], list[Rate]]:
    size = math.sqrt(np.square((limit[0].f + limit[1].f) / 2).sum())
    final, final_error = _final(limit)
    even, odd = (
        np.stack([(n.f[i::2] - limit[i].f).reshape(BLOCKS // 2, -1) for n in nets], 1) / size
        for i in range(2)
    )
    variance = np.array([n.variance.mean() for n in nets])
    # the maximum likelihood direction of a deviation c/N: weights (1/N) / variance of the mean
    vote = 1 / np.array(widths) * np.array([n.networks for n in nets]) / variance
    error, stderr, directions = amplitudes(even, odd, vote / vote.max())
    offset = along(directions, np.stack([limit[i].stderr.f.ravel() for i in (1, 0)]) / size)
    scatter = np.sqrt(variance) / size
    scatter_error = np.array([n.variance.std(ddof=1) / math.sqrt(BLOCKS) for n in nets]) / (
        2 * scatter * size**2
    )
    loss = np.stack([n.loss[:, -1] for n in nets])
    loss_error, loss_stderr = loss.mean(1) / final - 1, loss.std(1, ddof=1) / math.sqrt(BLOCKS) / final
    rows: list[dict[str, float]] = [
        _row(
            w,
            depth,
            (error, stderr, scatter, scatter_error, loss.mean(1), loss_error, loss_stderr),
            i,
            n.networks,
        )
        for i, (w, n) in enumerate(zip(widths, nets, strict=True))
    ]
    fit = functools.partial(fit_power, widths, axis="width", at=depth, freedom=(BLOCKS - 2) * len(widths))
    return rows, [
        fit(error, stderr, expected=-1.0, offset=offset, quantity="mean output"),
        fit(loss_error, loss_stderr, expected=-1.0, offset=final_error / final, quantity="mean loss"),
        fit(scatter, scatter_error, expected=-0.5, quantity="one network"),
    ]


def _over_depth(
    finite: list[int], limits: dict[float, tuple[Trajectory, Trajectory]], alpha: float
) -> tuple[list[dict[str, float]], list[Rate]]:
    deep = limits[math.inf]
    size = math.sqrt(np.square((deep[0].f + deep[1].f) / 2).sum())
    first, second = (
        np.stack([(limits[d][i].f - deep[i].f).ravel() for d in finite])[None] / size for i in range(2)
    )
    error, _, directions = amplitudes(first, second, 1 / np.array(finite))
    stderr = np.array(
        [along(directions, np.stack([limits[d][i].stderr.f.ravel() for i in (1, 0)]) / size) for d in finite]
    )
    offset = along(directions, np.stack([_whole_error(deep[i], "f") for i in (1, 0)]) / size)
    final, _ = _final(deep)
    ends = [_final(limits[d]) for d in finite]
    left = math.hypot(*(_whole_error(t, "loss")[-1] / 2 for t in deep)) / final
    loss_error, loss_stderr = (
        np.array(v) for v in zip(*((e / final - 1, s / final) for e, s in ends), strict=True)
    )
    none = [0.0] * len(finite)
    rows: list[dict[str, float]] = [
        _row(math.inf, d, (error, stderr, none, none, [e for e, _ in ends], loss_error, loss_stderr), i, 0)
        for i, d in enumerate(finite)
    ]
    # at 1/2 < alpha < 1 the noise of the branches, L^{1 - 2 alpha} in all, dies out more slowly than the
    # Euler step's 1/L
    expected = -1.0 if alpha == 0.5 else -min(1.0, 2 * alpha - 1)
    fit = functools.partial(fit_power, finite, axis="depth", at=math.inf, expected=expected)
    return rows, [
        fit(error, stderr, offset=offset, quantity="mean output"),
        fit(loss_error, loss_stderr, offset=left, quantity="mean loss"),
    ]


def _row(width: float, depth: float, columns: tuple[Any, ...], i: int, networks: int) -> dict[str, float]:
    """Row i of the table, from its columns but the sizes and the number of networks."""
    return dict(zip(COLUMNS, (width, depth, *(c[i] for c in columns), networks), strict=True))


def _final(limit: tuple[Trajectory, Trajectory]) -> tuple[float, float]:
    """Loss after the last step and its standard error."""
    error = math.hypot(*(t.stderr.loss[-1] for t in limit)) / 2
    return float(np.mean([t.loss[-1] for t in limit])), float(error)


def _whole_error(limit: Trajectory, name: str) -> np.ndarray:
    """Standard error of a field, and what extrapolation to infinite depth leaves."""
    own, left = limit.stderr[name], None if limit.depth_error is None else limit.depth_error[name]
    assert own is not None
    return np.hypot(own, 0.0 if left is None else left).ravel()


# -- the optimum ---------------------------------------------------------------------------------------------


def optimum(
    x: ArrayLike,
    y: ArrayLike,
    *,
    rates: ArrayLike,
    depth: float,
    widths: Sequence[int],
    networks: int = 64,
    samples: int = 8000,
    refine: int = 3,
    seed: int = 0,
    **case: Any,
) -> Optimum:
    """Loss after the last step against the rate eta_0 in the limit and in finite networks; how fast their
    best rates approach the limit's.

    depth: of limit and networks; networks of an infinitely deep limit have 16 branches. networks: of the
    smallest width, wider ones in proportion.

    >>> case = dict(depth=1, activation="linear", steps=3)
    >>> rates = [0.05, 0.1, 0.2, 0.4]
    >>> found = optimum([[1.0]], [1.0], rates=rates, widths=[16, 32], networks=16, refine=0, **case)
    >>> [row["width"] for row in found.rows]
    [inf, 16, 32]
    """
    own: dict[str, Any] = (
        {"solver": linear} if case["activation"] == "linear" else {"samples": samples, "seed": seed}
    )
    widths = sorted(widths)
    deep = 16 if math.isinf(depth) else int(depth)
    runs = {math.inf: sweep_rates(x, y, rates=rates, depth=depth, refine=refine, **own, **case)}
    for i, w in enumerate(widths):
        nets = functools.partial(
            simulate, width=w, seeds=max(BLOCKS, round(networks * widths[0] / w)), seed=(seed + i + 1) * 10**6
        )
        runs[w] = sweep_rates(x, y, rates=rates, depth=deep, refine=refine, solver=nets, **case)
    limit = runs[math.inf]
    rows = []
    for w, found in runs.items():
        half = 1.96 * found.best_stderr
        rows.append(
            {
                "width": w,
                "lr": found.best,
                "low": found.best * 2**-half,
                "high": found.best * 2**half,
                "edge": found.edge[0],
                "shift": math.log2(found.best / limit.best),
                "shift_stderr": found.best_stderr,
            }
        )
    curves = [
        {
            "width": w,
            "lr": found.lr,
            "loss": np.where(found.stable, found.final, math.inf),
            "edge": found.edge,
        }
        for w, found in runs.items()
    ]
    shifts = [r["shift"] for r in rows[1:]], [r["shift_stderr"] for r in rows[1:]]
    offset = 0.0 if math.isnan(limit.best_stderr) else limit.best_stderr
    fit = fit_power(widths, *shifts, expected=-1.0, offset=offset, quantity="best rate", at=depth)
    return Optimum(rows, curves, fit)
