"""`cuda.popc`, `brev`, `clz` and `ffs` at the width of their argument."""

from typing import Any

from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.patching import original, replace


def width_of(value: Any) -> int | None:
    """Return how many bits Numba would give a value, or None for a Python int.

    A Python int is int64 to Numba unless the kernel's signature says otherwise, and a simulated kernel does
    not know its signature.
    """
    dtype = getattr(value, "dtype", None)
    return None if dtype is None else int(dtype.itemsize) * 8


def popc(value: Any) -> int:
    """Count the set bits, of the two's complement for a negative number."""
    width = width_of(value)
    number = int(value)
    if number < 0 and width is None:
        raise _width_unknown("popc")
    return (number if width is None else number & ((1 << width) - 1)).bit_count()


def clz(value: Any) -> int:
    """Count the leading zeros."""
    width = width_of(value)
    number = int(value)
    if width is None:
        if number < 0:
            return 0  # the sign bit is set at every width
        if number < 2**32:
            raise _width_unknown("clz")
        width = 64
    return width - (number & ((1 << width) - 1)).bit_length()


def brev(value: Any) -> int:
    """Reverse the bits: of 64 for uint64, of 32 for everything else.

    That is how numba-cuda 0.30.4 resolves it: its two versions take uint32 and uint64, and each other type,
    int64 included, is converted to uint32.
    """
    dtype = getattr(value, "dtype", None)
    width = 64 if dtype is not None and dtype.kind == "u" and dtype.itemsize == 8 else 32
    number = int(value) & ((1 << width) - 1)
    return int(f"{number:0{width}b}"[::-1], 2)


def ffs(value: Any) -> int:
    """Return the position of the lowest set bit, counted from 1, and 0 for 0: the same at every width."""
    number = int(value)
    return (number & -number).bit_length()


def _width_unknown(name: str) -> SimulatorUnsupported:
    return SimulatorUnsupported(
        f"cuda.{name} of a plain Python int, whose width depends on the signature "
        f"(pass a NumPy integer, as in cuda.{name}(np.uint32(x)))"
    )


def mend_bit_functions() -> None:
    """Replace functions that take the sign for a digit, and every integer for 32 bits wide."""
    from numba.cuda.simulator import kernelapi

    module_class = original(kernelapi, "FakeCUDAModule")
    for name, function in (("popc", popc), ("clz", clz), ("brev", brev), ("ffs", ffs)):
        replace(module_class, name, staticmethod(function))
