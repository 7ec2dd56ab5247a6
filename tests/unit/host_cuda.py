"""The CUDA layer in host memory, and stand-ins for libraries above it, so that backends run without a GPU."""

from __future__ import annotations

import ctypes
import math
import sys
import zlib
from types import ModuleType, SimpleNamespace

import numpy as np

from pytest_gpukern.arrays import memory as guards

STREAM = 0x5100
"""Handle of the runtime's stream."""
PINNED = {}
"""Page-locked memory that was not given back."""
PRIMARY = 0xC0DE
"""The primary context, which is current."""


class HostArray:
    """As `backends.cuda.DeviceArray`, in host memory."""

    def __init__(self, shape, dtype, *, guard=None):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.allocated_bytes = max(16, -(-self.nbytes // 16) * 16)
        self.guard, self.zone = guard or 0, guards.GUARD_BYTES if guard else 0
        self.whole = np.zeros(2 * self.zone + self.allocated_bytes, np.uint8)
        self.whole[: self.zone] = guards.guard_pattern(self.guard, 0, self.zone)
        behind = self.whole[self.zone + self.nbytes :]
        behind[:] = guards.guard_pattern(self.guard, self.nbytes % 4, behind.size)
        self.memory = self.whole[self.zone : self.zone + self.allocated_bytes]
        self.filled = None
        self.pointer = self.memory.ctypes.data
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    @property
    def contents(self):
        return self.memory[: self.nbytes].view(self.dtype).reshape(self.shape)

    def upload(self, host):
        self.contents[...] = host

    def copy_from(self, other):
        self.contents[...] = other.contents

    def fill(self, word, stream=None):
        self.filled = word
        self.memory[: -(-self.nbytes // 4) * 4].view(np.uint32)[...] = word

    def damage(self, name):
        zones = self.whole[: self.zone], self.whole[self.zone + self.nbytes :]
        return guards.damage(
            name,
            *zones,
            guard=self.guard,
            nbytes=self.nbytes,
            itemsize=self.dtype.itemsize,
            fill=self.filled,
        )

    def free(self):
        self.pointer = 0


class HostRuntime:
    """As `gpu.runtime.CudaRuntime`, as far as a workspace needs it.

    Attributes:
        elsewhere: what is queued on a stream that the runtime's does not wait for.
    """

    stream = SimpleNamespace(handle=STREAM)

    def __init__(self):
        self.synchronized = 0
        self.elsewhere = []
        self.held_ns = 0.0

    def synchronize(self):
        """Does what was queued on another stream."""
        self.synchronized += 1
        while self.elsewhere:
            self.elsewhere.pop(0)()

    def occupy(self, ns):
        self.held_ns = ns

    def copy_of(self, host):
        copy = HostArray(host.shape, host.dtype)
        copy.upload(host)
        return copy

    def hash(self, array):
        return self.hash_at(array.pointer, array.nbytes)

    def hash_at(self, pointer, nbytes):
        return zlib.crc32(ctypes.string_at(pointer, nbytes))


def driver_call(call, *arguments):
    """The few calls of the driver that backends and workspaces make themselves."""
    if call in ("cuMemcpyDtoH", "cuMemcpyHtoD"):
        return ctypes.memmove(*arguments)
    if call == "cuMemcpyDtoHAsync":
        assert arguments[3] == STREAM
        return ctypes.memmove(*arguments[:3])
    if call == "cuMemHostAlloc":
        block = ctypes.create_string_buffer(arguments[0])
        PINNED[ctypes.addressof(block)] = block
        return ctypes.addressof(block)
    if call == "cuMemFreeHost":
        return PINNED.pop(arguments[0])
    if call == "cuMemsetD32":
        pointer, word, count = arguments
        assert pointer % 4 == 0
        return ctypes.memmove(pointer, word.to_bytes(4, "little") * count, 4 * count)
    if call == "cuMemsetD8":
        return ctypes.memset(*arguments)
    if call == "cuCtxGetCurrent":
        return PRIMARY
    raise AssertionError(call)


class OnDevice(np.ndarray):
    """A host array that passes for one on the device, as CuPy's would."""

    __array_priority__ = 10

    @property
    def __cuda_array_interface__(self):
        return {**self.__array_interface__, "version": 3}


def install(monkeypatch, *modules):
    """Puts the layer under workspaces and the backends in `modules`; returns the runtime."""
    from pytest_gpukern.backends import gpu_backend

    made = HostRuntime()
    for module in (gpu_backend, *modules):
        for name, stand_in in (("runtime", lambda: made), ("checked", driver_call)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(gpu_backend, "DeviceArray", HostArray)
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

    def asarray(array):
        return array.contents.view(OnDevice)

    pool = SimpleNamespace(free_all_blocks=lambda: events.append("pool emptied"))
    return put_module(
        monkeypatch,
        "cupy",
        asarray=asarray,
        cuda=SimpleNamespace(Stream=SimpleNamespace(from_external=stream_of)),
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pool,
    )
