"""Checks every variant of π from random points, and measures it under `--gpu-benchmark`."""

import pytest

from .problem import monte_carlo_pi

# numba.cuda.random under the simulator: its host code runs as plain Python, where wrapping is a warning.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:\s*Compilation is falling back to object mode"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar"),
]


@monte_carlo_pi.cases
def test_monte_carlo_pi(gpu_benchmark, case):
    """Each variant at each size counts as a binomial does, over eight seeds."""
    gpu_benchmark.run(case)


@monte_carlo_pi.wrong_cases
def test_wrong_variant_is_rejected(gpu_benchmark, case):
    """Each broken variant gets the diagnosis that it declares."""
    gpu_benchmark.reject(case)
