"""The verdict of a coordinate check: what was fitted, what fails, why, in words, as a table, a figure and
JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.coordinates.expectations import cause
from trimtab.coordinates.profiles import ALL, Line
from trimtab.coordinates.slopes import TOLERANCE, SlopeFit, fit, judge, outside, seeds_needed
from trimtab.errors import InputError
from trimtab.parametrization.comparison.names import template

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

FORMAT = 1
GIVEN_TOLERANCE = 0.1  # rates are set, not measured: the only slack is for rounding and warmup-like offsets
FORWARD = ("layer", "stream", "branch", "scores", "logits")
COLUMNS = ("module", "quantity", "axis", "step", "slope", "low", "high", "expected")


@dataclasses.dataclass(frozen=True)
class Culprit:
    """A slope that is not what transfer asks for. `cause`: the likely reason, in words."""

    module: str
    quantity: str
    axis: str
    step: int
    slope: float
    low: float
    high: float
    expected: float
    cause: str

    def __str__(self) -> str:
        if math.isnan(self.slope):  # the cause says why there is none
            return f"{self.module}: {self.quantity} {self.cause}"
        return (
            f"{self.module}: {self.quantity} {self.cause} (slope {self.slope:+.2f}, "
            f"{self.low:+.2f} to {self.high:+.2f}, expected {self.expected:+.2f})"
        )


@dataclasses.dataclass(frozen=True)
class Check:
    """What `trimtab.check` found.

    verdict: "PASS", "FAIL" or "INCONCLUSIVE".  verdicts: the same by axis, {"width": ..., "depth": ...}.
    culprits: what fails, the likeliest root first.  unsure: lines that neither pass nor fail.
    advice: what would decide.  notes: what else the user should know.
    """

    verdict: str
    verdicts: dict[str, str]
    culprits: list[Culprit]
    unsure: list[Culprit]
    advice: str
    notes: list[str]
    about: dict[str, Any]
    rows: list[dict[str, Any]]  # of `slopes`
    points: list[dict[str, Any]]  # module, quantity, axis, step, size, seed, value

    @property
    def slopes(self) -> pandas.DataFrame:
        """Every fitted slope: module, quantity, axis, step, slope, low, high, expected (nan where nothing is
        asked), and answer."""
        import pandas

        return pandas.DataFrame(self.rows, columns=[*COLUMNS, "answer"])

    @property
    def measurements(self) -> pandas.DataFrame:
        """The numbers behind the slopes: module, quantity, axis, step, size (of the abscissa), seed,
        value."""
        import pandas

        return pandas.DataFrame(
            self.points, columns=["module", "quantity", "axis", "step", "size", "seed", "value"]
        )

    @property
    def features(self) -> pandas.DataFrame:
        """Feature speed: how far training moved each value relative to its start, mean over seeds; lazy where
        that dies out with size.

        Columns: axis, quantity, module, size, speed.
        """
        points: Any = self.measurements
        start, last = points[points["step"] == 0], points[points["step"] == points["step"].max()]
        moved = last[last["quantity"].str.endswith(" change")].assign(
            quantity=lambda t: t["quantity"].str.removesuffix(" change")
        )
        both = moved.merge(start, on=["module", "quantity", "axis", "size", "seed"], suffixes=("", "_start"))
        both["speed"] = both["value"] / both["value_start"]
        return both.groupby(["axis", "quantity", "module", "size"], sort=False)["speed"].mean().reset_index()

    def __bool__(self) -> bool:
        return self.verdict == "PASS"

    def __str__(self) -> str:
        by_axis = ", ".join(f"{axis} {verdict}" for axis, verdict in self.verdicts.items())
        a = self.about
        lines = [
            f"{self.verdict}  ({by_axis})",
            f"  {a['scheme']}, {a['optimizer']}, {a['steps']} step{'s'[: a['steps'] != 1]}, "
            f"{a['seeds']} seed{'s'[: a['seeds'] != 1]}; "
            f"judged {sum(bool(r['answer']) for r in self.rows)} of {len(self.rows)} slopes",
        ]
        lines += [
            f"  {axis}: {', '.join(map(str, a[axis + 's']))} at {other} {a['base'][i]}"
            for axis, other, i in (("width", "depth", 1), ("depth", "width", 0))
            if axis in self.verdicts
        ]
        for title, found in (
            ("culprits:", self.culprits),
            ("unsure:", self.unsure if self.verdict != "FAIL" else []),
        ):
            if found:
                told = _one_line_each(found)
                lines += [
                    title,
                    *(f"  {c}" for c in told[:8]),
                    *([f"  and {len(told) - 8} more"] if len(told) > 8 else []),
                ]
        lines += [f"advice: {self.advice}"] if self.advice else []
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def figure(self) -> plotly.graph_objects.Figure:
        """Each judged quantity against size, one panel per quantity and axis, one curve per module; dashed:
        what is expected."""
        from trimtab.coordinates.figures import draw

        return draw(self)

    def section(self) -> dict[str, Any]:
        """This check as a section of a sweep's report: `Store.attach("check", check.section())`."""
        a = self.about
        figure = self.figure().update_layout(title=None, margin={"t": 30})
        title = (
            f"Coordinate check: {a['scheme']}, {a['optimizer']}, widths {', '.join(map(str, a['widths']))}, "
            f"depths {', '.join(map(str, a['depths']))}"
        )
        return {
            "title": title,
            "verdict": self.verdict,
            "text": str(self),
            "figures": [json.loads(figure.to_json() or "{}")],
        }

    def to_json(self) -> str:
        """Everything, to be stored and shown later."""
        return json.dumps({"format": FORMAT, **_plain(dataclasses.asdict(self))})

    @classmethod
    def from_json(cls, text: str) -> Check:
        """A check as `to_json` wrote it."""
        try:
            data = _numbers(json.loads(text))
            if data.pop("format") != FORMAT:
                raise InputError(
                    f"format must be {FORMAT}. Read it with the version of trimtab that wrote it."
                )
            for key in ("culprits", "unsure"):
                data[key] = [Culprit(**c) for c in data[key]]
            return cls(**data)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(
                f"the text must be what Check.to_json wrote: {type(error).__name__}: {error}."
            ) from error


