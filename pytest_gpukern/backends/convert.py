"""Host copies of whatever array a user has at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def to_host(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array with the contents of `value`, which may live on the device.

    Args:
        value: a NumPy array or scalar, a Numba (real or simulated), CuPy, PyCUDA or PyTorch array, or a
            nested list of numbers. The device must be idle.

    Raises:
        TypeError: it holds no numbers.
    """
    import numpy as np

    if not isinstance(value, np.ndarray):
        for method in ("copy_to_host", "get"):  # Numba; CuPy and PyCUDA
            if hasattr(value, method) and not isinstance(value, dict):
                value = getattr(value, method)()
                break
        else:
            if hasattr(value, "__cuda_array_interface__") and hasattr(value, "cpu"):  # PyTorch
                value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{type(value).__name__} of dtype {array.dtype}: verify compares arrays of numbers")
    return array
