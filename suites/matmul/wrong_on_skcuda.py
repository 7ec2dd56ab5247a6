"""Declares broken variants that cuBLAS invites; each must be rejected for its fault."""

from skcuda import cublas, misc

from .problem import matmul


@matmul.wrong("skcuda", expected_fault="wrong values")
def operands_swapped(A, B, C, n):
    """A and B in the order of the formula: by rows that is B·A."""
    operands = "n", "n", n, n, n, 1.0, A.gpudata, n, B.gpudata, n, 0.0, C.gpudata, n
    return lambda: cublas.cublasSgemm(misc._global_cublas_handle, *operands)


@matmul.wrong("skcuda", expected_fault="unexpected NaN")
def accumulated(A, B, C, n):
    """beta = 1 adds to what C holds: right once, in an array of zeros."""
    operands = "n", "n", n, n, n, 1.0, B.gpudata, n, A.gpudata, n, 1.0, C.gpudata, n
    return lambda: cublas.cublasSgemm(misc._global_cublas_handle, *operands)
