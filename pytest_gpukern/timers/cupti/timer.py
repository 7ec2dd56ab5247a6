"""Times by CUPTI's activity records: the device's own start and end of each kernel.

Neither the host's launch cost nor an event's fixed cost is in the number. We still queue everything behind a
blocking kernel, so that the host makes no gaps in a call of several kernels.

CUPTI records kernels in two ways, and neither suits all. *Concurrent* recording instruments each block. It
is exact for a kernel of few blocks, but slows one of many short blocks: by 8 to 11 % with one element a
thread in blocks of 256 to 1024 on an H200, also by the kernel's own clock. *Serial* recording finishes one
kernel before the next. Kernels run at full speed, but the record is longer by a constant, 1.7 µs there. So
we record a kernel of many blocks serially, measure the constant with an empty kernel in the same session,
and subtract it; `measures` says so.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_gpukern.gpu.live_threads import threads_by_id
from pytest_gpukern.gpu.runtime import CudaRuntime, in_own_context, runtime
from pytest_gpukern.timers.cupti.activity import OURS, Activity, ActivityTrace, activity_trace
from pytest_gpukern.timers.cupti.machine_code import machine_code
from pytest_gpukern.timers.launch_queue import LAUNCH_COST, LaunchQueue
from pytest_gpukern.timers.replay import empty_kernel
from pytest_gpukern.timers.timer import Batch, Iteration, NothingLaunched, TimerUnavailable
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import DeviceWork, Trace
from pytest_gpukern.values.timer_table import TIMERS

_ROUNDING_NS = 100
"""Tolerance for starts and ends, which are rounded: activities of one stream never overlap."""
_JITTER_NS = 8.0
"""Noise of a session's median: eight processes that timed one 1.3 µs kernel on an H200 had medians within
0.4 %. A tick is 32 ns, but the median of many samples resolves less."""
_SERIAL_JITTER_NS = 50.0
"""Noise of a session's median by serial recording: the subtracted constant is known to tens of nanoseconds.
Spins of 1.5 to 100 µs read 1617 to 1746 ns more than the slope of their graphs."""
_FEW_BLOCKS = 4
"""Up to so many blocks a multiprocessor, recording them costs less than a tick: about 10 ns each."""
_NEAR_NS = 256.0  # eight ticks: what lies further from the median was disturbed
_CALIBRATION = 64  # launches of the empty kernel, in each way of recording
_MOST_IN_ORDER = 256  # launches of a call whose order is kept
_OWN_STREAMS = Note(
    "the call waits for the device or uses streams of its own, so its time contains the host's launch cost",
    About.LAUNCH_COST,
)
_UNORDERED = Note(
    "work on another stream does not wait for the given one: it may start too early and end too late"
)
_TICK_NS = TIMERS["cupti"].step_ns
"""Step between durations, seen on an H200: 32 ns, give or take one by rounding."""


class CuptiTimer:
    """Times on the device by its own records.

    A sample is the span of its call: from the start of its first activity (kernel, copy or memset) to the end
    of its last, on any stream. If work on other streams does not wait for the timed one, each execution
    begins from an idle device. Batches also hold how long kernels ran and what the call consisted of.

    Args:
        any_stream: whether a call's work may outlast the timed stream. Otherwise work that does is a
            suspicion.

    Raises:
        TimerUnavailable: CUPTI cannot be used here; the message says why.
    """

    name = "cupti"
    fixed_cost_ns = None
    resolution_ns = _TICK_NS

    def __init__(
        self, runtime: CudaRuntime, stream: Any = None, *, any_stream: bool = False, queues: bool = True
    ) -> None:
        self._runtime = runtime
        self._stream = stream or runtime.stream
        self._any_stream = any_stream
        self._queue = LaunchQueue(runtime, self._stream, queues=queues)
        self._trace = proven_trace(runtime)
        self._concurrently = True
        self.jitter_ns = _JITTER_NS
        self._few_blocks = False
        self._apart = not queues
        self._marker: Callable[[], None] | None = None
        self._off_stream: str | None = None
        self._whole: set[str] = set()  # names of kernels that launch no others
        self._notes: list[Note] = []
        self._looked = False

    @classmethod
    def on_stream(cls, stream: Any, *, any_stream: bool, queues: bool) -> CuptiTimer:
        return cls(runtime(), stream, any_stream=any_stream, queues=queues)

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes a sample of each iteration; see `LaunchQueue` for calls that wait for the device.

        Raises:
            NothingLaunched: the calls put nothing on the device.
            TimerUnavailable: only threads that also launch between the calls did any work, records were lost,
                or kernels launch other kernels, which leave no records.
        """
        queued, activities, ids = self._recorded(iterations, cold=cold)
        while self._record_otherwise(activities, _by_call(activities, ids)):
            iterations = [iteration.again() for iteration in iterations]
            queued, activities, ids = self._recorded(iterations, cold=cold)
        calls = _by_call(activities, ids)
        missing = sum(not work for work in calls)
        if missing == len(calls):
            strangers = _strangers(activities)
            if strangers:
                raise TimerUnavailable(
                    f"the call itself launched nothing: {_who(strangers)} that also works between the calls "
                    f"launched {_shown(strangers)}"
                )
            raise NothingLaunched("the call puts nothing on the device: no kernel, copy or memset")
        if missing:
            raise TimerUnavailable(f"{missing} of {len(calls)} executions left no record")
        self._refuse_device_launches(calls)
        self._off_stream = self._off_stream or self._work_off_stream(activities, calls)
        self._looked = True
        if not self._concurrently:
            cost_ns = serial_cost_ns(self._runtime, cold=cold)
            calls = [[_shortened(activity, cost_ns) for activity in work] for work in calls]
        # Work on several streams starts in another order each time, but is launched in one.
        launched = [sorted(work, key=lambda activity: activity.launch) for work in calls]
        # The time of a single kernel or copy does not depend on how long the host took to launch it.
        with_gaps = not queued and any(len(work) > 1 for work in calls)
        gaps = _OWN_STREAMS if self._any_stream or self._apart else LAUNCH_COST
        return Batch(
            [_span(work) for work in calls],
            launch_included=with_gaps,
            notes=[*self._notes, *([gaps] if with_gaps else [])],
            busy_ns=[busy(work) for work in calls],
            work=summed(launched),
            order=in_order(launched),
        )

    @property
    def queues(self) -> bool:
        return self._queue.queues

    def _record_otherwise(self, activities: Sequence[Activity], calls: Sequence[list[Activity]]) -> bool:
        """Returns whether the calls have to be recorded again in another way, and sets it.

        What a call launches and its grid decide, so the answer is the same in every session. A call that once
        launched anything but one kernel of many blocks stays recorded concurrently; otherwise a call that
        varies would be recorded again forever.
        """
        if any(activity.call is None for activity in activities) and self._trace.follow_threads():
            return True
        if not self._any_stream and self._marker is None and self._uses_other_streams(calls):
            self._marker = empty_kernel(self._runtime, self._stream)
            return True
        if not self._apart and (self._any_stream or self._marker is not None) and overlapping(activities):
            # Only the timed stream waits behind the blocking kernel; on others the calls ran at once. Look
            # now, before we give up the queue. Work that the timed stream waits for ends before the marker,
            # other work ends after it. Unqueued, short work would end too early to be seen.
            self._off_stream = self._off_stream or self._work_off_stream(activities, calls)
            self._notes += [] if self._any_stream else [_UNORDERED]
            self._apart = True
            self._queue.give_up()
            return True
        before = self._concurrently
        few = _FEW_BLOCKS * self._runtime.multiprocessors
        self._few_blocks |= self._marker is not None  # recorded serially, no work can outlast other work
        self._few_blocks |= any(len(work) != 1 or _blocks(work[0]) <= few for work in calls)
        self._concurrently = self._few_blocks
        self.jitter_ns = _JITTER_NS if self._concurrently else _SERIAL_JITTER_NS
        return self._concurrently != before

    @property
    def measures(self) -> str:
        text = "device time from the start of the call's first kernel or copy to the end of its last"
        if self._concurrently:
            return text
        return f"{text}; recorded serially for its many blocks, and that cost is subtracted"

    def _recorded(
        self, iterations: Sequence[Iteration], *, cold: bool
    ) -> tuple[bool, list[Activity], list[int]]:
        """Returns whether the executions were queued, all activities, and the id of each execution."""
        marks = _Marks(self._trace, self._marker)
        self._trace.open(concurrently=self._concurrently)
        try:
            queued = self._queue.execute(iterations, marks, cold=cold)
        finally:
            try:
                self._runtime.synchronize()
            finally:  # also if a call has lost the context
                activities = self._trace.close()
        return queued, activities, marks.calls

    def suspicion(self, iteration: Iteration) -> str | None:
        """Describes work of no call, or that outlasted its call, in any batch so far or else in one call."""
        if not self._looked:
            self.collect([iteration.again()], cold=False)
        return self._off_stream

    def _work_off_stream(self, activities: Sequence[Activity], calls: Sequence[list[Activity]]) -> str | None:
        strangers = _strangers(activities)
        if strangers:
            return (
                f"{_shown(strangers)} ran during the calls, launched by {_who(strangers)} that also works "
                "between the calls; let the call wait for that thread, or stop it while timing"
            )
        if self._marker is None:
            return None
        began = {activity.call - 1: activity.start_ns for activity in activities if activity.call is not None}
        outlasting = [
            activity
            for work in calls
            for activity in work
            if activity.end_ns > began.get(activity.call or 0, math.inf) + _ROUNDING_NS
        ]
        if outlasting:
            return (
                f"{_shown(outlasting)} ran outside the timed stream and outlasted it; make the given stream "
                "wait for it"
            )
        return None

    def _refuse_device_launches(self, calls: Sequence[list[Activity]]) -> None:
        """Refuses calls that CUPTI records only in part: 46 µs of such work read 10 µs."""
        code = machine_code()
        for activity in itertools.chain.from_iterable(calls):
            kernel = activity.kernel
            if kernel is None or activity.name in self._whole:
                continue
            if code is not None and code.launches_from_device(activity.name):
                launches = "comes from a module that launches kernels from the device"
                raise TimerUnavailable(f"{kernel.name} {launches}, which CUPTI does not record")
            self._whole.add(activity.name)

    def _uses_other_streams(self, calls: Sequence[list[Activity]]) -> bool:
        timed = self._trace.stream_number(int(self._stream.handle))
        return any(activity.stream != timed for work in calls for activity in work)


