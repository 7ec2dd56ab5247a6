"""Compares a device array with its reference without copying it to the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.arrays.compare import Tolerance
from pytest_gpukern.gpu.runtime import CudaRuntime, DeviceArray, checked, cuda_source

_C_TYPES = {
    "float16": "f16",
    "float32": "float",
    "float64": "double",
    "bool": "unsigned char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
}
_FLOATS = ("float16", "float32", "float64")


def compare_on_device(
    runtime: CudaRuntime,
    pointer: int,
    shape: tuple[int, ...],
    dtype: Any,
    expected: np.ndarray[Any, Any],
    tolerance: Tolerance,
    poison: int | None,
) -> comparison.Comparison | None:
    """Compares like `arrays.compare.compare`, but on the device; None for dtypes without a kernel."""
    dtype = np.dtype(dtype)
    actual_name, expected_name = dtype.name, expected.dtype.name
    is_float = actual_name in _FLOATS
    if actual_name not in _C_TYPES or (
        expected_name not in _FLOATS if is_float else actual_name != expected_name
    ):
        return None
    judge, more = ("judge", ", mantissa_bits, min_exponent") if is_float else ("judge_integer", "")
    source = cuda_source(
        "compare.cu",
        ACTUAL=_C_TYPES[actual_name],
        EXPECTED=_C_TYPES[expected_name],
        JUDGE=f"{judge}(actual, expected, i, rtol, atol, poison{more})",
    )
    info = np.finfo(actual_name) if is_float else np.finfo("float64")
    reference = runtime.copy_of(expected)
    highest = np.iinfo(np.uint64).max
    empty = np.array([0, 0, 0, highest, 0, 0, 0, highest, highest, highest, highest], np.uint64)
    figures = DeviceArray(empty.shape, empty.dtype)
    try:
        figures.upload(empty)
        runtime.synchronize()  # the timed stream does not wait for copies from pageable memory
        kernel = runtime.kernel(source, "gpukern_compare")
        count = math.prod(shape)
        arguments = (
            pointer,
            reference.pointer,
            np.uint64(count),
            np.float64(tolerance.rtol),
            np.float64(tolerance.atol),
            np.uint32(comparison.POISON if poison is None else poison),
            np.int32(info.nmant),
            np.int32(info.minexp),
            figures.pointer,
        )
        for second_pass in (0, 1):
            runtime.launch(kernel, count, *arguments, np.int32(second_pass))
        runtime.synchronize()
        host_figures = figures.download()
    finally:
        figures.free()
    flat = expected.reshape(-1)

    def extreme(slot: int) -> comparison.Extreme:
        value = float(host_figures[slot : slot + 1].view(np.float64)[0])
        return element_at(value, int(host_figures[slot + 3])) if value else comparison.Extreme(0.0)

    def element_at(value: float, index: int) -> comparison.Extreme:
        element = np.empty(1, dtype)
        checked("cuMemcpyDtoH", element.ctypes.data, pointer + index * dtype.itemsize, dtype.itemsize)
        return comparison.Extreme(value, index, flat[index].item(), element[0].item())

    return comparison.Comparison(
        shape=shape,
        mismatches=int(host_figures[0]),
        unwritten=int(host_figures[1]),
        unexpected_nan=int(host_figures[2]),
        first_unwritten=int(host_figures[3]) if host_figures[1] else -1,
        first_mismatch=element_at(1.0, int(host_figures[10])) if host_figures[0] else comparison.Extreme(),
        absolute=extreme(4),
        relative=extreme(5),
        ulp=extreme(6) if dtype.kind == "f" else comparison.Extreme(),
    )
