"""Holds the simulator's errors, and tells from an exception whether a GPU is missing or the code is wrong."""

import textwrap
import traceback
from collections.abc import Callable
from typing import Any

from pytest_gpukern.values.backend_table import cuda_packages

VARIABLE = "NUMBA_ENABLE_CUDASIM"
_PREFIX = "not in the simulator: "


class SimulatorError(Exception):
    """The options, the environment and what is already loaded contradict each other.

    The message shows the value seen, the rule, and the remedy.
    """


class SimulatorUnsupported(Exception):  # noqa: N818 - a skip in the making, not a failure
    """Code run in the simulator used a feature that cannot be emulated there.

    `feature` names it for the user, for example ``warp shuffles (cuda.shfl_sync)``.
    """

    def __init__(self, feature: str) -> None:
        # Numba's simulated threads re-raise as type(error)("tid=… ctaid=…: " + str(error)): then the one
        # argument is a whole message that ends with the feature. We keep it.
        self.feature = feature.rpartition(_PREFIX)[2]
        super().__init__(feature if _PREFIX in feature else _PREFIX + feature)


class WroteOutside(Exception):  # noqa: N818 - a fault of the kernel, not of this plugin
    """A kernel in Triton's interpreter wrote outside its tensors: the `Damage` says where."""

    def __str__(self) -> str:
        zone = self.args[0]
        return (
            f"{zone.changed_bytes} bytes written outside {zone.array}: flat index {zone.index} of {zone.size}"
        )


# Type name → the top-level packages that define it. These errors are always about the machine.
_TYPES_THAT_MEAN_ABSENCE = {
    "CudaSupportError": {"numba", "numba_cuda_mlir"},
    "NvvmSupportError": {"numba", "numba_cuda_mlir"},
    "NvrtcSupportError": {"numba", "numba_cuda_mlir"},
    "DynamicLibNotFoundError": {"cuda"},
}
# For any other error of a library, the code in its message decides.
_CODES_OF_ABSENCE = (
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_STUB_LIBRARY",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "cudaErrorNoDevice",
    "cudaErrorInsufficientDriver",
    "cudaErrorStubLibrary",
    "no CUDA-capable device is detected",
    "driver version is insufficient for CUDA runtime version",
)
_DRIVER_LIBRARIES = ("libcuda.so", "nvcuda.dll")
_TORCH_SAYS = ("Found no NVIDIA driver on your system", "No CUDA GPUs are available")


def missing_gpu_in_error(exc: BaseException) -> str | None:
    """Says in one line why the import of a test module failed, if it failed because there is no GPU.

    Recognises errors by type name, package and message, so that we import no GPU library:
    - ``CudaSupportError`` of either Numba, and missing compiler libraries, which an eager ``@cuda.jit("…")``
      and ``@vectorize(target="cuda")`` raise at decoration without a driver;
    - the codes of CuPy, PyCUDA and cuda-python for "no device" and "driver too old";
    - an import that fails on the driver's library, and PyTorch's two sentences.
    An ``ImportError`` or pytest's ``CollectError`` is also judged by its explicit cause. Returns None for
    anything else: a bug or an unrelated missing module must stay visible.
    """
    reason = _reason(exc)
    # pytest wraps a failing import in CollectError, CuPy wraps it in ImportError. We look inside no other
    # wrapper.
    wraps = isinstance(exc, ImportError) or type(exc).__name__ == "CollectError"
    cause = exc.__cause__ if wraps else None
    if reason is None and cause is not None and cause is not exc:  # as after `raise error from error`
        return missing_gpu_in_error(cause)
    return reason and f"no GPU: {reason}"


def _reason(error: BaseException) -> str | None:
    text = textwrap.shorten(str(error).strip().removesuffix(":"), 200, placeholder="…")
    for kind in type(error).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _TYPES_THAT_MEAN_ABSENCE.get(kind.__name__, ()):
            # A card that is too old for Numba is not missing: the error stays visible.
            return None if "compute capability" in text else f"no usable GPU: {text}"
        if package in cuda_packages() and _names(text, _CODES_OF_ABSENCE):
            return f"no usable GPU: {text}"
    if isinstance(error, (ImportError, OSError)):
        lost = "cannot open shared object file" in text or "could not be found" in text.lower()
        if lost and _names(text, _DRIVER_LIBRARIES):
            return f"no CUDA driver: {text}"
    if type(error) in (RuntimeError, AssertionError) and _names(text, _TORCH_SAYS):
        return f"no usable GPU: {text}"
    return None


def meant_by(error: Any, says: Callable[[Any], object]) -> Any:
    """Returns the error of which `says` tells something: this one, or what it was raised `from`; or None.

    A group has one if each part has one. A doctest raises another error that holds the first.
    """
    if not isinstance(error, Exception):
        return None
    if isinstance(error, ExceptionGroup):
        errors = [meant_by(part, says) for part in error.exceptions]
        return errors[0] if all(errors) else None
    of_doctest = type(error).__name__ == "UnexpectedException"
    cause = vars(error)["exc_info"][1] if of_doctest else error.__cause__
    return error if says(error) else None if cause is error else meant_by(cause, says)


def refuses_simulator(error: BaseException) -> str | None:
    """Says which code refuses to start in the simulator, and what to do; its message names the variable."""
    kinds = (ImportError, OSError, RuntimeError, ValueError)
    found = meant_by(error, lambda of: isinstance(of, kinds) and VARIABLE in str(of))
    if found is None:
        return None
    places = traceback.extract_tb(found.__traceback__ or error.__traceback__)  # a cause may never be raised
    where = f"{places[-1].filename}:{places[-1].lineno}" if places else "it"
    rule = f"{where} refuses to start while {VARIABLE} is set"
    remedy = "have it ask cuda.is_available() instead, or run it on a GPU"
    return f"{rule} ({' '.join(str(found).split())}): {remedy}"


def torch_wants_gpu(error: BaseException) -> bool:
    """Says whether PyTorch refuses for want of a GPU; built for processors it does so whatever there is."""
    return _names(str(error), (*_TORCH_SAYS, "Torch not compiled with CUDA"))


def _names(text: str, candidates: tuple[str, ...]) -> bool:
    return any(candidate in text for candidate in candidates)
