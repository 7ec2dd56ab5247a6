"""Provides what all backends on a real GPU share: streams, and the device arrays of a case."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.arrays.compare import Tolerance, is_narrow
from pytest_gpukern.arrays.memory import Placement
from pytest_gpukern.backends.backend import Backend, Workspace
from pytest_gpukern.backends.foreign_array import UsersArray
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.runtime import CudaRuntime, DeviceArray, checked, cuda_source, runtime

_LOOKED_AT_BYTES = 1 << 20
"""Size of the end of an output that we watch for late writes."""


class PlacedDeviceArray(DeviceArray):
    """Holds a small array in a special layout; it waits where `DeviceArray` queues.

    We read its allocation, change the elements on the host, and write it whole.
    """

    def upload(self, host: np.ndarray[Any, Any]) -> None:
        """Copies from the host, and leaves the bytes around the elements as they are."""
        whole = self._bytes(0, self._placed.nbytes)
        self._placed.put(whole, np.ascontiguousarray(host, dtype=self.dtype))
        if whole.size:
            checked("cuMemcpyHtoD", self._allocation, whole.ctypes.data, whole.nbytes)

    def copy_from(self, other: DeviceArray, stream: Any = None) -> None:  # noqa: ARG002
        self.upload(other.download())

    def fill(self, word: int, stream: Any = None) -> None:  # noqa: ARG002
        self.upload(np.ndarray(self.shape, self.dtype, comparison.poison_bytes(word, self.nbytes)))

    def download(self, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        elements = self._placed.view(self._bytes(0, self._placed.nbytes))
        if into is None:
            return elements.copy()
        into[...] = elements
        return into


def _place_of(array: Any, declared: np.dtype[Any]) -> UsersArray:
    place = UsersArray.of_interface(array.__cuda_array_interface__, on_device=True)
    unnamed = is_narrow(declared) and place.dtype == f"V{declared.itemsize}"  # bfloat16 is "<V2" there
    return dataclasses.replace(place, dtype=declared) if unnamed else place


class CudaWorkspace(Workspace):
    """Holds the device arrays of one case, each in the type that its backend makes of it."""

    def __init__(self, *given: Any) -> None:
        self._runtime = runtime()
        self._before: dict[str, DeviceArray] = {}
        try:
            super().__init__(*given)
        except BaseException:
            self.close()
            raise

    def _make(self, name: str, form: Any, guard: int, placement: Placement | None) -> None:
        kind = DeviceArray if placement is None else PlacedDeviceArray
        array = kind(form.shape, form.dtype, guard=guard, placement=placement or Placement())
        self._guarded[name], self._places[name] = array, _place_of(array, array.dtype)
        if name in self._outputs and name in self.arrays:  # it is an input, too
            self._before[name] = DeviceArray(form.shape, form.dtype)
        backend = self._backend
        self.arrays[name] = (backend.wrap_input if name in self._inputs else backend.wrap)(array)

    def fill(self, inputs: Mapping[str, Any]) -> None:
        for name, array in (self._guarded | self._before).items():
            if name in inputs:
                array.copy_from(self._runtime.copy_of(inputs[name]))
        for name, array in self._before.items():
            self._guarded[name].copy_from(array)
        self._runtime.synchronize()

    def load(self, inputs: Mapping[str, Any]) -> None:
        for name in (*self._inputs, *self._before):
            self._guarded[name].upload(inputs[name])
        self._runtime.synchronize()

    def poison(self) -> None:
        super().poison()
        self._runtime.synchronize()

    def queue_poison(self, stream: Any) -> None:
        for name in self._outputs:
            if name in self._before:
                self._guarded[name].copy_from(self._before[name], stream)
            else:
                self._guarded[name].fill(self._poison, stream)

    def _taken(self, output: str, value: Any) -> UsersArray | None:
        if getattr(value, "__cuda_array_interface__", None) is None:  # a tensor of PyTorch's on the host
            return None
        return _place_of(value, self._guarded[output].dtype)

    def compare(
        self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> comparison.Comparison:
        """Compares on the device, or on the host if no kernel of ours fits dtype or strides."""
        place = self.place(output)
        if place.strides is None and place.nbytes:
            compared = compare_on_device(self._runtime, place, expected, tolerance, self._poison or None)
            if compared is not None:
                return compared
        return super().compare(output, expected, tolerance)

    def digest(self) -> dict[str, int]:
        def in_order(array: DeviceArray) -> DeviceArray:
            """Returns an array to hash at once: the next copy frees this one, whose host array is gone."""
            return self._runtime.copy_of(array.download()) if isinstance(array, PlacedDeviceArray) else array

        return {name: self._runtime.hash(in_order(self._guarded[name])) for name in self._inputs}

    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        return {name: self._runtime.hash(self._runtime.copy_of(inputs[name])) for name in self._inputs}

    def written_late(self, launch: Callable[[], None], *, hold_ns: float) -> list[str]:
        """Launches, and returns the outputs written after the timed stream was done.

        A kernel keeps the device busy while we launch and queue a copy of each output on that stream. Work
        on other streams is then not done when the copy engine copies. We watch only the end of large outputs,
        and no strided ones.
        """
        sizes = {name: min(self._guarded[name].nbytes, _LOOKED_AT_BYTES) for name in self._outputs}
        early = int(checked("cuMemHostAlloc", max(1, sum(sizes.values())), 0))
        try:
            self.poison()
            self._runtime.occupy(hold_ns)
            launch()
            looked_at: dict[str, tuple[int, int]] = {}
            copy = early
            for name, nbytes in sizes.items():
                place = self.place(name)
                if nbytes and place.strides is None:
                    looked_at[name] = copy, place.pointer + self._guarded[name].nbytes - nbytes
                    checked("cuMemcpyDtoHAsync", *looked_at[name], nbytes, int(self._runtime.stream.handle))
                    copy += nbytes
            self._runtime.synchronize()
            late = []
            for name, (copy, pointer) in looked_at.items():
                now = np.empty(sizes[name], np.uint8)
                checked("cuMemcpyDtoH", now.ctypes.data, pointer, now.nbytes)
                late += [name] if ctypes.string_at(copy, now.nbytes) != now.tobytes() else []
            return late
        finally:
            checked("cuMemFreeHost", early)

    def close(self) -> None:
        with ExitStack() as freed:  # all of them, even if the first cannot be freed
            for array in (*self._guarded.values(), *self._before.values()):
                freed.callback(array.free)
            super().close()


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
    place: UsersArray,
    expected: np.ndarray[Any, Any],
    tolerance: Tolerance,
    poison: int | None,
) -> comparison.Comparison | None:
    """Compares like `arrays.compare.compare`, but on the device; None for dtypes without a kernel."""
    actual_name, expected_name = place.dtype.name, expected.dtype.name
    is_float = actual_name in _FLOATS
    if actual_name not in _C_TYPES or (
        expected_name not in _FLOATS if is_float else actual_name != expected_name
    ):
        return None
    if not (place.dtype.isnative and expected.dtype.isnative):
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
    highest = np.iinfo(np.uint64).max  # stands for no place yet: the kernel takes minima of places
    empty = np.array([0, 0, 0, highest, 0, 0, 0, highest, highest, highest, highest], np.uint64)
    figures = runtime.figures
    figures.upload(empty)
    runtime.synchronize()  # the timed stream does not wait for copies from pageable memory
    kernel = runtime.kernel(source, "gpukern_compare")
    count = math.prod(place.shape)
    arguments = (
        place.pointer,
        reference.pointer,
        np.uint64(count),
        np.float64(tolerance.rtol),
        np.float64(tolerance.atol),
        np.uint32(comparison.POISON if poison is None else poison),
        np.int32(info.nmant),
        np.int32(info.minexp),
        figures.pointer,
    )
    for second_pass in (0, 1):  # the second finds the first place of each largest error
        runtime.launch(kernel, count, *arguments, np.int32(second_pass))
    runtime.synchronize()
    host_figures = figures.download()
    flat = expected.reshape(-1)

    def extreme(slot: int) -> comparison.Extreme:
        value = float(host_figures[slot : slot + 1].view(np.float64)[0])
        return element_at(value, int(host_figures[slot + 3])) if value else comparison.Extreme(0.0)

    def element_at(value: float, index: int) -> comparison.Extreme:
        element = np.empty(1, place.dtype)
        at = place.pointer + index * element.itemsize
        checked("cuMemcpyDtoH", element.ctypes.data, at, element.itemsize)
        return comparison.Extreme(value, index, flat[index].item(), element[0].item())

    return comparison.Comparison(
        shape=place.shape,
        mismatches=int(host_figures[0]),
        unwritten=int(host_figures[1]),
        unexpected_nan=int(host_figures[2]),
        first_unwritten=int(host_figures[3]) if host_figures[1] else -1,
        first_mismatch=element_at(1.0, int(host_figures[10])) if host_figures[0] else comparison.Extreme(),
        absolute=extreme(4),
        relative=extreme(5),
        ulp=extreme(6) if is_float else comparison.Extreme(),
    )


_WORTH_COPYING_BYTES = 1 << 20


def compare_large_from_host(
    place: UsersArray, expected: np.ndarray[Any, Any], tolerance: Tolerance, poison: int | None
) -> comparison.Comparison | None:
    """Compares a large array of the host on the device, if this process uses one; None if it does not.

    32 threads of an H200's host took 0.1 s for 10⁷ elements; the copy takes 6 ms, and variants on the GPU
    have brought the reference there.
    """
    host, small = place.host, place.nbytes < _WORTH_COPYING_BYTES
    if host is None or small or place.strides is not None or place.dtype.name not in _C_TYPES:
        return None
    ours = cuda.runtime_in_use()
    if ours is None or cuda.in_own_context() or 2 * (place.nbytes + expected.nbytes) > ours.free_bytes():
        return None
    copy = DeviceArray(place.shape, place.dtype)
    try:
        copy.upload(host)
        on_device = dataclasses.replace(place, pointer=copy.pointer, on_device=True, host=None)
        return compare_on_device(ours, on_device, expected, tolerance, poison)
    finally:
        copy.free()


class GpuBackend(Backend):
    """Runs a library in the runtime's context, timed on the runtime's stream if the library takes it.

    A derived backend sets `stream`, and `wrap` makes an array of its library.
    """

    on_gpu = True
    workspace_type = CudaWorkspace

    def __init__(self) -> None:
        self.timed_stream = runtime().stream

    def wrap(self, array: DeviceArray) -> Any:
        """Returns an array of the library's own type on the memory of `array`."""
        return array

    def wrap_input(self, array: DeviceArray) -> Any:
        """Returns an input array on this memory; most libraries have one type for inputs and outputs."""
        return self.wrap(array)

    def synchronize(self) -> None:
        runtime().synchronize()
