"""Tests that the clock probe turns what its kernel writes into a clock, and that the kernel compiles."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from host_cuda import put_module
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.gpu import clock_probe as module
from pytest_gpukern.gpu.clock_probe import ClockProbe, median_clock
from pytest_gpukern.gpu.runtime import cuda_source


def test_one_block_that_was_interrupted_moves_nothing():
    good = [50_000, 99_000, 40]
    assert median_clock([*good, *good, 9_000_000, 99_000, 90_000]) == (1980.0, 40 / 99_000)


def test_blocks_whose_timer_stood_still_are_left_out():
    assert median_clock([0, 0, 0, 50_000, 99_000, 40]) == (1980.0, 40 / 99_000)
    assert median_clock([0] * 24) is None


@given(st.floats(200, 3500), st.integers(50_000, 1_000_000))
def test_the_clock_is_recovered_to_the_rounding_of_its_count(mhz, ns):
    found = median_clock([ns, round(ns * mhz / 1e3), 50])
    assert found is not None
    assert found[0] == pytest.approx(mhz, rel=1 / (ns * mhz / 1e3))


class FakeCuda:
    """Runtime and stream of a device whose clock is `mhz` and whose polls take `poll` clocks."""

    def __init__(self, mhz=1980.0, poll=40):
        self.mhz, self.poll = mhz, poll
        self.stream = self
        self.durations: list[int] = []
        self.log: list[str] = []

    def kernel(self, source, name):
        assert source == cuda_source("clock_probe.cu")
        assert f"void {name}(" in source
        return name

    def checked(self, call, *arguments):
        assert call == "cuMemHostAlloc"
        self.memory = ctypes.create_string_buffer(arguments[0])
        return ctypes.addressof(self.memory)

    def launch(self, stream, config, kernel, mailbox, ns, patience):
        assert stream is self
        self.log.append("launched")
        self.durations.append(int(ns))
        words = (ctypes.c_uint64 * (3 * config.grid)).from_address(mailbox)
        for block in range(config.grid):
            words[3 * block] = int(ns) if self.mhz else 0
            words[3 * block + 1] = round(int(ns) * self.mhz / 1e3)
            words[3 * block + 2] = self.poll

    def sync(self):
        self.log.append("waited")


@pytest.fixture
def probe_on(monkeypatch):
    def make(cuda):
        put_module(monkeypatch, "cuda.core", LaunchConfig=SimpleNamespace, launch=cuda.launch)
        monkeypatch.setattr(module, "checked", cuda.checked)
        return ClockProbe(cuda)

    return make


def test_a_reading_waits_for_the_kernel_and_is_the_clock_in_mhz(probe_on):
    cuda = FakeCuda(mhz=1725.0)
    probe = probe_on(cuda)
    assert probe.read() == pytest.approx(1725.0)
    assert cuda.log == ["launched", "waited"] * 2, "the first loads the kernel"


def test_the_kernel_lasts_longer_where_polling_the_timer_is_slow(probe_on):
    cuda = FakeCuda(poll=500)  # 0.5 % of 99 000 clocks
    probe = probe_on(cuda)
    for _ in range(3):
        probe.read()
    assert cuda.durations == [50_000, 100_000, 200_000, 200_000]


def test_a_timer_that_stands_still_gives_no_clock(probe_on):
    probe = probe_on(FakeCuda(mhz=0))
    assert probe.read() is None
