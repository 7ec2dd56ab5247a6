"""Computes `discount_streamed` with Numba on a GPU: slabs in turn, staged, and from page-locked arrays."""

from __future__ import annotations

import contextlib
import weakref

from numba import cuda

from .problem import discount_streamed
from .slabs import HostCopier, slab_bounds, slab_size

LARGEST_BLOCK = 256


@cuda.jit
def scale_slab(mult, slab, start):
    """Multiplies a slab in place; it begins at element `start` of the flat array."""
    index = cuda.grid(1)
    if index < slab.size:
        slab[index] *= mult[(start + index) % mult.size]


def plan(mult, discount, buffers):
    """A device array for `mult`, the slab's size, and the bounds of the slabs."""
    free = cuda.current_context().get_memory_info().free
    size = slab_size(discount.size, buffers, free, mult.nbytes)
    return cuda.device_array(mult.size, mult.dtype), size, slab_bounds(discount.size, size)


def upload(mult, resident, stream):
    """Copies `mult` to the device and waits, since slabs on other streams will read it."""
    resident.copy_to_device(mult.reshape(-1), stream=stream)
    stream.synchronize()


def launch_slab(resident, slab, start, stream):
    """Multiplies one slab on the device."""
    block = min(LARGEST_BLOCK, slab.size)
    scale_slab[-(-slab.size // block), block, stream](resident, slab, start)


_page_locked = weakref.WeakValueDictionary()


def page_lock(array):
    """Page-locks `array` for as long as the result is kept; the same array is locked once only."""
    key = (array.ctypes.data, array.nbytes)
    lock = _page_locked.get(key)
    if lock is None:
        lock = contextlib.ExitStack()
        lock.enter_context(cuda.pinned(array))
        _page_locked[key] = lock
    return lock


@discount_streamed.variant("numba", host_data=True)
def slabs_pageable(mult, discount, cv):
    """One slab after another from pageable memory: copy in, kernel, copy out, and nothing overlaps."""
    resident, size, bounds = plan(mult, discount, buffers=1)
    room, stream = cuda.device_array(size, discount.dtype), cuda.stream()
    source, target = discount.reshape(-1), cv.reshape(-1)

    def launch():
        upload(mult, resident, stream)
        for start, stop in bounds:
            slab = room[: stop - start]
            slab.copy_to_device(source[start:stop], stream=stream)
            launch_slab(resident, slab, start, stream)
            slab.copy_to_host(target[start:stop], stream=stream)
            stream.synchronize()

    return launch


class Lane:
    """A stream with one slab's room on the device and in page-locked host memory."""

    def __init__(self, size, dtype):
        self.stream = cuda.stream()
        self.room = cuda.device_array(size, dtype)
        self.staging = cuda.pinned_array(size, dtype)
        self.bounds = None

    def begin(self, resident, source, start, stop, copier):
        """Stages a slab and queues its way through the device; returns while it is under way."""
        slab, staged = self.room[: stop - start], self.staging[: stop - start]
        copier.copy(staged, source[start:stop])
        slab.copy_to_device(staged, stream=self.stream)
        launch_slab(resident, slab, start, self.stream)
        slab.copy_to_host(staged, stream=self.stream)
        self.bounds = start, stop

    def finish(self, target, copier):
        """Waits for the slab that is under way, if there is one, and copies it out of the staging memory."""
        if self.bounds is not None:
            (start, stop), self.bounds = self.bounds, None
            self.stream.synchronize()
            copier.copy(target[start:stop], self.staging[: stop - start])


@discount_streamed.variant("numba", host_data=True, streams=(2, 4))
def slabs_staged(mult, discount, cv, streams):
    """Slabs through page-locked staging memory on several streams: copies both ways overlap kernels.

    This is for arrays in ordinary memory: the host's own copies into and out of the staging memory are part
    of the time, and run while other slabs are on the bus.
    """
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


@discount_streamed.variant("numba", host_data=True, streams=(2, 4))
def slabs_page_locked(mult, discount, cv, streams):
    """Slabs straight from and into the caller's arrays, which are page-locked beforehand, untimed.

    This is for arrays that live in page-locked memory anyway; locking 160 GB takes longer than the work.
    """
    locks = [page_lock(array) for array in (mult, discount, cv)]
    resident, size, bounds = plan(mult, discount, buffers=streams)
    rooms = [(cuda.stream(), cuda.device_array(size, discount.dtype)) for _ in range(streams)]
    source, target = discount.reshape(-1), cv.reshape(-1)

    def launch(locks=locks):  # which keeps the arrays page-locked for as long as it can be called
        upload(mult, resident, rooms[0][0])
        for number, (start, stop) in enumerate(bounds):
            stream, room = rooms[number % streams]
            slab = room[: stop - start]
            slab.copy_to_device(source[start:stop], stream=stream)
            launch_slab(resident, slab, start, stream)
            slab.copy_to_host(target[start:stop], stream=stream)
        for stream, _ in rooms:
            stream.synchronize()

    return launch
