"""The ways a parametrization is seen to fail, in words, where they appear in a sweep.

- Without scaling of the residual branches by depth, the rate tuned on a shallow network diverges on a deep one (arXiv 2309.16620).
- Without muP, the best rate moves with width (arXiv 2203.03466).
- A base too narrow for its limit: its losses differ from those at twice its width by more than the seeds explain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from trimtab.optima.drift import Drift
from trimtab.optima.lines import Line
from trimtab.optima.sources import Table

UNSCALED = ("sp", "ntk", "mup")  # schemes that leave residual branches alone
LEVEL = 0.01


def signatures(chosen: Line, told: str, slope: Drift, optima: Table, regret: Table) -> list[str]:
    """The failures seen on this line, worst first."""
    over, hp = chosen.over, chosen.hp
    out = []
    lost = sorted(
        {
            *regret.loc[regret["status"] == "unstable", over],
            *optima.loc[optima["status"] == "none stable", over],
        }
    )
    if lost:
        where = ", ".join(f"{v:g}" for v in lost)
        at = regret["value"].iloc[0]
        what = (
            f"the {hp} tuned at {over} {chosen.base:g} ({at:.3g})" if np.isfinite(at) else f"every {hp} tried"
        )
        why = (
            ": divergence at depth without the branch scaling"
            if over == "depth" and chosen.scheme in UNSCALED
            else ""
        )
        out.append(f"{what} does not train at {over} {where}{why}")
    if told == "drifts":
        out.append(
            f"the optimum of {hp} moves with {over}: {slope.slope:+.2f} log2 per doubling"
            if chosen.axis == "log2"
            else f"the optimum of {hp} moves with {over}: {slope.slope:+.3g} per doubling"
        )
    if over == "width":
        out += _finite_width(chosen)
    return out


def _finite_width(chosen: Line) -> list[str]:
    """Welch's test on the seeds' mean losses over the rates both widths have in full."""
    base, double = (
        chosen.cells[(chosen.cells["width"] == w) & chosen.cells["stable"]]
        for w in (chosen.base, 2 * chosen.base)
    )
    tables = [c.pivot_table(index="seed", columns="x", values="y") for c in (base, double)]
    if any(t.empty for t in tables):
        return []
    common = [
        x
        for x in tables[0].columns.intersection(tables[1].columns)
        if tables[0][x].notna().all() and tables[1][x].notna().all()
    ]
    if not common or min(len(t) for t in tables) < 2:
        return []
    one, two = (t[common].mean(axis=1) for t in tables)
    gap = float(two.mean() - one.mean())
    test: Any = stats.ttest_ind(one, two, equal_var=False)
    p = float(test.pvalue)
    if not p < LEVEL:
        return []
    return [
        f"finite-width gap: over {len(common)} values of {chosen.hp} the {chosen.metric.replace('_', ' ')} at width {2 * chosen.base:g} differs from the base's by {gap:+.3g}, more than the seeds explain (p = {p:.1g})"
    ]
