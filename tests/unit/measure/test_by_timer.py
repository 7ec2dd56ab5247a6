"""Tests which timer measures a call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_gpukern.measure import by_timer
from pytest_gpukern.measure.by_timer import measured_by
from pytest_gpukern.timers.timer import NothingLaunched, TimerUnavailable
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import DeviceWork, Measurement, Summary
from pytest_gpukern.values.timer_table import TIMERS, auto_timers, timer_row

NO_CUPTI = TimerUnavailable("cupti-python is not installed")
CANNOT = f"the timer 'cupti' cannot time this call: {NO_CUPTI}; use --gpukern-timer=auto"


def measurement(timer, median_ns=1.0, **changes):
    summary = Summary(median_ns, median_ns, median_ns, 10, (Note("odd"),))
    return Measurement("kernel", timer, "cold", 1, summary, samples_ns=(median_ns,), **changes)


class Call:
    """A call whose timers are only names; `.sampled` has each that sampled it, and how.

    Attributes:
        found: timer → what it measures, or why it cannot.
    """

    def __init__(self, **found):
        self.found, self.sampled = found, []

    def by(self, timer):
        return self._sampled(timer, "measured")

    def glance_by(self, timer):
        return self._sampled(timer, "glanced")

    def _sampled(self, timer, how):
        found = self.found.get(timer) or measurement(timer)
        if isinstance(found, Exception):
            raise found
        self.sampled.append((timer, how))
        return found


@pytest.fixture
def opened(monkeypatch):
    """`.asked` has (name, stream, any_stream) of each timer, `.tries` whether it was to queue its calls.

    `.unusable` maps names to why not, `.queues` says whether their calls can be queued.
    """
    found = SimpleNamespace(asked=[], tries=[], unusable={}, queues=True)

    def open_timer(name, stream, *, any_stream=False, queues=True):
        found.asked.append((name, stream, any_stream))
        found.tries.append(queues)
        if name in found.unusable:
            raise found.unusable[name]
        return type("Name", (str,), {"queues": found.queues})(name)

    monkeypatch.setattr(by_timer, "open_timer", open_timer)
    return found


def timed_by(wanted, scope="kernel", call=None, *, any_stream=False):
    return measured_by(call or Call(), wanted, scope=scope, stream="s", any_stream=any_stream)


@pytest.mark.parametrize("any_stream", [True, False])
def test_a_kernel_is_timed_by_cupti_and_events_glance_at_it(opened, any_stream):
    call = Call()
    found = timed_by("auto", call=call, any_stream=any_stream)
    assert call.sampled == [("cupti", "measured"), ("event", "glanced")]
    assert opened.asked == [("cupti", "s", any_stream), ("event", "s", False)]
    assert found == measurement("cupti")


def test_where_events_cannot_glance_cuptis_time_stands_alone(opened):
    unusable = TimerUnavailable("it waits for the device")
    for opened.unusable, call in (({"event": unusable}, Call()), ({}, Call(event=unusable))):
        assert timed_by("auto", call=call) == measurement("cupti")


@pytest.mark.parametrize("queues", [True, False])
def test_events_do_not_try_to_queue_what_cupti_could_not(opened, queues):
    opened.queues = queues
    timed_by("auto")
    assert opened.tries == [True, queues]


@pytest.mark.parametrize("when", ["opened", "used"])
@pytest.mark.parametrize(
    ("wanted", "timer", "notes", "invalid"),
    [
        ("auto", "event", ["timed by events, not by CUPTI: cupti-python is not installed", "odd"], None),
        ("cupti", "host", ["odd"], CANNOT),
    ],
)
def test_without_cupti_events_time_a_kernel_but_where_it_was_asked_for_the_hosts_time_is_invalid(
    opened, when, wanted, timer, notes, invalid
):
    call = Call(cupti=NO_CUPTI if when == "used" else None)
    if when == "opened":
        opened.unusable = {"cupti": NO_CUPTI}
    only = timed_by(wanted, call=call)
    assert call.sampled == [(timer, "measured")]
    assert ([note.text for note in only.summary.notes], only.timer, only.invalid) == (notes, timer, invalid)


@pytest.mark.parametrize(
    ("scope", "wanted", "timers"),
    [
        *(("kernel", timer, [timer]) for timer in ("cupti", "event", "graph", "host")),
        *(("end_to_end", wanted, ["host", "cupti"]) for wanted in ("auto", "cupti")),
        *(("end_to_end", wanted, ["host"]) for wanted in ("event", "host")),
        # nothing but copies, which CUPTI need not tell from kernels: it is not even opened
        *(("transfer", wanted, ["host"]) for wanted in ("auto", "cupti")),
    ],
)
def test_a_scope_is_timed_by_the_timer_asked_for_or_by_the_hosts_clock_which_cupti_on_any_stream_splits(
    opened, scope, wanted, timers
):
    call = Call()
    assert timed_by(wanted, scope, call).timer == timers[0]
    assert call.sampled == list(zip(timers, ("measured", "glanced"), strict=False))
    assert opened.asked == [(timer, "s", bool(place)) for place, timer in enumerate(timers)]


def test_an_end_to_end_time_holds_what_cupti_saw_and_nothing_else_of_it(opened):
    work = (DeviceWork("kernel", "axpy", 1.0, 900.0), DeviceWork("memcpy", "HtoD", 2.0, 400.0, 64.0))
    seen = {"work": work, "order": (1, 0, 1), "busy_ns": 900.0}
    found = timed_by("auto", "end_to_end", Call(cupti=measurement("cupti", 1500.0, invalid="odd", **seen)))
    assert found == measurement("host", device_ns=1500.0, **seen)


@pytest.mark.parametrize("wanted", ["auto", "cupti", "host"])
def test_a_launch_is_timed_by_the_hosts_clock_until_it_returns(opened, monkeypatch, wanted):
    made = SimpleNamespace(on_stream=lambda stream, *, any_stream, queues: f"launches on {stream}")
    monkeypatch.setattr(by_timer, "LaunchTimer", made)
    assert timed_by(wanted, "launch").timer == "launches on s"
    assert opened.asked == []


def test_a_broken_timer_is_not_taken_for_one_that_is_not_there(opened):
    opened.unusable = {"cupti": RuntimeError("broken")}
    for scope in ("kernel", "end_to_end"):
        with pytest.raises(RuntimeError, match="broken"):
            timed_by("auto", scope)


# what a glance by events contradicts

CONTRADICTION = (
    "events read {} % less than CUPTI: they missed work on another stream, or the kernel is slower while "
    "CUPTI records it (--gpukern-timer=event)"
)


def read(cupti_ns, event_ns, cost_ns=None):
    """Returns what CUPTI measures where a glance by events, which cost `cost_ns`, reads another time."""
    event = measurement("event", event_ns, fixed_cost_ns=cost_ns)
    return timed_by("auto", call=Call(cupti=measurement("cupti", cupti_ns), event=event))


@pytest.mark.parametrize(
    ("cupti_ns", "event_ns", "cost_ns", "contradict"),
    [
        (10_000.0, 69_000.0, 3_000.0, True),
        (1_300.0, 4_700.0, 3_400.0, False),
        (10_000.0, 17_900.0, 3_000.0, False),
        (10_000.0, 18_100.0, 3_000.0, True),
        (10_000.0, 18_000.0, 3_000.0, False),
        (100_000.0, 113_000.0, 3_000.0, False),
        (100_000.0, 113_001.0, 3_000.0, True),
        (10_000.0, 69_000.0, None, False),  # not queued: the host's launches are in it
    ],
)
def test_events_that_read_far_more_than_cupti_and_what_they_cost_are_noted(
    opened, monkeypatch, cupti_ns, event_ns, cost_ns, contradict
):
    monkeypatch.setattr(by_timer, "machine_code", lambda: None)
    main = read(cupti_ns, event_ns, cost_ns)
    note = (
        f"events read {event_ns / 1e3:.1f} µs, CUPTI {cupti_ns / 1e3:.1f} µs: CUPTI has no record of some "
        "work, or the device waited before the call (--gpukern-timer=event)"
    )
    assert main.summary.notes == ((Note(note, About.READER), Note("odd")) if contradict else (Note("odd"),))
    assert main.invalid is None

    launching = SimpleNamespace(any_launches_from_device=lambda: True)
    monkeypatch.setattr(by_timer, "machine_code", lambda: launching)
    main = read(cupti_ns, event_ns, cost_ns)
    assert ("launches kernels from the device" in (main.invalid or "")) == contradict


@pytest.mark.parametrize(
    ("cupti_ns", "event_ns", "said"),
    [
        (1000.0, 4000.0, None),
        (1000.0, 1000.0, None),
        (1000.0, 990.0, None),
        (1000.0, 989.0, "1.1"),
        (1000.0, 100.0, "90.0"),
    ],
)
def test_events_that_read_a_percent_less_than_cupti_contradict_it(opened, cupti_ns, event_ns, said):
    main = read(cupti_ns, event_ns)
    told = [] if said is None else [Note(CONTRADICTION.format(said), About.TIMERS)]
    assert main.summary.notes == (*told, Note("odd"))
    assert (main.summary.median_ns, main.invalid) == (cupti_ns, None), "it is a note"


LAUNCHES_NOTHING = Call(cupti=NothingLaunched("nothing"))


@pytest.mark.parametrize("wanted", ["auto", "cupti"])
def test_events_do_not_time_a_call_that_launches_nothing(opened, wanted):
    with pytest.raises(NothingLaunched):
        timed_by(wanted, call=LAUNCHES_NOTHING)
    assert opened.asked == [("cupti", "s", False)]


def test_the_hosts_time_needs_no_work_on_the_device(opened):
    assert timed_by("auto", "end_to_end", LAUNCHES_NOTHING) == measurement("host")


def test_a_requested_timer_of_the_host_times_what_ends_on_the_host(opened, monkeypatch):
    monkeypatch.setitem(TIMERS, "ticks", TIMERS["host"])
    for scope in ("kernel", "transfer", "end_to_end"):
        assert timed_by("ticks", scope) == measurement("ticks")


def test_a_row_says_when_auto_takes_a_timer(monkeypatch):
    """`tests/plugin/test_new_timer.py` adds a file for one."""
    monkeypatch.setitem(TIMERS, "counter", TIMERS["event"]._replace(auto=-1))
    assert auto_timers()[:2] == ("counter", "cupti")


def test_a_timer_that_a_newer_release_recorded_is_taken_for_the_worst():
    assert timer_row("newer") == TIMERS["host"]
