"""Reads CUPTI's activity records: what the device really did, when, and for which of our calls.

The first recording of a process attaches CUPTI. We ask it for records only while a recording is open, since
that makes the host's API calls 8 to 15 % slower.

We read the records of CUPTI 13 (`cupti-python` has CUPTI's version). External correlation tells calls apart.
We push an id on the launching thread's stack before a call and pop it afterwards, and CUPTI writes it beside
each API call's correlation id. Work that another thread launched, as in PyTorch's backward passes, belongs to
the call during which it was launched.
https://docs.nvidia.com/cupti/main/main.html#external-correlation
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pytest_gpukern.gpu.kernel_facts import readable
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.values.garbage import gc_paused
from pytest_gpukern.values.result import DeviceActivity, HostCopy, KernelFacts

_Read = TypeVar("_Read", "Activity", DeviceActivity)


_COPY_KINDS = dict(
    enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), start=1)
)
"""CUpti_ActivityMemcpyKind"""
_MEMORY_KINDS = dict(
    enumerate(
        ("pageable", "pinned", "device", "array", "managed", "device static", "managed static"), start=1
    )
)
"""CUpti_ActivityMemoryKind"""
OURS = 1
"""The external id of what this plugin launches around the calls; calls have larger ids."""
_REMEDIES = {
    "ERROR_INSUFFICIENT_PRIVILEGES": "the driver lets only administrators profile "
    "(NVreg_RestrictProfilingToAdminUsers)",
    "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "another profiler is attached to this process",
    "ERROR_NOT_COMPATIBLE": "CUPTI does not fit the driver; install the cupti-python of the driver's CUDA",
    "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": "this virtual GPU does not allow profiling",
}


@dataclass(frozen=True)
class Activity:
    """One kernel, copy or memset as the device executed it.

    Attributes:
        kind: `kernel`, `memcpy` or `memset`.
        name: the kernel's mangled name, empty for one of ours; for a copy, its direction and the host's kind
            of memory; else `memset`.
        start_ns: its start, counted from the first activity of the recording, as `end_ns` is.
        stream: CUPTI's number of the stream.
        call: the id of the call that launched it, directly or by a thread that works for it; None for the
            work of a thread that also launches between the calls.
        size_bytes: bytes copied or set; 0 for a kernel.
        thread: CUPTI's id of the launching thread, if no call launched it.
        host_copy: of a copy from or to the host.
        launch: CUPTI's number of the API call that launched it; these numbers only rise.
    """

    kind: str
    name: str
    start_ns: float
    end_ns: float
    stream: int
    call: int | None
    size_bytes: int = 0
    kernel: KernelFacts | None = None
    thread: int | None = None
    host_copy: HostCopy | None = None
    launch: int = 0


class ActivityTrace:
    """Records the device's activities between `open` and `close`; one a process.

    Attributes:
        listeners: kind → function that takes the records, for other kinds of records.

    Raises:
        TimerUnavailable: CUPTI cannot be used here; the message says why.
    """

    def __init__(self) -> None:
        try:
            from cupti import cupti
        except Exception as error:
            if isinstance(error, ImportError) and error.name in ("cupti", "cupti.cupti"):
                raise TimerUnavailable("cupti-python is not installed") from None
            raise TimerUnavailable(f"cupti-python does not load: {error}") from error
        self.cupti = cupti
        self._id_kind = cupti.ExternalCorrelationKind.CUSTOM0
        self._kernels = cupti.ActivityKind.KERNEL
        self.listeners: dict[int, Callable[[Any], None]] = {}
        self._enabled: list[Any] = []
        self._depth = 0
        self._calls: dict[int, int] = {}
        self._follows_threads = False
        self._launches: dict[int, tuple[int, int]] = {}  # correlation → host's time and thread
        self._windows: list[tuple[int, int, int]] = []  # host's time of a push and its pop, and the call
        self._pushed: list[tuple[int, int]] = []
        self._work: list[Any] = []
        self._gc_paused = ExitStack()
        self._buffers = RecordBuffers(cupti, self._take)
        self.attempt(self._buffers.register)

    def open(self, *, concurrently: bool) -> None:
        """Begins to record; what this thread launches counts as `OURS` until a call is pushed.

        We collect no garbage until `close`: otherwise CUPTI's thread that delivers records might, and only
        the thread that has their context can free PyCUDA's arrays.

        Kernels may run at the same time if they are recorded `concurrently`; `timer.py` says what it costs.
        """
        self._clear()
        self._gc_paused.enter_context(gc_paused())
        kinds = self.cupti.ActivityKind
        self._kernels = kinds.CONCURRENT_KERNEL if concurrently else kinds.KERNEL
        # DRIVER, since CUPTI writes our id beside the record of the API call that launched.
        recorded = [self._kernels, kinds.MEMCPY, kinds.MEMSET, kinds.EXTERNAL_CORRELATION, kinds.DRIVER]
        self._buffers.reads_api_calls = self._follows_threads
        try:
            for kind in (*recorded, *([kinds.RUNTIME] if self._follows_threads else [])):
                self.attempt(self.cupti.activity_enable, kind)
                self._enabled.append(kind)
            self.push(OURS)
        except TimerUnavailable:
            self._disable()  # else it slows the events that time instead
            raise

    def push(self, call: int) -> None:
        """Assigns what this thread launches from now on to `call`, a number above `OURS`."""
        self.attempt(self.cupti.activity_push_external_correlation_id, self._id_kind, call)
        self._depth += 1
        if self._follows_threads and self._depth > 1:  # the first is pushed by `open`
            self._pushed.append((self.cupti.get_timestamp(), call))

    def pop(self) -> None:
        self._depth -= 1
        if self._pushed:
            began, call = self._pushed.pop()
            self._windows.append((began, self.cupti.get_timestamp(), call))
        self.attempt(self.cupti.activity_pop_external_correlation_id, self._id_kind)

    def close(self) -> list[Activity]:
        """Stops recording and returns the activities by start. The device must be idle."""
        return self._close(self._activity)

    def close_in_full(self) -> list[DeviceActivity]:
        """Stops recording and returns the activities by start, with all that a table of them shows."""
        return self._close(self._in_full)

    def _close(self, read: Callable[[Any, int], _Read]) -> list[_Read]:
        try:
            while self._depth:  # more than one if a call failed
                self.pop()
            self.attempt(self.cupti.activity_flush_all, 1)  # FLUSH_FORCED: also buffers that are not full
        finally:
            self._disable()
        try:
            if self._buffers.error is not None:
                raise self._buffers.error
            self._calls |= self._launched_for_calls()
            # A float holds nanoseconds since 1970 in steps of 256, a tick is 32: subtract whole numbers.
            origin = min((record.start for record in self._work), default=0)
            activities = [read(record, origin) for record in self._work]
        except Exception as error:
            raise TimerUnavailable(f"CUPTI's records could not be read: {error}") from error
        self._clear()
        return sorted(activities, key=lambda activity: activity.start_ns)

    def follow_threads(self) -> bool:
        """Also attributes work of other threads and of CUDA's runtime API, from the next recording on.

        An external id comes with the API call that launched: the driver's for most libraries, the runtime's
        for libraries that link the runtime statically. Records of runtime calls, and the times of all calls,
        cost more than everything else. So we ask for them only if some work belongs to no call.

        Returns whether this changed anything.
        """
        before, self._follows_threads = self._follows_threads, True
        return not before

    def _launched_for_calls(self) -> dict[int, int]:
        """Returns the calls of work whose threads launch only while a call runs."""
        by_thread: dict[int, dict[int, int | None]] = {}
        for record in self._work:
            correlation = record.correlation_id
            if correlation not in self._calls and correlation in self._launches:
                at, thread = self._launches[correlation]
                by_thread.setdefault(thread, {})[correlation] = self._call_at(at)
        return {
            correlation: call
            for launched in by_thread.values()
            if None not in launched.values()
            for correlation, call in launched.items()
            if call is not None
        }

    def _call_at(self, host_ns: int) -> int | None:
        place = bisect.bisect_left(self._windows, (host_ns,)) - 1
        if place < 0:
            return None
        _, ended, call = self._windows[place]
        return call if host_ns <= ended else None

    def stream_number(self, handle: int) -> int:
        from pytest_gpukern.gpu.runtime import checked

        context = int(checked("cuCtxGetCurrent"))
        return int(self.cupti.get_stream_id_ex(context, handle, 0))

    def _clear(self) -> None:
        self._calls, self._launches, self._work = {}, {}, []
        self._windows, self._pushed, self._buffers.error = [], [], None

    def _disable(self) -> None:
        with self._gc_paused:
            while self._enabled:
                kind = self._enabled.pop()
                self.attempt(self.cupti.activity_disable, kind)

    def attempt(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Calls CUPTI.

        Raises:
            TimerUnavailable: it refused; the message says why.
        """
        try:
            return call(*arguments)
        except self.cupti.cuptiError as error:
            name = str(error).partition(" ")[0]
            why = _REMEDIES.get(name, str(error))
            raise TimerUnavailable(f"CUPTI: {why}") from error
        # Without a library or driver cupti-python raises RuntimeError, and its C functions SystemError.
        except (RuntimeError, SystemError) as error:
            raise TimerUnavailable(f"CUPTI cannot be loaded: {error.__cause__ or error}") from error

    def _take(self, records: Sequence[Any]) -> None:
        """Sorts the records of a buffer; runs on a CUPTI thread."""
        kinds = self.cupti.ActivityKind
        for record in records:
            kind = record.kind
            if kind == kinds.EXTERNAL_CORRELATION:
                if record.external_kind == self._id_kind:
                    self._calls[record.correlation_id] = record.external_id
            elif kind in (kinds.DRIVER, kinds.RUNTIME):
                self._launches[record.correlation_id] = (record.start, record.thread_id)
            elif kind in self.listeners:
                self.listeners[kind](record)
            elif kind in (self._kernels, kinds.MEMCPY, kinds.MEMSET):
                self._work.append(record)

    def _activity(self, record: Any, origin: int) -> Activity:
        number, kinds = record.correlation_id, self.cupti.ActivityKind
        call = self._calls.get(number)
        times = {"start_ns": float(record.start - origin), "end_ns": float(record.end - origin)}
        _, thread = self._launches.get(number, (0, None)) if call is None else (0, None)
        launched: Any = {**times, "stream": record.stream_id, "call": call, "thread": thread}
        launched["launch"] = number
        if record.kind == kinds.MEMCPY:
            host_copy = _host_copy(record)
            name = f"memcpy {_named(_COPY_KINDS, record.copy_kind)}"
            name += f", {host_copy.memory}" if host_copy is not None else ""
            return Activity("memcpy", name, **launched, size_bytes=record.bytes, host_copy=host_copy)
        if record.kind == kinds.MEMSET:
            return Activity("memset", "memset", **launched, size_bytes=record.bytes)
        if call == OURS:
            return Activity("kernel", "", **launched)
        return Activity("kernel", record.name, **launched, kernel=_kernel(record))

    def _in_full(self, record: Any, origin: int) -> DeviceActivity:
        of_all = {
            "start_ns": record.start - origin,
            "end_ns": record.end - origin,
            "device": record.device_id,
            "context": record.context_id,
            "stream": record.stream_id,
        }
        kinds = self.cupti.ActivityKind
        if record.kind == kinds.MEMCPY:
            return DeviceActivity(
                "memcpy",
                f"memcpy {_named(_COPY_KINDS, record.copy_kind)}",
                **of_all,
                size_bytes=record.bytes,
                source=_named(_MEMORY_KINDS, record.src_kind).capitalize(),  # as nvprof writes it
                target=_named(_MEMORY_KINDS, record.dst_kind).capitalize(),
            )
        if record.kind == kinds.MEMSET:
            source = _named(_MEMORY_KINDS, record.memory_kind).capitalize()
            return DeviceActivity("memset", "memset", **of_all, size_bytes=record.bytes, source=source)
        return DeviceActivity(
            "kernel",
            readable(record.name),
            **of_all,
            grid=(record.grid_x, record.grid_y, record.grid_z),
            block=(record.block_x, record.block_y, record.block_z),
            registers=record.registers_per_thread,
            static_shared_bytes=record.static_shared_memory,
            dynamic_shared_bytes=record.dynamic_shared_memory,
        )


