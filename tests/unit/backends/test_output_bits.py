"""Hashes of outputs: stable, named by their method, taken where the output lives, of the first data set."""

from __future__ import annotations

import host_cuda
import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, measuring, right, run

from pytest_gpukern import Output
from pytest_gpukern.backends import foreign_array
from pytest_gpukern.backends.foreign_array import bits_of
from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.values.settings import Settings

# on the host


def test_the_hash_of_an_array_is_the_one_that_records_hold_if_all_its_bytes_are_values():
    """It must not change from release to release: records are compared with it."""
    assert bits_of(np.arange(10, dtype="<f4")) == "crc32-16mib:a58850505c23282b"
    assert bits_of(np.zeros((3, 0))) is not None
    assert bits_of(np.zeros(2, "longdouble")) is None, "it has padding"


@pytest.mark.parametrize("at", [0, 3, 4, 7, 8, 9])
def test_one_bit_anywhere_makes_another_hash(monkeypatch, at):
    monkeypatch.setattr(foreign_array, "_PIECE", 4)
    array = np.zeros(10, "u1")
    before = bits_of(array)
    array[at] = 1
    assert bits_of(array) != before


# on the device


@pytest.fixture
def written(runtime, monkeypatch):
    """A device's workspace in host memory."""
    monkeypatch.setattr(GpuBackend, "wrap", lambda _, array: host_cuda.contents_of(array))
    return GpuBackend().workspace({}, {"out": Output((5,), "uint8")})


def test_a_device_hashes_where_the_output_lives(written, monkeypatch):
    monkeypatch.setattr(written, "fetch", lambda *_, **__: pytest.fail("it was copied to the host"))
    output = written.arrays["out"]
    output[...] = np.arange(5)
    first = written.bits("out")
    method, _, digits = first.partition(":")
    assert (method, len(digits)) == ("splitmix64", 16)
    output[...] = np.arange(1, 6)
    assert written.bits("out") != first


def test_what_is_strided_or_not_aligned_has_no_hash(written):
    words = np.zeros(16, "u1").view(host_cuda.OnDevice)
    for part in (words[:10:2], words[1:6]):
        written.adopt("out", part)
        assert written.bits("out") is None


# when they are taken


def test_a_measured_case_has_the_hash_of_its_first_data_sets_output(gpu, timer):
    case = case_of(right)
    result = run(case, FakeEnvironment(gpu, settings=measuring()))
    first = FakeEnvironment(gpu).datasets.get(case.problem, case.point, 0)
    assert result.errors["out"].bits == bits_of((2 * first.inputs["a"]).astype("float32"))


def test_nothing_is_hashed_where_nothing_is_measured(gpu):
    assert run(case_of(right), FakeEnvironment(gpu, settings=Settings())).errors["out"].bits is None


# written late


WRITES = np.arange(1, 6, dtype="uint8")


def test_what_is_written_behind_the_copy_on_the_timed_stream_is_late(runtime, written):
    def writes():
        written.arrays["out"][...] = WRITES

    def launch():
        runtime.elsewhere.append(writes)

    assert written.written_late(launch, hold_ns=1e6) == ["out"]
    assert runtime.held_ns == 1e6
    assert written.written_late(writes, hold_ns=1e6) == []

    def launch_and_wait():
        launch()
        runtime.synchronize()

    assert written.written_late(launch_and_wait, hold_ns=1e6) == []
    assert not runtime.driver.pinned, "the memory was given back"


def test_of_a_large_output_the_end_is_looked_at_and_of_what_a_launch_returned_that(
    runtime, written, monkeypatch
):
    monkeypatch.setattr("pytest_gpukern.backends.gpu_backend._LOOKED_AT_BYTES", 2)
    returned = WRITES.copy().view(host_cuda.OnDevice)

    def writes(part):
        def launch():
            written.adopt("out", returned)
            runtime.elsewhere.append(lambda: returned[part].fill(9))

        return launch

    assert written.written_late(writes(slice(0, 3)), hold_ns=0) == []
    assert written.written_late(writes(slice(4, 5)), hold_ns=0) == ["out"]
    assert not runtime.driver.pinned
