"""Defines π from random points: how many of n uniform points of the unit square lie in the quarter circle.

There is no reference to compare with: a count h of n points is right when it looks like a draw from the
binomial distribution with p = π/4. `check_counts` judges the counts of several seeds together, or a variant
that returns n·π/4 rounded would always pass. 10¹⁰ points need 64-bit counters; 1 000 003 is a prime, which no
number of threads divides.
"""

import math

from pytest_gpukern import Axis, Problem

P = math.pi / 4
LEAST_N = 1000
"""Below this the normal approximation behind the bounds is too coarse to judge anything."""

FALSE_ALARM = 1e-9
"""Probability with which each of the four tests below rejects the counts of a correct variant, per case."""

Z = 6.5
"""Bound on |h − n·p| / σ: P(|Z| > 6.5) = 8.0e-11 a run, 6.4e-10 for eight, by the normal approximation.

The exact binomial, skewed to the left, has 1.9e-10 a run at n = 1009 and 8.0e-11 from n = 10⁶ on.
"""


def check_counts(runs):
    """Says what contradicts n, p = π/4 and independent seeds, or None.

    Beside the range there are four tests: distance from the mean, spread over the seeds on either side, and
    number of different counts. Each rejects a correct variant with a probability of about `FALSE_ALARM` at
    most, so 4e-9 a case, and below 1e-6 for a run of two hundred cases.
    """
    n = runs[0].point["n"]
    if n < LEAST_N:
        return f"n={n}: a count of so few points proves nothing; use n ≥ {LEAST_N}"
    mean, sigma = n * P, math.sqrt(n * P * (1 - P))
    counts = [int(run.outputs["hits"][0]) for run in runs]
    scores = [(count - mean) / sigma for count in counts]
    for run, count, score in zip(runs, counts, scores, strict=True):
        where = f"seed {run.inputs['seed']}: {count} hits of {n}"
        if not 0 <= count <= n:
            return f"{where}, outside 0 … n"
        if abs(score) > Z:
            return f"{where}, {score:+.1f} standard deviations from n·π/4; at most {Z} allowed"
    spread = sum(score * score for score in scores)
    low, high = chi_square_bounds(len(runs), FALSE_ALARM)
    if not low <= spread <= high:
        size = "small" if spread < low else "large"
        return (
            f"the counts of {len(runs)} seeds spread too {'little' if spread < low else 'widely'}: "
            f"Σ((h − n·π/4)/σ)² = {spread:.3g} is too {size}, a binomial stays within {low:.3g} … {high:.3g}"
        )
    needed = least_distinct(len(runs), sigma, FALSE_ALARM)
    if len(set(counts)) < needed:
        return f"{len(set(counts))} different counts from {len(runs)} seeds; at least {needed} expected"
    return None


def chi_square_below(x, degrees):
    """P(χ² ≤ x): the series of the lower incomplete gamma function, DLMF 8.7.1 (https://dlmf.nist.gov/8.7)."""
    a, half = degrees / 2, x / 2
    if half <= 0:
        return 0.0
    term = total = 1 / a
    k = a
    while term > total * 1e-17:
        k += 1
        term *= half / k
        total += term
    return total * math.exp(a * math.log(half) - half - math.lgamma(a))


def chi_square_bounds(degrees, tail):
    """The two values outside which χ² lies with probability `tail` each, by bisection.

    For eight degrees and 1e-9: 0.0250 and 58.3.
    """

    def quantile(probability):
        low, high = 0.0, 100.0 + 10 * degrees
        for _ in range(200):
            middle = (low + high) / 2
            if chi_square_below(middle, degrees) < probability:
                low = middle
            else:
                high = middle
        return low

    return quantile(tail), quantile(1 - tail)


def least_distinct(runs, sigma, false_alarm):
    """The fewest different counts that `runs` independent binomials give, but for `false_alarm`.

    Counts with at most d different values fall into d groups of equal ones: S(runs, d) groupings (Stirling
    numbers of the second kind), each of a probability below q^(runs − d), with q = 1/(σ√(2π)) the largest
    probability of a single count.
    """
    q = 1 / (sigma * math.sqrt(2 * math.pi))
    needed = 1
    for d in range(1, runs):
        groupings = sum((-1) ** i * math.comb(d, i) * (d - i) ** runs for i in range(d)) // math.factorial(d)
        if groupings * q ** (runs - d) > false_alarm:
            break
        needed = d + 1
    return needed


monte_carlo_pi = Problem(
    "monte_carlo_pi",
    version=1,
    axes={"n": Axis(smoke=(1009,), full=(10**4, 33_000_000, 10**9, 10**10), awkward=(1_000_003,))},
    # 32 bits, since that is what the smallest seeds of the libraries hold.
    make_inputs=lambda rng: {"seed": int(rng.integers(1 << 32))},
    outputs=lambda: {"hits": ((1,), "int64")},
    check=check_counts,
    scopes=("kernel",),
    speedup_against="host.prange",
    package=__package__,
)
