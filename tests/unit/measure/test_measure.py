"""Tests warm-up and sampling, on a clock that only moves when a call says so."""

from __future__ import annotations

import cProfile
import dataclasses
import itertools
import math
import random
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakeTimer, call_taking
from msgspec import structs

from pytest_gpukern.measure.measure import Repeated, Sampler, rule_for, rule_of_a_glance, untraced, warm_up
from pytest_gpukern.measure.observers import Look, Observation, Seen
from pytest_gpukern.measure.statistics import StoppingRule
from pytest_gpukern.timers.host import HostTimer
from pytest_gpukern.timers.timer import Batch, Iteration, TimerUnavailable
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import DeviceWork

MS = 1_000_000
SECOND = 1_000_000_000


def nothing():
    pass


def warmed(*durations_ns, **options):
    clock = FakeClock()
    call = call_taking(clock, *durations_ns)
    found = warm_up(call, nothing, clock=clock, **options)
    assert call.calls == found.calls
    return found


# warm-up


def test_warming_goes_on_until_three_calls_agree_and_20_ms_have_passed():
    found = warmed(300 * MS, 20 * MS)
    assert (found.first_ns, found.settled_ns, found.settled, found.calls) == (300 * MS, 20 * MS, True, 4)
    assert warmed(300 * MS, 4 * MS).calls == 7, "six calls of 4 ms are the first to exceed 20 ms"
    assert warmed(MS, 30 * MS, 28 * MS, 26 * MS, 20 * MS).calls == 7, "three of 20 ms end it"
    assert warmed(900 * MS, 60 * MS, 62 * MS).calls == 3, "two long calls that agree are enough"


