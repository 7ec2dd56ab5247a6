"""Checks every variant of the softmax, and measures it under `--gpu-benchmark`."""

from .problem import softmax


@softmax.cases
def test_softmax(gpu_benchmark, case):
    """Each variant at each size agrees with NumPy in float64."""
    gpu_benchmark.run(case)


@softmax.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """Each broken variant gets the diagnosis that it declares."""
    gpu_benchmark.reject(case)
