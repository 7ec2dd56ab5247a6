"""Tests NVML's state, the clock probe and the theoretical peaks on a real device under a known load."""

import itertools
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from on_device import SPIN, opened

from pytest_gpukern.gpu.nvml import open_nvml
from pytest_gpukern.gpu.processes import DeviceWatch
from pytest_gpukern.gpu.theory import peaks_of
from pytest_gpukern.measure.device_clocks import batch_fault, device_notes
from pytest_gpukern.measure.plausibility import below_floor
from pytest_gpukern.timers.timer import Iteration

STRANGER = """
import numpy as np, sys, time
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
device = Device(0)
device.set_current()
stream = device.create_stream()
options = ProgramOptions(arch=f"sm_{device.arch}")
spin = Program(sys.argv[1], "c++", options).compile("cubin").get_kernel("spin")
until = time.monotonic() + 6
while time.monotonic() < until:
    launch(stream, LaunchConfig(grid=64, block=32), spin, np.uint64(50_000_000))
    stream.sync()
"""

COPIER = """
import ctypes, time
from cuda.core import Device
device = Device(0)
device.set_current()
cuda, nbytes = ctypes.CDLL("libcuda.so.1"), 64 << 20
host, array = ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(nbytes), 0)
assert not cuda.cuMemAlloc_v2(ctypes.byref(array), ctypes.c_size_t(nbytes))
until = time.monotonic() + 4
while time.monotonic() < until:
    assert not cuda.cuMemcpyHtoD_v2(array, host, ctypes.c_size_t(nbytes))
time.sleep(8)
"""


def started_elsewhere(script, *arguments):
    """Runs a script in the background of a shell that ends, so that it is no child of ours."""
    shell = ["sh", "-c", '"$0" -c "$@" >/dev/null 2>&1 &', sys.executable, script, *arguments]
    subprocess.run(shell, check=True)


def say(*what):
    """Figures that are worth reading with `pytest -rP`."""
    sys.stdout.write(" ".join(str(each) for each in what) + "\n")


@pytest.fixture
def runtime(gpu_device):
    from pytest_gpukern.gpu.runtime import runtime

    return runtime()


@pytest.fixture
def nvml():
    with open_nvml() as opened:
        yield opened


@pytest.fixture
def watch(nvml, gpu_device, runtime):
    return DeviceWatch(nvml, gpu_device)


@pytest.fixture
def load(runtime):
    """Keeps half of the multiprocessors busy for some milliseconds, on a stream of its own."""
    from cuda.core import LaunchConfig, launch

    kernel = runtime.kernel(SPIN, "spin")
    stream = runtime.device.create_stream()
    blocks = runtime.device.properties.multiprocessor_count // 2

    def run(ms):
        launch(stream, LaunchConfig(grid=blocks, block=128), kernel, np.uint64(int(ms * 1e6)))

    run(1)
    yield run
    stream.sync()


def test_a_state_is_plausible_and_its_counters_of_throttling_never_fall(watch, nvml, gpu_device, load):
    load(200)
    time.sleep(0.1)
    state = watch.state()
    limits = nvml.limits(gpu_device.uuid)
    say(state)
    assert 100 < state.sm_clock_mhz <= limits.sm_clock_mhz
    assert 100 < state.memory_clock_mhz <= limits.memory_clock_mhz
    assert state.clock_events is not None
    assert 10 < state.temperature_c < 100
    assert 0 < state.memory_used_bytes <= gpu_device.memory_total_bytes
    if gpu_device.mig_profile is None:
        assert 20 < state.power_w < 2000
    time.sleep(0.15)
    later = watch.state()
    assert later.limited_ns.keys() == state.limited_ns.keys()
    assert all(later.limited_ns[name] >= ns >= 0 for name, ns in state.limited_ns.items())


def test_the_probe_reads_nvmls_clock_under_load_but_more_finely(runtime, watch, load):
    from pytest_gpukern.gpu.clock_probe import ClockProbe

    probe = ClockProbe(runtime)
    load(600)
    time.sleep(0.2)
    before = watch.state().sm_clock_mhz
    readings = [probe.read() for _ in range(20)]
    after = watch.state().sm_clock_mhz
    say(f"NVML {before} and {after} MHz, probe {min(readings):.2f} to {max(readings):.2f} MHz")
    assert np.median(readings) == pytest.approx((before + after) / 2, rel=0.02)
    assert max(readings) <= 1.01 * min(readings)


def copying(runtime, nbytes):
    """A device-to-device copy of `nbytes`, and what it needs to be timed."""
    from pytest_gpukern.gpu.runtime import DeviceArray, checked

    source, target = DeviceArray((nbytes,), np.uint8), DeviceArray((nbytes,), np.uint8)
    checked("cuMemsetD8", source.pointer, 7, nbytes)
    runtime.synchronize()

    def copy(count=nbytes):
        checked("cuMemcpyDtoDAsync", target.pointer, source.pointer, count, int(runtime.stream.handle))

    return copy, (source, target)