@pytest.mark.parametrize(
    ("by_host", "last", "settled"),
    [(False, 2_100, True), (False, 2_110, False), (True, 2_500, True), (True, 2_510, False)],
)
def test_calls_agree_within_five_percent_and_by_the_hosts_clock_within_a_quarter(by_host, last, settled):
    times = (300 * MS, 20 * MS, 20 * MS, last * MS // 100, *[30 * MS, 40 * MS] * 20)
    assert warmed(*times, by_host=by_host).settled is settled


def test_a_slow_call_is_not_repeated_once_it_is_compiled():
    found = warmed(3 * SECOND, 2 * SECOND)
    assert (found.calls, found.settled_ns, found.settled) == (2, 2 * SECOND, True)
    assert warmed(2 * SECOND, compiled=True).calls == 1, "it ran before"


def test_a_call_that_never_settles_ends_after_less_than_half_a_second_and_says_so():
    found = warmed(*[(60 + 40 * (i % 2)) * MS for i in range(60)])
    assert not found.settled
    assert found.calls == 6, "five calls after the first exceed 0.4 s"


def test_short_calls_end_after_fifty():
    for last, settled in (([1000], True), ([5000, *[1000] * 3], True), ([5000, 1000, 1000], False)):
        found = warmed(*[1000] * (50 - len(last)), *last)
        assert (found.calls, found.settled) == (50, settled)


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


# the rule


GLANCE = 0.1 / 3


@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        # slow calls get fewer samples and more time
        (rule_for(1000), (50, 500, 0.1)),
        (rule_for(MS), (50, 500, 0.1)),
        (rule_for(MS + 1), (10, 500, 0.5)),
        (rule_for(20 * MS), (10, 500, 0.5)),
        (rule_for(50 * MS), (6, 500, 0.5)),
        (rule_for(51 * MS), (5, 500, 1.0)),
        (rule_for(SECOND // 5), (5, 500, 1.0)),
        (rule_for(SECOND // 2), (3, 500, 1.0)),
        (rule_for(SECOND), (3, 500, 2.0)),
        (rule_for(6 * SECOND), (2, 500, 0.0)),
        (rule_for(11 * SECOND), (1, 500, 0.0)),
        # by the host's clock, 5 % or a twentieth of a second are enough
        (rule_for(1000, by_host=True), (10, 500, 0.05)),
        (rule_for(5 * MS, by_host=True), (10, 500, 0.05)),
        (rule_for(5 * MS + 1, by_host=True), (5, 500, 0.05)),
        (rule_for(50 * MS, by_host=True), (5, 500, 0.05)),
        (rule_for(50 * MS + 1, by_host=True), (3, 500, 0.05)),
        (rule_for(SECOND // 2, by_host=True), (3, 500, 0.05)),
        (rule_for(SECOND // 2 + 1, by_host=True), (1, 500, 0.05)),
        (rule_for(11 * SECOND, by_host=True), (1, 500, 0.05)),
        # a glance takes a third of the time, and few samples of calls over 1 ms
        (rule_of_a_glance(1000), (10, 500, GLANCE)),
        (rule_of_a_glance(MS), (10, 500, GLANCE)),
        (rule_of_a_glance(MS + 1), (6, 6, 0.0)),
        (rule_of_a_glance(20 * MS), (6, 6, 0.0)),
        (rule_of_a_glance(20 * MS + 1), (3, 3, 0.0)),
        (rule_of_a_glance(100 * MS), (3, 3, 0.0)),
        (rule_of_a_glance(100 * MS + 1), (1, 1, 0.0)),
        (rule_of_a_glance(11 * SECOND), (1, 1, 0.0)),
    ],
    ids=repr,
)
def test_slow_calls_get_fewer_samples_and_the_hosts_clock_and_a_glance_less_time(rule, limits):
    assert (rule.min_samples, rule.max_samples, rule.budget_s) == pytest.approx(limits)


def test_by_the_hosts_clock_5_percent_are_enough():
    assert rule_for(MS, by_host=True).target_half_width == 0.05


# sampling


class ScriptedTimer(FakeTimer):
    """Hands out these samples in order, from the second round on again; `asked` has the batches' sizes.

    Each sample is of `each` executions, and a batch has `most` samples at most.
    """

    jitter_ns = 7.0

    def __init__(self, samples, clock=None, most=10**9, each=1, notes=(), suspicion=None):
        super().__init__("scripted", suspicion)
        self.samples, self.clock, self.most, self.each = samples, clock, most, each
        self.asked, self.given, self.notes = [], [], list(notes)

    def collect(self, iterations, *, cold):
        self.asked.append(len(iterations))
        self.colds.append(cold)
        start = len(self.given)
        count = min(len(iterations) // self.each, self.most)
        batch = [self.samples[(start + i) % len(self.samples)] for i in range(count)]
        self.given += batch
        if self.clock:
            self.clock.now += sum(batch)
        return Batch(batch, iterations=3, notes=self.notes)


WILD = [1000.0, 5000.0, 2000.0, 9000.0]


def sampler(timer, call_ns=1000.0, executions=None, **arguments):
    values = {"scope": "kernel", "cache": "cold", "call_ns": call_ns, **arguments}
    values.setdefault("clock", (getattr(timer, "clock", None) or FakeClock()).seconds)
    values.setdefault("rule", rule_for(call_ns))
    return Sampler(executions or Repeated(nothing), timer, **values)


def sampled(timer, *arguments, **named):
    return sampler(timer, *arguments, **named).measure()


def test_every_sample_is_kept_in_the_order_taken():
    timer = ScriptedTimer([*WILD, 1e6], each=2)
    found = sampled(timer, rule=StoppingRule(0, 40, 40))
    assert list(found.samples_ns) == timer.given
    assert timer.asked == [14, 28, 28, 10], "two executions a sample, also for the samples that are missing"
    assert len(found.samples_ns) == found.summary.n == 40
    assert found.stopped == "40 samples"


# batches


@pytest.mark.parametrize(
    ("call_ns", "samples", "rule", "asked"),
    [
        # about 50 ms, one call at least and 64 at most; the last takes only what is missing
        (MS, WILD, StoppingRule(0, 150, 170), [50, 50, 50, 20]),
        (20 * MS, WILD, StoppingRule(0, 9, 9), [2, 2, 2, 2, 1]),
        (3 * SECOND, WILD, StoppingRule(0, 6, 6), [1] * 6),
        (0.0, WILD, StoppingRule(0, 300, 300), [64, 64, 64, 64, 44]),
        # the first samples come from three batches at least, later batches are larger
        (1.0, WILD, StoppingRule(0, 3, 67), [1, 1, 1, 64]),
        (1.0, WILD, StoppingRule(0, 5, 70), [2, 2, 2, 64]),
        (1.0, WILD, StoppingRule(0, 50, 115), [17, 17, 17, 64]),
        # an execution takes more than the warm-up knows: the flush, the poison, the records
        (2 * MS, [5 * MS], StoppingRule(0, 75, 75), [25, 10, 10, 10, 10, 10]),
        # the time that is left, and never less than the first ones: 15 ms for 1.5 ms each, and 1 ms
        (MS, [MS, 2 * MS], StoppingRule(0, 30, 500, budget_s=0.06), [10, 10, 10, 10]),
        (MS, [MS, 2 * MS], StoppingRule(0, 30, 500, budget_s=0.046), [10, 10, 10, 10]),
    ],
)
def test_a_batch_fits_the_time_the_first_ones_and_what_is_missing(call_ns, samples, rule, asked):
    timer = ScriptedTimer(samples, None if samples is WILD else FakeClock())
    sampled(timer, call_ns=call_ns, rule=rule)
    assert timer.asked == asked


class LevelTimer(ScriptedTimer):
    """All samples of a batch are equal; the batches take these levels in turn."""

    def collect(self, iterations, *, cold):
        batch = super().collect(iterations, cold=cold)
        level = self.samples[(len(self.asked) - 1) % len(self.samples)]
        batch.samples_ns = [level] * len(batch.samples_ns)
        return batch


@pytest.mark.parametrize(
    ("levels", "stopped"),
    [([1000.0, 1002.0, 1000.0], "median known to ±0.25 %"), ([1000.0, 1200.0, 1000.0], "500 samples")],
)
def test_sampling_goes_on_while_batches_differ_by_more_than_the_precision_wanted(levels, stopped):
    assert sampled(LevelTimer(levels), rule=StoppingRule(min_samples=60)).stopped == stopped


def test_the_interval_knows_nothing_of_batches_that_were_refused():
    """Were the first one's size kept, the others would be cut in the wrong places."""
    timer = LevelTimer([9000.0, 5000.0, 1000.0, 1000.0, 1200.0])
    found = sampled(timer, rule=StoppingRule(0, 60, 60), observing={"watch": ScriptedWatch({1})})
    assert (found.summary.low_ns, found.summary.median_ns, found.summary.high_ns) == (1000.0, 1000.0, 1200.0)


@pytest.mark.parametrize("cost_ns", [None, 0.0, 3000.0])
def test_what_executions_of_several_calls_took_is_that_of_one(cost_ns):
    timer = ScriptedTimer([1000.0, 1064.0])
    timer.fixed_cost_ns, timer.resolution_ns, timer.jitter_ns = cost_ns, 64.0, 8.0
    found = sampled(timer, rule=StoppingRule(min_samples=100), calls=4)
    assert (set(found.samples_ns), found.iterations) == ({250.0, 266.0}, 12)
    assert (found.timer, found.measures) == ("scripted", "what a test says")
    assert (found.summary.low_ns, found.summary.high_ns) == (250.0, 266.0)
    assert found.stopped == "median known to the timer's resolution of 16 ns"
    assert (found.jitter_ns, found.fixed_cost_ns) == (2.0, cost_ns and cost_ns / 4)
    kernel = DeviceWork(kind="kernel", name="axpy", count=4.0, time_ns=800.0)
    copy = DeviceWork(kind="memcpy", name="HtoD", count=8.0, time_ns=40.0, size_bytes=64.0)
    batch = Batch([1000.0], launch_included=True, busy_ns=[900.0], work=(kernel, copy), order=(0, 1, 1) * 4)
    kernel, copy = (
        structs.replace(kernel, count=1.0, time_ns=200.0),
        structs.replace(copy, count=2.0, time_ns=10.0, size_bytes=16.0),
    )
    assert batch.per_call(4) == Batch(
        [250.0], 4, launch_included=True, busy_ns=[225.0], work=(kernel, copy), order=(0, 1, 1)
    )


A, B, TWICE_A = (
    ((DeviceWork("kernel", name, count, 9.0),), (0,) * int(count))
    for name, count in (("a", 1.0), ("b", 1.0), ("a", 2.0))
)


@pytest.mark.parametrize(
    ("batches", "order"),
    [([A], (0,)), ([A, B], ()), ([A, A, B], ()), ([A, A, TWICE_A], ()), ([A, B, B, B], ())],
)
def test_the_order_of_a_call_is_known_only_if_all_batches_have_it(batches, order):
    in_turn = itertools.cycle(batches)

    class Varying(ScriptedTimer):
        def collect(self, iterations, *, cold):
            work, order = next(in_turn)
            return dataclasses.replace(super().collect(iterations, cold=cold), work=work, order=order)

    rule = StoppingRule(min_samples=6, max_samples=6)
    assert sampled(Varying([1000.0], most=1), rule=rule).order == order


@pytest.mark.parametrize(
    ("how", "invalid"), [(Sampler.measure, "work ran elsewhere"), (Sampler.glance, None)]
)
def test_a_suspicion_makes_a_measurement_invalid_and_no_glance_and_keeps_its_samples(how, invalid):
    found = how(sampler(ScriptedTimer([1000.0], suspicion="work ran elsewhere")))
    assert found.invalid == invalid
    assert found.samples_ns


def test_a_suspicion_is_asked_for_once_all_batches_are_known_and_given_an_execution_that_was_made():
    asked = []

    class Suspecting(ScriptedTimer):
        def collect(self, iterations, *, cold):
            self.latest = iterations[-1]
            return super().collect(iterations, cold=cold)

        def suspicion(self, iteration):
            asked.append((len(self.given), iteration is self.latest))

    sampled(Suspecting(WILD, most=1), rule=StoppingRule(0, 12, 12))
    assert asked == [(12, True)]


def test_a_note_of_the_timer_is_said_once_and_before_those_of_the_samples():
    found = sampled(ScriptedTimer([1000.0], most=2, notes=[Note("odd")]), rule=StoppingRule(0, 4, 4))
    assert found.summary.notes[0] == Note("odd")
    assert found.summary.notes.count(Note("odd")) == 1
    assert any("only 4 samples" in note.text for note in found.summary.notes)


# tracers


@pytest.fixture
def traced():
    """Traces and profiles this thread, as coverage and cProfile do; with the two functions."""
    before = sys.gettrace(), sys.getprofile()
    mine = (lambda frame, event, arg: None), (lambda frame, event, arg: None)
    sys.settrace(mine[0])
    sys.setprofile(mine[1])
    yield mine
    sys.settrace(before[0])
    sys.setprofile(before[1])


def traces():
    return sys.gettrace(), sys.getprofile()


def test_nothing_traces_or_profiles_a_call_while_it_is_warmed_up_or_timed(traced):
    seen, made = [], []

    def setup():
        made.append(traces())
        return (), {}

    call = Repeated(lambda: seen.append(traces()), setup)
    sampled(HostTimer(nothing), MS, call, cache="hot", rule=StoppingRule(0, 5, 5))
    warm_up(lambda: seen.append(traces()), nothing)
    assert set(seen) == {(None, None)}
    assert set(made) == {traced}, "what a setup does is traced"
    assert traces() == traced


def test_a_call_that_fails_while_it_is_timed_leaves_its_tracer_behind(traced):
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        warm_up(fails, nothing)
    assert traces() == traced


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cProfile uses sys.monitoring since 3.12")
def test_cprofile_goes_on_after_a_timed_call():
    profile = cProfile.Profile()
    profile.enable()
    try:
        with untraced():
            assert sys.getprofile() is None
        assert sys.getprofile() is profile
    finally:
        profile.disable()


def test_tools_of_sys_monitoring_have_no_callbacks_meanwhile(monkeypatch):
    callbacks = {(1, 1): "line", (1, 4): None, (3, 1): None, (3, 4): "call"}

    def register_callback(tool, event, callback):
        before, callbacks[tool, event] = callbacks[tool, event], callback
        return before

    monitoring = SimpleNamespace(
        events=SimpleNamespace(NO_EVENTS=0, LINE=1, CALL=4),
        get_tool=lambda tool: {1: "coverage", 3: "another"}.get(tool),
        register_callback=register_callback,
    )
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    before = dict(callbacks)
    with untraced():
        assert set(callbacks.values()) == {None}
    assert callbacks == before


# looking behind one execution


class ExecutingTimer(ScriptedTimer):
    """Executes what it is given, too."""

    def collect(self, iterations, *, cold):
        for iteration in iterations:
            iteration.run()
        return super().collect(iterations, cold=cold)


@pytest.mark.parametrize("call_ns", [1000.0, 20 * MS])
@pytest.mark.parametrize("chosen", [0, 1, 6, 9])
def test_outputs_are_looked_at_exactly_behind_the_execution_that_was_chosen(monkeypatch, chosen, call_ns):
    """Whether it falls into the first batch, as with ten calls in one, or into a later one, as with two."""
    asked, executed, looks = [], [], []
    monkeypatch.setattr(random, "randrange", lambda count: asked.append(count) or chosen)
    call = Repeated(lambda: executed.append(1))
    inspects = {"inspect": lambda: looks.append(len(executed))}
    found = sampled(ExecutingTimer(WILD), call_ns, call, rule=StoppingRule(0, 30, 300), **inspects)
    assert looks == [chosen + 1]
    assert len(found.samples_ns) == len(executed) == 300
    assert asked == [30], "among the fewest that are taken, so that it is always reached"


# what outputs hold


class AnsweringTimer(FakeTimer):
    """Times calls by whether `full` says that they find what was filled in, and not the answer before."""

    def __init__(self, name, working_ns, skipping_ns=1000.0, spoilt=0):
        super().__init__(name)
        self.times, self.spoilt, self.refilled = (skipping_ns, working_ns), spoilt, []

    def collect(self, iterations, *, cold):
        filled = all(iteration.before is not None for iteration in iterations)
        self.refilled.append(filled)
        disturbed = self.spoilt == len(self.refilled)
        return Batch([self.times[filled] * (3 if disturbed else 1)] * len(iterations))


class Refillable(Repeated):
    def take(self, count, *, cold, refilled=False):
        return [Iteration(nothing, before=nothing if refilled else None)] * count


DEPENDS = "its time depends on what its outputs hold: 30 µs where we filled them just before, 7 µs over what"


@pytest.mark.parametrize(
    ("timer", "invalid"),
    [
        (AnsweringTimer("cupti", 30_000.0, 7_000.0), DEPENDS),
        (AnsweringTimer("graph", 30_000.0, 7_000.0), DEPENDS),
        (AnsweringTimer("event", 30_000.0, 7_000.0), None),  # which does not see on which stream it works
        (AnsweringTimer("cupti", 1_900.0), None),  # less than a microsecond
        (AnsweringTimer("cupti", 108_000.0, 100_000.0), None),  # less than a tenth
        (AnsweringTimer("cupti", 2_000.0, 2_000.0, spoilt=2), None),  # a second draw does not agree
    ],
)
def test_a_call_whose_time_depends_on_what_its_outputs_hold_is_invalid(timer, invalid):
    rule, draw = StoppingRule(0, 30, 300), random.Random(2)
    assert draw.randrange(1, 3) == 1
    found = sampled(timer, executions=Refillable(nothing), rule=rule, draw=random.Random(2))
    assert (found.invalid or "").startswith(invalid or "")
    assert bool(found.invalid) == bool(invalid)
    if timer.name != "event":
        batches = [bool(number % 5 == 1) for number in range(len(timer.refilled))]
        assert timer.refilled[:6] == batches[:6], "a fifth of the batches, and never the first"


def test_a_gap_that_differs_from_batch_to_batch_depends_on_no_outputs():
    class GapTimer(FakeTimer):
        def collect(self, iterations, *, cold):
            gap_ns = draw.choice((0.0, 1500.0))
            return Batch([10_000.0 + gap_ns] * len(iterations))

    draw = random.Random(7)
    rule = StoppingRule(0, 30, 30)
    found = [sampled(GapTimer("cupti"), executions=Refillable(nothing), rule=rule) for _ in range(300)]
    assert sum(measurement.invalid is not None for measurement in found) <= 3


@pytest.mark.parametrize(
    ("executions", "how"), [(Refillable(nothing), Sampler.glance), (Repeated(nothing), Sampler.measure)]
)
def test_nothing_is_refilled_in_a_glance_or_where_nothing_can_be(executions, how):
    timer = AnsweringTimer("cupti", 30_000.0)
    assert how(sampler(timer, executions=executions, rule=StoppingRule(0, 30, 300))).invalid is None
    assert len(timer.refilled) >= 3, "with batches that `measure` would fill"
    assert not any(timer.refilled)


# graphs


class Sets(Repeated):
    """Executions on ten buffer sets in turn."""

    buffer_sets = 10


@pytest.mark.parametrize(
    ("name", "cache", "asked"),
    [
        ("graph", "cold", [10, 60, 60, 60]),
        ("graph", "hot", [4, 64, 64, 58]),
        ("event", "cold", [4, 64, 64, 58]),
    ],
)
def test_a_cold_graph_holds_whole_turns_on_all_buffer_sets(monkeypatch, name, cache, asked):
    """It is replayed without a flush between its calls, so that a few sets again and again would be warm."""
    monkeypatch.setattr(random, "randrange", lambda count: 3)
    timer, looks = ScriptedTimer(WILD), []
    timer.name = name
    inspects = {"inspect": lambda: looks.append(len(timer.given))}
    sampled(timer, executions=Sets(nothing), cache=cache, rule=StoppingRule(0, 190, 190), **inspects)
    assert timer.asked == asked
    assert looks == asked[:1]


# samples that do not count


class ScriptedWatch(Observation):
    """Refuses these batches by their numbers; gives up after so many of them."""

    def __init__(self, refused, patience=10**9):
        self.refused, self.patience = refused, patience
        self.seen = []
        self.lasts = []
        self.before_batches = 0

    def before(self):
        self.before_batches += 1
        assert self.before_batches == len(self.seen) + 1

    def after(self, batch, *, last):
        self.seen.append(batch)
        self.lasts.append(last)
        refused = len([number for number in self.refused if number <= len(self.seen)])
        hopeless = "the device is never fit" if refused >= self.patience else None
        return Look(fault="throttled" if len(self.seen) in self.refused else None, hopeless=hopeless)

    def finish(self, measurement):
        self.finished = list(measurement.samples_ns)
        return Seen({"sm_mhz": 1980, "power_w": None}, (Note("hot"),))


def test_samples_of_a_device_that_was_not_fit_are_counted_and_taken_again():
    timer, watch = ScriptedTimer([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), ScriptedWatch({1, 3})
    found = sampled(timer, observing={"watch": watch}, rule=StoppingRule(0, 6, 6))
    assert found.samples_ns == (4.0, 5.0, 3.0, 4.0, 5.0, 6.0)
    assert timer.asked == [2, 1, 2, 2, 1, 2, 2], "after a pause one execution warms the device up"
    assert (found.invalid_samples, found.invalid) == (4, None)
    assert found.stopped == "6 samples"
    assert watch.finished == list(found.samples_ns)
    assert found.observations == {"watch": {"sm_mhz": 1980}}
    assert Note("hot") in found.summary.notes


def test_a_device_that_is_never_fit_makes_it_invalid_and_shows_what_it_read():
    watch = ScriptedWatch({1, 2, 3}, patience=3)
    found = sampled(ScriptedTimer([1.0, 2.0], most=2), observing={"watch": watch}, rule=StoppingRule(0, 6, 6))
    assert found.invalid == "the device is never fit"
    assert found.stopped == "throttled"
    assert (found.invalid_samples, found.samples_ns) == (6, (1.0, 2.0))


class SeldomWatch(ScriptedWatch):
    """Looks behind every third batch and at the end."""

    def after(self, batch, *, last):
        found = super().after(batch, last=last)
        return found if last or len(self.seen) % 3 == 0 else Look(settled=False)


def test_all_samples_since_the_last_look_are_refused_together_and_none_before_it():
    timer, watch = ScriptedTimer([float(n) for n in range(1, 31)], most=1), SeldomWatch({6})
    found = sampled(timer, observing={"watch": watch}, rule=StoppingRule(0, 8, 8))
    assert found.samples_ns == (1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0, 12.0), "7.0 warmed up"
    assert (found.invalid_samples, found.invalid) == (3, None)


def test_where_sampling_would_end_the_device_is_looked_at_and_the_rest_taken_again():
    watch = SeldomWatch({5})
    found = sampled(ScriptedTimer([1000.0], most=1), observing={"watch": watch}, rule=StoppingRule(0, 5, 5))
    assert watch.lasts == [False, False, False, False, True, False, True]
    assert (found.summary.n, found.invalid_samples, found.stopped) == (5, 2, "5 samples")


def test_a_device_that_is_never_fit_again_leaves_the_samples_that_count():
    watch = SeldomWatch({6}, patience=1)
    samples = [float(n) for n in range(1, 31)]
    found = sampled(ScriptedTimer(samples, most=1), observing={"watch": watch}, rule=StoppingRule(0, 8, 8))
    assert found.invalid == "the device is never fit"
    assert (found.samples_ns, found.invalid_samples) == ((1.0, 2.0, 3.0), 3)


def test_what_is_executed_only_once_is_left_out_if_the_device_was_not_fit_also_at_the_end():
    timer, watch = ScriptedTimer([1.0, 2.0, 3.0, 4.0, 5.0]), SeldomWatch({5})
    sampler = Sampler(Repeated(nothing), timer, "kernel", "hot", 0.0, StoppingRule(), {"watch": watch})
    for number in range(1, 6):
        with pytest.raises(TimerUnavailable, match="throttled") if number == 5 else nullcontext():
            sampler.take(Iteration(nothing), last=number == 5)
    found = sampler.finished(None)
    assert (found.samples_ns, found.invalid_samples, found.stopped) == ((1.0, 2.0, 3.0), 2, "3 samples")


# what the device did


class TellingTimer(ScriptedTimer):
    """Says what the device did; from batch `waits_from` on the call could not be queued."""

    def __init__(self, *arguments, waits_from=10**9, kernels=1, **values):
        super().__init__(*arguments, **values)
        self.waits_from, self.kernels = waits_from, kernels

    def collect(self, iterations, *, cold):
        batch = super().collect(iterations, cold=cold)
        batch.busy_ns = [sample / 2 for sample in batch.samples_ns]
        work = DeviceWork("kernel", f"k{len(self.asked)}", self.kernels, 500.0)
        batch.work = (work,) if self.kernels else ()
        batch.launch_included = len(self.asked) >= self.waits_from
        return batch


def test_busy_time_is_the_median_over_all_batches_and_the_work_that_of_the_last():
    found = sampled(TellingTimer([1000.0, 3000.0, 2000.0], most=1), rule=StoppingRule(0, 3, 3))
    assert found.busy_ns == 1000.0
    assert [work.name for work in found.work] == ["k3"]


def test_once_the_launch_cost_is_in_the_number_earlier_samples_are_of_something_else():
    timer = TellingTimer([1.0, 2.0, 30.0, 40.0, 50.0, 60.0], most=2, waits_from=2)
    found = sampled(timer, rule=StoppingRule(0, 4, 4))
    assert found.samples_ns == (30.0, 40.0, 50.0, 60.0)
    assert found.busy_ns == 22.5


@pytest.mark.parametrize(
    ("sample", "kernels", "waits_from", "jitter_ns"),
    [
        (800.0, 1, 99, 0.0),  # no gap
        (800.0, 2, 99, 150.0),  # half of 300 ns between two kernels
        (800.0, 5, 99, 75.0),  # in four gaps
        (400.0, 2, 99, 0.0),  # they overlap
        (800.0, 0, 1, 120.0),  # the host launches what nobody sees
    ],
)
def test_a_median_spreads_by_what_lies_between_kernels_less_the_more_gaps_there_are_and_by_what_launches(
    sample, kernels, waits_from, jitter_ns
):
    timer = TellingTimer([sample], kernels=kernels, waits_from=waits_from)
    found = sampled(timer, rule=StoppingRule(0, 6, 6))
    assert found.jitter_ns == pytest.approx(math.hypot(7.0, jitter_ns))


# fresh arguments


def test_a_batch_holds_the_arguments_of_8_calls_at_most():
    timer = ScriptedTimer(WILD)
    sampled(timer, executions=Repeated(nothing, lambda: ((), {})), rule=StoppingRule(0, 30, 30))
    assert timer.asked == [8, 8, 8, 6]


def test_a_setup_makes_the_arguments_of_each_iteration_ahead_and_anew_for_another_try():
    made, seen = [], []

    def setup():
        made.append([])
        return (made[-1],), {"k": len(made)}

    iterations = Repeated(lambda fresh, *, k: seen.append((fresh, k)), setup).take(2, cold=True)
    assert len(made) == 2
    for iteration in (*iterations, iterations[0].again().again()):
        iteration.run()
    assert seen == [([], 1), ([], 2), ([], 4)]
    assert [fresh for fresh, _ in seen] == [made[0], made[1], made[3]]
    assert len({id(fresh) for fresh, _ in seen}) == 3
