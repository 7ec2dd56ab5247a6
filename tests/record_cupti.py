"""Records what CUPTI says to the package on a GPU, in the scenarios of `cupti_scenarios.py`.

`python tests/record_cupti.py`

A spy stands between the package and cupti-python. It writes down, in order, each call of the package with
its result, and what CUPTI delivers meanwhile: records, loaded modules with their code, calls of the driver.
Each scenario has a process of its own: if one fails or hangs, the others go on.
"""

from __future__ import annotations

import base64
import ctypes
import faulthandler
import gc
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

FILE = Path(__file__).parent / "unit" / "data" / "cupti" / "recorded.json.gz"
SCENARIO_S = 45
"""A scenario that takes longer hangs."""
SMALL_BUFFER = 1 << 14
CALLS = (
    *("activity_enable", "activity_disable", "activity_flush_all", "get_timestamp", "get_stream_id_ex"),
    *("activity_push_external_correlation_id", "activity_pop_external_correlation_id"),
    *("subscribe", "enable_callback", "unsubscribe"),
)
ENUMS = ("ActivityKind", "ExternalCorrelationKind", "CallbackDomain", "CallbackIdResource", "ApiCallbackSite")
LAYOUTS = {
    "activity_kernel": ("KERNEL", "CONCURRENT_KERNEL"),
    "activity_memcpy": ("MEMCPY",),
    "activity_memset": ("MEMSET",),
    "activity_external_correlation": ("EXTERNAL_CORRELATION",),
    "activity_function": ("FUNCTION",),
    "activity_api": ("DRIVER", "RUNTIME"),
}
"""Layout in cupti-python, without version → kinds of records that have it."""
REGISTER, NEXT = "cuptiActivityRegisterCallbacks", "cuptiActivityGetNextRecord"

# Of cupti_activity.h: CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc, and the functions.
Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
Register = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Next = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))


class Module(ctypes.Structure):
    """CUpti_ModuleResourceData of cupti_callbacks.h."""

    _fields_ = (("number", ctypes.c_uint32), ("size", ctypes.c_size_t), ("code", ctypes.c_void_p))


