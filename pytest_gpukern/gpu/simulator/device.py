"""Gives the simulated device the attributes, error classes and events that users read from a real one."""

import asyncio
import contextlib
import time
from typing import Any

import numpy as np

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
# Keywords of arrays that steer a device, and change no value.
_OF_DEVICES = {"stream", "portable", "wc", "attach_global"}


def mend_device() -> None:
    """Gives the fake device a name and the usual attributes; its events tell the host's time, not -1."""
    from numba.cuda.simulator import api
    from numba.cuda.simulator.cudadrv import devices, error

    device_class = original(devices, "FakeCUDADevice")
    context_class = original(devices, "FakeCUDAContext")
    for name, value in DEVICE_ATTRIBUTES.items():
        add(device_class, name, value)
    add(device_class, "reset", lambda _: None)
    add(context_class, "__getattr__", _from_device)
    add(context_class, "synchronize", lambda _: None)
    for name, base in _ERROR_CLASSES.items():
        add(error, name, type(name, (base,), {"__module__": error.__name__}))
    publish("CudaSupportError", original(error, "CudaSupportError"))
    publish("select_device", lambda device_id=0: devices.gpus[device_id].device)

    event = original(api, "Event")
    replace(event, "__init__", lambda self, timing=True: None)  # noqa: ARG005 - the real one's signature
    replace(event, "record", lambda self, stream=0: setattr(self, "recorded_ns", time.perf_counter_ns()))  # noqa: ARG005
    replace(event, "elapsed_time", lambda start, end: (end.recorded_ns - start.recorded_ns) / 1e6)
    add(event, "query", lambda _: True)
    publish("event_elapsed_time", lambda start, end: start.elapsed_time(end))
    add(api.stream, "add_callback", lambda self, callback, arg=None: callback(self, 0, arg))
    add(api.stream, "async_done", lambda _: asyncio.ensure_future(asyncio.sleep(0)))
    publish("external_stream", lambda ptr: api.stream())  # noqa: ARG005
    publish("profiling", contextlib.nullcontext)
    publish("profile_start", lambda: None)
    publish("profile_stop", lambda: None)


def mend_arrays() -> None:
    """Gives functions that make arrays the real ones' keywords; kernels share mapped and managed memory."""
    from numba.cuda.simulator.cudadrv import devicearray

    fake_array, on_device = original(devicearray, "FakeCUDAArray"), original(devicearray, "auto_device")
    copied, empty_like = original(devicearray, "to_device"), original(devicearray, "pinned_array_like")
    methods = {name: value for name, value in vars(fake_array).items() if not hasattr(np.ndarray, name)}
    methods |= {"_ary": property(lambda self: self.view(np.ndarray)), "stream": 0}
    methods["__module__"] = "numba.cuda.cudadrv.devicearray"
    host_array: Any = type("ManagedNDArray", (np.ndarray,), methods)

    def new(shape: Any, dtype: Any = "f8", strides: Any = None, order: Any = "C", *_: Any, **kws: Any) -> Any:
        if unknown := kws.keys() - _OF_DEVICES:
            raise TypeError(f"an array takes no keyword argument {', '.join(unknown)}")
        return np.ndarray(shape, dtype, None, 0, strides, order).view(host_array)

    def device_array(*args: Any, **options: Any) -> Any:
        return fake_array(new(*args, **options)._ary)

    def auto_device(ary: Any, stream: Any = 0, copy: bool = True) -> Any:
        return (fake_array(ary._ary), False) if isinstance(ary, host_array) else on_device(ary, stream, copy)

    def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:  # noqa: ARG001
        if to is None:
            return obj if is_cuda_array(obj) else copied(obj)
        if copy:
            to.copy_to_device(obj)
        return to

    def mapped(*arrays: Any, stream: Any = 0) -> Any:  # noqa: ARG001
        views = [fake_array(array) for array in arrays]
        return contextlib.nullcontext(views[0] if len(views) == 1 else views)

    def is_cuda_array(obj: Any) -> bool:
        return isinstance(obj, (fake_array, host_array))

    def as_cuda_array(obj: Any, sync: bool = True) -> Any:  # noqa: ARG001 - the real one's signature
        if is_cuda_array(obj):
            return auto_device(obj)[0]
        raise TypeError("*obj* doesn't implement the cuda array interface.")

    add(devicearray, host_array.__name__, host_array)
    replace(devicearray, "auto_device", auto_device)
    for function in (device_array, to_device, mapped, is_cuda_array, as_cuda_array):
        publish(function.__name__, function)
    publish("managed_array", new)
    publish("mapped_array", new)
    publish("mapped_array_like", lambda ary, *_, **__: empty_like(ary).view(host_array))
    publish("pinned", lambda *_: contextlib.nullcontext())


def _from_device(context: Any, name: str) -> Any:
    # `cuda.gpus[0].name`: the real list forwards to the device.
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(context.device, name)
