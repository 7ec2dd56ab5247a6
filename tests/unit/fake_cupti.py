"""CUPTI, and a device whose records it writes, as cupti-python 13.0 shows them.

Records are written only for kinds that are enabled when work is launched, and are handed to the callback on a
thread of CUPTI's when a buffer is full or flushed. An external id is written beside the record of the API
call, so only where API calls are recorded; it is the last one that the launching thread pushed.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import sys
import threading
from types import ModuleType, SimpleNamespace

CONTEXT = 42
SUBSCRIBER = 4711


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    FUNCTION = 26
    EXTERNAL_CORRELATION = 39


class ExternalCorrelationKind(enum.IntEnum):
    CUSTOM0 = 3
    CUSTOM1 = 4


class CallbackDomain(enum.IntEnum):
    DRIVER_API = 1
    RUNTIME_API = 2
    RESOURCE = 3


class CallbackIdResource(enum.IntEnum):
    CONTEXT_CREATED = 1
    MODULE_LOADED = 5


class ModuleResource(ctypes.Structure):
    """CUpti_ModuleResourceData of cupti_callbacks.h."""

    _fields_ = (("moduleId", ctypes.c_uint32), ("cubinSize", ctypes.c_size_t), ("pCubin", ctypes.c_char_p))


class Result(enum.IntEnum):
    ERROR_INVALID_PARAMETER = 1
    ERROR_NOT_COMPATIBLE = 14
    ERROR_QUEUE_EMPTY = 18
    ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED = 33
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_UNKNOWN = 999


class cuptiError(Exception):  # noqa: N801 - its name in cupti-python
    def __init__(self, status):
        self.status = status
        super().__init__(f"{Result(status).name} ({int(status)})")


class FakeCupti:
    """The module `cupti.cupti`.

    Attributes:
        errors: function's name, or (name, first argument) → the Result that it fails with.
        lost: tells which records are never delivered.
        buffer_records: records in a buffer; a full one is delivered at once.
        serial_cost_ns: by how much a kernel that is recorded serially reads longer.
        serial_tick_ns: start and end of such a kernel are rounded down to multiples of this.
        enabled: kinds that are recorded now.
        subscribed: the callback of the one subscriber, or None.
        called_back: (domain, id) of the events that it is called for.
        registered: how often callbacks were registered.
    """

    ActivityKind = ActivityKind
    ExternalCorrelationKind = ExternalCorrelationKind
    CallbackDomain = CallbackDomain
    CallbackIdResource = CallbackIdResource
    cuptiError = cuptiError  # noqa: N815

    def __init__(self):
        self.errors = {}
        self.lost = lambda record: False
        self.buffer_records = 10**9
        self.serial_cost_ns = 0
        self.serial_tick_ns = 1
        self.enabled = set()
        self.registered = 0
        self.subscribed = None
        self.called_back = set()
        self._modules = itertools.count(1)
        self._buffer = []
        self._stacks = threading.local()
        self._correlation = itertools.count(1)

    # what cupti-python offers

    def activity_register_callbacks(self, requested, completed):
        self._may_fail("activity_register_callbacks")
        size_bytes, most_records = requested()
        assert size_bytes > 0
        assert most_records == 0, "as many as fit"
        self._completed = completed
        self.registered += 1

    def activity_enable(self, kind):
        self._may_fail("activity_enable", kind)
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self._may_fail("activity_disable", kind)
        self.enabled.discard(kind)

    def activity_push_external_correlation_id(self, kind, number):
        self._may_fail("activity_push_external_correlation_id", number)
        self._stack(kind).append(number)

    def activity_pop_external_correlation_id(self, kind):
        if not self._stack(kind):
            raise cuptiError(Result.ERROR_QUEUE_EMPTY)
        return self._stack(kind).pop()

    def activity_flush_all(self, flag):
        assert flag == 1, "buffers that are not full are wanted, too"
        self._may_fail("activity_flush_all")
        self._deliver()

    def subscribe(self, callback, user_data):
        self._may_fail("subscribe")
        if self.subscribed is not None:
            raise cuptiError(Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
        self.subscribed = callback
        self._user_data = user_data
        return SUBSCRIBER

    def enable_callback(self, enable, subscriber, domain, callback_id):
        assert subscriber == SUBSCRIBER
        self._may_fail("enable_callback")
        (self.called_back.add if enable else self.called_back.discard)((domain, callback_id))

    def unsubscribe(self, subscriber):
        assert subscriber == SUBSCRIBER
        self.subscribed = None
        self.called_back.clear()

    def get_stream_id_ex(self, context, stream, per_thread_stream):
        assert (context, per_thread_stream) == (CONTEXT, 0)
        return stream_number(stream)

    # what a device and a test do with it

    def pushed(self, kind=ExternalCorrelationKind.CUSTOM0):
        """External ids on this thread's stack."""
        return list(self._stack(kind))

    def launched(self, kind, *, api=ActivityKind.DRIVER, **fields):
        """An API call puts work on the device; returns what to call with its start and end."""
        correlation = next(self._correlation)
        for external_kind in ExternalCorrelationKind:
            if self._stack(external_kind) and api in self.enabled:
                self._write(
                    ActivityKind.EXTERNAL_CORRELATION,
                    external_kind=external_kind,
                    external_id=self._stack(external_kind)[-1],
                    correlation_id=correlation,
                )
        self._write(api, correlation_id=correlation, cbid=307)
        if kind is ActivityKind.CONCURRENT_KERNEL and ActivityKind.KERNEL in self.enabled:
            kind = ActivityKind.KERNEL
        recorded = kind in self.enabled

        def finished(start, end):
            if recorded and kind is ActivityKind.KERNEL:
                start, end = (self._ticked(time) for time in (start, end + self.serial_cost_ns))
            if recorded:
                self._write(kind, start=start, end=end, correlation_id=correlation, **fields)

        return finished

    def module_loaded(self, code, *kernels):
        """A library loads machine code with these kernels; the driver says so before it is written down."""
        number = next(self._modules)
        event = (CallbackDomain.RESOURCE, CallbackIdResource.MODULE_LOADED)
        if event in self.called_back:
            resource = ModuleResource(number, len(code), code or None)
            data = SimpleNamespace(resource_descriptor=ctypes.addressof(resource))
            self.subscribed(self._user_data, *event, data)
        for kernel in kernels:
            self._write(ActivityKind.FUNCTION, name=kernel, module_id=number)

    def _ticked(self, time):
        return time // self.serial_tick_ns * self.serial_tick_ns

    def _write(self, kind, **fields):
        record = SimpleNamespace(kind=int(kind), **fields)
        if kind in self.enabled and not self.lost(record):
            self._buffer.append(record)
            if len(self._buffer) >= self.buffer_records:
                self._deliver()

    def _deliver(self):
        records, self._buffer = self._buffer, []
        if records:
            thread = threading.Thread(target=self._completed, args=(records,))
            thread.start()
            thread.join()

    def _stack(self, kind):
        return self._stacks.__dict__.setdefault(kind, [])

    def _may_fail(self, name, *arguments):
        status = self.errors.get(name, self.errors.get((name, *arguments)))
        if status is not None:
            raise cuptiError(status)


