"""Summarizes the samples of one session: the median, how well it is known, and when to stop sampling.

Samples of one process share its clocks, memory layout and neighbours. So no interval here says anything about
the next process; the gate handles that.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Summary

FEWEST_FOR_95_PERCENT = 6
"""The range of n samples covers the median with probability 1 − 2/2ⁿ: 93.8 % for five, 96.9 % for six."""

_MODE_SHARE = 0.15  # a mode holds at least this share of the samples
_MODE_GAP = 2.0  # least gap between two modes, in standard deviations within a mode
_MODE_DISTANCE = 7.0  # least distance of their medians, in standard deviations within a mode
_MODE_SAMPLES = 30  # fewer form gaps by chance
_WORTH_SAYING = 0.01  # modes that differ by less than 1 % of the median are not mentioned
_BATCH_SAMPLES = 5  # fewer do not give a reliable median of their batch
_BATCHES_Z = 3.09  # 99.9 % quantile of the normal distribution: confidence that batches differ
_KNOWN = 1e6  # from so many degrees of freedom on, a variance counts as known
_QUANTILE_TOLERANCE = 1e-12  # relative; one more step of Newton's iteration would change only rounding
_MOST_STEPS = 40  # of Newton's iteration: 31 from 1 degree of freedom to a tail of 1e-9
_FRACTION_TOLERANCE = 1e-15
_LONGEST_FRACTION = 20_000  # 800 terms suffice for a = b = 5e5, the largest that `_KNOWN` allows
_TINY = 1e-300  # stands for a term that is 0, by which Lentz's method would divide
_SAMPLES_AT_RESOLUTION = 100  # fewer may agree within the timer's resolution by chance
_MAD_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution → its standard deviation


def summarize(
    samples_ns: Sequence[float], *, resolution_ns: float = 0.0, batches: Sequence[int] = ()
) -> Summary:
    """Returns the median of one session's samples with a distribution-free 95 % confidence interval.

    The interval is the pair of order statistics whose ranks follow from the binomial distribution (Hollander,
    Wolfe & Chicken, *Nonparametric Statistical Methods*, 3rd ed., §3.6; David & Nagaraja, *Order Statistics*,
    §7.1). It is exact rather than interpolated, so it covers at least 95 %. With fewer than six samples no
    interval reaches 95 %: then it is the range, and a note says so. It is never narrower than ± half the
    timer's resolution. We never drop samples; if they have two modes, a note says so.

    The interval assumes independent samples. But samples of one batch may share something, such as the gaps
    between two kernels that were queued together. If batches differ by more than chance (Kruskal & Wallis
    1952), the interval also contains the median of each.

    Args:
        samples_ns: times of one session in nanoseconds, in the order taken.
        resolution_ns: the smallest difference that the timer can show.
        batches: number of samples in each batch, in order; empty if unknown.

    Raises:
        ValueError: there is no sample, or one is negative or not finite; the message has value and index.
    """
    samples = [float(sample) for sample in samples_ns]
    if not samples:
        raise ValueError("no samples: nothing was measured")
    for index, sample in enumerate(samples):
        if not (math.isfinite(sample) and sample >= 0):
            raise ValueError(f"sample {index} is {sample!r} ns: a time must be finite and not negative")
    ordered = sorted(samples)
    median, low, high = _median_interval(samples, ordered, batches, resolution_ns)
    notes = {About.NOISE: _few(len(ordered)), About.MODES: _bimodal(ordered, median, resolution_ns)}
    return Summary(
        median_ns=median,
        low_ns=max(0.0, min(low, median - resolution_ns / 2)),
        high_ns=max(high, median + resolution_ns / 2),
        n=len(ordered),
        notes=tuple(Note(text, about) for about, text in notes.items() if text is not None),
    )


@dataclass(frozen=True)
class StoppingRule:
    """When a session has sampled enough.

    Attributes:
        target_half_width: half the median's 95 % interval, relative to the median; 0.0025 is ±0.25 %.
        min_samples: never stop before so many, even after the time budget.
        max_samples: always stop here.
        budget_s: time that sampling may take, in seconds.
    """

    target_half_width: float = 0.0025
    min_samples: int = 10
    max_samples: int = 500
    budget_s: float = 0.1

    def decide(
        self,
        samples_ns: Sequence[float],
        elapsed_s: float,
        *,
        resolution_ns: float = 0.0,
        batches: Sequence[int] = (),
    ) -> str | None:
        """Returns why to stop sampling now, or None to go on. Costs two sorts of the samples.

        More samples do not narrow an interval that is within the timer's resolution.
        """
        n = len(samples_ns)
        if n >= self.max_samples:
            return f"{n} samples"
        if n < self.min_samples:
            return None
        if n >= FEWEST_FOR_95_PERCENT:
            ordered = sorted(samples_ns)
            median, low, high = _median_interval(samples_ns, ordered, batches, resolution_ns)
            if median > 0 and (high - low) / 2 <= self.target_half_width * median:
                return f"median known to ±{100 * self.target_half_width:g} %"
            if resolution_ns and n >= _SAMPLES_AT_RESOLUTION and high - low <= resolution_ns:
                return f"median known to the timer's resolution of {resolution_ns:g} ns"
        if elapsed_s >= self.budget_s:
            return f"time budget of {self.budget_s:g} s ended"
        return None


def quantiles(values: Sequence[float], fractions: Sequence[float]) -> tuple[float, ...]:
    """Returns sample quantiles with linear interpolation: type 7 of Hyndman & Fan (1996), NumPy's default."""
    ordered = sorted(values)
    places = [fraction * (len(ordered) - 1) for fraction in fractions]
    around = [(ordered[math.floor(place)], ordered[math.ceil(place)], place % 1) for place in places]
    return tuple(below * (1 - share) + above * share for below, above, share in around)


