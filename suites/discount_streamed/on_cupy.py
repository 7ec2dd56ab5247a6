"""Computes `discount_streamed` with CuPy: slabs one after another, staged, and from page-locked arrays."""

from __future__ import annotations

import weakref

import cupy
import cupyx

from .problem import discount_streamed
from .slabs import HostCopier, slab_bounds, slab_size

scale_slab = cupy.ElementwiseKernel(
    "raw float64 mult, int64 start, int64 columns",
    "float64 value",
    "value *= mult[(start + i) % columns]",
    "scale_slab",
)


def plan(mult, discount, buffers):
    """A device array for `mult`, the slab's size, and the bounds of the slabs."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    size = slab_size(discount.size, buffers, free, mult.nbytes)
    return cupy.empty(mult.size, mult.dtype), size, slab_bounds(discount.size, size)


def upload(mult, resident, stream):
    """Copies `mult` to the device and waits, since slabs on other streams will read it."""
    resident.set(mult.reshape(-1), stream=stream)
    stream.synchronize()


def launch_slab(resident, slab, start, stream):
    """Multiplies one slab on the device."""
    with stream:
        scale_slab(resident, start, resident.size, slab)


class PageLock:
    """Page-locks an array for as long as this object lives."""

    def __init__(self, array):
        cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
        self.array = array
        weakref.finalize(self, cupy.cuda.runtime.hostUnregister, array.ctypes.data)


_page_locked = weakref.WeakValueDictionary()


def page_lock(array):
    """Page-locks `array` for as long as the result is kept; the same array is locked once only."""
    key = (array.ctypes.data, array.nbytes)
    lock = _page_locked.get(key)
    if lock is None:
        lock = _page_locked[key] = PageLock(array)
    return lock


@discount_streamed.variant("cupy", host_data=True)
def slabs_pageable(mult, discount, cv):
    """One slab after another from pageable memory: copy in, kernel, copy out, and nothing overlaps."""
    resident, size, bounds = plan(mult, discount, buffers=1)
    room, stream = cupy.empty(size, discount.dtype), cupy.cuda.Stream(non_blocking=True)
    source, target = discount.reshape(-1), cv.reshape(-1)

    def launch():
        upload(mult, resident, stream)
        for start, stop in bounds:
            slab = room[: stop - start]
            slab.set(source[start:stop], stream=stream)
            launch_slab(resident, slab, start, stream)
            slab.get(stream=stream, out=target[start:stop])
            stream.synchronize()

    return launch


class Lane:
    """A stream with one slab's room on the device and in page-locked host memory."""

    def __init__(self, size, dtype):
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.room = cupy.empty(size, dtype)
        self.staging = cupyx.empty_pinned(size, dtype)
        self.bounds = None

    def begin(self, resident, source, start, stop, copier):
        """Stages a slab and queues its way through the device; returns while it is under way."""
        slab, staged = self.room[: stop - start], self.staging[: stop - start]
        copier.copy(staged, source[start:stop])
        slab.set(staged, stream=self.stream)
        launch_slab(resident, slab, start, self.stream)
        slab.get(stream=self.stream, out=staged, blocking=False)
        self.bounds = start, stop

    def finish(self, target, copier):
        """Waits for the slab that is under way, if there is one, and copies it out of the staging memory."""
        if self.bounds is not None:
            (start, stop), self.bounds = self.bounds, None
            self.stream.synchronize()
            copier.copy(target[start:stop], self.staging[: stop - start])


@discount_streamed.variant("cupy", host_data=True, streams=(2, 4))
def slabs_staged(mult, discount, cv, streams):
    """Slabs through page-locked staging memory on several streams; the host's copies are part of the time."""
    resident, size, bounds = plan(mult, discount, buffers=streams)
    lanes = [Lane(size, discount.dtype) for _ in range(streams)]
    source, target, copier = discount.reshape(-1), cv.reshape(-1), HostCopier()

    def launch():
        upload(mult, resident, lanes[0].stream)
        for number, (start, stop) in enumerate(bounds):
            lane = lanes[number % streams]
            lane.finish(target, copier)
            lane.begin(resident, source, start, stop, copier)
        for lane in lanes:
            lane.finish(target, copier)

    return launch


@discount_streamed.variant("cupy", host_data=True, streams=(2, 4))
def slabs_page_locked(mult, discount, cv, streams):
    """Slabs straight from and into the caller's arrays, which are page-locked beforehand, untimed."""
    locks = [page_lock(array) for array in (mult, discount, cv)]
    resident, size, bounds = plan(mult, discount, buffers=streams)
    rooms = [(cupy.cuda.Stream(non_blocking=True), cupy.empty(size, discount.dtype)) for _ in range(streams)]
    source, target = discount.reshape(-1), cv.reshape(-1)

    def launch(locks=locks):  # which keeps the arrays page-locked for as long as it can be called
        upload(mult, resident, rooms[0][0])
        for number, (start, stop) in enumerate(bounds):
            stream, room = rooms[number % streams]
            slab = room[: stop - start]
            slab.set(source[start:stop], stream=stream)
            launch_slab(resident, slab, start, stream)
            slab.get(stream=stream, out=target[start:stop], blocking=False)
        for stream, _ in rooms:
            stream.synchronize()

    return launch
