"""Tests each backend on a device: one context, no copies, work on the timed stream, memory given back."""

import ast
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from on_device import opened, skip_without

from pytest_gpukern import Output
from pytest_gpukern.timers.timer import Iteration
from pytest_gpukern.values.backend_table import BACKENDS

GPU_BACKENDS = [name for name, row in BACKENDS.items() if row.on_gpu]
SUITES = Path(__file__).parents[2] / "suites"
N = 1 << 26
PASSES = 20
"""Over 256 MiB of float32: a few milliseconds on any device, long after the host has launched the last."""


@pytest.fixture(params=GPU_BACKENDS)
def backend(request):
    return opened(request.param)


@pytest.fixture
def workspace(backend):
    made = backend.workspace({"x": np.ones(N, np.float32)}, {"y": Output((N,), "float32")})
    yield made
    made.close()
    backend.release()


def pointer_of(array):
    """Where an array lies; of a Dask array, its one chunk."""
    if hasattr(array, "__dask_graph__"):
        array = next(iter(array.dask.values()))
        array = getattr(array, "value", array)  # a data node, in newer versions
    return array.__cuda_array_interface__["data"][0]


# one context, one memory


def test_what_sessions_import_before_their_turn_makes_no_context():
    script = f"""
import importlib, importlib.util
from pytest_gpukern.gpu.libcuda import LibCuda
for module in {[module for name in GPU_BACKENDS for module in BACKENDS[name].imports]!r}:
    if importlib.util.find_spec(module.partition(".")[0]):
        importlib.import_module(module)
    assert not LibCuda().has_context(), module
"""
    folder = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)


def test_the_current_context_is_the_primary_one_inside_and_outside(backend):
    from pytest_gpukern.gpu.runtime import checked

    primary = int(checked("cuDevicePrimaryCtxRetain", 0))
    try:
        assert int(checked("cuCtxGetCurrent")) == primary
        with backend.current():
            assert int(checked("cuCtxGetCurrent")) == primary
        assert int(checked("cuCtxGetCurrent")) == primary
    finally:
        checked("cuDevicePrimaryCtxRelease", 0)


def test_arrays_are_the_workspaces_own_memory(workspace):
    assert pointer_of(workspace.arrays["x"]) == workspace._guarded["x"].pointer
    assert pointer_of(workspace.arrays["y"]) == workspace._guarded["y"].pointer


def read_by(library, array):
    """The same memory as an array of another library."""
    if library == "numba":
        from numba import cuda

        return cuda.as_cuda_array(array)
    if library == "cupy":
        import cupy

        return cupy.asarray(array)
    import torch

    return torch.as_tensor(array, device="cuda")


@pytest.mark.parametrize("reader", ["numba", "cupy", "torch"])
def test_another_library_reads_the_same_memory(backend, workspace, reader):
    opened(reader)
    read = read_by(reader, workspace.arrays["y"])
    assert pointer_of(read) == pointer_of(workspace.arrays["y"])
    assert tuple(read.shape) == (N,)


# the timed stream


