r"""Trained ensembles beside the limit: errors, the rates at which they fall, a bound and a verdict. Pure
arithmetic over what `approach` has run; docs/theory.md, equation (44).

What is compared: the outputs f over the whole trajectory, relative to their norm, and the loss after the last
step, relative to the limit's. The mean error of f is small beside the scatter of single networks (about 1/N
against N^-1/2), so it is measured as a projection, not as a norm, and with as many networks as patience
allows; the loss, being convex, shows its 1/N plainly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.limits.powerlaws import Rate, along, amplitudes, fit_power
from trimtab.limits.results import COLUMNS, Bound, Limit
from trimtab.theory.results import Trajectory

BLOCKS = 16  # of networks, for error bars of anything computed from their means


@dataclass(frozen=True)
class Ensemble:
    """Networks of one size in blocks: `f` (B, T+1, P[, C]) and `loss` (B, T+1) are block means, `variance`
    (B,) of f per network, summed over f."""

    f: np.ndarray
    loss: np.ndarray
    variance: np.ndarray
    networks: int


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
