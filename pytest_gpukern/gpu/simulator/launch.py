"""Launch configurations: one launcher each, held to the hardware's limits."""

import copy
from typing import Any

from pytest_gpukern.gpu.simulator.patching import add, original, replace

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the same since 3.0.
MAX_THREADS_PER_BLOCK = 1024
MAX_BLOCK_DIM = (1024, 1024, 64)
MAX_GRID_DIM = (2**31 - 1, 65535, 65535)
# Without the opt-in that numba-cuda never makes.
MAX_SHARED_BYTES_PER_BLOCK = 49152

# On a GPU the driver picks the block of `forall`, so any will do; with whole blocks the threads beyond the
# last task exist here as there, and a kernel without a bounds check is caught.
_FORALL_BLOCK = 128


class ForAll:
    """A kernel to be launched over so many tasks, in whole blocks, as the real `forall` does."""

    def __init__(self, dispatcher: Any, ntasks: int, tpb: int, stream: Any, sharedmem: int) -> None:
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        self.dispatcher = dispatcher
        self.ntasks = ntasks
        self.thread_per_block = tpb
        self.stream = stream
        self.sharedmem = sharedmem

    def __call__(self, *args: Any) -> None:
        """Launch over the tasks; nothing for none."""
        if self.ntasks == 0:
            return
        block = self.thread_per_block or _FORALL_BLOCK
        grid = (self.ntasks + block - 1) // block
        self.dispatcher[grid, block, self.stream, self.sharedmem](*args)


def launch_fault(grid: tuple[int, ...], block: tuple[int, ...], dynamic_shared_bytes: int) -> str | None:
    """Say which limit of the hardware a launch breaks, or None."""
    for what, sizes, limits in (("grid", grid, MAX_GRID_DIM), ("block", block, MAX_BLOCK_DIM)):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if not 1 <= size <= limit:
                return f"{what}.{axis} is {size}; it must be between 1 and {limit}"
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS_PER_BLOCK:
        return f"{threads} threads in a block; the limit is {MAX_THREADS_PER_BLOCK}"
    if not 0 <= dynamic_shared_bytes <= MAX_SHARED_BYTES_PER_BLOCK:
        return (
            f"{dynamic_shared_bytes} bytes of dynamic shared memory; the limit is "
            f"{MAX_SHARED_BYTES_PER_BLOCK}"
        )
    return None


def mend_launches() -> None:
    """Make each `kernel[grid, block]` a launcher of its own, and refuse what no GPU would launch.

    Numba's fake kernel stores the configuration in itself and returns itself, so of two launchers held at
    once both run with the later configuration. It also launches any number of threads, and none for an empty
    grid, where a GPU answers CUDA_ERROR_INVALID_VALUE.
    """
    from numba.cuda.simulator import kernel as simulated
    from numba.cuda.simulator.cudadrv import driver

    fake = original(simulated, "FakeCUDAKernel")
    current_context = original(simulated, "_get_kernel_context")
    # The class that tests would catch, which is no ValueError; and a ValueError, which is what it is.
    invalid_value = type("CudaAPIError", (original(driver, "CudaAPIError"), ValueError), {"code": 1})
    run = original(fake, "__call__")

    def call(self: Any, *args: Any) -> Any:
        from_host = not self._device and current_context() is None
        if from_host and self.grid_dim is not None:
            fault = launch_fault(self.grid_dim, self.block_dim, self.dynshared_size)
            if fault is not None:
                raise invalid_value(
                    f"[1] Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE: {fault}"
                )
        return run(self, *args)

    def getitem(self: Any, configuration: Any) -> Any:
        if len(configuration) not in (2, 3, 4):
            raise ValueError("must specify at least the griddim and blockdim")
        return configure(self, *configuration)

    def forall(self: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> ForAll:
        return ForAll(self, ntasks, tpb, stream, sharedmem)

    replace(fake, "__call__", call)
    replace(fake, "__getitem__", getitem)
    replace(fake, "forall", forall)
    add(fake, "configure", configure)
    add(fake, "simulated", True)


def configure(kernel: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
    """Return a copy of a fake kernel that holds this launch configuration.

    It carries the attributes of the fake (`grid_dim`, …) and of the real launcher (`griddim`, …).
    """
    from numba.cuda.errors import normalize_kernel_dimensions

    launcher = copy.copy(kernel)
    launcher.dispatcher = getattr(kernel, "dispatcher", kernel)
    launcher.griddim, launcher.blockdim = normalize_kernel_dimensions(griddim, blockdim)
    launcher.grid_dim, launcher.block_dim = launcher.griddim, launcher.blockdim
    launcher.stream = stream
    launcher.sharedmem = launcher.dynshared_size = sharedmem
    return launcher
