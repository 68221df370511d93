"""One network, two ways to write it: a multiplier before the readout can be the readout's own or the layer's
before it.

    f = W (c h)     c carried by W: its rate and init scale follow c   (mup's MuReadout, most set-ups by hand)
                    c undone in what makes h: its rate and init do     (`folds`, looking back from a constant)

Both are exact (docs/theory.md, equation (2)). A set-up by hand is compared with the way it was written: with
the second where the rates it was given fit it, with the first where all of them fit that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trimtab.coordinates.trials import Size
from trimtab.parametrization.parameters import Row


def carried_by_readout(sizes: Sequence[Size]) -> list[Size] | None:
    """The sizes with the multiplier before the readout moved into it; None where there is none to move."""
    found = []
    for s in sizes:
        if s.rows is None:
            return None
        readouts = s.survey.readout.split(" = ")
        mine = {n for n in s.rows.rows if n.rpartition(".")[0] in readouts or n in readouts}
        folds = {
            round(row.fold, 9) for n, row in s.rows.rows.items() if n not in s.survey.scored and n not in mine
        } - {1.0}
        if len(folds) > 1:
            return None
        (fold,) = folds or {1.0}
        rows = {
            n: _with_other_fold(row, fold, n in mine, n in s.survey.scored) for n, row in s.rows.rows.items()
        }
        found.append(dataclasses.replace(s, rows=s.rows.with_rows(rows)))
    return (
        found
        if any(
            a.rows is not None and b.rows is not None and a.rows.rows != b.rows.rows
            for a, b in zip(sizes, found, strict=True)
        )
        else None
    )


def _with_other_fold(row: Row, fold: float, readout: bool, scored: bool) -> Row:
    if readout and len(row.shape) > 1:
        scales, carried = row.scales.fold(fold), row.fold * fold
    elif not readout and not scored and row.fold != 1:
        scales, carried = row.scales.fold(1 / row.fold), 1.0
    else:
        return row
    return dataclasses.replace(row, init=scales.init, u=scales.u, s=scales.s, fold=carried)
