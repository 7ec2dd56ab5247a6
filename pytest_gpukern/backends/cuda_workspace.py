"""Device arrays of one case, shared by every library through `__cuda_array_interface__`."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from pytest_gpukern import comparison
from pytest_gpukern.backends.cuda import DeviceArray, checked, runtime
from pytest_gpukern.backends.cuda_compare import compare_on_device
from pytest_gpukern.backends.host import is_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pytest_gpukern.backends import Form
    from pytest_gpukern.guards import Damage
    from pytest_gpukern.problem import Output, Tolerance


class CudaWorkspace:
    """Device arrays of one case, wrapped in a library's own type by `wrap`."""

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Output], wrap: Any) -> None:
        self._runtime = runtime()
        self._inputs: dict[str, DeviceArray] = {}
        self._outputs: dict[str, DeviceArray] = {}
        self._returned: dict[str, Any] = {}
        self._poisons = itertools.cycle(comparison.POISONS)
        self.arrays: dict[str, Any] = {}
        try:
            for name, value in inputs.items():
                if is_array(value):
                    self._inputs[name] = DeviceArray(value.shape, value.dtype, guarded=True)
                    self.arrays[name] = wrap(self._inputs[name])
                else:
                    self.arrays[name] = value
            for name, output in outputs.items():
                self._outputs[name] = DeviceArray(output.shape, output.dtype, guarded=True)
                self.arrays[name] = wrap(self._outputs[name])
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
        import numpy as np

        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            return None
        self._returned[output] = value
        return tuple(interface["shape"]), np.dtype(interface["typestr"])

    def compare(
        self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> comparison.Comparison:
        """Compares on the device, or on the host where no kernel fits dtype or strides."""
        pointer, shape, dtype, contiguous = self._place(output)
        if contiguous and 0 not in shape:
            found = compare_on_device(self._runtime, pointer, shape, dtype, expected, tolerance, self._poison)
            if found is not None:
                return found
        return comparison.compare(self.fetch(output), expected, tolerance, poison=self._poison)

    def fetch(self, output: str, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies an output to the host and waits."""
        import numpy as np

        pointer, shape, dtype, contiguous = self._place(output)
        if contiguous:
            host = np.empty(shape, dtype) if into is None else into
            if host.nbytes:
                checked("cuMemcpyDtoH", host.ctypes.data, pointer, host.nbytes)
            return host
        strides = self._returned[output].__cuda_array_interface__["strides"]
        low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
        high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
        raw = np.empty(high - low + dtype.itemsize, np.uint8)
        checked("cuMemcpyDtoH", raw.ctypes.data, pointer + low, raw.nbytes)
        view = np.ndarray(shape, dtype, raw, offset=-low, strides=strides)
        if into is None:
            return view.copy()
        into[...] = view
        return into

    def _place(self, output: str) -> tuple[int, tuple[int, ...], np.dtype[Any], bool]:
        """Address, shape, dtype of an output and whether it is C-contiguous."""
        import numpy as np

        array = self._returned.get(output, self._outputs[output])
        interface = array.__cuda_array_interface__
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        strides = interface.get("strides")
        packed, step = [], dtype.itemsize
        for length in reversed(shape):
            packed.append(step)
            step *= length
        return int(interface["data"][0]), shape, dtype, strides in (None, tuple(reversed(packed)))

    def digest(self) -> dict[str, int]:
        """A hash of each input, computed on the device."""
        return {name: self._runtime.hash(array) for name, array in self._inputs.items()}

    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """A hash of the copy of each of these on the device."""
        return {name: self._runtime.hash(self._runtime.copy_of(inputs[name])) for name in self._inputs}

    def damage(self) -> list[Damage]:
        """What was written into the guard zones of inputs and outputs; the device must be idle."""
        arrays = {**self._inputs, **self._outputs}
        return [found for name, array in arrays.items() for found in array.damage(name)]

    def bits(self, output: str) -> str | None:
        """A hash of an output's bytes, computed on the device; None where they are strided or not aligned."""
        pointer, shape, dtype, contiguous = self._place(output)
        if not contiguous or pointer % 4:
            return None
        return f"splitmix64:{self._runtime.hash_at(pointer, math.prod(shape) * dtype.itemsize):016x}"

    def close(self) -> None:
        """Frees the arrays."""
        self.arrays.clear()
        self._returned.clear()
        for array in (*self._inputs.values(), *self._outputs.values()):
            array.free()
