"""Tests how ceilings and canaries are measured, on a device and a host of known speed."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeTimer
from host_cuda import put_module

from pytest_gpukern.gpu import ceiling_kernels as module
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.ceiling_kernels import BLOCK, CHAINS, UNROLLED, measure_ceilings
from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.measure import ceilings
from pytest_gpukern.measure.ceilings import Ceilings, measure_canaries
from pytest_gpukern.timers.timer import TimerUnavailable

MIB = 2**20

TRUTH = {
    "device_copy_bytes_per_s": 4.29e12,
    "pinned_to_device_bytes_per_s": 55e9,
    "device_to_pinned_bytes_per_s": 54e9,
    "pageable_to_device_bytes_per_s": 9.7e9,
    "device_to_pageable_bytes_per_s": 19e9,
    "duplex_pinned_bytes_per_s": 80e9,
    "float16_flop_per_s": 131e12,
    "float32_flop_per_s": 66e12,
    "float64_flop_per_s": 33e12,
    "int32_op_per_s": 32e12,
}

FIGURE_OF = {
    "float": "float32_flop_per_s",
    "double": "float64_flop_per_s",
    "unsigned": "int32_op_per_s",
    "half2x": "float16_flop_per_s",
}


class FakeEvent:
    """Reads the device's time when the stream reached it."""

    def __init__(self, machine):
        self.machine = machine

    def __sub__(self, other):
        return (self.at_ns - other.at_ns) / 1e6

    def sync(self):
        self.machine.host_ns = max(self.machine.host_ns, self.at_ns)


