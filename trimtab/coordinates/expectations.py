"""What a coordinate check expects, and what a deviation means in words. Pure arithmetic, no torch.

Hyperparameters transfer when one step moves the network alike at every size. In slopes over width N and depth
L, with branches scaled by L^-alpha (docs/theory.md, equation (25); arXiv 2203.03466, 2309.16620, 2505.01618):

    quantity           over width   over depth
    stream             0            1/2 - alpha to 0   (L random parts add like sqrt(L), so alpha >= 1/2;
                                                       beyond, they die out)
    stream change      0            0
    branch             0            -alpha             (or as far below as the stream it reads may be)
    branch change      0            -1 to -alpha       (its own weights: 1/L, they add coherently;
                                                       the stream it reads: -alpha)
    logits             -2 to 0      -                  (a random readout over N: -1/2; a bias, a tied head
                                                       stay; small is no fault)
    logits change      -1/4 to 0    0                  (narrow networks move partly at random, by N^-1/2)
    scores             -1/2 to 0    -                  (q . k over d; then it aligns)
    scores change      -1/2 to 0    any                (the same, and depth only through what feeds it)
    layer, its change  0            -                  (outputs of matrices that end no branch)
    update             that of u    that of u; of inner matrices up to 0    (alpha = 1/2: L^-1/2, noted;
                                                       a cause: alone, without an effect, it is a note)

At alpha > 1/2 changes over depth may lie (alpha - 1/2) / 2 off: a shallow base starts from features its deep
limit lacks. Queries and keys may learn by N^-1/2 less over width: at first values and what reads them are not
aligned.

What the scheme itself predicts is not the yardstick where that is no transfer: "sp", "ntk" and "mup" are
measured against the table with alpha = 1/2, so sp fails over both, ntk turns lazy over width, and mup fails
over depth.
"""

from __future__ import annotations

import dataclasses
import math

from trimtab.parametrization.rules import Scheme

AXES = ("width", "depth")


@dataclasses.dataclass(frozen=True)
class Expected:
    """The slope that is predicted, and the range that is no fault."""

    slope: float
    low: float
    high: float


def exact(slope: float) -> Expected:
    return Expected(slope, slope, slope)


def yardstick(scheme: Scheme) -> Scheme:
    """The scheme whose predictions transfer, nearest to a given one.

    >>> yardstick(Scheme("mup", None, "mup")).alpha, yardstick(Scheme("mine", 0.75)).alpha
    (0.5, 0.75)
    """
    return Scheme(scheme.name, max(0.5, scheme.alpha or 0.0), "mup")


def expected(quantity: str, axis: str, alpha: float) -> Expected | None:
    """The expected slope of an activation's size; None where nothing is asked of it.

    >>> expected("branch change", "depth", 0.5)
    Expected(slope=-0.5, low=-1.0, high=-0.5)
    """
    if axis == "width":
        ranges = {
            "logits": (-0.5, -2.0, 0.0),
            "logits change": (0.0, -0.25, 0.0),
            "scores": (-0.5, -0.5, 0.0),
            "scores change": (0.0, -0.5, 0.0),
        }
        return Expected(*ranges[quantity]) if quantity in ranges else exact(0.0)
    if quantity in ("scores", "scores change", "layer", "layer change"):
        return None
    # beyond 1/2 the random part of the stream dies out like L^-spare, from a base that has some of it
    spare = alpha - 0.5
    ranges = {
        "stream": (0.0, -spare, 0.0),
        "branch": (-alpha, -alpha - spare, -alpha),
        "branch change": (-alpha, min(-1.0, -alpha) - spare / 2, -alpha + spare / 2),
    }
    return Expected(*ranges.get(quantity, (0.0, -spare / 2, 0.0)))


def cause(
    quantity: str,
    axis: str,
    slope: float,
    want: float,
    *,
    role: str = "",
    place: str = "",
    carries: str = "",
    alpha: float | None = None,
) -> str:
    """The likely cause of a deviation, in words.

    >>> cause("branch", "depth", 0.02, -0.5, alpha=None)
    'stays like depth^0 where depth^-0.5 is wanted: branch not scaled with depth'
    """
    return (
        f"{_law(axis, slope, want)}: {_why(quantity, axis, slope - want, role, place, carries, alpha, want)}"
    )


