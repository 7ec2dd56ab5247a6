"""Uses Triton: a row a program, several rows a program, and a loop over a row with an online maximum."""

import triton
import triton.language as tl

from .problem import LOWEST as LOWEST_FLOAT
from .problem import softmax

WARP = 32
MOST_WARPS = 32
LOWEST = tl.constexpr(LOWEST_FLOAT)  # a kernel takes no other globals


@triton.jit
def softmax_row(x, y, columns, BLOCK: tl.constexpr):
    """The whole row is in registers: it is read once. What lies behind its end counts as -inf."""
    start = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + start + at, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + start + at, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def softmax_rows(x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS neighbouring rows, so that a program of short rows has enough to do."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    values = tl.load(x + at, mask=inside, other=-float("inf")).to(tl.float32)
    highest = tl.maximum(tl.max(values, axis=1), LOWEST)  # a row behind the last one has no maximum
    powers = tl.exp(values - highest[:, None])
    tl.store(y + at, powers / tl.sum(powers, axis=1)[:, None], mask=inside)


@triton.jit
def online(x, y, columns, BLOCK: tl.constexpr):
    """Reads the row in pieces for its maximum and its sum, and once more, from L2, for its quotients.

    Each lane has a maximum and a sum of its own; the sum shrinks whenever the maximum grows (M. Milakov and
    N. Gimelshein, Online normalizer calculation for softmax, 2018).
    """
    start = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        values = tl.load(x + start + first + at, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, values)
        total = total * tl.exp(highest - higher) + tl.exp(values - higher)
        highest = higher
    top = tl.max(highest, axis=0)
    whole = tl.sum(total * tl.exp(highest - top), axis=0)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        values = tl.load(x + start + first + at, mask=inside, other=-float("inf")).to(tl.float32)
        tl.store(y + start + first + at, tl.exp(values - top) / whole, mask=inside)


@triton.jit
def softmax_online(x, y, columns, BLOCK: tl.constexpr):
    """The loop, with what the caller chose."""
    online(x, y, columns, BLOCK)


@triton.jit
def softmax_tuned(x, y, columns, length, BLOCK: tl.constexpr):
    """The loop, with what the autotuner chose for rows of about this length."""
    online(x, y, columns, BLOCK)


def block_of(columns):
    """A power of two; shorter rows share that of 128, so that fewer kernels are compiled."""
    return max(128, triton.next_power_of_2(columns))


def briefly(launch, quantiles):
    """Triton's own benchmark, with a fifth of its time a configuration."""
    return triton.testing.do_bench(launch, warmup=5, rep=20, quantiles=quantiles)


CONFIGURATIONS = [
    triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((1024, 4), (4096, 8), (8192, 16))
]
softmax_tuned = triton.autotune(CONFIGURATIONS, key=["length"], do_bench=briefly)(softmax_tuned)


@softmax.variant("triton", per_thread=(8,), max_size={"columns": 32_768})
def row(x, y, columns, per_thread):
    """A row a program, as in Triton's tutorial; a thread has 8 elements, if 32 warps suffice."""
    block = block_of(columns)
    warps = min(MOST_WARPS, max(1, block // (WARP * per_thread)))
    return lambda: softmax_row[(len(x),)](x, y, columns, BLOCK=block, num_warps=warps)


@softmax.variant("triton", max_size={"columns": 128}, layouts=("misaligned",))
def several_rows(x, y, columns):
    """4096 elements a program, in whole rows."""
    block = block_of(columns)
    rows = max(1, 4096 // block)
    grid = (triton.cdiv(len(x), rows),)
    return lambda: softmax_rows[grid](x, y, len(x), columns, ROWS=rows, BLOCK=block)


@softmax.variant("triton", block=(1024,), layouts=("misaligned",), dtypes=("float16", "bfloat16"))
def online_maximum(x, y, columns, block):
    """A row a program, piece by piece, for rows of any length.

    This variant alone is checked in other dtypes and layouts: Triton compiles a kernel for each of them.
    """
    return lambda: softmax_online[(len(x),)](x, y, columns, BLOCK=block)


@softmax.variant("triton")
def tuned(x, y, columns):
    """The same loop with what Triton's autotuner finds best for the length, up to a power of two."""
    length = max(1024, triton.next_power_of_2(columns))
    return lambda: softmax_tuned[(len(x),)](x, y, columns, length)
