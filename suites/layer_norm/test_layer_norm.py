"""Checks every variant of layer normalisation, and measures it under `--gpu-benchmark`."""

from .problem import layer_norm


@layer_norm.cases
def test_layer_norm(gpu_benchmark, case):
    """Each variant at each size agrees with NumPy in float64."""
    gpu_benchmark.run(case)


@layer_norm.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """Each broken variant gets the diagnosis that it declares."""
    gpu_benchmark.reject(case)