def _named(names: Mapping[int, str], kind: int) -> str:
    return names.get(kind, f"kind {kind}")


def _kernel(record: Any) -> KernelFacts:
    return KernelFacts(
        name=readable(record.name),
        symbol=record.name,
        grid=(record.grid_x, record.grid_y, record.grid_z),
        block=(record.block_x, record.block_y, record.block_z),
        registers=record.registers_per_thread,
        shared_bytes=record.static_shared_memory + record.dynamic_shared_memory,
        local_bytes=record.local_memory_per_thread,
    )


def _host_copy(record: Any) -> HostCopy | None:
    direction = _named(_COPY_KINDS, record.copy_kind)
    kind = {"HtoD": record.src_kind, "DtoH": record.dst_kind}.get(direction)
    return HostCopy(direction, _named(_MEMORY_KINDS, kind)) if kind is not None else None


activity_trace = functools.cache(ActivityTrace)


_BUFFER_BYTES = 1 << 20
_SIGNATURES = {
    "cuptiActivityRegisterCallbacks": (
        b"CUptiResult (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc)"
    ),
    "cuptiActivityGetNextRecord": b"CUptiResult (uint8_t *, size_t, CUpti_Activity **)",
}
_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
_Register = ctypes.CFUNCTYPE(ctypes.c_int, _Requested, _Completed)
_Next = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))

