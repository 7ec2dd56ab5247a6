"""Checks the kernels that a self-test times: one that says how long it took, and five others."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from nvrtc_compiler import ARCHITECTURES, KNOWN, compiled, needs_nvrtc

from pytest_gpukern.gpu.runtime import cuda_source
from pytest_gpukern.selftest import kernels as module
from pytest_gpukern.selftest.kernels import SpinningKernel
from pytest_gpukern.selftest.known_times import Spin
from pytest_gpukern.timers.timer import Batch

POINTER = 0x1000


class Machine:
    """Plays a device with spins 16 ns longer than asked; a launch writes its own time at once."""

    def __init__(self, monkeypatch):
        self.own = np.zeros(64, np.uint64)
        self.launched = []
        monkeypatch.setattr(module, "DeviceArray", self.array)
        core = ModuleType("cuda.core")
        core.LaunchConfig = lambda **sizes: sizes
        core.launch = self.launch
        cuda = ModuleType("cuda")
        cuda.core = core
        monkeypatch.setitem(sys.modules, "cuda", cuda)
        monkeypatch.setitem(sys.modules, "cuda.core", core)
        self.stream = "stream"

    def kernel(self, source, name):
        assert name in source
        return name

    def synchronize(self):
        self.launched.append("synchronize")

    def array(self, shape, dtype):
        assert (shape, dtype) == ((64,), np.uint64)
        return SimpleNamespace(pointer=POINTER, download=self.own.copy)

    def launch(self, stream, config, kernel, ns, pointer):
        assert (stream, config, kernel) == ("stream", {"grid": 1, "block": 1}, "gpukern_spin")
        assert isinstance(ns, np.uint64)
        slot, rest = divmod(pointer - POINTER, 8)
        assert rest == 0
        self.own[slot] = ns + 16 + 32 * (slot % 2)
        self.launched.append(int(ns))


class TimerBeyond:
    """Reads 700 ns more than each kernel says itself."""

    name = "cupti"

    def __init__(self, machine):
        self.machine = machine

    def collect(self, iterations, *, cold):
        assert not cold
        samples = []
        for slot, iteration in enumerate(iterations):
            assert iteration.launches == 1
            iteration.run()
            samples.append(float(self.machine.own[slot]) + 700)
        return Batch(samples)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernel_compiles_and_reads_the_global_timer(architecture):
    if architecture not in KNOWN:
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    ptx = compiled(cuda_source("selftest_spin.cu"), f"compute_{architecture}").decode()
    assert ptx.count("%globaltimer") >= 2
    assert "gpukern_spin" in ptx


def test_each_sample_is_compared_with_its_own_kernel(machine):
    found = SpinningKernel(machine).read(TimerBeyond(machine), 1500, 10)
    assert machine.launched[:2] == [0, "synchronize"], "it is loaded before anything is blocked"
    assert found == Spin(1500, "cupti", 1532.0, 2232.0, 700.0)
    assert machine.launched[2:] == [1500] * 10


def test_the_kernels_have_the_sizes_of_their_names_and_all_but_cublas_are_captured():
    cases = module.selftest_cases()
    assert {module.name_of(case): case.point["n"] for case in cases} == module.SIZES
    ways = {name: [] for name in module.SIZES}
    for case in cases:
        ways[module.name_of(case)].append(case.parameters["way"])
    assert ways.pop("sgemm 2048") == ["cold", "hot"]
    assert all(each == ["cold", "hot", "graph"] for each in ways.values())
