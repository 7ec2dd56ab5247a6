"""Stands in for the device in Triton and PyTorch: launches are recorded, and compiled by Triton itself.

Arrays on the device are PyTorch's fake tensors: they have a shape, strides, a dtype and the device "cuda", but no
memory. Tensors on the host stay real until something that a device computes flows into them. Host code that asks for
a result fails by itself. Triton sees fake tensors as it sees real ones, so it specialises a kernel as on a device.

Tried with Triton 3.6, 3.7, 3.8 and 3.9, PyTorch 2.13 (built without CUDA) and 2.14 (built with it, no driver).
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import functools
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_gpukern.code.launches import CannotBeKnown, Compiled, DoesNotCompile, Launch

OLDEST = {"triton": "3.6", "torch": "2.9"}
"""What the extra `triton` asks for."""

# What host code is told about the device: those of an H100 or H200 (SXM), whatever is compiled for.
_CAPABILITY = (9, 0)
_PROPERTIES = {
    "name": "NVIDIA H100 (none: machine code only)",
    "major": _CAPABILITY[0],
    "minor": _CAPABILITY[1],
    "total_memory": 80 << 30,
    "multi_processor_count": 132,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
    "L2_cache_size": 50 << 20,
    "warp_size": 32,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
}
_TRITONS_PROPERTIES = {
    "max_shared_mem": _PROPERTIES["shared_memory_per_block_optin"],
    "max_num_regs": _PROPERTIES["regs_per_multiprocessor"],
    "multiprocessor_count": _PROPERTIES["multi_processor_count"],
    "warpSize": _PROPERTIES["warp_size"],
    "sm_clock_rate": 1_980_000,
    "mem_clock_rate": 2_619_000,
    "mem_bus_width": 5120,
}
_MOST_SHARED_KB = {70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227}
_MOST_SHARED_KB |= {100: 227, 101: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""KB of shared memory that a block may ask for (CUDA C++ Programming Guide, Compute Capabilities)."""
_MOST_THREADS = 1024

_UNKNOWN = (
    (r"\.numpy\(\) is not supported for tensor subclasses", "reads the contents of an array of the device"),
    (
        r"hasPrimaryContext|Cannot access accelerator device",
        "runs PyTorch's backward pass, which needs a device",
    ),
    (
        r"Found no NVIDIA driver|Torch not compiled with CUDA|driver version is insufficient|without ATen_cuda"
        r"|requires CUDA support|device_count|_cuda_",
        "asks PyTorch for what only a driver knows",
    ),
)
"""How PyTorch words what only a device can answer, where its errors have no class of their own."""


