"""`trimtab report`: a sweep as one offline, interactive page."""

from __future__ import annotations

import dataclasses
import json

from trimtab.commands.options import Page, Positional


@dataclasses.dataclass
class Report:
    """One offline, interactive page about a sweep."""

    store: Positional[str]
    """The file that `trimtab sweep` wrote."""
    out: Page = "report.html"
    """The page to write."""
    hp: str = "lr"
    """The hyperparameter the page is about."""
    metric: str = "train_loss"
    """train_loss, test_loss or accuracy."""
    json: bool = False
    """Print what was written as JSON."""

    def run(self) -> int:
        """Write the page and say where it is."""
        from trimtab.reporting import report

        path = report(self.store, self.out, hp=self.hp, metric=self.metric)
        size = path.stat().st_size
        if self.json:
            print(json.dumps({"path": str(path), "bytes": size}))
        else:
            print(f"{path} ({size / 1e6:.1f} MB): open it in any browser, it needs no network.")
        return 0