def numba_work(arrays, stream):
    from numba import cuda

    @cuda.jit
    def add(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] + 1

    return lambda: [add[-(-N // 256), 256, stream](arrays["x"], arrays["y"]) for _ in range(PASSES)]


def cupy_work(arrays, stream):
    import cupy

    def launch():
        with stream:
            for _ in range(PASSES):
                cupy.add(arrays["x"], 1, out=arrays["y"])

    return launch


def pycuda_work(arrays, stream):
    from pycuda.elementwise import ElementwiseKernel

    add = ElementwiseKernel("float *x, float *y", "y[i] = x[i] + 1.0f", "add_one")
    return lambda: [add(arrays["x"], arrays["y"], stream=stream) for _ in range(PASSES)]


def skcuda_work(arrays, stream):
    from skcuda import cublas, misc

    n = math.isqrt(N // 4)
    x, y = arrays["x"].gpudata, arrays["y"].gpudata

    def launch():
        handle = misc._global_cublas_handle
        before = cublas.cublasGetStream(handle)
        cublas.cublasSetStream(handle, stream.handle)
        try:
            cublas.cublasSgemm(handle, "n", "n", n, n, n, 1.0, x, n, x, n, 0.0, y, n)
        finally:
            cublas.cublasSetStream(handle, before)

    return launch


def torch_work(arrays, stream):
    import torch

    def launch():
        with torch.cuda.stream(stream):
            for _ in range(PASSES):
                torch.add(arrays["x"], 1, out=arrays["y"])

    return launch


def dask_work(arrays, stream):
    lazy = arrays["x"]
    for _ in range(PASSES):
        lazy = lazy + 1

    def launch():
        with stream:
            lazy.compute()

    return launch


def triton_work(arrays, stream):
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add_one(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    size = arrays["x"].numel()

    def launch():
        with torch.cuda.stream(stream):
            for _ in range(PASSES):
                add_one[(triton.cdiv(size, 1024),)](arrays["x"], arrays["y"], size, BLOCK=1024)

    return launch


WORK = {
    "numba": numba_work,
    "cupy": cupy_work,
    "pycuda": pycuda_work,
    "skcuda": skcuda_work,
    "torch": torch_work,
    "triton": triton_work,
    "dask": dask_work,
}


def another_stream(name):
    """A stream of the library's own, which waits for no other."""
    if name == "numba":
        from numba import cuda

        return cuda.stream()
    if name in ("cupy", "dask"):
        import cupy

        return cupy.cuda.Stream(non_blocking=True)
    if name in ("pycuda", "skcuda"):
        import pycuda.driver

        return pycuda.driver.Stream(1)  # CU_STREAM_NON_BLOCKING
    import torch

    return torch.cuda.Stream()


def test_work_on_the_timed_stream_is_in_the_time(runtime, backend, workspace):
    from pytest_gpukern.timers.event import EventTimer

    call = WORK[backend.name](workspace.arrays, backend.stream)
    with backend.current():
        call()  # compiled
        timer = EventTimer(runtime, backend.timed_stream)
        assert timer.suspicion(Iteration(call)) is None
        backend.synchronize()
        call()
        launched_ns = time.perf_counter_ns()
        backend.synchronize()
        outlasts_the_launch_ns = time.perf_counter_ns() - launched_ns
        samples = timer.collect([Iteration(call)] * 3, cold=False).samples_ns
    assert outlasts_the_launch_ns > 2e5, "the work hides behind its launch, and shows nothing"
    assert np.median(samples) > outlasts_the_launch_ns / 2


def test_work_on_another_stream_is_found(runtime, backend, workspace):
    from pytest_gpukern.timers.event import EventTimer

    call = WORK[backend.name](workspace.arrays, another_stream(backend.name))
    with backend.current():
        call()
        found = EventTimer(runtime, backend.timed_stream).suspicion(Iteration(call))
    backend.synchronize()
    assert found is not None
    assert "outside the timed stream" in found


def test_cupti_sees_every_kernel_on_the_timed_stream(runtime, backend, workspace):
    from pytest_gpukern.timers.cupti.timer import CuptiTimer
    from pytest_gpukern.timers.timer import TimerUnavailable

    call = WORK[backend.name](workspace.arrays, backend.stream)
    with backend.current():
        call()
        try:
            timer = CuptiTimer(runtime, backend.timed_stream)
        except TimerUnavailable as reason:
            pytest.skip(str(reason))
        assert timer.suspicion(Iteration(call)) is None


def test_launches_that_name_no_stream_go_to_the_timed_one(runtime, backend, workspace):
    """PyCUDA launches them on the legacy default stream, which the timed stream waits for."""
    from pytest_gpukern.timers.event import EventTimer

    x, y = workspace.arrays["x"], workspace.arrays["y"]
    if backend.name == "numba":
        pytest.skip("Numba launches on its default stream unless a launch names another")
    if backend.name in ("pycuda", "skcuda"):

        def call():
            return [y.fill(1.0) for _ in range(PASSES)]
    elif backend.name == "dask":

        def call():
            return (x + 1).compute()
    else:

        def call():
            for _ in range(PASSES):
                y[:] = x

    with backend.current():
        call()
        assert EventTimer(runtime, backend.timed_stream).suspicion(Iteration(call)) is None


def test_cublas_of_scikit_cuda_is_on_the_timed_stream_only_while_that_is_current():
    backend = opened("skcuda")
    from skcuda import cublas, misc

    from pytest_gpukern.backends import skcuda_imports

    before = cublas.cublasGetStream(misc._global_cublas_handle)
    with backend.current():
        assert cublas.cublasGetStream(misc._global_cublas_handle) == backend.stream.handle
    assert cublas.cublasGetStream(misc._global_cublas_handle) == before
    assert [note.startswith("scikit-cuda 0.5.3: ") for note in skcuda_imports.notes()] == [True]


# memory


def allocation(name, x):
    """A callable that makes an array as large as `x` by the library's own means."""
    if name == "numba":
        from numba import cuda

        return lambda: cuda.device_array(N, np.float32)
    if name == "skcuda":
        from skcuda import linalg

        square = x.reshape(math.isqrt(N), math.isqrt(N))
        return lambda: linalg.dot(square, square)
    if name == "dask":
        return lambda: (x + 1).compute()
    return lambda: x + 1


def test_what_a_variant_allocated_is_given_back(runtime, backend, workspace):
    allocate = allocation(backend.name, workspace.arrays["x"])
    with backend.current():
        allocate()  # and whatever its library keeps for good
        backend.synchronize()
        backend.release()
        before = runtime.free_bytes()
        held = [allocate() for _ in range(4)]
        backend.synchronize()
        assert runtime.free_bytes() <= before - 3 * 4 * N
        held.clear()
    backend.release()
    assert runtime.free_bytes() >= before - 2 * N  # half of one array


# the suites


@pytest.mark.parametrize("name", ["pycuda", "skcuda", "torch", "triton", "dask"])
def test_every_variant_of_the_suites_is_right_and_every_broken_one_rejected(pytester, plugin_option, name):
    skip_without(name)
    args = (SUITES, *plugin_option, f"--gpukern-backend={name}", "-v", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*args)
    mine = [line for line in result.outlines if f"/{name}." in line and "::" in line]
    assert mine
    judged = [line for line in mine if any(f"[{variant}/" in line for variant in judged_by_a_sanitizer())]
    assert not [line for line in judged if " SKIPPED" not in line]
    assert not [line for line in mine if line not in judged and " PASSED" not in line]
    assert result.ret == 0


def judged_by_a_sanitizer():
    """The suites' broken variants, as `matmul/pycuda.name`, that an ordinary run skips."""
    from pytest_gpukern.problems.discovery import declared_variants

    return {
        f"{path.parent.name}/{declared.backend}.{declared.function}"
        for path in SUITES.glob("*/wrong*.py")
        for declared in declared_variants(ast.parse(path.read_text(encoding="utf-8")), path)
        if "detected_by" in declared.arguments
    }