def decide(
    lines: Sequence[Line],
    axes: Sequence[str],
    about: dict[str, Any],
    notes: list[str],
    alpha: float | None,
    steps: int,
) -> Check:
    """Fit every line, judge those that are asked something, and put the verdict together."""
    findings = _Findings(alpha)
    for line in lines:
        for step in range(line.y.shape[-1]):
            findings.add(line, step)
    culprits, unsure = _worst_first(findings.culprits), _worst_first(findings.unsure)
    culprits, silent = _with_effect(culprits)
    notes = [*notes, *_slower(findings.slower), *_silent(silent)]
    verdicts = {}
    for axis in axes:
        judged = any(r["axis"] == axis and r["answer"] for r in findings.rows)
        bad, open_ = (any(c.axis == axis for c in found) for found in (culprits, unsure))
        verdicts[axis] = "FAIL" if bad else "INCONCLUSIVE" if open_ or not judged else "PASS"
    verdict = next((v for v in ("FAIL", "INCONCLUSIVE") if v in verdicts.values()), "PASS")
    return Check(
        verdict=verdict,
        verdicts=verdicts,
        culprits=culprits,
        unsure=unsure,
        advice=_advice(verdict, unsure, findings.wants, about),
        notes=notes,
        about=about,
        rows=findings.rows,
        points=findings.points,
    )


