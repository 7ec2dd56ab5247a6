"""The CUDA layer in host memory, and stand-ins for libraries above it, so that backends run without a GPU."""

# ruff: noqa: N802 - named as in CUDA
from __future__ import annotations

import ctypes
import math
import sys
import zlib
from types import ModuleType, SimpleNamespace

import numpy as np

from pytest_gpukern.backends import gpu_backend
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.runtime import CudaRuntime

STREAM = 0x5100
"""Handle of the runtime's stream."""
PRIMARY = 0xC0DE
"""The primary context, which is current."""


class Driver:
    """Memory calls of the driver, on buffers of the host; any other host memory passes for the device's, too.

    Attributes:
        calls: their names, in order.
        allocated: address → buffer of what was not freed.
        pinned: the same of page-locked memory.
    """

    def __init__(self, total_bytes=2**20):
        self.total_bytes = total_bytes
        self.allocated, self.pinned = {}, {}
        self.calls = []

    def __call__(self, call, *arguments):
        self.calls.append(call)
        return getattr(self, call)(*arguments)

    @property
    def used_bytes(self):
        return sum(len(buffer) for buffer in self.allocated.values())

    def cuMemAlloc(self, size):
        buffer = ctypes.create_string_buffer(b"\xab" * size, size)
        self.allocated[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def cuMemFree(self, pointer):
        del self.allocated[pointer]  # a second time is a KeyError

    def cuMemGetInfo(self):
        return self.total_bytes - self.used_bytes, self.total_bytes

    def room(self, pointer):
        """Bytes from an address to the end of its allocation, if it is in one."""
        ends = ((start, start + len(buffer)) for start, buffer in self.allocated.items())
        return next((end - pointer for start, end in ends if start <= pointer < end), math.inf)

    def cuMemcpyHtoD(self, device, host, size):
        assert size <= self.room(device)
        ctypes.memmove(device, host, size)

    def cuMemcpyDtoH(self, host, device, size):
        assert size <= self.room(device)
        ctypes.memmove(host, device, size)

    def cuMemcpyDtoD(self, target, source, size):
        assert size <= min(self.room(target), self.room(source))
        ctypes.memmove(target, source, size)

    def cuMemcpyDtoDAsync(self, target, source, size, stream):
        assert stream == STREAM
        self.cuMemcpyDtoD(target, source, size)

    def cuMemsetD32(self, pointer, word, words):
        assert pointer % 4 == 0, "the driver refuses others"
        assert 4 * words <= self.room(pointer)
        ctypes.memmove(pointer, word.to_bytes(4, "little") * words, 4 * words)

    def cuMemsetD8(self, pointer, byte, count):
        assert count <= self.room(pointer)
        ctypes.memset(pointer, byte, count)

    def cuMemsetD8Async(self, pointer, byte, count, stream):
        assert stream == STREAM
        self.cuMemsetD8(pointer, byte, count)

    def cuMemsetD32Async(self, pointer, word, words, stream):
        assert stream == STREAM
        self.cuMemsetD32(pointer, word, words)

    def cuMemcpyDtoHAsync(self, host, device, size, stream):
        assert stream == STREAM
        self.cuMemcpyDtoH(host, device, size)

    def cuMemHostAlloc(self, size, flags):
        block = ctypes.create_string_buffer(size)
        self.pinned[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def cuMemFreeHost(self, pointer):
        del self.pinned[pointer]

    def cuCtxGetCurrent(self):
        return PRIMARY


class HostRuntime(CudaRuntime):
    """The runtime without a device.

    Attributes:
        elsewhere: what is queued on a stream that the runtime's does not wait for.
        waits: how often it was waited for.
    """

    stream = SimpleNamespace(handle=STREAM)

    def __init__(self):
        self.driver = Driver()
        self._copies = {}
        self.elsewhere = []
        self.held_ns = 0.0
        self.waits = 0

    def synchronize(self):
        """Does what was queued on another stream."""
        self.waits += 1
        while self.elsewhere:
            self.elsewhere.pop(0)()

    def occupy(self, ns):
        self.held_ns = ns

    def hash(self, array):
        return self.hash_at(array.pointer, array.nbytes)

    def hash_at(self, pointer, nbytes):
        return zlib.crc32(ctypes.string_at(pointer, nbytes))


class OnDevice(np.ndarray):
    """A host array that passes for one on the device, as CuPy's would."""

    __array_priority__ = 10

    @property
    def __cuda_array_interface__(self):
        return {**self.__array_interface__, "version": 3}


def contents_of(array, kind=OnDevice):
    """A view of this type on the memory of a `DeviceArray`."""
    memory = (ctypes.c_ubyte * max(1, array.nbytes)).from_address(array.pointer)
    return np.ndarray(array.shape, array.dtype, memory).view(kind)


def install(monkeypatch, *modules):
    """Puts the layer under workspaces and the backends in `modules`; returns the runtime."""
    made = HostRuntime()
    for module in (cuda, gpu_backend, *modules):
        for name, stand_in in (("runtime", lambda: made), ("checked", made.driver)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(gpu_backend, "compare_on_device", lambda *_: None)
    return made


def put_module(monkeypatch, name, **contents):
    """A module that passes for an installed one, also as an attribute of its parent."""
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        monkeypatch.setattr(sys.modules[parent], last, module, raising=False)
    return module


class Entered:
    """A context manager that writes down when it is entered and left."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    def __enter__(self):
        self.events.append(f"enter {self.name}")

    def __exit__(self, *_):
        self.events.append(f"leave {self.name}")


def put_cupy(monkeypatch, events):
    """CuPy, as far as its backend and Dask's use it, computing with NumPy."""

    def stream_of(external):
        stream = Entered("cupy", events)
        stream.ptr = external.handle
        return stream

    pool = SimpleNamespace(free_all_blocks=lambda: events.append("pool emptied"))
    return put_module(
        monkeypatch,
        "cupy",
        asarray=contents_of,
        cuda=SimpleNamespace(Stream=SimpleNamespace(from_external=stream_of)),
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pool,
    )
