"""Tests how samples of one session give median, interval and warnings, and when sampling stops."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.measure.statistics import (
    StoppingRule,
    _chi_square_999,
    _kruskal_wallis,
    fisher_cdf,
    quantiles,
    sample_variance,
    student_t,
    summarize,
)
from pytest_gpukern.values.note import About, Note

times = st.floats(min_value=0, max_value=1e12, allow_nan=False)


def warned(summary, word):
    return any(word in note.text for note in summary.notes)


def normal(n, mean=1000.0, sigma=10.0, seed=1):
    rng = random.Random(seed)
    return [rng.gauss(mean, sigma) for _ in range(n)]


@given(st.lists(times, min_size=1, max_size=60), st.floats(0, 1e6))
def test_median_lies_in_its_interval_which_is_no_narrower_than_the_timers_tick(samples, resolution):
    summary = summarize(samples, resolution_ns=resolution)
    assert summary.median_ns == pytest.approx(statistics.median(samples))
    assert 0 <= summary.low_ns <= summary.median_ns - min(summary.median_ns, resolution / 2)
    assert summary.high_ns >= summary.median_ns + resolution / 2
    alike = summarize([1000.0] * 6, resolution_ns=32)
    assert (alike.low_ns, alike.high_ns) == (984, 1016)
    assert summary.n == len(samples)


def test_interval_has_the_ranks_that_counting_gives():
    """Of n fair coins, fewer than r are heads in 2.5 % of all cases at most; no larger rank has that."""
    for n in range(6, 400):
        tails = itertools.accumulate(math.comb(n, heads) for heads in range(n))
        most = sum(1 for _ in itertools.takewhile(lambda tail, all_=2**n: 40 * tail <= all_, tails))
        summary = summarize(range(1, n + 1))
        assert (summary.low_ns, summary.high_ns) == (most, n + 1 - most), n


@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_samples_give_their_range_and_a_warning(n):
    summary = summarize([3.0, 1.0, 2.0, 5.0, 4.0][:n])
    samples = [3.0, 1.0, 2.0, 5.0, 4.0][:n]
    assert (summary.low_ns, summary.high_ns) == (min(samples), max(samples))
    assert warned(summary, f"only {n} samples: the interval is their range" if n > 1 else "only 1 sample: ")
    assert not warned(summarize([1.0] * 6), "only")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_impossible_sample_is_refused_with_value_and_index(bad):
    with pytest.raises(ValueError, match=rf"sample 2 is {bad!r} ns"):
        summarize([1.0, 2.0, bad])
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


def apart(fast, distance):
    """Samples, and between them their mirror images, which begin so much above the slowest."""
    end = 2 * max(fast) + distance
    return [ns for time in fast for ns in (time, end - time)]


TENS = [990.0, 1000.0, 1010.0] * 10
TAIL = [990.0, 1000.0, 1010.0] * 8 + [1020.0, 1030.0, 1040.0, 1050.0, 1060.0, 1070.0]


def modes(share, below):
    return f"bimodal: {share} % of the samples gather {below} % below the others"


def shuffled(usual, odd, odd_ns):
    """So many samples of 1000 ns, and so many of another time."""
    return random.Random(3).sample([1000.0] * usual + [odd_ns] * odd, usual + odd)


@pytest.mark.parametrize(
    ("samples", "resolution_ns", "notes"),
    [
        # two modes have 15 % of 30 samples at least, and lie apart by 1 % of the median and two ticks
        (shuffled(25, 5, 1100.0), 0, [modes(83, 9.09)]),
        (shuffled(26, 4, 1100.0), 0, []),
        (shuffled(23, 6, 1100.0), 0, []),
        (shuffled(70, 30, 1010.0), 0, []),
        (shuffled(70, 30, 1010.1), 0, [modes(70, 1)]),
        (shuffled(50, 50, 1064.0), 32, []),
        (shuffled(50, 50, 1064.0), 31.9, [modes(50, 6.02)]),
        # and by 2 standard deviations of 14.8 ns, their medians by 7
        (apart(TENS, 83.7), 0, []),
        (apart(TENS, 83.9), 0, [modes(50, 9.41)]),
        (apart(TAIL, 29.6), 0, []),
        (apart(TAIL, 29.7), 0, [modes(50, 14.5)]),
        ([0.0] * 50, 0, []),
    ],
)
def test_modes_are_told_from_a_size_on(samples, resolution_ns, notes):
    summary = summarize(samples, resolution_ns=resolution_ns)
    assert list(summary.notes) == [Note(text, About.MODES) for text in notes]
    assert summary.n == len(samples), "odd samples stay in"
    smaller = summarize([ns / 2**30 for ns in samples], resolution_ns=resolution_ns / 2**30)
    assert smaller.notes == summary.notes, "no size is absolute"


DRAWS = {
    "gauss": lambda rng: rng.gauss(1000, 30),
    "uniform": lambda rng: rng.uniform(900, 1100),
    "expovariate": lambda rng: 1000 + 50 * rng.expovariate(1),
    "ticks": lambda rng: 1000 + 32 * (rng.random() < 0.5) + 32 * (rng.random() < 0.1),
}


@pytest.mark.parametrize("draw", ["gauss", "uniform", "expovariate"])
def test_one_mode_is_not_called_two(draw):
    rng = random.Random(5)
    samples = ([DRAWS[draw](rng) for _ in range(50)] for _ in range(100))
    assert sum(warned(summarize(each), "bimodal") for each in samples) <= 1


# batches


def in_batches(*batches, **arguments):
    """The summary of samples that were taken in these batches."""
    samples = list(itertools.chain(*batches))
    return summarize(samples, batches=[len(batch) for batch in batches], **arguments)


def of_all(*batches, **arguments):
    """The same, with nothing known of the batches."""
    return summarize(list(itertools.chain(*batches)), **arguments)


@pytest.mark.parametrize("sizes", [(5,) * 40, (8, 8), (3, 17, 14, 64, 64), (50,) * 10], ids=str)
@pytest.mark.parametrize("draw", DRAWS)
def test_batches_of_one_distribution_seldom_widen_the_interval_or_warn(draw, sizes):
    rng = random.Random(7)
    alarms = 0
    for _ in range(150):
        batches = [[DRAWS[draw](rng) for _ in range(size)] for size in sizes]
        alarms += in_batches(*batches) != of_all(*batches)
    assert alarms <= 1


def test_the_interval_contains_the_median_of_each_batch_where_they_differ():
    batches = [normal(20, mean, seed=seed) for seed, mean in enumerate((1000, 1000, 960, 1000, 1050))]
    summary, plain = in_batches(*batches), of_all(*batches)
    middles = [statistics.median(batch) for batch in batches]
    assert min(middles) < plain.low_ns
    assert plain.high_ns < max(middles)
    assert (summary.low_ns, summary.high_ns) == (min(middles), max(middles))
    assert summary.median_ns == plain.median_ns
    assert summary.notes == plain.notes == ()


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=30), min_size=1, max_size=6))
def test_batches_widen_the_interval_by_their_medians_or_leave_all_as_it_is(batches):
    summary, plain = in_batches(*batches), of_all(*batches)
    if summary != plain:
        middles = [statistics.median(batch) for batch in batches if len(batch) >= 5]
        assert summary.low_ns == min(plain.low_ns, *middles)
        assert summary.high_ns == max(plain.high_ns, *middles)


@pytest.mark.parametrize(("size", "looked_at"), [(4, False), (5, True)])
def test_batches_under_five_samples_are_not_looked_at(size, looked_at):
    batches = [[1000.0] * size, [1000.0] * size, [1100.0] * size] * 10
    assert (in_batches(*batches) != of_all(*batches)) is looked_at


@pytest.mark.parametrize(("size", "differ"), [(6, False), (8, True)])
def test_two_batches_wholly_apart_may_be_chance_with_six_samples_each_and_not_with_eight(size, differ):
    """Two of the 924 ways to divide twelve samples into two batches, and of the 12 870 for sixteen."""
    between = [[1050.0]] * 40  # too short to be looked at
    batches = range(1000, 1000 + size), range(1100, 1100 + size), *between
    assert (in_batches(*batches) != of_all(*batches)) is differ


@pytest.mark.parametrize(("resolution_ns", "high_ns"), [(31.0, 1032.0), (32.0, 1016.0)])
def test_what_the_timer_cannot_tell_apart_is_no_difference_between_batches(resolution_ns, high_ns):
    batches = [1000.0] * 20, [1000.0] * 20, [1032.0] * 20
    summary = in_batches(*batches, resolution_ns=resolution_ns)
    assert summary.high_ns == high_ns


def test_the_statistic_is_corrected_for_ties():
    """The pH of four ponds: Zar, *Biostatistical Analysis* (5th ed. 2010), chapter 10; uncorrected 11.876."""
    ponds = (
        [7.68, 7.69, 7.70, 7.70, 7.72, 7.73, 7.73, 7.76],
        [7.71, 7.73, 7.74, 7.74, 7.78, 7.78, 7.80, 7.81],
        [7.74, 7.75, 7.77, 7.78, 7.80, 7.81, 7.84],
        [7.71, 7.71, 7.74, 7.79, 7.81, 7.85, 7.87, 7.91],
    )
    assert _kruskal_wallis(ponds) == pytest.approx(11.943, abs=1e-3)
    assert _kruskal_wallis([[1, 1], [2, 2]]) == pytest.approx(3), "2.4 / (1 - 12/60)"
    assert _kruskal_wallis([[1], [1]]) == 0


@pytest.mark.parametrize(
    ("dof", "quantile", "within"), [(1, 10.83, 0.031), (2, 13.82, 0.023), (5, 20.52, 0.02), (10, 29.59, 0.02)]
)
def test_what_chance_exceeds_once_in_a_thousand_agrees_with_the_tables_and_is_no_smaller(
    dof, quantile, within
):
    assert quantile <= _chi_square_999(dof) <= (1 + within) * quantile


def test_sampling_goes_on_while_the_medians_of_batches_are_farther_apart_than_wanted():
    rule = StoppingRule(target_half_width=0.0025, budget_s=0.5)

    def decided(shift, elapsed_s=0.1, **arguments):
        samples = [*normal(60, sigma=0.2), *normal(20, 1000 + shift, sigma=0.2, seed=2)]
        return rule.decide(samples, elapsed_s, **arguments)

    batches = [20] * 4
    assert decided(4, batches=batches) == "median known to ±0.25 %"
    assert decided(6, batches=batches) is None
    assert decided(6) == "median known to ±0.25 %", "where nothing is known of batches"
    assert decided(6, batches=batches, resolution_ns=8) == "median known to ±0.25 %"
    assert decided(6, batches=batches, elapsed_s=0.5) == "time budget of 0.5 s ended"


def test_sampling_stops_with_its_reason_in_words():
    rule = StoppingRule(target_half_width=0.0025, min_samples=10, max_samples=50, budget_s=0.5)
    noisy = normal(40, sigma=100)
    assert rule.decide(normal(40, sigma=1), 0.1) == "median known to ±0.25 %"
    assert rule.decide(noisy, 0.1) is None
    assert rule.decide(noisy, 0.5) == "time budget of 0.5 s ended"
    assert rule.decide(normal(50, sigma=100), 0.1) == "50 samples"
    assert rule.decide([1.0] * 9, 99.0) is None, "too few, whatever the time"


TICK_NS = 32.0


def ticks(n, steps=(0, 1)):
    """Readings of a coarse timer: 1000 ns and so many ticks more, in turn."""
    return [1000.0 + TICK_NS * steps[i % len(steps)] for i in range(n)]


def test_sampling_ends_where_the_median_is_known_to_the_timers_resolution():
    """A tick is 3 % of these times, so ±0.25 % is out of reach however many samples there are."""
    rule = StoppingRule(budget_s=9.0)
    assert (
        rule.decide(ticks(100), 0.1, resolution_ns=TICK_NS)
        == "median known to the timer's resolution of 32 ns"
    )
    assert rule.decide(ticks(99), 0.1, resolution_ns=TICK_NS) is None, "they may agree by chance at first"
    assert rule.decide(ticks(100), 0.1) is None, "a timer that claims no resolution"
    assert rule.decide(ticks(100), 0.1, resolution_ns=TICK_NS - 1) is None, "the interval is a tick wide"


def test_precision_is_never_claimed_for_fewer_than_six_samples_or_for_zero():
    rule = StoppingRule(min_samples=1)
    assert rule.decide([1.0] * 5, 0.0) is None
    assert rule.decide([1.0] * 6, 0.0) is not None
    assert rule.decide([0.0] * 100, 0.0) is None


@pytest.mark.parametrize(
    ("probability", "dof", "t"),
    [
        *((0.95, dof, t) for dof, t in ((1, 6.3138), (2, 2.92), (3, 2.3534), (4, 2.1318), (10, 1.8125))),
        *((0.95, 10000, 1.6450), (0.975, 5, 2.5706), (0.975, math.inf, 1.96), (0.975, 1e15, 1.96)),
        (0.5, 3.3, 0.0),
    ],
)
def test_students_t_agrees_with_the_tables(probability, dof, t):
    assert student_t(probability, dof) == pytest.approx(t, abs=5e-5)


@pytest.mark.parametrize("dof", [2.5, 4.5, 17.25])
def test_students_t_agrees_with_its_density_where_degrees_of_freedom_are_not_whole(dof):
    """The integral from 0 to the 95 % quantile by Simpson's rule is 0.45."""
    steps, end = 1000, student_t(0.95, dof)
    scale = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
    heights = [scale * (1 + (end * i / steps) ** 2 / dof) ** (-(dof + 1) / 2) for i in range(steps + 1)]
    weighted = heights[0] + heights[-1] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2])
    assert weighted * end / steps / 3 == pytest.approx(0.45, abs=1e-9)


@pytest.mark.parametrize(
    ("quantile", "dof", "below", "probability"),
    [
        (6.3882, 4, 4, 0.95),
        (161.4476, 1, 1, 0.95),
        (2.3719, 4, 1e9, 0.95),
        (1 / 15.2069, 4, 6, 0.01),
        (0, 4, 6, 0),
    ],
)
def test_fishers_distribution_agrees_with_the_tables(quantile, dof, below, probability):
    assert fisher_cdf(quantile, dof, below) == pytest.approx(probability, abs=1e-5)


@given(st.lists(times, min_size=2, max_size=9))
def test_the_variance_is_that_of_the_standard_library(values):
    assert sample_variance(values) == pytest.approx(
        statistics.variance(values), rel=1e-9, abs=1e-12 * max(values) ** 2
    )


def test_quantiles_agree_with_numpy():
    np = pytest.importorskip("numpy")
    samples, fractions = normal(37), (0.05, 0.25, 0.5, 0.75, 0.95, 0, 1)
    assert quantiles(samples, fractions) == pytest.approx(list(np.quantile(samples, fractions)))
    assert quantiles([7.0], (0.05, 0.95)) == (7.0, 7.0)