class _Findings:
    """What the lines say, one step of one line after the other.

    rows: the table of slopes. points: what was measured. culprits, unsure: with the key they are sorted by.
    wants: seeds that would settle each unsure line. slower: inner matrices that learn more slowly with depth,
    as predicted.
    """

    def __init__(self, alpha: float | None):
        self.alpha = alpha
        self.rows: list[dict[str, Any]] = []
        self.points: list[dict[str, Any]] = []
        self.culprits: list[tuple[tuple[float, ...], Culprit]] = []
        self.unsure: list[tuple[tuple[float, ...], Culprit]] = []
        self.wants: list[int | None] = []
        self.slower: list[tuple[str, float]] = []

    def add(self, line: Line, step: int) -> None:
        """Fit one step of a line; judge it if that is the step that is asked."""
        y = line.y[:, :, step]
        asked = line.expected is not None and line.judged == step
        # training does nothing: no reason to pass
        still = asked and line.quantity == "logits change" and bool(np.isneginf(y).all())
        if (np.isneginf(y).any() and not still) or (np.isnan(y).all() and not asked):
            return  # exactly zero somewhere (a zero start), or not measured at this step
        found = SlopeFit(math.nan, math.nan, math.nan, math.nan, math.nan, y.shape[1], y.shape[0])
        if np.isfinite(y).all():
            found = fit(line.x, y)
        answer = _answer(line, y, found) if asked else ""
        if (
            line.place == "inner"
            and line.quantity == "update"
            and answer == "good"
            and found.high < -TOLERANCE
        ):
            self.slower.append((line.module, found.slope))
        expected = line.expected.slope if line.expected is not None else math.nan
        at: dict[str, Any] = dict(module=line.module, quantity=line.quantity, axis=line.axis, step=step)
        slope: dict[str, Any] = dict(slope=found.slope, low=found.low, high=found.high, expected=expected)
        self.rows.append(at | slope | dict(answer=answer))
        self.points += [
            at | dict(size=math.exp(line.x[i]), seed=j, value=math.inf if v >= 700 else math.exp(v))
            for i, seeds in enumerate(y.tolist())
            for j, v in enumerate(seeds)
        ]
        unheard = answer == "unsure" and line.quantity == "update"  # no effect, so no reason to doubt
        if answer in ("bad", "unsure") and line.expected is not None and not unheard:
            why = self._why(line, found, answer, still, y.shape[1])
            wanted = _near(found.slope, line.expected) if math.isfinite(found.slope) else expected
            item = dataclasses.replace(Culprit(**at, **slope, cause=why), expected=wanted)
            several = self.culprits if answer == "bad" else self.unsure
            several.append((_order(line, found, line.expected, len(self.rows)), item))
            if answer == "unsure":
                tolerance = TOLERANCE if _learns_less(line, found) else line.tolerance
                self.wants.append(seeds_needed(found, line.expected.low, line.expected.high, tolerance))

    def _why(self, line: Line, found: SlopeFit, answer: str, still: bool, seeds: int) -> str:
        """The likely cause of a bad or unsure line, in words."""
        want = line.expected
        assert want is not None
        if not math.isfinite(found.slope):
            if still:
                return "is exactly zero: training changes nothing"
            return "is not finite: training diverges" + (" at the larger sizes" if answer == "bad" else "")
        if not outside(found.slope, want.low, want.high):
            return f"is as it should be as far as {seeds} seeds tell, but noisy"
        return cause(
            line.quantity,
            line.axis,
            found.slope,
            _near(found.slope, want),
            role=line.role,
            place=line.place,
            carries=line.carries,
            alpha=self.alpha,
        )


def _with_effect(culprits: Sequence[Culprit]) -> tuple[list[Culprit], list[Culprit]]:
    """The culprits of axes where something fails besides the sizes of updates, and the updates of the others.

    An update per weight is a cause, not an effect: f moves by dW x, and how far that is depends on how dW and
    x are aligned and on how soon the loss answers. Gradient descent at the rate that is best for a small
    network overshoots in a wide one, turns back in the next steps, and ends as far from its start: there the
    best rate stays although the updates of "sp" do not follow the width (docs/check.md). So a FAIL needs an
    activation, a score or an output that moves with size, or a rate that was set wrong.
    """
    felt = {c.axis for c in culprits if c.quantity != "update"}
    return [c for c in culprits if c.axis in felt], [c for c in culprits if c.axis not in felt]


def _silent(updates: Sequence[Culprit]) -> list[str]:
    """A note for each axis with updates that are off and that nothing answers to."""
    notes = []
    for axis in dict.fromkeys(c.axis for c in updates):
        own = [c for c in updates if c.axis == axis]
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        notes.append(
            f"updates do not follow {axis} ({own[0].module}{more}: {axis}^{own[0].slope:.2f}, wanted "
            f"{axis}^{own[0].expected:.2f}), but no activation and no output moves with {axis} at this rate "
            "and these sizes: no drift of the best rate is predicted here. Larger sizes may show one."
        )
    return notes


def _slower(inner: Sequence[tuple[str, float]]) -> list[str]:
    """What a scheme with alpha < 1 does to inner matrices. docs/check.md has what was measured where it
    does."""
    if not inner:
        return []
    more = f" and {len(inner) - 1} more" if len(inner) > 1 else ""
    slope = float(np.mean([s for _, s in inner]))
    return [
        f"inner matrices of branches learn more slowly with depth, as depth^{slope:.2f} "
        f"({inner[0][0]}{more}): "
        "as this scheme predicts. The best rate may move up a little with depth; "
        "completep keeps them learning."
    ]


def _one_line_each(found: Sequence[Culprit]) -> list[str]:
    """One line for modules that differ only in the number of their block and tell the same."""
    groups: dict[tuple[str, ...], list[Culprit]] = {}
    for c in found:
        groups.setdefault((template(c.module), c.quantity, c.axis, c.cause), []).append(c)
    return [
        str(own[0]) if len(own) == 1 else str(dataclasses.replace(own[0], module=f"{key[0]} x {len(own)}"))
        for key, own in groups.items()
    ]


