"""Checks verdicts and their reasons: recorded sessions and a new measurement in, a verdict out.

Where a case has a known answer, its quantiles are those of printed tables.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_times import BASE_NS, HERE, KNOWN, S, around, beside, measured, new, on, recorded, spread_by
from msgspec import structs

from pytest_gpukern.gate.comparability import of_one_choice
from pytest_gpukern.gate.judge import (
    FALSE_ALARMS,
    Basis,
    confirm,
    fails,
    judge,
    undecidable,
    unless_same_code,
)
from pytest_gpukern.gate.spread import SharedSpread
from pytest_gpukern.measure.host_load import BUSY_HOST
from pytest_gpukern.values.failure_table import FAILURES
from pytest_gpukern.values.result import Choice, Verdict
from pytest_gpukern.values.timer_table import TIMERS
from pytest_gpukern.values.verdict_table import VerdictKind

NEW, SAME, FASTER = VerdictKind.NEW, VerdictKind.SAME, VerdictKind.FASTER
SLOWER, UNDECIDED, SAME_CODE = VerdictKind.SLOWER, VerdictKind.UNDECIDED, VerdictKind.SAME_CODE
UNCOMPARABLE, INVALID = VerdictKind.UNCOMPARABLE, VerdictKind.INVALID

T95 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 8: 1.860, math.inf: 1.645}
"""Degrees of freedom → one-sided quantile of Student's t."""

CALM = around(0, 0.1, -0.1, 0.05, -0.05)


def basis_of(sessions, threshold=0.02, **more):
    return Basis(sessions, more.pop("conditions", HERE), threshold, **more)


def verdict(fresh, sessions, jitter_ns=0.0, **more):
    fresh = [structs.replace(each, jitter_ns=jitter_ns) for each in fresh]
    return judge(fresh, basis_of(sessions, **more))


def shared_by(s0, d0=20.0, **devices):
    return SharedSpread(s0, d0, cases=30, **devices)


QUIET = shared_by(0.002)


# what the device did decides where the time does not


@pytest.mark.parametrize("suspected", [True, False])
@pytest.mark.parametrize(
    ("kind", "ratio", "other_card", "of_all", "as_far_as_seen"),
    [
        (UNDECIDED, 1.0099, False, SAME_CODE, SAME_CODE),
        (UNDECIDED, 1.011, False, SAME_CODE, UNDECIDED),
        (UNDECIDED, 0.989, False, SAME_CODE, UNDECIDED),
        (UNDECIDED, None, False, SAME_CODE, UNDECIDED),
        (UNDECIDED, 1.0, True, SAME_CODE, UNDECIDED),
        (SLOWER, 1.5, True, SAME_CODE, SLOWER),
        (SLOWER, 1.5, False, SLOWER, SLOWER),
        (FASTER, 0.5, True, FASTER, FASTER),
        (SAME, 1.0, True, SAME, SAME),
        (INVALID, 1.0, True, INVALID, INVALID),
    ],
)
def test_the_same_code_decides_only_what_the_time_does_not(
    kind, ratio, other_card, of_all, as_far_as_seen, suspected
):
    found = Verdict(kind, "by its time", ratio, ratio, threshold=0.02, other_card=other_card)
    found = structs.replace(found, suspected=suspected, unconfirmed=kind is UNDECIDED)
    by_files = kind if kind is SLOWER else of_all  # which explain less
    for known, expected in (
        ({}, of_all),
        ({"explains": 0.49}, by_files),
        ({"all_known": False}, as_far_as_seen),
    ):
        decided = unless_same_code(found, **{"all_known": True, **known})
        assert decided == found or not decided.unconfirmed
        assert (decided.kind, decided.ratio, decided.other_card) == (expected, ratio, other_card)
        assert decided == found or (not decided.suspected and decided.reason.endswith(": by its time"))


# what an interval, a verdict and its reason follow from


