"""Stands in for the device in Triton and PyTorch: launches are recorded, and compiled by Triton itself.

Arrays on the device are PyTorch's fake tensors: they have a shape, strides, a dtype and the device "cuda",
but no memory. Tensors on the host stay real until something that a device computes flows into them. Host code
that asks for a result fails by itself. Triton specialises a kernel for fake tensors as for a device's own.

Tried with Triton 3.6, 3.7, 3.8 and 3.9, and PyTorch 2.14 (built with CUDA, no driver).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from pytest_gpukern.code.launches import (
    H200,
    CannotBeKnown,
    CapturedLaunch,
    Compiled,
    DoesNotCompile,
    StandIn,
    Unknown,
    capability,
    require,
)
from pytest_gpukern.gpu.kernel_facts import configuration
from pytest_gpukern.gpu.theory import MULTIPROCESSORS
from pytest_gpukern.problems.call_by_name import place_of
from pytest_gpukern.values.note import DEVICE_OF_TENSORS

_OLDEST = {"triton": "3.6", "torch": "2.9"}  # what the extra `triton` asks for
_REMEDY = "pip install 'pytest-gpukern[triton]', or leave Triton out by --gpukern-backend"

# What host code is told about the device, whatever is compiled for: figures of an H200 (SXM).
_CAPABILITY = (9, 0)
_PROPERTIES = {  # PyTorch's names and Triton's
    "name": H200.name,
    "major": _CAPABILITY[0],
    "minor": _CAPABILITY[1],
    "total_memory": H200.memory_bytes,
    "multi_processor_count": H200.multiprocessors,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
    "warp_size": 32,
    "max_shared_mem": 227 << 10,
    "max_num_regs": 65536,
    "multiprocessor_count": H200.multiprocessors,
    "warpSize": 32,
}
_READS = "host code reads the contents of an array of the device"
_UNKNOWN = {
    r"\.numpy\(\) is not supported for tensor subclasses": _READS,
    "hasPrimaryContext|accelerator device": "PyTorch's backward pass needs a device",
    "NVIDIA driver|CUDA driver|with CUDA|ATen_cuda|requires CUDA|'_cuda_": "host code asks for a CUDA driver",
}
"""How PyTorch words what only a device can answer, where its error has no class of its own."""


class TritonStandIn(StandIn):
    """Stands in for the device of `@triton.jit`, with `@triton.heuristics` and `@triton.autotune` around it.

    Which configuration of an autotuned kernel is fastest cannot be measured. We take the one on record, else
    the first that the kernel's own pruning leaves, in its author's order.

    Compile a launch within `record`: Triton reads a kernel's global variables as it compiles.
    """

    def __init__(self) -> None:
        self.stream: Any = _Nothing()
        self._driver: Any
        self._record: Callable[[CapturedLaunch], None]
        self._compile: Callable[..., Any]
        self._chosen: Mapping[str, Mapping[str, str]] = {}
        self._tuners: list[Any] = []

    def install(self, record: Callable[[CapturedLaunch], None]) -> None:
        """Takes the device's place for good: of PyTorch in this thread, of Triton in this process.

        Raises:
            ImportError: PyTorch or Triton is missing or too old, PyTorch was built without CUDA, or Triton
                interprets kernels.
        """
        for library, oldest in _OLDEST.items():
            require(library, oldest, None, "triton")
        import torch
        from triton import knobs
        from triton.runtime import driver
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        if knobs.runtime.interpret:
            raise ImportError("TRITON_INTERPRET is set, so Triton compiles nothing; unset it")
        if not torch.backends.cuda.is_built():  # where even `x[1:]` of a fake tensor fails
            why = f"torch {torch.__version__} was built without CUDA; a build with it needs no driver"
            raise ImportError(f"{why}: {_REMEDY}")
        _install_fake_device(self.stream)
        self._record, self._driver, self._compile = record, _driver(), JITFunction.run
        driver.set_active(self._driver)
        JITFunction.run = lambda function, *args, **options: self._launch(function, args, **options)
        # Of equally fast ones Triton takes the first. It neither reads nor keeps times on disk.
        Autotuner._bench = lambda tuner, *_, config, **__: [self._time_of(tuner, config)] * 3
        Autotuner.check_disk_cache = lambda _tuner, _key, _configs, benchmark: bool(benchmark())

    def choose(self, autotuned: Mapping[str, Mapping[str, str]]) -> None:
        """Has kernels tuned anew, so that each takes its configuration."""
        self._chosen = autotuned
        for tuner in self._tuners:
            tuner.cache.clear()
        self._tuners.clear()

    def _time_of(self, tuner: Any, config: Any) -> float:
        self._tuners.append(tuner)
        return float(configuration(config) != self._chosen.get(tuner.base_fn.__name__))

    def given(self, array: Any) -> Any:
        """Returns a tensor on the device with an array's dtype, strides and alignment, without its contents.

        Its address modulo 16 is the array's: for one that is not aligned Triton compiles another kernel.
        """
        import torch

        skipped = array.ctypes.data % 16 // array.itemsize
        strides = [stride // array.itemsize for stride in array.strides]
        last = sum((length - 1) * stride for length, stride in zip(array.shape, strides, strict=True))
        length = skipped + (last + 1) * (array.size > 0)
        memory = torch.empty(length, dtype=getattr(torch, array.dtype.name), device="cuda")
        return memory.as_strided(array.shape, strides, skipped)

    def why_unknown(self, error: BaseException) -> str | None:
        """Says why an error of the user's code means `CannotBeKnown`, or returns None."""
        from torch._subclasses import fake_tensor as fake

        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, CannotBeKnown):
                return str(cause)
            if isinstance(cause, (fake.DataDependentOutputException, fake.DynamicOutputShapeException)):
                return f"{_READS} (by {cause.func})"
            if isinstance(cause, (fake.UnsupportedOperatorException, fake.UnsupportedFakeTensorException)):
                return f"PyTorch does not know a result's shape without a device ({cause})"
            if isinstance(cause, (RuntimeError, AssertionError, AttributeError)):
                for words, reason in _UNKNOWN.items():
                    if re.search(words, str(cause)):
                        return reason
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        return None

    def _launch(self, function: Any, args: Any, *, grid: Any, warmup: bool, **options: Any) -> Any:
        """Stands in for `JITFunction.run`."""
        if warmup:
            return Unknown("a compiled kernel")
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
            self._record(CapturedLaunch(function.__name__, blocks, compiled, ("triton",)))
        return Unknown("a compiled kernel")

    def _compiled(self, function: Any, args: Any, options: dict[str, Any], architecture: str) -> Compiled:
        major, minor = capability(architecture)
        self._driver.capability = 10 * major + minor
        try:
            # Triton prints all of the PTX if the assembler refuses it.
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
                kernel = self._compile(function, *args, grid=(1,), warmup=True, **options)
        except Exception as error:  # noqa: BLE001 - of Triton: also ValueError, KeyError and AssertionError
            raise DoesNotCompile(_message(error, function)) from None
        shared, threads = kernel.metadata.shared, kernel.metadata.num_warps * 32
        limits = MULTIPROCESSORS.get((major, minor))
        # From 8.0 on the driver keeps a KiB of each block (CUDA C++ Programming Guide, Compute Capabilities).
        most = (limits.shared_kib - (major >= 8)) * 1024 if limits is not None else math.inf
        if shared > most or threads > 1024:  # what Triton asks the device as it loads a kernel
            needed = f"{shared:,} of {most:,} B of shared memory and {threads:,} of 1,024 threads"
            raise DoesNotCompile(f"{_line(function)}: a block of {function.__name__} needs {needed}")
        return Compiled(kernel.kernel, kernel.name, (threads, 1, 1), shared)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _driver() -> Any:
    """Returns what stands in for Triton's driver; `capability` is the architecture that is compiled for."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.testing import do_bench

    driver = SimpleNamespace(
        get_current_stream=_always(0),
        set_current_device=_always(None),
        get_device_capability=_always(_CAPABILITY),
        get_active_torch_device=_always(torch.device("cuda", 0)),
        get_device_interface=_always(torch.cuda),
        get_benchmarker=_always(do_bench),  # `get_empty_cache…` and `clear_cache` are what it calls
        get_empty_cache_for_benchmark=_always(None),
        clear_cache=_always(None),
        utils=SimpleNamespace(get_device_properties=_always(_PROPERTIES)),
    )
    driver.capability = 10 * _CAPABILITY[0] + _CAPABILITY[1]
    driver.get_current_device = lambda: driver.capability  # Triton keeps kernels by device
    driver.get_current_target = lambda: GPUTarget("cuda", driver.capability, 32)
    return driver


class _Nothing(contextlib.nullcontext[Any]):
    """Stands for a stream, an event or a graph: all that it can do is done already."""

    cuda_stream = 0
    query = _always(True)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def elapsed_time(self, _: Any) -> float:
        raise CannotBeKnown("host code measures a time on the device")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _always(None)


def _install_fake_device(stream: Any) -> None:
    """Makes PyTorch believe in a device, on which tensors are fake."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._pytree import tree_leaves

    class Mode(FakeTensorMode):  # type: ignore[misc]
        # Else it asks torch.cuda.is_available(), and lets PyTorch initialise a device that is not there.
        avoid_device_init = True
        inside = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.inside:  # what an operation is made of, such as the memory of its result
                return super().__torch_dispatch__(func, types, args, kwargs)
            kwargs = dict(kwargs or {})
            device = kwargs.get("device")
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            fakes = [isinstance(tensor, FakeTensor) for tensor in tensors]
            on_host = (device is None or device.type == "cpu") and not kwargs.get("pin_memory")
            if on_host and not any(fakes):
                return func(*args, **kwargs)  # dispatch has switched the mode off: a real computation
            if any(fakes) and not fakes[0] and func._schema.is_mutable:
                raise CannotBeKnown("host code copies what a device computes into an array of the host")
            self.inside = True
            try:
                return super().__torch_dispatch__(func, types, args, kwargs)
            finally:
                self.inside = False
                # A module that changes its dtype or device refuses weak references to its parameters
                # (torch.utils.swap_tensors), and the mode remembers tensors by these.
                self.fake_tensor_converter.tensor_memo.clear()

    def address(tensor: Any) -> Any:
        # Its storage's alone and, as on a device, a multiple of 256: malloc aligns a storage's object to 16.
        return tensor.untyped_storage()._cdata * 16 + tensor.storage_offset() * tensor.element_size()

    class Generator(torch.Generator):  # type: ignore[misc]
        def __new__(cls, device: Any = None) -> Any:  # noqa: ARG004
            return super().__new__(cls, "cpu")

    FakeTensor.data_ptr = address  # PyTorch 2.13 and 2.14: 0, with a warning
    torch.Generator = Generator
    properties = SimpleNamespace(**_PROPERTIES)
    for names, answer in (
        ("is_available is_initialized is_bf16_supported", True),
        ("device_count", 1),
        ("current_device current_device_index", 0),
        ("_exchange_device _maybe_exchange_device", 0),  # of `with torch.cuda.device(…)`
        ("set_device init synchronize reset_peak_memory_stats manual_seed manual_seed_all", None),
        ("get_device_properties", properties),
        ("get_device_capability", _CAPABILITY),
        ("get_device_name", properties.name),
        ("mem_get_info", (properties.total_memory, properties.total_memory)),
        ("current_stream default_stream stream graph", stream),
        ("current_accelerator", torch.device("cuda")),
    ):
        for name in names.split():
            for module in (torch.cuda, torch.accelerator):
                if hasattr(module, name):
                    setattr(module, name, _always(answer))
    for name in ("Stream", "ExternalStream", "Event", "CUDAGraph"):
        setattr(torch.cuda, name, _Nothing)
    Mode(allow_non_fake_inputs=True).__enter__()


