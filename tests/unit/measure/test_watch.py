"""What is looked at around batches: how often, what makes samples void, and what is told in the end."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
from fake_nvml import state

from pytest_gpukern.gpu.nvml import GpuProcess
from pytest_gpukern.gpu.theory import Floor
from pytest_gpukern.measure import watch as watch_module
from pytest_gpukern.measure.validity import PausePolicy, Recovery
from pytest_gpukern.measure.watch import BatchWatch, Instruments
from pytest_gpukern.timers.timer import Batch

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


def watching(instruments, *, total_s=3.0, **arguments):
    """A watch whose pauses are kept in `.pauses` instead of waited for."""
    pauses = []
    made = BatchWatch(
        instruments, recovery=Recovery(PausePolicy(total_s=total_s), sleep=pauses.append), **arguments
    )
    made.pauses = pauses
    return made


def batches(watch, instruments, *ages_s):
    """What is said of batches that end when NVML was last asked so long ago; the last one ends sampling."""
    said = []
    for number, age_s in enumerate(ages_s, start=1):
        watch.before()
        instruments.age_s = age_s
        said.append((watch.after(BATCH, last=number == len(ages_s)), watch.settled))
    return said


def finished(watch, samples_ns=(1000.0,)):
    return watch.finish(list(samples_ns), resolution_ns=1.0)


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


def test_until_it_is_looked_at_a_batch_is_in_doubt():
    instruments = FakeInstruments()
    watch = watching(instruments)
    assert not watch.settled
    assert batches(watch, instruments, 0.01) == [(None, True)]


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
    found = watch.after(BATCH, last=False)
    assert found.startswith("the SM clock was 1484 MHz, 75 % of 1980 MHz")
    assert watch.settled


def test_a_clock_of_three_quarters_is_not_low():
    instruments = FakeInstruments(clock=1485.0)
    watch = watching(instruments)
    assert batches(watch, instruments, 0.01, 0.01) == [(None, False), (None, True)]


def test_a_low_clock_that_a_power_limit_explains_is_asked_about_and_accepted():
    instruments = FakeInstruments(state(clock_events=("sw_power_cap",)), clock=1200.0)
    watch = watching(instruments)
    assert batches(watch, instruments, 0.01, 0.01) == [(None, True), (None, True)]
    (note,) = finished(watch).warnings
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
    assert watch.hopeless() is None


def test_after_a_pause_the_device_is_looked_at_again_and_the_next_batch_compared_with_that():
    stranger = GpuProcess(4711, "train.py", 9000)
    came = state(100, foreign=(stranger,))
    instruments = FakeInstruments(state(0), came, state(200, foreign=(stranger,)), state(300))
    watch = watching(instruments)
    said = [text for text, _ in batches(watch, instruments, 0.2, 0.2)]
    assert said[0].startswith("another process began to use the device during the batch: ")
    assert said[1] is None, "it was there already, and idle"
    assert instruments.asked == 1 + 2 + 1
    assert finished(watch).warnings[0].startswith("1 batch was disturbed and repeated: 1 × another process")


def test_pauses_get_longer_until_the_measurement_is_given_up():
    instruments = FakeInstruments(state(**HOT))
    watch = watching(instruments, total_s=0.5)
    for pauses in ([0.05], [0.05, 0.1], [0.05, 0.1, 0.2]):
        assert watch.hopeless() is None
        watch.before()
        instruments.age_s = 0.2
        assert "too hot" in watch.after(BATCH, last=False)
        assert watch.pauses == pauses
    watch.before()
    instruments.age_s = 0.2
    assert "too hot" in watch.after(BATCH, last=False)
    assert len(watch.pauses) == 3, "the next would be too long"
    assert watch.hopeless().startswith("could not be measured cleanly: 4 batches were disturbed")
    assert "improve the cooling" in watch.hopeless()


# without a device


def test_on_the_host_every_batch_counts_at_once_and_there_is_no_state():
    watch = watching(None)
    assert watch.settled
    watch.before()
    assert watch.after(BATCH, last=False) is None
    assert watch.settled
    found = finished(watch)
    assert (found.state, found.invalid) == ({}, None)


# what makes it invalid


def test_a_time_below_what_the_hardware_can_do_is_invalid():
    floor = Floor(2000.0, "1 GB at 4.8 TB/s")
    watch = watching(None, floor=floor)
    found = finished(watch, [900.0, 1000.0, 90_000.0]).invalid
    assert found.startswith("1 µs is impossible: 1 GB at 4.8 TB/s, take 2 µs at least")
    assert finished(watch, [1990.0]).invalid is None
    assert watch.finish([1000.0], resolution_ns=1000.0).invalid is None, "the timer cannot tell"


@pytest.mark.parametrize(
    ("samples_ns", "iterations", "device_timed", "fault"),
    [
        ([9e12], 1, True, "the samples of a batch add up to 9000000.0 ms, but the host saw it take "),
        ([9e10] * 2, 100, True, "the samples of a batch add up to 18000000.0 ms, but the host saw it take "),
        ([100.0], 100, True, None),
        ([9e12], 1, False, None),
    ],
)
def test_device_times_that_add_up_to_more_than_the_host_saw_pass_are_invalid(
    samples_ns, iterations, device_timed, fault
):
    watch = watching(None, device_timed=device_timed)
    for batch in (Batch(samples_ns, iterations=iterations), BATCH):
        watch.before()
        watch.after(batch, last=batch is BATCH)
    found = finished(watch, samples_ns).invalid
    assert found is None if fault is None else found.startswith(fault)


def test_a_thread_that_the_calls_left_running_is_invalid_and_named():
    watch, end = watching(FakeInstruments()), threading.Event()
    watch.before()
    thread = threading.Thread(target=end.wait, name="does the work")
    thread.start()
    try:
        assert "still running: does the work" in finished(watch).invalid
    finally:
        end.set()
        thread.join()
    assert finished(watch).invalid is None


def test_threads_that_ran_before_are_nobodys_fault():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert finished(watching(None)).invalid is None
    finally:
        end.set()
        thread.join()


def test_a_patched_clock_is_invalid(monkeypatch):
    watch = watching(FakeInstruments())
    watch.before()
    monkeypatch.setattr("time.perf_counter_ns", lambda: 0)
    assert "time.perf_counter_ns" in finished(watch).invalid


# what is told


@pytest.mark.parametrize("nvml", [True, False])
def test_the_devices_memory_is_read_behind_each_batch_with_the_launches_so_far(nvml):
    instruments = FakeInstruments() if nvml else None
    log = []
    series = SimpleNamespace(note=log.append, end=lambda: log.append("end"))
    watch = watching(instruments, memory=SimpleNamespace(series=lambda: series))
    for last in (False, True):
        watch.before()
        watch.after(BATCH, last=last)
    finished(watch)
    assert log == [len(BATCH.samples_ns) * BATCH.iterations] * 2 + ["end"]


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
    monkeypatch.setattr(watch_module, "time", made)
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
    watch = BatchWatch(
        instruments, recovery=Recovery(sleep=lambda pause_s: setattr(clock, "now", clock.now + pause_s))
    )
    watch.before()
    clock.now += 0.2
    assert "too hot" in watch.after(BATCH, last=False)
    assert len(asked) == 3, "before, behind, and after the pause"
    BatchWatch(instruments).before()
    assert len(asked) == 3


def test_a_state_of_just_now_is_not_asked_for_again_unless_it_has_to_be_of_now():
    asked = []

    def ask():
        asked.append(state())
        return asked[-1]

    instruments = Instruments(SimpleNamespace(state=ask))
    assert instruments.state() is instruments.state() is asked[0]
    assert instruments.state(within_s=0.0) is asked[1]
    assert len(asked) == 2