@pytest.mark.parametrize(
    ("percent", "kind", "numbers", "words", "settling"),
    [
        (20, SLOWER, "+20.0 % (90 %: +18.6 … +21.4 %)", "threshold", 0),
        (2.5, SLOWER, "+2.5 % (90 %: +1.3 … +3.7 %)", "threshold", 0),
        (1.5, UNDECIDED, "+1.5 % (90 %: +0.35 … +2.7 %)", "slower, but perhaps by less than 2 %", 9),
        (1, UNDECIDED, "+1.0 % (90 %: −0.14 … +2.2 %)", "no significant change, but +2.2 % is possible", 2),
        (0, SAME, "+0.0 % (90 %: −1.1 … +1.1 %)", "inside", 0),
        (-1.1, UNDECIDED, "−1.1 % (90 %: −2.2 … +0.03 %)", "not slower by 2 %, but −2.2 % is possible", 3),
        (-1.5, UNDECIDED, "−1.5 % (90 %: −2.6 … −0.37 %)", "faster, but perhaps by less than 2 %", 9),
        (-2.5, FASTER, "−2.5 % (90 %: −3.6 … −1.4 %)", "threshold", 0),
        (-20, FASTER, "−20.0 % (90 %: −20.9 … −19.1 %)", "threshold", 0),
    ],
)
def test_a_verdict_and_its_reason_where_the_spread_is_known(percent, kind, numbers, words, settling):
    """Sessions vary by 0.6 %, so one and the mean of three by 0.6 %·√(1 + 1/3)."""
    found = verdict(new(percent), spread_by(), shared=KNOWN)
    reason = f"{numbers}, {words} 2 %".replace("inside ", "inside ±")
    if settling:
        settling = f"{max(3, settling)} recorded and {settling} fresh sessions would settle it"
        reason = f"{numbers}: {words}; slowdowns from +4.2 % are caught (95 %); {settling}"
    assert (found.kind, found.reason) == (kind, reason)
    assert (found.suspected, found.gates) == (kind is SLOWER, True)
    assert (found.sessions, found.threshold) == (1, 0.02)
    assert found.ratio == pytest.approx(1 + percent / 100)
    error = S * math.sqrt(4 / 3)
    assert math.log(found.ratio_high / found.ratio) == pytest.approx(1.645 * error, rel=1e-3)
    assert math.log(found.ratio / found.ratio_low) == pytest.approx(1.645 * error, rel=1e-3)
    caught = math.log(1.02) + 2 * 1.960 * S * math.sqrt(1 / 2 + 1 / 3)
    assert math.log(found.detectable) == pytest.approx(caught, rel=1e-3)


FRESH, TWO = new(0), [measured(BASE_NS * math.exp(log)) for log in (0.01, -0.01)]
S2 = 0.01**2
OWN, THEIRS = shared_by(0.001), shared_by(0.007, 4.0)
JITTER = {"shared": shared_by(0.01, 4.0), "jitter_ns": 500.0}


@pytest.mark.parametrize(
    ("fresh", "sessions", "more", "variance", "dof"),
    [
        (FRESH, spread_by(0.01), {"shared": OWN}, S2 * 4 / 3, 2),
        (FRESH, spread_by(0.01), {"shared": THEIRS}, (4 * 0.007**2 + 2 * S2) / 6 * 4 / 3, 6),
        (FRESH, around(0), {"shared": shared_by(0.01, 3.0)}, S2 * 2, 3),
        (FRESH, around(0), {}, 2 * TIMERS["event"].prior_spread ** 2, 4),
        # several fresh sessions: their own spread counts as well
        (FRESH * 2, spread_by(0.01), {"shared": OWN}, 2 / 3 * S2 * (1 / 2 + 1 / 3), 3),
        (TWO, spread_by(0.01), {"shared": OWN}, 4 / 3 * S2 * (1 / 2 + 1 / 3), 3),
        # samples that are noisier than the recorded ones', and calmer: 1.96 standard errors to either side
        ([measured(half=0.0196)], spread_by(0.01, half=0.0098), {"shared": OWN}, S2 * (0.75 + 4 / 3), 2),
        (FRESH, spread_by(0.01, half=0.0098), {"shared": OWN}, S2 * 4 / 3, 2),
        # the timer's jitter is 1 % of the shortest time
        (FRESH, around(0, 0, 0), JITTER, S2 * 4 / 3, 6),
        (new(100), around(0, 0, 0), JITTER, S2 * 4 / 3, 6),
        (FRESH, around(100, 100, 100), JITTER, S2 * 4 / 3, 6),
    ],
)
def test_the_interval_is_students(fresh, sessions, more, variance, dof):
    found = verdict(fresh, sessions, **more)
    reach = T95[dof] * math.sqrt(variance)
    assert math.log(found.ratio_high / found.ratio) == pytest.approx(reach, rel=1e-3)
    assert math.log(found.ratio / found.ratio_low) == pytest.approx(reach, rel=1e-3)


