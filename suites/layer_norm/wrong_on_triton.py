"""Declares broken variants that Triton invites; each must be rejected for its fault."""

import triton
import triton.language as tl

from .problem import EPS, layer_norm


@triton.jit
def layer_norm_row(
    x,
    weight,
    bias,
    y,
    mean,
    rstd,
    columns,
    eps,
    BLOCK: tl.constexpr,
    VARIANCE: tl.constexpr,
    STORE: tl.constexpr,
    HALF: tl.constexpr,
):
    """A row a program, with or without the masks of its VARIANCE and its STORE; it may add in float16."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + start + at, mask=inside, other=0.0)
    centre = tl.sum(values, axis=0) / columns
    if HALF:
        centre = tl.sum(values.to(tl.float16), axis=0).to(tl.float32) / columns
    deviations = values - centre
    if VARIANCE:
        deviations = tl.where(inside, deviations, 0.0)
    scale = tl.rsqrt(tl.sum(deviations * deviations, axis=0) / columns + eps)
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    tl.store(y + start + at, deviations * scale * w + b, mask=inside | (not STORE))
    tl.store(mean + row, centre)
    tl.store(rstd + row, scale)


def launch(x, weight, bias, y, mean, rstd, columns, *, block=0, variance=True, store=True, half=False):
    """A launch of the kernel over all rows."""
    block = block or triton.next_power_of_2(columns)
    arguments = (x, weight, bias, y, mean, rstd, columns, EPS)
    return lambda: layer_norm_row[(len(x),)](
        *arguments, BLOCK=block, VARIANCE=variance, STORE=store, HALF=half
    )


@layer_norm.wrong("triton", expected_fault="wrong values")
def mask_of_variance_forgotten(x, weight, bias, y, mean, rstd, columns):
    """Zeros behind the end deviate by the whole mean: right where the row is a power of two."""
    return launch(x, weight, bias, y, mean, rstd, columns, variance=False)


@layer_norm.wrong("triton", expected_fault="out of bounds")
def mask_of_store_forgotten(x, weight, bias, y, mean, rstd, columns):
    """Writes behind the end of a row, and behind that of the matrix."""
    return launch(x, weight, bias, y, mean, rstd, columns, store=False)


@layer_norm.wrong("triton", expected_fault="not written")
def tail_missing(x, weight, bias, y, mean, rstd, columns):
    """A block that is smaller than the row: right up to 64 columns."""
    return launch(x, weight, bias, y, mean, rstd, columns, block=64)


@layer_norm.wrong("triton", expected_fault="wrong values")
def accumulated_in_half_precision(x, weight, bias, y, mean, rstd, columns):
    """Sums in float16, which has eleven bits."""
    return launch(x, weight, bias, y, mean, rstd, columns, half=True)
