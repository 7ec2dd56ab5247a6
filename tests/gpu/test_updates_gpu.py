"""Tests outputs that a kernel updates in place or writes in part, on the device: checked, timed, rejected."""

import pytest

PROBLEMS = """
import numpy as np
from numba import cuda
from pytest_gpukern import Axis, Output, Problem, Tolerance

histogram = Problem(
    "histogram",
    version=1,
    axes={"n": Axis(smoke=(10_007,), full=(1_000_003,))},
    make_inputs=lambda rng, n: {
        "data": rng.integers(0, 64, n).astype(np.int32), "counts": rng.integers(1, 1000, 64).astype(np.int32)
    },
    inout=("counts",),
    outputs=lambda n: {},
    reference=lambda data, counts: counts + np.bincount(data, minlength=64),
    traffic_bytes=lambda n: 4 * n,
    scopes=("kernel", "end_to_end", "transfer"),
)
stencil = Problem(
    "stencil",
    version=1,
    axes={"n": Axis(smoke=(130,), full=(2048,))},
    make_inputs=lambda rng, n: {"a": rng.random((n, n)).astype(np.float32)},
    outputs=lambda n: {"out": Output((n, n), "float32", written=np.s_[1:-1, 1:-1])},
    reference=lambda a: sum(np.roll(a.astype(np.float64), by, at) for by in (-1, 1) for at in (0, 1)) / 4,
    tolerance=Tolerance(rtol=1e-6),
    traffic_bytes=lambda n: 8 * n * n,
)

@cuda.jit
def count(data, counts):
    i = cuda.grid(1)
    if i < data.size:
        cuda.atomic.add(counts, data[i], 1)

@cuda.jit
def inner(a, out, border):
    x, y = cuda.grid(2)
    if border <= y < a.shape[0] - border and border <= x < a.shape[1] - border:
        up, down = (y - 1) % a.shape[0], (y + 1) % a.shape[0]
        left, right = (x - 1) % a.shape[1], (x + 1) % a.shape[1]
        out[y, x] = (a[up, x] + a[down, x] + a[y, left] + a[y, right]) / 4

def counting(data, counts, stream, block):
    return lambda: count[-(-data.size // block), block, stream](data, counts)

def stencilling(a, out, n, stream, border):
    return lambda: inner[(-(-n // 32), -(-n // 8)), (32, 8), stream](a, out, border)

@histogram.variant("numba", block=(128, 256))
def atomics(data, counts, stream, block):
    return counting(data, counts, stream, block)

@histogram.variant("cupy")
def scattered(data, counts):
    import cupy
    return lambda: cupy.add.at(counts, data, 1)

@histogram.variant("torch")
def indexed(data, counts):
    import torch
    ones = torch.ones_like(data)
    return lambda: counts.index_add_(0, data, ones)

@histogram.wrong("numba", expected_fault="wrong values", block=(256,))
def twice(data, counts, stream, block):
    one = counting(data, counts, stream, block)
    return lambda: (one(), one())

@stencil.variant("numba")
def inside(a, out, n, stream):
    return stencilling(a, out, n, stream, 1)

@stencil.wrong("numba", expected_fault="wrong values")
def on_the_border_too(a, out, n, stream):
    return stencilling(a, out, n, stream, 0)

@stencil.wrong("numba", expected_fault="not written")
def not_the_outer_ring(a, out, n, stream):
    return stencilling(a, out, n, stream, 2)

@histogram.cases
def test_histogram(gpu_benchmark, case): gpu_benchmark.run(case)

@stencil.cases
def test_stencil(gpu_benchmark, case): gpu_benchmark.run(case)

@histogram.wrong_cases
def test_wrong_histogram(gpu_benchmark, case): gpu_benchmark.reject(case)

@stencil.wrong_cases
def test_wrong_stencil(gpu_benchmark, case): gpu_benchmark.reject(case)
"""


PLAIN = r"""
import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

N = 100_003
x = np.random.default_rng(1).random(N, dtype=np.float32)

@cuda.jit
def draw(states, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = xoroshiro128p_uniform_float32(states, i)

launch = lambda kernel: kernel[-(-N // 256), 256]

@pytest.mark.gpu_benchmark(inout=0, outputs=1, determinism="bitwise")
def test_random_states(gpu_benchmark):
    states, out = create_xoroshiro128p_states(N, seed=1), cuda.device_array(N, np.float32)
    gpu_benchmark(launch(draw), states, out)
    first = out.copy_to_host()
    launch(draw)(create_xoroshiro128p_states(N, seed=1), out)
    gpu_benchmark.verify(first, out.copy_to_host().astype(np.float64), rtol=1e-6)

@pytest.mark.gpu_benchmark(outputs="2[1]")
def test_in_a_tuple(gpu_benchmark):
    cupy = pytest.importorskip("cupy")
    source = '''
extern "C" __global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}'''
    kernel = cupy.RawKernel(source, "twice")
    y = cupy.empty(N, cupy.float32)
    gpu_benchmark(kernel, (-(-N // 256),), (256,), (cupy.asarray(x), y, np.int32(N)))
    gpu_benchmark.verify(y, 2 * x.astype(np.float64), rtol=1e-6)
"""


@pytest.mark.parametrize(
    "options",
    [(), ("--gpu-benchmark",), ("--gpu-benchmark", "--gpukern-cache=hot", "--gpukern-timer=event")],
    ids=["checked", "cold", "hot by events"],
)
def test_what_is_updated_or_written_in_part_or_in_a_tuple_is_right(pytester, plugin_option, options):
    pytester.makepyfile(test_problems=PROBLEMS, test_calls=PLAIN)
    result = pytester.runpytest_subprocess(*plugin_option, *options, "-rA")
    result.assert_outcomes(passed=10)


def test_random_states_that_are_not_declared_are_inputs(pytester, plugin_option):
    wrong = PLAIN.replace("outputs=1, determinism", "determinism").replace("inout=0", "outputs=1")
    pytester.makepyfile(test_plain=wrong)
    result = pytester.runpytest_subprocess(*plugin_option, "-rA")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["INCORRECT: input modified: the call changed states*"])
