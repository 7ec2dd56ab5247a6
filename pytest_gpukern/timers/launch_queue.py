"""Queues the calls to time behind a kernel that blocks the stream, so that no time has the launch cost.

`BlockingKernel` blocks the stream until the host releases it. `LaunchQueue` queues executions behind it, and
`EventQueue` does so with a pair of events around each. `escaped_work` finds work outside the stream.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from pytest_gpukern.gpu.runtime import CudaRuntime, checked, cuda_source, launcher, runtime
from pytest_gpukern.timers.timer import Batch, Iteration
from pytest_gpukern.values.note import Note

LARGEST_PART = 64
_QUEUE_ENTRIES = 512
"""Entries that we queue at once: half of the launch queue's about 1000, since a launch may take several. If
it is full the host waits, and the blocking kernel waits for the host: a deadlock until the time-out."""
ENTRIES_OF_BEFORE = 4
"""Assumed entries of a `before`: a memset for each of a few outputs."""
_QUEUEING_NS = 40_000_000
"""We stop queueing after this time, well before the blocking kernel gives up."""
LAUNCH_COST = Note("the call waits for the device, so its time contains the host's launch cost")


class Marks(Protocol):
    """What a timer does around each execution of a part: the executions queued at once."""

    def open(self, count: int) -> None:
        """Begins a part of `count` executions; discards an unfinished part."""

    def preparing(self) -> AbstractContextManager[None]:
        """Is entered while the work before an execution is queued; it may do nothing."""
        return nullcontext()

    def start(self, number: int) -> None:
        """Is called before execution `number` of the part is launched."""

    def end(self, number: int) -> None:
        """Is called after its launch."""

    def take(self, count: int) -> None:
        """Keeps the first `count` executions of the part, which are done."""

    def restart(self) -> None:
        """Discards everything taken so far: all is executed again."""


class LaunchQueue:
    """Executes on one stream of cuda.core, queued if possible and if the calls are not known to wait."""

    def __init__(self, runtime: CudaRuntime, stream: Any, *, queues: bool = True) -> None:
        self._runtime = runtime
        self._stream = stream
        self._blocking = blocking_kernel()
        self._limit = LARGEST_PART if queues else 0
        runtime.reset_persisting_l2()  # no flush evicts such lines: 3530 instead of 714 GB/s (llm.c PR 851)
        runtime.flush_l2(stream)  # compiles and loads it before anything blocks
        runtime.synchronize()

    @property
    def queues(self) -> bool:
        return self._limit > 0

    def give_up(self) -> None:
        """Executes calls unqueued from now on, each from an idle device."""
        self._limit = 0

    def execute(self, iterations: Sequence[Iteration], marks: Marks, *, cold: bool) -> bool:
        """Executes each iteration once, in order; returns whether all could be queued.

        A call that waits for the device cannot be queued: the blocking kernel times out. Then every call runs
        unqueued, from an idle device, and its time contains the launch cost. Executions that were in vain are
        repeated, with fresh arguments if they need them.
        """
        todo, done = list(iterations), 0
        entries = max((_entries(iteration, cold=cold) for iteration in todo), default=1)
        fitting = max(1, min(LARGEST_PART, _QUEUE_ENTRIES // entries))
        while self._limit and done < len(todo):
            part = slice(done, done + min(self._limit, fitting))
            queued, blocked = self._queued(todo[part], marks, cold=cold)
            if blocked:
                marks.take(queued)
                done += queued
                continue
            todo[part] = [iteration.again() for iteration in todo[part]]
            # The last one queued did not fit. If it does not fit alone either, the call itself waits.
            self._limit = 0 if self._limit == 1 else max(1, (queued - 1) // 2)
        if self._limit:
            return True
        todo[:done] = [iteration.again() for iteration in todo[:done]]
        self._unqueued(todo, marks, cold=cold)
        return False

    def _queued(self, iterations: Sequence[Iteration], marks: Marks, *, cold: bool) -> tuple[int, bool]:
        """Returns how many could be queued in time, and whether the stream was blocked until then."""
        queued = 0
        self._runtime.synchronize()
        marks.open(len(iterations))
        deadline = time.perf_counter_ns() + _QUEUEING_NS
        self._blocking.block(self._stream)
        try:
            for number, iteration in enumerate(iterations):
                self._prepare(iteration, marks, cold=cold)
                marks.start(number)
                iteration.run()
                marks.end(number)
                queued += 1
                if time.perf_counter_ns() > deadline:
                    break
        finally:
            self._blocking.release()
        self._runtime.synchronize()
        return queued, not self._blocking.timed_out

    def _unqueued(self, iterations: Sequence[Iteration], marks: Marks, *, cold: bool) -> None:
        marks.restart()
        marks.open(len(iterations))
        for number, iteration in enumerate(iterations):
            self._runtime.synchronize()  # else the flush below slows the last call's work on another stream
            self._prepare(iteration, marks, cold=cold)
            self._runtime.synchronize()
            marks.start(number)
            iteration.run()
            marks.end(number)
        self._runtime.synchronize()
        marks.take(len(iterations))

    def _prepare(self, iteration: Iteration, marks: Marks, *, cold: bool) -> None:
        if iteration.before is not None:
            with marks.preparing():
                iteration.before()
        if cold:
            self._runtime.flush_l2(self._stream)


def _entries(iteration: Iteration, *, cold: bool) -> int:
    """Returns a sample's entries in the launch queue: two events, the flush, and its launches."""
    assumed = 1 if iteration.before is None else 1 + ENTRIES_OF_BEFORE
    return 2 + cold + (assumed if iteration.launches is None else iteration.launches)


