"""The keys `batches`, `tokens`, `base` and `horizon` of a sweep: axes beside width and depth. No torch.

    run at (width, depth, batch, tokens):   batch_size = batch,   steps = tokens / batch,
                                            warmup in the base's proportion to steps

`tokens` counts what the run sees in all, in the units of the batch: examples, or sequences of text. Numbers
are those of the base and stay as they are at every point, so that the sweep measures how their optimum moves;
with `horizon = "sde"` they follow that rule, and the sweep measures what it leaves over.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trimtab.errors import Fault, InputError
from trimtab.parametrization.horizons.rules import RULES, as_rule
from trimtab.runs import catalogue
from trimtab.runs.config import RunConfig
from trimtab.runs.toml import WHOLE, are_whole, is_whole

KEYS = ("batches", "tokens")
BASE = ("width", "depth", "batch", "tokens")
TABLE = "must be [width, depth] or a table of width, depth and perhaps batch and tokens, whole numbers >= 1"


class Point(NamedTuple):
    """Where a run lies on the axes of growth; batch and tokens None: as `run` says."""

    width: int
    depth: int
    batch: int | None = None
    tokens: int | None = None


class Lengths(NamedTuple):
    """Batches and tokens of a sweep, and the base's; the rule that its runs follow, a name or exponents."""

    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    batch: int
    length: int
    rule: str | dict[str, Any] | None = None

    @property
    def here(self) -> tuple[int, int]:
        """(batch, tokens) of the base."""
        return self.batch, self.length

    def plain(self) -> dict[str, Any]:
        """As a JSON-able dict."""
        return {key: value for key, value in self._asdict().items() if key != "rule" or value is not None}


def split_base(base: Any, found: list[Fault]) -> tuple[Any, dict[str, int]]:
    """([width, depth], {"batch": ..., "tokens": ...} as far as they are given) of the key `base`.

    >>> split_base({"width": 32, "depth": 3, "batch": 64}, [])
    ([32, 3], {'batch': 64})
    >>> split_base([32, 3], [])
    ([32, 3], {})
    """
    if not isinstance(base, Mapping):
        return base, {}
    wrong = [key for key in base if key not in BASE]
    numbers = all(is_whole(value) for value in base.values())
    if wrong or not numbers or "width" not in base or "depth" not in base:
        found.append(Fault("base", TABLE, repr(dict(base))))
        return None, {}
    return [base["width"], base["depth"]], {key: base[key] for key in ("batch", "tokens") if key in base}


def read_lengths(
    c: Mapping[str, Any],
    given: Mapping[str, int],
    run: Mapping[str, Any],
    axes: Mapping[str, Any],
    found: list[Fault],
    folder: Path | None = None,
) -> Lengths | None:
    """Batches and tokens, checked; None where neither is asked for, or where there are faults.

    Args:
        c: the sweep. given: the base's batch and tokens, where `base` says them. run, axes: the sweep's
            tables.
        folder: where a rule's file is looked for.
    """
    asked = [key for key in KEYS if key in c]
    rule = read_rule(c.get("horizon"), folder, found)
    if not asked and not given:
        if "horizon" in c:
            law = "is a rule over batch and length: it needs batches or tokens"
            found.append(Fault("horizon", law, next_step="batches = [...] or tokens = [...]"))
        return None
    before = len(found)
    for key in asked:
        if not are_whole(c[key]):
            found.append(Fault(key, WHOLE, repr(c[key])))
    taken = [key for key in ("batch_size", "steps", "warmup") if key in axes]
    found += [
        Fault(f"axes.{key}", "is filled in by batches and tokens; keep one of the two") for key in taken
    ]
    if "batch" in given and "batch_size" in run:
        found.append(Fault("run.batch_size", "is also set as base.batch; keep one of the two"))
    if "tokens" in given and "steps" in run:
        found.append(Fault("run.steps", "follows from base.tokens and the batch; keep one of the two"))
    if "batches" in asked and catalogue.is_own(run.get("data")):
        law = "your own data function makes the batches, so that every value gives the same run"
        found.append(Fault("batches", law))
    defaults = RunConfig.model_fields
    batch = given.get("batch", run.get("batch_size", defaults["batch_size"].default))
    steps = run.get("steps", defaults["steps"].default)
    if len(found) > before or not is_whole(batch) or not is_whole(steps):
        return None
    length = given.get("tokens", batch * steps)
    made = Lengths(tuple(c.get("batches", [batch])), tuple(c.get("tokens", [length])), batch, length, rule)
    uneven = sorted({(b, t) for b, t in _pairs(made) if t % b})
    if uneven:
        b, t = uneven[0]
        law = "must be a multiple of every batch it is run with, so that steps are whole"
        found.append(Fault("tokens" if "tokens" in c else "batches", law, f"{t} with batch {b}"))
    return made


