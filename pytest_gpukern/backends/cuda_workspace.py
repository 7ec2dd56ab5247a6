"""Device arrays of one case, shared by every library through `__cuda_array_interface__`."""

from __future__ import annotations

import itertools
import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.arrays.guard_zones import INPUT_GUARD, OUTPUT_GUARD
from pytest_gpukern.arrays.layouts import placed_in
from pytest_gpukern.arrays.strides import out_of_c_order, span_by_interface, span_of
from pytest_gpukern.backends.backend import Form
from pytest_gpukern.backends.cuda_layouts import PlacedDeviceArray
from pytest_gpukern.backends.host import is_array
from pytest_gpukern.gpu.compare import compare_on_device
from pytest_gpukern.gpu.runtime import DeviceArray, checked, runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pytest_gpukern.arrays.guard_zones import Damage
    from pytest_gpukern.arrays.layouts import Placement
    from pytest_gpukern.arrays.strides import Span, Strides
    from pytest_gpukern.arrays.tolerance import Tolerance
    from pytest_gpukern.problems.outputs import Output


def _array(form: Any, guard: int, placement: Placement | None) -> DeviceArray:
    """An array of the shape and dtype of an input or output."""
    if placement is None:
        return DeviceArray(form.shape, form.dtype, guard=guard)
    return PlacedDeviceArray(form.shape, form.dtype, guard=guard, placement=placement)


class CudaWorkspace:
    """Device arrays of one case, wrapped in a library's own type by `wrap`, which a launch may return too."""

    array_type: type[Any] = DeviceArray

    def __init__(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        wrap: Any,
        placed: Mapping[str, Placement] | None = None,
    ) -> None:
        self._runtime = runtime()
        self._inputs: dict[str, DeviceArray] = {}
        self._outputs: dict[str, DeviceArray] = {}
        self._returned: dict[str, Any] = {}
        self._poisons = itertools.cycle(comparison.POISONS)
        self.arrays: dict[str, Any] = {}
        try:
            for name, value in inputs.items():
                if is_array(value):
                    self._inputs[name] = _array(value, INPUT_GUARD, placed_in(placed, name))
                    self.arrays[name] = wrap(self._inputs[name])
                else:
                    self.arrays[name] = value
            for name, output in outputs.items():
                self._outputs[name] = _array(output, OUTPUT_GUARD, placed_in(placed, name))
                self.arrays[name] = wrap(self._outputs[name])
                self.array_type = type(self.arrays[name])
            self.fill(inputs)
            self.poison()
        except BaseException:
            self.close()
            raise

    def fill(self, inputs: Mapping[str, Any]) -> None:
        """Puts contents into the input arrays, from copies on the device where they exist, and waits."""
        for name, array in self._inputs.items():
            array.copy_from(self._runtime.copy_of(inputs[name]))
        self._runtime.synchronize()

    def load(self, inputs: Mapping[str, Any]) -> None:
        """Copies contents from the host into the input arrays and waits."""
        for name, array in self._inputs.items():
            array.upload(inputs[name])
        self._runtime.synchronize()

    def poison(self) -> None:
        """Fills every output with the other of `comparison.POISONS` than before, and waits."""
        self._poison = next(self._poisons)
        self.queue_poison(None)
        self._returned.clear()
        self._runtime.synchronize()

    def queue_poison(self, stream: Any) -> None:
        """Queues the filling of every output with the poison of last time on a stream of cuda.core's."""
        for array in self._outputs.values():
            array.fill(self._poison, stream)

    def adopt(self, output: str, value: Any) -> Form | None:
        """Takes a device array that a launch returned; None for anything that is none."""
        if type(value) is not self.array_type:  # a subclass may compute when it is compared
            return None
        if getattr(value, "__cuda_array_interface__", None) is None:  # a tensor of PyTorch's on the host
            return None
        self._returned[output] = value
        _, shape, dtype, strides = self._place(output)
        return Form(shape, dtype, strides)

    def input_spans(self) -> dict[str, Span]:
        """The addresses of each input array."""
        return {
            name: span_by_interface(array.__cuda_array_interface__) for name, array in self._inputs.items()
        }

    def returned_span(self, output: str) -> Span:
        """The addresses that what was adopted lies between."""
        return span_by_interface(self._returned[output].__cuda_array_interface__)

    def compare(
        self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> comparison.Comparison:
        """Compares on the device, or on the host where no kernel fits dtype or strides."""
        pointer, shape, dtype, strides = self._place(output)
        if strides is None and 0 not in shape:
            found = compare_on_device(self._runtime, pointer, shape, dtype, expected, tolerance, self._poison)
            if found is not None:
                return found
        return comparison.compare(self.fetch(output), expected, tolerance, poison=self._poison)

    def fetch(self, output: str, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies an output to the host and waits."""
        import numpy as np

        pointer, shape, dtype, strides = self._place(output)
        if strides is None:
            host = np.empty(shape, dtype) if into is None else into
            if host.nbytes:
                checked("cuMemcpyDtoH", host.ctypes.data, pointer, host.nbytes)
            return host
        start, stop = span_of(pointer, shape, strides, dtype.itemsize)
        raw = np.empty(stop - start, np.uint8)
        checked("cuMemcpyDtoH", raw.ctypes.data, start, raw.nbytes)
        view = np.ndarray(shape, dtype, raw, offset=pointer - start, strides=strides)
        if into is None:
            return view.copy()
        into[...] = view
        return into

    def _place(self, output: str) -> tuple[int, tuple[int, ...], np.dtype[Any], Strides | None]:
        """Address, shape and dtype of an output, and its strides, or None where it is in C order."""
        import numpy as np

        array = self._returned.get(output, self._outputs[output])
        interface = array.__cuda_array_interface__
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        strides = out_of_c_order(shape, interface.get("strides"), dtype.itemsize)
        return int(interface["data"][0]), shape, dtype, strides

    def digest(self) -> dict[str, int]:
        """A hash of each input, computed on the device."""
        return {name: self._hash(array) for name, array in self._inputs.items()}

    def _hash(self, array: DeviceArray) -> int:
        if not isinstance(array, PlacedDeviceArray):
            return self._runtime.hash(array)
        copy = array.in_one_piece()
        try:
            return self._runtime.hash(copy)
        finally:
            copy.free()

    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """A hash of the copy of each of these on the device."""
        return {name: self._runtime.hash(self._runtime.copy_of(inputs[name])) for name in self._inputs}

    def damage(self) -> list[Damage]:
        """What was written into the guard zones of inputs and outputs; the device must be idle."""
        arrays = {**self._inputs, **self._outputs}
        return [found for name, array in arrays.items() for found in array.damage(name)]

    def bits(self, output: str) -> str | None:
        """A hash of an output's bytes, computed on the device; None where they are strided or not aligned."""
        pointer, shape, dtype, strides = self._place(output)
        if strides is not None or pointer % 4:
            return None
        return f"splitmix64:{self._runtime.hash_at(pointer, math.prod(shape) * dtype.itemsize):016x}"

    def close(self) -> None:
        """Frees the arrays."""
        self.arrays.clear()
        self._returned.clear()
        with ExitStack() as freed:  # every one of them, also where the first cannot be freed
            for array in (*self._inputs.values(), *self._outputs.values()):
                freed.callback(array.free)