def _held(value: Any, place: int | str) -> Any:
    """Returns an argument as it is now: the hook of a configuration may change a tensor descriptor later."""
    if getattr(getattr(value, "device", None), "type", "cuda") == "cpu":  # as Triton's launcher says it
        refused = f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)"
        raise ValueError(f"{refused}; {DEVICE_OF_TENSORS}")
    return copy.copy(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _message(error: BaseException, kernel: Any) -> str:
    """Returns what Triton says of a kernel, behind the innermost line of the user that it names."""
    from triton.compiler.errors import CompilationError

    functions = [each for each in gc.get_objects() if issubclass(type(each), type(kernel))]
    place, message = _line(kernel), ""
    cause: BaseException | None = error
    while cause is not None:
        words = str(cause) or type(cause).__name__
        if isinstance(cause, CompilationError):  # it has the source of a function, not its name or file
            words = cause.error_message or message
            function = next((each for each in functions if each.src == cause.src), None)
            if function and hasattr(cause.node, "lineno") and not function.module.startswith("triton."):
                place = _line(function, cause.node.lineno)
        message, cause = words, cause.__cause__
    refused = re.findall(r"^ptxas\S* .*?(?:error|fatal)\s*: (?!Ptx assembly)(.*)$", message, re.MULTILINE)
    return f"{place}: in {kernel.__name__}: {'; '.join(refused) or message.strip()}"


def _line(function: Any, number: int = 1) -> str:
    """Names a line of a function, counted from its `def`: what stands above it is no part of `src`."""
    above = next(count for count, line in enumerate(function.raw_src) if line.lstrip().startswith("def "))
    return place_of(function.fn.__code__.co_filename, function.starting_line_number + above + number - 1)
