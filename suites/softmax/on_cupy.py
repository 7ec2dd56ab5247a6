"""Uses CuPy: the plain expression, an ElementwiseKernel after a reduction, and CUDA C++, a block a row."""

import cupy
import numpy as np

from .problem import softmax

SOURCE = r"""
__device__ void add(float& top, float& total, const float other_top, const float other_total)
{
    const float higher = fmaxf(top, other_top);
    total = total * expf(top - higher) + other_total * expf(other_top - higher);
    top = higher;
}

extern "C" __global__ void softmax_row(const float* __restrict__ x, float* __restrict__ y,
                                       const long long columns)
{
    __shared__ float tops[32], totals[32];
    const float* row = x + blockIdx.x * columns;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float top = -3.402823466e38f, total = 0.0f;
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        add(top, total, row[i], 1.0f);
    for (int far = 16; far > 0; far /= 2) {
        const float other_top = __shfl_xor_sync(~0u, top, far), other = __shfl_xor_sync(~0u, total, far);
        add(top, total, other_top, other);
    }
    if (lane == 0) {
        tops[warp] = top;
        totals[warp] = total;
    }
    __syncthreads();
    top = tops[0];
    total = totals[0];
    for (int other = 1; other < warps; ++other)
        add(top, total, tops[other], totals[other]);
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        y[blockIdx.x * columns + i] = expf(row[i] - top) / total;
}
"""
softmax_row = cupy.RawKernel(SOURCE, "softmax_row")

subtract_and_exp = cupy.ElementwiseKernel(
    "T x, T highest", "T power", "power = exp(x - highest)", "subtract_and_exp"
)


@softmax.variant("cupy", allocates=True, layouts=("misaligned",))
def expression(x):
    """The formula as one would write it: five kernels, and an array for each."""

    def launch():
        powers = cupy.exp(x - x.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    return launch


@softmax.variant("cupy", layouts=("misaligned", "strided"))
def elementwise_kernel(x, y):
    """Two reductions, one ElementwiseKernel for difference and exp, and a division in place: four kernels."""

    def launch():
        subtract_and_exp(x, x.max(axis=1, keepdims=True), y)
        cupy.divide(y, y.sum(axis=1, keepdims=True), out=y)

    return launch


@softmax.variant("cupy", block=(256,), layouts=("misaligned",))
def raw_row(x, y, columns, block):
    """RawKernel: a block a row, online maximum, reduction by shuffles; every row is read twice."""
    arguments = (x, y, np.int64(columns))
    return lambda: softmax_row((len(x),), (block,), arguments)
