"""Tests which batches are invalid, when the device is looked at, and when a case is given up."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from fake_nvml import state
from made_up_results import measured

from pytest_gpukern.gpu.nvml import CLOCK_EVENTS, DeviceState, GpuProcess
from pytest_gpukern.measure import observers as observers_module
from pytest_gpukern.measure.device_clocks import (
    INVALIDATING,
    ORDINARY,
    ClockObservation,
    batch_fault,
    device_notes,
)
from pytest_gpukern.measure.observers import Instruments
from pytest_gpukern.timers.timer import Batch
from pytest_gpukern.values.note import About, Note

BEFORE = state(0)
STRANGER = GpuProcess(4711, "train.py", 9000)
BUSY, POLLING = (dataclasses.replace(STRANGER, sm_percent=percent) for percent in (5, 4))


def fault(sm_mhz=1980, before=BEFORE, **after):
    """Returns the fault of a batch of 50 ms on a device of 1980 and 3201 MHz."""
    return batch_fault(before, state(50, **after), sm_mhz=sm_mhz, max_sm_mhz=1980, max_memory_mhz=3201)


def counted(**ms):
    """The counters of `BEFORE`, higher by these milliseconds."""
    return {name: value + round(ms.get(name, 0) * 1e6) for name, value in BEFORE.limited_ns.items()}


def test_a_device_that_tells_nothing_is_not_accused():
    nothing = DeviceState(0), DeviceState(50_000_000)
    assert batch_fault(*nothing) is None
    assert batch_fault(*nothing, sm_mhz=1000) is None, "of how many?"
    assert fault(clock_events=("unknown_0x8000",), memory_clock_mhz=None) is None


def test_every_clock_event_is_either_invalidating_or_ordinary_or_idleness():
    assert {*INVALIDATING, *ORDINARY, "gpu_idle"} == set(CLOCK_EVENTS.values())
    assert not INVALIDATING.keys() & ORDINARY.keys()


# throttling


@pytest.mark.parametrize("event", INVALIDATING)
def test_throttling_before_or_after_a_batch_makes_it_invalid(event):
    for found in (fault(clock_events=(event,)), fault(before=state(0, clock_events=(event,)))):
        assert f"({event}, GPU at 41 °C, memory at 45 °C); " in found


@pytest.mark.parametrize("event", ["sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"])
def test_throttling_that_came_and_went_within_a_batch_is_seen_by_its_counter(event):
    assert f"({event} for 20 % of the batch, " in fault(limited_ns=counted(**{event: 10}))
    assert fault(limited_ns=counted(**{event: 0.5})) is not None
    assert fault(limited_ns=counted(**{event: 0.49})) is None, "under 1 % of the time cannot move a median"


@pytest.mark.parametrize("event", ORDINARY)
def test_what_a_pause_cannot_cure_is_no_fault(event):
    assert fault(clock_events=(event,)) is None
    assert fault(clock_events=(event,), sm_mhz=1000) is None, "the clock is low because of it"


# clocks and other processes

IDLE, SET = ("gpu_idle",), ("applications_clocks_setting",)
QUIET, COPYING, FAST = ({"pcie_bytes_per_s": rate} for rate in (2e7, 1e9, 12.34e9))
THERE = {"foreign": (STRANGER,)}
QUIETLY, BUSILY, FAR_DOWN = THERE | QUIET, {"foreign": (BUSY,)}, {"memory_clock_mhz": 1593}
CHANGED = "the memory clock changed from {} to {} MHz during the batch; "
OTHER = "another process "
NAMED = "pid 4711 (train.py, 9000 MiB"
COPIES = f"{OTHER}copied {{}} GB/s over PCIe while this one waited: {NAMED}"


def low(mhz):
    return f"the SM clock was {mhz} MHz, {100 * mhz / 1980:.0f} % of 1980 MHz"


@pytest.mark.parametrize(
    ("before", "after", "found", "remedy"),
    [
        ({}, {}, None, ""),
        ({}, {"sm_mhz": 1485}, None, ""),
        ({}, {"sm_mhz": 1484}, low(1484), "nvidia-smi -q"),
        ({}, {"sm_mhz": 1000, "limited_ns": counted(sw_power_cap=30)}, None, ""),
        # NVML's clock, without a probe and unless the device has gone idle
        ({}, {"sm_mhz": None, "sm_clock_mhz": 1200}, low(1200), "nvidia-smi -q"),
        ({}, {"sm_mhz": None, "sm_clock_mhz": 345, "clock_events": IDLE}, None, ""),
        ({}, {"sm_mhz": 345, "clock_events": IDLE}, low(345), "lock its clocks"),
        # the memory's clock may not change, or be low unless somebody set it
        ({}, {"memory_clock_mhz": 3170}, None, ""),
        ({}, {"memory_clock_mhz": 3168}, CHANGED.format(3201, 3168), "nvidia-smi -lmc"),
        ({"memory_clock_mhz": 405}, {}, CHANGED.format(405, 3201), "keep the GPU from idling"),
        (FAR_DOWN, FAR_DOWN, "the memory clock was 1593 MHz, 50 % of 3201 MHz", "nvidia-smi -lmc"),
        (FAR_DOWN, {**FAR_DOWN, "clock_events": SET}, None, ""),
        ({"memory_clock_mhz": 2401}, {"memory_clock_mhz": 2401}, None, ""),
        # a process that comes or runs kernels; its mere presence is no fault
        ({}, THERE, f"{OTHER}began to use the device during the batch: {NAMED}", "stop it"),
        (THERE, THERE, None, ""),
        (THERE, {"foreign": (POLLING,)}, None, ""),
        (THERE, BUSILY, f"{OTHER}ran kernels during the batch: {NAMED}, kernels 5 %", "stop it"),
        # one that copies over PCIe while this one waits
        (QUIETLY, QUIETLY, None, ""),
        (QUIETLY, THERE | FAST, COPIES.format("12.3"), "--gpukern-device"),
        (THERE | COPYING, QUIETLY, COPIES.format("1.0"), "--gpukern-device"),
        (COPYING, COPYING, None, ""),
    ],
)
def test_a_batch_is_disturbed_by_clocks_and_other_processes(before, after, found, remedy):
    said = fault(before=state(0, **before), **after)
    if found is None:
        assert said is None
    else:
        assert said.startswith(found)
        assert remedy in said


# notes


HELD = "clocks held down by the power limit"
COPIED = "were copied over PCIe while this run waited, by one of its threads"
LOCKED = {"clock_events": ("applications_clocks_setting",)}
BY_SETTING = "clocks held down by a clock setting (nvidia-smi -ac or -lgc)"


@pytest.mark.parametrize(
    ("after", "note"),
    [
        ([{}, {}], None),
        ([{"clock_events": ("sw_power_cap",)}, {}], HELD),
        ([{}, {"limited_ns": counted(sw_power_cap=1)}], HELD),
        ([{}, {"limited_ns": counted(sw_power_cap=0.5)}], None),
        ([LOCKED], BY_SETTING),
        ([THERE], "other processes on the device, idle as far as we can tell: pid 4711"),
        # copies of no process that is named may be a thread's of ours
        ([{}, FAST, {}], f"up to 12.3 GB/s {COPIED}"),
        ([COPYING], f"up to 1.0 GB/s {COPIED}"),
        ([QUIET], None),
        ([{"clock_events": ("unknown_0x8000",), "memory_clock_mhz": None}], None),
    ],
)
def test_what_was_no_fault_may_be_a_note(after, note):
    states = [BEFORE, *(state(50 * (number + 1), **changes) for number, changes in enumerate(after))]
    found = device_notes(states)
    assert found == () if note is None else (len(found), found[0][: len(note)]) == (1, note)


THROTTLED = {"clock_events": ("hw_thermal_slowdown",), "temperature_c": 92}
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
        found = self.states[min(self.asked, len(self.states) - 1)]
        self.asked += 1
        self.age_s = 0.0
        return found


def watching(instruments):
    """A watch whose pauses are kept in `.pauses` instead of waited for."""
    pauses = []
    made = ClockObservation(instruments, sleep=pauses.append)
    made.pauses = pauses
    return made


def batches(watch, instruments, *ages_s):
    """Returns the faults of batches that end so long after NVML was asked; the last one ends sampling."""
    said = []
    for number, age_s in enumerate(ages_s, start=1):
        watch.before()
        instruments.age_s = age_s
        look = watch.after(BATCH, last=number == len(ages_s))
        said.append((look.fault, look.settled))
    return said


def finished(watch):
    return watch.finish(measured())


# how often


def test_nvml_is_asked_before_the_first_batch_every_tenth_of_a_second_and_at_the_end():
    instruments = FakeInstruments()
    watch = watching(instruments)
    asked = [False, False, True, False, True]
    assert batches(watch, instruments, 0.05, 0.09, 0.11, 0.05, 0.01) == [(None, each) for each in asked]
    assert instruments.asked == 1 + 1 + 1


def test_a_low_clock_that_a_power_limit_explains_is_asked_about_and_accepted():
    instruments = FakeInstruments(state(clock_events=("sw_power_cap",)), clock=1200.0)
    watch = watching(instruments)
    assert batches(watch, instruments, 0.01, 0.01) == [(None, True), (None, True)]
    assert finished(watch).notes == (Note("clocks held down by the power limit", About.NOISE),)


@pytest.mark.parametrize("highest", [None, 0.0])
def test_no_clock_is_low_if_the_highest_is_unknown(highest):
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


def test_after_a_pause_the_device_is_looked_at_again_and_the_next_batch_compared_with_that():
    stranger = GpuProcess(4711, "train.py", 9000)
    came = state(100, foreign=(stranger,))
    instruments = FakeInstruments(state(0), came, state(200, foreign=(stranger,)), state(300))
    watch = watching(instruments)
    said = [text for text, _ in batches(watch, instruments, 0.2, 0.2)]
    assert said[0].startswith("another process began to use the device during the batch: ")
    assert said[1] is None, "it was there already, and idle"
    assert instruments.asked == 1 + 2 + 1
    assert finished(watch).notes[0].text == f"1 batch was disturbed and left out, the last time: {said[0]}"


def test_after_each_disturbed_batch_there_is_a_pause_until_the_measurement_is_given_up():
    instruments = FakeInstruments(state(**THROTTLED))
    watch, looks = watching(instruments), []
    while not looks or looks[-1].hopeless is None:
        watch.before()
        instruments.age_s = 0.2
        looks.append(watch.after(BATCH, last=False))
        assert "too hot" in looks[-1].fault
    assert watch.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5])
    counted = "could not be measured cleanly: 9 batches were disturbed, even after 2.75 s of pauses"
    assert looks[-1].hopeless == f"{counted}, the last time: {looks[-1].fault}"
    assert "improve the cooling" in looks[-1].hopeless


# what is told


def test_the_state_is_that_after_the_last_batch_with_the_clocks_of_all():
    instruments = FakeInstruments(
        state(power_w=300.0), state(temperature_c=50, power_w=612.5, clock_events=("sw_power_cap",))
    )
    watch = watching(instruments)
    for clock in (1975.04, 1980.06, None, 1960.04):
        instruments.clock = clock
        watch.before()
        watch.after(BATCH, last=clock == 1960.04)
    assert finished(watch).values == {
        "sm_mhz": 1975.0,
        "sm_mhz_low": 1960.0,
        "sm_mhz_high": 1980.1,
        "memory_mhz": 3201,
        "temperature_c": 50,
        "memory_temperature_c": 45,
        "power_w": 612.5,
        "clock_events": ("sw_power_cap",),
        "memory_used_bytes": 2**30,
    }


def test_what_the_driver_does_not_tell_is_left_out_and_its_clock_stands_in_for_the_measured_one():
    instruments = FakeInstruments(
        state(power_w=None, memory_temperature_c=None, temperature_c=None, clock_events=None)
    )
    instruments.probe = None
    watch = watching(instruments)
    assert batches(watch, instruments, 0.2) == [(None, True)]
    known = {name: value for name, value in finished(watch).values.items() if value is not None}
    assert known == {"sm_mhz": 1980.0, "memory_mhz": 3201, "clock_events": (), "memory_used_bytes": 2**30}


# the instruments


def test_a_state_of_20_ms_ago_is_still_taken_and_an_older_one_asked_again(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(observers_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    answers = iter([state(0), state(21)])
    instruments = Instruments(SimpleNamespace(state=lambda: next(answers)))
    assert instruments.age_s == float("inf")
    first = instruments.state()
    now[0] += 0.0199
    assert instruments.state() is first
    assert instruments.age_s == pytest.approx(0.0199), "it was not asked again"
    now[0] += 0.001
    assert instruments.state().at_ns == 21_000_000
    assert instruments.age_s == 0.0
