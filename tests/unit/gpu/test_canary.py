"""Canaries: which kernels they are, and how a session measures them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from fakes import FakeTimer
from test_backends_ceilings import FakeArray, Machine

from pytest_gpukern.gpu import ceiling_kernels as kernels
from pytest_gpukern.gpu import ceiling_kernels as module
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.measure import canaries
from pytest_gpukern.measure.canaries import measure_canaries
from pytest_gpukern.timers.timer import TimerUnavailable

MIB = 2**20

# the kernels


@pytest.fixture
def machine(monkeypatch):
    """A device of known speed; what is launched on it is in its `log`."""
    made = Machine()
    made.resident_threads = 132 * 2048
    made.forget_copies = lambda: None
    core = ModuleType("cuda.core")
    core.LaunchConfig = lambda grid, block: SimpleNamespace(grid=grid, block=block)
    core.launch = made.core_launch
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    for each in (module, kernels):
        monkeypatch.setattr(each, "checked", made.checked)
    monkeypatch.setattr(module, "DeviceArray", lambda shape, dtype: FakeArray(made, shape, dtype))
    return made


def time_ns(machine, name):
    with kernels.CANARIES[name](machine) as call:
        machine.synchronize()
        before = machine.host_ns
        call()
        machine.synchronize()
        took = machine.host_ns - before
    assert machine.live == {}, "its memory was given back"
    return took - machine.truth["launch_host_ns"]


def test_the_fmas_take_about_200_microseconds_of_a_h200(machine):
    assert time_ns(machine, "fma") == pytest.approx(200_000, rel=0.05)


def test_the_copy_is_four_times_the_l2_at_least(machine):
    assert time_ns(machine, "copy") == pytest.approx(2 * 256 * MIB / 4.29e12 * 1e9, rel=0.01)
    machine.l2_bytes = 126 * MIB
    assert time_ns(machine, "copy") == pytest.approx(2 * 504 * MIB / 4.29e12 * 1e9, rel=0.01)


def test_a_launch_is_an_empty_kernel(machine):
    assert time_ns(machine, "launch") == pytest.approx(machine.truth["launch_gpu_ns"])
    assert [entry[0] for entry in machine.log] == ["gpukern_empty"]


def test_the_work_is_the_same_however_fast_the_device_is(machine):
    def launched():
        machine.log.clear()
        for name in kernels.CANARIES:
            time_ns(machine, name)
        return [
            (entry[0], vars(entry[1]), [value for value in entry[2] if isinstance(value, np.generic)])
            for entry in machine.log
            if entry[0].startswith("gpukern")
        ]

    before = launched()
    machine.truth = {name: value / 3 for name, value in machine.truth.items()}
    assert launched() == before


# measuring them


@pytest.fixture
def session(monkeypatch):
    """Measures three canaries that do nothing, by timers that read 1 µs; `log` says what happened."""
    log = []

    def canary(name, error=None):
        @contextmanager
        def make(runtime):
            if error is not None:
                raise error
            yield lambda: log.append(name)
            log.append(f"{name} given back")

        return make

    def measure(errors=None, cupti=None):
        def open_timer(name, stream):
            if name == "cupti" and cupti is not None:
                raise cupti
            return FakeTimer(name)

        monkeypatch.setattr(canaries, "open_timer", open_timer)
        made = {name: canary(name, (errors or {}).get(name)) for name in ("fma", "copy", "launch")}
        monkeypatch.setattr(kernels, "CANARIES", made)
        monkeypatch.setattr(cuda, "runtime", lambda: SimpleNamespace(synchronize=lambda: None, stream=None))
        return measure_canaries()

    return SimpleNamespace(measure=measure, log=log)


def test_each_canary_has_the_median_of_its_samples(session):
    found = session.measure()
    assert found.times_ns == {"fma": 1001.0, "copy": 1001.0, "launch": 1001.0}
    assert found.complaints == ()
    assert [entry for entry in session.log if "given back" in entry] == [
        "fma given back",
        "copy given back",
        "launch given back",
    ]


def test_where_cupti_cannot_be_used_events_time_them_under_names_of_their_own(session):
    found = session.measure(cupti=TimerUnavailable("cupti-python is not installed"))
    assert set(found.times_ns) == {"fma/event", "copy/event", "launch/event"}


def test_what_cannot_be_measured_is_told_and_the_others_are(session):
    found = session.measure({"copy": module.NotMeasuredError("12 MiB of device memory are free, too few")})
    assert set(found.times_ns) == {"fma", "launch"}
    assert found.complaints == (
        "the canary copy could not be measured: 12 MiB of device memory are free, too few",
    )
