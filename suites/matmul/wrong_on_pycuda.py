"""Broken variants that SourceModule invites; the checker must reject each for the fault that it has."""

import numpy as np

from .on_pycuda import TILE, kernels
from .problem import matmul


@matmul.wrong("pycuda", rejected_for="not written")
def partial_tiles_forgotten(A, B, C, n, stream):
    """n // tile blocks where ⌈n / tile⌉ was meant: right for sizes that the tile divides."""
    kernel, blocks = kernels().get_function("tiled"), n // TILE
    return lambda: kernel(A, B, C, np.int32(n), grid=(blocks, blocks), block=(TILE, TILE, 1), stream=stream)
