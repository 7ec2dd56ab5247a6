"""Device arrays, and the copies that buffer sets are filled from, with a driver that uses host memory."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from host_cuda import HostRuntime

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.arrays.compare import POISON, compare
from pytest_gpukern.arrays.memory import OUTPUT_GUARD
from pytest_gpukern.backends import gpu_backend
from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.runtime import DeviceArray

STREAM = HostRuntime.stream


# arrays


@pytest.mark.parametrize("stream", [None, STREAM])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_a_fill_reaches_the_last_byte_and_is_queued_where_a_stream_is_given(driver, stream, count):
    array = DeviceArray((count,), np.uint16)
    array.fill(0x11223344, stream)
    assert (
        array.download().tolist() == [0x3344, 0x1122, 0x3344, 0x1122, 0x3344, 0x1122, 0x3344, 0x1122][:count]
    )
    sync, words, rest = "Async" if stream else "", count // 2, 2 * (count % 2)
    filled = [f"cuMemsetD32{sync}"] * bool(words) + [f"cuMemsetD8{sync}"] * rest
    assert driver.calls == ["cuMemAlloc", *filled, *["cuMemcpyDtoH"] * bool(count)]


@pytest.mark.parametrize("stream", [None, STREAM])
def test_under_a_sanitizer_an_allocation_ends_where_its_array_does_and_is_still_filled(
    driver, stream, monkeypatch
):
    monkeypatch.setenv("GPUKERN_UNDER_SANITIZER", "memcheck")
    for count, held in ((0, 1), (1, 1), (3, 3), (4, 4), (7, 7)):
        array = DeviceArray((count,), np.uint8, guard=0x7FFE7FFE)
        assert len(driver.allocated[array.pointer]) == held
        array.fill(0x44332211, stream)
        assert array.download().tolist() == [0x11, 0x22, 0x33, 0x44, 0x11, 0x22, 0x33][:count]
        assert array.damage("x") == []


def test_what_is_an_input_and_an_output_is_put_back_instead_of_poisoned(runtime, driver):
    before = {"a": np.arange(4.0), "sums": np.array([7.0, 8.0])}
    outputs = {"sums": Output((2,), "float64"), "out": Output((3,), "float64")}
    made = GpuBackend().workspace(before, outputs)
    for stream in (None, STREAM):
        made.arrays["sums"].upload(np.zeros(2))
        made.queue_poison(stream)
        assert made.fetch("sums").tolist() == [7.0, 8.0]
        assert np.isnan(made.fetch("out")).all()
    made.fill({**before, "sums": np.array([1.0, 2.0])})
    assert made.fetch("sums").tolist() == [1.0, 2.0]
    made.load(before)
    assert made.fetch("sums").tolist() == [7.0, 8.0], "as a user's copy from the host"
    assert list(made.input_spans()) == ["a"]
    assert made.damage() == []
    made.close()
    runtime.forget_copies()
    assert driver.used_bytes == 0


# guard zones


def write(address, contents):
    """As a kernel would, wherever that is."""
    ctypes.memmove(address, contents, len(contents))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 257])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("filled", [None, POISON])
def test_one_element_on_either_side_is_damage_next_to_the_array(driver, count, dtype, filled):
    array = DeviceArray((count,), dtype, guard=OUTPUT_GUARD)
    if filled is not None:
        array.fill(filled)
    one = np.ones(1, dtype).tobytes()
    write(array.pointer + array.nbytes, one)
    (found,) = array.damage("out")
    assert (found.behind, found.index, found.size) == (True, count, count)
    write(array.pointer - len(one), one)
    before, behind = array.damage("out")
    assert (before.behind, before.index) == (False, -1)
    assert behind == found


def test_a_workspace_says_which_of_its_arrays_were_written_beside(runtime, driver):
    made = workspace_of({"a": np.arange(4.0), "k": 3})
    assert made.damage() == []
    for queued in (STREAM, None):
        made.queue_poison(queued)
        assert made.damage() == [], "five floats and their poison end with a word"
    write(made.arrays["a"].pointer - 8, bytes(8))
    write(made.arrays["out"].pointer + 5 * 4, bytes(4))
    assert [(found.array, found.behind, found.index) for found in made.damage()] == [
        ("a", False, -1),
        ("out", True, 5),
    ]


# what lies on the host


@pytest.mark.parametrize(
    ("nbytes", "dtype", "total_bytes", "own_context", "on_device"),
    [
        (2**20, "float64", 2**30, False, True),
        (2**19, "float64", 2**30, False, False),
        (2**20, "complex128", 2**30, False, False),
        (2**20, "float64", 2**21, False, False),
        (2**20, "float64", 2**30, True, False),
    ],
)
def test_a_large_output_on_the_host_is_compared_where_its_reference_lies(
    runtime, driver, monkeypatch, nbytes, dtype, total_bytes, own_context, on_device
):
    def compared(runtime, place, *others):
        return compare(np.frombuffer(ctypes.string_at(place.pointer, nbytes), dtype), *others[:2]), runtime

    driver.total_bytes = total_bytes
    for name, given in (("runtime_in_use", lambda: runtime), ("in_own_context", lambda: own_context)):
        monkeypatch.setattr(cuda, name, given)
    monkeypatch.setattr(gpu_backend, "compare_on_device", compared)
    expected = np.full(nbytes // np.dtype(dtype).itemsize, 3, dtype)
    made = HostBackend().workspace({}, {"y": Output(expected.shape, dtype)})
    made.arrays["y"][...], made.arrays["y"][7] = 3, 4
    found = made.compare("y", expected, Tolerance())
    alone = compare(made.arrays["y"], expected, Tolerance())
    assert found == ((alone, runtime) if on_device else alone)
    assert driver.used_bytes == 0
    monkeypatch.setattr(cuda, "runtime_in_use", lambda: None)
    assert made.compare("y", expected, Tolerance()) == alone, "this process uses no GPU"


# copies


def test_a_copy_is_made_once_while_its_array_lives_and_freed_at_the_next_or_at_once(runtime, driver):
    host, other = np.arange(64.0), np.ones(64)
    copy = runtime.copy_of(host)
    assert runtime.copy_of(host) is copy
    assert copy.download().tolist() == host.tolist()
    assert driver.calls.count("cuMemcpyHtoD") == 1
    del host
    gc.collect()
    kept = runtime.copy_of(other)
    assert driver.used_bytes == 64 * 8
    runtime.copy_of(np.ones(32))
    runtime.forget_dead_copies()
    assert driver.used_bytes == 64 * 8
    assert runtime.copy_of(other) is kept
    runtime.forget_copies()
    assert runtime.free_bytes() == driver.total_bytes
    assert runtime.copy_of(other).download().tolist() == [1.0] * 64, "and made anew"


def test_an_array_with_the_id_of_one_that_is_gone_has_its_own_copy(runtime, driver):
    gone, host = np.zeros(64), np.ones(64)
    copy = runtime.copy_of(gone)
    runtime._copies = {id(host): runtime._copies.pop(id(gone))}
    del gone
    assert runtime.copy_of(host).download().tolist() == [1.0] * 64
    assert copy.pointer == 0
    assert driver.used_bytes == 64 * 8


def test_copies_take_a_quarter_of_the_memory_and_the_one_longest_unused_goes_first(runtime, driver):
    driver.total_bytes = 4 * 3 * 800
    arrays = [np.full(100, float(number)) for number in range(4)]
    a, b, c, d = arrays
    kept = [runtime.copy_of(array) for array in (a, b, c)]
    assert runtime.copy_of(a) is kept[0], "used again, so that b is the longest unused"
    runtime.copy_of(d)
    assert driver.used_bytes == 3 * 800
    assert runtime.copy_of(a) is kept[0]
    assert runtime.copy_of(c) is kept[2]
    assert kept[1].pointer == 0


# a workspace


def workspace_of(inputs):
    return GpuBackend().workspace(inputs, {"out": Output((5,), np.float32)})


def test_a_workspace_is_filled_from_copies_and_leaves_them_as_they_are(runtime, driver):
    first, second = {"a": np.arange(4.0), "k": 3}, {"a": -np.arange(4.0), "k": 4}
    one = workspace_of(first)
    other = workspace_of(second)
    assert driver.calls.count("cuMemcpyHtoD") == 10, "two inputs, and the zones of four arrays"
    one.fill(second)
    assert one.arrays["a"].download().tolist() == second["a"].tolist()
    assert driver.calls.count("cuMemcpyHtoD") == 10, "the copy is on the device already"
    one.arrays["a"].fill(0)
    other.fill(first)
    assert runtime.copy_of(second["a"]).download().tolist() == second["a"].tolist()
    assert other.arrays["a"].download().tolist() == first["a"].tolist()


def test_filling_loading_and_poisoning_wait_and_queueing_does_not(runtime, driver):
    """A load is a user's copy from the host each time: a transfer is timed by it."""
    inputs = {"a": np.arange(4.0)}
    made = workspace_of(inputs)
    driver.calls.clear()
    for method, arguments, waits, call in (
        (made.fill, (inputs,), 1, "cuMemcpyDtoD"),
        (made.load, (inputs,), 1, "cuMemcpyHtoD"),
        (made.load, (inputs,), 1, "cuMemcpyHtoD"),
        (made.poison, (), 1, "cuMemsetD32"),
        (made.queue_poison, (STREAM,), 0, "cuMemsetD32Async"),
    ):
        before = runtime.waits
        method(*arguments)
        assert runtime.waits == before + waits, method
        assert driver.calls == [call], method
        driver.calls.clear()
    assert made.arrays["a"].download().tolist() == [0, 1, 2, 3]


