"""Tests which exceptions mean that there is no GPU, and which are bugs.

`tests/plugin/test_simulator.py` has those that Numba raises.
"""

import pytest

from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error

NUMBA_ERROR, NUMBA_DRIVER = "numba.cuda.cudadrv.error", "numba.cuda.cudadrv.driver"
NO_SUPPORT = NUMBA_ERROR, "CudaSupportError"
CUPY = "cupy_backends.cuda.api.runtime"


def exception(module, name, message, base=Exception):
    return type(name, (base,), {"__module__": module})(message)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (
            exception(*NO_SUPPORT, "At init: \n\nNo driver.\n:", ImportError),
            "no usable GPU: At init: No driver.",
        ),
        (exception(NUMBA_ERROR, "NvvmSupportError", "libNVVM cannot be found", ImportError), "libNVVM"),
        (exception(NUMBA_DRIVER, "CudaAPIError", "[100] CUDA_ERROR_NO_DEVICE"), "CUDA_ERROR_NO_DEVICE"),
        (exception(CUPY, "CUDARuntimeError", "cudaErrorNoDevice: none", RuntimeError), "cudaErrorNoDevice"),
        (exception(CUPY, "CUDARuntimeError", "cudaErrorInsufficientDriver: old", RuntimeError), "old"),
        (
            exception("pycuda._driver", "RuntimeError", "no CUDA-capable device is detected"),
            "no CUDA-capable",
        ),
        (ImportError("libcuda.so.1: cannot open shared object file"), "no CUDA driver: libcuda.so.1"),
        (RuntimeError("Found no NVIDIA driver on your system. Please check"), "no usable GPU"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_missing_gpu_is_recognised_in_one_line(error, part):
    reason = missing_gpu_in_error(error)
    assert reason is not None
    assert part in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'cupy'"),
        ImportError("cannot import name 'kernel' from 'mine'"),
        ImportError("libfoo.so.1: cannot open shared object file: No such file or directory"),
        RuntimeError("no CUDA-capable device is detected"),  # anybody's RuntimeError
        exception("mine", "CudaSupportError", "driver cannot be found", ImportError),
        exception(NUMBA_DRIVER, "CudaAPIError", "[700] CUDA_ERROR_ILLEGAL_ADDRESS"),
        exception("pycuda._driver", "LogicError", "cuModuleLoadDataEx failed: invalid device context"),
        exception(*NO_SUPPORT, "a card of compute capability < (5, 0)", ImportError),
        TypeError("unsupported operand"),
        AssertionError("libcuda.so"),
    ],
    ids=str,
)
def test_a_bug_or_an_unrelated_missing_module_stays_loud(error):
    assert missing_gpu_in_error(error) is None


def raised_from(outer, cause):
    outer.__cause__ = cause
    return outer


NO_DRIVER = ImportError("libcuda.so.1: cannot open shared object file")


def test_pytests_own_wrapper_and_cupys_are_looked_through():
    collect_error = exception("_pytest.nodes", "CollectError", "ImportError while importing test module")
    assert missing_gpu_in_error(raised_from(collect_error, NO_DRIVER)) is not None
    assert missing_gpu_in_error(raised_from(ImportError("CuPy is not installed"), NO_DRIVER)) is not None


def test_a_bug_in_the_users_own_handling_of_a_missing_gpu_stays_loud():
    assert missing_gpu_in_error(raised_from(KeyError("fallback"), NO_DRIVER)) is None
    broken_fallback = ImportError("my fallback is broken")
    broken_fallback.__context__ = NO_DRIVER
    assert missing_gpu_in_error(broken_fallback) is None
