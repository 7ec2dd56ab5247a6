"""Tests `outputs=` with arrays of each library on the device: right calls pass, broken ones say why."""

from importlib.util import find_spec

import pytest
from broken_calls import SOURCE, judged, module
from doubling import CASES, of_size
from made_up_runs import whole_run
from on_device import LIBRARIES

SETUP = (
    LIBRARIES
    + """
from numba import vectorize

N = 10_007

@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]

@cuda.jit
def leaves_the_last(x, out):
    i = cuda.grid(1)
    if i < out.size - 1:
        out[i] = 2 * x[i]

@cuda.jit
def tramples(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]
    if i == 3:
        x[i] = -1

@cuda.jit
def adds(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, x[i])

host = np.random.default_rng(0).random(N, dtype=np.float32)
few = (np.arange(N) % 251).astype(np.uint8)

declared = pytest.mark.gpu_benchmark(outputs=1)

def launcher(kernel):
    return kernel[-(-N // 256), 256]
"""
)


@pytest.fixture
def inner(pytester, plugin_option):
    def run(tests, *options):
        pytester.makepyfile(test_plain=SETUP + tests)
        return pytester.runpytest_subprocess(*options, *plugin_option, "-rA")

    return run


MEASURED = pytest.mark.parametrize("options", [(), ("--gpu-benchmark",)], ids=["checked", "measured"])


@MEASURED
def test_right_calls_pass_with_arrays_of_each_library(inner, options):
    result = inner(
        """
@pytest.mark.parametrize("made", [of_numba, of_cupy])
@declared
def test_strided(gpu_benchmark, made):
    x, wide = made(host), made(np.zeros(2 * N, np.float32))
    gpu_benchmark(launcher(double), x, wide[::2])
    gpu_benchmark.verify(wide[::2], 2 * host.astype(np.float64), rtol=1e-6)
    whole = wide.copy_to_host() if made is of_numba else wide.get()
    assert not whole[1::2].any(), "what lies between was not poisoned"

@libraries
@pytest.mark.gpu_benchmark(outputs="out")
def test_odd_bytes_behind_a_word(gpu_benchmark, made):
    x, out = made(few), made(np.zeros(N + 1, np.uint8))[1:]
    def launch(x, out):
        launcher(double)(x, out)
    gpu_benchmark(launch, x, out)
    gpu_benchmark.verify(out, 2 * few)

@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
@pytest.mark.gpu_benchmark(outputs="out")
def test_torch(gpu_benchmark, name):
    torch = pytest.importorskip("torch")
    x = torch.arange(100, device="cuda").to(getattr(torch, name))
    out = torch.empty_like(x)
    gpu_benchmark(torch.add, x, x, out=out)
    gpu_benchmark.verify(out, 2.0 * np.arange(100))

def test_conjugated_in_the_call(gpu_benchmark):
    torch = pytest.importorskip("torch")
    x = torch.arange(100, device="cuda") * (1 + 2j)
    conjugated = gpu_benchmark(lambda x: (2 * x).conj().resolve_conj(), x)
    gpu_benchmark.verify(conjugated, np.arange(100) * (2 - 4j), rtol=1e-6)

@pytest.mark.parametrize("view", ["t", "flatten"])
def test_views_are_noted(gpu_benchmark, view):
    torch = pytest.importorskip("torch")
    x, out = (torch.ones((64, 64), dtype=torch.complex64, device="cuda") for _ in range(2))
    gpu_benchmark(lambda x, out: (torch.mul(x, 3, out=out), getattr(x, view)())[1], x, out)
    notes = gpu_benchmark._test.result.notes
    assert any("returned is a view of all of x, not a new result" in note.text for note in notes)

@vectorize(["float32(float32)"], target="cuda")
def twice(x):
    return 2 * x

def test_ufunc_into_an_array_of_the_tests_own(gpu_benchmark):
    x, out = cuda.to_device(host), cuda.device_array_like(host)
    gpu_benchmark(lambda: twice(x, out=out))
    gpu_benchmark.verify(out, 2 * host.astype(np.float64), rtol=1e-6)

def test_returned(gpu_benchmark):
    cupy = pytest.importorskip("cupy")
    x = cupy.asarray(host)
    gpu_benchmark.verify(gpu_benchmark(lambda x: 2 * x, x), 2 * host.astype(np.float64), rtol=1e-6)
    (error,) = gpu_benchmark._test.result.errors.values()
    assert error.determinism == "bitwise"

@declared
def test_fresh_arguments(gpu_benchmark):
    def fresh():
        return cuda.to_device(host), cuda.device_array_like(host)
    def check(returned, x, out):
        np.testing.assert_array_equal(out.copy_to_host(), 2 * host)
    gpu_benchmark.pedantic(launcher(double), setup=fresh, check=check)

@pytest.mark.gpu_benchmark(outputs="out")
def test_atomics(gpu_benchmark):
    x = cuda.to_device(np.tile(host, 100))
    def total(x, out):
        out[:] = 0
        adds[-(-x.size // 256), 256](x, out)
    out = cuda.device_array(1, np.float32)
    gpu_benchmark(total, x, out=out)
    gpu_benchmark.verify(out, [100 * host.astype(np.float64).sum()], rtol=1e-3)
""",
        *options,
    )
    outcomes = result.parseoutcomes()
    assert not outcomes.get("failed"), result.stdout.str()
    assert not outcomes.get("errors")
    assert outcomes["passed"] >= 5


