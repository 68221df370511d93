r"""Power laws of finite size with intervals: how fast an error falls, and from which size on it is small.
Pure numbers, no torch.

    value_i = c size_i^p + delta + noise_i    noise_i ~ N(0, stderr_i^2)   delta ~ N(0, offset^2), one for all

The values are signed, so an error below its noise is no trouble and is never mistaken for one of the noise's
size; delta is what the limit itself is uncertain by. For values well above their noise it is weighted log-log
regression. For every p the best c is linear (generalised least squares); the interval of p is the profile
likelihood's. Where c may be 0 every p fits, and the interval says so: it is unbounded. Where four or more
sizes do not lie on a power law (at 5 %; on the theory's, if errors exceed 30 % of the limit), they are not
yet large: the next order c d size^{p-1} is fitted along. Residuals still larger than their noise widen
everything by their root mean square.

The size from which on |value| <= tolerance is (|c| / tolerance)^(-1/p), p the theory's exponent unless the
fit contradicts it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
SURE = 0.999  # a contradiction of the theory is one claim among many rates
TOLERANCE = 0.25  # exponents come in halves: a quarter is where two laws part
SMALL = 0.3  # relative errors beyond this are no small correction: they cannot contradict an asymptotic law
GRID = np.linspace(-6.0, 3.0, 1801)


@dataclass(frozen=True)
class Rate:
    """How `quantity` falls with the `axis` ("width" or "depth"), at `at` of the other: value = constant
    size^exponent.

    exponent, low, high: fitted, with 95 % interval; `expected`: the theory's. verdict: "agrees", "disagrees"
    or "cannot tell".
    constant, constant_low, constant_high: at the exponent `used`, the theory's unless contradicted; relative
    to the limit, no unit.
    after: the next order, value = constant size^exponent (1 + after / size); 0 where a pure power law fits.
    """

    quantity: str
    axis: str
    at: float
    exponent: float
    low: float
    high: float
    expected: float
    verdict: str
    used: float
    constant: float
    constant_low: float
    constant_high: float
    after: float = 0.0

    def needed(self, tolerance: float) -> tuple[float, float, float]:
        """Smallest size whose error is at most `tolerance` (relative, 0.05 is 5 %), with 95 % interval.

        >>> Rate("f", "width", 4, -1.0, -1.1, -0.9, -1.0, "agrees", -1.0, 3.2, 2.0, 4.4).needed(0.05)
        (64, 40, 88)
        """
        straddles = self.constant_low * self.constant_high <= 0
        ends = sorted((abs(self.constant_low), abs(self.constant_high)))
        value, low, high = (
            _size(c, self.used, tolerance, max(0.0, self.after)) for c in (abs(self.constant), *ends)
        )
        return value, 1 if straddles else low, high


def _size(constant: float, exponent: float, tolerance: float, after: float) -> float:
    """Smallest integer at which constant size^exponent (1 + after / size) <= tolerance."""
    if not math.isfinite(constant) or exponent >= 0:
        return math.inf if constant > tolerance or math.isnan(constant) else 1
    low, high = 0.0, 40.0  # log size
    # not scipy's brentq: where no size up to e^40 is large enough nothing changes sign, and that is an answer
    for _ in range(60):
        middle = (low + high) / 2
        ratio = max(constant, 1e-300) / tolerance * (1 + after * math.exp(-middle))
        small = math.log(ratio) + exponent * middle <= 0
        low, high = (low, middle) if small else (middle, high)
    return math.inf if high == 40.0 else max(1, math.ceil(round(math.exp(high), 6)))


def fit_power(
    size,
    value,
    stderr,
    *,
    expected: float,
    offset: float = 0.0,
    freedom: float = math.inf,
    quantity: str = "error",
    axis: str = "width",
    at: float = math.nan,
) -> Rate:
    """The rate at which `value` falls with `size`; see the top of this file.

    Args:
        size, value, stderr: one per size; values signed, in units of the limit.
        offset: standard error of the limit, shared by all values.
        expected: the theory's exponent. freedom: degrees of freedom behind the standard errors.

    >>> n = np.array([64, 128, 256, 512])
    >>> found = fit_power(n, 3.2 / n, 0.05 / n, expected=-1.0)
    >>> round(found.exponent, 3), found.verdict, found.needed(0.05)[0]
    (-1.0, 'agrees', 64)
    """
    size, value, stderr = (np.asarray(a, dtype=float) for a in (size, value, stderr))
    good = np.isfinite(value) & np.isfinite(stderr)
    size, value, stderr = size[good], value[good], stderr[good]
    rate = functools.partial(Rate, quantity, axis, at, expected=expected)
    if len(size) == 0:
        unknown = dict(constant=math.nan, constant_low=-math.inf, constant_high=math.inf)
        return rate(math.nan, -math.inf, math.inf, verdict="cannot tell", used=expected, **unknown)
    # what is known exactly is compared by ratio, as on log-log paper
    stderr = np.maximum(stderr, np.maximum(1e-3 * np.abs(value), 1e-12))
    law, small = _Law(size, value, stderr, offset), bool(np.abs(value).max() <= SMALL)
    order, misfit = law.order(expected, small)
    fit = _exponent(misfit, len(size), order, freedom)
    off = abs(fit.exponent - expected)
    # else the law is not yet seen
    contradicted = order == 1 and small and off > TOLERANCE and not fit.sure[0] <= expected <= fit.sure[1]
    known_well = max(fit.high - fit.exponent, fit.exponent - fit.low) <= 2 * TOLERANCE
    agrees = known_well and (fit.low <= expected <= fit.high or off <= TOLERANCE)
    used = fit.exponent if contradicted else expected
    constants, after = law.constant(used, order, freedom)
    # nothing speaks for one exponent more than for another
    unbounded = math.isinf(fit.low) and math.isinf(fit.high)
    return rate(
        math.nan if unbounded else fit.exponent,
        fit.low,
        fit.high,
        verdict="disagrees" if contradicted else "agrees" if agrees else "cannot tell",
        used=used,
        constant=constants[0],
        constant_low=constants[1],
        constant_high=constants[2],
        after=after,
    )


class _Law:
    """c size^p (and the next order) by generalised least squares, for any p, with delta projected out."""

    def __init__(self, size: np.ndarray, value: np.ndarray, stderr: np.ndarray, offset: float):
        self.size, self.stderr = size, stderr
        self.unit = float(np.exp(np.log(size).mean()))
        # delta is one more column with one more row, its prior; projected out once, so that exact values
        # (stderr 0) lose no digits
        shared = np.append(1 / stderr, 1 / offset) if offset > 0 else np.zeros(len(size) + 1)
        self.shared = shared / max(float(np.linalg.norm(shared)), 1e-300)
        self.seen = self._without_shared(np.append(value / stderr, 0.0))

    def _without_shared(self, rows: np.ndarray) -> np.ndarray:
        rows = rows - (rows @ self.shared)[..., None] * self.shared
        return rows - (rows @ self.shared)[..., None] * self.shared  # twice, for the last digits

    def profile(self, p: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Misfit, constant, its inverse variance and the next order's constant at each exponent."""
        shape, after = (
            self._without_shared(
                np.pad((self.size / self.unit) ** q[:, None] / self.stderr, ((0, 0), (0, 1)))
            )
            for q in (p, p - 1)
        )
        length = np.linalg.norm(after, axis=1, keepdims=True)
        along = (order - 1) * after / length
        alone = shape - (shape * along).sum(1, keepdims=True) * along
        weight = np.square(alone).sum(1)
        constant = alone @ self.seen / weight
        rest = self.seen - constant[:, None] * shape
        left = (rest * along).sum(1)
        misfit = np.square(rest - left[:, None] * along).sum(1)
        return misfit, constant, weight, left / length[:, 0] * self.unit

    def order(self, expected: float, small: bool) -> tuple[int, np.ndarray]:
        """1, or 2 where four or more sizes do not lie on a power law; with the misfit over GRID."""
        misfit = self.profile(GRID, 1)[0]
        lacking = misfit.min() if small else self.profile(np.array([expected]), 1)[0][0]
        if len(self.size) > 3 and stats.chi2.sf(lacking, len(self.size) - 2) < 0.05:
            return 2, self.profile(GRID, 2)[0]
        return 1, misfit

    def constant(self, exponent: float, order: int, freedom: float) -> tuple[list[float], float]:
        """The constant with its interval at an exponent, and the next order relative to it."""
        misfit, constant, weight, after = self.profile(np.array([exponent]), order)
        left = len(self.size) - order
        widened = max(1.0, float(misfit[0]) / left) if left > 0 else 1.0
        half = _quantile(CONFIDENCE, left if widened > 1 else freedom) * math.sqrt(widened / weight[0])
        ends = (constant[0], constant[0] - half, constant[0] + half)
        constants = [float(c) * self.unit**-exponent for c in ends]
        return constants, float(after[0] / constant[0]) if order > 1 else 0.0


