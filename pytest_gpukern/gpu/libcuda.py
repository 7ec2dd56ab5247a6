"""Asks the CUDA driver library what only it knows, through ctypes and without creating a context.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html
"""

from __future__ import annotations

import ctypes
import os
import uuid as uuid_module
from typing import Any

LIBRARY = "libcuda.so.1"

_CUDA_SUCCESS = 0
_CUDA_ERROR_NOT_INITIALIZED = 3
_CUDA_ERROR_NO_DEVICE = 100


class CudaError(Exception):
    """The CUDA driver is missing or refused a call; the message has the call and CUDA's name of the error."""


class LibCuda:
    """Asks the CUDA driver library.

    A process that is forked after CUDA was initialised can never use CUDA. Spawn processes that measure
    (subprocess, multiprocessing's "spawn").
    """

    def is_initialized(self) -> bool:
        """Asks for the current context; before cuInit the answer is CUDA_ERROR_NOT_INITIALIZED."""
        library = _loaded_library()
        if library is None:
            return False
        context = ctypes.c_void_p()
        return int(library.cuCtxGetCurrent(ctypes.byref(context))) != _CUDA_ERROR_NOT_INITIALIZED

    def has_context(self) -> bool:
        """Returns whether this thread has a context, or a device its primary one; initialises nothing."""
        library, context, count = _loaded_library(), ctypes.c_void_p(), ctypes.c_int()
        if library is None or int(library.cuCtxGetCurrent(ctypes.byref(context))) != _CUDA_SUCCESS:
            return False
        if context.value:
            return True
        library.cuDeviceGetCount(ctypes.byref(count))
        flags, active = ctypes.c_uint(), ctypes.c_int()
        for ordinal in range(count.value):
            handle = _handle(library, ordinal)
            _call(library, "cuDevicePrimaryCtxGetState", handle, ctypes.byref(flags), ctypes.byref(active))
            if active.value:
                return True
        return False

    def uuids(self) -> tuple[str, ...]:
        """Initialises CUDA without a context; lists its devices' UUIDs without a prefix. Raises CudaError."""
        library = load_library()
        status = int(library.cuInit(0))
        if status == _CUDA_ERROR_NO_DEVICE:
            return ()
        _check(library, status, "cuInit")
        count = ctypes.c_int()
        _call(library, "cuDeviceGetCount", ctypes.byref(count))
        return tuple(_uuid(library, ordinal) for ordinal in range(count.value))


def load_library() -> Any:
    """Loads the CUDA driver library without initialising CUDA or a device. Raises CudaError."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise CudaError(f"CUDA library missing ({error})") from error


def bare_uuid(uuid: str) -> str:
    """Removes the "GPU-" or "MIG-" that NVML, unlike CUDA, puts before a UUID."""
    return uuid.split("-", 1)[1] if uuid.startswith(("GPU-", "MIG-")) else uuid


def _loaded_library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)  # to ask must not load it
    except OSError:
        return None


def _uuid(library: Any, ordinal: int) -> str:
    # The second version, since CUDA 11.4, gives a MIG instance its own UUID; the first gives its GPU's.
    raw = (ctypes.c_ubyte * 16)()
    _call(library, "cuDeviceGetUuid_v2", raw, _handle(library, ordinal))
    return str(uuid_module.UUID(bytes=bytes(raw)))


def _handle(library: Any, ordinal: int) -> ctypes.c_int:
    handle = ctypes.c_int()
    _call(library, "cuDeviceGet", ctypes.byref(handle), ordinal)
    return handle


def _call(library: Any, name: str, *arguments: Any) -> None:
    _check(library, int(getattr(library, name)(*arguments)), name)


def _check(library: Any, status: int, call: str) -> None:
    if status == _CUDA_SUCCESS:
        return
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    words = name.value.decode() if name.value else "unknown error"
    hint = (
        " (a process forked after CUDA was initialised cannot use it)"
        if status == _CUDA_ERROR_NOT_INITIALIZED
        else ""
    )
    raise CudaError(f"{call} failed with {words} ({status}){hint}")
