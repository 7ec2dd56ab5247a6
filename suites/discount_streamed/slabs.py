"""Cuts the flat arrays into slabs and copies them on the host, for the GPU backends."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

LARGEST_SLAB_BYTES = 64 << 20
"""Large enough that the fixed cost of a copy, some microseconds, vanishes; small enough that the first copy
in and the last one out, which overlap nothing, do too."""


def slab_size(elements, buffers, free_bytes, resident_bytes):
    """Elements of a float64 slab, so that `buffers` of them use at most half of what is free on the device.

    There are at least four slabs a buffer, so that even a small problem is streamed.
    """
    affordable = (free_bytes - resident_bytes) / 2 / buffers / 8
    if affordable < 1:
        raise MemoryError(f"{free_bytes:,} bytes are free on the device and `mult` takes {resident_bytes:,}")
    return int(min(LARGEST_SLAB_BYTES // 8, affordable, -(-elements // (4 * buffers))))


def slab_bounds(elements, size):
    """(start, stop) of each slab; the last one may be shorter."""
    return [(start, min(start + size, elements)) for start in range(0, elements, size)]


class HostCopier:
    """Copies between host arrays with several threads: one alone moves less than the bus does."""

    def __init__(self):
        self.threads = min(8, os.cpu_count() or 1)
        self.pool = ThreadPoolExecutor(self.threads)

    def copy(self, target, source):
        """target[...] = source, both flat and of one size."""
        pieces = zip(np.array_split(target, self.threads), np.array_split(source, self.threads), strict=True)
        list(self.pool.map(lambda pair: np.copyto(*pair), pieces))
