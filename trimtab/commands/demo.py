"""`trimtab demo`: a plain network and trimtab's, 8 times the width, 8 times the depth: whose rate stays?

A residual MLP (tanh) on the digits, trained with Adam: a cross through the base, width 64 and depth 2.
`branch_scale` is a constant of the model, the same at every size; all that differs is what trimtab does.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import InputError

if TYPE_CHECKING:
    from trimtab.optima.tables import RunSource as Source
    from trimtab.optima.transfers import Transfer

NAMES = {"sp": "Plain", "depth-mup": "trimtab"}  # the schemes of the demo as a newcomer would call them
WIDTHS, DEPTHS = [64, 128, 256, 512], [2, 4, 8, 16]


@dataclasses.dataclass
class Demo:
    """The headline in about a minute, offline, on embedded real data: does the best rate stay when the
    network grows?"""

    out: str = "trimtab-demo"
    """Folder for demo.db and report.html. The same command again goes on where it was."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs."""
    workers: int = 2
    """Processes."""

    def run(self) -> int:
        """Run, print the conclusion and the table, write the page. Exit code 0 whatever the verdicts are."""
        from rich.console import Console

        from trimtab.commands.display import Display
        from trimtab.commands.transfer_tables import details
        from trimtab.reporting import report
        from trimtab.sweeps.driver import Stopped, sweep
        from trimtab.sweeps.store import Store

        folder = Path(self.out)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--out must be a folder: {folder} is a file.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder {folder} could not be made: {error.strerror}. Pass --out a folder of your own."
            ) from error
        wanted = grid(list(self.seeds))
        console = Console(stderr=True)
        console.print(introduction(wanted), highlight=False)
        display = Display(console)
        try:
            with display:
                outcome = sweep(wanted, folder / "demo.db", workers=self.workers, progress=display)
        except Stopped as error:
            print(f"trimtab: {error}", file=sys.stderr)
            return 130
        store = Store(outcome.store)
        every = judge(store)
        out = Console(highlight=False)
        for words in conclusion(every):
            out.print(words, style="bold", soft_wrap=True, markup=False)
        out.print(details(every, {over: by["depth-mup"] for over, by in every.items()}))
        page = folder / "report.html"
        report(store, page)
        runs = sum(outcome.counts.values())
        print(f"\n{runs} runs in {outcome.seconds:.0f} s. The figures: {page}   The runs: {outcome.store}")
        return 4 if outcome.counts["failed"] else 0


def grid(seeds: list[int]) -> dict[str, Any]:
    """The demo's sweep."""
    return dict(
        name="demo",
        schemes=list(NAMES),
        base=[WIDTHS[0], DEPTHS[0]],
        sizes="cross",
        depths=DEPTHS,
        widths=WIDTHS,
        seeds=seeds,
        axes={"lr": {"log2": [-8.5, -3], "step": 0.5}},
        run=dict(
            model="mlp",
            model_options={"activation": "tanh", "branch_scale": 0.35},
            data="digits",
            optimizer="adam",
            batch_size=64,
            steps=50,
            schedule="linear",
            eval_examples=0,
        ),
    )


def judge(store: Source) -> dict[str, dict[str, Transfer]]:
    """{axis: {scheme: how its best learning rate moves}} of a demo's store."""
    from trimtab.commands.transfer import analyse_all

    return analyse_all(store, ["width", "depth"], NAMES, "lr", "train_loss", {})


def conclusion(every: Mapping[str, Mapping[str, Transfer]]) -> list[str]:
    """One line of plain words per scheme, with numbers."""
    lines = []
    for scheme, name in NAMES.items():
        mine = [by[scheme] for by in every.values()]
        body = " and ".join(_describe_move(t) for t in mine)
        lines.append(f"{name} ({scheme}): the best learning rate {body}: it {_verdict(mine)}.")
    return lines


def _describe_move(t: Transfer) -> str:
    """How far the line through the optima goes from the smallest size to the largest."""
    first, last = (t.optima.iloc[i] for i in (0, -1))
    span = f"over {t.over} {first[t.over]:g} to {last[t.over]:g}"
    if not all(map(math.isfinite, (first["log2"], last["log2"], t.drift.slope))):
        return f"cannot be followed {span}"
    ratio = 2 ** (t.drift.slope * math.log2(last[t.over] / first[t.over]))
    if t.verdict == "transfers" and t.drift.low <= 0 <= t.drift.high:
        return f"stays {span}"
    return f"{'rises' if ratio > 1 else 'falls'} {max(ratio, 1 / ratio):.1f}-fold {span}"


def _verdict(mine: list[Transfer]) -> str:
    words = {"transfers": "transfers over", "drifts": "drifts over"}
    words |= {"cannot tell": "may do either (the runs cannot tell) over"}
    axes: dict[str, list[str]] = {}
    for t in mine:
        axes.setdefault(words[t.verdict], []).append(t.over)
    return ", ".join(f"{words} {'both' if len(overs) == 2 else overs[0]}" for words, overs in axes.items())


def introduction(wanted: dict[str, Any]) -> str:
    """What is about to run."""
    from trimtab.sweeps.grid import read

    made = read(wanted)
    (width, depth), rates, seeds = made.base, len(made.axes["lr"]), len(made.seeds)
    sizes = f"width {width} to {WIDTHS[-1]} at depth {depth}, depth {depth} to {DEPTHS[-1]} at width {width}"
    what = "a residual MLP on the digits, trained with Adam, plain (sp) and with trimtab (depth-mup)"
    return f"{what}: {sizes}, {rates} learning rates, {seeds} seeds: {len(made)} runs"
