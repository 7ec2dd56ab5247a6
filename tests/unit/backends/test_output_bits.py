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
from pytest_gpukern.backends.host import HostBackend
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


def test_a_workspace_hashes_what_was_adopted():
    made = HostBackend().workspace({"a": np.zeros(3)}, {"out": Output((3,), "float64")})
    made.adopt("out", np.ones(3))
    assert made.bits("out") == bits_of(np.ones(3))


# on the device


@pytest.fixture
def written(runtime, monkeypatch):
    """A device's workspace in host memory."""
    monkeypatch.setattr(GpuBackend, "wrap", lambda _, array: host_cuda.contents_of(array))
    return GpuBackend().workspace({}, {"out": Output((5,), "uint8")})


@pytest.fixture
def workspace(written, monkeypatch):
    """One whose output nobody may copy to the host."""

    def refuse(*_, **__):
        raise AssertionError("the output was copied to the host")

    monkeypatch.setattr(written, "fetch", refuse)
    return written


def test_a_device_hashes_where_the_output_lives(workspace):
    output = workspace.arrays["out"]
    output[...] = np.arange(5)
    first = workspace.bits("out")
    method, _, digits = first.partition(":")
    assert (method, len(digits)) == ("splitmix64", 16)
    output[...] = np.arange(1, 6)
    assert workspace.bits("out") != first


def test_what_a_launch_returned_is_hashed_in_its_place(workspace):
    workspace.adopt("out", np.arange(5, dtype="u1").view(host_cuda.OnDevice))
    returned = workspace.bits("out")
    workspace.poison()
    assert workspace.bits("out") != returned


def test_what_is_strided_or_not_aligned_has_no_hash(workspace):
    words = np.zeros(16, "u1").view(host_cuda.OnDevice)
    workspace.adopt("out", words[:10:2])
    assert workspace.bits("out") is None
    workspace.adopt("out", words[1:6])
    assert workspace.bits("out") is None


# when they are taken


def bits_in(result):
    return result.errors["out"].bits


def test_a_measured_case_has_the_hash_of_its_first_data_sets_output(gpu, timer):
    case = case_of(right)
    result = run(case, FakeEnvironment(gpu, settings=measuring()))
    first = FakeEnvironment(gpu).datasets.get(case.problem, case.point, 0)
    assert bits_in(result) == bits_of((2 * first.inputs["a"]).astype("float32"))
    again = run(case, FakeEnvironment(gpu, settings=measuring()))
    assert bits_in(again) == bits_in(result)


def test_nothing_is_hashed_where_nothing_is_measured(gpu):
    assert bits_in(run(case_of(right), FakeEnvironment(gpu, settings=Settings()))) is None


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
