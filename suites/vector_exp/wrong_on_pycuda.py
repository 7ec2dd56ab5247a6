"""Declares broken variants that PyCUDA invites; each must be rejected for its fault."""

import numpy as np
import pycuda.driver
from pycuda import cumath
from pycuda.compiler import SourceModule

from .on_pycuda import BLOCK, exp_by_four
from .problem import vector_exp


@vector_exp.wrong("pycuda", expected_fault="not written")
def tail_missing(x, y, n, stream):
    """Tells the vector kernel of whole vectors only and forgets the rest."""
    whole = (n - 1) // 4 * 4
    kernel, grid = exp_by_four(), (-(-n // (4 * BLOCK)), 1)
    return lambda: kernel(x, y, np.int64(whole), grid=grid, block=(BLOCK, 1, 1), stream=stream)


@vector_exp.wrong("pycuda", expected_fault="input modified")
def computed_in_place(x, y, stream):
    """`cumath.exp(x, out=x)`, which saves an array, then a copy: right once."""

    def launch():
        cumath.exp(x, out=x, stream=stream)
        pycuda.driver.memcpy_dtod_async(y.gpudata, x.gpudata, x.nbytes, stream)

    return launch


@vector_exp.wrong("pycuda", allocates=True, expected_fault="wrong type")
def result_on_host(x, stream):
    """Returns a page-locked host array: the copy is in the time, and the result is not on the device."""
    return lambda: cumath.exp(x, stream=stream).get(pagelocked=True)


SOURCE = r"""
__global__ void exp_of_vectors(const float4* x, float4* y, const long long vectors)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= vectors) return;
    const float4 v = x[i];
    y[i] = make_float4(expf(v.x), expf(v.y), expf(v.z), expf(v.w));
}
"""


@vector_exp.wrong("pycuda", expected_fault="out of bounds")
def one_vector_too_many(x, y, n, stream):
    """n/4 + 1 vectors of four where ⌈n/4⌉ was meant, and even that is more than there are elements."""
    kernel = SourceModule(SOURCE).get_function("exp_of_vectors")
    vectors = n // 4 + 1
    grid = (-(-vectors // BLOCK), 1)
    return lambda: kernel(x, y, np.int64(vectors), grid=grid, block=(BLOCK, 1, 1), stream=stream)
