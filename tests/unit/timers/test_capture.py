"""Tests capturing calls into a graph, on a fake driver that only logs its calls."""

from __future__ import annotations

import functools
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


def nothing(device):
    """Launches elsewhere."""


def one(device):
    device.execute(0.001)


def two(device):
    one(device)
    one(device)


def allocates(device):
    device.capture.add(Kind.MEM_ALLOC, 0.0)
    one(device)


def waits(device):
    one(device)
    device.wait()


def waits_and_hides_it(device):
    with suppress(RuntimeError):
        waits(device)


def refuses(device):
    one(device)
    raise NotImplementedError("cuBLAS cannot be captured")


CANNOT = "the call cannot be captured"
OWN_CONTEXT = "calls were captured: work is launched on another stream or waits for the host"


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([nothing] * 20, f"0 of 20 {OWN_CONTEXT}"),
        ([one] * 19 + [nothing], f"19 of 20 {OWN_CONTEXT}"),
        ([one, two], "the calls are not alike: 2 calls gave 3 kernels and 3 operations, between 1 and 2"),
        ([allocates] * 2, "the call allocates memory, which a replayed graph cannot do"),
        ([waits] * 3, f"{CANNOT}: RuntimeError: cuCtxSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
        ([waits_and_hides_it], f"{CANNOT}: it waits for the device, allocates or frees"),
        ([refuses], f"{CANNOT}: NotImplementedError: cuBLAS cannot be captured"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused_with_the_reason(device, driver, calls, reason):
    said = refusal(device, [functools.partial(call, device) for call in calls])
    assert said.startswith(reason)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda graph: graph.add(Kind.KERNEL, 0.001), "2 operations were captured, but the graph holds 3"),
        # As with work that was forked to another stream and never joined.
        (
            lambda graph: setattr(graph, "valid", False),
            f"{CANNOT}: CudaError: cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        ),
    ],
)
def test_what_turns_out_at_the_end_of_a_capture_is_noticed(device, driver, monkeypatch, spoil, reason):
    end = driver.cuStreamEndCapture
    monkeypatch.setattr(driver, "cuStreamEndCapture", lambda stream: (spoil(device.capture), end(stream))[1])
    assert refusal(device, [device.call()] * 2).startswith(reason)


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


def test_garbage_collection_rests_while_capturing(device, driver):
    """Freeing an array would end the capture."""
    states = []

    def call():
        states.append(gc.isenabled())
        device.execute(0.001)

    with captured(device, [call]):
        assert states == [False]
        assert gc.isenabled()


def test_everything_is_destroyed_when_a_replay_raises(device, driver):
    driver.fails.add("cuGraphLaunch")
    with pytest.raises(Exception, match="cuGraphLaunch"), captured(device, [device.call()]) as (replay, _):
        replay()
