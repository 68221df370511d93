"""`trimtab transfer`: does the best value stay where it is? A table in the terminal, or JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.commands.options import Positional, Size, Text
from trimtab.errors import InputError

if TYPE_CHECKING:
    from trimtab.optima.tables import RunSource as Source
    from trimtab.optima.transfers import Transfer as Answer
    from trimtab.sweeps.store import Store

EXIT = {"transfers": 0, "drifts": 1, "cannot tell": 3}


@dataclasses.dataclass
class Transfer:
    """Does the optimum stay where it is as the network grows? Optima with intervals, drift, regret,
    verdict."""

    store: Positional[str]
    """The file that `trimtab sweep` wrote."""
    over: Size = None
    """What grows: depth, width, batch or tokens; by default all that the sweep varies."""
    hp: str = "lr"
    """The hyperparameter asked about: any number that was swept."""
    scheme: Text = None
    """The scheme the exit code is about. Default: depth-mup if it was swept, else completep, else mup, ntk,
    sp."""
    metric: str = "train_loss"
    """train_loss, test_loss or accuracy."""
    where: tuple[str, ...] = ()
    """What to hold fixed where more was swept, as name=value."""
    suggest: Text = None
    """Where the runs cannot tell: write the sweep with what would (values, seeds, sizes) to this file."""
    fit: Text = None
    """Over batch or tokens: write the measured exponents to this .json file, for Horizon(rule=...)."""
    noise_scale: bool = False
    """Over batch: train the base once more at its best rate and measure the gradient noise scale, a
    prediction of the critical batch; it is kept in the store."""
    json: bool = False
    """Print everything as JSON; infinite and missing numbers are null."""

    def run(self) -> int:
        """Print optima, drift, regret and the verdict.

        The exit code is the named scheme's verdict, the worst of the axes.
        """
        from rich.console import Console

        from trimtab.commands.transfer_tables import overview
        from trimtab.optima import tables
        from trimtab.optima.tables import default_scheme, schemes, size_axes

        source = tables.open_source(self.store)
        table = source.to_pandas()
        names = schemes(table)
        if not names:
            raise InputError(f"a transfer needs runs: {self.store} has none yet.")
        if self.scheme is not None and self.scheme not in names:
            raise InputError(f"scheme must be one of the store's: {', '.join(names)}; got {self.scheme!r}.")
        lead = self.scheme or default_scheme(names)
        overs = [self.over] if self.over else size_axes(table, source.meta.get("base")) or ["depth"]
        asked = [self.scheme] if self.scheme else names
        every = analyse_all(source, overs, asked, self.hp, self.metric, conditions(self.where))
        mine = {over: by[lead] for over, by in every.items()}
        code = worst(mine.values())
        said = suggest(source, mine, self) if self.suggest else ""
        scale = predicted(source, mine, measure=self.noise_scale)
        if self.fit is not None:
            said = "\n".join([*([said] if said else []), fit(mine, self.fit)])
        if self.json:
            answers = {over: {n: t.to_dict() for n, t in by.items()} for over, by in every.items()}
            verdicts = {over: t.verdict for over, t in mine.items()}
            out = {"scheme": lead, "exit": code, "verdict": verdicts, "transfers": answers}
            print(json.dumps(out | ({"noise_scale": scale} if scale else {}), indent=1))
        else:
            Console(highlight=False).print(overview(every, mine, scale))
        if said:
            print(f"\n{said}", file=sys.stderr if self.json else sys.stdout)
        return code


def analyse_all(
    source: Source, overs: Iterable[str], names: Iterable[str], hp: str, metric: str, where: Mapping[str, Any]
) -> dict[str, dict[str, Answer]]:
    """{over: {scheme: Transfer}}."""
    from trimtab.optima.transfers import analyse

    table, base = source.to_pandas(), source.meta.get("base")
    return analyse(table, overs, list(names), hp=hp, metric=metric, where=where, base=base)


def suggest(source: Source, mine: Mapping[str, Answer], options: Transfer) -> str:
    """Write the sweep that would tell as a file beside the store's runs; says what was written."""
    from trimtab.optima.advice import more_seeds
    from trimtab.optima.wording import number
    from trimtab.sweeps.extension import extend, write

    cures = {over: t.remedy for over, t in mine.items() if t.remedy}
    path = Path(options.suggest or "")
    if not cures:
        return f"{path} was not written: the runs there are tell, or have yet to finish."
    old = source.meta.get("config")
    if not old:
        raise InputError(f"{options.store} does not say which sweep it holds, so that it cannot be extended.")
    values = sorted({v for cure in cures.values() for added in cure.values.values() for v in added})
    sizes = {f"{over}s": cure.sizes for over, cure in cures.items() if over in ("width", "depth")}
    seeds = max(cure.seeds for cure in cures.values())
    table = extend(old, values={options.hp: values} if values else {}, seeds=seeds, **sizes)
    again = f"trimtab sweep {path} --store {options.store}"
    parts = [f"{options.hp} {', '.join(map(number, values))}"] * bool(values)
    parts += [more_seeds(seeds)] * bool(seeds)
    parts += [f"{name} {', '.join(map(str, more))}" for name, more in sizes.items() if more]
    what = "; ".join(parts)
    name = old.get("name", "sweep")
    heading = (
        f"{name} with more in it: {what}.\nRun it into the same store, where nothing runs twice:\n    {again}"
    )
    held = source.to_pandas()
    slots = held["fleet"].astype(int) if "fleet" in held else (1,)
    cells, new = write(path, table, heading, held["cell"], slots)
    return f"wrote {path}: {what}; {new} of its {cells} runs are new. Run it into the same store: {again}"