class _Exponent(NamedTuple):
    exponent: float
    low: float
    high: float
    sure: tuple[float, float]  # the interval at 99.9 %


def _exponent(misfit: np.ndarray, sizes: int, order: int, freedom: float) -> _Exponent:
    """The exponent of least misfit over GRID with its intervals; one size says nothing of it."""
    if sizes < 2:
        return _Exponent(math.nan, -math.inf, math.inf, (-math.inf, math.inf))
    best = int(np.argmin(misfit))
    left = sizes - 1 - order
    scale = max(1.0, float(misfit[best]) / left) if left > 0 else 1.0
    spread = left if scale > 1 else freedom
    low, high = _range(misfit, best, scale * _quantile(CONFIDENCE, spread) ** 2)
    return _Exponent(float(GRID[best]), low, high, _range(misfit, best, scale * _quantile(SURE, spread) ** 2))


def _quantile(level: float, freedom: float) -> float:
    return float(
        stats.norm.ppf(0.5 + level / 2) if math.isinf(freedom) else stats.t.ppf(0.5 + level / 2, freedom)
    )


def _range(misfit: np.ndarray, best: int, most: float) -> tuple[float, float]:
    """The stretch of the grid around the best where the misfit is at most `most` above it; unbounded where it
    meets the grid's end."""
    inside = misfit <= misfit[best] + most
    below, above = np.flatnonzero(~inside[:best]), np.flatnonzero(~inside[best:])
    low = float(GRID[below[-1] + 1]) if len(below) else -math.inf
    return low, float(GRID[best + above[0] - 1]) if len(above) else math.inf


