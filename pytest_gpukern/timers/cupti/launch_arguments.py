"""Reads the arguments of a kernel's launch where the driver gets them, in CUPTI's callback for that call.

Every library launches through the driver, so one place serves them all. Addresses differ between processes,
so each is told apart from plain bytes: the driver knows to which memory it belongs.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from pytest_gpukern.gpu.libcuda import load_library

Arguments = tuple[bytes | int, ...]
"""What a kernel is launched with, in order: the plain bytes, and each address as a number."""

_PLACES = {"cuLaunchKernel": (6, 7), "cuLaunchCooperativeKernel": (6, None), "cuLaunchKernelEx": (2, 3)}
"""Call → the positions of `kernelParams` and `extra` among its eight-byte parameters."""
_BUFFER = 1  # CU_LAUNCH_PARAM_BUFFER_POINTER
_ATTRIBUTES = 48  # where a CUlaunchConfig has the number of its attributes, such as a cluster's size
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_MOST_BYTES = 4096  # of a launch until CUDA 12.1, and 32 KB since then; asking about each word takes its time
_LOWEST_ADDRESS = 1 << 20  # sizes and small numbers, about which we need not ask


def arguments_of(call: str, parameters: int, handle: int) -> Arguments | None:
    """Returns the arguments of a launch; None where they cannot be told from its parameters.

    Args:
        call: the driver's call, such as `cuLaunchKernel`.
        parameters: address of the parameters of that call, which is still being made.
        handle: of the kernel.
    """
    try:
        return _arguments(call, parameters, handle)
    except Exception:  # noqa: BLE001 - CUPTI's callback has nobody to raise it to
        return None


def _arguments(call: str, parameters: int, handle: int) -> Arguments | None:
    at_pointers, at_extra = _PLACES[call]
    pointers = _word(parameters + 8 * at_pointers)
    extra = _word(parameters + 8 * at_extra) if at_extra is not None else 0
    if not (pointers or extra):
        return ()
    if call == "cuLaunchKernelEx" and ctypes.c_uint.from_address(_word(parameters) + _ATTRIBUTES).value:
        return None
    library = _driver()
    sizes = list(_sizes(library, handle))
    if not 0 < sum(size for _, size in sizes) <= _MOST_BYTES:
        return None
    # PyCUDA has all arguments in one buffer, and two options say where it is and how large.
    options = {} if pointers else {_word(extra + at): _word(extra + at + 8) for at in (0, 16)}
    parts: list[bytes | int] = []
    for number, (offset, size) in enumerate(sizes):
        place = _word(pointers + 8 * number) if pointers else options[_BUFFER] + offset
        parts += _parts(library, ctypes.string_at(place, size))
    return tuple(parts)


_driver = functools.cache(load_library)


def _sizes(library: Any, handle: int) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each parameter; AttributeError if the driver is older than CUDA 12.4."""
    found = ctypes.c_size_t(), ctypes.c_size_t()
    # A handle may be of a function or of a library's kernel; one of these refuses it.
    for ask in (library.cuFuncGetParamInfo, library.cuKernelGetParamInfo):
        number = ctypes.c_size_t()
        while not ask(ctypes.c_void_p(handle), number, *map(ctypes.byref, found)):
            yield found[0].value, found[1].value
            number.value += 1
        if number.value:
            return


def _parts(library: Any, content: bytes) -> Iterator[bytes | int]:
    """Yields an argument's bytes, and the aligned words among them that are addresses."""
    plain = 0
    for at in range(0, len(content) - 7, 8):
        word = int.from_bytes(content[at : at + 8], "little")
        if word >= _LOWEST_ADDRESS and _is_address(library, word):
            yield content[plain:at]
            yield word
            plain = at + 8
    yield content[plain:]


def _is_address(library: Any, word: int) -> bool:
    kind = ctypes.c_uint()
    return not library.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(word))


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
