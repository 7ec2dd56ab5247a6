"""Runs PyTorch, and Triton, also in its interpreter; says what a launch of Triton was given wrongly."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_gpukern.arrays.compare import is_narrow
from pytest_gpukern.backends.backend import Backend
from pytest_gpukern.backends.foreign_array import UsersArray, may_be_array, type_name, users_array
from pytest_gpukern.backends.gpu_backend import CudaWorkspace, GpuBackend
from pytest_gpukern.backends.host import HostWorkspace
from pytest_gpukern.gpu.runtime import DeviceArray
from pytest_gpukern.gpu.simulator.switch import OPTION, TRITON_VARIABLE


class TorchWorkspace(CudaWorkspace):
    """Holds CUDA tensors."""

    def _taken(self, output: str, value: Any) -> UsersArray | None:
        """Takes a CUDA tensor with values of its own.

        A tensor that is conjugated or negated by a flag is computed when it is read. One that requires a
        gradient keeps the graph of its computation.
        """
        if value.requires_grad or value.is_conj() or value.is_neg():
            return None
        return super()._taken(output, value)


class TorchBackend(GpuBackend):
    """Runs PyTorch; arrays are CUDA tensors, and the timed stream is current during a launch.

    Raises:
        ImportError: PyTorch does not import.
        RuntimeError: this PyTorch was built without CUDA, or for another driver.
    """

    name = "torch"
    workspace_type = TorchWorkspace

    def __init__(self) -> None:
        super().__init__()
        import torch

        if not torch.backends.cuda.is_built():
            raise RuntimeError(f"torch {torch.__version__} was built without CUDA; install a build with it")
        torch.cuda.init()  # says here what is wrong with the driver
        self._torch = torch
        self.stream = torch.cuda.ExternalStream(int(self.timed_stream.handle))

    def current(self) -> AbstractContextManager[Any]:
        return self._torch.cuda.stream(self.stream)  # type: ignore[no-any-return]

    def release(self) -> None:
        self._torch.cuda.empty_cache()

    def wrap(self, array: DeviceArray) -> Any:
        if not is_narrow(array.dtype):
            return self._torch.as_tensor(array, device="cuda")
        raw = {**array.__cuda_array_interface__, "typestr": f"<i{array.dtype.itemsize}"}
        stored = self._torch.as_tensor(SimpleNamespace(__cuda_array_interface__=raw), device="cuda")
        return stored.view(getattr(self._torch, array.dtype.name))


class TritonBackend(TorchBackend):
    """Runs Triton on CUDA tensors; the timed stream is PyTorch's current one, to which Triton launches."""

    name = "triton"

    def __init__(self) -> None:
        super().__init__()
        import triton  # noqa: F401 - so that a broken one is the reason, and not an error of the variant


class InterpretedWorkspace(HostWorkspace):
    """Holds tensors on the memory of a host workspace, so that writes beside them hit its guard zones."""

    def _given(self, array: np.ndarray[Any, Any]) -> Any:
        import torch

        if not is_narrow(array.dtype):
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))

    def _taken(self, output: str, value: Any) -> UsersArray | None:
        lies = None if value.requires_grad or value.device.type != "cpu" else users_array(value)
        if lies is None or lies.host is None:
            return None
        return super()._taken(output, lies.host.view(lies.read_as[0]) if lies.read_as else lies.host)


class InterpretedBackend(Backend):
    """Runs Triton's kernels in its interpreter, one program after the other, on tensors of the host.

    Raises:
        RuntimeError: Triton was imported before the interpreter was switched on.
    """

    name = "triton"
    simulated = True
    workspace_type = InterpretedWorkspace

    def __init__(self) -> None:
        import torch  # noqa: F401 - its tensors are the arguments
        import triton.language
        from triton.runtime.interpreter import InterpretedFunction

        if not isinstance(triton.language.zeros, InterpretedFunction):  # decorated as Triton is imported
            raise RuntimeError(
                f"Triton was imported before {OPTION} could switch its interpreter on; set "
                f"{TRITON_VARIABLE}=1 in the environment before Python starts"
            )


_LAUNCHES = "triton.runtime.jit"
"""The module whose `kernel[grid]` returns a function of a launch's arguments."""


def why_not_launched(error: BaseException) -> str | None:
    """Says what a launch of a Triton kernel was given wrongly, if that led to an error; else returns None.

    Triton finds out far behind the launch, and tells it in words about its own objects.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__ if "triton" in sys.modules else None):
        launch = frame.f_locals if frame.f_globals.get("__name__") == _LAUNCHES else {}
        if {"self", "args", "kwargs"} <= launch.keys():
            return "; ".join(_given_wrongly(launch["self"], launch["args"], launch["kwargs"])) or None
    return None


def _given_wrongly(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Says what is wrong with each argument of a launch, and what to write instead."""
    names, chosen, computed = getattr(kernel, "arg_names", ()), set[str](), set[str]()
    while not inspect.isfunction(kernel) and hasattr(kernel, "fn"):
        for each in getattr(kernel, "configs", ()):
            chosen |= each.all_kwargs().keys()
        computed |= {*getattr(kernel, "values", ())}  # of triton.heuristics
        kernel = kernel.fn
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    label = getattr(kernel, "__name__", "the kernel")
    for name in sorted(chosen & given.keys()):
        remedy = f"leave it out of the call, or {name} out of each triton.Config"
        yield f"{label}: {name}={given[name]!r:.40} is given, but triton.autotune chooses it: {remedy}"
    arrays = [name for name, of in given.items() if may_be_array(of) and not hasattr(of, "data_ptr")]
    if arrays:
        are = f"{', '.join(arrays)} {'are' if len(arrays) > 1 else 'is'} {type_name(given[arrays[0]])}"
        remedy = f"pass torch.as_tensor({arrays[0]}), on a GPU with device='cuda'"
        yield f"{label}: {are}, but Triton's kernels take tensors of PyTorch: {remedy}"
    needed = inspect.signature(kernel).parameters.values() if inspect.isfunction(kernel) else ()
    there = {*given, *chosen, *computed}
    missing = [of.name for of in needed if of.default is of.empty and of.name not in there]
    if missing:
        yield f"{label}: no {', '.join(missing)} is given: pass it in the call, such as {missing[0]}=…"
