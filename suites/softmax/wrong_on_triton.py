"""Declares broken variants that Triton invites; each must be rejected for its fault."""

import triton
import triton.language as tl

from .problem import softmax


@triton.jit
def softmax_row(
    x, y, columns, BLOCK: tl.constexpr, LOADS: tl.constexpr, STORES: tl.constexpr, HIGHEST: tl.constexpr
):
    """A row a program, with or without its masks and its maximum."""
    start = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + start + at, mask=inside | (not LOADS), other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0)) if HIGHEST else tl.exp(values)
    tl.store(y + start + at, powers / tl.sum(powers, axis=0), mask=inside | (not STORES))


@triton.jit
def softmax_half(x, y, columns, BLOCK: tl.constexpr):
    """Adds in float16."""
    start = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + start + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    total = tl.sum(powers.to(tl.float16), axis=0).to(tl.float32)
    tl.store(y + start + at, powers / total, mask=inside)


@triton.jit
def softmax_padded(x, y, columns, BLOCK: tl.constexpr):
    """Loads zeros behind the end of a row, and adds their exponentials."""
    start = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + start + at, mask=inside, other=0.0)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + start + at, powers / tl.sum(powers, axis=0), mask=inside)


def launch(x, y, columns, *, loads=True, stores=True, highest=True):
    """A launch of the first kernel over all rows."""
    block = triton.next_power_of_2(columns)
    return lambda: softmax_row[(len(x),)](
        x, y, columns, BLOCK=block, LOADS=loads, STORES=stores, HIGHEST=highest
    )


@softmax.wrong("triton", expected_fault="unexpected NaN")
def maximum_not_subtracted(x, y, columns):
    """The formula of the textbook: ∞/∞, or 0/0."""
    return launch(x, y, columns, highest=False)


@softmax.wrong("triton", expected_fault="wrong values")
def mask_of_load_forgotten(x, y, columns):
    """Sums what lies behind the end of a row, which is the next row."""
    return launch(x, y, columns, loads=False)


@softmax.wrong("triton", expected_fault="out of bounds")
def mask_of_store_forgotten(x, y, columns):
    """Writes zeros behind the end of a row, and behind that of the matrix."""
    return launch(x, y, columns, stores=False)


@softmax.wrong("triton", expected_fault="wrong values")
def padded_with_zeros(x, y, columns):
    """`other=0`, which is no neutral element of a maximum: rows far below 0 become zeros."""
    block = triton.next_power_of_2(columns)
    return lambda: softmax_padded[(len(x),)](x, y, columns, BLOCK=block)


@softmax.wrong("triton", expected_fault="not written")
def tail_missing(x, y, columns):
    """A block that is smaller than the row: right up to 64 columns."""
    return lambda: softmax_row[(len(x),)](x, y, columns, BLOCK=64, LOADS=True, STORES=True, HIGHEST=True)


@softmax.wrong("triton", expected_fault="wrong values")
def accumulated_in_half_precision(x, y, columns):
    """Sums in float16, which has eleven bits."""
    block = triton.next_power_of_2(columns)
    return lambda: softmax_half[(len(x),)](x, y, columns, BLOCK=block)
