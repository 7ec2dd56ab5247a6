"""Tests capturing calls into a graph, on a fake driver that only logs its calls."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
from fake_cuda import FakeDevice, Kind, install

from pytest_gpukern.timers.replay import captured
from pytest_gpukern.timers.timer import TimerUnavailable


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def driver(monkeypatch, device):
    """The driver; afterwards nothing may be left of any graph, and the stream executes."""
    driver = install(monkeypatch, device)
    yield driver
    assert driver.alive == []
    assert device.capture is None


def refusal(device, runs):
    with pytest.raises(TimerUnavailable) as refused, captured(device, runs):
        pass
    return str(refused.value)


def test_calls_are_captured_without_being_executed_and_replayed_together(device, driver):
    calls = [device.call(0.002), device.call(0.003)]
    with captured(device, calls) as (replay, nodes):
        assert nodes == 2
        assert device.log == []
        replay()
        replay()
    assert device.log == ["replay of 2"] * 2
    assert device.now_ms == pytest.approx(0.010)


@pytest.mark.parametrize(("captures", "found"), [(0, "0 of 20"), (5, "5 of 20"), (19, "19 of 20")])
def test_calls_that_launch_elsewhere_are_counted_and_refused(device, driver, captures, found):
    runs = [device.call()] * captures + [lambda: None] * (20 - captures)
    assert refusal(device, runs) == (
        f"{found} calls were captured: work is launched on another stream or waits for the host"
    )


def test_calls_that_launch_different_numbers_of_kernels_are_refused(device, driver):
    def two():
        device.execute(0.001)
        device.execute(0.001)

    assert refusal(device, [device.call(), two]) == (
        "the calls are not alike: 2 calls gave 3 kernels and 3 operations, between 1 and 2 operations a call"
    )


def test_memory_that_is_allocated_inside_the_graph_is_refused(device, driver):
    def call():
        device.capture.add(Kind.MEM_ALLOC, 0.0)
        device.execute(0.001)

    assert "allocates memory" in refusal(device, [call] * 2)


def test_what_an_operation_beside_the_calls_added_is_noticed(device, driver, monkeypatch):
    end = driver.cuStreamEndCapture

    def with_one_more(stream):
        device.capture.add(Kind.KERNEL, 0.001)
        return end(stream)

    monkeypatch.setattr(driver, "cuStreamEndCapture", with_one_more)
    assert refusal(device, [device.call()] * 2) == "2 operations were captured, but the graph holds 3"


def test_a_call_that_waits_is_refused_with_what_it_said_in_one_line(device, driver):
    assert refusal(device, [device.waiting_call()] * 3) == (
        "the call cannot be captured: RuntimeError: cuCtxSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    )


def test_a_call_that_waits_and_hides_the_error_is_refused_too(device, driver):
    waits = device.waiting_call()

    def call():
        with suppress(RuntimeError):
            waits()

    assert refusal(device, [call]) == (
        "the call cannot be captured: it waits for the device, allocates or frees"
    )


def test_a_library_that_refuses_captures_is_quoted_and_what_it_captured_is_discarded(device, driver):
    def call():
        device.execute(0.001)
        raise NotImplementedError("cuBLAS cannot be captured")

    assert refusal(device, [call]) == (
        "the call cannot be captured: NotImplementedError: cuBLAS cannot be captured"
    )


def test_an_interrupt_ends_the_capture_and_goes_on(device, driver):
    def call():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), captured(device, [call]):
        pass


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("cuStreamBeginCapture", "the call cannot be captured: CudaError: cuStreamBeginCapture: CUDA_ERROR"),
        ("cuGraphInstantiate", "the captured graph cannot be replayed: cuGraphInstantiate: CUDA_ERROR"),
    ],
)
def test_what_the_driver_refuses_is_named(device, driver, function, reason):
    driver.fails.add(function)
    assert refusal(device, [device.call()]).startswith(reason)


def test_a_capture_that_turns_out_invalid_at_its_end_is_refused(device, driver, monkeypatch):
    """As with work that was forked to another stream and never joined."""
    end = driver.cuStreamEndCapture

    def unjoined(stream):
        device.capture.valid = False
        return end(stream)

    monkeypatch.setattr(driver, "cuStreamEndCapture", unjoined)
    assert "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" in refusal(device, [device.call()])


@pytest.mark.parametrize("handle", [0, 1])
def test_the_legacy_default_stream_is_refused_before_anything_is_captured(monkeypatch, handle):
    device = FakeDevice(handle=handle)
    install(monkeypatch, device)
    assert "legacy default stream" in refusal(device, [device.call()])


def test_what_the_calls_return_lives_as_long_as_the_graph(device, driver):
    class Output:
        pass

    made = []

    def call():
        device.execute(0.001)
        output = Output()
        made.append(weakref.ref(output))
        return output

    with captured(device, [call] * 2):
        gc.collect()
        assert all(output() is not None for output in made)
    gc.collect()
    assert all(output() is None for output in made)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_collection_rests_while_capturing_and_is_afterwards_as_it_was(device, driver, enabled, fails):
    states = []

    def call():
        states.append(gc.isenabled())
        if fails:
            device.wait()
        device.execute(0.001)

    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        if fails:
            refusal(device, [call])
        else:
            with captured(device, [call]):
                pass
        after = gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()
    assert states == [False]
    assert after is enabled


def test_everything_is_destroyed_when_a_replay_raises(device, driver):
    driver.fails.add("cuGraphLaunch")
    with pytest.raises(Exception, match="cuGraphLaunch"), captured(device, [device.call()]) as (replay, _):
        replay()
