"""Numba kernels in Numba's CUDA simulator: checked like real ones, never timed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends.host import HostWorkspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.arrays.layouts import Placement
    from pytest_gpukern.backends.backend import Form
    from pytest_gpukern.problems.outputs import Output


class SimulatedWorkspace(HostWorkspace):
    """Simulator arrays over the memory of a host workspace."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> None:
        super().__init__(inputs, outputs, placed)
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        self.array_type = FakeCUDAArray
        for name in (*self._inputs, *self._outputs):
            self.arrays[name] = FakeCUDAArray(self._host[name])

    def adopt(self, output: str, value: Any) -> Form | None:
        """Takes a simulator array that a launch returned; None for anything else."""
        if type(value) is not self.array_type:
            return None
        return self._bind(output, value._ary)


class SimulatedBackend:
    """Numba's CUDA target in the simulator."""

    name = "numba"
    on_gpu = False
    simulated = True
    timed_stream = None
    notes = ()

    def __init__(self) -> None:
        from numba import cuda

        self._stream = cuda.stream()

    @property
    def stream(self) -> Any:
        """The simulator's stand-in for a stream: everything in it is synchronous."""
        return self._stream

    def workspace(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> SimulatedWorkspace:
        """Simulator arrays, inputs copied and outputs poisoned."""
        return SimulatedWorkspace(inputs, outputs, placed)

    def current(self) -> AbstractContextManager[Any]:
        """Nothing: there is one stream."""
        return nullcontext()

    def preparing(self) -> AbstractContextManager[Any]:
        """As while launching."""
        return self.current()

    def synchronize(self) -> None:
        """Nothing: a simulated launch has ended when it returns."""

    def release(self) -> None:
        """Nothing is pooled."""