@functools.cache
def proven_trace(runtime: CudaRuntime) -> ActivityTrace:
    """Returns CUPTI once it has recorded one kernel of ours: some set-ups attach it and get no records.

    Raises:
        TimerUnavailable: CUPTI cannot be used here; the message says why.
    """
    trace = activity_trace()
    runtime.flush_l2()  # the first one also fills its memory, which would be recorded, too
    runtime.synchronize()
    trace.open(concurrently=True)
    try:
        trace.push(OURS + 1)
        runtime.flush_l2()
        trace.pop()
        runtime.synchronize()
    finally:
        activities = trace.close()
    kernels = [activity for activity in activities if activity.call == OURS + 1]
    if len(kernels) != 1 or kernels[0].end_ns <= kernels[0].start_ns:
        raise TimerUnavailable(f"CUPTI recorded {len(kernels)} kernels instead of one")
    return trace


def trace_of(scope: str, iteration: Iteration, stream: Any, *, cold: bool) -> Trace:
    """Executes once more, from an idle device, and returns what the device did; nothing is timed meanwhile.

    The iteration is one of `scope` on a cuda.core stream that was not executed yet. Kernels are recorded
    concurrently, so that we see which overlap.

    Raises:
        TimerUnavailable: CUPTI cannot be used here; the message says why.
    """
    if in_own_context():
        raise TimerUnavailable("the test works in a CUDA context of its own")
    cuda = runtime()
    trace = proven_trace(cuda)
    if iteration.before is not None:
        iteration.before()
    if cold:
        cuda.flush_l2(stream)
    cuda.synchronize()
    trace.open(concurrently=True)
    try:
        iteration.run()
        cuda.synchronize()
    finally:
        activities = trace.close_in_full()
    return Trace(scope, tuple(activities))