@pytest.mark.parametrize(("old_ns", "new_ns", "kind"), [(1.0, 1.5, SLOWER), (1.5, 1.0, FASTER)])
def test_a_change_of_exactly_the_threshold_counts(old_ns, new_ns, kind):
    assert math.log(1.5) == math.log1p(0.5)
    for threshold, expected in ((0.5, kind), (0.500001, UNDECIDED)):
        basis = basis_of([recorded(old_ns)] * 3, threshold, shared=shared_by(1e-5))
        assert judge([measured(new_ns)], basis).kind is expected


# what cannot be compared, or has no ratio

INVALID_ONE = measured(invalid="throttled")
GONE = structs.replace(measured(), summary=structs.replace(measured().summary, median_ns=None))
NO_RATIO = "a median is not finite, so there is nothing to compare"
SIMULATED = dataclasses.replace(HERE, simulated=True)
NOW_2 = dataclasses.replace(HERE, problem_version=2)
OTHERS = [recorded(conditions=dataclasses.replace(HERE, problem_version=n)) for n in (3, 1, 2, 3)]
HOT = [measured(key="kernel/event/hot")]
A100 = dataclasses.replace(HERE, device_model="a100")


@pytest.mark.parametrize(
    ("fresh", "sessions", "conditions", "kind", "reason"),
    [
        (FRESH, [], HERE, NEW, "nothing recorded yet"),
        (FRESH, [], SIMULATED, UNCOMPARABLE, "the simulator's times say nothing about speed"),
        ([INVALID_ONE], [], HERE, INVALID, "throttled"),
        ([*FRESH, INVALID_ONE], CALM, HERE, INVALID, "throttled"),
        (FRESH, CALM, NOW_2, UNCOMPARABLE, "recorded with problem version 1, now 2"),
        (FRESH, CALM, A100, UNCOMPARABLE, "recorded on nvidia-h200, now a100"),
        (FRESH, [*CALM, recorded(conditions=A100)], HERE, UNCOMPARABLE, "recorded on a100, now nvidia-h200"),
        (FRESH, CALM, SIMULATED, UNCOMPARABLE, "the simulator's times say nothing about speed"),
        (FRESH, OTHERS, HERE, UNCOMPARABLE, "recorded with problem version 3 and 2, now 1"),
        (FRESH * 2 + HOT, CALM, HERE, UNCOMPARABLE, "recorded as kernel/event/cold, now kernel/event/hot"),
        (FRESH, [*CALM, recorded(math.inf)], HERE, UNDECIDED, NO_RATIO),
        ([*FRESH, GONE], CALM, HERE, UNDECIDED, NO_RATIO),
        (FRESH, [*CALM, recorded(0.0)], HERE, UNDECIDED, "a median is 0 ns, less than the timer resolves"),
    ],
)
def test_what_has_nothing_to_be_compared_with_says_so(fresh, sessions, conditions, kind, reason):
    found = verdict(fresh, sessions, conditions=conditions)
    assert (found.kind, found.reason, found.ratio) == (kind, reason, None)


@pytest.mark.parametrize("median", [0.0, 1e-300, 1e-3])
@pytest.mark.parametrize("jitter", [0.0, 1000.0, 1e300])
def test_times_near_zero_on_either_side_give_a_verdict_and_no_error(median, jitter):
    for fresh, old in ((median, BASE_NS), (BASE_NS, median), (median, median)):
        found = verdict([measured(fresh)], [recorded(old)], jitter_ns=jitter)
        assert found.kind is UNDECIDED if jitter else found.kind is not NEW