def _worst_first(found: list[tuple[tuple[float, ...], Culprit]]) -> list[Culprit]:
    """Worst first; the mean over modules only where none of them stands out."""
    ordered = [c for _, c in sorted(found, key=lambda pair: pair[0])]
    named = {(c.quantity, c.axis) for c in ordered if c.module != ALL}
    return [c for c in ordered if c.module != ALL or (c.quantity, c.axis) not in named]


def _answer(line: Line, y: np.ndarray, found: SlopeFit) -> str:
    assert line.expected is not None
    low, high = line.expected.low, line.expected.high
    if line.given:
        return "bad" if abs(outside(found.slope, low, high)) > GIVEN_TOLERANCE else "good"
    if not np.isfinite(y).all():  # diverged: a fault of size if the smallest size did not
        smallest = y[int(np.argmin(line.x))]
        return "bad" if np.isfinite(smallest).all() else "unsure"
    answer = judge(found, low, high, line.tolerance, alone=line.alone)
    return _learns_less(line, found) or answer if answer != "bad" else answer


def _learns_less(line: Line, found: SlopeFit) -> str:
    """ "bad" or "unsure" where the branches together learn nearer to depth^-3/2 than to depth^-1; else "".

    The change of a branch has a part of first order in its matrices' changes, depth^-1, and at alpha = 1/2
    products of the tail's change (depth^-1) with n - 1 inner ones (each depth^-1/2). The branches add up
    coherently, so together they move the stream by lr^n depth^-(n-1)/2, and to keep that

        lr ~ depth^(n-1)/(2n),      n = 1: 0,  n = 2: +1/4,  n = 3: +1/3.

    Where initial weights are small, as in Hugging Face's language models, the products lead, and the best
    rate moves up with depth (docs/check.md). A quarter separates n = 1 from n = 2; pooled over the branches
    that is well measured.
    """
    if line.module != ALL or line.quantity != "branch change" or line.axis != "depth":
        return ""
    low = line.expected.low if line.expected is not None else -math.inf
    if found.high >= low or found.slope >= low - TOLERANCE:
        return ""
    return "bad" if found.slope + found.sure < low else "unsure"


def _near(slope: float, want: Any) -> float:
    """The edge of the expected range a slope has crossed."""
    return want.slope if not math.isfinite(slope) else want.high if slope > want.high else want.low


def _order(line: Line, found: SlopeFit, want: Any, position: int) -> tuple[float, ...]:
    """Roots before consequences: rates that were set wrong, then what is wrong at the start, then what
    training shows.

    A rate over depth, or of a parameter that would carry a multiplier, may be off because the forward lacks
    that multiplier: what the start shows comes before it. Deviations that are alike come in the order of the
    forward.
    """
    start = line.quantity in FORWARD
    rank = (0 if line.axis == "width" and not line.carries else 1.5) if line.given else 1 if start else 2
    off = outside(found.slope, want.low, want.high) if math.isfinite(found.slope) else math.inf
    return (
        rank,
        -round(abs(off) * 4) if math.isfinite(off) else -math.inf,
        FORWARD.index(line.quantity) if start else 0,
        position,
    )


def _advice(
    verdict: str, unsure: Sequence[Culprit], wants: Sequence[int | None], about: dict[str, Any]
) -> str:
    if verdict != "INCONCLUSIVE":
        return ""
    if not unsure:
        return (
            "nothing could be judged: give at least two widths or depths, "
            "and a model with residual branches for depth."
        )
    if any("changes nothing" in c.cause for c in unsure):
        return "training changes nothing at any size: raise lr."
    if any(not math.isfinite(c.slope) for c in unsure):
        return "the smallest size diverged: lower lr."
    slow = [c for c in unsure if c.quantity == "branch change" and c.axis == "depth" and c.slope < c.expected]
    first = ""
    if slow and about["scheme"] != "completep":
        first = (
            "branches seem to learn less with depth than this scheme predicts: the best rate may move up "
            'with depth, and scheme="completep" keeps it. '
        )
    known = [w for w in wants if w is not None]
    if len(known) == len(wants):
        return f"{first}{max(known)} seeds would decide."
    return (
        f"{first}{len(wants) - len(known)} slopes lie at the edge of the tolerance: "
        f"sizes twice as large would decide{f', and {max(known)} seeds' if known else ''}."
    )


def _plain(x: Any) -> Any:
    """JSON has no nan and no infinity."""
    if isinstance(x, float) and not math.isfinite(x):
        return {"float": str(x)}
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, list | tuple) else x


def _numbers(x: Any) -> Any:
    if isinstance(x, dict):
        return float(x["float"]) if set(x) == {"float"} else {k: _numbers(v) for k, v in x.items()}
    return [_numbers(v) for v in x] if isinstance(x, list) else x