_DEVICEMAP = 2  # CU_MEMHOSTALLOC_DEVICEMAP
TIMEOUT_NS = 100_000_000  # so a call that waits for the device is found in 0.2 s


class BlockingKernel:
    """Blocks a stream at a ticket; releasing a ticket releases all earlier ones.

    A time-out turns a deadlock into `timed_out`. Causes: a call behind it that waits for the device, a full
    launch queue, or a module that loads only now and waits for an idle context (NVBench #136, #240, #340).
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._kernel = runtime.kernel(cuda_source("timing.cu"), "gpukern_block")
        # Mapped pinned memory: [0] the last ticket released, [1] the last ticket that timed out.
        self._mailbox = int(checked("cuMemHostAlloc", 8, _DEVICEMAP))
        self._words = (ctypes.c_uint32 * 2).from_address(self._mailbox)
        self._words[0] = self._words[1] = 0
        self._ticket = 0
        self.block(runtime.stream, timeout_ns=0)  # loads and runs it once before anything blocks
        self.release()
        runtime.synchronize()

    def block(self, stream: Any, timeout_ns: int = TIMEOUT_NS) -> None:
        self._ticket += 1
        ticket, timeout = np.uint32(self._ticket), np.uint64(timeout_ns)
        launcher(stream, self._kernel, 1, 1)(self._mailbox, ticket, timeout, self._mailbox + 4)

    def release(self) -> None:
        self._words[0] = self._ticket

    @property
    def timed_out(self) -> bool:
        """Whether the last block timed out; ask once the device is idle."""
        return bool(self._words[1] == self._ticket)


@functools.cache
def blocking_kernel() -> BlockingKernel:
    return BlockingKernel(runtime())


_DOCUMENTED_RESOLUTION_NS = 500.0


class EventQueue:
    """Times executions on one stream with pairs of events; the stream is the runtime's by default."""

    _cold = True  # of the last batch

    def __init__(self, runtime: CudaRuntime, stream: Any = None, *, queues: bool = True) -> None:
        self._runtime = runtime
        self._stream = stream or runtime.stream
        self._queue = LaunchQueue(runtime, self._stream, queues=queues)
        self._marks = _EventMarks(runtime, self._stream)

    def collect(self, iterations: Sequence[Iteration], *, cold: bool) -> Batch:
        """Takes a sample of each iteration with `LaunchQueue.execute`; the batch says if unqueued."""
        self._cold = cold
        self._marks.restart()
        if self._queue.execute(iterations, self._marks, cold=cold):
            return Batch(self._marks.samples_ns)
        return Batch(self._marks.samples_ns, launch_included=True, notes=[LAUNCH_COST])

    @property
    def queues(self) -> bool:
        return self._queue.queues

    @property
    def resolution_ns(self) -> float:
        return event_tick_ns(self._runtime)


