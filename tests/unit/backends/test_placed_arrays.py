"""Arrays that are misaligned or strided: where they lie on the host and the device, and damage."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern import Output
from pytest_gpukern.arrays.compare import POISON
from pytest_gpukern.arrays.memory import (
    GUARD_BYTES,
    LAYOUTS,
    OUTPUT_GUARD,
    Damage,
    Placed,
    Placement,
    placements,
)
from pytest_gpukern.backends.gpu_backend import GpuBackend, PlacedDeviceArray
from pytest_gpukern.backends.host import GuardedArray
from pytest_gpukern.check.diagnosis import diagnose_damage

# where they lie


FORMS = pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), "f4"),
        ((0,), "f8"),
        ((3,), "f2"),
        ((5, 7), "f4"),
        ((2, 3, 4), "u1"),
        ((4,), "c16"),
        ((3,), "i4,f8"),
    ],
)
PLACES = pytest.mark.parametrize("placement", [Placement(1), Placement(3), Placement(0, 2), Placement(0, 3)])


def allocation_of(placed):
    """Memory with the guard where it belongs."""
    allocation = np.empty(placed.nbytes, np.uint8)
    for start, pattern in placed.zones():
        allocation[start : start + pattern.size] = pattern
    return allocation


@given(
    shape=st.sampled_from([(), (1,), (5,), (3, 4)]),
    dtype=st.sampled_from(["u1", "f2", "f4", "f8"]),
    placement=st.sampled_from([Placement(1), Placement(3), Placement(0, 2), Placement(0, 3)]),
    at=st.integers(0, 10**6),
)
def test_every_byte_that_is_no_element_is_looked_at(shape, dtype, placement, at):
    placed = Placed(shape, np.dtype(dtype), placement, OUTPUT_GUARD)
    allocation = allocation_of(placed)
    at = (at if at % 2 else at // 2 % 200 + placed.start - 100) % placed.nbytes  # often near the array
    before = placed.view(allocation).tobytes()
    allocation[at] ^= 0xFF
    is_element = placed.view(allocation).tobytes() != before
    found = placed.damage("out", lambda start, stop: allocation[start:stop])
    assert bool(found) is not is_element
    assert [each.changed_bytes for each in found] == [1] * len(found)


def test_damage_says_before_between_and_behind():
    array = GuardedArray((3,), "f4", OUTPUT_GUARD, Placement(step=2))
    wider = np.lib.stride_tricks.as_strided(array.array, (6,), (4,))
    wider[3] = 1
    assert array.damage("out") == [Damage("out", True, 4, 1, 3, between=True)]
    wider[5] = 1
    assert array.damage("out")[1] == Damage("out", True, 4, 3, 3)
    message = diagnose_damage(array.damage("out")).message
    assert "4 bytes written between the elements of out, the first after flat index 1 of 3" in message


# on the device


EVERY_SECOND = Placement(step=2)


def placed_on_device(placement=EVERY_SECOND, shape=(2, 3), dtype=np.float32):
    return PlacedDeviceArray(shape, dtype, guard=OUTPUT_GUARD, placement=placement)


@FORMS
@PLACES
def test_a_device_array_says_where_its_elements_are(driver, shape, dtype, placement):
    array = placed_on_device(placement, shape, dtype)
    contents = np.ndarray(shape, dtype, np.random.default_rng(1).bytes(4096))
    array.upload(contents)
    assert array.download().tobytes() == contents.tobytes()
    interface = array.__cuda_array_interface__
    (allocation,) = driver.allocated
    assert interface["data"][0] - allocation == GUARD_BYTES + placement.offset * array.dtype.itemsize
    raw = np.ctypeslib.as_array((ctypes.c_ubyte * array.allocated_bytes).from_address(allocation))
    offset = interface["data"][0] - allocation
    seen = np.ndarray(interface["shape"], interface.get("descr") or dtype, raw, offset, interface["strides"])
    assert seen.tobytes() == contents.tobytes()
    assert array.damage("a") == []
    array.free()
    assert driver.used_bytes == 0


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
def test_a_poison_is_what_it_would_be_in_c_order(driver, dtype):
    array = placed_on_device(shape=(7,), dtype=dtype)
    array.fill(POISON)
    expected = np.full(14, POISON, np.uint32).view(dtype)[:7]
    assert array.download().tobytes() == expected.tobytes()
    assert array.damage("out") == []


def test_a_write_into_a_gap_on_the_device_is_damage(driver):
    array = placed_on_device()
    ctypes.memset(array.pointer + 4, 0, 4)
    (found,) = array.damage("out")
    assert (found.between, found.index, found.changed_bytes) == (True, 0, 4)


def test_under_a_sanitizer_only_the_gaps_are_ours(driver, monkeypatch):
    monkeypatch.setenv("GPUKERN_UNDER_SANITIZER", "memcheck")
    array = placed_on_device(Placement(offset=1), (3,))
    assert len(driver.allocated[array.pointer - 4]) == 16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_workspace_compares_and_hashes_as_if_in_c_order(runtime, layout, monkeypatch):
    inputs, specs = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(3)}, {"out": Output((5,), np.float32)}

    def contents(self, array):
        assert array.pointer, "it was freed"
        return array.download().tobytes()

    monkeypatch.setattr(type(runtime), "hash", contents, raising=False)
    made = GpuBackend().workspace(inputs, specs, placements(layout, ["a", "b", "out"]))
    assert made.digest() == made.digest_of(inputs)
    assert made.damage() == []
    made.arrays["out"].upload(np.arange(5, dtype=np.float32))
    assert made.fetch("out").tolist() == [0, 1, 2, 3, 4]
    made.fill({"a": -inputs["a"], "b": inputs["b"]})
    assert made.digest() != made.digest_of(inputs)
    made.close()
