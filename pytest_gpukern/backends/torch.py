"""Runs PyTorch on a real GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from pytest_gpukern.arrays.compare import is_narrow
from pytest_gpukern.backends.backend import Form
from pytest_gpukern.backends.gpu_backend import CudaWorkspace, GpuBackend
from pytest_gpukern.gpu.runtime import DeviceArray


class TorchWorkspace(CudaWorkspace):
    """Holds CUDA tensors."""

    def adopt(self, output: str, value: Any) -> Form | None:
        """Takes a CUDA tensor with values of its own.

        A tensor that is conjugated or negated by a flag is computed when it is read. One that requires a
        gradient keeps the graph of its computation.
        """
        if type(value) is self.array_type and (value.requires_grad or value.is_conj() or value.is_neg()):
            return None
        return super().adopt(output, value)


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