@pytest.mark.parametrize(
    "options",
    [(), ("--gpu-benchmark",), ("--gpu-benchmark", "--gpukern-cache=hot", "--gpukern-timer=event")],
    ids=["checked", "cold", "hot by events"],
)
def test_right_calls_pass_and_broken_ones_are_incorrect_in_the_words_of_their_fault(
    pytester, plugin_option, options
):
    made = [f"of_{library}" for library in ("numba", "cupy", "torch") if find_spec(library)]
    pytester.makepyfile(test_it=module("on_device", 10_007, made, LIBRARIES), broken_calls=SOURCE)
    pytester.runpytest_subprocess(*options, *plugin_option, "--gpukern-report=run.json")
    results = whole_run(pytester.path / "run.json")["results"]
    judged(results, 10_007, made, timed=bool(options))


@MEASURED
def test_other_broken_calls_are_rejected_for_the_right_reason(inner, options):
    result = inner(
        """
@libraries
@declared
def test_overlaps(gpu_benchmark, made):
    both = made(np.zeros(2 * N, np.float32))
    gpu_benchmark(launcher(double), both[:N], both[N - 1 : -1])

def test_part_of_an_argument(gpu_benchmark):
    torch = pytest.importorskip("torch")
    gpu_benchmark(lambda x: x[1:], torch.ones(64, device="cuda"))

def test_conjugated_only_when_it_is_read(gpu_benchmark):
    torch = pytest.importorskip("torch")
    x = torch.ones(64, dtype=torch.complex64, device="cuda")
    gpu_benchmark(lambda x: (2 * x).conj(), x)

@libraries
@pytest.mark.gpu_benchmark(outputs="out")
def test_tramples_what_it_closes_over(gpu_benchmark, made):
    x = made(host.copy())
    gpu_benchmark(lambda out: launcher(tramples)(x, out), made(host))
""",
        *options,
    )
    assert not result.parseoutcomes().get("passed"), result.stdout.str()
    lines = result.stdout.str()
    assert "input modified: the call changed x, which is no argument" in lines
    assert "out: aliased: it shares memory with the input x" in lines
    if "could not import 'torch'" not in lines:
        assert "INCORRECT: returned: aliased: it shares memory with the input x; " in lines


FREED = """
import math
import sys

@cuda.jit
def only_over_nan(x, out):
    i = cuda.grid(1)
    if i < out.size and math.isnan(out[i]):
        out[i] = 2 * x[i]

def returned_by(kernel):
    def call(x):
        out = sys.modules[type(x).__module__.partition(".")[0]].empty_like(x)
        kernel[-(-len(x) // 256), 256](x, out)
        return out
    return call

def freed(array):  # which its library keeps for the next one of that size
    return array.get() if hasattr(array, "get") else array.cpu().numpy()

@pytest.mark.parametrize("made", [of_cupy, of_torch])
@pytest.mark.parametrize("size", [N, 10_000_019])
@pytest.mark.parametrize("kernel", [double, leaves_the_last, only_over_nan], ids=["right", "last", "nan"])
def test_freed(gpu_benchmark, made, size, kernel):
    x = made(np.random.default_rng(0).random(size, dtype=np.float32) + 1)
    expected = freed(x + x)
    gpu_benchmark.verify(gpu_benchmark(returned_by(kernel), x), expected)
"""


@MEASURED
@pytest.mark.parametrize("expandable", ["False", "True"])
def test_a_right_answer_in_freed_memory_is_not_handed_out_again(inner, options, expandable, monkeypatch):
    pytest.importorskip("cupy")
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
    result = inner(FREED, *options)
    result.assert_outcomes(passed=4, failed=8)
    assert not [line for line in result.outlines if line.startswith("FAILED") and "right" in line]