_WORK = ("kind", "start", "end", "device_id", "context_id", "stream_id", "correlation_id")
_KERNEL = (
    *_WORK,
    *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread"),
    *("static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread", "name"),
)
_API_CALL = ("kind", "start", "thread_id", "correlation_id")
_READ = {
    "KERNEL": ("kernel", _KERNEL),
    "CONCURRENT_KERNEL": ("kernel", _KERNEL),
    "MEMCPY": ("memcpy", (*_WORK, "copy_kind", "src_kind", "dst_kind", "bytes")),
    "MEMSET": ("memset", (*_WORK, "memory_kind", "bytes")),
    "EXTERNAL_CORRELATION": (
        "external_correlation",
        ("kind", "external_kind", "external_id", "correlation_id"),
    ),
    "FUNCTION": ("function", ("kind", "module_id", "name")),
    "DRIVER": ("api", _API_CALL),
    "RUNTIME": ("api", _API_CALL),
}
"""Kind of record → its layout's name in cupti-python without version, and the fields that we read.

A name comes last."""


class _Layout(NamedTuple):
    dtype: np.dtype[Any]  # as long as a record, with the fields that we read
    record: Any  # a class of named tuples


class RecordBuffers:
    """Gives buffers to CUPTI, and the records in full or flushed buffers to a callback.

    cupti-python makes an object of every record. That takes 12 µs on the host of an H200, and more for each
    field that is read: recording a call took three times as long as executing it. But cupti-python also
    exports CUPTI's C functions and the layout of the records as NumPy dtypes. With these we copy only the
    records that matter, at a tenth of the cost, and make Python objects only of the fields that matter.

    We skip other kinds of records. The rest are named tuples with the fields of cupti-python's objects.

    Args:
        completed: takes the records of a buffer; runs on a CUPTI thread.

    Attributes:
        error: the last one in reading or handling records.
        reads_api_calls: whether to read the records of API calls, which outnumber all others together.

    Raises:
        TimerUnavailable: cupti-python does not export what is needed.
    """

    def __init__(self, cupti: Any, completed: Callable[[Sequence[Any]], None]) -> None:
        self._cupti = cupti
        self._api_calls = (cupti.ActivityKind.DRIVER, cupti.ActivityKind.RUNTIME)
        self.reads_api_calls = False
        try:
            self._layouts = _layouts(cupti)
            self._register, self._next = _functions()
        except (ImportError, AttributeError, KeyError, ValueError) as error:
            raise TimerUnavailable(f"cupti-python does not export what we need: {error}") from error
        self._hand_over = completed
        self.error: Exception | None = None
        self._buffers: dict[int, Any] = {}
        # CUPTI keeps pointers to these.
        self._callbacks = (_Requested(self._requested), _Completed(self._completed))

    def register(self) -> None:
        """Makes CUPTI use these buffers from now on; raises cupti-python's error if that fails."""
        status = self._register(*self._callbacks)
        if status:
            raise self._cupti.cuptiError(status)

    def _requested(self, buffer: Any, size: Any, most_records: Any) -> None:
        buffer[0], size[0], most_records[0] = None, 0, 0
        try:
            memory = np.empty(_BUFFER_BYTES // 8, np.uint64)  # aligned to 8 bytes, as CUPTI requires
        except Exception as error:  # noqa: BLE001 - it must not reach CUPTI, which then drops the records
            self.error = error
            return
        address = int(memory.ctypes.data)
        self._buffers[address] = memory
        buffer[0], size[0] = address, memory.nbytes

    def _completed(self, _context: Any, _stream: int, address: int, _size: int, valid: int) -> None:
        try:
            if valid:
                with gc_paused():  # CUPTI may deliver a library's records at any time
                    self._hand_over(self._read(address, valid))
        except Exception as error:  # noqa: BLE001 - it must not reach CUPTI's thread
            self.error = error
        finally:
            self._buffers.pop(address, None)

    def _read(self, address: int, valid: int) -> list[Any]:
        """Returns the records of a buffer, kind by kind.

        Raises:
            ValueError: a record is longer or shorter than its layout.
        """
        record, places = ctypes.c_void_p(), []
        while not self._next(address, valid, ctypes.byref(record)):
            places.append(record.value or 0)
        by_kind: dict[int, list[int]] = {}
        for place, end in itertools.pairwise([*places, address + valid]):
            kind = ctypes.c_int32.from_address(place).value
            if kind not in self._layouts or (kind in self._api_calls and not self.reads_api_calls):
                continue
            if end - place != self._layouts[kind].dtype.itemsize:
                raise ValueError("CUPTI's records are not as long as cupti-python declares")
            by_kind.setdefault(kind, []).append(place)
        copied = (_copied(at, self._layouts[kind]) for kind, at in by_kind.items())
        return list(itertools.chain.from_iterable(copied))


def _copied(places: Sequence[int], layout: _Layout) -> list[Any]:
    data = b"".join([ctypes.string_at(place, layout.dtype.itemsize) for place in places])
    rows = np.frombuffer(data, layout.dtype).tolist()
    if layout.record._fields[-1] == "name":  # which is where the text lies
        places_of_names = {row[-1] for row in rows}
        names = {at: ctypes.string_at(at).decode(errors="replace") if at else "" for at in places_of_names}
        rows = [(*row[:-1], names[row[-1]]) for row in rows]
    return [layout.record._make(row) for row in rows]


def _layouts(cupti: Any) -> dict[int, _Layout]:
    """Returns kind → layout, in cupti-python's newest version, which cupti-python reads itself."""
    layouts = {}
    for kind, (name, fields) in _READ.items():
        attributes = map(re.compile(rf"activity_{name}(\d*)_dtype").fullmatch, dir(cupti))
        newest = max((int(match[1] or 0) for match in attributes if match), default=0)
        dtype = getattr(cupti, f"activity_{name}{newest or ''}_dtype")
        record = collections.namedtuple(f"_{name}", fields)  # type: ignore[misc]
        layouts[int(getattr(cupti.ActivityKind, kind))] = _Layout(dtype[list(fields)], record)
    return layouts


def _functions() -> tuple[Any, Any]:
    """Returns CUPTI's functions that register callbacks and step through records, from cupti-python."""
    from cupti import cycupti

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    register, following = (
        prototype(pointer(cycupti.__pyx_capi__[name], signature))
        for (name, signature), prototype in zip(_SIGNATURES.items(), (_Register, _Next), strict=True)
    )
    return register, following
