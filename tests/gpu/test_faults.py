"""Tests kernels that break their CUDA context, hang, crash or find no memory, in whole runs on the device."""

import os
import re

import pytest
from doubling import CASES, of_size
from made_up_runs import whole_run
from waiting import until

numba = pytest.importorskip("numba")

TESTS = '''
import ctypes
import os
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]

@cuda.jit
def store_far(x):
    x[cuda.grid(1) + (1 << 40)] = 1.0

@cuda.jit
def spin_for_ever(x):
    while x[0] < 1.0:
        cuda.nanosleep(1000)

def doubled(gpu_benchmark, n=10_000):
    x = cuda.to_device(np.arange(n, dtype=np.float32))
    out = cuda.device_array_like(x)
    gpu_benchmark(double[-(-n // 128), 128], x, out)
    gpu_benchmark.verify(out, 2 * np.arange(n, dtype=np.float32))

def ones():
    return cuda.to_device(np.ones(64, np.float32))

def test_before(gpu_benchmark):
    doubled(gpu_benchmark)

BROKEN

def test_here():
    """pytest's own process has no context on the device."""
    driver, active, flags = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1), ctypes.c_uint()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
    assert active.value == EXPECTED
'''

BROKEN = """
def test_{name}(gpu_benchmark):
    {body}

def test_after_{name}(gpu_benchmark):
    doubled(gpu_benchmark)
"""

RAW = """
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device()
device.set_current()
source = r'''{source}'''
options = ProgramOptions(arch=f"sm_{{device.arch}}")
kernel = Program(source, "c++", options).compile("cubin").get_kernel("broken")
x = ones()
launch(device.default_stream, LaunchConfig(grid=1, block=32), kernel, x.device_ctypes_pointer.value)
"""


def raw(source):
    """A launch of a kernel in CUDA C, which nobody waits for."""
    return "\n    ".join(RAW.format(source=source).strip().splitlines())


FAULTS = {
    "illegal_address": ("gpu_benchmark(store_far[1, 64], ones())", "cudaErrorIllegalAddress"),
    "illegal_address_not_waited_for": ("store_far[1, 64](ones())", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "misaligned_address": (
        raw('extern "C" __global__ void broken(char *x) { *(volatile int *)(x + 1) = 1; }'),
        "CUDA_ERROR_MISALIGNED_ADDRESS",
    ),
    "device_assertion": (
        raw('extern "C" __global__ void broken(float *x) { asm volatile("trap;"); }'),
        "CUDA_ERROR_",
    ),
    "segfault": ("ctypes.string_at(0)", "ended by SIGSEGV"),
    "killed": ("os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    "hang": (
        "x = cuda.to_device(np.zeros(1, np.float32)); gpu_benchmark(spin_for_ever[1, 1], x)",
        "took longer than 20 s (--gpukern-timeout)",
    ),
    "memory_that_is_not_there": ("cuda.device_array(1 << 42, np.float32)", "OUT_OF_MEMORY"),
}


@pytest.fixture
def project(pytester, plugin_option):
    def run(*options, context=0, **bodies):
        broken = "".join(BROKEN.format(name=name, body=body) for name, body in bodies.items())
        pytester.makepyfile(test_it=TESTS.replace("BROKEN", broken).replace("EXPECTED", str(context)))
        given = ("--gpu-benchmark", "--gpukern-timeout=20", "--gpukern-report=run.json", *options)
        return pytester.runpytest_subprocess(*plugin_option, *given)

    return run


def results_in(path):
    """The results of a run file by case."""
    return {each["case"]["id"]: each for each in whole_run(path)["results"]}


@pytest.fixture
def on_device():
    """Asks NVML for the processes with a context on the device."""
    from pytest_gpukern.gpu.nvml import open_nvml
    from pytest_gpukern.gpu.selection import select, visible_devices

    nvml = open_nvml()
    device = select(None, visible_devices(nvml, os.environ))
    yield lambda: sorted(process.pid for process in nvml.compute_processes(device.uuid))
    nvml.close()


def test_a_fault_fails_its_own_test_and_leaves_nothing_on_the_device(project, pytester, on_device):
    before = on_device()
    result = project(**{name: body for name, (body, _) in FAULTS.items()})
    result.assert_outcomes(passed=2 + len(FAULTS), failed=len(FAULTS))
    _, *sections = re.split(r"^_{3,} (test_\w+) _{3,}$", result.stdout.str(), flags=re.MULTILINE)
    failures = dict(zip(sections[::2], sections[1::2], strict=True))
    assert failures.keys() == {f"test_{name}" for name in FAULTS}
    for name, (_, why) in FAULTS.items():
        assert why in failures[f"test_{name}"]
    assert until(lambda: on_device() == before, 5.0)  # the driver may list a process longer than it lives
    found = results_in(pytester.path / "run.json")
    for name in ("before", *(f"after_{name}" for name in FAULTS)):
        assert found[f"test_it/test_{name}"]["correctness"] == "PASSED"
        assert found[f"test_it/test_{name}"]["measurements"]
        assert not any(each["invalid"] for each in found[f"test_it/test_{name}"]["measurements"])


DRIVER = "driver, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()"
CONTEXTS = {
    "closed": "cuda.close()",
    "another": f"{DRIVER}; assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0",
    "none": f"{DRIVER}; assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0",
}
"""What becomes of the primary context → how a test does it, once it was measured."""


def test_what_a_test_does_with_the_context_is_not_the_next_ones_fault(project, on_device):
    before = on_device()
    bodies = {name: f"doubled(gpu_benchmark); {does}" for name, does in CONTEXTS.items()}
    project(**bodies).assert_outcomes(passed=2 + 2 * len(CONTEXTS))
    assert until(lambda: on_device() == before, 5.0)  # the driver may list a process longer than it lives


HEARTBEAT = """
import threading
import time
x, out = ones(), ones()
def beats():
    while True:
        double[1, 128](x, out)
        cuda.synchronize()
        time.sleep(0.0005)
threading.Thread(target=beats, name="heartbeat", daemon=True).start()
"""


@pytest.mark.parametrize("measured", [True, False])
def test_a_thread_that_goes_on_launching_is_the_fault_of_the_test_that_left_it_alone(project, measured):
    lines = [*HEARTBEAT.strip().splitlines(), *(["doubled(gpu_benchmark, 64)"] if measured else [])]
    result = project(broken="\n    ".join(lines))
    if measured:
        result.assert_outcomes(passed=3, failed=1)
        # A launch that began before CUPTI recorded calls has no thread, and then no name.
        result.stdout.fnmatch_lines(["*INVALID*launched by a thread*that also works between *"])
    else:
        result.assert_outcomes(passed=4, errors=1)
        result.stdout.fnmatch_lines(
            ["*a thread (heartbeat) left running by this test kept launching on the GPU*"]
        )


def test_a_module_may_work_in_a_context_of_its_own(project, pytester):
    """As with `--gpukern-isolate=off` for its second test, and in a new process for each otherwise."""
    own = """
@pytest.fixture(scope="module", autouse=True)
def context():
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    yield
    assert driver.cuCtxDestroy_v2(context) == 0

@pytest.mark.parametrize("number", [1, 2])
def test_own(gpu_device, number):
    current = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(current), 64) == 0
"""
    pytester.makepyfile(test_as_own="import ctypes\nimport pytest\n" + own)
    for option in ("on", "off"):
        result = project("-k", "own or after", f"--gpukern-isolate={option}", broken="pass")
        result.assert_outcomes(passed=3, deselected=3)


def test_in_pytests_own_process_the_others_say_which_test_lost_the_context(project):
    result = project("--gpukern-isolate=off", context=1, broken="store_far[1, 64](ones())")
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["ERROR *test_after_broken - Failed: not run: this process lost its CUDA context in *test_broken *"]
    )


