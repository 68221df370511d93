"""What law a model drew its weights from, measured against the base.

Two models built by the same code at two sizes have init scales whose ratio is a law of the sizes: 1 (a fixed
std such as 0.02), fan_in^-1/2 (torch's default), Xavier's, each perhaps times depth^-1/2 (GPT-2, Megatron).
The right start is `init` times the base's (`rules`), so what remains to be done to the model's own draw is

    rescale = init / law          (docs/theory.md, equations (19) to (24), has the priors and thresholds)

The law is measured as a ratio of root mean squares, pooled over the tensors of one kind, and *snapped* to one
of the known laws, so that no sampling noise enters the model. When the numbers cannot tell two laws apart
that is said, with the override to pass, never guessed. One of the known laws is `init` itself: a model that
was parametrized before (or its copy, or its reload) measures exactly that, and nothing is done to it twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

DECISIVE = 12.0  # difference in chi^2 (a likelihood ratio of e^6 = 400) that settles between two laws
SAME = 0.005  # two laws closer than this are one
AS_WANTED = "as wanted"
RARE = 1e-4  # of draws: a number that far from its law is no longer taken for chance
FLOOR = 1e-3  # relative error of a ratio that has no sampling noise (constants)


@dataclasses.dataclass(frozen=True)
class Moments:
    """Count, mean square and mean fourth power of the numbers in some tensors.

    >>> pool([Moments(1, 1.0, 1.0), Moments(3, 2.0, 4.0)])
    Moments(count=4, square=1.75, fourth=3.25)
    """

    count: int
    square: float
    fourth: float

    @property
    def log_rms(self) -> float:
        return 0.5 * math.log(self.square)

    @property
    def variance(self) -> float:
        """Variance of `log_rms` over draws with this kurtosis (docs/theory.md, equation (20))."""
        kurtosis = self.fourth / self.square**2 if self.square else 1.0
        return max(kurtosis - 1.0, 0.0) / (4 * self.count)


def pool(parts: Sequence[Moments]) -> Moments:
    count = sum(p.count for p in parts)
    return Moments(
        count, sum(p.count * p.square for p in parts) / count, sum(p.count * p.fourth for p in parts) / count
    )


@dataclasses.dataclass(frozen=True)
class Law:
    """A law's ratio of target to base, and what it must be better by, in chi^2, before it is believed.

    `rarity` is a prior: laws that nobody is seen to use need more evidence, and one whose absolute numbers
    are those of a textbook initialiser at both sizes needs less.
    """

    ratio: float
    rarity: float = 0.0


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One measured ratio and the laws that might explain it, named "width" or "width depth"."""

    log_ratio: float
    sigma: float
    laws: Mapping[str, Law]

    @classmethod
    def of(cls, target: Moments, base: Moments, laws: Mapping[str, Law]) -> Evidence:
        return cls(target.log_rms - base.log_rms, math.sqrt(target.variance + base.variance + FLOOR**2), laws)

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def chi2(self, law: str) -> float:
        return ((self.log_ratio - math.log(self.laws[law].ratio)) / self.sigma) ** 2

    def score(self, law: str) -> float:
        return self.chi2(law) + self.laws[law].rarity

    def without(self, name: str) -> Evidence:
        return dataclasses.replace(self, laws={k: v for k, v in self.laws.items() if k != name})

    def best(self) -> str:
        return min(self.laws, key=self.score)

    def snap(self) -> str | None:
        """The law that explains this, or None when two that differ both do, or none does.

        >>> laws = {"fixed": Law(1.0), "fan_in": Law(0.5)}
        >>> Evidence(math.log(0.51), 0.02, laws).snap()
        'fan_in'
        >>> Evidence(math.log(0.7), 0.3, laws).snap() is None
        True
        """
        best = self.best()
        if self.chi2(best) > 20.0:
            return None
        for law in self.laws:
            differ = abs(math.log(self.laws[law].ratio / self.laws[best].ratio)) > SAME
            if differ and self.score(law) - self.score(best) < DECISIVE:
                return None
        return best


def already(evidence: Sequence[Evidence], defaults: Sequence[bool]) -> bool | None:
    """Was the whole model parametrized before? True, False (AS_WANTED explains none) or None (look at each).

    A model is parametrized as a whole, so tensors that could not tell alone are told by the others.

    Args:
        defaults: for each tensor that torch's own law can speak for and whose wanted init is another one,
            whether it is still torch's draw.
    """
    supports, rejects = not all(defaults), any(defaults)
    for e in (e for e in evidence if AS_WANTED in e.laws):
        fresh = e.without(AS_WANTED)
        gain = fresh.score(fresh.best()) - e.score(AS_WANTED)
        supports |= gain > DECISIVE
        rejects |= -gain > DECISIVE
    return supports if supports != rejects else None


def in_company(one: Evidence, company: Sequence[Evidence]) -> str | None:
    """The law of a tensor with too few numbers, from all tensors of its sort: one width law, any depth."""
    scores: dict[str, float] = {}
    # In the order of the laws, so that the first of equals wins: the order of a set is chance.
    for width in dict.fromkeys(law.partition(" ")[0] for law in one.laws):
        total = 0.0
        for e in company:
            total += min((e.score(law) for law in e.laws if law.partition(" ")[0] == width), default=math.inf)
        # A prior counts once, however many follow the law.
        once = max(0.0, one.laws[width].rarity) if width in one.laws else 0.0
        scores[width] = total - (len(company) - 1) * once
    best = min(scores, key=lambda w: scores[w])
    own = {law: v for law, v in one.laws.items() if law.partition(" ")[0] == best}
    law = dataclasses.replace(one, laws=own).snap()
    if law is None or scores[best] > 16.0 + 4.0 * len(company):
        return None
    for width, score in scores.items():
        values = [v.ratio for name, v in one.laws.items() if name.partition(" ")[0] == width]
        if all(abs(math.log(v / own[law].ratio)) > SAME for v in values) and score - scores[best] < DECISIVE:
            return None
    return law