class TritonStandIn:
    """Implements `StandIn` for `@triton.jit`, with `@triton.heuristics` and `@triton.autotune` around it.

    Of an autotuned kernel, which configuration is fastest cannot be measured. The first one is taken that the
    kernel's own pruning leaves, in the order of its author.

    Compile a launch while `record` is called: Triton reads a kernel's global variables as it compiles.

    Attributes:
        stream: stands for any stream of PyTorch: what it is asked to do is done at once, which is nothing.
    """

    def __init__(self) -> None:
        self.stream: Any = _Nothing()
        self._driver = _Driver()
        self._record: Callable[[Launch], None]
        self._compile: Callable[..., Any]

    def install(self, record: Callable[[Launch], None]) -> None:
        """Takes the device's place in this process for good, in the calling thread, for all launches of Triton.

        Raises:
            ImportError: PyTorch or Triton is missing, too old, or interprets kernels.
        """
        _check_versions()
        import torch
        from triton import knobs
        from triton.runtime import driver
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        if knobs.runtime.interpret:
            raise ImportError(
                "TRITON_INTERPRET is set: Triton would interpret kernels; unset it to compile them"
            )
        self._record = record
        _fake_device(torch, self.stream)
        driver.set_active(self._driver)
        self._compile = JITFunction.run
        JITFunction.run = lambda function, *args, **options: self._launch(function, args, **options)
        # All configurations take equally long, and the first of the fastest is chosen. Triton's record of real
        # times on disk (`cache_results`) must neither decide nor get these.
        Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
        Autotuner.check_disk_cache = lambda tuner, key, configs, benchmark: bool(benchmark())

    def given(self, array: Any) -> Any:
        """Returns a tensor on the device with dtype, strides and alignment of an array of NumPy, without contents.

        Its address modulo 16 is the array's, since Triton compiles another kernel for one that is not aligned.
        """
        import torch

        dtype = getattr(torch, array.dtype.name)
        skipped = array.ctypes.data % 16 // array.itemsize
        strides = [stride // array.itemsize for stride in array.strides]
        reach = sum((length - 1) * stride for length, stride in zip(array.shape, strides, strict=True))
        memory = torch.empty(skipped + (reach + 1 if array.size else 0), dtype=dtype, device="cuda")
        return memory.as_strided(array.shape, strides, skipped)

    def why_unknown(self, error: BaseException) -> str | None:
        """Says why an error of the user's code means `CannotBeKnown`, or returns None."""
        from torch._subclasses import fake_tensor as fake

        for cause in _with_causes(error):
            if isinstance(cause, CannotBeKnown):
                return str(cause)
            if isinstance(cause, (fake.DataDependentOutputException, fake.DynamicOutputShapeException)):
                return f"host code reads the contents of an array of the device (by {cause.func})"
            if isinstance(cause, (fake.UnsupportedOperatorException, fake.UnsupportedFakeTensorException)):
                return f"PyTorch does not know the result's shape without a device ({cause})"
            if isinstance(cause, (RuntimeError, AssertionError, AttributeError)):
                for pattern, reason in _UNKNOWN:
                    if re.search(pattern, str(cause)):
                        return f"host code {reason}"
        return None

    def _launch(
        self, function: Any, args: tuple[Any, ...], *, grid: Any, warmup: bool, **options: Any
    ) -> Any:
        """Stands in for `JITFunction.run`."""
        if warmup:
            return _Launched()
        held = [_held(value, number) for number, value in enumerate(args)]
        options = {name: _held(value, name) for name, value in options.items()}
        if callable(grid):
            named = {name: value for name, value in options.items() if name in function.signature.parameters}
            bound = function.signature.bind(*args, **named)
            bound.apply_defaults()
            grid = grid(dict(bound.arguments))
        x, y, z = (*grid, 1, 1)[:3]
        blocks = (int(x) * (options.get("num_ctas") or 1), int(y), int(z))
        if math.prod(blocks):  # else Triton launches nothing
            compiled = functools.partial(self._compiled, function, held, options)
            self._record(Launch(function.__name__, blocks, compiled))
        return _Launched()

    def _compiled(
        self, function: Any, args: list[Any], options: dict[str, Any], architecture: str
    ) -> Compiled:
        self._driver.capability = int(architecture.removeprefix("sm_").rstrip("af"))
        try:
            # What Triton prints is all of the PTX, if the assembler refuses it.
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
                kernel = self._compile(function, *args, grid=(1,), warmup=True, **options)
        except Exception as error:  # noqa: BLE001 - Triton raises anything, also ValueError and AssertionError
            raise DoesNotCompile(_told(error, function)) from None
        facts = kernel.metadata
        threads = facts.num_warps * self._driver.get_current_target().warp_size
        most_kb = _MOST_SHARED_KB.get(self._driver.capability, math.inf)
        for needed, most, of_what in (
            (facts.shared, most_kb * 1024, "bytes of shared memory"),
            (threads, _MOST_THREADS, "threads"),
        ):
            if needed > most:  # what Triton asks the device as it loads a kernel
                limit = f"a block needs {needed:,} {of_what}, and {architecture} has {most:,}"
                raise DoesNotCompile(f"{_line(function)}: {limit}")
        return Compiled(kernel.kernel, kernel.name, (threads, 1, 1), facts.shared)


def _check_versions() -> None:
    from importlib import metadata

    from packaging.version import Version

    remedy = "pip install 'pytest-gpukern[triton]'"
    for library, oldest in OLDEST.items():
        try:
            version = metadata.version(library)
        except metadata.PackageNotFoundError:
            raise ImportError(f"{library} is missing; {remedy}") from None
        if Version(version) < Version(oldest):
            raise ImportError(f"{library} is {version}, and machine code needs {oldest} or newer; {remedy}")


class _Driver:
    """Stands in for Triton's driver. Triton keeps kernels by device: a device's number is its architecture's."""

    def __init__(self) -> None:
        self.capability = 10 * _CAPABILITY[0] + _CAPABILITY[1]
        self.utils = SimpleNamespace(
            get_device_properties=lambda _: dict(_TRITONS_PROPERTIES), load_binary=_Launched.load
        )
        self.launcher_cls = lambda *_: None

    def get_current_device(self) -> int:
        return self.capability

    def set_current_device(self, device: Any) -> None:
        """There is only one."""

    def get_current_stream(self, device: Any = None) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:  # noqa: ARG002
        return _CAPABILITY

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        """There is none."""


class _Launched:
    """Is what a launch returns: which kernel a device would have loaded is not known."""

    def __getattr__(self, name: str) -> Any:
        raise CannotBeKnown(f"host code asks a compiled kernel for .{name}, which differs by the device")

    @staticmethod
    def load(*_: Any) -> Any:
        raise CannotBeKnown("host code loads a compiled kernel, which needs a device")


class _Nothing:
    """Stands for a stream, an event or a graph: all that it can do is done already."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        raise CannotBeKnown("host code measures a time on the device")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _fake_device(torch: Any, stream: Any) -> None:
    """Makes PyTorch believe in a device, and make fake tensors there."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._pytree import tree_leaves

    device = torch.device("cuda", 0)
    _guard_of_cpu_build(torch)

    class Mode(FakeTensorMode):  # type: ignore[misc]
        # Else it asks torch.cuda.is_available(), and lets PyTorch initialise a device that is not there.
        avoid_device_init = True

        inside = False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if self.inside:  # what an operation is made of, such as the memory of its result
                return super().__torch_dispatch__(func, types, args, kwargs)
            kwargs = dict(kwargs or {})
            asked = kwargs.get("device")
            if asked is not None and asked.type == "meta":  # see `_guard_of_cpu_build`
                asked = kwargs["device"] = device
            on_host = (asked is None or asked.type == "cpu") and not kwargs.get("pin_memory")
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            fakes = [isinstance(tensor, FakeTensor) for tensor in tensors]
            if on_host and not any(fakes):
                return func(*args, **kwargs)  # dispatch has switched the mode off: a real computation
            if any(fakes) and not fakes[0] and func._schema.is_mutable:
                raise CannotBeKnown("host code copies what a device computes into an array of the host")
            self.inside = True
            try:
                return super().__torch_dispatch__(func, types, args, kwargs)
            finally:
                self.inside = False
                # A module that changes its dtype or device wants no weak reference to its parameters
                # (torch.utils.swap_tensors).
                self.fake_tensor_converter.tensor_memo.clear()

    def address(tensor: Any) -> int:
        # An address that is its storage's alone and, as on a device, a multiple of 256: a storage's object has
        # one of 16, as malloc gives it.
        base: int = tensor.untyped_storage()._cdata * 16
        return base + tensor.storage_offset() * tensor.element_size()

    class Generator(torch.Generator):  # type: ignore[misc]
        def __new__(cls, device: Any = None) -> Any:  # noqa: ARG004
            return super().__new__(cls, "cpu")

    FakeTensor.data_ptr = address  # PyTorch 2.13: 0, with a warning
    torch.Generator = Generator
    properties = SimpleNamespace(**_PROPERTIES)
    for module, names in {
        torch.cuda: {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "is_bf16_supported": lambda *_, **__: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda _: None,
            "_exchange_device": lambda _: 0,  # what `with torch.cuda.device(…)` calls
            "_maybe_exchange_device": lambda _: 0,
            "get_device_properties": lambda *_: properties,
            "get_device_capability": lambda *_: _CAPABILITY,
            "get_device_name": lambda *_: properties.name,
            "mem_get_info": lambda *_: (properties.total_memory, properties.total_memory),
            "init": lambda: None,
            **dict.fromkeys(("synchronize", "reset_peak_memory_stats"), lambda *_: None),
            **dict.fromkeys(("manual_seed", "manual_seed_all"), lambda _: None),
            "current_stream": lambda *_: stream,
            "default_stream": lambda *_: stream,
            "stream": lambda *_: _Nothing(),
            "graph": lambda *_, **__: _Nothing(),
            **dict.fromkeys(("Stream", "ExternalStream", "Event", "CUDAGraph"), _Nothing),
        },
        torch.accelerator: {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "current_device_index": lambda: 0,
            "synchronize": lambda *_: None,
        },
    }.items():
        for name, value in names.items():
            setattr(module, name, value)
    Mode(allow_non_fake_inputs=True).__enter__()


def _guard_of_cpu_build(torch: Any) -> None:
    """Gives a PyTorch that was built without CUDA an object that changes the current device, which does nothing.

    A build with CUDA gets one from FakeTensorMode (`torch._C._ensureCUDADeviceGuardSet`); without, even `x[1:]` of
    a fake tensor fails. That of the device "meta" does nothing, too, but calls itself "meta" where PyTorch asks for
    the current device. PyTorch's `c10/core/DeviceType.h` numbers the devices: CUDA is 1, Meta is 14.
    """
    if torch.backends.cuda.is_built():
        return
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * 15).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError):
        raise ImportError(
            f"torch {torch.__version__} was built without CUDA, and its libc10 is none that we know; "
            "pip install 'pytest-gpukern[triton]' brings one that was built with it and needs no driver"
        ) from None
    guards[1] = guards[1] or guards[14]