def test_an_error_as_large_as_the_time_is_said_and_has_no_interval():
    """The jitter of each of two is as large as the time: √2, or 141 %."""
    found = verdict(FRESH, around(0), jitter_ns=BASE_NS)
    assert found.reason.startswith("too short or too noisy for this timer: the standard error is 141 %")
    assert (found.kind, found.ratio, found.ratio_low, found.sessions) == (UNDECIDED, 1.0, None, 1)
    assert verdict(FRESH, around(0), jitter_ns=BASE_NS / 100).ratio_low
    assert verdict([measured(half=5.0)], around(0)).reason.startswith("too short or too noisy")


# what fails a test


@pytest.mark.parametrize(("kind", "asked"), [(kind, kind.row.fail_on) for kind in VerdictKind])
def test_which_verdicts_fail_a_test(kind, asked):
    verdict, always = Verdict(kind, ""), kind is INVALID
    assert fails(verdict, set(FAILURES) - {asked}, on_gpu=True) is always
    assert fails(verdict, FAILURES.keys() - {"host"}, on_gpu=False) is always
    for on_gpu in (True, False):
        assert fails(verdict, FAILURES, on_gpu=on_gpu) is (asked != "" or always)
        assert fails(verdict, (), on_gpu=on_gpu) is always


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_record_of_fewer_than_three_sessions_is_reported_and_fails_only_as_undecided(count):
    found, enough = verdict(new(20), CALM[:count], shared=QUIET), count == 3
    assert found.kind is SLOWER
    assert found.reason.endswith(
        "threshold 2 %" if enough else f"; reported, not gated: {count} of 3 sessions recorded"
    )
    assert (found.gates, found.suspected) == (enough, enough)
    assert fails(found, ("slower",), on_gpu=True) is enough
    assert fails(found, ("undecided",), on_gpu=True) is not enough
    assert (found.false_alarm > 0) is enough


def test_a_hosts_time_that_nobody_asked_to_fail_is_slower_and_no_suspicion():
    found = verdict(new(20), CALM, fails_with="--fail-on")
    assert (found.kind, found.suspected, found.false_alarm) == (SLOWER, False, 0.0)
    assert found.reason.endswith("; a host time fails no test by default (--fail-on=host)")
    assert "host" not in verdict(new(0), CALM, fails_with="--fail-on").reason


@pytest.mark.parametrize("shares", [(None,), (0.999 * BUSY_HOST,), (BUSY_HOST,), (None, 0.4, 0.0)])
def test_a_busy_host_raises_no_suspicion_and_confirms_none(shares):
    basis = basis_of(around(0, 1, -1), shared=shared_by(0.01))
    fresh = [new(50, observations=beside(share))[0] for share in shares]
    busy = max(share or 0.0 for share in shares)
    suspicion, screened = judge(new(50), basis), judge(fresh, basis)
    assert suspicion.suspected
    assert screened.suspected is (busy < BUSY_HOST)
    for found in (screened, confirm(suspicion, fresh, basis)):
        decided = found.kind, found.others_share, "other programs used" in found.reason
        assert decided == ((SLOWER, None, False) if busy < BUSY_HOST else (UNDECIDED, busy, True))
        assert found.ratio == pytest.approx(1.5, rel=0.01)
    words = "threshold 2 %, but other programs used 40 % of the host's CPUs meanwhile"
    assert words in verdict(new(50, observations=beside(0.4)), CALM).reason
    assert judge(new(-40, observations=beside(0.4)), basis).kind is FASTER


def seen(least=None, most=None, loop=None):
    """What an observer has seen of a call and of a loop, in shares of the recorded time and in ns."""
    figures = {"least_ns": least and least * BASE_NS, "most_ns": most and most * BASE_NS, "loop_ns": loop}
    return {name: figure for name, figure in figures.items() if figure}


QUIET_LOOP = {"load": seen(loop=100.0)}


