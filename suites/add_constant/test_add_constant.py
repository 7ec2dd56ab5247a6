"""Checks and measures every variant of `add_constant`, and rejects every broken one."""

from __future__ import annotations

from .problem import add_constant


@add_constant.cases
def test_add_constant(gpu_benchmark, case):
    """One case: correct before and after timing."""
    gpu_benchmark.run(case)


@add_constant.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """The checker gives the diagnosis that the broken variant declares."""
    gpu_benchmark.reject(case)
