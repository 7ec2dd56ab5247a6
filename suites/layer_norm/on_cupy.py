"""Uses CuPy: the plain expression, an ElementwiseKernel after reductions, and CUDA C++ with a block a row."""

import cupy
import numpy as np

from .problem import EPS, layer_norm

SOURCE = r"""
__device__ float sum_of_block(float own)
{
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int far = 16; far > 0; far /= 2)
        own += __shfl_xor_sync(~0u, own, far);
    if (lane == 0) sums[warp] = own;
    __syncthreads();
    float total = 0.0f;
    for (int other = 0; other < warps; ++other)
        total += sums[other];
    __syncthreads();  // nobody overwrites a sum that somebody still reads
    return total;
}

extern "C" __global__ void layer_norm_row(const float* __restrict__ x, const float* __restrict__ weight,
                                          const float* __restrict__ bias, float* __restrict__ y,
                                          float* __restrict__ mean, float* __restrict__ rstd,
                                          const long long columns, const float eps)
{
    const float* row = x + blockIdx.x * columns;
    float own = 0.0f;
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        own += row[i];
    const float centre = sum_of_block(own) / columns;
    own = 0.0f;
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        own += (row[i] - centre) * (row[i] - centre);
    const float scale = rsqrtf(sum_of_block(own) / columns + eps);
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        y[blockIdx.x * columns + i] = (row[i] - centre) * scale * weight[i] + bias[i];
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = centre;
        rstd[blockIdx.x] = scale;
    }
}
"""
layer_norm_row = cupy.RawKernel(SOURCE, "layer_norm_row")

normalise = cupy.ElementwiseKernel(
    "T x, T centre, T scale, T weight, T bias", "T y", "y = (x - centre) * scale * weight + bias", "normalise"
)


@layer_norm.variant("cupy", allocates=True, layouts=("misaligned",))
def expression(x, weight, bias):
    """The formula as one would write it: a kernel and an array for each operation."""

    def launch():
        mean = x.mean(axis=1, keepdims=True)
        rstd = 1 / cupy.sqrt(x.var(axis=1, keepdims=True) + np.float32(EPS))
        return (x - mean) * rstd * weight + bias, mean.ravel(), rstd.ravel()

    return launch


@layer_norm.variant("cupy", layouts=("misaligned", "strided"))
def elementwise_kernel(x, weight, bias, y, mean, rstd):
    """CuPy's mean and variance, then all the rest in one ElementwiseKernel."""

    def launch():
        x.mean(axis=1, out=mean)
        cupy.divide(np.float32(1), cupy.sqrt(x.var(axis=1) + np.float32(EPS)), out=rstd)
        normalise(x, mean[:, None], rstd[:, None], weight, bias, y)

    return launch


@layer_norm.variant("cupy", block=(256,), layouts=("misaligned",))
def raw_row(x, weight, bias, y, mean, rstd, columns, block):
    """RawKernel: a block a row, reductions by shuffles; every row is read three times."""
    arguments = (x, weight, bias, y, mean, rstd, np.int64(columns), np.float32(EPS))
    return lambda: layer_norm_row((len(x),), (block,), arguments)