@pytest.mark.parametrize(
    ("new_load", "old", "kind"),
    [
        (seen(1.05, loop=100.0), QUIET_LOOP, SLOWER),
        (seen(1.05, loop=115.0), QUIET_LOOP, SLOWER),
        (seen(1.05, loop=118.0), QUIET_LOOP, UNDECIDED),
        (seen(1.01, loop=100.0), QUIET_LOOP, UNDECIDED),
        (seen(1.03, loop=100.0), QUIET_LOOP, None),
        (seen(1.3, loop=150.0), QUIET_LOOP, UNDECIDED),  # others share our core
        (seen(2.0, loop=150.0), QUIET_LOOP, SLOWER),
        (seen(1.7, loop=100.0), {}, UNDECIDED),  # CPUs may be half as fast
        (seen(1.9), QUIET_LOOP, SLOWER),
        (seen(loop=100.0), QUIET_LOOP, UNDECIDED),
        # recorded on a busy host, too: without others it took its CPU time at most
        (seen(0.8, loop=1.0), beside(0.5, **seen(most=0.7, loop=1.0)), SLOWER),
        (seen(0.8, loop=1.0), beside(0.5, **seen(most=0.8, loop=1.0)), UNDECIDED),
        (seen(0.8, loop=1.0), beside(0.5, loop_ns=1.0), UNDECIDED),
    ],
)
def test_on_a_busy_host_a_time_is_slower_by_what_others_cannot_explain(new_load, old, kind):
    """The time itself is three times as long, and sessions differ by 1 %. None: suspected, not confirmed."""
    basis = basis_of(around(0, 1, -1, 0.5, -0.5, observations=old), shared=shared_by(0.01))
    fresh = new(200, 200, observations=beside(0.5, **new_load))
    suspicion = judge(fresh[:1], basis)
    found = confirm(suspicion, fresh, basis)
    assert [suspicion.kind, found.kind] == [kind or SLOWER, kind or UNDECIDED]
    assert suspicion.others_share == (0.5 if kind is UNDECIDED else None)
    for reason in (suspicion.reason, found.reason):
        assert ("at least so much, though other programs used 50 % of" in reason) is (kind is not UNDECIDED)


def test_what_was_recorded_on_a_busy_host_is_told_and_makes_nothing_faster():
    busy = around(0, 1, -1, observations=beside(0.4))
    told = "; recorded while other programs used 40 % of the host's CPUs"
    for percent, kind in ((-40, UNDECIDED), (0, SAME), (40, SLOWER)):
        found = verdict(new(percent), busy, threshold=0.05, shared=shared_by(0.01))
        assert (found.kind, found.reason.endswith(told)) == (kind, True)
    found = verdict(new(-40), [*busy, *around(0, 1, -1)], shared=shared_by(0.01))
    assert (found.kind, told in found.reason) == (FASTER, False), "enough quiet sessions are recorded"


@pytest.mark.parametrize(("threshold", "table"), FALSE_ALARMS.items())
def test_more_recorded_sessions_raise_fewer_false_alarms(threshold, table):
    """From each number of sessions in the table on, and no earlier, and up to the next threshold."""

    def chance(count):
        return verdict(FRESH, around(*[0] * count), threshold=threshold + 0.002).false_alarm

    assert (chance(2), chance(100)) == (0, chance(8))
    for count in (5, 8):
        assert 0 < chance(count) == table[count] < chance(count - 1) < 0.01


# devices


TINY = 1e-5


@pytest.mark.parametrize(
    ("cards", "own", "tau", "dof", "s0", "d0", "variance", "total"),
    [
        ("abc", "d", 0.01, 2, TINY, 3.0, S2 * 4 / 3, 2),
        ("abc", "a", 0.01, 2, TINY, 3.0, S2 * 2 / 3, 2),
        ("aab", "b", 0.01, 1, TINY, 3.0, S2 * 8 / 9, 1),
        ("aaa", "b", 0.01, 4, TINY, 3.0, S2 * 2, 4),
        ("ab", "a", 0.01, 4, TINY, 3.0, S2 / 2, 4),
        ("abc", "d", 0.01, 3, 0.01, 3.0, S2 * 8 / 3, 6),  # (1 + 1)²/(1/3 + 1/3)
        ("abc", "d", 0.01, 1, math.sqrt(3) * 0.01, 9.0, S2 * 16 / 3, 8),  # (3 + 1)²/(9/9 + 1/1)
        ("abc", "d", None, 0, TINY, 3.0, 0.06**2 * 4 / 3, math.inf),
    ],
)
def test_the_interval_between_devices_is_satterthwaites(cards, own, tau, dof, s0, d0, variance, total):
    """Two errors of τ²·(1 − 2·w + Σ w²) and s²·(1 + 1/n), and the degrees of freedom of their sum."""
    shared = shared_by(s0, d0, devices=tau, devices_dof=dof)
    found = verdict(FRESH, on(cards, around(*[0] * len(cards))), device=own, shared=shared)
    assert math.log(found.ratio_high) == pytest.approx(T95[total] * math.sqrt(variance), rel=2e-3)