def predicted(source: Source, mine: Mapping[str, Answer], *, measure: bool) -> dict[str, Any] | None:
    """The gradient noise scale at the base's best rate: measured now and kept, or as it was kept; None where
    it is not known or the sweep is not over batch."""
    from trimtab.files import json_ready, looking_in
    from trimtab.sweeps.store import Store

    t = mine.get("batch")
    if measure and (t is None or t.hp != "lr" or not isinstance(source, Store)):
        raise InputError("--noise-scale takes a store of runs over batches, and --hp lr: here is none.")
    if t is None or t.hp != "lr":
        return None
    title = f"{t.scheme}, {t.metric}"
    if not measure:
        return next((held for held in source.attached("noise-scale") if held["title"] == title), None)
    from trimtab.runs.noise_scale import noise_scale

    assert isinstance(source, Store)
    with looking_in(source.path.resolve().parent):
        found = noise_scale(base_run(source, t))
    kept = json_ready({"title": title} | dataclasses.asdict(found))
    source.attach("noise-scale", kept)
    return kept


def base_run(source: Store, t: Answer) -> Any:
    """The run at the base's batch whose rate is nearest to the best one there."""
    from trimtab.runs.config import RunConfig

    best = t.optima.loc[t.optima[t.over] == t.base, "optimum"].iloc[0]
    cells = t.line.cells[(t.line.cells[t.over] == t.base) & t.line.cells["stable"]]
    if not len(cells) or not best > 0:
        raise InputError(
            f"the noise scale is measured at the best rate of {t.over} {t.base:g}: none is known."
        )
    near = (cells["lr"] / best).map(math.log2).abs().idxmin()
    return RunConfig(**source.config(str(cells.loc[near, "cell"]))).replace(fleet=1, eval_examples=0)


def fit(mine: Mapping[str, Answer], path: str) -> str:
    """Write the exponents measured over batch and tokens as a rule; says what was written, and what the
    exponent of the smaller sizes costs at the largest."""
    from trimtab.optima.exponents import write_rule
    from trimtab.optima.held_out import hold_out

    found = {over: t for over, t in mine.items() if t.rules}
    if not found:
        raise InputError("--fit takes a sweep over batches or tokens, and --hp lr: here is none.")
    tried = [hold_out(t) for t in found.values()]
    return "\n".join([write_rule(path, found), *(str(h) for h in tried if h is not None)])


def worst(transfers: Iterable[Answer]) -> int:
    """Drifts on any axis is a no; else cannot tell on any is no answer."""
    codes = {EXIT[t.verdict] for t in transfers}
    return 1 if 1 in codes else 3 if 3 in codes else 0


def conditions(pairs: Iterable[str]) -> dict[str, Any]:
    """name=value pairs of the command line.

    >>> conditions(["width=64", "optimizer=SGD", "weight_decay=1e-3"])
    {'width': 64, 'optimizer': 'SGD', 'weight_decay': 0.001}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--where takes name=value: got {pair!r}.")
        try:
            out[name] = json.loads(value)
        except json.JSONDecodeError:
            out[name] = value
    return out
