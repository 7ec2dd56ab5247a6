"""What the backends on a real GPU have in common."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pytest_gpukern.gpu.runtime import runtime


class GpuBackend:
    """A library on the runtime's context; its stream is the runtime's, unless it takes no foreign one."""

    on_gpu = True
    simulated = False
    notes: tuple[str, ...] = ()

    @property
    def timed_stream(self) -> Any:
        """The runtime's stream."""
        return runtime().stream

    def current(self) -> AbstractContextManager[Any]:
        """Nothing, unless the library launches elsewhere by default."""
        return nullcontext()

    def preparing(self) -> AbstractContextManager[Any]:
        """As while launching."""
        return self.current()

    def synchronize(self) -> None:
        """Waits for the whole device."""
        runtime().synchronize()