def _held(value: Any, place: int | str) -> Any:
    """Returns an argument as it is now: a configuration's hook may change a tensor descriptor before a launch."""
    if getattr(getattr(value, "device", None), "type", "cuda") == "cpu":  # said as Triton's launcher says it
        raise ValueError(f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)")
    return copy.copy(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _told(error: BaseException, kernel: Any) -> str:
    """Returns what Triton says of a kernel, behind the innermost line of the user that it names."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.jit import _triton_jit_function_registry

    place, message = _line(kernel), ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CompilationError):
            said = cause.error_message  # its text repeats the source, down to the line
            known = (kernel, *_triton_jit_function_registry.values())
            of = next((function for function in known if function.src == cause.src), None)
            if of is not None and hasattr(cause.node, "lineno") and not of.module.startswith("triton."):
                place = f"{of.file_name}:{of.def_file_line_number + cause.node.lineno - 1}"
        else:
            said = str(cause) or type(cause).__name__
        message, cause = said or message, cause.__cause__
    refused = re.findall(r"^ptxas\S* .*?(?:error|fatal)\s*: (?!Ptx assembly)(.*)$", message, re.MULTILINE)
    return f"{place}: in {kernel.__name__}: {'; '.join(refused) or message.strip()}"


def _line(kernel: Any) -> str:
    return f"{kernel.file_name}:{kernel.def_file_line_number}"


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