def launching_threads(within_s: float) -> str:
    """Names the threads that launch something within `within_s` seconds; "" for none, or without CUPTI."""
    if not activity_trace.cache_info().currsize:
        return ""
    try:
        trace = activity_trace()
        trace.follow_threads()
        trace.open(concurrently=True)
        try:
            time.sleep(within_s)
            runtime().synchronize()
        finally:
            strangers = _strangers(trace.close())
    except TimerUnavailable:
        return ""
    return _who(strangers) if strangers else ""


@functools.cache
def serial_cost_ns(runtime: CudaRuntime, *, cold: bool) -> float:
    """Returns what serial recording adds: an empty kernel recorded serially, minus recorded concurrently.

    It takes a few milliseconds, once a process and cache policy. The mean of samples near the median resolves
    less than a tick of 32 ns.
    """
    launch = empty_kernel(runtime, runtime.stream)
    means = []
    for concurrently in (True, False):
        timer = CuptiTimer(runtime)
        timer._concurrently = concurrently
        _, activities, ids = timer._recorded([Iteration(launch)] * _CALIBRATION, cold=cold)
        spans = [_span(work) for work in _by_call(activities, ids)]
        median = statistics.median_low(spans)  # a sample, so that something is near it
        means.append(statistics.fmean(span for span in spans if abs(span - median) <= _NEAR_NS))
    return max(0.0, means[1] - means[0])