def sample_variance(values: Sequence[float]) -> float:
    """Returns the variance of two values or more; `statistics.variance` adds exact fractions, slowly."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


@functools.lru_cache(maxsize=4096)
def student_t(probability: float, dof: float) -> float:
    """Returns the quantile of Student's t with `dof` degrees of freedom, for 0.5 ≤ probability < 1.

    The distribution is an incomplete beta function (Abramowitz & Stegun, 26.7.1), so we need no SciPy. It is
    concave where t ≥ 0, so Newton's iteration rises to the quantile from below. It starts from three terms of
    an expansion about the normal quantile (26.7.5). `dof` need not be whole.
    """
    if not (0.5 <= probability < 1 and dof >= 1):
        raise ValueError(f"0.5 ≤ probability < 1 and dof ≥ 1 must hold, got {probability!r} and {dof!r}")
    z = statistics.NormalDist().inv_cdf(probability)
    if dof >= _KNOWN:
        return z
    t = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    log_peak = math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2) - math.log(dof * math.pi) / 2
    for _ in range(_MOST_STEPS):
        density = math.exp(log_peak - (dof + 1) / 2 * math.log1p(t * t / dof))
        cdf = 1 - _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t)) / 2
        step = (probability - cdf) / density
        t += step
        if abs(step) <= _QUANTILE_TOLERANCE * t:
            break
    return t


def fisher_cdf(ratio: float, dof: float, below: float) -> float:
    """Returns P(F ≤ ratio) for a ratio of variances with `dof` degrees of freedom over one with `below`.

    It is an incomplete beta function (Abramowitz & Stegun, 26.6.2).
    """
    if ratio <= 0:
        return 0.0
    below = min(below, _KNOWN)
    return _incomplete_beta(dof / 2, below / 2, dof * ratio / (dof * ratio + below))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Returns the regularized incomplete beta function I_x(a, b), as a continued fraction (DLMF 8.17.22)."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the other tail's fraction converges faster (DLMF 8.17.4)
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Returns 1 + d₁/(1 + d₂/(1 + …)), with the coefficients of DLMF 8.17.22, by Lentz's method (1976)."""
    total = upper = 1.0
    lower = 0.0
    for number in range(1, _LONGEST_FRACTION):
        m = number // 2
        if number % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1 / ((1 + coefficient * lower) or _TINY)
        upper = (1 + coefficient / upper) or _TINY
        total *= upper * lower
        if abs(upper * lower - 1) < _FRACTION_TOLERANCE:
            break
    return total


def _median_interval(
    samples: Sequence[float], ordered: Sequence[float], batches: Sequence[int], resolution_ns: float
) -> tuple[float, float, float]:
    """Returns median, low and high of the 95 % interval, widened to contain batches that differ."""
    middles, n = _differing(samples, batches, resolution_ns), len(ordered)
    rank = interval_rank(n)
    return statistics.median(ordered), min([ordered[rank - 1], *middles]), max([ordered[n - rank], *middles])