@functools.cache
def event_tick_ns(runtime: CudaRuntime) -> float:
    """Returns the smallest step between readings of an empty pair, or CUDA's documented one if none is seen.

    Measured once a process, in a few milliseconds.
    """
    empty = [Iteration(lambda: None)] * LARGEST_PART
    readings = sorted(set(EventQueue(runtime, runtime.stream).collect(empty, cold=False).samples_ns))
    steps = [later - earlier for earlier, later in itertools.pairwise(readings) if later - earlier > 1]
    return min(steps, default=_DOCUMENTED_RESOLUTION_NS)


class _EventMarks(Marks):
    """Records an event before and after each execution; uses its events again in the next part."""

    def __init__(self, runtime: CudaRuntime, stream: Any) -> None:
        self._create = runtime.device.create_event
        self._stream = stream
        self._pairs: list[tuple[Any, Any]] = []
        self.samples_ns: list[float] = []

    def open(self, count: int) -> None:
        from cuda.core import EventOptions

        options = EventOptions(timing_enabled=True)
        while len(self._pairs) < count:
            self._pairs.append((self._create(options), self._create(options)))

    def start(self, number: int) -> None:
        self._stream.record(self._pairs[number][0])

    def end(self, number: int) -> None:
        self._stream.record(self._pairs[number][1])

    def take(self, count: int) -> None:
        self.samples_ns += [(end - start) * 1e6 for start, end in self._pairs[:count]]

    def restart(self) -> None:
        self.samples_ns = []


_LAGS = 5  # the shortest counts, since the host's other work only lengthens a lag
_LONG_CALL_NS = 1e7
_ESCAPE_NS = 40_000.0
_ESCAPE_SHARE = 0.005
"""Work that ends later than both after the end event ran on another stream: 40 µs, 0.5 % of the call."""


def escaped_work(runtime: CudaRuntime, stream: Any, iteration: Iteration) -> str | None:
    """Looks for work that still ran after an event behind the call: it was on another stream.

    The iteration was executed; a few more like it are executed. Work of less than 40 µs, or of less than
    0.5 % of the call, is not found.

    Returns:
        How much work was found, in words, or None.
    """
    shortest_lag = shortest_call = float("inf")
    for _ in range(_LAGS):
        iteration = iteration.again()
        lag, whole = _lag(runtime, stream, iteration)
        shortest_lag, shortest_call = min(shortest_lag, lag), min(shortest_call, whole)
        if whole > _LONG_CALL_NS:
            break
    nothing = Iteration(lambda: None)
    idle = min(_lag(runtime, stream, nothing)[0] for _ in range(_LAGS))
    escaped = shortest_lag - idle
    if escaped <= max(_ESCAPE_NS, _ESCAPE_SHARE * shortest_call):
        return None
    return f"{escaped / 1e3:.0f} µs of work ran outside the timed stream; make the given stream wait for it"


def _lag(runtime: CudaRuntime, stream: Any, iteration: Iteration) -> tuple[float, float]:
    """Returns the time from the end event to an idle device, and from the call to then, in nanoseconds."""
    end = runtime.device.create_event()
    if iteration.before is not None:
        iteration.before()
    runtime.synchronize()
    start = time.perf_counter_ns()
    iteration.run()
    stream.record(end)
    end.sync()
    ended = time.perf_counter_ns()
    runtime.synchronize()  # waits for other streams, too: an event pair read 80 µs where the host waited 146
    idle = time.perf_counter_ns()
    return float(idle - ended), float(idle - start)