@pytest.mark.parametrize(
    ("cards", "own", "remark"),
    [
        ("aaa", "a", None),
        ("aab", "a", "recorded partly on other devices of this model"),
        ("aab", "c", "recorded on another device of this model"),
    ],
)
def test_a_record_of_other_devices_is_compared_with_more_doubt_and_says_so(cards, own, remark):
    found = verdict(new(4), on(cards, CALM[:3]), device=own, shared=QUIET, remark="by hand")
    assert found.kind is (UNDECIDED if remark else SLOWER)
    assert found.reason.endswith(f"; {remark}; by hand" if remark else "threshold 2 %; by hand")
    assert found.other_card is (own == "c")
    assert not verdict(new(4), on(cards, CALM[:3]), device=None, shared=QUIET).other_card, "not known"
    assert verdict(new(4), on("aaa", CALM[:3]), device="c", shared=APART).kind is UNDECIDED, "of one device"


def test_three_sessions_of_its_own_device_are_all_that_a_device_is_compared_with():
    own, others = around(0, 0.1, -0.1), around(*[30] * 5)
    assert verdict(FRESH, on("bbbbbaaa", [*others, *own]), device="a", shared=QUIET).kind is SAME
    found = verdict(FRESH, on("bbbbbaa", [*others, *own[:2]]), device="a", shared=QUIET)
    assert found.ratio == pytest.approx(1.3 ** (-5 / 7), rel=1e-3), "two are too few, so all are taken"


THREE = on("abcabc", around(0, 0.1, -0.1, 0, 0.1, -0.1))
APART = shared_by(1e-4, devices=0.02, devices_dof=2, between_devices=SharedSpread(0.001, 4.0, cases=30))
"""Devices differ by 2 % over all cases, and by 0.1 % in most."""
FOURTH = basis_of(THREE, device="d", shared=APART)
ALIKE_ERROR, ERROR = 0.001 * math.sqrt(4 / 3), 0.02 * math.sqrt(4 / 3)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (1.003, SAME, "inside ±2 %"),
        (1.05, UNDECIDED, ": slower, but recorded on other devices, and these differ by as much; "),
        (0.95, UNDECIDED, "; 3 sessions recorded on this device may settle it"),
        (0.95, UNDECIDED, ": faster, but recorded on other devices, and these differ by as much; "),
        (1.25, SLOWER, "threshold 2 %"),
        (0.75, FASTER, "threshold 2 %"),
    ],
)
def test_a_change_on_another_device_exceeds_what_devices_differ_by_in_any_case(change, kind, words):
    """t on 2 degrees of freedom, devices less one: in errors of the case, and of all for what is caught."""
    found = judge([measured(BASE_NS * change)], FOURTH)
    assert found.kind is kind
    assert words in found.reason
    assert math.log(found.ratio_high / change) == pytest.approx(2.920 * ALIKE_ERROR, rel=1e-2)
    caught = max((2.920 + 4.303) * ERROR, math.log(1.02) + 2 * 4.303 * ERROR)
    assert math.log(found.detectable) == pytest.approx(caught, rel=5e-3)


def test_a_suspicion_on_another_device_is_confirmed_beyond_what_devices_differ_by():
    """The bound is 2 % and 4.303 errors: +12.6 %."""
    suspicion = judge(new(25), FOURTH)
    for change, kind in ((12.7, SLOWER), (12.5, UNDECIDED)):
        assert confirm(suspicion, new(change, change), FOURTH).kind is kind


# the first epoch, and what is confirmed


