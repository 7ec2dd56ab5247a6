"""Tests our own kernels on the device: comparing, hashing, poisoning."""

import numpy as np
import pytest

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.backends.host import HostBackend


@pytest.fixture
def upload(array):
    def run(host):
        on_device = array(host.shape, host.dtype)
        on_device.upload(host)
        return on_device

    return run


@pytest.fixture
def compared(runtime, upload):
    """Compares arrays on the device and on the host."""
    from pytest_gpukern.backends.foreign_array import users_array
    from pytest_gpukern.backends.gpu_backend import compare_on_device

    def run(actual, expected, tolerance):
        place = users_array(upload(actual))
        on_device = compare_on_device(runtime, place, expected, tolerance, comparison.POISON)
        return on_device, comparison.compare(actual, expected, tolerance)

    return run


def damaged(actual, rng):
    """Poison, NaN, a wrong value and an infinity at known places."""
    broken = actual.copy()
    flat = broken.reshape(-1)
    if broken.dtype.kind == "f":
        flat[3] *= 1.5
        flat[11] = np.nan
        flat[12] = np.inf
    else:
        flat[3] += 2
    raw = flat.view(np.uint8)
    pattern = np.frombuffer(np.uint32(comparison.POISON).tobytes(), np.uint8)
    width = flat.dtype.itemsize
    for index in (16, 17, flat.size - 1):
        for byte in range(width):
            raw[index * width + byte] = pattern[(index * width + byte) % 4]
    return broken


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64"]
)
def test_the_device_comparison_agrees_with_the_host_comparison(compared, dtype):
    rng = np.random.default_rng(7)
    if dtype.startswith("float"):
        expected = rng.standard_normal((37, 1013)).astype(np.float64 if dtype != "float16" else np.float32)
    else:
        expected = rng.integers(0, 100, (37, 1013)).astype(dtype)
    actual = damaged(expected.astype(dtype), rng)
    on_device, on_host = compared(actual, expected, Tolerance(rtol=1e-6, atol=1e-9))
    assert on_host.unwritten == 3
    assert_alike(on_device, on_host)


def assert_alike(on_device, on_host):
    for name in ("shape", "mismatches", "unwritten", "unexpected_nan", "first_unwritten"):
        assert getattr(on_device, name) == getattr(on_host, name), name
    for name in ("first_mismatch", "absolute", "relative", "ulp"):
        ours, theirs = getattr(on_device, name), getattr(on_host, name)
        assert ours.value == pytest.approx(theirs.value, rel=1e-12), name
        assert ours.index == theirs.index, name


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64"])
def test_integers_within_a_tolerance_pass_on_the_device_as_on_the_host(compared, dtype):
    expected = np.arange(100, dtype=dtype)
    actual = expected + np.arange(100).astype(dtype) % 3
    for tolerance, mismatches in ((Tolerance(atol=1), 33), (Tolerance(atol=2), 0), (Tolerance(), 66)):
        assert [each.mismatches for each in compared(actual, expected, tolerance)] == [mismatches] * 2


def test_poison_is_not_written_where_the_reference_is_nan_either(compared):
    expected = np.array([np.nan, np.nan, 1.0])
    actual = np.array([0, 0, 0], np.uint32)
    actual[0] = comparison.POISON
    actual = actual.view(np.float32)
    actual[1:] = np.nan, 1.0
    for found in compared(actual, expected, Tolerance()):
        assert (found.mismatches, found.unwritten, found.first_unwritten) == (1, 1, 0)


def test_an_infinite_reference_is_met_by_the_same_infinity_only(compared):
    expected = np.array([np.inf, np.inf, -np.inf, np.inf, np.nan, 1.0, 0.0])
    actual = np.array([np.inf, 1e30, np.inf, np.nan, np.nan, np.nan, -0.0], np.float32)
    on_device, on_host = compared(actual, expected, Tolerance(rtol=1e-3))
    assert (on_device.mismatches, on_device.unexpected_nan) == (on_host.mismatches, on_host.unexpected_nan)
    assert on_device.mismatches == 4
    assert on_device.first_mismatch.index == on_host.first_mismatch.index == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "float64", "int8", "int32"])
def test_a_large_output_on_the_host_compares_on_the_device_as_on_the_host(runtime, dtype):
    drawn = np.random.default_rng(3).standard_normal(2**21)
    actual, expected = drawn.astype(dtype), drawn if np.dtype(dtype).kind == "f" else drawn.astype(dtype)
    workspace = HostBackend().workspace({}, {"out": Output(actual.shape, dtype)})
    workspace.arrays["out"][7:] = damaged(actual, np.random.default_rng(4))[7:]
    found = workspace.compare("out", expected, Tolerance(rtol=1e-3))
    assert_alike(found, comparison.compare(workspace.arrays["out"], expected, Tolerance(rtol=1e-3)))
    assert found.mismatches >= 7


def test_a_hash_sees_one_changed_bit_and_two_swapped_words(runtime, upload):
    host = np.random.default_rng(1).integers(0, 2**32, 100_003, dtype=np.uint32)
    flipped, swapped = host.copy(), host.copy()
    flipped[77_777] ^= 1
    swapped[[5, 6]] = swapped[[6, 5]]
    hashes = {runtime.hash(upload(array)) for array in (host, flipped, swapped, host.copy())}
    assert len(hashes) == 3


def test_a_hash_sees_a_change_in_the_bytes_after_the_last_word(runtime, upload):
    host = np.arange(101, dtype=np.uint8)
    other = host.copy()
    other[-1] ^= 128
    assert runtime.hash(upload(host)) != runtime.hash(upload(other))


