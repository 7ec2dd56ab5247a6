"""CUDA C++ compiled by the host's compiler and executed there, and the layer under it, in host memory.

A block's threads are the host's where they wait for each other, and take turns where they do not.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
from host_cuda import HostArray, put_module

COMPILER = shutil.which("g++")

_LANGUAGE = r"""
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
struct Position { unsigned x; };
static thread_local Position threadIdx, blockIdx;
static Position blockDim, gridDim;
static std::barrier<> *together;
struct uint4 { unsigned x, y, z, w; };
#define __global__
#define __device__ static
#define __shared__ static
static void __syncthreads() { together->arrive_and_wait(); }
template <typename T> T atomicAdd(T *at, T more) { return __atomic_fetch_add(at, more, __ATOMIC_SEQ_CST); }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static long long __double_as_longlong(double value) { long long bits; memcpy(&bits, &value, 8); return bits; }
"""

_LAUNCH = r"""
// Pointers and whole numbers all travel in the same registers.
typedef void (*Kernel)(u64, u64, u64, u64, u64, u64);
extern "C" void host_launch(Kernel kernel, unsigned grid, unsigned block, int waiting, const u64 *a) {
  gridDim.x = grid; blockDim.x = block;
  auto one = [&](unsigned b, unsigned t) {
    blockIdx.x = b; threadIdx.x = t;
    kernel(a[0], a[1], a[2], a[3], a[4], a[5]);
  };
  std::barrier<> barrier(block);
  together = &barrier;
  for (unsigned b = 0; b < grid; ++b) {
    if (!waiting) {
      for (unsigned t = 0; t < block; ++t) one(b, t);
      continue;
    }
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < block; ++t) threads.emplace_back(one, b, t);
    for (auto &thread : threads) thread.join();
  }
}
"""


class HostCuda:
    """As `backends.cuda.CudaRuntime`, executing on the host.

    Attributes:
        launched: names of the kernels launched, in order.
        changed: name of a kernel → takes its arguments, returns others.
    """

    multiprocessors = 2

    def __init__(self, source, folder):
        (folder / "kernels.cpp").write_text(_LANGUAGE + source + _LAUNCH, encoding="utf-8")
        command = [COMPILER, "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread", "kernels.cpp"]
        subprocess.run([*command, "-o", "kernels.so"], cwd=folder, check=True)
        self._library = ctypes.CDLL(str(folder / "kernels.so"))
        self._waiting = {name for name, text in _kernels(source) if "__syncthreads" in text}
        self.stream = SimpleNamespace(handle=0x5100)
        self.launched = []
        self.changed = {}

    def kernel(self, source, name):
        return name

    def execute(self, stream, config, name, *arguments):
        arguments = self.changed.get(name, lambda *given: given)(*arguments)
        values = [int(argument) for argument in arguments]
        kernel = ctypes.cast(getattr(self._library, name), ctypes.c_void_p)
        self._library.host_launch(
            kernel,
            ctypes.c_uint(config.grid),
            ctypes.c_uint(config.block),
            name in self._waiting,
            (ctypes.c_ulonglong * 6)(*values, *itertools.repeat(0, 6 - len(values))),
        )
        self.launched.append(name)

    def launch(self, name, threads, *arguments):
        self.execute(self.stream, SimpleNamespace(grid=4, block=64), name, *arguments)

    def synchronize(self):
        """Nothing is ever under way."""


def _kernels(source):
    """(name, text) of each kernel."""
    for text in source.split("__global__ void ")[1:]:
        yield text.partition("(")[0], text


def install(monkeypatch, module, host):
    """Puts the host under a module of kernels; `cuda.core` and CuPy too."""

    def driver_call(call, *arguments):
        assert call == "cuMemcpyDtoDAsync", call
        target, source, size, stream = arguments
        assert stream == host.stream.handle
        ctypes.memmove(target, source, size)

    monkeypatch.setattr(module, "runtime", lambda: host)
    monkeypatch.setattr(module, "DeviceArray", Array)
    monkeypatch.setattr(module, "checked", driver_call)
    put_module(monkeypatch, "cuda.core", launch=host.execute, LaunchConfig=SimpleNamespace)
    put_module(
        monkeypatch,
        "cupy",
        asarray=lambda array: array.contents,
        matmul=lambda a, b, out: np.matmul(a, b, out=out),
    )


class Array(HostArray):
    """As `backends.cuda.DeviceArray`, downloads included."""

    def download(self):
        return self.contents.copy()
