"""The problem that most whole runs declare, as text: twice the input. Its variants are each test's own."""

PROBLEM = """
import os
import numpy as np
import pytest
from pytest_gpukern import Axis, Problem, Tolerance

doubling = Problem(
    "doubling",
    version=1,
    axes={"n": Axis(smoke=(8, 9), full=(100,))},
    make_inputs=lambda rng, n: {"x": rng.random(n)},
    outputs=lambda n: {"y": ((n,), "float64")},
    reference=lambda x: 2 * x,
    tolerance=Tolerance(),
    traffic_bytes=lambda n: 16 * n,
)
"""
CASES = """
@doubling.cases
def test_doubling(gpu_benchmark, case):
    gpu_benchmark.run(case)
"""


def of_size(smoke, full=None):
    """The problem with one size of each kind."""
    return PROBLEM.replace("(8, 9)", f"({smoke},)").replace("(100,)", f"({full or smoke},)")