class Machine:
    """Host and device of known speed, in place of the runtime, the driver, cuda.core and the clock.

    The device works off a queue; each launch costs the host time, each event the device.
    """

    EVENT_NS = 3000.0
    LAUNCH_NS = 4000.0

    def __init__(self, truth=TRUTH, **changes):
        self.truth = truth
        self.host_ns = 0.0
        self.busy_until_ns = 0.0
        self.l2_bytes = 60 * MIB
        self.free = 100 * 2**30
        self.compute_capability = (9, 0)
        self.stretch = lambda ns: 1.0
        self.copied_by_kernel = self.copied_by_driver = True
        self.kernel_copy_slower = self.driver_copy_slower = 1.0
        self.refused = ()
        self.called = []
        self.addresses = itertools.count(1000)
        self.live = {}
        self.pinned = set()
        self.compiled = []
        self.kernels = {}
        self.device = self
        self.stream = SimpleNamespace(record=self.record, handle="the stream")
        self.beside_until_ns = 0.0
        self.multiprocessors = 132
        for name, value in changes.items():
            assert hasattr(self, name)
            setattr(self, name, value)

    def runs(self, ns, *, host_ns=0.0):
        self.host_ns += host_ns
        start = max(self.host_ns, self.busy_until_ns)
        self.busy_until_ns = start + ns * self.stretch(start)

    # the runtime

    def kernel(self, source, name):
        if (source, name) not in self.kernels:
            self.host_ns += 1e8
            c_type = re.findall(r"^#define T (\w+)", source, re.MULTILINE)
            occupancy = SimpleNamespace(max_active_blocks_per_multiprocessor=lambda block, shared: 8)
            self.kernels[source, name] = SimpleNamespace(name=name, c_type=c_type, occupancy=occupancy)
            self.compiled += c_type
        return self.kernels[source, name]

    def launch(self, kernel, threads, *arguments):
        assert kernel.name == "gpukern_fill"
        assert threads == arguments[1]
        self.live[arguments[0]].content = "random"
        self.runs(1e5, host_ns=5000)

    def create_stream(self):
        return SimpleNamespace(handle="another", close=lambda: None)

    def synchronize(self):
        self.host_ns = max(self.host_ns, self.busy_until_ns, self.beside_until_ns)

    def free_bytes(self):
        return self.free - sum(array.nbytes for array in self.live.values())

    def hash(self, array):
        self.synchronize()
        return array.content

    def create_event(self, options):
        assert options == "timing"
        return FakeEvent(self)

    def record(self, event):
        self.runs(self.EVENT_NS)
        event.at_ns = self.busy_until_ns

    # cuda.core

    def core_launch(self, stream, config, kernel, *arguments):
        assert stream is self.stream
        name = kernel.name
        if name == "gpukern_fma":
            assert arguments[0] in self.live
            threads = config.grid * config.block
            lanes = 2 if kernel.c_type[0].endswith("2x") else 1
            operations = 2.0 * lanes * CHAINS * UNROLLED * threads * int(arguments[1])
            ns = operations / self.truth[FIGURE_OF[kernel.c_type[0]]] * 1e9
        elif name == "gpukern_copy":
            source, target = (self.live[pointer] for pointer in arguments)
            assert config.grid * config.block * 4 * 16 == source.nbytes == target.nbytes
            ns = self.copy_ns(source.nbytes) * self.kernel_copy_slower
            if self.copied_by_kernel:
                target.content = source.content
        else:
            assert name == "gpukern_empty"
            ns = 1600.0
        self.runs(ns, host_ns=self.LAUNCH_NS)

    def copy_ns(self, nbytes):
        return 2 * nbytes / self.truth["device_copy_bytes_per_s"] * 1e9

    # the driver

    def checked(self, call, *arguments):
        self.called.append((call, arguments))
        if call in self.refused:
            raise CudaError(f"{call}: CUDA_ERROR_OUT_OF_MEMORY")
        return getattr(self, call.lower())(*arguments)

    def cumemcpyhtod(self, to, start, nbytes):
        assert self.live[to].nbytes == nbytes
        self.host_ns += 20_000

    def cumemsetd32(self, to, value, words):
        assert self.live[to].nbytes == 4 * words
        self.live[to].content = value

    def cumemcpydtodasync(self, to, start, nbytes, stream):
        assert stream == "the stream"
        if self.copied_by_driver:
            self.live[to].content = self.live[start].content
        self.runs(self.copy_ns(nbytes) * self.driver_copy_slower, host_ns=2000)

    def cumemhostalloc(self, nbytes, flags):
        self.pinned |= {77, 77 + nbytes // 2}
        return 77

    def cumemfreehost(self, pointer):
        assert pointer in self.pinned
        self.pinned.clear()

    def cumemcpyhtodasync(self, to, start, nbytes, stream):
        assert start in self.pinned
        assert self.live[to].nbytes == nbytes
        self.runs(nbytes / self.truth["pinned_to_device_bytes_per_s"] * 1e9, host_ns=2000)

    def cumemcpydtohasync(self, to, start, nbytes, stream):
        assert to in self.pinned
        assert self.live[start].nbytes == nbytes
        if stream == "another":  # beside the other direction
            both_ns = 2 * nbytes / self.truth["duplex_pinned_bytes_per_s"] * 1e9
            self.beside_until_ns = self.host_ns + both_ns
            return
        self.runs(nbytes / self.truth["device_to_pinned_bytes_per_s"] * 1e9, host_ns=2000)


class FakeArray:
    """Device memory without contents, but with a note of what was put there."""

    def __init__(self, machine, shape, dtype):
        self.nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.nbytes > machine.free_bytes():
            raise CudaError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY")
        self.machine = machine
        self.pointer = next(machine.addresses)
        self.content = None
        machine.live[self.pointer] = self

    def free(self):
        del self.machine.live[self.pointer]

    def upload(self, host):
        assert host.nbytes == self.nbytes
        self.machine.host_ns += self.nbytes / self.machine.truth["pageable_to_device_bytes_per_s"] * 1e9

    def download(self, into):
        assert into.nbytes == self.nbytes
        self.machine.host_ns += self.nbytes / self.machine.truth["device_to_pageable_bytes_per_s"] * 1e9


def put_under(monkeypatch, machine):
    """Puts a machine in the place of the driver, cuda.core and arrays."""
    put_module(
        monkeypatch,
        "cuda.core",
        EventOptions=lambda timing_enabled: "timing" if timing_enabled else "none",
        LaunchConfig=SimpleNamespace,
        launch=machine.core_launch,
    )
    monkeypatch.setattr(module, "runtime", lambda: machine)
    monkeypatch.setattr(module, "checked", machine.checked)
    monkeypatch.setattr(module, "DeviceArray", lambda shape, dtype: FakeArray(machine, shape, dtype))


@pytest.fixture
def measured_on(monkeypatch):
    """Measures a machine, and sees that everything allocated was given back."""

    def measure(machine):
        put_under(monkeypatch, machine)
        clock = SimpleNamespace(
            perf_counter_ns=lambda: machine.host_ns, monotonic=lambda: machine.host_ns / 1e9
        )
        monkeypatch.setattr(module, "time", clock)
        found = measure_ceilings()
        assert machine.live == {}
        assert machine.pinned == set()
        return found

    return measure


# what is measured


@pytest.mark.parametrize("rising_ns", [0, 3e8])
def test_every_ceiling_is_found_although_events_cost_3_us_and_clocks_rise_at_first(measured_on, rising_ns):
    found = measured_on(Machine(stretch=lambda ns: 4.0 if ns < rising_ns else 1.0))
    assert found.complaints == ()
    assert found.values == pytest.approx(TRUTH, rel=0.003)
    assert set(found.values) == {*Ceilings.__struct_fields__}


def test_samples_that_somebody_disturbed_are_not_in_the_figures(measured_on):
    rng = np.random.default_rng(3)
    machine = Machine(stretch=lambda ns: 3.0 if rng.random() < 0.4 else 1.0)
    found = measured_on(machine).values
    for name in ("float32_flop_per_s", "float64_flop_per_s", "device_copy_bytes_per_s"):
        assert found[name] == pytest.approx(TRUTH[name], rel=0.003), name


# multiply-adds


@pytest.mark.parametrize(
    ("compute_capability", "pairs", "half"),
    [((5, 2), False, False), ((5, 3), False, True), ((9, 0), False, True), ((12, 0), False, True)],
)
def test_a_kernel_runs_only_where_the_hardware_has_its_instruction(
    measured_on, compute_capability, pairs, half
):
    machine = Machine(compute_capability=compute_capability)
    found = measured_on(machine)
    assert ("float2x" in machine.compiled) is pairs
    assert ("half2x" in machine.compiled) is ("float16_flop_per_s" in found.values) is half
    assert found.complaints == ()


@pytest.mark.parametrize(("paired", "expected"), [(74e12, 74e12), (30e12, 66e12)])
def test_where_float32_can_go_in_pairs_the_faster_of_both_is_the_ceiling(
    measured_on, monkeypatch, paired, expected
):
    monkeypatch.setitem(FIGURE_OF, "float2x", "paired")
    found = measured_on(Machine({**TRUTH, "paired": paired}, compute_capability=(10, 0)))
    assert found.values["float32_flop_per_s"] == pytest.approx(expected, rel=0.003)


@pytest.mark.parametrize("fma", module._FMAS, ids=lambda fma: fma.c_type)
def test_chains_start_apart_and_never_leave_the_range_of_their_type(fma):
    values = module.fma_values(fma.dtype, fma.lanes)
    assert values.shape == (4 + CHAINS * BLOCK, fma.lanes)
    starts = values[4:]
    if fma.dtype == "uint32":
        assert values[0, 0] % 2 == 1
        assert len(np.unique(starts)) == starts.size
        return
    assert len(np.unique(starts)) > starts.size / 4  # float16 has few numbers
    chain = starts.astype(fma.dtype)
    for _ in range(3000):
        chain = chain * values[0] + values[1]
    assert np.isfinite(chain).all()
    assert (np.abs(chain) < 2).all()
    assert (np.abs(chain) > 1e-2).all(), "no denormal numbers"
    assert np.isnan(values[2]).all()


# copies


@pytest.mark.parametrize("slower", ["kernel_copy_slower", "driver_copy_slower"])
def test_the_better_of_kernel_and_driver_is_the_ceiling_of_copies(measured_on, slower):
    found = measured_on(Machine(**{slower: 1.3}))
    assert found.values["device_copy_bytes_per_s"] == pytest.approx(4.29e12, rel=0.003)


@pytest.mark.parametrize(
    ("free_mib", "l2_mib", "copied_mib"), [(100_000, 60, 1024), (100_000, 256, 2048), (600, 60, 150)]
)
def test_what_is_copied_is_far_larger_than_the_l2_and_leaves_half_of_the_memory_free(
    measured_on, free_mib, l2_mib, copied_mib
):
    machine = Machine(free=free_mib * MIB, l2_bytes=l2_mib * MIB)
    found = measured_on(machine)
    sizes = {arguments[2] for call, arguments in machine.called if call == "cuMemcpyDtoDAsync"}
    assert sizes == {copied_mib * MIB}
    assert found.values["device_copy_bytes_per_s"] == pytest.approx(4.29e12, rel=0.003)


COPIES = {"device_copy_bytes_per_s"}
PINNED = {"pinned_to_device_bytes_per_s", "device_to_pinned_bytes_per_s", "duplex_pinned_bytes_per_s"}


@pytest.mark.parametrize(
    ("changes", "missing", "complaint"),
    [
        ({"copied_by_kernel": False}, COPIES, "copies within the device *: source and target differ *"),
        ({"copied_by_driver": False}, COPIES, "copies within the device *: source and target differ *"),
        ({"free": 400 * MIB}, COPIES, "copies within the device *: 400 MiB * are free, too little"),
        ({"refused": ("cuMemHostAlloc",)}, PINNED, "copies of pinned memory *: cuMemHostAlloc: CUDA_ERROR_*"),
        ({"refused": ("cuMemcpyDtoHAsync",)}, PINNED, "copies of pinned memory *: cuMemcpyDtoHAsync: *"),
    ],
)
def test_what_cannot_be_measured_is_reported_and_the_rest_is_measured(
    measured_on, changes, missing, complaint
):
    found = measured_on(Machine(**changes))
    (said,) = found.complaints
    pattern = "the ceiling of " + complaint.replace("*", "could not be measured", 1)
    assert fnmatch.fnmatch(said, pattern)
    assert set(TRUTH) - set(found.values) == missing


# the kernels


def test_the_copy_is_four_times_the_l2_at_least(monkeypatch):
    machine = Machine()
    machine.forget_copies = lambda: None
    put_under(monkeypatch, machine)
    for l2_mib, copied_mib in ((60, 256), (126, 504)):
        machine.l2_bytes = l2_mib * MIB
        with module.CANARIES["copy"](machine) as call:
            machine.synchronize()
            before_ns = machine.host_ns + machine.LAUNCH_NS
            call()
            machine.synchronize()
        assert machine.host_ns - before_ns == pytest.approx(2 * copied_mib * MIB / 4.29e12 * 1e9, rel=0.01)
        assert machine.live == {}, "its memory was given back"


# measuring them


MEDIANS = {"fma": 1001.0, "copy": 1001.0, "launch": 1001.0}
TOO_LITTLE = "12 MiB of device memory are free, too little"


@pytest.mark.parametrize(
    ("no_cupti", "no_copy", "values", "complaints"),
    [
        (None, None, MEDIANS, ()),
        (TimerUnavailable("none"), None, {f"{name}/event": ns for name, ns in MEDIANS.items()}, ()),
        (
            None,
            module.NotMeasuredError(TOO_LITTLE),
            {"fma": 1001.0, "launch": 1001.0},
            (f"the canary copy could not be measured: {TOO_LITTLE}",),
        ),
    ],
    ids=["by CUPTI", "by events, under names of their own", "one of them fails"],
)
def test_each_canary_has_the_median_of_its_samples(monkeypatch, no_cupti, no_copy, values, complaints):
    open_canaries = []

    @contextmanager
    def canary(runtime, error=None):
        if error is not None:
            raise error
        open_canaries.append(1)
        yield lambda: None
        open_canaries.pop()

    def open_timer(name, stream):
        if name == "cupti" and no_cupti is not None:
            raise no_cupti
        return FakeTimer(name)

    made = {name: functools.partial(canary, error=no_copy if name == "copy" else None) for name in MEDIANS}
    monkeypatch.setattr(ceilings, "open_timer", open_timer)
    monkeypatch.setattr(module, "CANARIES", made)
    monkeypatch.setattr(cuda, "runtime", lambda: SimpleNamespace(synchronize=lambda: None, stream=None))
    found = measure_canaries()
    assert (found.values, found.complaints) == (values, complaints)
    assert not open_canaries, "each is given back"