OWN_ANSWER = r'''
import cupy
from pytest_gpukern import Axis, Problem, Tolerance

N = 1 << 21
kernel = cupy.RawKernel(r"""
__device__ float memo[1 << 21];
extern "C" __global__ void k(const float* x, float* y, int n, int lazy) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || (lazy && y[i] == memo[i] && memo[i] != 0.0f)) return;
  float v = x[i];
  for (int j = 0; j < 400; ++j) v = fmaf(v, 0.99f, 0.01f);
  y[i] = memo[i] = v;
}""", "k")

def reference(x):
    power = float(np.float32(0.99)) ** 400
    return power * x.astype("float64") + float(np.float32(0.01)) * (1 - power) / (1 - float(np.float32(0.99)))

def run(x, y, lazy):
    kernel((-(-x.size // 256),), (256,), (x, y, np.int32(x.size), np.int32(lazy)))

def sort(x, y, lazy):
    y[:] = x
    y.sort()

def marked(cache):
    return pytest.param(cache, marks=pytest.mark.gpu_benchmark(outputs="y", cache=cache))

@pytest.mark.parametrize("cache", [marked("cold"), marked("hot")])
@pytest.mark.parametrize(("call", "lazy"), [(run, 0), (run, 1), (sort, 0)], ids=["works", "skips", "sorts"])
def test_plain(gpu_benchmark, cache, call, lazy):
    host = np.random.default_rng(0).random(N, dtype=np.float32) + 1
    x, y = cupy.asarray(host), cupy.empty(N, np.float32)
    gpu_benchmark(call, x, y, lazy)
    gpu_benchmark.verify(y, np.sort(host) if call is sort else reference(host), rtol=2e-5)

problem = Problem(
    "lazy", version=1, axes={"n": Axis(smoke=(4099,), full=(N,))}, reference=reference,
    make_inputs=lambda rng, n: {"x": rng.random(n, dtype=np.float32) + 1},
    outputs=lambda n: {"y": (n, "float32")}, tolerance=Tolerance(rtol=2e-5),
)

@problem.variant("cupy", lazy=(0, 1))
def variant(x, y, lazy):
    return lambda: run(x, y, lazy)

@problem.cases
def test_case(gpu_benchmark, case):
    gpu_benchmark.run(case)
'''


def test_a_call_that_skips_its_work_over_its_own_answer_is_invalid(inner):
    pytest.importorskip("cupy")
    result = inner(OWN_ANSWER, "--gpu-benchmark")
    result.assert_outcomes(passed=5, failed=3)  # as a variant it is stale
    for cache in ("cold", "hot"):
        line = f"FAILED *test_plain?skips-{cache}?*INVALID*its time depends on what its outputs hold*"
        result.stdout.fnmatch_lines([line])


def test_a_variant_whose_work_nobody_waits_for_fails_where_it_is_not_timed(inner):
    variants = """
@doubling.variant("numba")
def given(x, y, stream):
    return lambda: double[-(-N // 256), 256, stream](x, y)

@doubling.variant("numba")
def joined(x, y, stream):
    aside = cuda.stream()
    def launch():
        double[-(-N // 256), 256, aside](x, y)
        done = cuda.event()
        done.record(aside)
        done.wait(stream)
    return launch

@doubling.variant("numba")
def escapes(x, y):
    aside = cuda.stream()
    return lambda: double[-(-N // 256), 256, aside](x, y)
"""
    result = inner(of_size("N") + variants + CASES)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*y: still running: written after the given stream was done; *"])


RMM = """
import cupy
import rmm
from rmm.allocators.cupy import rmm_cupy_allocator
from rmm.allocators.numba import RMMNumbaManager

cuda.set_memory_manager(RMMNumbaManager)  # of this process, before Numba uses the GPU
whose = pytest.mark.parametrize("made", [of_numba, of_cupy])

@pytest.fixture(autouse=True)
def memory_of_rmm():
    resource, allocator = rmm.mr.get_current_device_resource(), cupy.cuda.get_allocator()
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 26)
    counted = rmm.mr.StatisticsResourceAdaptor(pool)
    rmm.mr.set_current_device_resource(counted)
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    yield
    cupy.cuda.set_allocator(allocator)
    rmm.mr.set_current_device_resource(resource)
    assert counted.allocation_counts.total_bytes >= 2 * host.nbytes

@whose
@declared
def test_right(gpu_benchmark, made):
    x, out = made(host), made(np.zeros_like(host))
    gpu_benchmark(launcher(double), x, out)
    gpu_benchmark.verify(out, 2 * host.astype(np.float64), rtol=1e-6)
    assert gpu_benchmark._test.result.measurements

def test_new_memory_for_each_result(gpu_benchmark):
    gpu_benchmark.verify(gpu_benchmark(cupy.multiply, of_cupy(host), 2), 2 * host)

@whose
@declared
def test_wrong(gpu_benchmark, made):
    gpu_benchmark(launcher(leaves_the_last), made(host), made(np.zeros_like(host)))
"""


def test_memory_of_rmm_is_checked_and_timed_under_cupy_and_numba(inner):
    pytest.importorskip("cupy")
    pytest.importorskip("rmm")
    result = inner(RMM, "--gpu-benchmark")
    result.assert_outcomes(passed=3, failed=2)
    for made in ("of_numba", "of_cupy"):
        result.stdout.fnmatch_lines(
            [f"FAILED *test_wrong?{made}? *out: 1 of 10007 elements still hold poison*"]
        )
