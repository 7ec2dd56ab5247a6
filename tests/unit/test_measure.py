"""Warm-up and sampling, on a clock that only moves when a call says so."""

from __future__ import annotations

import pytest
from fakes import FakeClock, call_taking

from pytest_gpukern.measure import measure, rule_for, warm_up
from pytest_gpukern.stats import StoppingRule
from pytest_gpukern.timers import Batch
from pytest_gpukern.timers.host import HostTimer

MS = 1_000_000
SECOND = 1_000_000_000


def nothing():
    pass


def warmed(*durations_ns):
    clock = FakeClock()
    call = call_taking(clock, *durations_ns)
    found = warm_up(call, nothing, clock=clock)
    assert call.calls == found.calls
    return found


# warm-up


def test_the_first_call_is_kept_apart_from_what_it_settles_at():
    found = warmed(300 * MS, 20 * MS)
    assert (found.first_ns, found.settled_ns, found.settled) == (300 * MS, 20 * MS, True)


def test_warming_goes_on_until_three_calls_agree_and_50_ms_have_passed():
    assert warmed(300 * MS, 20 * MS).calls == 4
    assert warmed(300 * MS, 10 * MS).calls == 7, "six calls of 10 ms are the first to exceed 50 ms"
    assert warmed(MS, 30 * MS, 28 * MS, 26 * MS, 20 * MS).calls == 7, "three of 20 ms end it"