def test_a_workspace_that_does_not_fit_gives_back_what_it_had(runtime, driver, monkeypatch):
    allocate = driver.cuMemAlloc
    count = []

    def second_fails(size):
        count.append(1)
        if len(count) == 2:
            raise cuda.CudaError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY")
        return allocate(size)

    monkeypatch.setattr(driver, "cuMemAlloc", second_fails)
    with pytest.raises(cuda.CudaError, match="OUT_OF_MEMORY"):
        workspace_of({"a": np.arange(4.0)})
    assert driver.used_bytes == 0


# what a launch returned


class Returned:
    """An array of some library: a view of one of ours."""

    def __init__(self, array, **interface):
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **interface}


class OfViews(GpuBackend):
    wrap = staticmethod(Returned)


def workspace_of_views(inputs):
    return OfViews().workspace(inputs, {"out": Output((2, 3), np.float32)})


def test_strides_are_told_where_a_returned_array_is_not_in_c_order(runtime):
    made = workspace_of_views({})
    matrix = DeviceArray((2, 3), np.float32)
    in_order, transposed = Returned(matrix, strides=(12, 4)), Returned(matrix, strides=(4, 8))
    assert made.adopt("out", in_order).strides is None
    assert made.adopt("out", transposed).strides == (4, 8)
    matrix.upload(np.arange(6.0).reshape(2, 3))
    assert made.fetch("out").tolist() == [[0, 2, 4], [1, 3, 5]]


