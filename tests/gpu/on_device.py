"""What tests on the device share: backends that are there, sources of kernels, arrays of each library."""

import functools

import pytest

SPIN = r"""
extern "C" __global__ void spin(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""

LIBRARIES = """
import numpy as np
import pytest
from numba import cuda

def of_numba(array):
    return cuda.to_device(array)

def of_cupy(array):
    return pytest.importorskip("cupy").asarray(array)

def of_torch(array):
    return pytest.importorskip("torch").as_tensor(array, device="cuda")

libraries = pytest.mark.parametrize("made", [of_numba, of_cupy, of_torch])
"""
"""The beginning of a test module: `made(array)` is the array on the device, by each library in turn."""


@functools.cache
def _opened(name):
    from pytest_gpukern.backends.backend import open_backend

    return open_backend(name, simulated=False)


def skip_without(name):
    """Skips a test where the library of a backend is missing."""
    from pytest_gpukern.values.backend_table import missing_library

    if missing_library(name):
        pytest.skip(missing_library(name))


def opened(name):
    """Returns a backend, or skips the test if its library is missing; if that is there, it must open."""
    skip_without(name)
    return _opened(name)
