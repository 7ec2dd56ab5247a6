"""Gives the simulated device the attributes, error classes and events that users read from a real one."""

import time
from typing import Any

from pytest_gpukern.gpu.simulator.launch import (
    MAX_BLOCK_DIM,
    MAX_GRID_DIM,
    MAX_SHARED_BYTES_PER_BLOCK,
    MAX_THREADS_PER_BLOCK,
)
from pytest_gpukern.gpu.simulator.patching import add, original, publish, replace

# One multiprocessor, because blocks run one after the other.
DEVICE_ATTRIBUTES: dict[str, object] = {
    "name": "SIMULATOR",
    "id": 0,
    "MULTIPROCESSOR_COUNT": 1,
    "WARP_SIZE": 32,
    "MAX_THREADS_PER_BLOCK": MAX_THREADS_PER_BLOCK,
    "MAX_THREADS_PER_MULTI_PROCESSOR": MAX_THREADS_PER_BLOCK,
    **{f"MAX_BLOCK_DIM_{axis}": most for axis, most in zip("XYZ", MAX_BLOCK_DIM, strict=True)},
    **{f"MAX_GRID_DIM_{axis}": most for axis, most in zip("XYZ", MAX_GRID_DIM, strict=True)},
    "MAX_SHARED_MEMORY_PER_BLOCK": MAX_SHARED_BYTES_PER_BLOCK,
    "supports_float16": False,
    "supports_bfloat16": False,
    "supports_fp8": False,
}
# Classes of numba.cuda.cudadrv.error that the fake module lacks; users import them to catch them.
_ERROR_CLASSES = {
    "CudaDriverError": Exception,
    "CudaRuntimeError": Exception,
    "NvvmError": Exception,
    "NvvmSupportError": ImportError,
    "NvrtcSupportError": ImportError,
}


def mend_device() -> None:
    """Gives the fake device a name and the usual attributes; its events tell the host's time, not -1."""
    from numba.cuda.simulator import api
    from numba.cuda.simulator.cudadrv import devicearray, devices, error

    device_class = original(devices, "FakeCUDADevice")
    context_class = original(devices, "FakeCUDAContext")
    for name, value in DEVICE_ATTRIBUTES.items():
        add(device_class, name, value)
    add(context_class, "__getattr__", _from_device)
    for name, base in _ERROR_CLASSES.items():
        add(error, name, type(name, (base,), {"__module__": error.__name__}))
    publish("CudaSupportError", original(error, "CudaSupportError"))
    publish("select_device", lambda device_id=0: devices.gpus[device_id].device)

    fake_array = original(devicearray, "FakeCUDAArray")

    def as_cuda_array(obj: Any, sync: bool = True) -> Any:  # noqa: ARG001 - the real one's signature
        if isinstance(obj, fake_array):
            return obj
        raise TypeError("*obj* doesn't implement the cuda array interface.")

    publish("is_cuda_array", lambda obj: isinstance(obj, fake_array))
    publish("as_cuda_array", as_cuda_array)
    event = original(api, "Event")
    replace(event, "__init__", lambda self, timing=True: None)  # noqa: ARG005 - the real one's signature
    replace(event, "record", lambda self, stream=0: setattr(self, "recorded_ns", time.perf_counter_ns()))  # noqa: ARG005
    replace(event, "elapsed_time", lambda start, end: (end.recorded_ns - start.recorded_ns) / 1e6)
    add(event, "query", lambda _: True)
    publish("event_elapsed_time", lambda start, end: start.elapsed_time(end))


def _from_device(context: Any, name: str) -> Any:
    # `cuda.gpus[0].name`: the real list forwards to the device.
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(context.device, name)
