"""Runs Triton's kernels on a real GPU, and in Triton's interpreter where Numba's simulator is on."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_gpukern.arrays.compare import is_narrow
from pytest_gpukern.backends.backend import Backend, Form
from pytest_gpukern.backends.foreign_array import users_array
from pytest_gpukern.backends.host import HostWorkspace
from pytest_gpukern.backends.torch import TorchBackend
from pytest_gpukern.gpu.simulator.switch import OPTION, TRITON_VARIABLE


class TritonBackend(TorchBackend):
    """Runs Triton on CUDA tensors; the timed stream is PyTorch's current one, to which Triton launches.

    Raises:
        ImportError: Triton or PyTorch does not import.
        RuntimeError: this PyTorch was built without CUDA, or for another driver.
    """

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

    def adopt(self, output: str, value: Any) -> Form | None:
        if type(value) is not self.array_type or value.requires_grad or value.device.type != "cpu":
            return None
        lies = users_array(value)
        assert lies is not None
        assert lies.host is not None
        return self._bind(output, lies.host.view(lies.read_as[0]) if lies.read_as else lies.host)


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
