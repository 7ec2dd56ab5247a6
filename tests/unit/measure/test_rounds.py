"""Tests the order of rounds with any timer, and how many of them become samples."""

from __future__ import annotations

import dataclasses

import pytest
from fakes import FakeClock, FakeTimer

from pytest_gpukern.measure.measure import Sampler, rule_for
from pytest_gpukern.measure.rounds import Rounds, arguments_made
from pytest_gpukern.timers.host import HostTimer
from pytest_gpukern.timers.timer import Batch


class LookingTimer(FakeTimer):
    """Executes what it is given, and at the end a few more to look for escaped work, as a device's timers."""

    def __init__(self):
        super().__init__("looking")
        self.batches = []

    def collect(self, iterations, *, cold):
        self.batches.append(len(iterations))
        for iteration in iterations:
            iteration.execute()
        return Batch([1000.0] * len(iterations))

    def suspicion(self, iteration):
        for _ in range(4):
            iteration = iteration.again()
            iteration.execute()
        return "looked at"


class ImpatientTimer(LookingTimer):
    """Executes everything twice, as a timer does that could not queue it the first time."""

    def collect(self, iterations, *, cold):
        for iteration in iterations:
            iteration.execute()
        return super().collect([iteration.again() for iteration in iterations], cold=cold)

    def suspicion(self, iteration):
        return None


@pytest.fixture
def log():
    return []


def logged(log, **changes):
    """Rounds that note what they do, each with a number of its own as argument."""

    def setup():
        log.append("setup")
        return (len(log),), {}

    values = {"setup": setup, "teardown": lambda number: log.append(f"teardown {number}"), **changes}
    return Rounds(lambda number: log.append(f"call {number}"), **values)


def take(rounds, timer=None, cache="cold"):
    """What `measure` makes of rounds."""
    rule, count = rule_for(1000.0), rounds.count
    return Sampler(
        rounds,
        timer or LookingTimer(),
        scope="kernel",
        cache=cache,
        call_ns=1000.0,
        rule=rule if count is None else dataclasses.replace(rule, min_samples=count, max_samples=count),
        clock=FakeClock().seconds,
    ).measure()


def in_turn(log, rounds):
    """Whether so many rounds are in the log, each of which ended before the next began."""
    numbers = range(1, 3 * rounds, 3)
    return log == [line for n in numbers for line in ("setup", f"call {n}", f"teardown {n}")]


# order


@pytest.mark.parametrize(
    ("timer", "executions"),
    [
        (LookingTimer(), 4 + 4 + 1),
        (ImpatientTimer(), 2 * 4 + 1),
        (HostTimer(lambda: None), 4 + 1),
        (HostTimer(lambda: None, lambda: None), 4 + 1),
    ],
    ids=["looks for escaped work", "executes again", "host", "host, flushing"],
)
@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_each_round_ends_before_the_next_begins_whatever_the_timer_does(log, timer, executions, cache):
    rounds = logged(log, count=4)
    take(rounds, timer, cache)
    rounds.begin().execute()  # also where a timer was handed a round that it never executed
    rounds.finish()
    assert in_turn(log, executions)


def test_a_round_that_was_taken_and_not_executed_is_taken_again(log):
    rounds = logged(log)
    for _ in range(3):
        (iteration,) = rounds.take(1, cold=True)
    iteration.execute()
    rounds.finish()
    assert in_turn(log, 1)


@pytest.mark.parametrize("only", [{"setup": None, "args": (7,)}, {"teardown": None}])
def test_a_setup_or_a_teardown_alone_makes_rounds_take_turns(log, only):
    timer = LookingTimer()
    take(logged(log, count=5, **only), timer)
    assert timer.batches == [1] * 5


def test_without_setup_and_teardown_a_timer_gets_many_at_once():
    timer = LookingTimer()
    rounds = Rounds(lambda a, b: None, (1,), {"b": 2}, count=50)
    found = take(rounds, timer)
    assert (found.samples_ns, found.stopped) == ((1000.0,) * 50, "50 samples")
    assert timer.batches == [17, 17, 16]


def test_a_teardown_waits_for_the_device(log):
    rounds = logged(log, setup=None, args=(1,), synchronize=lambda: log.append("idle"))
    rounds.begin().execute()
    rounds.finish()
    assert log == ["call 1", "idle", "teardown 1"]
    rounds.finish()
    assert len(log) == 3, "a round ends once"


def test_work_that_a_setup_left_running_is_waited_for_before_the_call(log):
    rounds = logged(log, teardown=None, synchronize=lambda: log.append("idle"))
    rounds.begin().execute()
    rounds.begin().execute()
    assert log == ["setup", "idle", "call 1", "setup", "idle", "call 4"]


def test_warming_up_runs_the_rounds_that_were_asked_for(log):
    logged(log, warmup_count=2).warm_up()
    assert log == ["setup", "call 1", "teardown 1", "setup", "call 4"]
    calls = []
    Rounds(calls.append, (1,)).warm_up()
    assert not calls
    Rounds(calls.append, (1,), warmup_count=3, iterations=4).warm_up()
    assert len(calls) == 12


def test_an_exception_of_the_call_leaves_its_round_open(log):
    def fails(number):
        raise ZeroDivisionError

    rounds = logged(log)
    rounds.target = fails
    with pytest.raises(ZeroDivisionError):
        rounds.begin().execute()
    assert log == ["setup"], "as in pytest-benchmark: nothing is torn down that did not end"


def test_with_a_hot_cache_a_round_makes_the_calls_asked_for_and_with_a_cold_one_a_single_one():
    calls = []
    rounds = Rounds(calls.append, (1,), iterations=4)
    for cold, expected in ((False, 4), (True, 1)):
        calls.clear()
        (iteration,) = rounds.take(1, cold=cold)
        iteration.execute()
        assert len(calls) == expected == iteration.launches == rounds.calls(cold=cold)


# arguments


def test_what_a_setup_returns_takes_the_place_of_no_arguments():
    assert Rounds(dict, setup=lambda: ([[("a", 1)]], {"b": 2})).begin().execute() == {"a": 1, "b": 2}


@pytest.mark.parametrize("nothing", [None, (), 0])
def test_a_setup_that_returns_nothing_leaves_the_arguments_given(nothing):
    assert Rounds(max, (1, 2), setup=lambda: nothing).begin().execute() == 2
    assert arguments_made(None) == ((), {})


def test_a_setup_may_not_return_arguments_beside_those_given():
    with pytest.raises(TypeError, match="pedantic: give args and kwargs, or a setup that returns them"):
        Rounds(max, (1, 2), setup=lambda: ((3, 4), {})).begin().execute()


@pytest.mark.parametrize("returned", [3, "ab", [1, 2]])
def test_a_setup_that_returns_something_else_is_refused(returned):
    with pytest.raises(TypeError, match=r"setup returned \w+: it must return \(args, kwargs\), a tuple"):
        Rounds(max, setup=lambda: returned).begin().execute()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"count": 0}, r"pedantic\(rounds=0\): must be a whole number, at least 1"),
        ({"count": "3"}, r"pedantic\(rounds='3'\): must be a whole number, at least 1"),
        ({"warmup_count": -1}, r"pedantic\(warmup_rounds=-1\): must be a whole number, at least 0"),
        ({"iterations": 0.5}, r"pedantic\(iterations=0.5\): must be a whole number, at least 1"),
        ({"iterations": 2, "setup": dict}, r"pedantic\(iterations=2, setup=…\): a setup prepares one call"),
    ],
)
def test_impossible_numbers_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        Rounds(int, **numbers)
