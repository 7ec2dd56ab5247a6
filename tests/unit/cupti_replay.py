"""Replays what CUPTI said to the package on an H200, as `record_cupti.py` wrote it down.

A replay is CUPTI, the runtime and the blocking kernel in one. It holds the package to the calls of the
recording, in order, and delivers records, modules and calls of the driver where they came. A test may spoil
it: lose or change records, refuse calls, load other code.
"""

from __future__ import annotations

import base64
import ctypes
import enum
import functools
import gc
import gzip
import json
import sys
import threading
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
from cupti_scenarios import SCENARIOS
from record_cupti import CALLS, FILE, NEXT, REGISTER, ApiCall, Completed, Module, Next, Register, Requested

from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.timers import launch_queue
from pytest_gpukern.timers.cupti import timer
from pytest_gpukern.timers.cupti.activity import activity_trace
from pytest_gpukern.timers.cupti.machine_code import machine_code

SIGNATURES = {
    REGISTER: b"CUptiResult (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc)",
    NEXT: b"CUptiResult (uint8_t *, size_t, CUpti_Activity **)",
}


class Status(enum.IntEnum):
    """Of cupti_result.h."""

    ERROR_MAX_LIMIT_REACHED = 12
    ERROR_NOT_COMPATIBLE = 14
    ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED = 33
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_UNKNOWN = 999


class cuptiError(Exception):  # noqa: N801 - its name in cupti-python
    def __init__(self, status):
        super().__init__(f"{Status(status).name} ({int(status)})")


@functools.cache
def recording():
    return json.loads(gzip.decompress(FILE.read_bytes()))