@dataclass
class _Marks:
    """Gives each execution its own external id, and remembers those that count.

    The next id is for the marker, a kernel that shows when the timed stream is done with the call.
    """

    trace: ActivityTrace
    marker: Callable[[], None] | None
    calls: list[int] = field(default_factory=list)
    _last: int = OURS - 1
    _part: list[int] = field(default_factory=list)

    def open(self, count: int) -> None:  # noqa: ARG002 - part of the Protocol
        self._part = []

    @contextmanager
    def preparing(self) -> Iterator[None]:
        self.trace.push(OURS)
        yield
        self.trace.pop()

    def start(self, number: int) -> None:  # noqa: ARG002
        self._last += 2
        self._part.append(self._last)
        self.trace.push(self._last)

    def end(self, number: int) -> None:  # noqa: ARG002
        self.trace.pop()
        if self.marker is not None:
            self.trace.push(self._last + 1)
            self.marker()
            self.trace.pop()

    def take(self, count: int) -> None:
        self.calls += self._part[:count]

    def restart(self) -> None:
        self.calls = []


def _by_call(activities: Sequence[Activity], calls: Sequence[int]) -> list[list[Activity]]:
    """Returns the activities of each call, in the order of the calls."""
    by_call: dict[int, list[Activity]] = {call: [] for call in calls}
    for activity in activities:
        if activity.call in by_call:
            by_call[activity.call].append(activity)
    return list(by_call.values())


def _strangers(activities: Sequence[Activity]) -> list[Activity]:
    return [activity for activity in activities if activity.call is None]


def _who(strangers: Sequence[Activity]) -> str:
    """Names the threads that launched work of no call, as far as known."""
    names = threads_by_id(activity.thread for activity in strangers)
    return f"a thread ({names})" if names else "a thread"


