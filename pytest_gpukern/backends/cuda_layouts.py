"""Device arrays that are not aligned, or have gaps between their elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.guard_zones import GUARD_BYTES
from pytest_gpukern.arrays.layouts import Placed
from pytest_gpukern.backends.host import poison
from pytest_gpukern.gpu.runtime import DeviceArray, checked
from pytest_gpukern.values.sanitizer_env import sanitizing_tool

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.arrays.guard_zones import Damage
    from pytest_gpukern.arrays.layouts import Placement


class PlacedDeviceArray(DeviceArray):
    """A small array in a layout of its own; what `DeviceArray` queues, this waits for.

    Its allocation is put together on the host, so every byte that is no element is looked at by `damage`, the
    gaps too, and copied along.

    Args:
        shape: of the array.
        dtype: of the array.
        guard: what everything else in its allocation is filled with.
        placement: where its elements lie.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, *, guard: int, placement: Placement) -> None:
        import numpy as np

        self.shape = tuple(int(length) for length in shape)
        self.dtype = np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        zone_bytes = GUARD_BYTES if sanitizing_tool() is None else 0
        self._placed = Placed(self.shape, self.dtype, placement, guard, zone_bytes)
        self.allocated_bytes = max(1, self._placed.nbytes)
        self._allocation = int(checked("cuMemAlloc", self.allocated_bytes))
        self.pointer = self._allocation + self._placed.start
        whole = np.empty(self._placed.nbytes, np.uint8)
        self._placed.fill(whole)
        self._write(whole)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": self._placed.strides if placement.step > 1 else None,
            "version": 3,
        }

    def _write(self, whole: np.ndarray[Any, Any]) -> None:
        if whole.size:
            checked("cuMemcpyHtoD", self._allocation, whole.ctypes.data, whole.nbytes)

    def _read(self) -> np.ndarray[Any, Any]:
        """The bytes of the allocation, on the host."""
        import numpy as np

        whole = np.empty(self._placed.nbytes, np.uint8)
        if whole.size:
            checked("cuMemcpyDtoH", whole.ctypes.data, self._allocation, whole.nbytes)
        return whole

    def upload(self, host: np.ndarray[Any, Any]) -> None:
        """Copies from the host, and leaves what lies around the elements as it is."""
        import numpy as np

        whole = self._read()
        self._placed.put(whole, np.ascontiguousarray(host, dtype=self.dtype))
        self._write(whole)

    def copy_from(self, other: DeviceArray) -> None:
        """Copies the contents of an array of the same shape, by way of the host."""
        self.upload(other.download())

    def fill(self, word: int, stream: Any = None) -> None:
        """Fills the elements with one word, as they would lie in C order; the device must be idle."""
        import numpy as np

        if stream is not None:
            raise TypeError("an array in a layout of its own is checked and never timed: nothing is queued")
        filled = np.empty(self.shape, self.dtype)
        poison(filled, word)
        self.upload(filled)

    def download(self, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies to pageable host memory and waits."""
        elements = self._placed.view(self._read())
        if into is None:
            return elements.copy()
        into[...] = elements
        return into

    def in_one_piece(self) -> DeviceArray:
        """A copy in C order, whose memory the caller gives back."""
        copy = DeviceArray(self.shape, self.dtype)
        copy.upload(self.download())
        return copy

    def damage(self, name: str) -> list[Damage]:
        """What was written into its guard zones and gaps; the device must be idle."""
        return self._placed.damage(name, self._read())
