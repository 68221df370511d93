"""What law a model drew its weights from, measured against the base.

Two models built by the same code at two sizes have init scales whose ratio is a law of the sizes: 1 (a fixed std
such as 0.02), fan_in^-1/2 (torch's default), Xavier's, each perhaps times depth^-1/2 (GPT-2, Megatron). The right
start is `init` times the base's (`rules`), so what remains to be done to the model's own draw is

    rescale = init / law

The law is measured as a ratio of root mean squares, pooled over the tensors of one kind, and *snapped* to one of the
known laws, so that no sampling noise enters the model. When the numbers cannot tell two laws apart that is said, with
the override to pass, never guessed. One of the known laws is `init` itself: a model that was parametrized before
(or its copy, or its reload) measures exactly that, and nothing is done to it twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

DECISIVE = 12.0  # difference in chi^2 (a likelihood ratio of e^6 = 400) that settles between two laws
SAME = 0.005  # two laws closer than this are one
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
        """Variance of `log_rms` over draws of independent numbers with this kurtosis."""
        kurtosis = self.fourth / self.square**2 if self.square else 1.0
        return max(kurtosis - 1.0, 0.0) / (4 * self.count)


def pool(parts: Sequence[Moments]) -> Moments:
    count = sum(p.count for p in parts)
    return Moments(count, sum(p.count * p.square for p in parts) / count, sum(p.count * p.fourth for p in parts) / count)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One measured ratio and what each law says it should be."""

    log_ratio: float
    sigma: float
    laws: Mapping[str, float]

    @classmethod
    def of(cls, target: Moments, base: Moments, laws: Mapping[str, float]) -> Evidence:
        return cls(target.log_rms - base.log_rms, math.sqrt(target.variance + base.variance + FLOOR**2), laws)

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def chi2(self, law: str) -> float:
        return ((self.log_ratio - math.log(self.laws[law])) / self.sigma) ** 2


def snap(evidence: Sequence[Evidence]) -> str | None:
    """The one law that explains all the evidence, or None when several do or none does.

    >>> laws = {"fixed": 1.0, "fan_in": 0.5}
    >>> snap([Evidence(math.log(0.51), 0.02, laws)])
    'fan_in'
    >>> snap([Evidence(math.log(0.7), 0.3, laws)]) is None
    True
    """
    names = set.intersection(*(set(e.laws) for e in evidence))
    scores = sorted((sum(e.chi2(law) for e in evidence), law) for law in names)
    best_score, best = scores[0]
    if best_score > 12.0 + 4.0 * len(evidence):
        return None
    for score, law in scores[1:]:
        differ = any(abs(math.log(e.laws[law] / e.laws[best])) > SAME for e in evidence)
        if differ and score - best_score < DECISIVE:
            return None
    return best


def candidates(
    *, kind: str, m_in: float, m_out: float, xavier: float, orthogonal: float, m_N: float, m_L: float, wanted: float, partner: float | None
) -> dict[str, float]:
    """The laws in use, as ratios of target to base.

    Args:
        xavier, orthogonal: ratios of (fan_in + fan_out)^-1/2 and max(fan_in, fan_out)^-1/2.
        m_N: the model's main width ratio.  m_L: depth ratio of the tensor's stack.
        wanted: the init this tensor should end at.
        partner: fan-in ratio of the weight a bias belongs to (torch draws both from it).

    >>> laws = candidates(kind="matrix", m_in=4, m_out=4, xavier=0.5, orthogonal=0.5, m_N=4, m_L=1, wanted=0.5, partner=None)
    >>> laws["fixed"], laws["fan_in"]
    (1.0, 0.5)
    """
    width = {"fixed": 1.0, "fan_out": m_out**-0.5}
    if kind == "matrix":
        width |= {"fan_in": m_in**-0.5, "1/fan_in": 1 / m_in, "xavier": xavier, "orthogonal": orthogonal}
        width |= {"width": m_N**-0.5, "1/width": 1 / m_N}
    elif partner is not None:
        width |= {"fan_in": partner**-0.5}
    depth = {"": 1.0, " depth^-1/2": m_L**-0.5, " depth^-1": 1 / m_L, " depth^-1/4": m_L**-0.25} if m_L != 1 else {"": 1.0}
    laws = {w + d: x * y for w, x in width.items() for d, y in depth.items()}
    # Already as it should be; already so but for the depth factor (parametrized for width only before).
    laws["as wanted"] = wanted
    return laws
