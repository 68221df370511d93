"""The table of a parametrization, generated from its rows: plain text, or a table of rich.

Parameters of one kind with the same numbers share a line, with the block numbers in which they differ taken
out: `layers.#.fc.weight x 24`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.parametrization.comparison.names import block_templates, shared_name

if TYPE_CHECKING:
    from trimtab.parametrization.result import Parametrization

LEGEND = (
    "role: what a parameter does with width; place: outside all residual branches, in a branch, or its tail, "
    "which ends it",
    "m_in, m_out, m_L: this model over the base, in fan-in, fan-out and number of residual branches",
    "init: scale of the initial weights, u: of a wanted update, s: of the gradient, each over the base's, "
    "fold included",
    "fold: a constant moved into the weights (attention, tied heads), rescale: what this model's drawn "
    "weights are multiplied by",
    "learning rate x u for Adam and AdamW, x u/s for SGD; p.factors(cls) has every optimizer's",
)
COLUMNS = ("parameter", "role", "place", "m_in", "m_out", "m_L", "init", "u", "s", "fold", "rescale")


def number(x: float | None) -> str:
    """Four significant digits, trailing zeros dropped.

    >>> number(0.25), number(1.0), number(None), number(0.70710678)
    ('0.25', '1', '-', '0.7071')
    """
    return "-" if x is None else f"{x:.4g}"


def lines(p: Parametrization) -> list[tuple[str, ...]]:
    """One line per kind of parameter with equal numbers."""
    called = block_templates(dict.fromkeys(p.rows))
    names: dict[tuple[str, ...], list[str]] = {}
    for row in p.rows.values():
        numbers = (row.m_in, row.m_out, row.m_L, row.init, row.u, row.s, row.fold, row.rescale)
        key = (called[row.name], row.role, row.place, *map(number, numbers))
        names.setdefault(key, []).append(row.name)
    return [(_called(found), *key[1:]) for key, found in names.items()]


def _called(names: list[str]) -> str:
    return shared_name(names) + (f" x {len(names)}" if len(names) > 1 else "")


def summary(p: Parametrization) -> str:
    """Scheme and sizes in one sentence."""
    depth = (
        ", ".join(f"{k} {v:.4g}" for k, v in p.depth.items())
        if isinstance(p.depth, dict)
        else f"{p.depth:.4g}"
    )
    alpha = "" if p.scheme.alpha is None else f" (alpha = {p.scheme.alpha:g})"
    n = len(p.branches)
    return (
        f"{p.scheme.name}{alpha}: width x {p.width:.4g}, depth x {depth}, {n} residual "
        f"branch{'' if n == 1 else 'es'}, {len(p.rows)} parameters, gamma0 = {p.gamma0:g}"
    )


def rates(p: Parametrization) -> list[str]:
    """What AdamW's learning rate is multiplied by, the smallest first: "x 0.125 for #.up.weight x 8"."""
    held: dict[str, list[str]] = {}
    for line in lines(p):
        held.setdefault(line[COLUMNS.index("u")], []).append(line[0])
    ordered = sorted(held.items(), key=lambda item: float(item[0]))
    return [f"  x {factor} for {', '.join(names)}" for factor, names in ordered]


def render(p: Parametrization) -> str:
    """The table as plain text: learning rates first, then every number, then what the columns mean."""
    table = [COLUMNS, *lines(p)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    text = []
    for k, line in enumerate(table):
        cells = [
            cell.ljust(w) if i < 3 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
        if k == 0:
            text.append("  ".join("-" * w for w in widths))
    head = [summary(p), "", "learning rate over the base's, with Adam or AdamW:", *rates(p), ""]
    return "\n".join([*head, *text, "", *LEGEND, "", str(p.proof), *(f"note: {n}" for n in p.notes)])


def rich_table(p: Parametrization) -> Any:
    """The same as a rich table, for `rich.print(p)`."""
    from rich.console import Group
    from rich.table import Table

    table = Table(title=summary(p), title_justify="left", header_style="bold")
    for i, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if i < 3 else "right", overflow="fold")
    for line in lines(p):
        table.add_row(*line)
    legend = [f"[dim]{line}[/dim]" for line in LEGEND]
    return Group(
        "learning rate over the base's, with Adam or AdamW:",
        *rates(p),
        table,
        *legend,
        str(p.proof),
        *(f"[dim]note:[/dim] {n}" for n in p.notes),
    )
