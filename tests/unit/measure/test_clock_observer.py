"""How the device is looked at around batches: how often, what makes samples void, and what is told."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from fake_nvml import state

from pytest_gpukern.gpu.nvml import GpuProcess
from pytest_gpukern.measure import observers as observers_module
from pytest_gpukern.measure.device_clocks import ClockObservation, Recovery
from pytest_gpukern.measure.observers import Instruments
from pytest_gpukern.timers.timer import Batch
from pytest_gpukern.values.result import Measurement, Summary

HOT = {"clock_events": ("hw_thermal_slowdown",), "temperature_c": 92}
BATCH = Batch([1000.0] * 10)


class FakeInstruments:
    """Instruments whose readings are known.

    Attributes:
        age_s: seconds since NVML was asked; 0 after each asking.
        asked: how often it was.
        probe: reads `clock`, in MHz; None measures no clock.
    """

    max_sm_mhz = 1980.0
    max_memory_mhz = 3201.0

    def __init__(self, *states, clock=1980.0):
        self.states = list(states) or [state()]
        self.clock = clock
        self.probe = SimpleNamespace(read=lambda: self.clock)
        self.age_s = 0.0
        self.asked = 0

    def state(self, *, within_s=0.02):
        if 0 < self.age_s <= within_s and self.asked:
            return self.states[min(self.asked, len(self.states)) - 1]
        found = self.states[min(self.asked, len(self.states) - 1)]
        self.asked += 1
        self.age_s = 0.0
        return found


def watching(instruments, **arguments):
    """A watch whose pauses are kept in `.pauses` instead of waited for."""
    pauses = []
    made = ClockObservation(instruments, recovery=Recovery(sleep=pauses.append), **arguments)
    made.pauses = pauses
    return made


def batches(watch, instruments, *ages_s):
    """What is said of batches that end when NVML was last asked so long ago; the last one ends sampling."""
    said = []
    for number, age_s in enumerate(ages_s, start=1):
        watch.before()
        instruments.age_s = age_s
        look = watch.after(BATCH, last=number == len(ages_s))
        said.append((look.fault, look.settled))
    return said


def finished(watch):
    summary = Summary(1000.0, 1000.0, 1000.0, 1, ())
    return watch.finish(Measurement("kernel", "cupti", "", "cold", (1000.0,), 1, summary, ""))


# how often


def test_nvml_is_asked_before_the_first_batch_every_tenth_of_a_second_and_at_the_end():
    instruments = FakeInstruments()
    watch = watching(instruments)
    assert batches(watch, instruments, 0.05, 0.09, 0.11, 0.05, 0.01) == [
        (None, False),
        (None, False),
        (None, True),
        (None, False),
        (None, True),
    ]
    assert instruments.asked == 1 + 1 + 1


def test_beside_a_main_timer_the_look_behind_its_samples_will_do_for_a_tenth_of_a_second():
    instruments = FakeInstruments()
    instruments.state()  # behind the main timer's samples
    instruments.age_s = 0.09
    watch = watching(instruments, beside=True)
    assert batches(watch, instruments, 0.095, 0.099) == [(None, False), (None, False)]
    assert instruments.asked == 1
    assert finished(watch).state["memory_mhz"] == state().memory_clock_mhz


def test_beside_a_main_timer_the_device_is_looked_at_after_a_tenth_of_a_second_and_where_the_clock_is_low():
    instruments = FakeInstruments()
    watch = watching(instruments, beside=True)
    assert batches(watch, instruments, 0.11, 0.05) == [(None, True), (None, False)]
    assert instruments.asked == 1 + 1
    slow = FakeInstruments(clock=1484.0)
    ((said, settled),) = batches(watching(slow, beside=True), slow, 0.01)
    assert said.startswith("the SM clock was 1484 MHz")
    assert settled


def test_a_low_clock_has_nvml_asked_at_once():
    instruments = FakeInstruments(clock=1484.0)
    watch = watching(instruments)
    watch.before()
    look = watch.after(BATCH, last=False)
    assert look.fault.startswith("the SM clock was 1484 MHz, 75 % of 1980 MHz")
    assert look.settled


def test_a_low_clock_that_a_power_limit_explains_is_asked_about_and_accepted():
    instruments = FakeInstruments(state(clock_events=("sw_power_cap",)), clock=1200.0)
    watch = watching(instruments)
    assert batches(watch, instruments, 0.01, 0.01) == [(None, True), (None, True)]
    (note,) = finished(watch).summary.warnings
    assert note == "clocks held down by the power limit: SM clock 1200 MHz of 1980"


@pytest.mark.parametrize("highest", [None, 0.0])
def test_of_a_device_that_does_not_tell_its_highest_clock_none_is_low(highest):
    instruments = FakeInstruments(clock=300.0)
    instruments.max_sm_mhz = highest
    assert batches(watching(instruments), instruments, 0.01, 0.01) == [(None, False), (None, True)]


@pytest.mark.parametrize("probe", [None, SimpleNamespace(read=lambda: None)])
def test_without_a_measured_clock_nvmls_is_judged_where_it_is_asked(probe):
    instruments = FakeInstruments(state(), state(sm_clock_mhz=900))
    instruments.probe = probe
    (_, first), (said, last) = batches(watching(instruments), instruments, 0.01, 0.01)
    assert (first, last) == (False, True)
    assert said.startswith("the SM clock was 900 MHz")


# what does not count


def test_what_came_and_went_since_the_last_look_is_found_by_nvmls_counters():
    counters = dict(state().limited_ns)
    later = state(200, limited_ns={**counters, "hw_thermal_slowdown": 40_000_000})
    instruments = FakeInstruments(state(0), later)
    watch = watching(instruments)
    (quiet, in_doubt), (said, _) = batches(watch, instruments, 0.05, 0.15)
    assert (quiet, in_doubt) == (None, False)
    assert "hw_thermal_slowdown for 20 % of the batch" in said
    assert watch.pauses == [0.05]


def test_after_a_pause_the_device_is_looked_at_again_and_the_next_batch_compared_with_that():
    stranger = GpuProcess(4711, "train.py", 9000)
    came = state(100, foreign=(stranger,))
    instruments = FakeInstruments(state(0), came, state(200, foreign=(stranger,)), state(300))
    watch = watching(instruments)
    said = [text for text, _ in batches(watch, instruments, 0.2, 0.2)]
    assert said[0].startswith("another process began to use the device during the batch: ")
    assert said[1] is None, "it was there already, and idle"
    assert instruments.asked == 1 + 2 + 1
    assert (
        finished(watch)
        .summary.warnings[0]
        .startswith("1 batch was disturbed and repeated: 1 × another process")
    )


def test_after_each_disturbed_batch_there_is_a_pause_until_the_measurement_is_given_up():
    instruments = FakeInstruments(state(**HOT))
    watch, looks = watching(instruments), []
    while not looks or looks[-1].hopeless is None:
        watch.before()
        instruments.age_s = 0.2
        looks.append(watch.after(BATCH, last=False))
        assert "too hot" in looks[-1].fault
    assert len(looks) == len(watch.pauses) + 1 == 9
    assert looks[-1].hopeless.startswith("could not be measured cleanly: 9 batches were disturbed")
    assert "improve the cooling" in looks[-1].hopeless


# what is told


def test_the_state_is_that_after_the_last_batch_with_the_clocks_of_all():
    instruments = FakeInstruments(
        state(power_w=300.0), state(temperature_c=50, power_w=612.5, clock_events=("sw_power_cap",))
    )
    watch = watching(instruments)
    for clock in (1975.04, 1980.0, None, 1960.0):
        instruments.clock = clock
        watch.before()
        watch.after(BATCH, last=clock == 1960.0)
    found = finished(watch).state
    assert json.loads(json.dumps(found)) == {
        "sm_mhz": 1975.0,
        "sm_mhz_range": [1960.0, 1980.0],
        "memory_mhz": 3201,
        "temperature_c": 50,
        "memory_temperature_c": 45,
        "power_w": 612.5,
        "clock_events": ["sw_power_cap"],
        "memory_used_bytes": 2**30,
    }


def test_what_the_driver_does_not_tell_is_left_out_and_its_clock_stands_in_for_the_measured_one():
    instruments = FakeInstruments(
        state(power_w=None, memory_temperature_c=None, temperature_c=None, clock_events=None)
    )
    instruments.probe = None
    watch = watching(instruments)
    assert batches(watch, instruments, 0.2) == [(None, True)]
    assert finished(watch).state == {
        "sm_mhz": 1980.0,
        "memory_mhz": 3201,
        "clock_events": [],
        "memory_used_bytes": 2**30,
    }


# the instruments


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(observers_module, "time", made)
    return made


def test_a_state_of_20_ms_ago_is_still_taken_and_an_older_one_asked_again(clock):
    answers = iter([state(0), state(21)])
    instruments = Instruments(SimpleNamespace(state=lambda: next(answers)))
    assert instruments.age_s == float("inf")
    first = instruments.state()
    clock.now += 0.0199
    assert instruments.state() is first
    assert instruments.age_s == pytest.approx(0.0199), "it was not asked again"
    clock.now += 0.001
    assert instruments.state().at_ns == 21_000_000
    assert instruments.age_s == 0.0


def test_a_state_lasts_from_one_measurement_to_the_next_but_not_over_a_pause(clock):
    asked = []
    instruments = Instruments(SimpleNamespace(state=lambda: asked.append(1) or state(**HOT)))
    watch = ClockObservation(
        instruments, recovery=Recovery(sleep=lambda pause_s: setattr(clock, "now", clock.now + pause_s))
    )
    watch.before()
    clock.now += 0.2
    assert "too hot" in watch.after(BATCH, last=False).fault
    assert len(asked) == 3, "before, behind, and after the pause"
    ClockObservation(instruments).before()
    assert len(asked) == 3
