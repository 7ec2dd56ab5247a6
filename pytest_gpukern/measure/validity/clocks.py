"""Are the host's clocks the real ones, and do they agree with each other and with the device's?

References are taken when this file is loaded and compared whenever somebody asks. What is compared: the
clock functions of `time`, what this package's own modules use under their names, and what makes the events
that times are read from. Events and streams of `cuda.core` are extension types that Python code cannot patch;
event classes of other libraries time nothing here. Methods of our own timers are not compared.
"""

from __future__ import annotations

import inspect
import sys
import time
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAMES = (
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "time",
    "time_ns",
    "process_time",
    "process_time_ns",
    "clock_gettime",
    "clock_gettime_ns",
)
_TIME = time
_KEPT: dict[str, Any] = {name: getattr(time, name) for name in _NAMES if hasattr(time, name)}
_PACKAGE = __name__.partition(".")[0]
_INSIDE = f"{_PACKAGE}."

_TRIES = 10
_SHARE, _SLACK_NS = 0.01, 1_000_000
"""Clocks of a host differ by the rate at which NTP slews one of them, at most 0.05 %, and by when each is
read; a device's clock differs from the host's by some parts in a million."""


@dataclass(frozen=True)
class ClockReading:
    """Two clocks of the host at one moment, in nanoseconds; `raw_ns` is None where there is only one."""

    perf_ns: int
    raw_ns: int | None


class ClockGuard:
    """Finds replaced and diverging clocks around a measurement."""

    def __init__(
        self,
        perf_counter_ns: Callable[[], int] = _KEPT["perf_counter_ns"],
        raw_ns: Callable[[], int] | None = None,
    ) -> None:
        self._perf_counter_ns = perf_counter_ns
        self._raw_ns = raw_ns or _raw_clock()

    def read(self) -> ClockReading:
        """Read both clocks, before what is guarded; again where this thread had to wait between them."""
        for _ in range(_TRIES):
            first = self._perf_counter_ns()
            raw = self._raw_ns() if self._raw_ns else None
            if raw is None or self._perf_counter_ns() - first < _SLACK_NS / 10:
                break
        return ClockReading(first, raw)

    def fault(self, since: ClockReading) -> str | None:
        """Why times taken since a reading cannot be trusted, naming the clock, or None."""
        for name, found in replaced_clocks():
            return (
                f"the clock {name} was replaced by {_described(found)}; undo the patch while measuring "
                "(freezegun, monkeypatch, mock)"
            )
        now = self.read()
        if now.raw_ns is None or since.raw_ns is None:
            return None
        perf_ns, raw_ns = now.perf_ns - since.perf_ns, now.raw_ns - since.raw_ns
        if abs(perf_ns - raw_ns) <= _SHARE * abs(raw_ns) + _SLACK_NS:
            return None
        return (
            f"the host's clocks disagree: by time.perf_counter_ns {perf_ns / 1e6:.1f} ms passed, "
            f"by CLOCK_MONOTONIC_RAW {raw_ns / 1e6:.1f} ms; "
            "measure on a host whose clock runs evenly, without libfaketime"
        )


def replaced_clocks() -> Iterator[tuple[str, object]]:
    """Each clock function that is not the one it was, by its full name, with what stands in its place."""
    if sys.modules.get("time") is not _TIME:
        yield "module time", sys.modules.get("time")
    for name, kept in _KEPT.items():
        found = getattr(_TIME, name, None)
        if found is not kept or not _genuine(name, kept):
            yield f"time.{name}", found
    for module_name, module in list(sys.modules.items()):  # thousands, before and after each measurement
        own = module_name.startswith(_INSIDE) or module_name == _PACKAGE
        if not own or module_name == __name__:
            continue
        for name, found in [(name, vars(module)[name]) for name in _KEPT if name in vars(module)]:
            # A function of the module's own may have the name: report.units.time formats a time.
            its_own = isinstance(found, FunctionType) and found.__globals__ is vars(module)
            if found is not _KEPT[name] and found is not _TIME and not its_own:
                yield f"{module_name}.{name}", found
    device = getattr(sys.modules.get("cuda.core"), "Device", None)
    make_event = getattr(device, "create_event", None)
    if make_event is not None and not str(make_event.__module__).startswith("cuda.core"):
        yield "cuda.core.Device.create_event", make_event


def _genuine(name: str, function: object) -> bool:
    """Whether what was found when this file was loaded was already what it says."""
    return isinstance(function, BuiltinFunctionType) and (function.__module__, function.__name__) == (
        "time",
        name,
    )


def device_time_fault(device_ns: float, wall_ns: float) -> str | None:
    """Why the device's times of a batch contradict the host's clock, or None.

    The samples of one stream follow each other inside the batch, so their sum cannot exceed the time that the
    host saw pass around it. The opposite proves nothing: flushes, launches and waiting are in the host's
    time too.

    Args:
        device_ns: sum of the batch's samples, each times its iterations.
        wall_ns: the host's time from before the first was queued until the device was idle.
    """
    if device_ns <= (1 + _SHARE) * wall_ns + _SLACK_NS:
        return None
    return (
        f"the samples of a batch add up to {device_ns / 1e6:.1f} ms, but the host saw it take "
        f"{wall_ns / 1e6:.1f} ms: the device's timer or the host's clock is wrong"
    )


def _raw_clock() -> Callable[[], int] | None:
    """A clock that nobody slews, read by another system call; None on systems without it."""
    clock, read = getattr(time, "CLOCK_MONOTONIC_RAW", None), _KEPT.get("clock_gettime_ns")
    if clock is None or read is None:
        return None
    try:
        read(clock)
    except OSError:  # some sandboxes do not have it
        return None
    return lambda: int(read(clock))


def _described(found: object) -> str:
    try:
        place = inspect.getsourcefile(found)  # type: ignore[arg-type]
    except TypeError:
        place = None
    return f"{found!r} of {place}" if place else repr(found)