def test_addresses_are_those_of_inputs_without_guard_zones_and_of_what_was_returned(runtime):
    made = workspace_of_views({"a": np.arange(4.0), "k": 3})
    start, _ = made.arrays["a"].__cuda_array_interface__["data"]
    assert made.input_spans() == {"a": (start, start + 32)}
    matrix = DeviceArray((4, 6), np.float32)
    form = made.adopt("out", Returned(matrix, shape=(2, 3), strides=(48, 8)))
    assert form.span == (matrix.pointer, matrix.pointer + 48 + 16 + 4)


def test_every_array_and_no_copy_is_freed_also_where_one_cannot_be(runtime, driver, monkeypatch):
    inputs = {"a": np.arange(4.0), "b": np.arange(3.0)}
    made = workspace_of(inputs)
    copies = [runtime.copy_of(array) for array in inputs.values()]
    free, failed = driver.cuMemFree, []

    def fails_once(pointer):
        free(pointer)
        if not failed:
            failed.append(pointer)
            raise cuda.CudaError("cuMemFree: CUDA_ERROR_UNKNOWN")

    monkeypatch.setattr(driver, "cuMemFree", fails_once)
    with pytest.raises(cuda.CudaError, match="CUDA_ERROR_UNKNOWN"):
        made.close()
    assert driver.used_bytes == sum(copy.allocated_bytes for copy in copies)