@pytest.mark.parametrize(("last", "settled"), [(2_100, True), (2_110, False)])
def test_calls_agree_within_five_percent(last, settled):
    assert warmed(300 * MS, 20 * MS, 20 * MS, last * MS // 100, *[30 * MS, 40 * MS] * 20).settled is settled


def test_two_long_calls_that_agree_are_enough():
    assert warmed(900 * MS, 60 * MS, 62 * MS).calls == 3


def test_the_time_of_the_first_call_does_not_count_as_warming():
    assert warmed(400 * MS, MS).calls == 50, "fifty calls of 1 ms are reached before 50 ms of them"


def test_a_slow_call_is_not_repeated_once_it_is_compiled():
    found = warmed(3 * SECOND, 2 * SECOND)
    assert (found.calls, found.settled_ns, found.settled) == (2, 2 * SECOND, True)


def test_a_slow_call_that_ran_before_is_warmed_by_one():
    clock = FakeClock()
    call = call_taking(clock, 2 * SECOND)
    assert warm_up(call, nothing, compiled=True, clock=clock).calls == 1


def test_a_call_that_is_slow_to_compile_only_is_warmed_like_any_other():
    assert warmed(3 * SECOND, 20 * MS).calls == 4


def test_a_call_that_never_settles_ends_after_a_second_and_says_so():
    found = warmed(*[(100 + 40 * (i % 2)) * MS for i in range(60)])
    assert not found.settled
    assert found.calls == 10, "nine calls after the first exceed one second"


def test_short_calls_end_after_fifty():
    found = warmed(1000)
    assert (found.calls, found.settled) == (50, True)


def test_the_device_is_idle_when_the_clock_starts_and_when_it_stops():
    clock, events = FakeClock(), []

    def reading():
        events.append("clock")
        return clock()

    call = call_taking(clock, SECOND)

    def noted():
        events.append("call")
        call()

    warm_up(noted, lambda: events.append("idle"), clock=reading)
    assert events == ["idle", "clock", "call", "idle", "clock"] * 2


def test_waiting_for_the_device_is_part_of_a_call():
    clock = FakeClock()

    def synchronize():
        clock.now += 300 * MS

    assert warm_up(nothing, synchronize, clock=clock).first_ns == 300 * MS


# the rule


@pytest.mark.parametrize(
    ("call_ns", "fewest", "budget_s"),
    [
        (1000, 10, 0.5),
        (50 * MS, 10, 0.5),
        (51 * MS, 5, 2.0),
        (SECOND // 2, 5, 2.0),
        (SECOND, 3, 2.0),
        (6 * SECOND, 2, 0.0),
        (11 * SECOND, 1, 0.0),
    ],
)
def test_slow_calls_get_fewer_samples_and_more_time(call_ns, fewest, budget_s):
    rule = rule_for(call_ns)
    assert (rule.min_samples, rule.budget_s) == (fewest, budget_s)


# sampling


class ScriptedTimer:
    """Hands out these samples in order, from the second round on again; `taken` has what was asked for."""

    name = "scripted"
    measures = "what the script says"
    resolution_ns = 0.0
    jitter_ns = 7.0

    def __init__(self, samples, clock=None, most=10**9, warnings=(), suspicion=None):
        self.samples, self.clock, self.most = samples, clock, most
        self.warnings, self.suspicious = list(warnings), suspicion
        self.asked, self.given, self.colds, self.setups = [], [], [], []

    def collect(self, call, count, *, cold, setup=None):
        self.asked.append(count)
        self.colds.append(cold)
        self.setups.append(setup)
        start = len(self.given)
        batch = [self.samples[(start + i) % len(self.samples)] for i in range(min(count, self.most))]
        self.given += batch
        if self.clock:
            self.clock.now += sum(batch)
        return Batch(batch, iterations=3, warnings=self.warnings)

    def suspicion(self, call, setup=None):
        return self.suspicious


WILD = [1000.0, 5000.0, 2000.0, 9000.0]


def sampled(timer, call_ns=1000.0, **arguments):
    values = {"scope": "kernel", "cache": "cold", "call_ns": call_ns, **arguments}
    if timer.clock:
        values.setdefault("clock", timer.clock.seconds)
    return measure(nothing, timer, **values)


def test_every_sample_is_kept_in_the_order_taken():
    timer = ScriptedTimer([*WILD, 1e6], most=7)
    found = sampled(timer, rule=StoppingRule(max_samples=40))
    assert list(found.samples_ns) == timer.given
    assert len(found.samples_ns) == found.summary.n == 40
    assert found.stopped == "40 samples"


def test_sampling_stops_when_the_median_is_known():
    found = sampled(ScriptedTimer([1000.0], most=1))
    assert len(found.samples_ns) == 10
    assert found.stopped == "median known to ±0.25 %"


def test_sampling_stops_when_its_time_has_passed():
    clock = FakeClock()
    found = sampled(ScriptedTimer([10 * MS, 30 * MS, 20 * MS], clock, most=1), call_ns=20 * MS)
    assert found.stopped == "time budget of 0.5 s ended"
    assert sum(found.samples_ns[:-1]) < 0.5 * SECOND <= sum(found.samples_ns)


def test_the_fewest_samples_are_taken_even_if_time_is_over():
    clock = FakeClock()
    found = sampled(ScriptedTimer([2 * SECOND, 4 * SECOND], clock, most=1), call_ns=3 * SECOND)
    assert len(found.samples_ns) == 3
    assert found.stopped == "time budget of 2 s ended"


@pytest.mark.parametrize(
    ("call_ns", "batch"), [(MS, 50), (20 * MS, 2), (3 * SECOND, 1), (1.0, 500), (0.0, 500)]
)
def test_a_batch_is_about_50_ms_and_at_least_one_call_and_at_most_all(call_ns, batch):
    timer = ScriptedTimer(WILD)
    sampled(timer, call_ns=call_ns, rule=StoppingRule(max_samples=500))
    assert timer.asked[0] == batch


def test_the_last_batch_takes_only_what_is_missing():
    timer = ScriptedTimer(WILD)
    sampled(timer, call_ns=MS, rule=StoppingRule(max_samples=120))
    assert timer.asked == [50, 50, 20]


@pytest.mark.parametrize(("cache", "cold"), [("cold", True), ("hot", False)])
def test_the_cache_policy_reaches_the_timer_and_the_measurement(cache, cold):
    timer = ScriptedTimer([1000.0])
    assert sampled(timer, cache=cache).cache == cache
    assert set(timer.colds) == {cold}


def test_what_the_timer_says_about_itself_travels_along():
    found = sampled(ScriptedTimer([1000.0]), traffic_bytes=12.0, flops=2.0)
    assert (found.timer, found.measures, found.iterations, found.jitter_ns) == (
        "scripted",
        "what the script says",
        3,
        7.0,
    )
    assert (found.traffic_bytes, found.flops, found.invalid) == (12.0, 2.0, None)


def test_a_suspicion_makes_the_measurement_invalid_and_keeps_its_samples():
    found = sampled(ScriptedTimer([1000.0], suspicion="work ran elsewhere"))
    assert found.invalid == "work ran elsewhere"
    assert found.samples_ns


def test_a_warning_of_the_timer_is_said_once_and_before_those_of_the_samples():
    found = sampled(ScriptedTimer([1000.0], most=2, warnings=["odd"]), rule=StoppingRule(0, 4, 4))
    assert found.summary.warnings[0] == "odd"
    assert found.summary.warnings.count("odd") == 1
    assert any("only 4 samples" in warning for warning in found.summary.warnings)


def test_making_fresh_arguments_is_not_timed():
    clock = FakeClock()
    made = []

    def setup():
        clock.now += 100 * MS
        made.append([len(made)])
        return (made[-1],), {}

    seen = []

    def call(argument):
        seen.append(argument)
        clock.now += MS

    found = measure(
        call,
        HostTimer(nothing, clock=clock),
        scope="kernel",
        cache="hot",
        call_ns=MS,
        setup=setup,
        rule=StoppingRule(0, 5, 5),
        clock=clock.seconds,
    )
    assert found.samples_ns == (MS,) * 5
    assert len({id(argument) for argument in seen}) == len(seen) == len(made)
