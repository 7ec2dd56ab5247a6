"""Declares broken variants that CuPy invites; each must be rejected for its fault."""

import cupy

from .problem import matmul


@matmul.wrong("cupy", allocates=True, expected_fault="wrong strides")
def transposed_view_returned(A, B):
    """(Bᵀ·Aᵀ)ᵀ, the detour of those whose BLAS counts by columns: right, and by columns."""
    return lambda: cupy.ascontiguousarray(cupy.matmul(B.T, A.T)).T


@matmul.wrong("cupy", allocates=True, expected_fault="aliased")
def same_memory_each_time(A, B):
    """Saves an allocation: the next call overwrites what this one returned."""
    C = cupy.empty_like(A)
    return lambda: cupy.matmul(A, B, out=C)
