"""`trimtab data`: get a data set from its official address, or list what can be got and what is there."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Literal

from trimtab.commands.options import Positional, Text
from trimtab.errors import InputError

REFRESH = 0.5  # seconds between lines of progress on a terminal


@dataclasses.dataclass
class Data:
    """Get a data set from its official address: cifar10, fashion-mnist, tiny-imagenet, tiny-shakespeare."""

    action: Positional[Literal["get", "list"]]
    """get: download, check and unpack. list: what can be got, and what is there."""
    names: Positional[tuple[str, ...]] = ()
    """The sets to get."""
    to: Text = None
    """The folder to put them in; default $TRIMTAB_DATA, else trimtab/data in the cache folder. Readers look
    in the default only."""

    def run(self) -> int:
        """Exit code 0 when every set named is there."""
        from trimtab.data.places import root
        from trimtab.data.sources import source

        folder = Path(self.to).expanduser() if self.to else root()
        if self.action == "list":
            if self.names:
                raise InputError(f"`trimtab data list` takes no names: got {', '.join(self.names)}.")
            print("\n".join(describe(folder)))
            return 0
        if not self.names:
            raise InputError("`trimtab data get` takes names of data sets; `trimtab data list` shows them.")
        from trimtab.data.fetching import get

        for wanted in [source(name) for name in self.names]:  # a wrong name is said before any download
            get(wanted, folder, progress=Bar(), say=print)
        if folder != root():
            print(f"set TRIMTAB_DATA={folder} so that runs find it")
        return 0


def describe(folder: Path) -> list[str]:
    """One line for each set: its name, whether it is whole, where it lies or how to get it."""
    from trimtab.data.sources import SOURCES

    lines = []
    for name, held in SOURCES.items():
        missing = held.missing(folder)
        place = folder / held.place
        if missing is None:
            state = f"not in {place}; trimtab data get {name}"
        elif missing:
            state = f"INCOMPLETE in {place}: {', '.join(missing)} missing"
        else:
            state = f"in {place}"
        lines.append(f"{held.title:16s} data = {held.data!r:15s} {state}")
    return lines


class Bar:
    """Progress of a download on standard error: a line that moves on a terminal, else one every tenth."""

    def __init__(self) -> None:
        self.shown, self.tenth = 0.0, (-1, "")

    def __call__(self, name: str, size: int, total: int | None) -> None:
        whole = f" of {total / 1e6:,.1f}" if total else ""
        text = f"{name}  {size / 1e6:,.1f}{whole} MB"
        if sys.stderr.isatty():
            now = time.monotonic()
            if now - self.shown > REFRESH or size == total:
                self.shown = now
                print(f"\r{text}", end="\n" if size == total else "", file=sys.stderr, flush=True)
            return
        tenth = (int(10 * size / total) if total else size >> 24, name)
        if tenth != self.tenth:
            self.tenth = tenth
            print(text, file=sys.stderr, flush=True)