def amplitudes(
    first: np.ndarray, second: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signed size of deviations along their common direction, each half measured along the direction of the
    other.

    A norm of a noisy deviation is never below its noise; a projection on a direction that is independent of
    it is unbiased.

    Args:
        first, second: (blocks, sizes, m): deviations of independent halves.
        weight: (sizes,) by which sizes vote on the direction.
    Returns:
        amplitude (sizes,), its standard error from the scatter of the blocks (nan for one block), and the
        direction of each half's measurement (2, m).

    >>> signal = np.array([[4.0, 0.0], [2.0, 0.0]])
    >>> amplitudes(np.stack([signal, signal]), np.stack([signal, signal]), np.ones(2))[0].tolist()
    [4.0, 2.0]
    """
    found, variance, directions = [], [], []
    for half, other in ((first, second), (second, first)):
        direction = (weight[:, None] * other.mean(0)).sum(0)
        directions.append(direction / max(float(np.linalg.norm(direction)), 1e-300))
        along = half @ directions[-1]
        found.append(along.mean(0))
        variance.append(
            along.var(0, ddof=1) / len(along) if len(along) > 1 else np.full(along.shape[1], np.nan)
        )
    # where noise sets the directions both halves measure one product <a, b>, where the signal does they are
    # independent
    alike = 1 - max(0.0, float(directions[0] @ directions[1]))
    return np.mean(found, 0), np.sqrt(np.mean(variance, 0) * (1 + alike) / 2), np.stack(directions)


def along(directions: np.ndarray, errors: np.ndarray) -> float:
    """Standard error of an amplitude from pointwise ones (2, m), at most: as if all points erred together."""
    return float(np.linalg.norm((np.abs(directions) * errors).sum(1)) / 2)