def test_many_small_steps_are_told_against_the_first_epoch():
    def judged(first, percent=0.3, **changes):
        return verdict(new(percent), CALM, shared=QUIET, anchor=around(*first, **changes))

    found = judged((-6, -6.1, -5.9))
    assert found.kind is SAME
    assert found.anchor == pytest.approx(1.003 / 0.94, rel=1e-3)
    assert "; since the first epoch +6.7 %" in found.reason
    assert "; since the first epoch +3.4 %" in judged((-2, -2.1, -1.9), 1.3).reason, "UNDECIDED"
    for first, percent in (((-1, -1.1), 0.3), ((6, 6.1), 0.3), ((-6, -6.1), 20), ((-20, 20), 8)):
        assert "first epoch" not in judged(first, percent).reason
    other = dataclasses.replace(HERE, problem_version=2)
    assert judged((-6, -6.1, -5.9), conditions=other).anchor is None


OPENED = [structs.replace(time, opening=True) for time in CALM]
APPENDED = around(*[1.5, 1.6, 1.4] * 5)


def test_what_is_slower_than_the_sessions_that_opened_the_epoch_says_so_and_is_decided_by_fresh_ones():
    basis = basis_of([*OPENED, *APPENDED], shared=QUIET)
    suspicion = judge(new(3), basis)
    assert (suspicion.kind, suspicion.suspected) == (SLOWER, True)
    assert suspicion.ratio == pytest.approx(1.03, rel=1e-3)
    assert " since the epoch's first 5 sessions, threshold 2 %; +1.9 % (90 %: " in suspicion.reason
    assert suspicion.reason.endswith(" %) since all 20")
    assert suspicion.false_alarm == FALSE_ALARMS[0.02][5]
    found = confirm(suspicion, new(3, 3.1), basis)
    assert (found.kind, found.suspected) == (SLOWER, False)
    assert " since the epoch's first 5 sessions, threshold 2 %; 2 fresh sessions confirmed" in found.reason
    assert found.ratio == pytest.approx(1.0305, rel=1e-3)
    assert confirm(suspicion, new(1.5, 1.5), basis).kind is SAME


@pytest.mark.parametrize(("opened", "appended", "crept"), [(3, 1, True), (2, 4, False), (5, 0, False)])
def test_the_epoch_is_held_by_three_sessions_that_opened_it_if_others_were_appended(opened, appended, crept):
    basis = basis_of([*OPENED[:opened], *APPENDED[:appended]], shared=QUIET)
    assert len(basis.opening) == (opened if crept else 0)


def suspected(threshold=0.02, **more):
    return judge(new(5), basis_of(CALM, threshold, shared=QUIET, **more))


CAUGHT = ": slower, but perhaps by less than 2 %; slowdowns from +4.2 % are caught (95 %); 3 recorded and 3"


@pytest.mark.parametrize(
    ("fresh", "kind", "numbers", "words"),
    [
        ((5, 5), SLOWER, "+5.0 % (90 %: +4.1 … +6.0 %)", "confirmed at least +3.9 % (97.5 %)"),
        ((3.1, 3.13), SLOWER, "+3.1 % (90 %: +2.2 … +4.0 %)", "confirmed at least +2.0 % (97.5 %)"),
        ((3, 3.1), UNDECIDED, "+3.0 % (90 %: +2.1 … +4.0 %)", f"{CAUGHT} fresh sessions would settle it"),
        ((0, 0), SAME, "+0.0 % (90 %: −0.90 … +0.90 %)", ", inside ±2 %"),
        ((-20, -20), FASTER, "−20.0 % (90 %: −20.7 … −19.3 %)", ", threshold 2 %"),
    ],
)
def test_fresh_sessions_alone_decide_about_a_suspicion(fresh, kind, numbers, words):
    """Two and the mean of three vary by 0.6 %·√(1/2 + 1/3); the bound is 1.960 of these: 1.07 %."""
    found = confirm(suspected(), new(*fresh), basis_of(spread_by(), shared=KNOWN))
    assert found.kind is kind
    reason = f"suspected +5.0 %, not confirmed by 2 fresh sessions: {numbers}{words}"
    sure = f"{numbers}, threshold 2 %; 2 fresh sessions {words}"
    assert found.reason == (sure if kind is SLOWER else reason)
    assert (found.suspected, found.unconfirmed) == (False, kind is not SLOWER)
    assert fails(found, ("slower",), on_gpu=True) is (kind is SLOWER)
    assert (found.sessions, found.false_alarm) == (2, FALSE_ALARMS[0.02][5])
    assert found.ratio == pytest.approx(1 + sum(fresh) / 200, rel=1e-4)
    assert math.log(found.ratio_high / found.ratio) == pytest.approx(1.645 * S * math.sqrt(5 / 6), rel=1e-3)