def _law(axis: str, slope: float, want: float) -> str:
    if not math.isfinite(slope):
        return "is not finite at some sizes"
    shown = round(slope * 20) / 20 or 0.0
    verb = "grows" if shown > 0 else "decays" if shown < 0 else "stays"
    law = f"{verb} like {axis}^{shown:.3g}"
    return law if abs(want) < 0.05 else f"{law} where {axis}^{want:.2g} is wanted"


KEEPS = {
    "input": "an input or embedding keeps its rate",
    "elementwise": "a bias or gain keeps its rate",
    "scalar": "a scalar keeps its rate",
}


# What an activation says that is (too large, too small) at large sizes, by quantity and axis.
_START = (
    "initial scale of what feeds it (embedding, stem or hidden matrices) does not follow fan-in",
    "what feeds it starts too small: an input or embedding scaled as if it were hidden",
)
_OUTPUT = (
    "what feeds the output grows: branches or their rates not scaled",
    "the output moves less and less as depth grows",
)
SEEN = {
    ("logits", "depth"): _OUTPUT,
    ("logits change", "depth"): _OUTPUT,
    ("logits", "width"): (
        "the readout (or tied head) starts too large: scale its init or its output",
        "the output vanishes at the start",
    ),
    ("logits change", "width"): (
        "readout rate or multiplier not scaled with width",
        "the output learns less and less",
    ),
    ("branch", "depth"): (
        "branch not scaled with depth",
        "branch scaled twice: the model's own init or multiplier already counts depth",
    ),
    ("branch change", "depth"): (
        "branch not scaled, or its rate is not",
        "the branch learns less and less, and the best rate moves up to make up for it; completep keeps both",
    ),
    ("stream", "depth"): ("branches not scaled with depth", "the stream starts smaller as depth grows"),
    ("stream", "width"): _START,
    ("branch", "width"): _START,
    ("layer", "width"): _START,
}
OTHERS = {
    "depth": (
        "branch not scaled, or the rates in it are not",
        "turns lazy: features move less and less as depth grows",
    ),
    "width": (
        "rates of the matrices that feed it are not divided by fan-in",
        "turns lazy: features move less and less as width grows",
    ),
}


def _why(
    quantity: str,
    axis: str,
    off: float,
    role: str,
    place: str,
    carries: str,
    alpha: float | None,
    want: float,
) -> str:
    more = off > 0
    if carries == "scores" and more:
        return (
            "wrong attention scale: the forward lacks the factor that turns 1/sqrt(d_head) into 1/d_head, "
            "and this does not make up for it"
        )
    if carries == "readout" and more:
        return (
            "unscaled (tied) head: the forward lacks the readout's 1/width, and this does not make up for it"
        )
    if quantity in ("lr", "lr x decay", "update"):
        return _why_rates(quantity, axis, more, role, place, want)
    if quantity.startswith("scores"):
        return "attention scale: scores want 1/d_head, or the query's rate and init scaled to match"
    if quantity == "branch" and axis == "depth" and more and alpha is not None and alpha > 0.5:
        return "branch not scaled with depth as alpha asks"
    too_large, too_small = SEEN.get((quantity, axis), OTHERS[axis])
    return too_large if more else too_small


def _why_rates(quantity: str, axis: str, more: bool, role: str, place: str, want: float) -> str:
    """What is wrong with a parameter's rate, decay or update."""
    if quantity == "lr x decay":
        return f"weight decay not scaled with {axis}: lr x decay must be the same at every size"
    if quantity == "update":
        if place == "inner" and not more:
            return (
                "inner matrices of a branch learn even less with depth than the scheme predicts, "
                "consider completep"
            )
        return f"{role or 'its'} rate too {'large' if more else 'small'} as {axis} grows"
    if abs(want) < 0.05:
        keeps = KEEPS.get(role, "it should be the same at every size")
        return f"rate scaled with {axis} by mistake: {keeps}"
    if not more:
        return f"{role} rate scaled too far down with {axis}"
    return f"{role} rate {'' if axis == 'width' else 'or branch multiplier '}not scaled with {axis}"