def read_rule(given: Any, folder: Path | None, found: list[Fault]) -> str | dict[str, Any] | None:
    """The rule of the key `horizon`: its name, or the exponents of a file, so that another file is another
    run.

    >>> read_rule("sde", None, []), read_rule({"rule": "constant"}, None, []), read_rule(None, None, [])
    ('sde', 'constant', None)
    """
    rule = given.get("rule") if isinstance(given, Mapping) and set(given) == {"rule"} else given
    if given is None:
        return None
    if isinstance(rule, str) and rule in RULES:
        return rule
    if not isinstance(rule, str):
        found.append(
            Fault("horizon", 'must be a rule\'s name or file, as "sde" or { rule = "sde" }', repr(given))
        )
        return None
    try:
        read = as_rule(folder / rule if folder is not None and (folder / rule).is_file() else rule)
    except InputError as error:
        found.append(Fault("horizon", str(error)))
        return None
    return read.to_dict()


def place(
    sizes: Sequence[tuple[int, int]], lengths: Lengths | None, centre: tuple[int, int], *, cross: bool
) -> tuple[Point, ...]:
    """Every point of the sweep: a product, or arms through the centre.

    >>> lengths = Lengths((16, 32), (640,), 16, 640)
    >>> [tuple(p) for p in place([(8, 2), (16, 2)], lengths, (8, 2), cross=True)]
    [(8, 2, 16, 640), (16, 2, 16, 640), (8, 2, 32, 640)]
    """
    if lengths is None:
        return tuple(Point(*size) for size in sizes)
    if not cross:
        return tuple(Point(*s, b, t) for s, (b, t) in itertools.product(sizes, _pairs(lengths)))
    here = lengths.here
    arms = [Point(*size, *here) for size in sizes]
    arms += [Point(*centre, b, here[1]) for b in lengths.batches]
    arms += [Point(*centre, here[0], t) for t in lengths.tokens]
    return tuple(dict.fromkeys(arms))


def fields_of(point: Point, run: Mapping[str, Any], lengths: Lengths | None) -> dict[str, Any]:
    """A run's fields at a point: batch_size, steps and warmup, and the rule where there is one.

    >>> fields_of(Point(8, 2, 32, 1280), {"warmup": 4}, Lengths((16, 32), (640,), 16, 640))
    {'batch_size': 32, 'steps': 40, 'warmup': 4}
    """
    if lengths is None or point.batch is None or point.tokens is None:
        return {}
    steps = point.tokens // point.batch
    out: dict[str, Any] = {"batch_size": point.batch, "steps": steps}
    if lengths.rule is not None:
        out["horizon"] = {"rule": lengths.rule, "batch": lengths.batch, "tokens": lengths.length}
    warmup = run.get("warmup")
    if isinstance(warmup, int) and warmup:
        out["warmup"] = round(warmup * steps * lengths.batch / lengths.length)
    return out


def _pairs(lengths: Lengths) -> list[tuple[int, int]]:
    return list(itertools.product(lengths.batches, lengths.tokens))
