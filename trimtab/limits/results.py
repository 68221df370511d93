"""What a comparison with the limit found: verdict, fitted rates, how large is large enough, and in words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trimtab.files import json_ready
from trimtab.limits.powerlaws import Rate

if TYPE_CHECKING:
    import pandas

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
