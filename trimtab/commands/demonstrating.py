"""`trimtab demo`: the headline on embedded real data in about a minute: which schemes let the rate be kept.

A residual MLP (relu, He gain) on digits, a cross through (width 32, depth 6): 16 times the depth, 4 times the width.
`branch_scale` is a constant of the model, the same at every depth; what differs between the schemes is what trimtab does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trimtab.commands.sweeping import Display
from trimtab.errors import InputError

if TYPE_CHECKING:
    from trimtab.cli import Demo


def grid(seeds: list[int]) -> dict[str, Any]:
    """The demo's sweep."""
    return dict(
        name="demo",
        schemes=["sp", "mup", "depth-mup"],
        base=[32, 3],
        sizes="cross",
        centre=[32, 6],
        depths=[3, 6, 12, 24, 48],
        widths=[32, 64, 128],
        seeds=seeds,
        axes={"lr": {"log2": [-6, 1.5], "step": 0.5}},
        run=dict(model="mlp", model_options={"branch_scale": 3**-0.5}, data="digits", optimizer="sgd", batch_size=64, steps=200),
    )


def demo(command: Demo) -> int:
    """Run, print the table and the verdict, write the page. Exit code 0 whatever the comparison schemes do."""
    from trimtab.commands.transferring import shown, told
    from trimtab.reporting import report
    from trimtab.sweeps.engine import Stopped, sweep
    from trimtab.sweeps.store import Store

    folder = Path(command.out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out must be a folder: {folder} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    seeds = list(command.seeds)
    console = Console(stderr=True)
    sizes = "depths 3 to 48 at width 32, widths 32 to 128 at depth 6"
    console.print(f"residual MLP on digits, {sizes}, 16 learning rates, {len(seeds)} seeds, schemes sp, mup, depth-mup", highlight=False)
    display = Display(console)
    try:
        with display:
            outcome = sweep(grid(seeds), folder / "demo.db", workers=command.workers, progress=display)
    except Stopped as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 130
    store = Store(outcome.store)
    every = told(store, ["depth", "width"], ["sp", "mup", "depth-mup"], "lr", "train_loss", {})
    Console(highlight=False).print(shown(every, {over: by["depth-mup"] for over, by in every.items()}))
    page = folder / "report.html"
    report(store, page)
    print(f"\n{sum(outcome.counts.values())} runs in {outcome.seconds:.0f} s. The figures: {page}   The runs: {outcome.store}")
    return 4 if outcome.counts["failed"] else 0