class Replay:
    """The module `cupti.cupti`, and more.

    Attributes:
        refuse: gets a function's name and its arguments; returns the Status that it fails with, or None.
        edit: gets each event of the recording and returns what is replayed instead; of None, nothing.
        spoil: gets each record and may change it; one for which it returns True is lost.
        longer: kind → by how many bytes its records are longer than their layout.
        events: what is still to come.
        astray: whether the package does something else than in the recording, and is told nothing any more.
    """

    cuptiError = cuptiError  # noqa: N815

    def __init__(self):
        self._of = recording()["of"]
        self.multiprocessors = self._of["multiprocessors"]
        self.edit = lambda event: event
        self.refuse = lambda name, *arguments: None
        self.spoil = lambda record: False
        self.enabled, self.pushed, self.subscribed = set(), [], None
        self.events, self.astray, self.longer, self._texts = [], False, {}, {}
        self.stream = SimpleNamespace(handle=1)
        for name, members in self._of["enums"].items():
            setattr(self, name, enum.IntEnum(name, members))
        self._layouts = {}
        for kind, layout in self._of["layouts"].items():
            names, formats, offsets = zip(("kind", "<i4", 0), *layout["fields"], strict=True)
            of = {"names": names, "formats": formats, "offsets": offsets, "itemsize": layout["length"]}
            self._layouts[int(kind)] = np.dtype(of)
            setattr(self, layout["name"], self._layouts[int(kind)])
        self._functions = {REGISTER: Register(self._register), NEXT: Next(self._next)}
        self.cycupti = ModuleType("cupti.cycupti")
        self.cycupti.__pyx_capi__ = {}
        for name, signature in SIGNATURES.items():
            self.export(name, signature)

    def install(self, monkeypatch):
        """Makes it the CUPTI, runtime and blocking kernel of this process, to which nothing is attached."""
        package = ModuleType("cupti")
        package.cupti, package.cycupti = self, self.cycupti
        monkeypatch.setitem(sys.modules, "cupti", package)
        monkeypatch.setitem(sys.modules, "cupti.cupti", self)
        monkeypatch.setattr(cuda, "checked", {"cuCtxGetCurrent": 42}.__getitem__)
        monkeypatch.setattr(launch_queue, "blocking_kernel", lambda: self)
        monkeypatch.setattr(launch_queue, "time", SimpleNamespace(perf_counter_ns=self._clock))
        monkeypatch.setattr(timer, "time", SimpleNamespace(sleep=lambda seconds: self._go_on()))
        monkeypatch.setattr(timer, "runtime", lambda: self)
        monkeypatch.setattr(timer, "in_own_context", lambda: False)
        monkeypatch.setattr(timer, "empty_kernel", lambda runtime, stream: lambda: None)
        monkeypatch.setattr(timer, "threads_by_id", self._named)
        forget()

    def export(self, name, signature):
        """Has cupti-python export this function as one of this signature."""
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._texts[signature] = signature  # a capsule only points to it
        pointer = ctypes.cast(self._functions[name], ctypes.c_void_p)
        self.cycupti.__pyx_capi__[name] = new(pointer, signature, None)

    def begin(self, name):
        """What comes next is what was recorded of this scenario, but for registering callbacks.

        It begins with a proof that CUPTI works.
        """
        timer.proven_trace.cache_clear()
        timer.serial_cost_ns.cache_clear()
        self.scenario, self.astray = recording()[name], False
        events = map(self.edit, self.scenario["events"][1:])
        self.events = [event for event in events if event is not None]

    def drive(self, name, call=lambda: None):
        """Has the package record the scenario, whose calls do nothing or this; returns what it made of it."""
        self.begin(name)
        return SCENARIOS[name][0](self, *[call] * self.scenario["calls"])

    @property
    def unused(self):
        """Whether nothing is left of a recording: kinds that cost time, ids, a collector held back."""
        held = self.enabled or self.pushed or self.subscribed or (self.events and not self.astray)
        return not held and gc.isenabled()

    # runtime and blocking kernel

    def synchronize(self):
        self._go_on()

    def flush_l2(self, stream=None):
        """Its records come with the others."""

    reset_persisting_l2 = block = flush_l2

    def release(self):
        """The recording says what ran."""

    @property
    def timed_out(self):
        return bool(self._called("timed_out"))

    def _clock(self):
        """The time is past every deadline where the recording stopped queueing."""
        self._go_on()
        return 10**12 * bool(self.events and self.events[0].get("call") == "timed_out")

    def _named(self, threads):
        known = self.scenario["threads"]
        return ", ".join(dict.fromkeys(known[str(each)] for each in threads if str(each) in known))

    # cupti-python

    def __getattr__(self, name):
        if name not in CALLS:
            raise AttributeError(name)
        return functools.partial(self._called, name)

    def _called(self, name, *arguments):
        status = self.refuse(name, *arguments)
        if status is not None:
            self.astray = True  # the package does something else from here
            raise cuptiError(status)
        self._note(name, *arguments)
        if self.astray:
            return None
        self._go_on()
        event = self.events[0] if self.events else {"call": "nothing"}
        if name == "get_stream_id_ex":
            arguments = (*event["arguments"][:2], arguments[2])  # the others are addresses
        given = [int(each) for each in arguments if hasattr(each, "__index__")]
        assert (event["call"], event.get("arguments")) == (name, given)
        self.events = self.events[1:]
        for each in event.get("meanwhile", ()):
            self._happens(each)
        return event.get("result")

    def _note(self, name, *arguments):
        if name in ("activity_enable", "activity_disable"):
            (self.enabled.add if name == "activity_enable" else self.enabled.discard)(arguments[0])
        elif name == "activity_push_external_correlation_id":
            self.pushed.append(arguments[1])
        elif name == "activity_pop_external_correlation_id":
            self.pushed.pop()
        elif name in ("subscribe", "unsubscribe"):
            self.subscribed = arguments[0] if name == "subscribe" else None

    def _register(self, requested, completed):
        self._callbacks = Requested(requested), Completed(completed)
        status = self.refuse(REGISTER) or 0
        self.astray |= bool(status)
        return status

    def _next(self, _buffer, _valid, record):
        following = self._following[record[0]]
        if following is None:
            return Status.ERROR_MAX_LIMIT_REACHED
        record[0] = following
        return 0

    # what CUPTI did

    def _go_on(self):
        while self.events and "call" not in self.events[0]:
            event, *self.events = self.events
            self._happens(event)

    def _happens(self, event):
        if "records" in event:
            self._deliver([data for row in event["records"] if (data := self._packed(*row)) is not None])
        elif "module" in event:
            code = event.get("code")
            if code is None:
                code = gzip.decompress(base64.b64decode(recording()["codes"][event["sha256"]]))
            held = ctypes.create_string_buffer(code, len(code))
            module = Module(event["module"], len(code), ctypes.addressof(held) if code else None)
            self._call_back(event, resource_descriptor=ctypes.addressof(module))
        else:
            parameters = (ctypes.c_uint64 * 8)(*event["parameters"])  # and no arguments
            kernel, place = event["kernel"], ctypes.addressof(parameters)
            call = ApiCall(event["site"], None, place, None, kernel and kernel.encode())
            self._call_back(event, ptr=ctypes.addressof(call))

    def _call_back(self, event, **data):
        if self.subscribed:
            self.subscribed(None, event["domain"], event["event"], SimpleNamespace(**data))

    def _deliver(self, records):
        """Has the package read a buffer of these records, on a thread of CUPTI's."""
        assert not gc.isenabled(), "CUPTI's thread would collect"
        address, size, most_records = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(77)
        self._callbacks[0](ctypes.byref(address), ctypes.byref(size), ctypes.byref(most_records))
        if address.value is None:
            return  # CUPTI drops them
        data, places = b"".join(records), [None, address.value]
        assert (address.value % 8, most_records.value) == (0, 0), "aligned, and as many as fit"
        assert len(data) <= size.value
        ctypes.memmove(address.value, data, len(data))
        for record in records:
            places.append(places[-1] + len(record))
        self._following = dict(zip(places, [*places[1:-1], None], strict=False))
        arguments = (None, 0, address.value, size.value, len(data))
        thread = threading.Thread(target=self._callbacks[1], args=arguments)
        thread.start()
        thread.join()

    def _packed(self, kind, *values):
        if kind < 0:  # the package doesn't read this kind
            return np.int32(-kind).tobytes().ljust(values[0], b"\0")
        layout = self._layouts[kind]
        record = SimpleNamespace(kind=kind, **dict(zip(layout.names[1:], values, strict=True)))
        if self.spoil(record):
            return None
        data = bytearray(layout.itemsize)
        packed = np.frombuffer(data, layout, 1)
        for field, value in vars(record).items():
            packed[field] = self._text(value) if field == "name" else value
        length = layout.itemsize + self.longer.get(kind, 0)
        return bytes(data).ljust(length, b"\0")[:length]

    def _text(self, text):
        """Where this name lies in memory; of None, nowhere."""
        if text is None:
            return 0
        text = text.encode() if isinstance(text, str) else text
        return ctypes.addressof(self._texts.setdefault((text,), ctypes.create_string_buffer(text)))


def forget():
    """Forgets what is known of CUPTI in this process."""
    for cached in (activity_trace, machine_code, timer.proven_trace, timer.serial_cost_ns):
        cached.cache_clear()


def plain(outcome):
    """What the package made of a scenario, as JSON has it."""
    return json.loads(msgspec.json.encode(outcome))
