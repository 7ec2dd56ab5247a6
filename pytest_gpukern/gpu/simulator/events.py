"""Events and streams on the host's clock, since everything simulated is synchronous."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gpukern.gpu.simulator.patching import add, original, publish, replace


class SimulatedEvent:
    """A CUDA event: its moment is the host's clock when it was recorded.

    The times are those of Python threads, marked by `simulated`: they say nothing about a GPU's speed.
    """

    simulated = True

    def __init__(self, timing: bool = True) -> None:
        self.timing = timing
        self.recorded_ns: int | None = None

    def record(self, stream: Any = 0) -> None:  # noqa: ARG002 - the real one's signature
        """Record now: all work before it is done."""
        self.recorded_ns = time.perf_counter_ns()

    def query(self) -> bool:
        """Say whether the work before the record is done: always."""
        return True

    def synchronize(self) -> None:
        """Wait for the event: it has already happened."""

    def wait(self, stream: Any = 0) -> None:
        """Make a stream wait for the event: it has already happened."""

    def elapsed_time(self, evtend: "SimulatedEvent") -> float:
        """Return the milliseconds from this event to `evtend`."""
        return event_elapsed_time(self, evtend)


def event_elapsed_time(evtstart: SimulatedEvent, evtend: SimulatedEvent) -> float:
    """Return the milliseconds between two events.

    Raises the driver's CudaAPIError, as a GPU does (cuEventElapsedTime: CUDA_ERROR_INVALID_HANDLE), when one
    of them was not recorded or was made with ``timing=False``.
    """
    for which, event in (("start", evtstart), ("end", evtend)):
        if not event.timing:
            raise _invalid_handle(f"the {which} event was made with timing=False")
        if event.recorded_ns is None:
            raise _invalid_handle(f"the {which} event was never recorded")
    assert evtstart.recorded_ns is not None
    assert evtend.recorded_ns is not None
    return (evtend.recorded_ns - evtstart.recorded_ns) / 1e6


def _invalid_handle(why: str) -> Exception:
    from numba.cuda.simulator.cudadrv import driver

    error: Exception = driver.CudaAPIError(
        f"[400] Call to cuEventElapsedTime results in CUDA_ERROR_INVALID_HANDLE: {why}"
    )
    return error


def mend_events() -> None:
    """Give the simulator events that tell the time, and streams that stand for foreign ones."""
    from numba.cuda.simulator import api
    from numba.cuda.simulator.cudadrv import driver

    original(driver, "CudaAPIError")
    original(api, "event")
    publish("event", SimulatedEvent)
    publish("Event", SimulatedEvent)
    publish("event_elapsed_time", event_elapsed_time)
    stream_class = original(api, "stream")

    def external_stream(ptr: int) -> Any:
        stream = stream_class()
        stream.handle = ptr
        return stream

    @contextmanager
    def auto_synchronize(self: Any) -> Iterator[Any]:
        yield self  # the fake yields None, the real one the stream

    def add_callback(self: Any, callback: Any, arg: Any = None) -> None:
        callback(self, 0, arg)

    original(api, "external_stream")
    publish("external_stream", external_stream)
    replace(stream_class, "auto_synchronize", auto_synchronize)
    add(stream_class, "add_callback", add_callback)
