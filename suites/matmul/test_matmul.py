"""Checks every variant of the matrix product, and measures it under `--gpu-benchmark`."""

from .problem import matmul


@matmul.cases
def test_matmul(gpu_benchmark, case):
    """Each variant at each size agrees with NumPy in float64."""
    gpu_benchmark.run(case)


@matmul.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """Each broken variant gets the diagnosis that it declares."""
    gpu_benchmark.reject(case)