def test_a_copy_takes_longer_than_its_floor_and_half_of_it_is_caught(runtime, nvml, gpu_device):
    from pytest_gpukern.timers.event import EventTimer

    nbytes = min(1 << 30, gpu_device.memory_free_bytes // 4)
    copy, arrays = copying(runtime, nbytes)
    try:
        timer = EventTimer(runtime)
        whole = np.median(timer.collect([Iteration(copy)] * 20, cold=True).samples_ns)
        half = np.median(timer.collect([Iteration(lambda: copy(nbytes // 2))] * 20, cold=True).samples_ns)
    finally:
        for array in arrays:
            array.free()
    peaks = peaks_of(nvml, gpu_device, runtime.device.properties)
    floor = peaks.floor(cache="cold", traffic_bytes=2 * nbytes)
    say(peaks)
    say(f"{whole / 1e3:.1f} µs, floor {floor.ns / 1e3:.1f} µs: {floor.bound}")
    assert below_floor(whole, floor) is None
    assert "memory's theoretical bandwidth" in below_floor(half, floor)
    assert floor.ns > 0.6 * whole


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_matrix_product_takes_longer_than_its_floor(runtime, nvml, gpu_device, dtype):
    cupy = pytest.importorskip("cupy")
    from pytest_gpukern.timers.event import EventTimer

    n = 4096
    backend = opened("cupy")
    with backend.current():
        rng = np.random.default_rng(1)
        a, b = (cupy.asarray(rng.standard_normal((n, n)).astype(dtype)) for _ in range(2))
        out = cupy.empty((n, n), dtype)
        cupy.matmul(a, b, out=out)
        backend.synchronize()
        product = Iteration(lambda: cupy.matmul(a, b, out=out))
        samples = EventTimer(runtime).collect([product] * 20, cold=True).samples_ns
    median = np.median(samples)
    peaks = peaks_of(nvml, gpu_device, runtime.device.properties)
    work = 3 * n * n * np.dtype(dtype).itemsize
    floor = peaks.floor(cache="cold", traffic_bytes=work, flops=2 * n**3, dtypes=(dtype,))
    say(f"{dtype}: {median / 1e3:.1f} µs, floor {floor.ns / 1e3:.1f} µs: {floor.bound}")
    assert below_floor(median, floor) is None
    backend.release()


def test_a_process_of_somebody_else_is_seen_when_it_comes_and_while_it_computes(watch, nvml, gpu_device):
    if os.getpid() not in {process.pid for process in nvml.compute_processes(gpu_device.uuid)}:
        pytest.skip("NVML's process ids are not this namespace's: one beside us in a sandbox may share ours")
    quiet = watch.state()
    started_elsewhere(STRANGER, SPIN)
    deadline = time.monotonic() + 20
    came = watch.state()
    while came.foreign == quiet.foreign and time.monotonic() < deadline:
        time.sleep(0.1)
        came = watch.state()
    assert len(came.foreign) == len(quiet.foreign) + 1
    fault = batch_fault(quiet, came)
    assert fault is not None
    assert fault.startswith("another process")
    time.sleep(2.5)  # the driver samples utilization up to once a second
    busy = watch.state()
    say(batch_fault(came, busy), nvml.utilization(gpu_device.uuid, 0))
    while watch.state().foreign != quiet.foreign and time.monotonic() < deadline + 10:
        time.sleep(0.2)


@pytest.mark.parametrize("direction", ["cuMemcpyHtoD", "cuMemcpyDtoH"])
def test_copies_over_pcie_are_seen_while_they_go_on_and_not_before_or_after(
    watch, runtime, gpu_device, direction
):
    from pytest_gpukern.gpu.runtime import DeviceArray, checked

    quiet = watch.state()
    if quiet.pcie_bytes_per_s is None:
        pytest.skip(f"NVML counts no bytes over PCIe for {gpu_device}")
    nbytes = 64 << 20
    host, array, end = int(checked("cuMemHostAlloc", nbytes, 0)), DeviceArray((nbytes,), np.uint8), []

    def copy():
        runtime.device.set_current()
        places = (array.pointer, host) if direction == "cuMemcpyHtoD" else (host, array.pointer)
        while not end:
            checked(direction, *places, nbytes)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        time.sleep(0.2)
        seen = [watch.state() for _ in range(20)]
    finally:
        end.append(True)
        thread.join()
    after = [watch.state() for _ in range(20)]
    rates = {"before": [quiet], "meanwhile": seen, "after": after}
    say({name: [f"{state.pcie_bytes_per_s / 1e9:.3f}" for state in states] for name, states in rates.items()})
    assert min(state.pcie_bytes_per_s for state in seen) > 10 * max(state.pcie_bytes_per_s for state in after)
    assert any("over PCIe while this run waited" in note for note in device_notes(seen)) or seen[-1].foreign
    assert not any("PCIe" in note for note in device_notes(after))
    checked("cuMemFreeHost", host)
    array.free()


def test_a_batch_is_disturbed_while_a_process_that_nvml_names_copies_and_not_once_it_rests(
    watch, nvml, gpu_device
):
    if os.getpid() not in {process.pid for process in nvml.compute_processes(gpu_device.uuid)}:
        pytest.skip("NVML's process ids are not this namespace's: one beside us in a sandbox may share ours")
    quiet = watch.state()
    if quiet.pcie_bytes_per_s is None:
        pytest.skip(f"NVML counts no bytes over PCIe for {gpu_device}")
    started_elsewhere(COPIER)
    deadline = time.monotonic() + 20
    while watch.state().foreign == quiet.foreign and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    seen = [watch.state() for _ in range(20)]
    faults = [batch_fault(before, now) for before, now in itertools.pairwise(seen)]
    say(faults[-1], [f"{state.pcie_bytes_per_s / 1e9:.3f}" for state in seen])
    assert all(fault and fault.startswith("another process") for fault in faults)
    time.sleep(4)
    rests = [watch.state() for _ in range(20)]
    say(rests[-1].foreign)
    assert len(rests[-1].foreign) == len(quiet.foreign) + 1
    assert not any(batch_fault(before, now) for before, now in itertools.pairwise(rests))
    while watch.state().foreign != quiet.foreign and time.monotonic() < deadline + 15:
        time.sleep(0.2)