@pytest.fixture
def workspace():
    """An input and an output that ends in the middle of a word."""
    from pytest_gpukern.backends.gpu_backend import GpuBackend

    made = GpuBackend().workspace({"a": np.arange(1001.0)}, {"out": Output((1001,), np.float16)})
    yield made
    made.close()


def test_outputs_are_poisoned_with_two_patterns_in_turn(runtime, workspace):
    zeros = np.zeros(1001)
    first = workspace.fetch("out").view(np.uint16).tolist()
    assert workspace.compare("out", zeros, Tolerance()).unwritten == 1001
    workspace.poison()
    second = workspace.fetch("out").view(np.uint16).tolist()
    assert workspace.compare("out", zeros, Tolerance()).unwritten == 1001
    assert not set(first) & set(second)
    workspace.queue_poison(runtime.stream)
    runtime.synchronize()
    assert workspace.fetch("out").view(np.uint16).tolist() == second


WRITE = r"""
extern "C" __global__ void write_at(double *values, long long index, double value) {
  if (!(blockIdx.x | threadIdx.x)) values[index] = value;
}
extern "C" __global__ void write_half_at(unsigned short *values, long long index, unsigned short value) {
  if (!(blockIdx.x | threadIdx.x)) values[index] = value;
}
"""


@pytest.mark.parametrize("index", [-1024, -1, 1001, 1001 + 1023])
def test_a_kernel_that_writes_beside_an_input_is_seen(runtime, workspace, index):
    assert workspace.damage() == []
    kernel, pointer = runtime.kernel(WRITE, "write_at"), workspace.arrays["a"].pointer
    runtime.launch(kernel, 1, pointer, np.int64(1000), np.float64(3))
    runtime.synchronize()
    assert workspace.damage() == [], "inside"
    runtime.launch(kernel, 1, pointer, np.int64(index), np.float64(3))
    runtime.synchronize()
    (found,) = workspace.damage()
    assert (found.array, found.behind, found.index, found.size) == ("a", index > 0, index, 1001)
    assert found.changed_bytes == 8


@pytest.mark.parametrize("index", [-1, 1001])
def test_a_kernel_that_writes_beside_an_output_is_seen_in_the_rest_of_the_last_word_too(
    runtime, workspace, index
):
    workspace.queue_poison(runtime.stream)
    runtime.synchronize()
    assert workspace.damage() == [], "poison fills whole words"
    kernel = runtime.kernel(WRITE, "write_half_at")
    runtime.launch(kernel, 1, workspace.arrays["out"].pointer, np.int64(index), np.uint16(0))
    runtime.synchronize()
    (found,) = workspace.damage()
    assert (found.array, found.behind, found.index) == ("out", index > 0, index)


# work that outlives the call

TWICE = r"""
extern "C" __global__ void twice(const float *a, float *out, unsigned long long n) {
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * a[i];
}
"""


@pytest.mark.parametrize("size", [257, 1 << 24])
@pytest.mark.parametrize(
    ("how", "late"),
    [
        ("on the given stream", []),
        ("on another that forks and joins", []),
        ("on another that the host waits for", []),
        ("on another", ["out"]),
        ("on another that forks only", ["out"]),
        ("on the default stream", ["out"]),
    ],
)
def test_only_what_nobody_waits_for_is_written_late_whatever_its_size(runtime, size, how, late):
    from cuda.core import LaunchConfig, launch

    from pytest_gpukern.backends.gpu_backend import GpuBackend

    kernel, aside = runtime.kernel(TWICE, "twice"), runtime.device.create_stream()
    config = LaunchConfig(grid=-(-size // 256), block=256)
    output = {"out": Output((size,), "float32")}
    workspace = GpuBackend().workspace({"a": np.ones(size, "float32")}, output)
    a, out = workspace.arrays["a"], workspace.arrays["out"]

    def call():
        used = runtime.stream if how == "on the given stream" else aside
        if how == "on the default stream":
            used = runtime.device.default_stream
        if "forks" in how:
            aside.wait(runtime.stream.record())
        launch(used, config, kernel, a.pointer, out.pointer, np.uint64(size))
        if "joins" in how:
            runtime.stream.wait(aside.record())
        if "host" in how:
            aside.sync()

    call()
    runtime.synchronize()
    for _ in range(5):
        assert workspace.written_late(call, hold_ns=1e6) == late
        assert (workspace.fetch("out") == 2).all()
    workspace.close()


def test_nothing_else_runs_while_the_device_is_occupied_and_copies_do(runtime):
    from cuda.core import LaunchConfig, launch

    from pytest_gpukern.gpu.runtime import DeviceArray, checked, cuda_source

    empty = runtime.kernel(cuda_source("launch.cu"), "gpukern_empty")
    launch(runtime.stream, LaunchConfig(grid=1, block=1), empty)
    runtime.occupy(1e3)
    runtime.synchronize()
    host, array = int(checked("cuMemHostAlloc", 4096, 0)), DeviceArray((4096,), np.uint8)
    other = runtime.device.create_stream()
    runtime.occupy(5e7)
    launch(runtime.stream, LaunchConfig(grid=1, block=1), empty)
    checked("cuMemcpyDtoHAsync", host, array.pointer, 4096, int(other.handle))
    launched, copied = runtime.stream.record(), other.record()
    copied.sync()
    assert not launched.is_done
    launched.sync()
    checked("cuMemFreeHost", host)
    array.free()