def stream_number(handle):
    """CUPTI's number of a stream."""
    return handle % 1000


def install(monkeypatch, cupti):
    """Makes `from cupti import cupti` import this one."""
    package = ModuleType("cupti")
    package.cupti = cupti
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", cupti)


class FakeStream:
    """A stream, as cuda.core's."""

    def __init__(self, handle):
        self.handle = handle
        self.free_at = 0


class FakeMachine:
    """Runtime, blocking kernel and device in one.

    A launch takes the host 2 µs. A stream begins with its next work 500 ns after the end of the one before;
    while it is blocked it only collects. No two flushes in a row last equally long.

    Attributes:
        capacity: launches that fit into the launch queue; one more waits until the blocking kernel gives up.
        lost_context: what synchronizing raises, or None.
    """

    LAUNCH_NS = 2000
    multiprocessors = 132
    GAP_NS = 500

    def __init__(self, cupti):
        self.cupti = cupti
        self.now = 1_000_000
        self.stream = FakeStream(70_007)
        self.streams = [self.stream]
        self.capacity = 1000
        self.blocked = None
        self.timed_out = False
        self.lost_context = None
        self.flushes = 0

    def other_stream(self):
        self.streams.append(FakeStream(70_007 + len(self.streams)))
        return self.streams[-1]

    # work

    def kernel(
        self, name="k", ns=1000, *, stream=None, grid=(1, 1, 1), registers=16, api=ActivityKind.DRIVER
    ):
        """A call that launches a kernel of this duration."""
        shape = dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True))
        return lambda: self._launch(
            ActivityKind.CONCURRENT_KERNEL,
            ns,
            stream,
            api=api,
            name=name,
            **shape,
            block_x=128,
            block_y=2,
            block_z=1,
            registers_per_thread=registers,
            static_shared_memory=64,
            dynamic_shared_memory=4096,
            local_memory_per_thread=8,
        )

    def copy(self, ns=3000, *, kind=1, source=1, target=3, size=4096, stream=None):
        """A call that copies; the kinds are CUPTI's numbers, by default from pageable host memory."""
        fields = {"copy_kind": kind, "src_kind": source, "dst_kind": target, "bytes": size}
        return lambda: self._launch(ActivityKind.MEMCPY, ns, stream, **fields)

    def memset(self, ns=700, *, size=256, stream=None):
        """A call that sets memory."""
        return lambda: self._launch(ActivityKind.MEMSET, ns, stream, bytes=size)

    def _launch(self, kind, ns, stream, **fields):
        stream = stream or self.stream
        self.now += self.LAUNCH_NS
        finished = self.cupti.launched(kind, stream_id=stream_number(stream.handle), **fields)
        if stream is self.blocked:
            self._waiting.append((ns, finished))
            if len(self._waiting) > self.capacity:
                self._give_up()
        else:
            self._run(stream, ns, finished)

    def _run(self, stream, ns, finished):
        start = max(self.now, stream.free_at + self.GAP_NS)
        stream.free_at = start + ns
        finished(start, stream.free_at)

    # runtime

    def reset_persisting_l2(self):
        """Nothing is cached."""

    def flush_l2(self, stream=None):
        self.flushes += 1
        self.kernel("gpukern_flush", 50_000 + 2 * (37 * self.flushes % 61), stream=stream)()

    def synchronize(self):
        if self.lost_context is not None:
            raise self.lost_context
        if self.blocked is not None:
            self._give_up()
        self.now = max(self.now, *(stream.free_at for stream in self.streams))

    # blocking kernel

    def block(self, stream):
        self._began = self.now
        self._finished = self.cupti.launched(ActivityKind.CONCURRENT_KERNEL, **self._block_fields(stream))
        self.blocked, self.timed_out, self._waiting = stream, False, []

    def release(self):
        if self.blocked is None:
            return
        stream, self.blocked = self.blocked, None
        stream.free_at = self.now
        self._finished(self._began, self.now)
        for ns, finished in self._waiting:
            self._run(stream, ns, finished)

    def _give_up(self):
        self.now += 250_000_000
        self.timed_out = True
        self.release()

    @staticmethod
    def _block_fields(stream):
        names = ("registers_per_thread", "static_shared_memory", "dynamic_shared_memory")
        sizes = dict.fromkeys((*names, "local_memory_per_thread"), 0)
        shape = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), 1)
        return {"name": "gpukern_block", "stream_id": stream_number(stream.handle), **sizes, **shape}
