"""Declares broken variants that CUDA C++ in CuPy invites; each must be rejected for its fault."""

import cupy
import numpy as np

from .problem import vector_exp

BLOCK = 128

exp_from_one = cupy.RawKernel(
    r"""
extern "C" __global__ void exp_from_one(const float* x, float* y, const long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i - 1] = expf(x[i - 1]);
}
""",
    "exp_from_one",
)

exp_of_neighbours = cupy.RawKernel(
    r"""
extern "C" __global__ void exp_of_neighbours(const float* x, float* y, const long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = expf(x[i]);
}
""",
    "exp_of_neighbours",
)

exp_by_four_anywhere = cupy.RawKernel(
    r"""
extern "C" __global__ void exp_by_four_anywhere(const float* x, float* y, const long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long first = 4 * i;
    if (first + 3 < n) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(y)[i] = make_float4(expf(v.x), expf(v.y), expf(v.z), expf(v.w));
    } else {
        for (long long k = first; k < n; ++k)
            y[k] = expf(x[k]);
    }
}
""",
    "exp_by_four_anywhere",
)


@vector_exp.wrong("cupy", expected_fault="out of bounds")
def one_before_the_beginning(x, y, n):
    """Counts elements from one, as Fortran does, and threads from zero."""
    arguments = (x, y, np.int64(n))
    return lambda: exp_from_one((n // BLOCK + 1,), (BLOCK,), arguments)


@vector_exp.wrong("cupy", allocates=True, expected_fault="wrong strides")
def real_part_returned(x):
    """Computes in complex numbers and returns the real part, which is every second float of its memory."""
    return lambda: cupy.exp(x.astype(cupy.complex64)).real


@vector_exp.wrong("cupy", allocates=True, expected_fault="aliased")
def same_memory_each_time(x):
    """Saves an allocation: the next call overwrites what this one returned."""
    result = cupy.empty_like(x)
    return lambda: cupy.exp(x, out=result)


@vector_exp.wrong("cupy", expected_fault="out of bounds", layouts=("strided",))
def strides_ignored(x, y, n):
    """A RawKernel is given addresses only, and takes what lies there for neighbours."""
    arguments = (x, y, np.int64(n))
    return lambda: exp_of_neighbours((n // BLOCK + 1,), (BLOCK,), arguments)


# At one size, since each launch that fails costs a new process.
@vector_exp.wrong("cupy", expected_fault="launch failed", layouts=("misaligned",), at={"n": 257})
def sixteen_bytes_anywhere(x, y, n):
    """Takes every address for a multiple of 16, as those of CuPy's allocations are and those of slices not.

    The device reports a misaligned address, after which the process needs another context.
    """
    arguments = (x, y, np.int64(n))
    return lambda: exp_by_four_anywhere((n // (4 * BLOCK) + 1,), (BLOCK,), arguments)