class ApiCall(ctypes.Structure):
    """The beginning of CUpti_CallbackData."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("returned", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
    )


class Log:
    """What happened while a scenario was driven.

    An event is a call of the package, with its result and what CUPTI did `meanwhile`, or it is what
    CUPTI did at another time.
    """

    def __init__(self):
        self.events = []
        self.writes = False
        self._within = None
        self._lock = threading.Lock()

    def called(self, name, function, *arguments):
        if not self.writes or self._within is not None:
            return function(*arguments)
        event = {"call": name, "arguments": [int(each) for each in arguments if hasattr(each, "__index__")]}
        with self._lock:
            self.events.append(event)
            self._within = event
        try:
            result = function(*arguments)
        finally:
            with self._lock:
                self._within = None
        if result is not None:
            event["result"] = plain(result)
        return result

    def happened(self, **event):
        with self._lock:
            if self.writes:
                within = self._within
                (self.events if within is None else within.setdefault("meanwhile", [])).append(event)


def plain(value):
    """The value as JSON has it."""
    return int(value) if hasattr(value, "__index__") else None if value is None else str(value)


class Spy(ModuleType):
    """The module `cupti.cupti`, with a log of what goes through it.

    Attributes:
        real: that module itself.
        cycupti: the module `cupti.cycupti`, likewise.
        codes: hash → code of the modules that were loaded.
    """

    def __init__(self, real, real_c, log, buffer_bytes=0):
        super().__init__("cupti.cupti")
        self.real, self._log, self._buffer_bytes = real, log, buffer_bytes
        self.layouts, self.codes, self._kept = layouts_of(real), {}, []
        pointers, names = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_GetName
        pointers.restype, pointers.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        names.restype, names.argtypes = ctypes.c_char_p, [ctypes.py_object]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsules = dict(real_c.__pyx_capi__)
        signatures = {name: names(capsules[name]) for name in (REGISTER, NEXT)}
        self._register = Register(pointers(capsules[REGISTER], signatures[REGISTER]))
        self._next = Next(pointers(capsules[NEXT], signatures[NEXT]))
        registers = Register(self._registers)
        capsules[REGISTER] = new(ctypes.cast(registers, ctypes.c_void_p), signatures[REGISTER], None)
        self._kept += [registers, signatures]  # CUPTI and capsules only point to them
        self.cycupti = SimpleNamespace(__pyx_capi__=capsules)

    def __dir__(self):
        return dir(self.real)

    def __getattr__(self, name):
        value = getattr(self.real, name)
        if name == "subscribe":
            return lambda callback, user: self._log.called(name, value, self._noting(callback), user)
        return (lambda *arguments: self._log.called(name, value, *arguments)) if name in CALLS else value

    def install(self):
        """Makes `from cupti import cupti, cycupti` import these."""
        import cupti

        cupti.cupti, cupti.cycupti = self, self.cycupti
        sys.modules["cupti.cupti"], sys.modules["cupti.cycupti"] = self, self.cycupti

    def _registers(self, requested, completed):
        requested, completed = Requested(requested), Completed(completed)

        def requests(buffer, size, most_records):
            requested(buffer, size, most_records)
            if self._buffer_bytes and buffer[0]:
                size[0] = min(size[0], self._buffer_bytes)

        def completes(context, stream, address, size, valid):
            try:
                self._log.happened(records=self._rows(address, valid), valid=valid)
            except Exception as error:  # it must not reach CUPTI's thread
                self._log.happened(unread=repr(error), valid=valid)
            completed(context, stream, address, size, valid)

        callbacks = Requested(requests), Completed(completes)
        self._kept += [requested, completed, callbacks]
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in callbacks]
        return self._log.called(REGISTER, lambda: self._register(*addresses))

    def _rows(self, address, valid):
        """The records of a buffer: kind, and the fields of its layout, or the length of an unknown kind."""
        record, places, rows = ctypes.c_void_p(), [], []
        while valid and not self._next(address, valid, ctypes.byref(record)):
            places.append(record.value)
        for place, end in zip(places, [*places[1:], address + valid], strict=True):
            kind = ctypes.c_int32.from_address(place).value
            layout = self.layouts.get(kind)
            if layout is None or layout["length"] != end - place:
                rows.append([-kind, end - place])
                continue
            data = ctypes.string_at(place, layout["length"])
            row = [kind]
            for name, form, offset in layout["fields"]:
                value = ctypes_value(data, form, offset)
                row.append(text_at(value) if name == "name" else value)
            rows.append(row)
        return rows

    def _noting(self, callback):
        def noted(user, domain, event, data):
            try:
                self._note(domain, event, data)
            except Exception as error:
                self._log.happened(unread=repr(error), domain=plain(domain), event=plain(event))
            callback(user, domain, event, data)

        return noted

    def _note(self, domain, event, data):
        where = {"domain": plain(domain), "event": plain(event)}
        if domain == self.real.CallbackDomain.DRIVER_API:
            call = ApiCall.from_address(int(data.ptr))
            parameters = (ctypes.c_uint64 * 2).from_address(call.parameters)[:] if call.parameters else None
            function, kernel = (text and text.decode() for text in (call.function, call.kernel))
            self._log.happened(
                **where, site=call.site, function=function, kernel=kernel, parameters=parameters
            )
            return
        module = Module.from_address(int(data.resource_descriptor))
        code = ctypes.string_at(module.code, module.size) if module.code else b""
        digest = hashlib.sha256(code).hexdigest()
        self.codes[digest] = base64.b64encode(gzip.compress(code, mtime=0)).decode()
        self._log.happened(**where, module=module.number, size=module.size, sha256=digest)


def layouts_of(cupti):
    """Kind → name, length and fields of its newest layout, but for the kind; of each name, format, offset."""
    layouts = {}
    for name, kinds in LAYOUTS.items():
        versions = (re.fullmatch(rf"{name}(\d*)_dtype", each) for each in dir(cupti))
        newest = max((version for version in versions if version), key=lambda match: int(match[1] or 0))[0]
        dtype = getattr(cupti, newest)
        fields = [
            (field, of.str, offset)
            for field, (of, offset, *_) in dtype.fields.items()
            if of.kind in "iu" and not re.match("kind|pad|reserved", field)
        ]
        layout = {"name": newest, "length": dtype.itemsize, "fields": fields}
        layouts |= {int(getattr(cupti.ActivityKind, kind)): layout for kind in kinds}
    return layouts


def ctypes_value(data, form, offset):
    """An integer of this NumPy format."""
    length = int(form[2:])
    return int.from_bytes(data[offset : offset + length], "little", signed=form[1] == "i")


def text_at(place):
    return ctypes.string_at(place).decode(errors="replace") if place else None


def record(name, to):
    """Records one scenario to a file; a process records one."""
    faulthandler.dump_traceback_later(SCENARIO_S, exit=True)
    gc.disable()  # CUPTI's threads would collect
    from cupti import cupti, cycupti
    from cupti_scenarios import SCENARIOS, SMALL_BUFFERS, Gpu

    from pytest_gpukern.timers.launch_queue import BlockingKernel

    log = Log()
    spy = Spy(cupti, cycupti, log, SMALL_BUFFER if name == SMALL_BUFFERS else 0)
    spy.install()
    timed_out = BlockingKernel.timed_out.fget
    BlockingKernel.timed_out = property(lambda self: log.called("timed_out", timed_out, self))
    gpu, (drive, make) = Gpu(), SCENARIOS[name]
    with gpu.closing:
        calls = make(gpu)
        calls = (calls,) if callable(calls) else tuple(calls)
        gpu.runtime.synchronize()
        log.writes = True
        try:
            drive(gpu.runtime, *calls)
        except Exception as error:
            sys.stdout.write(f"{name} raises {error!r}\n")  # as some shall
        log.writes = False
    found = {
        "of": environment(gpu, spy),
        "codes": {digest: code for digest, code in spy.codes.items() if digest in str(log.events)},
        name: {"calls": len(calls), "threads": gpu.threads, "events": log.events},
    }
    to.write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # a lost context or a thread of a library must not keep it


def environment(gpu, spy):
    """The device, and what the package looks up in cupti-python."""
    enums = {name: {each.name: int(each) for each in getattr(spy.real, name)} for name in ENUMS}
    launches = {each.name: int(each) for each in spy.real.driver_api_trace_cbid if "Launch" in each.name}
    return {
        "device": gpu.runtime.device.name,
        "multiprocessors": gpu.runtime.multiprocessors,
        "layouts": spy.layouts,
        "enums": {**enums, "driver_api_trace_cbid": launches},
    }


def main():
    from cupti_scenarios import SCENARIOS

    found = {"codes": {}}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(SCENARIOS):
            to = Path(folder, str(number))
            subprocess.run([sys.executable, __file__, name, to], stdin=subprocess.DEVNULL, check=False)
            one = json.loads(to.read_bytes()) if to.exists() else {}
            found = {**found, **one, "codes": {**found["codes"], **one.get("codes", {})}}
            sys.stdout.write(f"{name}: {'recorded' if one else 'failed'}\n")
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(found.items())]
    FILE.write_bytes(gzip.compress(("{\n" + ",\n".join(lines) + "\n}\n").encode(), mtime=0))


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1], Path(sys.argv[2]))
    main()
