"""Tests what is observed of a card once a test, and how tests add up to what is known of it."""

from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml, gpu, state

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.processes import DeviceWatch
from pytest_gpukern.measure.card_state import CARD
from pytest_gpukern.measure.observers import OBSERVERS, Instruments, ObservedCall, Observers


def limited(ms):
    return state(limited_ns={"sw_power_cap": ms * 1_000_000, "hw_thermal_slowdown": 0})


@pytest.fixture
def nvml():
    return FakeNvml(states=[limited(7)], pcie_width=8)


@pytest.fixture
def observers(nvml, monkeypatch):
    record = gpu(0)
    device = SimpleNamespace(uuid=record.uuid)
    instruments = Instruments(DeviceWatch(nvml, device))
    monkeypatch.setattr(Instruments, "age_s", 1.0)
    return Observers(SimpleNamespace(instruments=instruments), {CARD: OBSERVERS[CARD]})


def seen_in_a_test(observers, *, on_gpu=True):
    observers.begin_test()
    observers.observe(ObservedCall(on_gpu), None)
    return observers.end_test(passed=True, let_go=lambda: None).values


def test_a_test_on_the_gpu_sees_errors_link_limit_and_how_long_clocks_were_held_down(observers, nvml):
    nvml.states = [limited(7), limited(1507), limited(1607)]
    seen = seen_in_a_test(observers)[CARD]
    assert seen.keys() <= OBSERVERS[CARD].figures.keys()
    assert (seen["pcie.width"], seen["remapped_rows"], seen["power_limit_w"]) == (8, 0, 700.0)
    assert (seen["limited_s.sw_power_cap"], seen["limited_s.hw_thermal_slowdown"]) == (1.5, 0.0)
    assert seen_in_a_test(observers)[CARD]["limited_s.sw_power_cap"] == pytest.approx(0.1), (
        "since the last test"
    )


def test_nothing_is_asked_for_a_test_that_timed_nothing_on_the_gpu(observers, nvml, monkeypatch):
    monkeypatch.setattr(nvml, "configuration", lambda uuid: pytest.fail("NVML was asked"))
    assert seen_in_a_test(observers, on_gpu=False) == {}


def test_a_gpu_that_is_lost_is_no_fault_of_the_test(observers, nvml, monkeypatch):
    def lost(uuid):
        raise DeviceError("GPU is lost")

    monkeypatch.setattr(nvml, "configuration", lost)
    assert seen_in_a_test(observers) == {}
