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
_END, _BUFFER = 0, 1  # CU_LAUNCH_PARAM_END, CU_LAUNCH_PARAM_BUFFER_POINTER
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
    if not sizes or sum(size for _, size in sizes) > _MOST_BYTES:
        return None
    places = [_word(pointers + 8 * number) for number in range(len(sizes))] if pointers else []
    if not pointers:
        buffer = _buffer(extra)
        if not buffer:
            return None
        places = [buffer + offset for offset, _ in sizes]
    parts = [
        part
        for place, (offset, size) in zip(places, sizes, strict=True)
        for part in _parts(library, ctypes.string_at(place, size), -offset % 8)
    ]
    return tuple(parts)


_driver = functools.cache(load_library)


def _buffer(extra: int) -> int:
    """Returns where all arguments lie together, as PyCUDA passes them; 0 if these options do not say."""
    for option in range(extra, extra + 2 * 16, 16):
        if _word(option) in (_END, _BUFFER):
            return _word(option + 8) if _word(option) == _BUFFER else 0
    return 0


def _sizes(library: Any, handle: int) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each parameter; nothing if the driver, as before 12.4, does not tell."""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    for name in ("cuFuncGetParamInfo", "cuKernelGetParamInfo"):  # a handle may be a function or a kernel
        ask, number = getattr(library, name, None), 0
        while ask and not ask(
            ctypes.c_void_p(handle), ctypes.c_size_t(number), ctypes.byref(offset), ctypes.byref(size)
        ):
            yield offset.value, size.value
            number += 1
        if number:
            return


def _parts(library: Any, content: bytes, start: int) -> Iterator[bytes | int]:
    """Yields an argument's bytes, and the aligned words among them that are addresses."""
    plain = 0
    for at in range(start, len(content) - 7, 8):
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
