"""What the backends on a real GPU have in common."""

from __future__ import annotations

from typing import Any

from pytest_gpukern.backends.cuda import runtime


class GpuBackend:
    """A library on the runtime's context; its stream is the runtime's, unless it takes no foreign one."""

    on_gpu = True
    simulated = False
    notes: tuple[str, ...] = ()

    @property
    def timed_stream(self) -> Any:
        """The runtime's stream."""
        return runtime().stream

    def synchronize(self) -> None:
        """Waits for the whole device."""
        runtime().synchronize()
