"""Tests the fixture with users' own kernels, on the device."""

import json

import pytest

KERNELS = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]

@cuda.jit
def add_in_place(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1

N = 1 << 20
x = np.random.default_rng(0).random(N, dtype=np.float32)
"""


def test_a_plain_kernel_is_measured_verified_and_recorded(pytester, plugin_option):
    pytester.makepyfile(
        KERNELS
        + """
@pytest.mark.gpu_benchmark(bytes=12 * N, flops=2 * N)
def test_saxpy(gpu_benchmark, gpu_device):
    assert gpu_device.l2_bytes > 0 and not gpu_device.is_simulated
    dx, out = cuda.to_device(x), cuda.device_array_like(x)
    gpu_benchmark(saxpy[N // 256, 256], 2.0, dx, dx, out)
    gpu_benchmark.verify(out, 3.0 * x.astype(np.float64), rtol=1e-6)

def test_in_place(gpu_benchmark):
    def fresh():
        return (cuda.to_device(x),)
    def check(returned, changed):
        np.testing.assert_allclose(changed.copy_to_host(), x + 1, rtol=1e-6)
    gpu_benchmark.pedantic(add_in_place[N // 256, 256], setup=fresh, check=check)
"""
    )
    args = ("--gpu-benchmark", *plugin_option, "--gpukern-report=run.json")
    first = pytester.runpytest_subprocess(*args, "--gpukern-baseline=create")
    first.assert_outcomes(passed=2)
    assert list((pytester.path / "baselines").glob("*.json"))
    second = pytester.runpytest_subprocess(*args)
    second.assert_outcomes(passed=2)
    second.stdout.fnmatch_lines(["*TB/s*", "gpukern: 2 passed · of 2 times: *"])


ESCAPES = """
import cupy

def test_escapes(gpu_benchmark):
    a = cupy.random.random((4096, 4096), dtype=cupy.float32)
    out = cupy.empty_like(a)
    own = cupy.cuda.Stream(non_blocking=True)
    def escapes():
        with own:
            for _ in range(4):
                cupy.multiply(a, a, out=out)
    gpu_benchmark(escapes)
"""


def test_work_on_a_stream_of_its_own_is_timed_where_cupti_sees_it(measured):
    pytest.importorskip("cupti")
    done, _ = measured(ESCAPES, "-v")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*streams of its own*"])


BACKWARD = """
import torch

def test_backward(gpu_benchmark):
    x = torch.randn(1 << 22, device="cuda", requires_grad=True)

    def step():
        x.grad = None
        (x.sin() * x).sum().backward()

    gpu_benchmark(step)
    gpu_benchmark.verify(x.grad, (x.cos() * x + x.sin()).detach(), rtol=1e-4, atol=1e-4)
"""


def test_a_backward_pass_is_timed_whatever_thread_launches_it(measured):
    pytest.importorskip("torch")
    pytest.importorskip("cupti")
    done, (found,) = measured(BACKWARD)
    done.assert_outcomes(passed=1)
    (main,) = found["measurements"]
    assert (main["timer"], main["invalid"]) == ("cupti", None)
    assert sum(work["count"] for work in main["work"]) >= 5, "forward and backward"


LAUNCH_LATENCY = """
@cuda.jit
def spins(x):
    value = x[0]
    for _ in range(200_000):
        value = value * np.float32(0.999) + np.float32(0.5)
    x[0] = value

def test_spins(gpu_benchmark):
    gpu_benchmark(spins[1, 1], cuda.to_device(np.ones(1, np.float32)))
"""


def test_the_scope_launch_is_the_hosts_time_and_not_the_devices(measured):
    done, (found,) = measured(KERNELS + LAUNCH_LATENCY, "--gpukern-scope=kernel,launch")
    done.assert_outcomes(passed=1)
    times = {each["scope"]: each["summary"]["median_ns"] for each in found["measurements"]}
    assert times["kernel"] > 400_000
    assert 500 < times["launch"] < 200_000


LAUNCHES = '''
import cupy
import numpy as np

SOURCE = r"""
extern "C" __global__ void child(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
extern "C" __global__ void parent(unsigned long long ns) { child<<<1, 1>>>(ns); }
"""

def test_parent(gpu_benchmark):
    arch = f"-arch=sm_{cupy.cuda.Device().compute_capability}"
    module = cupy.RawModule(code=SOURCE, backend="nvcc", options=("-dc", arch))
    gpu_benchmark(module.get_function("parent"), (1,), (1,), (np.uint64(50_000),))
'''


def test_kernels_that_launch_others_are_timed_by_events(measured):
    pytest.importorskip("cupy")
    pytest.importorskip("cupti")
    done, (found,) = measured(LAUNCHES)
    done.assert_outcomes(passed=1)
    (only,) = found["measurements"]
    assert only["timer"] == "event"
    assert only["summary"]["median_ns"] > 50_000
    assert (
        "launches kernels from the device, which CUPTI does not record" in only["summary"]["notes"][0]["text"]
    )


ROUNDS = """
@cuda.jit
def rounds(x, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        for _ in range(COUNT):
            value = value * np.float32(0.999) + np.float32(0.5)
        out[i] = value

def test_rounds(gpu_benchmark):
    x = cuda.to_device(np.random.default_rng(0).random(1 << 22, dtype=np.float32))
    gpu_benchmark(rounds[(1 << 22) // 256, 256], x, cuda.device_array_like(x))
"""


def test_a_plain_kernel_whose_source_has_changed_has_another_hash(measured):
    hashes = []
    for count in (200, 230):
        done, (result,) = measured(KERNELS + ROUNDS.replace("COUNT", str(count)), "--gpukern-baseline=off")
        done.assert_outcomes(passed=1)
        (kernel,) = result["kernels"]
        hashes.append(kernel["machine_code_sha256"])
    assert None not in hashes
    assert hashes[0] != hashes[1]


PRODUCT = """
import cupy
import pytest

@pytest.mark.parametrize("n", [100, 211, 4096])
def test_product(gpu_benchmark, n):
    a = cupy.random.default_rng(0).random((n, n), dtype=cupy.float32)
    gpu_benchmark(cupy.matmul, a, a)
"""


def test_kernels_of_a_library_have_hashes_from_the_first_on(measured):
    pytest.importorskip("cupy")
    done, results = measured(PRODUCT, "--gpukern-baseline=off")
    done.assert_outcomes(passed=3)
    kernels = [kernel for result in results for kernel in result["kernels"]]
    assert len(kernels) >= 3
    assert [kernel["name"] for kernel in kernels if kernel["machine_code_sha256"] is None] == []


ONE_NAME = '''
import numpy as np
import pytest

SOURCE = """
extern "C" __global__ void scale(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * FACTOR;
}
"""
N = 1 << 20

def by_cupy(factor):
    import cupy
    kernel = cupy.RawKernel(SOURCE.replace("FACTOR", factor), "scale")
    x = cupy.ones(N, cupy.float32)
    return lambda: kernel((N // 256,), (256,), (x, np.int32(N)))

def by_pycuda(factor):
    import pycuda.autoprimaryctx
    from pycuda import gpuarray
    from pycuda.compiler import SourceModule
    kernel = SourceModule(SOURCE.replace("FACTOR", factor), no_extern_c=True).get_function("scale")
    x = gpuarray.to_gpu(np.ones(N, np.float32))
    return lambda: kernel(x, np.int32(N), grid=(N // 256, 1), block=(256, 1, 1))

@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("made_by", [by_cupy, by_pycuda])
def test_scale(gpu_benchmark, made_by, factor):
    pytest.importorskip(made_by.__name__.removeprefix("by_"))
    gpu_benchmark(made_by(factor))
'''


def test_kernels_of_one_name_have_the_hash_of_their_own_module_in_any_order(measured):
    """PyCUDA's are loaded in the test's body; an unloaded module's handle may be given out again."""
    pytest.importorskip("cupy")
    factors, found = ["2.0f", "3.0f", "5.0f"], []
    for chosen in (factors, factors[::-1], factors[1:2]):
        done, results = measured(ONE_NAME.replace("FACTORS", repr(chosen)), "--gpukern-baseline=off")
        assert done.ret == 0
        found.append({result["nodeid"]: result["kernels"][0]["machine_code_sha256"] for result in results})
    assert None not in found[0].values()
    assert len(set(found[0].values())) == len(found[0])
    assert found[0] == found[1]
    assert found[2].items() <= found[0].items()
    assert found[2]


VERSIONS = """
import json
import pytest
import torch
import triton
import triton.language as tl
from pytest_gpukern.gpu.cubin import code_sha256

@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

N = 1 << 20

@pytest.mark.parametrize("block", [256, 512])
def test_add(gpu_benchmark, block):
    x = torch.rand(N, device="cuda")
    out = torch.empty_like(x)

    def launch(size):
        return add[(N // size,)](x, out, N, BLOCK=size, num_warps=4)

    launched = {size: launch(size) for size in (256, 512)}  # both are loaded before either is looked at
    gpu_benchmark(launch, block)
    with open(f"{block}.json", "w") as file:
        json.dump(code_sha256(launched[block].asm["cubin"]), file)
"""


def test_versions_of_a_triton_kernel_have_the_hash_of_their_own_code(pytester, measured):
    for library in ("torch", "triton", "cupti"):
        pytest.importorskip(library)
    done, results = measured(VERSIONS, "--gpukern-baseline=off")
    done.assert_outcomes(passed=2)
    compiled = [json.loads((pytester.path / f"{block}.json").read_text()) for block in (256, 512)]
    hashes = [kernel["machine_code_sha256"] for result in results for kernel in result["kernels"]]
    assert hashes == [f"code:{code}" for code in compiled]
    assert hashes[0] != hashes[1]


AUTOTUNED = """
import json
import torch
import triton
import triton.language as tl

@triton.autotune([triton.Config({}, num_warps=warps) for warps in (2, 8, 32)], key=["n"])
@triton.jit
def softmax(x, out, n, SIZE: tl.constexpr):
    places = tl.program_id(0) * n + tl.arange(0, SIZE)
    powers = tl.exp(tl.load(x + places))
    tl.store(out + places, powers / tl.sum(powers, axis=0))

def test_softmax(gpu_benchmark):
    x = torch.rand(4096, 1024, device="cuda")
    out = torch.empty_like(x)
    gpu_benchmark(lambda: softmax[(4096,)](x, out, 1024, SIZE=1024))
    gpu_benchmark.verify(out, torch.softmax(x.double(), 1), rtol=1e-4)
    open("chosen.json", "w").write(json.dumps(softmax.best_config.num_warps))
"""


def test_what_an_autotuner_chose_is_recorded_and_32_warps_are_never_best(pytester, measured):
    """Our callbacks at each launch made it choose 8, 16 or 32 warps; see `machine_code.py`."""
    for library in ("torch", "triton"):
        pytest.importorskip(library)
    done, (result,) = measured(AUTOTUNED, "--gpukern-baseline=off")
    done.assert_outcomes(passed=1)
    chosen = json.loads((pytester.path / "chosen.json").read_text())
    assert result["autotuned"]["softmax"]["num_warps"] == str(chosen)
    assert chosen < 32


OWN_STREAM = """
import cupy
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

CODE = 'extern "C" __global__ void f(const float* x, float* y, size_t n)' \
    '{ size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }'
M = 10_000_019

@pytest.mark.gpu_benchmark(outputs="out", bytes=8 * M)
@pytest.mark.parametrize("left_out", [0, 1])
def test_own_stream(gpu_benchmark, left_out):
    device = Device()
    device.set_current()
    stream = device.create_stream()
    options = ProgramOptions(arch=f"sm_{device.arch}")
    kernel = Program(CODE, "c++", options).compile("cubin").get_kernel("f")
    x, out = cupy.random.random(M, dtype=cupy.float32), cupy.empty(M, cupy.float32)
    device.sync()

    def run(x, out):
        config = LaunchConfig(grid=-(-M // 256), block=256)
        launch(stream, config, kernel, x.data.ptr, out.data.ptr, np.uint64(M - left_out))

    gpu_benchmark(run, x, out)
    gpu_benchmark.verify(out, 2 * x.get())
"""


def test_work_on_a_stream_of_the_tests_own_is_timed_and_events_only_note_that_they_missed_it(measured):
    pytest.importorskip("cupy")
    done, (right, wrong) = measured(KERNELS + OWN_STREAM)
    done.assert_outcomes(passed=1, failed=1)
    (main,) = right["measurements"]
    assert (main["timer"], main["invalid"]) == ("cupti", None)
    assert "they missed work on another stream" in main["summary"]["notes"][0]["text"]
    assert wrong["correctness"] == "INCORRECT"


STATIC = """
import torch

@pytest.mark.parametrize("right", [True, False])
def test_graphed(gpu_benchmark, right):
    x = torch.rand(1024, 1024, device="cuda")
    model = torch.nn.Linear(1024, 1024, device="cuda").eval()
    with torch.no_grad():
        expected = model(x).cpu() if right else model(x.T).cpu()
        graphed = torch.cuda.make_graphed_callables(model, (x,))
        gpu_benchmark.verify(gpu_benchmark(graphed, x), expected, rtol=1e-4, atol=1e-5)

@pytest.mark.parametrize("right", [True, False])
def test_reduce_overhead(gpu_benchmark, right):
    x = torch.rand(8192, 1024, device="cuda")
    compiled = torch.compile(lambda x: torch.softmax(x, 1), mode="reduce-overhead")
    expected = torch.softmax(x, 1 if right else 0).cpu()
    gpu_benchmark.verify(gpu_benchmark(compiled, x), expected, rtol=1e-5)
"""


def test_graphs_that_return_the_same_memory_each_time_are_right_and_a_note_says_so(measured):
    pytest.importorskip("torch")
    done, found = measured(KERNELS + STATIC)
    done.assert_outcomes(passed=2, failed=2)
    for result in found:
        assert (result["correctness"] == "INCORRECT") == ("False" in result["case"]["id"])
        if "graphed[True]" in result["case"]["id"]:  # the other may return one tensor
            assert any("in the same memory after each call" in note["text"] for note in result["notes"])


AS_SIMULATED = """
from concurrent.futures import ThreadPoolExecutor

@cuda.jit
def narrow(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = (a[i] + b[i]) // 2 + a[i] * b[i] + (a[i] - b[i] < 0) + (a[i] << 3)

A, B = np.random.default_rng(0).integers(0, 256, (2, 1000), np.uint8)

@pytest.mark.gpu_benchmark(outputs="out")
@pytest.mark.parametrize("right", [True, False])
def test_narrow(gpu_benchmark, right):
    a, b = A.astype(np.int64), B.astype(np.int64)
    expected = (a + b) // 2 + a * b + (a << 3) if right else (A + B) // 2 + A * B + (A << 3)
    out = cuda.device_array(1000, np.int64)
    gpu_benchmark(narrow[8, 128], cuda.to_device(A), cuda.to_device(B), out)
    gpu_benchmark.verify(out, expected)

@pytest.mark.gpu_benchmark(outputs="out")
def test_managed(gpu_benchmark):
    managed, out = cuda.managed_array(N, np.float32), cuda.managed_array(N, np.float32)
    managed[:] = x
    gpu_benchmark(saxpy[N // 256, 256], 2.0, managed, managed, out)
    gpu_benchmark.verify(out, 3.0 * x.astype(np.float64), rtol=1e-6)

@pytest.mark.gpu_benchmark(inout="count")
@pytest.mark.parametrize("right", [True, False])
def test_threads(gpu_benchmark, right):
    @cuda.jit
    def add(count):
        if right:
            cuda.atomic.add(count, cuda.grid(1) % count.size, 1)
        elif cuda.grid(1) == 0:
            count[0] += 1

    def launch(count):
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: add[20, 50](count), range(3)))

    count = cuda.to_device(np.zeros(10, np.int64))
    gpu_benchmark(launch, count)
    gpu_benchmark.verify(count, np.full(10, 300))
"""


def test_a_gpu_says_what_the_simulator_says_of_narrow_integers_managed_arrays_and_host_threads(measured):
    done, found = measured(KERNELS + AS_SIMULATED)
    done.assert_outcomes(passed=3, failed=2)
    assert all((each["correctness"] == "INCORRECT") == ("False" in each["case"]["id"]) for each in found)