def test_a_worker_holds_no_context_and_goes_on_when_its_measuring_process_lost_one(project):
    pytest.importorskip("xdist")
    result = project("-n1", broken="store_far[1, 64](ones())")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.no_fnmatch_line("*replacing crashed worker*")


IN_A_PROBLEM = f"""{of_size(64)}{CASES}
from numba import cuda

@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i]

@doubling.variant("numba")
def too_many_threads(x, y, stream):
    return lambda: double[1, 2048, stream](x, y)  # the fault

@cuda.jit
def far_away(x, y, offset):
    i = cuda.grid(1)
    if i < x.size:
        y[i + offset] = 2 * x[i]

@doubling.variant("numba", offset=(1, 24, 35_184_372_088_832))
def strays(x, y, stream, offset):
    return lambda: far_away[1, 64, stream](x, y, offset)

@pytest.mark.gpu_benchmark(outputs=1)
def test_swallowed(gpu_benchmark):
    x = cuda.to_device(np.ones(64))
    try:
        gpu_benchmark(double[1, 32], x, cuda.device_array_like(x))
    except:
        pass

def test_unverified(gpu_benchmark):
    x = cuda.to_device(np.ones(64))
    gpu_benchmark(double[2, 32], x, cuda.device_array_like(x))

@pytest.mark.gpu_benchmark(timer="host")
def test_on_the_host(benchmark):
    assert benchmark(sorted, [2, 1]) == [1, 2]

@doubling.wrong("numba", expected_fault="launch failed", offset=(35_184_372_088_832,))
def strays_far(x, y, stream, offset):
    return lambda: far_away[1, 64, stream](x, y, offset)

@doubling.wrong_cases
def test_rejected(gpu_benchmark, case):
    gpu_benchmark.reject(case)

def test_after(gpu_benchmark):
    y = cuda.device_array(64)
    gpu_benchmark(double[1, 64], cuda.to_device(np.ones(64)), y)
    gpu_benchmark.verify(y, np.full(64, 2.0))
"""


def test_a_launch_that_is_refused_or_strays_is_named_and_what_is_swallowed_fails(pytester, plugin_option):
    """CUDA says nothing of what strays by little: the allocation is larger than the array.

    A variant that is rejected may lose the context, and the next test passes.
    """
    pytester.makepyfile(test_it=IN_A_PROBLEM)
    options = ("--gpu-benchmark", "--gpukern-report=run.json", "-rf")
    result = pytester.runpytest_subprocess(*plugin_option, *options)
    result.assert_outcomes(passed=4, failed=5)
    lines = IN_A_PROBLEM.strip().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith("# the fault")]
    told = f"launch failed: launching numba.too_many_threads, test_it.py:{line} in <lambda>: *"
    result.stdout.fnmatch_lines([f"INCORRECT: {told}"])
    beside = "* bytes written after the end of y, the nearest 1 element away: flat index 64 of 64*"
    result.stdout.fnmatch_lines(["*INCORRECT: y: out of bounds", beside] * 2)
    shown = result.stdout.str()
    assert "INCORRECT: launch failed: launching numba.strays" in shown
    # The driver's name or the runtime's, as the library has it that sees the error first.
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in shown or "cudaErrorIllegalAddress" in shown
    result.stdout.fnmatch_lines(["*still hold poison*", "  the test caught this and went on; *"])
    result.stdout.fnmatch_lines(["gpukern: *5 incorrect*2 unchecked*"])
    found = results_in(pytester.path / "run.json")
    (times,) = found["test_it/test_on_the_host"]["measurements"]
    assert (times["scope"], times["timer"], times["invalid"]) == ("kernel", "host", None)
