"""A kernel for each tool of compute-sanitizer, with the fault that it is there to find."""

from __future__ import annotations

from pytest_gpukern.gpu.runtime import DeviceArray, runtime

THREADS = 64
"""Of the one block: two warps."""

SOURCE = r"""
extern "C" __global__ void gpukern_memcheck(int *data, int count) {
  if (threadIdx.x == blockDim.x - 1) data[count] = 1;  // behind the end
}
extern "C" __global__ void gpukern_racecheck(int *data, int count) {
  __shared__ volatile int held[64];
  held[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = held[count - 1 - threadIdx.x];  // without waiting for the other warp
}
extern "C" __global__ void gpukern_initcheck(int *data, int count) {
  data[threadIdx.x] += count;  // which nobody has written
}
extern "C" __global__ void gpukern_synccheck(int *data, int count) {
  if (data[threadIdx.x] + threadIdx.x < count / 4) __syncthreads();  // a quarter of the threads
  data[threadIdx.x] = count;
}
"""


def commit(tool: str) -> None:
    """Launches the kernel with the fault that `tool` finds, and waits for it.

    Raises:
        Exception: whatever is left of the context says, which a tool may have ended by then.
    """
    import numpy as np
    from cuda.core import LaunchConfig, launch

    device = runtime()
    data = DeviceArray((THREADS,), np.int32)
    if tool != "initcheck":
        data.fill(0)
    kernel = device.kernel(SOURCE, f"gpukern_{tool}")
    config = LaunchConfig(grid=1, block=THREADS)
    device.synchronize()
    launch(device.stream, config, kernel, data.pointer, np.int32(THREADS))
    device.synchronize()
