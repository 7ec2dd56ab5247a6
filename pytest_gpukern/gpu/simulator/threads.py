"""Runs the threads of a simulated block in turn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from pytest_gpukern.gpu.simulator.launch import HERE, SimulatedLaunches, unwritten
from pytest_gpukern.gpu.simulator.patching import original, replace


class _Thread(greenlet):  # type: ignore[misc]
    """Runs one thread of a block until it ends or reaches a barrier.

    It has the attributes of the simulator's own thread that kernels ask for.
    """

    def __init__(self, kernel: Any, block: Any, block_index: Any, index: Any, context: Context) -> None:
        super().__init__(kernel)
        self.gr_context = context
        self._manager = block
        self.blockIdx, self.threadIdx = block_index, index
        width, height, _ = block._block_dim
        self.thread_id = index.x + width * (index.y + height * index.z)

    def syncthreads(self) -> None:
        """Lets the other threads of the block come as far."""
        self.parent.switch()

    def go_on(self, *args: Any) -> None:
        """Runs it to its next barrier; an exception names the thread, and has the same type if possible."""
        try:
            self.switch(*args)
        except Exception as error:  # noqa: BLE001 - the kernel's own, of any type
            where = f"tid={list(self.threadIdx)} ctaid={list(self.blockIdx)}"
            try:
                located = type(error)(f"{where}: {error}" if str(error) else where)
            except Exception:  # noqa: BLE001 - such as UnicodeDecodeError, which is not made of one string
                located = RuntimeError(f"{where}: {type(error).__name__}: {error}")
            located.__dict__.update(error.__dict__)  # with its notes
            inside = error.__traceback__ and error.__traceback__.tb_next  # None if it takes other arguments
            raise located.with_traceback(inside) from None


def mend_threads() -> None:
    """Runs the threads of a block in turn, each until it ends or reaches a barrier.

    In about half of a kernel's blocks and launches the last thread runs first. Shared memory holds a poison
    before it is written. So a missing barrier shows in one order or the other.

    Numba's simulator starts a thread of the operating system for each, and asks all of them in a loop whether
    they wait, which takes five to thirty times as long. It also takes a kernel for done that raised an
    exception whose type cannot be built from one string.
    """
    from numba.cuda.simulator import kernel as simulated
    from numba.cuda.simulator import kernelapi

    block_class, its_thread = original(simulated, "BlockManager"), original(simulated, "BlockThread")
    dim3 = original(kernelapi, "Dim3")

    def run(self: Any, grid_point: Sequence[int], *args: Any) -> None:
        here = dim3(*grid_point)
        with np.errstate(all="ignore", divide="raise" if self._debug else "ignore"):  # a GPU does not warn
            context = copy_context()  # a greenlet has a context of its own, and NumPy's errstate is in that
        threads = [
            _Thread(self._f, self, here, dim3(*index), context) for index in np.ndindex(*self._block_dim)
        ]
        if SimulatedLaunches.backwards != (sum(grid_point) % 2 == 1):
            threads.reverse()
        shared = HERE.kernel.shared
        shared._allocations.clear()
        shared._dynshared[:] = unwritten(shared._dynshared_size, np.byte)
        try:
            for thread in threads:
                thread.go_on(*args)
            while waiting := [thread for thread in threads if not thread.dead]:
                for thread in waiting:
                    thread.go_on()
        finally:
            for thread in threads:
                if not thread.dead:  # another one failed
                    thread.throw()

    replace(block_class, "run", run)
    for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or"):
        setattr(_Thread, name, original(its_thread, name))
    replace(kernelapi, "threading", SimpleNamespace(current_thread=getcurrent, Lock=threading.Lock))
