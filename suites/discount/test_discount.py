"""Checks and measures every variant of `discount`, and rejects every broken one."""

from __future__ import annotations

from .problem import discount


@discount.cases
def test_discount(gpu_benchmark, case):
    """One case: correct before and after timing."""
    gpu_benchmark.run(case)


@discount.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """The checker gives the diagnosis that the broken variant declares."""
    gpu_benchmark.reject(case)
