"""Checks that each tool finds a planted fault here, before we believe what it says of tests.

A tool that does not know the device, may not instrument kernels or was told to filter them can end with a
summary of no errors. The check takes seconds.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes.process import end_group, started_with_us
from pytest_gpukern.sanitizer.judge import judge_folder
from pytest_gpukern.sanitizer.tool import Tool, environment_under
from pytest_gpukern.values.atomic_file import TemporaryFolder

_TIMEOUT_S = 180.0


def missed_fault(program: Tool, tool: str) -> str | None:
    """Runs the planted fault under a tool; says what the tool made of it, or None where it found it."""
    package = str(FOLDER.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    with TemporaryFolder("sanitizer") as folder:
        command = (*program.command(tool, Path(folder)), sys.executable, "-P", "-m", __spec__.name, tool)
        environ = {**os.environ, **environment_under(tool, os.environ), "PYTHONPATH": path}
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            process = started_with_us(command, environ, nowhere)
        try:
            status: int | None = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(process)
        judgement = judge_folder(Path(folder), tool, status)
    if judgement.is_in_a_kernel:
        return None
    said = "; ".join(finding.text for finding in judgement.findings)
    reason = judgement.reason or said or "it reports no error"
    return f"{tool} missed the fault that we planted to test it: {reason}"


THREADS = 64
"""Threads of the one block: two warps."""

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
    """Launches the kernel with the fault that `tool` finds, and waits; an error of the context may follow."""
    import numpy as np
    from cuda.core import LaunchConfig, launch

    from pytest_gpukern.gpu.runtime import DeviceArray, runtime

    device = runtime()
    data = DeviceArray((THREADS,), np.int32)
    if tool != "initcheck":
        data.fill(0)
    kernel = device.kernel(SOURCE, f"gpukern_{tool}")
    config = LaunchConfig(grid=1, block=THREADS)
    device.synchronize()
    launch(device.stream, config, kernel, data.pointer, np.int32(THREADS))
    device.synchronize()


if __name__ == "__main__":  # what runs under the tool
    with contextlib.suppress(Exception):  # the tool may end the context at the fault
        commit(sys.argv[1])