def within(moments: Moments, std: float) -> bool:
    """The numbers have this standard deviation, to four standard errors."""
    return abs(moments.log_rms - math.log(std)) <= 4 * math.sqrt(moments.variance) + FLOOR


def torch_default(moments: Moments, largest: float, fan: float) -> bool:
    """Drawn by torch itself: uniform within fan^-1/2, weight or bias. An absolute law, told by a few numbers.

    `fan` is the fan-in for linear layers and convolutions, the hidden size for recurrent ones.

    >>> three = Moments(3, 0.25**2 / 3, 0.0)
    >>> torch_default(three, 0.24, fan=16), torch_default(three, 0.26, fan=16)
    (True, False)
    """
    sigma = math.sqrt(0.8 / (4 * moments.count))  # a uniform law has kurtosis 1.8
    off = moments.log_rms - math.log(fan**-0.5 / math.sqrt(3))
    if moments.count > 3 and moments.variance < 1e-3 / moments.count:
        return False  # all of one size: set, not drawn
    # Few numbers are skewed: their rms is more often far too small.
    low = max(4 * sigma + 4 / moments.count + FLOOR, smallest(moments.count))
    return largest <= fan**-0.5 * (1 + 2**-8) and -low <= off <= 4 * sigma + FLOOR


def smallest(count: int) -> float:
    """How far, as a log, the rms of a few uniform numbers lies below its own law once in 10,000 draws.

    They then lie in a ball inside the cube, whose share of it is known; 0 where that ball would reach out of
    the cube.

    >>> [round(smallest(n), 2) for n in (1, 2, 4, 100)]
    [8.66, 4.28, 2.15, 0.0]
    """
    ball = 0.5 * count * math.log(math.pi) - math.lgamma(0.5 * count + 1)
    radius = (math.log(RARE) + count * math.log(2) - ball) / count
    return 0.0 if radius > 0 else -(radius + 0.5 * math.log(3 / count))


def textbook(fan_in: int, fan_out: int, lookup: bool, width: int) -> dict[str, tuple[float, ...]]:
    """Standard deviations of the well-known initialisers, by law."""
    laws = {
        "fan_in": (fan_in**-0.5, (2 / fan_in) ** 0.5),
        "xavier": ((2 / (fan_in + fan_out)) ** 0.5,),
        "fan_out": ((2 / fan_out) ** 0.5,),
        "orthogonal": (max(fan_in, fan_out) ** -0.5,),
        "width": (width**-0.5,),
    }
    return laws | ({"fixed": (1.0,)} if lookup else {})


def candidates(
    *,
    kind: str,
    m_in: float,
    m_out: float,
    xavier: float,
    orthogonal: float,
    m_N: float,
    m_L: float,
    tail: bool,
    wanted: float,
    partner: float | None,
    known: frozenset[str],
    default: bool = True,
) -> dict[str, Law]:
    """The laws in use, as ratios of target to base (docs/theory.md, equation (22)).

    Args:
        xavier, orthogonal: ratios of (fan_in + fan_out)^-1/2 and max(fan_in, fan_out)^-1/2.
        m_N: the model's main width ratio.  m_L: depth ratio of the tensor's stack.
        tail: the tensor ends a branch, where depth factors are usual.
        wanted: the init this tensor should end at.
        partner: fan-in ratio of the weight a bias belongs to (torch draws both from it).
        known: laws whose textbook numbers the tensors have at both sizes.
        default: the base's tensor may be torch's own draw. Nobody else draws biases by their weight's fan-in.

    >>> sizes = dict(m_in=4, m_out=4, xavier=0.5, orthogonal=0.5, m_N=4, m_L=1)
    >>> laws = candidates(kind="matrix", **sizes, tail=False, wanted=0.5, partner=None, known=frozenset())
    >>> laws["fixed"].ratio, laws["fan_in"].ratio
    (1.0, 0.5)
    """
    width = {"fixed": Law(1.0)}
    if kind == "matrix":
        width |= {
            "fan_in": Law(m_in**-0.5),
            "xavier": Law(xavier, 10.0),
            "fan_out": Law(m_out**-0.5, 10.0),
            "orthogonal": Law(orthogonal, 10.0),
        }
        width |= {
            "width": Law(m_N**-0.5, 10.0),
            "1/fan_in": Law(1 / m_in, 10.0),
            "1/width": Law(1 / m_N, 10.0),
        }
    else:
        width |= {"fan_in": Law(partner**-0.5, 0.0 if default else 10.0)} if partner is not None else {}
        width |= {"fan_out": Law(m_out**-0.5, 10.0), "width": Law(m_N**-0.5, 10.0)}
    width = {name: Law(law.ratio, -6.0) if name in known else law for name, law in width.items()}
    inner = 0.0 if tail else 16.0
    depth = {
        "": Law(1.0),
        " depth^-1/2": Law(m_L**-0.5, inner),
        " depth^-1": Law(1 / m_L, 6.0 + inner),
        " depth^-1/4": Law(m_L**-0.25, 8.0 + inner),
    }
    laws = {
        w + d: Law(x.ratio * y.ratio, x.rarity + y.rarity)
        for d, y in depth.items()
        if not d or m_L != 1
        for w, x in width.items()
    }
    if wanted > 0:  # an override may ask for a start at zero
        laws[AS_WANTED] = Law(wanted)
    return laws