@pytest.mark.parametrize(("count", "slow"), [(9, 0), (10, 1), (20, 2), (29, 2)])
def test_fresh_sessions_confirm_only_if_each_is_slower_than_nine_of_ten_recorded_ones(count, slow):
    for more, kind in ((0, SLOWER), (1, UNDECIDED)):
        sessions = around(*[0] * (count - slow - more), *[3] * (slow + more))
        found = confirm(suspected(0), new(3, 6), basis_of(sessions, 0, shared=shared_by(0.0005)))
        assert found.kind is kind, "a session as slow as a recorded one is not slower"
        words = "not every fresh session was slower than the recorded ones"
        assert (words in found.reason) is (kind is UNDECIDED)


def test_a_suspicion_that_nothing_can_decide_is_invalid():
    found = confirm(suspected(), new(4, 4.2, invalid="the clock fell"), basis_of(CALM))
    assert found.reason == "suspected +5.0 %, not confirmed by fresh sessions: the clock fell"
    assert (found.kind, found.suspected, found.unconfirmed) == (INVALID, False, True)
    found = undecidable(suspected(), "exit code 3")
    assert (found.kind, found.suspected, found.unconfirmed) == (INVALID, False, True)
    assert found.reason == "suspected +5.0 %, but the sessions to confirm it failed: exit code 3"


# what an autotuner chose


def tuned(warps):
    return Choice.of({"softmax": {"num_warps": str(warps)}}, ())


def launched(registers):
    return Choice(launches=(("k", (9,), (256,), registers),))


def test_sessions_are_compared_with_those_that_chose_the_same():
    """Or their spread would hide what the code itself lost."""
    both = [*around(0, 0.1, 0, 0.1, choice=tuned(1)), *around(200, 200.3, 200, 200.3, choice=tuned(32))]
    for warps, usual in ((1, 1.0), (32, 3.0)):
        for slower, kind in ((1.0, SAME), (1.2, SLOWER)):
            fresh = [measured(slower * usual * BASE_NS)]
            assert verdict(fresh, both, choice=tuned(warps), shared=QUIET).kind is kind
    unknown = verdict(new(200), [*both[:4], *around(50, 50, choice=tuned(2))], choice=tuned(4), shared=QUIET)
    assert (unknown.kind, unknown.gates) == (SLOWER, True), "with the most frequent choice"


CHOICES = st.sampled_from([tuned(1), tuned(2), Choice(), *map(launched, range(5))])


@given(st.lists(CHOICES, min_size=1, max_size=9), CHOICES)
def test_no_session_of_an_autotuned_choice_is_pooled_with_another_choice(chosen, now):
    sessions = [recorded(BASE_NS + number, choice=choice) for number, choice in enumerate(chosen)]
    usable = of_one_choice(sessions, now, 3)
    enough = [choice for choice in {*chosen} if chosen.count(choice) >= 3]
    if len({*chosen}) > 1 and (enough or any(choice.configurations for choice in chosen)):
        choice = usable[0].choice
        assert usable == [session for session in sessions if session.choice == choice]
        assert not enough or choice in enough
        rivals = [now] if now in (enough or chosen) else chosen
        assert chosen.count(choice) == max(map(chosen.count, rivals))
    else:
        assert usable == sessions


def test_small_losses_add_up_although_the_code_had_other_launches_each_time():
    """Who changes a kernel changes its registers: that is no choice of an autotuner."""
    opened = around(0, 0.1, -0.1, 0, choice=launched(32), opening=True)
    appended = around(1.8, 1.9, 1.8, 1.9, choice=launched(40))
    found = verdict(new(3), [*opened, *appended], choice=launched(40), shared=shared_by(0.001))
    assert found.kind is SLOWER
    assert "since the epoch's first 4 sessions" in found.reason
    tuned_otherwise = [structs.replace(time, choice=tuned(8)) for time in appended]
    basis = basis_of([*opened, *tuned_otherwise], choice=tuned(8))
    assert basis.opening == (), "none of this choice opened the epoch"
