"""Uses scikit-cuda: cuBLAS on PyCUDA arrays, by its array function and by the BLAS call under it."""

from skcuda import cublas, linalg, misc

from .problem import matmul


@matmul.variant("skcuda", allocates=True, layouts=("misaligned",))
def dot(A, B):
    """`skcuda.linalg.dot` as in the seed: cuBLAS sgemm into a new array from the driver."""
    return lambda: linalg.dot(A, B)


@matmul.variant("skcuda", layouts=("misaligned",))
def cublas_sgemm(A, B, C, n):
    """`skcuda.cublas.cublasSgemm` into the given array.

    cuBLAS counts by columns, so it reads our rows as Aᵀ. We ask for Cᵀ = Bᵀ·Aᵀ, so that nothing is
    transposed.
    """
    handle = misc._global_cublas_handle
    operands = "n", "n", n, n, n, 1.0, B.gpudata, n, A.gpudata, n, 0.0, C.gpudata, n
    return lambda: cublas.cublasSgemm(handle, *operands)
