"""Host copies of whatever array a user has at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pytest_gpukern.arrays.strides import Span


def refuse_what_proves_nothing(actual: Any, expected: Any) -> None:
    """Refuses to compare what is not there yet, hides elements, or is compared with itself.

    Args:
        actual: an output, as a user has it.
        expected: its reference.

    Raises:
        TypeError: `actual` is lazy, or one of them is of a subclass of NumPy's array.
        ValueError: they share memory.
    """
    import numpy as np

    if hasattr(actual, "__dask_graph__"):
        raise TypeError(
            f"actual is {_named(actual)}, which computes when it is read, not when it was measured: "
            "call its compute() in what is measured, and verify what that returns"
        )
    for role, value in (("actual", actual), ("expected", expected)):
        if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
            raise TypeError(
                f"{role} is {_named(value)}, a subclass of numpy.ndarray, which may hide elements or compute "
                "them when they are read: pass a plain array, as of numpy.array(…) or filled()"
            )
    if shares_memory(actual, expected):
        raise ValueError(
            "actual and expected share memory, and an array that is compared with itself is right whatever "
            "it holds: compute the reference in memory of its own"
        )


def shares_memory(one: Any, other: Any) -> bool:
    """Whether an address belongs to both arrays; on a device, whether one lies between the ends of both."""
    import numpy as np

    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.shares_memory(one, other))
    spans = [_span(value) for value in (one, other)]
    return spans[0] is not None and spans[1] is not None and spans[0].overlaps(spans[1])


def _span(value: Any) -> Span | None:
    """The addresses of an array of any library, or None where it tells none."""
    import numpy as np

    from pytest_gpukern.arrays.strides import span_by_interface

    if isinstance(value, np.generic):  # a number, whose address is that of a copy
        return None
    if hasattr(value, "detach"):  # PyTorch, which tells them of no tensor that requires a gradient
        value = value.detach()
    for name in ("__cuda_array_interface__", "__array_interface__"):
        interface = getattr(value, name, None)
        if interface is not None:
            return span_by_interface(interface)
    return None


def _named(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


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
