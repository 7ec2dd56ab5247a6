"""Shared memory: one array for each place in the code, of any dtype, within the hardware's limit."""

import sys
from typing import Any

from pytest_gpukern.gpu.simulator.launch import MAX_SHARED_BYTES_PER_BLOCK
from pytest_gpukern.gpu.simulator.patching import original, replace


def mend_shared_memory() -> None:
    """Replace the fake's `shared.array`, and let `local.array` be aligned.

    The fake fails for dynamic shared memory given a NumPy dtype class (``np.float32`` has no ``itemsize`` of
    its own), gives two arrays made on one source line the same memory, may give two threads that arrive
    together an array each, and allocates any size. Alignment is accepted: it changes no value.
    """
    from numba.cuda.simulator import kernelapi
    from numba.cuda.simulator.cudadrv import driver

    shared_class = original(kernelapi, "FakeCUDAShared")
    local_class = original(kernelapi, "FakeCUDALocal")
    linker_error = original(driver, "LinkerError")

    def shared_array(self: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:  # noqa: ARG001
        import numpy as np

        dtype = as_numpy_dtype(dtype)
        if shape == 0:  # dynamic shared memory: every such array is the whole of it
            count = self._dynshared_size // dtype.itemsize
            return np.frombuffer(self._dynshared.data, dtype=dtype, count=count)
        frame = sys._getframe(1)
        place = (frame.f_code, frame.f_lasti)  # the call itself: two on one line are two
        array = self._allocations.get(place)
        if array is None:
            # setdefault: of threads that get here together, all must take the first one's.
            array = self._allocations.setdefault(place, np.empty(shape, dtype))
            used = sum(each.nbytes for each in list(self._allocations.values()))
            if used > MAX_SHARED_BYTES_PER_BLOCK:
                raise linker_error(
                    f"ptxas would refuse this kernel: uses too much shared data ({used} bytes, "
                    f"{MAX_SHARED_BYTES_PER_BLOCK} max)"
                )
        return array

    def local_array(self: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:  # noqa: ARG001
        import numpy as np

        return np.empty(shape, as_numpy_dtype(dtype))

    replace(shared_class, "array", shared_array)
    replace(local_class, "array", local_array)


def as_numpy_dtype(dtype: Any) -> Any:
    """Return the NumPy dtype of a Numba type, a NumPy scalar type or anything NumPy takes for a dtype."""
    import numpy as np
    from numba.cuda import types
    from numba.cuda.np import numpy_support

    if isinstance(dtype, types.Type):
        return np.dtype(numpy_support.as_dtype(dtype))
    return np.dtype(dtype)
