"""Runs the blocks of a simulated launch, and the threads of a block, in turn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import Context, copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from pytest_gpukern.gpu.simulator.arithmetic import ROUNDS
from pytest_gpukern.gpu.simulator.launch import HERE, SimulatedLaunches, unwritten
from pytest_gpukern.gpu.simulator.patching import original, replace


class _Thread(greenlet):  # type: ignore[misc]
    """Runs one thread of a block until it ends, reaches a barrier or has looped for long.

    It has the attributes of the simulator's own thread that kernels ask for.
    """

    rounds = 0  # of its `while` loops
    loops = False  # it has stopped in a loop, and not at a barrier

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

    def pause(self) -> None:
        """Lets others go on, since a loop may wait for one of them."""
        self.loops = True
        self.parent.switch()

    def go_on(self, *args: Any) -> None:
        """Runs it to its next stop; an exception names the thread, and has the same type if possible."""
        self.loops = False
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
    """Runs blocks in turn, and the threads of a block, each until it ends or reaches a barrier.

    In about half of a kernel's launches the last block runs first, and in about half of its blocks and
    launches the last thread. Shared memory holds a poison before it is written. So a missing barrier, and
    blocks that depend on each other, show in one order or the other. A thread may wait for another in a
    `while` loop: after many rounds others go on.

    Numba's simulator starts a thread of the operating system for each, and asks all of them in a loop whether
    they wait, which takes five to thirty times as long. It also takes a kernel for done that raised an
    exception whose type cannot be built from one string.
    """
    from numba.cuda.simulator import kernel as simulated
    from numba.cuda.simulator import kernelapi

    block_class, its_thread = original(simulated, "BlockManager"), original(simulated, "BlockThread")
    dim3, shared_class = original(kernelapi, "Dim3"), original(kernelapi, "FakeCUDAShared")

    def run(self: Any, grid_point: Sequence[int], *args: Any) -> None:
        """Runs a block until it ends or has looped for long; the last call of a launch ends them all."""
        kernel, last = HERE.kernel, tuple(size - 1 for size in self._grid_dim)
        place = np.subtract(last, grid_point).tolist() if SimulatedLaunches.backwards else grid_point
        block = greenlet(partial(threads_in_turn, self, place, args))
        block.gr_context = copy_context()
        block.shared = shared_class(kernel.shared._dynshared_size)
        block.shared._dynshared[:] = unwritten(block.shared._dynshared_size, np.byte)
        blocks = vars(kernel).setdefault("blocks", [])  # those that have not ended
        blocks.append(block)
        turn = [block]
        try:
            while turn:
                for each in turn:
                    kernel._shared = each.shared
                    each.switch()
                blocks[:] = [each for each in blocks if not each.dead]
                turn = blocks[::-1] if tuple(grid_point) == last else []
        finally:
            for each in blocks if turn else ():
                if not each.dead:  # another one failed
                    each.throw()

    def threads_in_turn(block: Any, place: Sequence[int], args: Any) -> None:
        here = dim3(*place)
        with np.errstate(all="ignore", divide="raise" if block._debug else "ignore"):  # a GPU does not warn
            context = copy_context()  # a greenlet has a context of its own, and NumPy's errstate is in that
        threads = [
            _Thread(block._f, block, here, dim3(*index), context) for index in np.ndindex(*block._block_dim)
        ]
        if SimulatedLaunches.backwards != (sum(place) % 2 == 1):
            threads.reverse()
        turns = 0
        try:
            for thread in threads:
                thread.go_on(*args)
            while waiting := [thread for thread in threads if not thread.dead]:
                looping = [thread for thread in waiting if thread.loops]
                turns += bool(looping)
                if looping and turns > ROUNDS:
                    getcurrent().parent.switch()
                for thread in looping or waiting:
                    thread.go_on()
        finally:
            for thread in threads:
                if not thread.dead:  # another one failed
                    thread.throw()

    replace(block_class, "run", run)
    for name in ("syncthreads_count", "syncthreads_and", "syncthreads_or"):
        setattr(_Thread, name, original(its_thread, name))
    replace(kernelapi, "threading", SimpleNamespace(current_thread=getcurrent, Lock=threading.Lock))
