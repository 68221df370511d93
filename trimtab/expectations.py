"""What a coordinate check expects, and what a deviation means in words. Pure arithmetic, no torch.

Hyperparameters transfer when one step moves the network alike at every size. In slopes over width N and depth L, with
branches scaled by L^-alpha (THEORY 1; arXiv 2203.03466, 2309.16620, 2505.01618):

    quantity           over width        over depth
    stream             0                 0
    stream change      0                 0
    branch             0                 -alpha          (L random parts add like sqrt(L), so alpha >= 1/2)
    branch change      0                 -1 to -alpha    (its own weights: 1/L, they add coherently; the stream it reads: -alpha)
    logits             -1/2 to 0         0               (a random readout over N; a bias, a tied head, keep their size)
    logits change      -1/4 to 0         0               (narrow networks move partly at random, by N^-1/2)
    scores             -1/2 to 0         0               (q . k over d; then it aligns)
    scores change      -1/2 to 0         any             (the same, and depth only through what feeds it)
    layer, its change  0                 -               (outputs of matrices that end no branch)
    update             that of u         that of u; of inner matrices 0: else the block is linear in them as L grows

What the scheme itself predicts is not the yardstick where that is no transfer: "sp", "ntk" and "mup" are measured
against the table with alpha = 1/2, so sp fails over both, ntk turns lazy over width, and mup fails over depth.
"""

from __future__ import annotations

import dataclasses
import math

from trimtab.rules import Scheme

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
        ranges = {"logits": (-0.5, -0.5, 0.0), "logits change": (0.0, -0.25, 0.0), "scores": (-0.5, -0.5, 0.0), "scores change": (0.0, -0.5, 0.0)}
        return Expected(*ranges[quantity]) if quantity in ranges else exact(0.0)
    if quantity in ("scores", "scores change", "layer", "layer change"):
        return None
    if quantity == "branch":
        return exact(-alpha)
    if quantity == "branch change":
        return Expected(-alpha, min(-1.0, -alpha), -alpha)
    return exact(0.0)


def cause(quantity: str, axis: str, slope: float, want: float, *, role: str = "", place: str = "", alpha: float | None = None, readout: bool = False) -> str:
    """The likely cause of a deviation, in words.

    >>> cause("branch", "depth", 0.02, -0.5, alpha=None)
    'stays like depth^0 where depth^-0.5 is wanted: branch not scaled with depth'
    """
    return f"{_law(axis, slope, want)}: {_why(quantity, axis, slope - want, role, place, alpha, readout)}"


def _law(axis: str, slope: float, want: float) -> str:
    if not math.isfinite(slope):
        return "is not finite at some sizes"
    shown = round(slope * 20) / 20 or 0.0
    verb = "grows" if shown > 0 else "decays" if shown < 0 else "stays"
    law = f"{verb} like {axis}^{shown:.2g}"
    return law if abs(want) < 0.05 else f"{law} where {axis}^{want:.2g} is wanted"


def _why(quantity: str, axis: str, off: float, role: str, place: str, alpha: float | None, readout: bool) -> str:
    more = off > 0
    if quantity == "lr":
        return f"the rate of {role or 'this'} parameters does not follow {axis} as its role asks; see p.factors"
    if quantity == "lr x decay":
        return f"weight decay not scaled with {axis}: lr x decay must be the same at every size"
    if quantity == "init":
        return f"it starts too {'large' if more else 'small'} as {axis} grows: initial scale, or a multiplier in the forward"
    if quantity == "update":
        if axis == "depth" and place == "branch" and not more:
            return "inner layers of a branch with two or more matrices learn less and less (the block becomes linear in them) under alpha = 1/2, consider completep"
        return f"{role or 'its'} rate too {'large' if more else 'small'} as {axis} grows"
    if quantity.startswith("scores"):
        return "attention scale: scores want 1/d_head, or the query's rate and init scaled to match"
    if quantity.startswith("logits"):
        if axis == "depth":
            return "what feeds the output grows: branches or their rates not scaled" if more else "the output moves less and less as depth grows"
        if quantity == "logits":
            return "the readout (or tied head) starts too large: scale its init or its output" if more else "the output vanishes at the start"
        return "readout rate or multiplier not scaled with width" if more else "the output learns less and less"
    if axis == "depth":
        if quantity == "branch":
            return (
                ("branch not scaled with depth" if alpha is None or alpha <= 0.5 else "branch not scaled with depth as alpha asks")
                if more
                else "branch scaled twice: the model's own init or multiplier already counts depth"
            )
        if quantity == "branch change":
            return "branch not scaled, or its rate is not" if more else "the branch learns less and less"
        if quantity == "stream":
            return "branches not scaled with depth" if more else "the stream starts smaller as depth grows"
        return "branch not scaled, or the rates in it are not" if more else "turns lazy: features move less and less as depth grows"
    if quantity in ("stream", "branch", "layer"):
        return (
            "initial scale of what feeds it (embedding, stem or hidden matrices) does not follow fan-in"
            if more
            else "what feeds it starts too small: an input or embedding scaled as if it were hidden"
        )
    return "rates of the matrices that feed it are not divided by fan-in" if more else "turns lazy: features move less and less as width grows"
