"""Uses CuPy: its own element-wise exponential, and CUDA C++ with 16-byte accesses."""

import cupy
import numpy as np

from .problem import vector_exp

SOURCE = r"""
extern "C" __global__ void exp_by_four(const float* __restrict__ x, float* __restrict__ y, const long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long first = 4 * i;
    if (first + 3 < n) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        v.x = expf(v.x);
        v.y = expf(v.y);
        v.z = expf(v.z);
        v.w = expf(v.w);
        reinterpret_cast<float4*>(y)[i] = v;
    } else {
        for (long long k = first; k < n; ++k)  // at most three elements, in one thread of the grid
            y[k] = expf(x[k]);
    }
}
"""
exp_by_four = cupy.RawKernel(SOURCE, "exp_by_four")


@vector_exp.variant("cupy", layouts=("misaligned", "strided"), dtypes=("float64", "float16"))
def exp(x, y):
    """`cupy.exp` into the given array: CuPy's generated element-wise kernel."""
    return lambda: cupy.exp(x, out=y)


@vector_exp.variant("cupy", block=(128, 256, 512))
def raw_16_bytes(x, y, n, block):
    """RawKernel: a thread loads and stores one float4; the n mod 4 last elements go one by one.

    A float4 access needs an address that is a multiple of 16, which CuPy's allocations are; a slice of one
    need not be.

    Raises:
        ValueError: an array does not start at a multiple of 16 bytes.
    """
    for name, array in (("x", x), ("y", y)):
        if array.data.ptr % 16:
            raise ValueError(f"{name} starts at {array.data.ptr:#x}, not a multiple of 16: no float4 there")
    threads = -(-n // 4)
    grid = (max(1, -(-threads // block)),)  # a grid of no blocks is no launch
    arguments = (x, y, np.int64(n))
    return lambda: exp_by_four(grid, (block,), arguments)
