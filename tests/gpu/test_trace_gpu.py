"""Tests `--gpukern-trace` on the device, from a run to its table."""

import pytest
from made_up_runs import whole_run

SUITE = """
import numpy as np
import pytest
from numba import cuda
from pytest_gpukern import Axis, Problem

saxpy = Problem(
    "saxpy",
    version=1,
    axes={"n": Axis(smoke=(4096,), full=(1 << 20,))},
    make_inputs=lambda rng, n: {"x": rng.random(n, dtype=np.float32), "y": rng.random(n, dtype=np.float32)},
    outputs=lambda n: {"out": ((n,), "float32")},
    reference=lambda x, y: 2 * x.astype(np.float64) + y,
    traffic_bytes=lambda n: 12 * n,
    scopes=("kernel", "end_to_end"),
)

@cuda.jit
def kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i] + y[i]

@saxpy.variant("numba")
def elementwise(x, y, out, *, stream):
    return lambda: kernel[(out.size + 255) // 256, 256, stream](x, y, out)

@saxpy.cases
def test_saxpy(gpu_benchmark, case):
    gpu_benchmark.run(case)

def test_plain(gpu_benchmark):
    x = cuda.to_device(np.ones(1 << 20, np.float32))
    out = cuda.device_array_like(x)
    gpu_benchmark(kernel[4096, 256], x, x, out)
"""


@pytest.fixture
def traced(pytester, measured):
    """The file of a run with traces, in a process of its own as by default."""
    pytest.importorskip("cupti")
    measured(SUITE, "--gpukern-trace")[0].assert_outcomes(passed=2)
    return pytester.path / "run.json"


def test_a_run_keeps_the_copies_and_the_kernel_of_a_case_and_of_a_plain_test(traced, capfd):
    from pytest_gpukern.cli.main import main

    case, plain = (result["trace"] for result in whole_run(traced)["results"])
    assert case["scope"] == "end_to_end"
    kinds = [each["kind"] for each in case["activities"]]
    assert kinds == ["memcpy", "memcpy", "kernel", "memcpy"]
    assert plain["scope"] == "kernel"
    (kernel,) = plain["activities"]
    assert (kernel["grid"], kernel["block"]) == ([4096, 1, 1], [256, 1, 1])
    capfd.readouterr()
    assert main(["report", str(traced), "-k", ""]) == 0
    shown = capfd.readouterr().out
    assert shown.count("[CUDA memcpy HtoD]") == 2
    assert shown.count("[CUDA memcpy DtoH]") == 1
