"""Declares broken variants in CUDA C++ that may be right by luck; compute-sanitizer must reject them."""

import functools

import numpy as np
from pycuda.compiler import SourceModule

from .on_pycuda import SOURCE, TILE
from .problem import matmul


@functools.cache
def without_second_barrier():
    """The tiled kernel without its second barrier: a tile is overwritten while others still read it."""
    parts = SOURCE.split("__syncthreads();")
    first, rest = parts[0] + "__syncthreads();" + parts[1], parts[2:]
    return SourceModule("".join([first, *rest]), options=[f"-DTILE={TILE}"]).get_function("tiled")


@matmul.wrong("pycuda", detected_by="racecheck", needs_gpu="warps that run in different order (a race)")
def tiles_overwritten_early(A, B, C, n, stream):
    """The barrier at the end of a step is forgotten, which shows only where a warp is a step ahead."""
    kernel, blocks = without_second_barrier(), -(-n // TILE)
    return lambda: kernel(A, B, C, np.int32(n), grid=(blocks, blocks), block=(TILE, TILE, 1), stream=stream)
