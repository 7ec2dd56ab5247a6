"""Host copies of whatever array a user has at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def to_host(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array with the contents of `value`, which may live on the device.

    Args:
        value: a NumPy array or scalar, a Numba (real or simulated), CuPy, PyCUDA, PyTorch or Dask array, or a
            nested list of numbers. The device must be idle. bfloat16, which NumPy lacks, becomes float32.

    Raises:
        TypeError: it holds no numbers.
    """
    import numpy as np

    if hasattr(value, "__dask_graph__"):
        value = value.compute(scheduler="synchronous")
    if hasattr(value, "copy_to_host"):  # Numba
        value = value.copy_to_host()
    elif hasattr(value, "detach"):  # PyTorch, wherever the tensor is
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    elif hasattr(value, "get") and not isinstance(value, dict):  # CuPy and PyCUDA
        value = value.get()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{type(value).__name__} of dtype {array.dtype}: verify compares arrays of numbers")
    return array
