"""Uses Triton: a row a program in registers, and a loop over rows that do not fit there."""

import triton
import triton.language as tl

from .problem import EPS, layer_norm

WARP = 32
MOST_WARPS = 32


@triton.jit
def layer_norm_row(x, weight, bias, y, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    """The whole row is in registers: it is read once. What lies behind its end deviates by nothing."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
    centre = tl.sum(values, axis=0) / columns
    deviations = tl.where(inside, values - centre, 0.0)
    scale = tl.rsqrt(tl.sum(deviations * deviations, axis=0) / columns + eps)
    w = tl.load(weight + at, mask=inside).to(tl.float32)
    b = tl.load(bias + at, mask=inside).to(tl.float32)
    tl.store(y + start + at, deviations * scale * w + b, mask=inside)
    tl.store(mean + row, centre)
    tl.store(rstd + row, scale)


@triton.jit
def in_pieces(x, weight, bias, y, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    """Reads the row three times: for its mean, its variance and its result; twice from the caches."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        total += tl.load(x + start + first + at, mask=inside, other=0.0).to(tl.float32)
    centre = tl.sum(total, axis=0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        values = tl.load(x + start + first + at, mask=inside, other=0.0).to(tl.float32)
        deviations = tl.where(inside, values - centre, 0.0)
        squares += deviations * deviations
    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        values = tl.load(x + start + first + at, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + first + at, mask=inside).to(tl.float32)
        b = tl.load(bias + first + at, mask=inside).to(tl.float32)
        tl.store(y + start + first + at, (values - centre) * scale * w + b, mask=inside)
    tl.store(mean + row, centre)
    tl.store(rstd + row, scale)


@triton.jit
def layer_norm_pieces(x, weight, bias, y, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    """The loop, with what the caller chose."""
    in_pieces(x, weight, bias, y, mean, rstd, columns, eps, BLOCK)


@triton.jit
def layer_norm_tuned(x, weight, bias, y, mean, rstd, columns, eps, length, BLOCK: tl.constexpr):
    """The loop, with what the autotuner chose for rows of about this length."""
    in_pieces(x, weight, bias, y, mean, rstd, columns, eps, BLOCK)


def briefly(launch, quantiles):
    """Triton's own benchmark, with a fifth of its time a configuration."""
    return triton.testing.do_bench(launch, warmup=5, rep=20, quantiles=quantiles)


CONFIGURATIONS = [
    triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((1024, 4), (4096, 8), (8192, 16))
]
layer_norm_tuned = triton.autotune(CONFIGURATIONS, key=["length"], do_bench=briefly)(layer_norm_tuned)


@layer_norm.variant("triton", per_thread=(8,), max_size={"columns": 32_768})
def row(x, weight, bias, y, mean, rstd, columns, per_thread):
    """A row a program; a thread has 8 elements, if 32 warps suffice."""
    block = max(128, triton.next_power_of_2(columns))  # short rows share a kernel
    warps = min(MOST_WARPS, max(1, block // (WARP * per_thread)))
    arguments = (x, weight, bias, y, mean, rstd, columns, EPS)
    return lambda: layer_norm_row[(len(x),)](*arguments, BLOCK=block, num_warps=warps)


@layer_norm.variant("triton", block=(1024,), layouts=("misaligned",), dtypes=("float16", "bfloat16"))
def pieces(x, weight, bias, y, mean, rstd, columns, block):
    """A row a program, piece by piece, for rows of any length, as in Triton's tutorial.

    This variant alone is checked in other dtypes and layouts: Triton compiles a kernel for each of them.
    """
    arguments = (x, weight, bias, y, mean, rstd, columns, EPS)
    return lambda: layer_norm_pieces[(len(x),)](*arguments, BLOCK=block)


@layer_norm.variant("triton")
def tuned(x, weight, bias, y, mean, rstd, columns):
    """The same loop with what Triton's autotuner finds best for the length, up to a power of two."""
    length = max(1024, triton.next_power_of_2(columns))
    arguments = (x, weight, bias, y, mean, rstd, columns, EPS)
    return lambda: layer_norm_tuned[(len(x),)](*arguments, length)