@functools.lru_cache(maxsize=4096)
def interval_rank(n: int) -> int:
    """Returns the largest rank r for which [x₍ᵣ₎, x₍ₙ₊₁₋ᵣ₎] covers the median with at least 95 %, else 1."""
    rank = min(n, int((n + 1) / 2 - 0.98 * math.sqrt(n)) + 2)  # from the normal distribution, rounded up
    # P(B < rank) for B ~ Binomial(n, ½), by Abramowitz & Stegun, 26.5.24
    while rank > 1 and _incomplete_beta(n - rank + 1, rank, 0.5) > 0.025:
        rank -= 1
    return rank


def _differing(samples: Sequence[float], batches: Sequence[int], resolution_ns: float) -> tuple[float, ...]:
    """Returns the medians of the batches, if these differ by more than chance and the timer's resolution."""
    parts, start = [], 0
    for size in batches:
        if size >= _BATCH_SAMPLES:
            parts.append(samples[start : start + size])
        start += size
    if len(parts) < 2:
        return ()
    middles = [statistics.median(part) for part in parts]
    if max(middles) - min(middles) <= resolution_ns:
        return ()
    return tuple(middles) if _kruskal_wallis(parts) > _chi_square_999(len(parts) - 1) else ()


def _chi_square_999(dof: int) -> float:
    """Approximates the 99.9 % quantile of χ², after Wilson & Hilferty (1931)."""
    return dof * (1 - 2 / (9 * dof) + _BATCHES_Z * math.sqrt(2 / (9 * dof))) ** 3


def _kruskal_wallis(parts: Sequence[Sequence[float]]) -> float:
    """Returns the statistic H, corrected for ties: large if the ranks of the parts differ."""
    tagged = sorted((sample, number) for number, part in enumerate(parts) for sample in part)
    n, ranks, tied, first = len(tagged), [0.0] * len(parts), 0, 0
    for _, equal in itertools.groupby(tagged, key=lambda pair: pair[0]):
        numbers = [number for _, number in equal]
        for number in numbers:
            ranks[number] += first + (len(numbers) + 1) / 2
        tied += len(numbers) ** 3 - len(numbers)
        first += len(numbers)
    h = sum(total**2 / len(part) for total, part in zip(ranks, parts, strict=True))
    varied = 1 - tied / (n**3 - n)
    return (12 / (n * (n + 1)) * h - 3 * (n + 1)) / varied if varied > 0 else 0.0


def _few(n: int) -> str | None:
    if n >= FEWEST_FOR_95_PERCENT:
        return None
    if n == 1:
        return "only 1 sample: it does not say how far samples spread"
    return (
        f"only {n} samples: the interval is their range, which contains the median in less than 95 % of cases"
    )


def _bimodal(ordered: Sequence[float], median: float, resolution_ns: float) -> str | None:
    """Splits the samples at their largest gap and checks whether each side is a mode.

    Each side must hold at least 15 % of the samples. The gap and the distance of the medians must be wide
    compared with the spread inside (estimated from the median absolute deviation). The gap must exceed the
    timer's ticks and 1 % of the median. From 30 samples on, this calls under 1 % of sets of normal, uniform
    or exponential samples bimodal, and about 90 % of sets with modes ten standard deviations apart.
    """
    n = len(ordered)
    if n < _MODE_SAMPLES:
        return None
    fast, slow = at_widest_gap(ordered)
    spread = max(_sigma(fast), _sigma(slow))
    if slow[0] - fast[-1] <= max(_MODE_GAP * spread, 2 * resolution_ns, _WORTH_SAYING * median):
        return None
    if statistics.median(slow) - statistics.median(fast) <= _MODE_DISTANCE * spread:
        return None
    below = 100 * (1 - statistics.median(fast) / statistics.median(slow))
    return f"bimodal: {100 * len(fast) / n:.0f} % of the samples gather {below:.3g} % below the others"


def at_widest_gap(ordered: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Splits samples at their widest gap that leaves to both sides as many as a mode has."""
    margin = math.ceil(_MODE_SHARE * len(ordered))
    places = range(margin, len(ordered) - margin + 1)
    place = max(places, key=lambda place: (ordered[place] - ordered[place - 1], place))
    return ordered[:place], ordered[place:]


def _sigma(ordered: Sequence[float]) -> float:
    """Estimates the standard deviation from the median absolute deviation."""
    centre = statistics.median(ordered)
    return _MAD_TO_SIGMA * statistics.median(abs(sample - centre) for sample in ordered)
