"""Where the elements of an array lie: C order, and the addresses between the first byte and the last."""

from __future__ import annotations

from typing import Any, NamedTuple

Strides = tuple[int, ...]


class Span(NamedTuple):
    """Addresses from `start` up to `stop`, in bytes; empty where they are equal."""

    start: int
    stop: int

    def overlaps(self, other: Span) -> bool:
        """Whether some address is in both."""
        return max(self.start, other.start) < min(self.stop, other.stop)


def c_strides(shape: tuple[int, ...], itemsize: int) -> Strides:
    """The strides of an array in C order without gaps, in bytes."""
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def out_of_c_order(shape: tuple[int, ...], strides: Strides | None, itemsize: int) -> Strides | None:
    """The strides, or None where the elements lie in C order without gaps, or there are none.

    Args:
        shape: of the array.
        strides: in bytes; None for C order. Those of axes of length one say nothing.
        itemsize: size of an element in bytes.
    """
    if strides is None or 0 in shape:
        return None
    expected = c_strides(shape, itemsize)
    differ = any(
        length > 1 and one != other for length, one, other in zip(shape, strides, expected, strict=True)
    )
    return tuple(strides) if differ else None


def span_of(pointer: int, shape: tuple[int, ...], strides: Strides | None, itemsize: int) -> Span:
    """The addresses that an array lies between, gaps included.

    Args:
        pointer: address of the element at index zero.
        shape: of the array.
        strides: in bytes, also negative ones; None for C order.
        itemsize: size of an element in bytes.
    """
    if 0 in shape:
        return Span(pointer, pointer)
    steps = strides if strides is not None else c_strides(shape, itemsize)
    reaches = [(length - 1) * step for length, step in zip(shape, steps, strict=True)]
    start = pointer + sum(min(0, reach) for reach in reaches)
    stop = pointer + sum(max(0, reach) for reach in reaches) + itemsize
    return Span(start, stop)


def span_by_interface(interface: dict[str, Any]) -> Span:
    """The same of NumPy's array interface, or of CUDA's, which have the same fields."""
    import numpy as np

    return span_of(
        int(interface["data"][0]),
        tuple(interface["shape"]),
        interface.get("strides"),
        np.dtype(interface["typestr"]).itemsize,
    )