def overlapping(activities: Sequence[Activity]) -> list[Activity]:
    """Returns activities of calls that ran beside ours on the timed stream, or into a later call.

    Takes all, by start. Warm calls have nothing of ours between them: on an H200 one that never joins its own
    stream read 101, 191, 281 … µs in a row.
    """
    beside: list[Activity] = []
    ours_until = 0.0
    latest: Activity | None = None  # the calls' activity that ends last
    for activity in activities:
        if activity.call == OURS:
            if latest is not None and latest.end_ns > activity.start_ns + _ROUNDING_NS:
                beside.append(latest)
                latest = None
            ours_until = max(ours_until, activity.end_ns)
            continue
        if activity.start_ns + _ROUNDING_NS < ours_until:
            beside.append(activity)
        elif latest is not None and _runs_into(latest, activity):
            beside.append(latest)
            latest = activity
        elif latest is None or activity.end_ns > latest.end_ns:
            latest = activity
    return beside


def _runs_into(earlier: Activity, later: Activity) -> bool:
    """Says whether work of a call still ran as another call began; work of no call is told by itself."""
    of_calls = earlier.call is not None and later.call is not None and earlier.call != later.call
    return of_calls and earlier.end_ns > later.start_ns + _ROUNDING_NS


def _blocks(activity: Activity) -> int:
    return math.prod(activity.kernel.grid or ()) if activity.kernel is not None else 0


def _shortened(activity: Activity, by_ns: float) -> Activity:
    end_ns = max(activity.end_ns - by_ns, activity.start_ns + _TICK_NS)
    return dataclasses.replace(activity, end_ns=end_ns)


def _span(work: Sequence[Activity]) -> float:
    return float(max(a.end_ns for a in work) - min(a.start_ns for a in work))


def busy(work: Sequence[Activity]) -> float:
    """Returns how long at least one kernel was running, in nanoseconds; `work` is sorted by start."""
    total, until = 0.0, 0.0
    for activity in work:
        if activity.kind == "kernel" and activity.end_ns > until:
            total += activity.end_ns - max(activity.start_ns, until)
            until = activity.end_ns
    return total


def summed(calls: Sequence[list[Activity]]) -> tuple[DeviceWork, ...]:
    """Returns what a call consists of: an entry for each kernel, copy direction and memset, in order.

    Kernels of one name with different grids get separate entries. A time is the sum within a call, and the
    median of that over the calls; a call without the entry counts as 0.
    """
    groups: dict[tuple[Any, ...], list[list[Activity]]] = {}
    for number, work in enumerate(calls):
        for activity in work:
            key = (activity.kind, activity.name, activity.kernel, activity.host_copy)
            groups.setdefault(key, [[] for _ in calls])[number].append(activity)
    return tuple(
        DeviceWork(
            kind=kind,
            name=name,
            kernel=kernel,
            host_copy=host_copy,
            count=statistics.fmean(map(len, by_call)),
            time_ns=statistics.median(sum(a.end_ns - a.start_ns for a in work) for work in by_call),
            size_bytes=statistics.fmean(sum(a.size_bytes for a in work) for work in by_call),
        )
        for (kind, name, kernel, host_copy), by_call in groups.items()
    )


def in_order(calls: Sequence[list[Activity]]) -> tuple[int, ...]:
    """Returns the places in `summed(calls)` of a call's activities; none where calls differ or are long."""
    kinds = [[(activity.kind, activity.name, activity.kernel) for activity in work] for work in calls]
    if len(kinds[0]) > _MOST_IN_ORDER or any(other != kinds[0] for other in kinds):
        return ()
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds[0]))}
    return tuple(places[kind] for kind in kinds[0])


def _shown(activities: Sequence[Activity]) -> str:
    names = list(dict.fromkeys(activity.name for activity in activities))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    total = sum(activity.end_ns - activity.start_ns for activity in activities) / 1e3
    return f"{names[0]}{more} ({total:.0f} µs in all)"
