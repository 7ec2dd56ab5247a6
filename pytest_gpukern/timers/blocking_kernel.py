"""A kernel that keeps a stream busy until the host lets go, so that a whole batch can be queued behind it."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gpu import kernel_source as cuda_source
from pytest_gpukern.gpu.runtime import checked, runtime

if TYPE_CHECKING:
    from pytest_gpukern.gpu.runtime import CudaRuntime

_DEVICEMAP = 2  # CU_MEMHOSTALLOC_DEVICEMAP
TIMEOUT_NS = 100_000_000


class BlockingKernel:
    """Blocks a stream at a ticket; releasing a ticket releases all before it.

    The time-out turns a would-be deadlock into `timed_out`: a call behind it that waits for the device, a
    launch queue that is full, or a module that is only loaded now and waits for the context to be idle.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._kernel = runtime.kernel(cuda_source.TIMING, "gpukern_block")
        # Mapped pinned memory: [0] the last ticket released, [1] the last ticket that timed out.
        self._mailbox = int(checked("cuMemHostAlloc", 8, _DEVICEMAP))
        self._words = (ctypes.c_uint32 * 2).from_address(self._mailbox)
        self._words[0] = self._words[1] = 0
        self._ticket = 0
        self.block(runtime.stream, timeout_ns=0)  # loaded and run once before anything can be blocked
        self.release()
        runtime.synchronize()

    def block(self, stream: Any, timeout_ns: int = TIMEOUT_NS) -> None:
        """Queues the kernel on a cuda.core stream."""
        import numpy as np
        from cuda.core import LaunchConfig, launch

        self._ticket += 1
        launch(
            stream,
            LaunchConfig(grid=1, block=1),
            self._kernel,
            self._mailbox,
            np.uint32(self._ticket),
            np.uint64(timeout_ns),
            self._mailbox + 4,
        )

    def release(self) -> None:
        """Lets the stream go on."""
        self._words[0] = self._ticket

    @property
    def timed_out(self) -> bool:
        """Whether the last one ended by itself; ask once the device is idle."""
        return bool(self._words[1] == self._ticket)


@functools.cache
def blocking_kernel() -> BlockingKernel:
    """The one of this process."""
    return BlockingKernel(runtime())
