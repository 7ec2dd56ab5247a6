"""Checks every variant of the exponential, and measures it under `--gpu-benchmark`."""

from .problem import vector_exp


@vector_exp.cases
def test_vector_exp(gpu_benchmark, case):
    """Each variant at each size agrees with NumPy in float64."""
    gpu_benchmark.run(case)


@vector_exp.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """Each broken variant gets the diagnosis that it declares."""
    gpu_benchmark.reject(case)
