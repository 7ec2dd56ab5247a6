"""Computes `add_constant` on the GPU with Dask over CuPy."""

from __future__ import annotations

from .problem import add_constant


@add_constant.variant("dask", allocates=True, layouts=("misaligned", "strided"))
def blocks(a, z):
    """`a + 2` in four blocks along z, which Dask then copies into one array."""
    lazy = a.rechunk({0: -(-z // 4)}) + 2
    return lambda: lazy.compute()
