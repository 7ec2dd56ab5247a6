"""Uses Dask over CuPy: blocks computed one after another, copied together or stored where they belong.

Dask takes milliseconds a call to plan; larger n say nothing new. No elements cannot be cut into blocks.
"""

import cupy
import dask.array

from .problem import vector_exp


def exponential(block):
    """CuPy's exp of one block.

    Given `cupy.exp` itself, Dask pickles it to name the blocks, and with it the kernel that it has loaded:
    when the copy goes, the kernel's module is unloaded, and launches fail (CuPy 14.2, Dask 2026.8).
    """
    return cupy.exp(block)


def in_pieces(x, pieces):
    """exp of `x`, not computed yet, in that many blocks."""
    return x.rechunk(-(-x.size // pieces)).map_blocks(exponential)


@vector_exp.variant(
    "dask",
    max_size={"n": 2 * 10**7},
    min_size={"n": 1},
    allocates=True,
    pieces=(1, 4),
    layouts=("misaligned", "strided"),
    dtypes=("float64", "float16"),
)
def map_blocks(x, pieces):
    """`map_blocks`, computed: Dask copies even a single block once more, several into one array."""
    lazy = in_pieces(x, pieces)
    return lambda: lazy.compute()


@vector_exp.variant(
    "dask",
    max_size={"n": 2 * 10**7},
    min_size={"n": 1},
    layouts=("misaligned", "strided"),
    dtypes=("float64", "float16"),
)
def store(x, y):
    """`dask.array.store` into the given array: every block is computed, then copied to its place."""
    stored = dask.array.store(in_pieces(x, 4), y, lock=False, compute=False)
    return lambda: stored.compute()
