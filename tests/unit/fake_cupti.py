"""CUPTI, and a device whose records it writes, as cupti-python 13.0 shows them.

Records are written only for kinds that are enabled when work is launched, into the memory that it is given,
which is handed back on a thread of CUPTI's when it is full or flushed. An external id is written beside the
record of the API call, so only where API calls are recorded; it is the last one that the launching thread
pushed.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np

from pytest_gpukern.timers.cupti.activity import OURS
from pytest_gpukern.timers.launch_queue import TIMEOUT_NS

CONTEXT = 42
SUBSCRIBER = 4711
EPOCH_NS = 1_795_188_000_000_000_077
"""Records tell nanoseconds since 1970, of which a float holds every 256th."""


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


class ApiCallbackSite(enum.IntEnum):
    API_ENTER = 0
    API_EXIT = 1


LaunchCalls = enum.IntEnum(
    "LaunchCalls",
    [
        f"cuLaunch{what}Kernel{extended}{stream}"
        for what, extended in (("", ""), ("Cooperative", ""), ("", "Ex"))
        for stream in ("", "_ptsz")
    ],
    start=300,
)
"""Those of driver_api_trace_cbid that launch kernels; the numbers do not matter."""


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData of cupti_callbacks.h."""

    _fields_ = (
        ("callbackSite", ctypes.c_int),
        ("functionName", ctypes.c_char_p),
        ("functionParams", ctypes.c_void_p),
        ("functionReturnValue", ctypes.c_void_p),
        ("symbolName", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("contextUid", ctypes.c_uint32),
        ("correlationData", ctypes.c_void_p),
        ("correlationId", ctypes.c_uint32),
    )


class ModuleResource(ctypes.Structure):
    """CUpti_ModuleResourceData of cupti_callbacks.h."""

    _fields_ = (("moduleId", ctypes.c_uint32), ("cubinSize", ctypes.c_size_t), ("pCubin", ctypes.c_char_p))


class Result(enum.IntEnum):
    ERROR_INVALID_PARAMETER = 1
    ERROR_MAX_LIMIT_REACHED = 12
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
        now: tells the host's time in nanoseconds.
        serial_cost_ns: by how much a kernel that is recorded serially reads longer.
        enabled: kinds that are recorded now.
        subscribed: the callback of the one subscriber, or None.
        called_back: (domain, id) of the events that it is called for.
        registered: how often callbacks were registered.
        cycupti: the module `cupti.cycupti`.
        longer: kind → by how many bytes its records are longer than their layout.
        given_back: sizes of the valid parts of the buffers that were given back.
        dropped: records for which there was no buffer.
    """

    ActivityKind = ActivityKind
    ExternalCorrelationKind = ExternalCorrelationKind
    CallbackDomain = CallbackDomain
    CallbackIdResource = CallbackIdResource
    ApiCallbackSite = ApiCallbackSite
    driver_api_trace_cbid = LaunchCalls
    cuptiError = cuptiError  # noqa: N815

    def __init__(self):
        self.errors = {}
        self.lost = lambda record: False
        self.now = lambda: 0
        self.serial_cost_ns = 0
        self.enabled = set()
        self.registered = 0
        self.subscribed = None
        self.called_back = set()
        self._records_functions = False
        self._modules = itertools.count(1)
        self._stacks = threading.local()
        self._correlation = itertools.count(1)
        vars(self).update(LAYOUTS)
        self.longer = {}
        self.given_back = []
        self.dropped = 0
        self._address = None
        self._texts = {}
        self._functions = {
            "cuptiActivityRegisterCallbacks": _REGISTER(self._register),
            "cuptiActivityGetNextRecord": _GET_NEXT(self._get_next),
        }
        self._signatures = []
        self.cycupti = ModuleType("cupti.cycupti")
        self.cycupti.__pyx_capi__ = {}
        self.export(
            "cuptiActivityRegisterCallbacks",
            b"CUptiResult (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc)",
        )
        self.export("cuptiActivityGetNextRecord", b"CUptiResult (uint8_t *, size_t, CUpti_Activity **)")

    # what cupti-python offers

    def activity_enable(self, kind):
        self._may_fail("activity_enable", kind)
        self._records_functions |= kind in (ActivityKind.KERNEL, ActivityKind.CONCURRENT_KERNEL)
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
        self._may_fail("unsubscribe")
        self.subscribed = None
        self.called_back.clear()

    def get_timestamp(self):
        return EPOCH_NS + self.now()

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
        thread = threading.get_ident() % 2**32
        self._write(api, correlation_id=correlation, start=self.get_timestamp(), thread_id=thread)
        fields = {"device_id": 0, "context_id": 1, **fields}
        if kind is ActivityKind.CONCURRENT_KERNEL and ActivityKind.KERNEL in self.enabled:
            kind = ActivityKind.KERNEL
        recorded = kind in self.enabled

        def finished(start, end):
            if recorded and kind is ActivityKind.KERNEL:
                end += self.serial_cost_ns
            if recorded:
                times = {"start": EPOCH_NS + start, "end": EPOCH_NS + end}
                self._write(kind, **times, correlation_id=correlation, **fields)

        return finished

    def module_loaded(self, code, *functions):
        """A library loads machine code, of whose functions there are records once kernels were recorded."""
        number = next(self._modules)
        event = (CallbackDomain.RESOURCE, CallbackIdResource.MODULE_LOADED)
        if event in self.called_back:
            resource = ModuleResource(number, len(code), code or None)
            data = SimpleNamespace(resource_descriptor=ctypes.addressof(resource))
            self.subscribed(self._user_data, *event, data)
        for name in functions if self._records_functions else ():
            self._write(ActivityKind.FUNCTION, name=name, module_id=number)

    def kernel_launched(self, name, handle, *, call="cuLaunchKernel", loading=lambda: None):
        """A library launches a kernel by the driver's handle of it.

        Args:
            loading: what the driver does meanwhile.
        """
        number = LaunchCalls[call]
        values = (0xC0F1, handle, 0) if call.startswith("cuLaunchKernelEx") else (handle, 1, 1)
        parameters = (ctypes.c_uint64 * 3)(*values)
        for site in ApiCallbackSite:
            called = CallbackData(
                callbackSite=site,
                functionName=call.encode(),
                functionParams=ctypes.addressof(parameters),
                symbolName=name if name is None else name.encode(),
            )
            if (CallbackDomain.DRIVER_API, number) in self.called_back:
                data = SimpleNamespace(ptr=ctypes.addressof(called))
                self.subscribed(self._user_data, CallbackDomain.DRIVER_API, number, data)
            if site == ApiCallbackSite.API_ENTER:
                loading()

    def _write(self, kind, **fields):
        record = SimpleNamespace(kind=int(kind), **fields)
        if kind in self.enabled and not self.lost(record):
            self._put(self._in_memory(record))

    def export(self, name, signature):
        """Has cupti-python export this function as one of this signature."""
        self._signatures.append(signature)  # a capsule only points to it
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        pointer = ctypes.cast(self._functions[name], ctypes.c_void_p)
        self.cycupti.__pyx_capi__[name] = new(pointer, signature, None)

    def request_buffer(self):
        """Asks for a buffer, as CUPTI does when it has none to write to."""
        address, size, most_records = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(77)
        self._callbacks[0](ctypes.byref(address), ctypes.byref(size), ctypes.byref(most_records))
        self._address, self._size, self._used = address.value, size.value, 0
        assert (self._address or 0) % 8 == 0
        assert most_records.value == 0, "as many as fit"

    def _register(self, requested, completed):
        if "cuptiActivityRegisterCallbacks" in self.errors:
            return self.errors["cuptiActivityRegisterCallbacks"]
        self._callbacks = (_REQUESTED(requested), _COMPLETED(completed))
        self.registered += 1
        return 0

    def _get_next(self, buffer, valid, record):
        place = record[0]
        place = buffer if place is None else place + self._length(ctypes.c_int32.from_address(place).value)
        if place >= buffer + valid:
            return Result.ERROR_MAX_LIMIT_REACHED
        record[0] = place
        return 0

    def _length(self, kind):
        return LAYOUTS[_LAYOUT_OF[kind]].itemsize + self.longer.get(kind, 0)

    def _put(self, data):
        if self._address is not None and self._used + len(data) > self._size:
            self._deliver()
        if self._address is None:
            self.request_buffer()
        if self._address is None:
            self.dropped += 1
            return
        assert self._used + len(data) <= self._size
        ctypes.memmove(self._address + self._used, data, len(data))
        self._used += len(data)

    def _in_memory(self, record):
        layout = LAYOUTS[_LAYOUT_OF[record.kind]]
        data = bytearray(b"\xee" * max(layout.itemsize, self._length(record.kind)))
        values = np.frombuffer(data, layout, 1)
        for field, value in vars(record).items():
            values[field] = self._text(value) if field == "name" else value
        return bytes(data[: self._length(record.kind)])

    def _text(self, text):
        """Where this name lies in memory; of None, nowhere."""
        if text is None:
            return 0
        text = text.encode() if isinstance(text, str) else text
        return ctypes.addressof(self._texts.setdefault(text, ctypes.create_string_buffer(text)))

    def _deliver(self):
        if self._address is not None:
            address, self._address = self._address, None
            self.given_back.append(self._used)
            on_cuptis_thread(self._callbacks[1], None, 0, address, self._size, self._used)

    def _stack(self, kind):
        return self._stacks.__dict__.setdefault(kind, [])

    def _may_fail(self, name, *arguments):
        status = self.errors.get(name, self.errors.get((name, *arguments)))
        if status is not None:
            raise cuptiError(status)


def on_cuptis_thread(callback, *arguments):
    thread = threading.Thread(target=callback, args=arguments)
    thread.start()
    thread.join()


def _layout(fields, **nested):
    """Of a C structure with these fields, each `name:format`."""
    pairs = [field.split(":") for field in fields.split()]
    return np.dtype([(name, nested.get(name, of)) for name, of in pairs], align=True)


_CACHE_CONFIG = np.dtype(
    {
        "names": ["both", "config"],
        "formats": ["u1", [("requested_executed", "u1")]],
        "offsets": [0, 0],
        "itemsize": 1,
    }
)
LAYOUTS = {
    "activity_api_dtype": _layout(
        "kind:i4 cbid:u4 start:u8 end:u8 process_id:u4 thread_id:u4 correlation_id:u4 return_value:u4"
    ),
    "activity_external_correlation_dtype": _layout(
        "kind:i4 external_kind:i4 external_id:u8 correlation_id:u4 reserved:u4"
    ),
    "activity_function_dtype": _layout(
        "kind:i4 id:u4 context_id:u4 module_id:u4 function_ind_ex:u4 pad:u4 name:i8"
    ),
    "activity_kernel10_dtype": _layout(
        "kind:i4 cache_config:u1 shared_memory_config:u1 registers_per_thread:u2 "
        "partitioned_global_cache_requested:i4 partitioned_global_cache_executed:i4 start:u8 end:u8 "
        "completed:u8 device_id:u4 context_id:u4 stream_id:u4 grid_x:i4 grid_y:i4 grid_z:i4 block_x:i4 "
        "block_y:i4 block_z:i4 static_shared_memory:i4 dynamic_shared_memory:i4 local_memory_per_thread:u4 "
        "local_memory_total:u4 correlation_id:u4 grid_id:i8 name:i8 reserved0:i8 queued:u8 submitted:u8 "
        "launch_type:u1 is_shared_memory_carveout_requested:u1 shared_memory_carveout_requested:u1 "
        "padding:u1 shared_memory_executed:u4 graph_node_id:u8 shmem_limit_config:i4 graph_id:u4 "
        "p_access_policy_window:i8 channel_id:u4 channel_type:i4 cluster_x:u4 cluster_y:u4 cluster_z:u4 "
        "cluster_scheduling_policy:u4 local_memory_total_v2:u8 max_potential_cluster_size:u4 "
        "max_active_clusters:u4 is_device_launched:u1 padding3:7u1",
        cache_config=_CACHE_CONFIG,
    ),
    "activity_memcpy6_dtype": _layout(
        "kind:i4 copy_kind:u1 src_kind:u1 dst_kind:u1 flags_:u1 bytes:u8 start:u8 end:u8 device_id:u4 "
        "context_id:u4 stream_id:u4 correlation_id:u4 runtime_correlation_id:u4 pad:u4 reserved0:i8 "
        "graph_node_id:u8 graph_id:u4 channel_id:u4 channel_type:i4 is_device_launched:u1 pad2:3u1 "
        "copy_count:u8"
    ),
    "activity_memset4_dtype": _layout(
        "kind:i4 value:u4 bytes:u8 start:u8 end:u8 device_id:u4 context_id:u4 stream_id:u4 "
        "correlation_id:u4 flags_:u2 memory_kind:u2 pad:u4 reserved0:i8 graph_node_id:u8 graph_id:u4 "
        "channel_id:u4 channel_type:i4 is_device_launched:u1 pad2:3u1"
    ),
}
"""As cupti-python 13.0.1 exports them."""
_LAYOUT_OF = {
    ActivityKind.MEMCPY: "activity_memcpy6_dtype",
    ActivityKind.MEMSET: "activity_memset4_dtype",
    ActivityKind.KERNEL: "activity_kernel10_dtype",
    ActivityKind.DRIVER: "activity_api_dtype",
    ActivityKind.RUNTIME: "activity_api_dtype",
    ActivityKind.CONCURRENT_KERNEL: "activity_kernel10_dtype",
    ActivityKind.FUNCTION: "activity_function_dtype",
    ActivityKind.EXTERNAL_CORRELATION: "activity_external_correlation_dtype",
}

# Of cupti_activity.h: CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc, and the functions.
_REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
_REGISTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))


def stream_number(handle):
    """CUPTI's number of a stream."""
    return handle % 1000


def install(monkeypatch, cupti):
    """Makes `from cupti import cupti, cycupti` import these."""
    package = ModuleType("cupti")
    package.cupti = cupti
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", cupti)
    package.cycupti = cupti.cycupti


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
        cupti.now = lambda: self.now
        self.stream = FakeStream(70_007)
        self.streams = [self.stream]
        self.capacity = 1000
        self.blocked = None
        self._held = []
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
        return lambda: self._launch(ActivityKind.MEMSET, ns, stream, bytes=size, memory_kind=3)

    def wait(self, stream, other):
        """A call that has a stream wait for what is on another by now, as an event does."""
        if other in self._held:
            self._held.append(stream)
            self._waiting.append(lambda: self._join(stream, other))
        else:
            self._join(stream, other)

    def _join(self, stream, other):
        stream.free_at = max(stream.free_at, other.free_at)

    def _launch(self, kind, ns, stream, **fields):
        stream = stream or self.stream
        self.now += self.LAUNCH_NS
        finished = self.cupti.launched(kind, stream_id=stream_number(stream.handle), **fields)
        if stream in self._held:
            self._waiting.append(lambda: self._run(stream, ns, finished))
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
        self._held = [stream]

    def release(self):
        if self.blocked is None:
            return
        stream, self.blocked = self.blocked, None
        stream.free_at = self.now
        self._held = []
        self._finished(self._began, self.now)
        for go_on in self._waiting:
            go_on()

    def _give_up(self):
        self.now += TIMEOUT_NS
        self.timed_out = True
        self.release()

    @staticmethod
    def _block_fields(stream):
        names = ("registers_per_thread", "static_shared_memory", "dynamic_shared_memory")
        sizes = dict.fromkeys((*names, "local_memory_per_thread"), 0)
        shape = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), 1)
        return {"name": "gpukern_block", "stream_id": stream_number(stream.handle), **sizes, **shape}


def recorded(trace, *calls, concurrently=True):
    """The activities of these calls, numbered from 2."""
    trace.open(concurrently=concurrently)
    try:
        for number, call in enumerate(calls, start=OURS + 1):
            trace.push(number)
            call()
            trace.pop()
    finally:
        activities = trace.close()
    return activities


def in_a_thread(call):
    """Has a call made by a thread of its own, which is waited for."""

    def run():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    return run
